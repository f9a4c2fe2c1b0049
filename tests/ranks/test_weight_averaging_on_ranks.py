"""Averages of the weights on several ranks, whole and in shards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader

import drivetrain
from drivetrain import EMA, LocalSGD, StochasticWeightAveraging
from drivetrain.testing.fixtures import make_dataset, make_mlp
from drivetrain.testing.strategy_contract import whole
from tests.ranks.open_fabric import error_of, largest_difference

DATA = make_dataset(48)


class Net(drivetrain.Module):
    def __init__(self, *, has_batch_norm: bool = False) -> None:
        super().__init__()
        self.net = make_mlp(has_batch_norm=has_batch_norm)
        self.seen: list[dict[str, Tensor]] = []

    def forward(self, features: Tensor) -> Tensor:
        outputs: Tensor = self.net(features)
        return outputs

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return functional.cross_entropy(self(batch[0]), batch[1])

    def on_validation_epoch_start(self) -> None:
        self.seen.append(state_of(self))

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val", functional.cross_entropy(self(batch[0]), batch[1]))

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=0.01)


def state_of(module: nn.Module) -> dict[str, Tensor]:
    with torch.inference_mode(False), torch.no_grad():  # torch cannot detach shards in inference mode
        return {name: whole(value).clone() for name, value in module.state_dict().items()}


def train(
    average: Any, *, strategy: Any = "auto", batch_size: int = 12, epochs: int = 2, save: Any = None, load: Any = None,
    stop: int = -1, **options: Any,
) -> tuple[dict[str, Tensor], list[dict[str, Tensor]], float]:  # fmt: skip
    """The weights at the end, those that validations saw, and the last reported value."""
    module = Net(**options)
    trainer = drivetrain.Trainer(
        accelerator="cpu", strategy=strategy, max_epochs=epochs, max_steps=stop, callbacks=average, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
    )  # fmt: skip
    try:
        trainer.fit(module, DataLoader(DATA, batch_size=batch_size, shuffle=True), DataLoader(DATA, 24), ckpt_path=load)
        if save is not None:
            trainer.save_checkpoint(save)
        return state_of(module), module.seen, float(trainer.callback_metrics.get("val", 0.0))
    finally:
        trainer._fabric.close()


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_the_average_on_ranks_is_that_of_one_process(ranks: Any, strategy: str) -> None:
    """Ranks, or shards, would average something else."""

    def in_rank() -> Any:
        drivetrain.seed_everything(5, verbose=False)
        return train(EMA(0.7), strategy=strategy, batch_size=6)

    drivetrain.seed_everything(5, verbose=False)
    state, seen, value = train(EMA(0.7))
    for own, own_seen, own_value in ranks.run(in_rank):
        assert largest_difference(own, state) < 1e-12
        assert largest_difference(own_seen[1], seen[1]) < 1e-12
        assert own_value == pytest.approx(value, abs=1e-12)


@pytest.mark.parametrize(("before", "after"), [("ddp", "ddp"), ("fsdp", "fsdp"), ("ddp", "fsdp"), ("fsdp", "ddp")])
def test_a_run_goes_on_with_the_average_of_its_checkpoint(ranks: Any, tmp_path: Path, before: str, after: str) -> None:
    """A part of the average would be lost with the shards, or training go on from the average."""

    def in_rank() -> Any:
        drivetrain.seed_everything(5, verbose=False)
        through = train(EMA(0.7), strategy=after, batch_size=6)[0]
        drivetrain.seed_everything(5, verbose=False)
        train(EMA(0.7), strategy=before, batch_size=6, stop=5, epochs=-1, save=tmp_path / "a")
        return through, train(EMA(0.7), strategy=after, batch_size=6, load=tmp_path / "a")[0]

    for through, resumed in ranks.run(in_rank):
        assert largest_difference(through, resumed) < (1e-12 if before != after else 1e-30)


def test_batch_statistics_of_the_average_are_those_of_all_ranks(ranks: Any) -> None:
    """Each rank would have those of its own data, and rank 0's be saved."""

    def in_rank() -> Any:
        drivetrain.seed_everything(5, verbose=False)
        return train(StochasticWeightAveraging(0.01, 1), strategy="ddp", batch_size=6, has_batch_norm=True)[0]

    first, second = ranks.run(in_rank)
    assert largest_difference(first, second) == 0.0
    module = Net(has_batch_norm=True)
    module.load_state_dict(first)
    features = DATA.tensors[0]
    hidden = module.net[0](features)  # all batches are of one size, so that their means are the mean
    assert (hidden.mean(0) - first["net.1.running_mean"]).abs().max() < 1e-12


def test_averaged_buffers_are_evaluated_alike_on_all_ranks(ranks: Any) -> None:
    """Each rank would evaluate with batch statistics of its own."""

    def in_rank() -> Any:
        drivetrain.seed_everything(5, verbose=False)
        return train(EMA(0.7, use_buffers=True), strategy="ddp", batch_size=6, has_batch_norm=True)

    (own, seen, _), (other, other_seen, _) = ranks.run(in_rank)
    assert largest_difference(own, other) == 0.0
    assert all(largest_difference(*pair) == 0.0 for pair in zip(seen, other_seen, strict=True))


def test_ranks_that_step_apart_are_refused(ranks: Any) -> None:
    """Each rank would evaluate a model of its own."""

    def in_rank() -> Any:
        return error_of(lambda: train(EMA(0.7), strategy=LocalSGD(4)))

    for kind, code, text in ranks.run(in_rank):
        assert (kind, code) == ("ConfigError", "weight-averaging") and "LocalSGD" in text
