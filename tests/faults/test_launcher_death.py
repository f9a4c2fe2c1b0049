"""The launcher ends, in whatever way."""

from __future__ import annotations

import pytest

from tests.faults.launcher_death import SIGNALS
from tests.faults.trials import said_by

TRIALS = {
    f"{sig.name} {turn}": f"launcher_death:trial:{4 * turn + seed}"
    for turn in range(2)
    for seed, sig in enumerate(SIGNALS)
}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What all trials of this file print."""
    return said_by(list(TRIALS.values()), tmp_path_factory.mktemp("trials"))


@pytest.mark.parametrize("name", TRIALS)
def test_nothing_lives_longer_than_its_launcher(said: str, name: str) -> None:
    """Ranks and data workers would hold devices for ever."""
    assert any(line.startswith(TRIALS[name] + " ") and line.endswith(" held") for line in said.splitlines()), said
