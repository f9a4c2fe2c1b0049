"""A process that is killed in a save: at any byte, and before any operation on the file system."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from drivetrain.base.temporary_names import parse_temporary, temporary_sibling
from drivetrain.checkpoint.commit import discard, read_latest, temporary_directory
from drivetrain.checkpoint.stale import remove_stale_temporaries
from drivetrain.checkpoint.verify import list_checkpoints, newest_valid, problems
from tests.unit.checkpoint.saving import (
    ByteCount,
    dies_before_operation,
    fresh_copies,
    hidden_in,
    in_child,
    save,
    value_in,
)

SEED = 20240607
NUM_TRIALS = 24


def assert_recovers(root: Path, step: int) -> None:
    """What has to hold after a kill in `save(root, step, 2.0)` over checkpoints that hold 1.0."""
    found, skipped = newest_valid(root)
    assert found is not None and skipped == []
    newest_value = value_in(found)
    remove_stale_temporaries(root)
    assert hidden_in(root) == []
    assert all(problems(path) == [] for path in list_checkpoints(root))
    found, skipped = newest_valid(root)
    assert found is not None and skipped == []
    assert value_in(found) == newest_value
    latest = read_latest(root)
    assert latest is not None and problems(latest) == []
    again = save(root, step, 3.0)
    assert newest_valid(root) == (again, []) and value_in(again) == 3.0
    assert read_latest(root) == again


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    save(root, 9, 1.0)
    return root


@pytest.mark.parametrize("step", [9, 10], ids=["replaced", "new"])
def test_a_kill_at_any_byte_leaves_the_old_or_the_new_checkpoint(root: Path, tmp_path: Path, step: int) -> None:
    """A half-written checkpoint that is loaded, or no checkpoint at all."""
    count = ByteCount()
    save(tmp_path / "count", step, 2.0, write=count)
    draw = random.Random(SEED + step)
    for trial, copy in fresh_copies(root, NUM_TRIALS):
        offset = (0, count.size_bytes - 1)[trial] if trial < 2 else draw.randrange(count.size_bytes)
        code = in_child(lambda copy=copy, offset=offset: save(copy, step, 2.0, write=ByteCount(offset)))  # type: ignore[misc]
        assert code == -signal.SIGKILL
        assert_recovers(copy, step)


@pytest.mark.parametrize("step", [9, 10], ids=["replaced", "new"])
def test_a_kill_before_any_operation_leaves_the_old_or_the_new_checkpoint(root: Path, step: int) -> None:
    """A moment between two renames at which no checkpoint is to be found."""
    values = []
    for number, copy in fresh_copies(root, 30):
        died = dies_before_operation(number, lambda copy=copy: save(copy, step, 2.0))  # type: ignore[misc]
        found, _ = newest_valid(copy)
        assert found is not None
        values.append(value_in(found))
        assert_recovers(copy, step)
        if not died:
            break
    else:
        raise AssertionError("a save has more operations than were tried")
    assert values == sorted(values) and values[0] == 1.0 and values[-1] == 2.0
    assert len(values) >= 8


def test_a_kill_in_a_deletion_leaves_no_half_checkpoint(root: Path) -> None:
    """A retention that is killed and leaves a checkpoint with half of its files under its name."""
    save(root, 10, 1.0)
    for number, copy in fresh_copies(root, 30):
        died = dies_before_operation(number, lambda copy=copy: discard(copy / "step=9"))  # type: ignore[misc]
        assert all(problems(path) == [] for path in list_checkpoints(copy))
        remove_stale_temporaries(copy)
        assert hidden_in(copy) == []
        if not died:
            return
    raise AssertionError("a deletion has more operations than were tried")


def test_what_a_living_process_writes_is_left_alone(root: Path) -> None:
    """A clean-up at the start of one run that removes the running save of another."""
    temporary = temporary_directory(root / "step=10")
    aside = temporary_sibling(root / "step=9", "old")
    (root / "step=9").rename(aside)
    assert remove_stale_temporaries(root, idle_s=0) == []
    assert temporary.is_dir() and aside.is_dir()


def test_leftovers_of_other_hosts_are_removed_once_nothing_changes_in_them(root: Path) -> None:
    """A leftover of a machine that is gone that stays for ever, or a running save of another one that is removed."""
    own = temporary_sibling(root / "step=10").name
    name = parse_temporary(own)
    assert name is not None
    foreign = root / own.replace(name.host, "00000000")
    foreign.mkdir()
    (foreign / "a.pt").write_text("")
    assert remove_stale_temporaries(root) == []
    assert foreign.is_dir()
    past = time.time() - 100
    os.utime(foreign / "a.pt", (past, past))
    assert len(remove_stale_temporaries(root, idle_s=0)) == 1
    assert hidden_in(root) == []


def test_an_old_checkpoint_is_kept_if_the_new_one_is_damaged(root: Path) -> None:
    """A clean-up that deletes the only good checkpoint."""
    died = [
        dies_before_operation(number, lambda copy=copy: save(copy, 9, 2.0))  # type: ignore[misc]
        for number, copy in fresh_copies(root, 12)
    ]
    kept = [root.with_name(f"root-{trial}") for trial in range(len(died))]
    both = [copy for copy in kept if any(".old-" in name for name in hidden_in(copy)) and (copy / "step=9").exists()]
    assert both
    for copy in both:
        old = next(copy / name for name in hidden_in(copy) if ".old-" in name)
        if problems(old):
            continue  # killed in the middle of its deletion
        (copy / "step=9" / "rank-0.pt").write_bytes(b"")
        assert any("Kept" in line for line in remove_stale_temporaries(copy))
        found, skipped = newest_valid(copy)
        assert found == old and value_in(old) == 1.0 and len(skipped) == 1
        return
    raise AssertionError("no trial left the old and the new checkpoint")


def test_a_clean_up_of_nothing_does_nothing(tmp_path: Path) -> None:
    """A first run that fails because its directory is not there."""
    assert remove_stale_temporaries(tmp_path / "no") == []
    (tmp_path / ".hidden").mkdir()
    assert remove_stale_temporaries(tmp_path) == []
    assert hidden_in(tmp_path) == [".hidden"]


def test_a_link_that_was_to_take_the_place_of_another_is_removed_alone(tmp_path: Path) -> None:
    """Each kill would leave one; or what it leads to, a good checkpoint, would be deleted with it."""
    target = tmp_path / "step=1.ckpt"
    target.mkdir()
    (target / "model.pt").write_bytes(b"good")
    child = os.fork()
    if child == 0:
        os.symlink(target.name, temporary_sibling(tmp_path / "last.ckpt"))
        os.symlink(target.name, temporary_sibling(tmp_path / "last.ckpt", "gone"))
        os._exit(0)
    os.waitpid(child, 0)
    assert len(remove_stale_temporaries(tmp_path)) == 2
    assert [path.name for path in tmp_path.iterdir()] == [target.name]
    assert (target / "model.pt").read_bytes() == b"good"
