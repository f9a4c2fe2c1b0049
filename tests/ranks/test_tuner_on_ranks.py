"""Searches on several ranks."""

from __future__ import annotations

from typing import Any

import pytest

from drivetrain import Tuner
from drivetrain.cluster.read_cluster import current_cluster
from tests.unit.trainer.runs import Classifier, are_equal, loader, weights
from tests.unit.tuner.test_lr_find import find, quiet
from tests.unit.tuner.test_scale_batch_size import memory_for


def test_all_ranks_get_the_curve_of_one_process(ranks: Any) -> None:
    """Each rank would suggest the rate that its own samples speak for."""

    def in_rank() -> Any:
        trainer = quiet(strategy="ddp")
        found = find(data=loader(batch_size=4), trainer=trainer, num_training=20)
        trainer._fabric.close()
        return found

    alone = find(data=loader(batch_size=8), num_training=20)
    first, second = ranks.run(in_rank)
    assert first == second
    for found in (first, second):
        assert found.learning_rates == alone.learning_rates
        assert found.losses == pytest.approx(alone.losses, rel=1e-9)


def test_the_size_is_that_of_the_smallest_rank(ranks: Any) -> None:
    """Ranks would go on with different sizes, or wait for one that ran out of memory."""

    def in_rank(fits: list[int]) -> tuple[int | None, bool]:
        trainer, module = quiet(strategy="ddp"), Classifier()
        before = weights(module)
        rank = current_cluster().rank
        size = Tuner(trainer).scale_batch_size(
            module, loader(200), mode="binsearch", steps_per_trial=2, probe=memory_for(fits[rank])
        )
        trainer._fabric.close()
        return size, are_equal(weights(module), before)

    assert ranks.run(in_rank, [100, 11]) == [(11, True), (11, True)]
