"""Files of other programs, loaded by Fabric."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from drivetrain import CheckpointError, ConfigError, Fabric
from drivetrain.testing.fixtures import make_mlp
from tests.unit.trainer.runs import are_equal


@pytest.fixture
def fabric() -> Any:
    made = Fabric(accelerator="cpu", devices=1)
    yield made
    made.close()


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
@pytest.mark.parametrize("is_set_up", [True, False])
def test_a_plain_state_is_loaded(tmp_path: Path, fabric: Fabric, suffix: str, is_set_up: bool) -> None:
    """Pretrained weights would have to be loaded by hand, under the wrapper's names."""
    expected, path = make_mlp(seed=1).state_dict(), tmp_path / f"weights{suffix}"
    if suffix == ".safetensors":
        pytest.importorskip("safetensors.torch").save_file(expected, str(path))
    else:
        torch.save(expected, path)
    module = make_mlp(seed=2)
    fabric.load_raw(path, fabric.setup(module) if is_set_up else module)
    assert are_equal(module.state_dict(), expected)


def test_an_optimizer_is_loaded(tmp_path: Path, fabric: Fabric) -> None:
    """Its momentum would begin anew."""
    module = make_mlp()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5, momentum=0.9)
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    _, again = fabric.setup(module, torch.optim.SGD(module.parameters(), lr=0.1))
    fabric.load_raw(tmp_path / "optimizer.pt", again)
    assert again.param_groups[0]["lr"] == 0.5
    assert torch.equal(again.state[next(module.parameters())]["momentum_buffer"], next(module.parameters()).grad)


def test_names_that_differ_are_an_error_if_it_is_strict(tmp_path: Path, fabric: Fabric) -> None:
    """A misspelt file would leave the module as it was made."""
    module = make_mlp()
    state = module.state_dict()
    removed = next(iter(state))
    torch.save({name: value for name, value in state.items() if name != removed}, tmp_path / "w.pt")
    with pytest.raises(CheckpointError, match=removed) as caught:
        fabric.load_raw(tmp_path / "w.pt", module)
    assert caught.value.code == "checkpoint-keys"
    fabric.load_raw(tmp_path / "w.pt", module, strict=False)


def test_what_cannot_be_loaded_is_said(tmp_path: Path, fabric: Fabric) -> None:
    """A traceback of torch or safetensors, or code of the file that runs."""
    module = make_mlp()
    fabric.save(tmp_path / "ck", {"model": fabric.setup(module)})
    torch.save([1, 2], tmp_path / "list.pt")
    (tmp_path / "bad.pt").write_bytes(b"no file of torch")
    (tmp_path / "bad.safetensors").write_bytes(b"no")
    for name, code in (
        ("ck", "load-raw"), ("list.pt", "load-raw"), ("bad.pt", "checkpoint-corrupt"), ("no.pt", "checkpoint-missing"),
        ("bad.safetensors", "load-raw"),
    ):  # fmt: skip
        if name.endswith("safetensors"):
            pytest.importorskip("safetensors")
        with pytest.raises(CheckpointError) as caught:
            fabric.load_raw(tmp_path / name, module)
        assert caught.value.code == code, name
    with pytest.raises(ConfigError, match="load_raw got a dict") as refused:
        fabric.load_raw(tmp_path / "list.pt", {})
    assert refused.value.code == "load-raw"
