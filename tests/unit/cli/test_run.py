"""`drivetrain run`."""

from __future__ import annotations

from pathlib import Path

import pytest

from drivetrain.cli.main import main, make_parser
from drivetrain.cli.run import torchrun_arguments

SRC = Path(__file__).parents[3] / "src"

SCRIPT = """
import os, sys
from pathlib import Path
from drivetrain.cluster.read_cluster import current_cluster
cluster = current_cluster()
Path(f"rank_{cluster.rank}.txt").write_text(f"{cluster.world_size} {cluster.launched_by} {sys.argv} {__name__}")
if sys.argv[1:] == ["--fail"] and cluster.rank == 1:
    raise ValueError("the data of rank 1 are bad")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a script in it; ranks find drivetrain."""
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(SRC))
    return tmp_path


@pytest.mark.slow
def test_a_script_runs_in_each_rank_with_its_own_arguments(folder: Path) -> None:
    """A script that launches nothing could be started by torchrun alone; its options would be taken for ours."""
    assert main(["run", "--ranks", "2", "train.py", "--ranks", "7", "-m"]) == 0
    for rank in range(2):
        assert (folder / f"rank_{rank}.txt").read_text() == "2 drivetrain ['train.py', '--ranks', '7', '-m'] __main__"


@pytest.mark.slow
def test_a_rank_that_fails_is_the_last_thing_on_the_screen(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The traceback would have to be looked for, and a script would take the run for a good one."""
    assert main(["run", "--ranks", "2", "train.py", "--fail"]) == 1
    assert capsys.readouterr().err.rstrip().endswith("ValueError: the data of rank 1 are bad")


def test_a_script_that_is_not_there_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """Each rank would fail by itself."""
    assert main(["run", "--ranks", "2", "nowhere.py"]) == 1
    assert "[run-program] nowhere.py is not a file." in capsys.readouterr().err


def test_several_machines_are_torchruns(capsys: pytest.CaptureFixture[str]) -> None:
    """Ranks on two machines would be two runs; or would wait for each other without a place to meet."""
    words = ["run", "--nodes", "2", "--ranks", "4", "--rendezvous", "a:29400", "--run-id", "x", "-m", "package.train"]
    options = make_parser().parse_args([*words, "--lr", "1"])
    assert torchrun_arguments(options, 4) == [
        "--nnodes=2", "--nproc-per-node=4", "--max-restarts=0", "--rdzv-backend=c10d", "--rdzv-endpoint=a:29400",
        "--rdzv-id=x", "-m", "package.train", "--lr", "1",
    ]  # fmt: skip
    assert main(["run", "--nodes", "2", "-m", "package.train"]) == 1
    assert "[run-nodes]" in capsys.readouterr().err
