"""`drivetrain checkpoint`."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from drivetrain import Fabric
from drivetrain.checkpoint.read import read_tensors
from drivetrain.cli.main import main


def make(path: Path, *, step: int = 3, value: float = 1.0, module: nn.Module | None = None, **more: Any) -> Path:
    """A checkpoint of a model in which every weight has one value, and of an optimizer that has made a step."""
    fabric = Fabric(accelerator="cpu", devices=1)
    module = module or nn.Linear(3, 2)
    optimizer = torch.optim.Adam(module.parameters())
    for parameter in module.parameters():
        parameter.grad = torch.full_like(parameter, value)
    optimizer.step()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(value)
    model, optimizer = fabric.setup(module, optimizer)
    fabric.save(path, {"model": model, "optimizer": optimizer, "step": step, **more})
    fabric.close()
    return path


def call(capsys: pytest.CaptureFixture[str], *arguments: Any) -> tuple[int, Any]:
    status = main(["checkpoint", *map(str, arguments)])
    out = capsys.readouterr().out
    return status, json.loads(out) if "--json" in arguments else out


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


# ---------------------------------------------------------------- list


def test_the_checkpoints_of_a_run_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody could see what a run has kept, which one is the newest, and whether it can be used."""
    for step in (9, 10):
        make(tmp_path / "logs" / "checkpoints" / f"step={step}", step=step)
    flip(tmp_path / "logs" / "checkpoints" / "step=9" / "state.pt")
    status, found = call(capsys, "list", tmp_path, "--json")
    assert status == 0
    assert [(Path(one["path"]).name, one["step"], one["is_latest"]) for one in found] == [
        ("step=9", 9, False),
        ("step=10", 10, True),
    ]
    assert found[0]["problems"] == ["state.pt has other content than was written"] and found[1]["problems"] == []
    size = sum(path.stat().st_size for path in (tmp_path / "logs" / "checkpoints" / "step=10").glob("*.pt"))
    assert (found[1]["size_bytes"], found[1]["num_ranks"], found[1]["format"]) == (size, 1, "one file")
    status, text = call(capsys, "list", tmp_path)
    (line,) = [line for line in text.splitlines() if "step=10" in line]
    assert "logs/checkpoints/step=10" in line and "whole (latest)" in line
    assert "state.pt has other content than was written" in text


def test_a_quick_list_reads_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Terabytes would be read for a look at the names."""
    make(tmp_path / "a")
    flip(tmp_path / "a" / "state.pt")
    assert call(capsys, "list", tmp_path, "--quick", "--json")[1][0]["problems"] == []
    (tmp_path / "a" / "state.pt").unlink()
    assert call(capsys, "list", tmp_path, "--quick", "--json")[1][0]["problems"] == ["state.pt is missing"]


def test_a_checkpoint_without_a_manifest_is_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What lost its manifest would seem never to have been there."""
    checkpoint = make(tmp_path / "a")
    (checkpoint / "drivetrain-manifest.json").unlink()
    (one,) = call(capsys, "list", tmp_path, "--json")[1]
    assert one["step"] is None and "drivetrain-manifest.json" in one["problems"][0]
    assert "drivetrain-manifest.json" in call(capsys, "list", tmp_path)[1]


@pytest.mark.parametrize("action", ["list", "verify"])
def test_a_folder_without_checkpoints_is_an_error(
    action: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A script that looks in the wrong folder would think that all is well."""
    assert main(["checkpoint", action, str(tmp_path)]) == 1
    assert "[checkpoint-missing]" in capsys.readouterr().err


# ---------------------------------------------------------------- verify


def test_a_good_checkpoint_is_verified(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A check that finds fault with every checkpoint."""
    checkpoint = make(tmp_path / "a")
    assert call(capsys, "verify", checkpoint) == (0, f"{checkpoint}: whole\n")
    assert call(capsys, "verify", tmp_path, "--json") == (0, [{"path": str(checkpoint), "problems": []}])


def test_what_is_wrong_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A backup of a damaged checkpoint that a script takes for a good one."""
    good, bad = make(tmp_path / "a"), make(tmp_path / "b")
    flip(bad / "state.pt")
    status, text = call(capsys, "verify", tmp_path)
    assert status == 1
    assert text == f"{good}: whole\n{bad}: damaged\n    state.pt has other content than was written\n"


# ---------------------------------------------------------------- export


def test_a_model_is_exported_to_one_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Weights could only be used by who has drivetrain."""
    checkpoint = make(tmp_path / "a", value=2.0)
    assert call(capsys, "export", checkpoint, tmp_path / "model.pt")[0] == 0
    exported = torch.load(tmp_path / "model.pt", weights_only=True)
    assert {name: value.unique().tolist() for name, value in exported.items()} == {"weight": [2.0], "bias": [2.0]}
    nn.Linear(3, 2).load_state_dict(exported)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "latest", "model.pt"]


def test_a_model_is_exported_to_safetensors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The format in which models are shared would need a script of one's own; weights of one tensor under two names."""
    safetensors = pytest.importorskip("safetensors.torch")
    module = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    module[1].weight = module[0].weight
    checkpoint = make(tmp_path / "a", value=2.0, module=module)
    status, report = call(capsys, "export", checkpoint, tmp_path / "model.safetensors", "--json")
    assert (status, report["num_tensors"]) == (0, 2)
    exported = safetensors.load_file(tmp_path / "model.safetensors")
    assert {name: value.unique().tolist() for name, value in exported.items()} == {"0.weight": [2.0], "1.weight": [2.0]}


def test_without_safetensors_the_extra_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A traceback instead of the one line that installs it, and half a file."""
    checkpoint = make(tmp_path / "a")
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    assert main(["checkpoint", "export", str(checkpoint), str(tmp_path / "model.safetensors")]) == 1
    error = capsys.readouterr().err
    assert error.startswith("MissingExtraError: [missing-extra]") and "pip install 'drivetrain[safetensors]'" in error
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "latest"]


def test_nothing_is_exported_from_a_damaged_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A model that is shared with a weight that flipped on the disk."""
    checkpoint = make(tmp_path / "a")
    flip(checkpoint / "state.pt")
    for arguments in (["export", checkpoint, tmp_path / "model.pt"], ["diff", checkpoint, make(tmp_path / "b")]):
        assert main(["checkpoint", *map(str, arguments)]) == 1
        assert "[checkpoint-corrupt]" in capsys.readouterr().err
    assert not (tmp_path / "model.pt").exists()


@pytest.mark.parametrize(
    ("to", "name", "code"),
    [
        ("model.onnx", "model", "export-format"),
        ("there.pt", "model", "checkpoint-occupied"),
        ("model.pt", "net", "checkpoint-keys"),
        ("nowhere/model.pt", "model", "checkpoint-write"),
    ],
)
def test_what_cannot_be_exported_is_said(
    to: str, name: str, code: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that is overwritten, or a traceback."""
    checkpoint = make(tmp_path / "a")
    (tmp_path / "there.pt").write_text("there")
    assert main(["checkpoint", "export", str(checkpoint), str(tmp_path / to), "--name", name]) == 1
    assert f"[{code}]" in capsys.readouterr().err
    assert (tmp_path / "there.pt").read_text() == "there"


def test_a_model_under_another_name_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever calls it `net` would have to say so, though there is only one."""
    fabric = Fabric(accelerator="cpu", devices=1)
    fabric.save(tmp_path / "a", {"net": fabric.setup(nn.Linear(3, 2)), "step": 1})
    fabric.close()
    assert call(capsys, "export", tmp_path / "a", tmp_path / "model.pt")[0] == 0
    exported: Any = read_tensors(tmp_path / "model.pt")
    assert sorted(exported) == ["bias", "weight"]


# ---------------------------------------------------------------- diff


def test_equal_checkpoints_do_not_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run that was made again exactly could not be told from one that was not."""
    left, right = make(tmp_path / "a"), make(tmp_path / "b", step=5)
    status, report = call(capsys, "diff", left, right, "--json")
    assert (status, report["differences"]) == (0, []) and report["num_equal"] >= 8
    assert call(capsys, "diff", left, right, "--name", "model") == (0, "2 tensors are equal, 0 differ\n")


def test_what_differs_is_said_by_name_and_by_how_much(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where two runs part would have to be looked for by hand."""
    left, right = make(tmp_path / "a"), make(tmp_path / "b", value=1.5, extra=torch.zeros(2))
    status, report = call(capsys, "diff", left, right, "--json")
    found = {one["name"]: one for one in report["differences"]}
    assert status == 1
    assert found["model.weight"]["max_abs"] == 0.5 and found["extra"]["kind"] == "missing left"
    assert "optimizer.state.model.weight.exp_avg" in found
    status, text = call(capsys, "diff", left, right, "--name", "model")
    assert (status, text.splitlines()[0]) == (1, "model.bias: values, 2 of 2 differ, by up to 0.5")


def test_json_has_no_nan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Other programs could not read the report."""
    left, right = make(tmp_path / "a"), make(tmp_path / "b", value=math.nan)
    status, report = call(capsys, "diff", left, right, "--name", "model", "--json")
    assert (status, report["differences"][0]["max_abs"]) == (1, "nan")
