"""Each optimizer step is that of one full batch, however its window is cut, and is synced once."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests.ranks.window_grid import NUM_FULL_WINDOWS, STRATEGIES, GridStrategy, grid_cases, measure

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PLACES = [(strategy, world) for strategy in STRATEGIES for world in strategy.worlds]


@pytest.mark.parametrize(("strategy", "world"), PLACES, ids=[f"{one.name}-{world}" for one, world in PLACES])
def test_each_step_of_the_grid_is_that_of_one_full_batch_and_syncs_once(
    ranks: Any, strategy: GridStrategy, world: int
) -> None:
    """A cut, a number of ranks, a remainder or weights would change what is trained, or multiply what is sent."""
    if not strategy.is_known:
        pytest.skip(f"there is no strategy {strategy.name!r}")
    cases = list(grid_cases(world))
    assert sum(case.loop == "windows" for case in cases) == 4 * 8 * 4
    if strategy.name == "fsdp":  # a third of them on each number of ranks; `python -m benchmarks grid` makes all
        cases = cases[world % 3 :: 3]
    found = measure(ranks, strategy, cases, world=world)
    print(f"{strategy.name} on {world}: {found.num_steps} steps, worst gradient {found.worst:.1e}")
    shown = "\n".join(itertools.islice(found.problems, 20))
    assert not found.problems, f"{len(found.problems)} problems, worst gradient {found.worst:.1e}:\n{shown}"
    assert found.worst <= strategy.tolerance
    assert found.num_windows == sum(NUM_FULL_WINDOWS + (case.length % (8 * world) > 0) for case in cases)
    assert found.num_syncs == (found.num_windows if world > 1 or strategy.syncs_alone else 0)
