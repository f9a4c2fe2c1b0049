"""Several ranks make the same run as one process."""

from __future__ import annotations

from typing import Any

import pytest

from tests.ranks.training import difference, samples_by_step, train


@pytest.mark.parametrize(
    ("world", "batch_size", "accumulate", "length"),
    [(2, 3, 4, 120), (4, 3, 2, 120), (2, 3, 4, 125), (2, 3, 2, 121), (4, 2, 3, 97), (4, 8, 1, 67), (2, 12, 1, 25)],
    ids=str,
)
def test_ranks_train_the_same_model_as_one_process(
    ranks: Any, world: int, batch_size: int, accumulate: int, length: int
) -> None:
    """The same global batch on more ranks gives other weights, samples or metrics."""
    alone = train(batch_size=batch_size * world, accumulate=accumulate, length=length)
    results = ranks.run(
        train_on_ranks, {"batch_size": batch_size, "accumulate": accumulate, "length": length}, world=world
    )
    for result in results:
        assert result["steps"] == alone["steps"]
        assert difference(result, alone) < 1e-10
        assert result["metrics"]["val_loss"] == pytest.approx(alone["metrics"]["val_loss"], abs=1e-6)
        assert result["metrics"]["loss_epoch"] == pytest.approx(alone["metrics"]["loss_epoch"], abs=1e-6)
    assert samples_by_step(results) == samples_by_step([alone])


def test_weights_of_the_step_count_over_all_ranks(ranks: Any) -> None:
    """Each rank's mean would count the same, however many units it holds."""
    alone = train(batch_size=8, accumulate=3, length=100, weighted=True)
    for result in ranks.run(
        train_on_ranks, {"batch_size": 4, "accumulate": 3, "length": 100, "weighted": True}, world=2
    ):
        assert difference(result, alone) < 1e-10


def test_fifty_steps_of_adamw_with_clipping_agree_to_1e_10(ranks: Any) -> None:
    """Rounding would not stay rounding over many steps."""
    options = {"accumulate": 4, "length": 400, "epochs": 5}
    alone = train(batch_size=10, **options)
    assert alone["steps"] == 50
    for result in ranks.run(train_on_ranks, {"batch_size": 5, **options}, world=2):
        assert result["steps"] == 50
        assert difference(result, alone) < 1e-10


def train_on_ranks(options: dict[str, Any]) -> dict[str, Any]:
    """In each rank."""
    return train(**options, strategy="ddp")


def test_a_run_goes_on_from_the_middle_of_an_epoch_on_another_number_of_ranks(ranks: Any, tmp_path: Any) -> None:
    """Samples would be trained on twice or never, or the global batch would change."""
    whole = train(batch_size=8, accumulate=2, length=100)
    path = str(tmp_path / "stopped.ckpt")
    stopped = ranks.run(stop_on_ranks, path, world=2)
    resumed = train(batch_size=8, accumulate=2, length=100, ckpt_path=path)
    assert difference(resumed, whole) < 1e-9
    seen = samples_by_step([*stopped, resumed])
    assert seen == samples_by_step([whole])


def stop_on_ranks(path: str) -> dict[str, Any]:
    """In each rank: train, and stop after the third step of the first epoch."""
    return train(batch_size=4, accumulate=2, length=100, strategy="ddp", max_steps=3, save_path=path)
