"""An exception on one rank, wherever it comes from."""

from __future__ import annotations

import pytest

from tests.faults.failures import PLACES
from tests.faults.trials import said_by

TRIALS = {place: f"failures:trial:{seed}" for seed, place in enumerate(PLACES)}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What all trials of this file print."""
    return said_by(list(TRIALS.values()), tmp_path_factory.mktemp("trials"))


@pytest.mark.parametrize("name", TRIALS)
def test_an_exception_ends_all_ranks_and_is_the_last_thing_on_the_console(said: str, name: str) -> None:
    """Ranks would wait for one that has failed, or the cause would be lost among the consequences."""
    assert any(line.startswith(TRIALS[name] + " ") and line.endswith(" held") for line in said.splitlines()), said
