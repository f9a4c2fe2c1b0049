from __future__ import annotations

import dataclasses
import os
import warnings
from pathlib import Path

import pytest

from drivetrain.base.temporary_names import TemporaryName, parse_temporary, temporary_sibling


def parsed(path: Path) -> TemporaryName:
    name = parse_temporary(path.name)
    assert name is not None
    return name


@pytest.mark.parametrize("final", ["a", "epoch=1-step=20", "a.tmp-b", ".hidden", "with space\n", ".a.old-x"])
def test_a_hidden_name_tells_what_it_stands_for(tmp_path: Path, final: str) -> None:
    """A leftover that is not recognised, or is brought back under another name."""
    path = temporary_sibling(tmp_path / final, "old")
    assert path.parent == tmp_path
    assert path.name.startswith(".")
    name = parsed(path)
    assert (name.final, name.kind, name.pid) == (final, "old", os.getpid())


def test_hidden_names_are_unique() -> None:
    """Two attempts that write into the same directory."""
    assert len({temporary_sibling(Path("a")) for _ in range(100)}) == 100


@pytest.mark.parametrize("name", ["a", ".a", ".a.tmp", ".a.tmp-1", "a.tmp-00000000-1-1-00000000", ".gitignore"])
def test_other_names_are_left_alone(name: str) -> None:
    """A user's file that is taken for a leftover and removed."""
    assert parse_temporary(name) is None


def test_this_process_is_alive() -> None:
    """A running save that is removed by the clean-up of another run."""
    assert parsed(temporary_sibling(Path("a"))).is_writer_alive() is True


def test_a_process_that_ended_is_dead_even_before_it_is_reaped() -> None:
    """A leftover that stays because its writer is a zombie."""
    read_end, write_end = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of any fork beside threads
        pid = os.fork()
    if pid == 0:
        os.write(write_end, temporary_sibling(Path("a")).name.encode())
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    name = parsed(Path(os.read(read_end, 1000).decode()))
    assert name.pid == pid
    assert name.is_writer_alive() is False
    os.waitpid(pid, 0)
    assert name.is_writer_alive() is False
    os.close(read_end)
    os.close(write_end)


def test_a_pid_that_was_given_again_is_another_process() -> None:
    """A leftover that stays because some other program now has the PID of its writer."""
    name = parsed(temporary_sibling(Path("a")))
    assert dataclasses.replace(name, started=name.started - 1).is_writer_alive() is False


def test_nothing_is_said_about_processes_of_other_hosts() -> None:
    """A save of another machine that is removed because its PID is not in use here."""
    name = parsed(temporary_sibling(Path("a")))
    assert dataclasses.replace(name, host="00000000").is_writer_alive() is None
