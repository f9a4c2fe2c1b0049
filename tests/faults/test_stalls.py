"""Ranks that stall, and ranks that are only slow."""

from __future__ import annotations

import pytest

from tests.faults.stalls import SLOW, STALLS
from tests.faults.trials import said_by

TRIALS = {name: f"stalls:trial:{seed}" for seed, name in enumerate(STALLS)}
SLOW_TRIALS = {name: f"stalls:slow_trial:{seed}" for seed, name in enumerate(SLOW)}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What all trials of this file print."""
    return said_by([*TRIALS.values(), *SLOW_TRIALS.values()], tmp_path_factory.mktemp("trials"))


@pytest.mark.parametrize("name", TRIALS)
def test_a_stalled_rank_is_named_and_the_run_ends(said: str, name: str) -> None:
    """A run would wait for the timeout of its process group, and then show the stack of a rank that waited."""
    assert any(line.startswith(TRIALS[name] + " ") and line.endswith(" held") for line in said.splitlines()), said


@pytest.mark.parametrize("name", SLOW_TRIALS)
def test_a_slow_rank_is_left_alone(said: str, name: str) -> None:
    """A long validation, a compiler or a slow disk would end a healthy run."""
    assert any(line.startswith(SLOW_TRIALS[name] + " ") and line.endswith(" held") for line in said.splitlines()), said
