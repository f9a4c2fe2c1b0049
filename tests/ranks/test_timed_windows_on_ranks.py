"""Windows that are timed, and masks that are drawn, on several ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from drivetrain import ConfigError, ModelPruning
from drivetrain.profilers import SimpleProfiler
from tests.unit.trainer.runs import Classifier, are_equal, fit, loader, weights


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_run_with_a_profiler_is_the_same_run_on_ranks_that_hold_different_numbers_of_batches(
    ranks: Any, strategy: str, tmp_path: Path
) -> None:
    """A rank that has no batch would not go along, or the ranks would write one file."""

    def in_rank(directory: Path) -> tuple[bool, dict[str, int]]:
        found = []
        profiler = SimpleProfiler(directory, "speed")
        for one in (None, profiler):
            torch.manual_seed(0)
            module, trainer = fit(
                data=loader(30), strategy=strategy, accumulate_grad_batches=3, max_epochs=2, profiler=one
            )
            trainer._fabric.close()
            found.append({name: getattr(value, "_local_tensor", value) for name, value in weights(module).items()})
        return are_equal(*found), profiler.num_calls

    for is_equal, calls in ranks.run(in_rank, tmp_path):
        assert is_equal and calls["sync"] == calls["optimizer"] == 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["speed-rank_0.txt", "speed-rank_1.txt"]


def test_masks_are_the_same_on_all_ranks(ranks: Any) -> None:
    """Ranks that draw apart would train different models."""

    def in_rank() -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        module = Classifier()

        class Apart(ModelPruning):
            def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
                torch.manual_seed(trainer.global_rank)
                super().on_train_epoch_end(trainer, pl_module)

        callback = Apart("random_unstructured", use_lottery_ticket_hypothesis=False)
        _, trainer = fit(module, loader(32), strategy="ddp", max_epochs=2, callbacks=[callback])
        trainer._fabric.close()
        return weights(module)

    left, right = ranks.run(in_rank)
    assert are_equal(left, right) and any((value == 0).any() for value in left.values())


def test_pruning_refuses_parameters_in_shards(ranks: Any) -> None:
    """Each rank would cut a part of its own shard."""

    def in_rank() -> str:
        try:
            fit(data=loader(32), strategy="fsdp", callbacks=[ModelPruning("l1_unstructured")])
        except ConfigError as error:
            return error.code
        return "none"

    assert ranks.run(in_rank) == ["pruning", "pruning"]
