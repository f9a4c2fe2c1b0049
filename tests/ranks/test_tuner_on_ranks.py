"""Searches on several ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from drivetrain import BatchSizeFinder, LearningRateFinder, Tuner
from drivetrain.cluster.read_cluster import current_cluster
from tests.ranks.open_fabric import error_of
from tests.unit.trainer.runs import Classifier, are_equal, loader, weights
from tests.unit.tuner.test_finders import SWEEP, FineTuned, Sized
from tests.unit.tuner.test_lr_find import Rated, find, quiet
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


def test_a_finder_gives_all_ranks_the_rate_of_one_process(ranks: Any) -> None:
    """Each rank would train with a rate of its own, or with a wrapper that the search has left."""

    def in_rank(strategy: str, batch_size: int) -> tuple[float, Any]:
        trainer, module = quiet(strategy=strategy, callbacks=[FineTuned((0, 1), **SWEEP)]), Rated()
        trainer.fit(module, loader(batch_size=batch_size))
        trainer._fabric.close()
        return module.learning_rate, weights(module)

    rate, expected = in_rank("auto", 8)
    first, second = ranks.run(in_rank, "ddp", 4)
    assert first[0] == second[0] == rate and are_equal(first[1], second[1])
    for name, value in first[1].items():
        assert torch.allclose(value, expected[name], rtol=1e-9, atol=1e-12), name


def test_a_finder_gives_all_ranks_the_size_of_the_smallest(ranks: Any) -> None:
    """Ranks would make batches of different sizes."""

    def in_rank(fits: list[int]) -> tuple[int, int]:
        data = Sized()
        finder = BatchSizeFinder(mode="binsearch", steps_per_trial=1, probe=memory_for(fits[current_cluster().rank]))
        trainer = quiet(strategy="ddp", callbacks=[finder], max_epochs=1)
        trainer.fit(Classifier(), datamodule=data)
        trainer._fabric.close()
        return data.batch_size, trainer.global_step

    assert ranks.run(in_rank, [100, 11]) == [(11, 10), (11, 10)]


def test_a_sharded_module_cannot_be_searched_inside_of_its_run(ranks: Any) -> None:
    """A traceback of torch that says nothing of what to do."""

    def in_rank() -> str:
        trainer = quiet(strategy="fsdp", callbacks=[LearningRateFinder()])
        try:
            return error_of(lambda: trainer.fit(Rated(), loader(batch_size=4)))
        finally:
            trainer._fabric.close()

    assert all("tuner-inside" in said for said in ranks.run(in_rank))
