"""Whatever the data and however they are cut: the training of one process, and one sync for each optimizer step."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from tests.ranks.window_grid import STRATEGIES, GridStrategy, measure
from tests.ranks.window_runs import WEIGHTS, Case

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

# All in float64, in which many steps differ by rounding only as little as one does.
EXACT = {one.name: dataclasses.replace(one, dtype=torch.float64, tolerance=1e-12) for one in STRATEGIES if one.is_known}
DDP = EXACT["ddp"]
PLACES = [(DDP, 3), *((strategy, world) for strategy in EXACT.values() for world in strategy.worlds)]

CASES = st.builds(
    Case,
    batch_size=st.integers(1, 6),
    size=st.integers(1, 6),
    length=st.integers(1, 80),
    weights=st.sampled_from(WEIGHTS),
    loop=st.sampled_from(("windows", "trainer")),
    num_epochs=st.integers(1, 2),
    is_shuffled=st.booleans(),
    global_batch=st.none() | st.integers(1, 40),
)


@settings(
    max_examples=14, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.generate],  # a problem names its case: minutes of shrinking would not say more
)  # fmt: skip
@given(place=st.sampled_from(PLACES), cases=st.lists(CASES, min_size=6, max_size=6))
@example(place=(DDP, 4), cases=[Case(6, 1, 1, "zero on rank 0", "trainer"), Case(4, 3, 37), Case(3, 2, 50, "random")])
@example(place=(DDP, 4), cases=[Case(4, 1, 50, global_batch=3), Case(2, 1, 45, "random", "trainer", global_batch=19)])
@example(place=(DDP, 3), cases=[Case(2, 3, 80, "some zero", "trainer", num_epochs=2, is_shuffled=True)])
def test_any_cut_trains_as_one_process_and_syncs_once_a_step(
    ranks: Any, place: tuple[GridStrategy, int], cases: list[Case]
) -> None:
    """Samples, gradients, losses that are logged, or weights would depend on ranks and micro-batches.

    Several cases share a call of the ranks: most of a call is the process group that it makes.
    """
    strategy, world = place
    found = measure(ranks, strategy, cases, world=world, timeout_s=30)
    assert found.problems == []
    assert found.num_windows == sum(case.num_epochs * -(-case.length // case.window_samples(world)) for case in cases)
    assert found.num_syncs == (found.num_windows if world > 1 or strategy.syncs_alone else 0)
