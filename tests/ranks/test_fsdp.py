"""Sharded modules train as one process does, and sync as often as was asked for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import drivetrain
from drivetrain import FSDP
from drivetrain.testing.comm_counter import CommCounter
from drivetrain.testing.fixtures import NumberedDataset
from tests.ranks.open_fabric import error_of, sgd
from tests.ranks.sharded_training import (
    NUM_PARTS,
    Block,
    Deep,
    difference,
    mean_gradients,
    num_scatters,
    opened,
    samples,
    sharded_fabric,
    whole_gradients,
    whole_weights,
)


class Classifier(drivetrain.Module):
    """Trains and validates a deep network."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Deep()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.net.loss_on(*batch[:2])
        self.log("loss", loss, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.net.loss_on(*batch[:2]))

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def train(strategy: Any, batch_size: int, accumulate: int, length: int, **options: Any) -> Any:
    """Two epochs of a trainer; weights and metrics."""
    drivetrain.seed_everything(11, verbose=False)
    trainer = drivetrain.Trainer(
        accelerator="cpu", max_epochs=2, accumulate_grad_batches=accumulate, gradient_clip_val=0.5, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, strategy=strategy,
        callbacks=options.get("callbacks"),
    )  # fmt: skip
    data = NumberedDataset(length)
    module = Classifier()
    loaders = DataLoader(data, batch_size=batch_size, shuffle=True), DataLoader(data, batch_size=7)
    trainer.fit(module, *loaders, ckpt_path=options.get("ckpt_path"))
    tested = trainer.validate(module, loaders[1], verbose=False)[0]  # the module is sharded already
    weights = whole_weights(trainer.strategy, trainer._fabric._modules[0].prepared)
    metrics = {name: float(value) for name, value in {**trainer.callback_metrics, **tested}.items()}
    trainer._fabric.close()
    return weights, metrics


@pytest.mark.parametrize(
    ("options", "world", "batch_size", "accumulate", "length"),
    [
        ({}, 2, 3, 4, 61),
        ({"defer": "none"}, 2, 3, 2, 50),
        ({"num_replicas": 2}, 4, 2, 3, 49),
        ({}, 1, 4, 2, 18),
        ({"activation_checkpointing_policy": (Block,)}, 2, 3, 4, 61),
    ],
    ids=str,
)
def test_a_trainer_trains_the_same_model_as_one_process(
    ranks: Any, options: dict[str, Any], world: int, batch_size: int, accumulate: int, length: int
) -> None:
    """Sharding, short windows, or ranks that have one batch less to validate give other weights or metrics."""

    def in_rank() -> Any:
        return train(FSDP(**options) if options else "fsdp", batch_size, accumulate, length)

    weights, metrics = train("auto", batch_size * world, accumulate, length)
    for own, values in ranks.run(in_rank, world=world):
        assert difference(own, weights) < 1e-12
        assert values == pytest.approx(metrics, rel=1e-6)


def window_of_fabric(strategy: Any) -> Any:
    """Two windows of four micro-batches; whole weights, and what the second window sent."""
    with sharded_fabric(strategy) as fabric:
        module = Deep()
        model, optimizer = fabric.setup(module, torch.optim.Adam(module.parameters(), lr=1e-2), methods=("loss_on",))
        counter = CommCounter()
        for start in (0, 32):
            counter.clear()
            with counter:
                for index in range(4):
                    first = start + 8 * index
                    numbers = range(first, first + 8)[fabric.global_rank :: fabric.world_size]
                    with fabric.no_backward_sync(model, enabled=index < 3):
                        fabric.backward(model.loss_on(*samples(numbers)) / 4, model)
            fabric.clip_gradients(model, optimizer, max_norm=0.1)
            optimizer.step()
            optimizer.zero_grad()
        return whole_weights(strategy, model.prepared), counter.counts(), num_scatters(counter)


@pytest.mark.parametrize(
    ("options", "world", "scatters", "reductions"),
    [
        ({}, 2, NUM_PARTS, 1),
        ({"defer": "none"}, 2, 4 * NUM_PARTS, 4),
        ({"num_replicas": 2}, 4, NUM_PARTS, NUM_PARTS + 1),
        ({"num_replicas": 2, "defer": "all-reduce"}, 4, 4 * NUM_PARTS, NUM_PARTS + 1),
        ({"shard": ()}, 2, 1, 1),
        ({"activation_checkpointing_policy": (Block,)}, 2, NUM_PARTS, 1),
    ],
    ids=str,
)
def test_a_window_reduces_as_often_as_was_asked_for(
    ranks: Any, options: dict[str, Any], world: int, scatters: int, reductions: int
) -> None:
    """Gradients would be sent in every micro-batch, or in none. The scalar that is not sharded is one all-reduce."""

    def in_rank() -> Any:
        return window_of_fabric(FSDP(**options))

    alone = Deep()
    optimizer = torch.optim.Adam(alone.parameters(), lr=1e-2)
    for start in (0, 32):
        alone.loss_on(*samples(range(start, start + 32))).backward()
        torch.nn.utils.clip_grad_norm_(alone.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
    for own, counts, number in ranks.run(in_rank, world=world):
        assert number == scatters
        assert counts["allreduce_"].calls == reductions
        assert difference(own, dict(alone.state_dict())) < 1e-12


def flags_of(prepared: Any) -> list[tuple[bool, bool]]:
    return [(part.group.reduce_grads, part.group.all_reduce_grads) for part in prepared.parts]


def test_the_flags_that_were_found_are_restored(ranks: Any) -> None:
    """A block inside of a block without sync would switch the sync of all that follows on, or off for ever."""

    def in_rank() -> Any:
        with opened() as strategy:
            prepared: Any = strategy.prepare(Deep())
            prepared.parts[1].group.all_reduce_grads = False  # by the user, through torch
            found = flags_of(prepared)
            with strategy.gradient_sync(prepared, False):
                inside = flags_of(prepared)
                with strategy.gradient_sync(prepared, True):
                    assert flags_of(prepared) == [(True, True)] * NUM_PARTS
                assert flags_of(prepared) == inside == [(False, False)] * NUM_PARTS
                with pytest.raises(KeyError), strategy.gradient_sync([prepared], True):
                    raise KeyError("leaves the block")
                assert flags_of(prepared) == inside
            assert flags_of(prepared) == found

    ranks.run(in_rank)


def test_a_step_after_an_exception_in_forward_is_whole(ranks: Any) -> None:
    """torch would think that the forward that failed still runs."""

    def in_rank() -> Any:
        with opened() as strategy:
            module = Deep()
            prepared = strategy.prepare(module, methods=("loss_on",))
            for features in (samples(range(3))[0][:, :5], samples(range(3))[0]):
                try:
                    with strategy.gradient_sync(prepared, True):
                        loss = strategy.call(prepared, "loss_on", features, samples(range(3))[1])
                        strategy.backward(loss, prepared)
                except RuntimeError as error:
                    assert "shapes" in str(error)
            return whole_gradients(module)

    for found in ranks.run(in_rank):
        assert difference(found, mean_gradients([range(3)])) < 1e-14


def test_weights_that_were_stepped_are_those_of_the_next_forward(ranks: Any) -> None:
    """What a forward without a backward left gathered would be used again, as it was before the step."""

    def in_rank() -> Any:
        with opened() as strategy:
            module = Deep()
            prepared = strategy.prepare(module, methods=("loss_on",))
            optimizer = sgd(module)
            values = []
            for grad_mode in (torch.no_grad, torch.inference_mode, torch.enable_grad):
                strategy.backward(strategy.call(prepared, "loss_on", *samples(range(6))), prepared)
                with grad_mode():
                    strategy.call(prepared, "loss_on", *samples(range(6)))
                if grad_mode is not torch.enable_grad:
                    assert all(hasattr(p, "full_tensor") for p in module.parameters() if p.ndim)
                strategy.step([optimizer])
                optimizer.zero_grad()
                values.append(float(strategy.call(prepared, "loss_on", *samples(range(6)))))
            return values

    alone, optimizer, expected = Deep(), None, []
    optimizer = sgd(alone)
    for _ in range(3):
        alone.loss_on(*samples(range(6))).backward()
        optimizer.step()
        optimizer.zero_grad()
        expected.append(alone.loss_on(*samples(range(6))).item())
    for values in ranks.run(in_rank):
        assert values == pytest.approx(expected, rel=1e-12)


def test_sharded_and_plain_gradients_are_clipped_together(ranks: Any) -> None:
    """torch refuses the mixture, and a norm of each rank's own share would clip each rank differently."""
    cases: list[dict[str, Any]] = [{"max_norm": 0.1, "norm_type": one} for one in (1.0, 2.0, 3.0, torch.inf)]
    cases.append({"max_value": 0.01})

    def in_rank(num_replicas: int) -> Any:
        with opened(num_replicas=num_replicas) as strategy:
            found = []
            for options in cases:
                module = Deep(width=3)  # fewer rows than ranks in some parameters
                prepared = strategy.prepare(module, methods=("loss_on",))
                strategy.backward(strategy.call(prepared, "loss_on", *samples(range(3))), prepared)
                norm = strategy.clip_gradients([*module.parameters(), module.scale], **options)
                found.append((None if norm is None else float(norm), whole_gradients(module)))
            module.scale.grad.fill_(torch.nan)
            with pytest.raises(drivetrain.NonFiniteError):
                strategy.clip_gradients(module.parameters(), max_norm=1.0, error_if_nonfinite=True)
            return found

    expected = []
    for options in cases:
        alone = Deep(width=3)
        alone.loss_on(*samples(range(3))).backward()
        norm = None
        if "max_norm" in options:
            norm = float(nn.utils.clip_grad_norm_(alone.parameters(), **options))
        else:
            nn.utils.clip_grad_value_(alone.parameters(), options["max_value"])
        expected.append((norm, {name: p.grad for name, p in alone.named_parameters()}))
    for num_replicas, world in [(1, 4), (2, 4), (1, 1)]:
        for found in ranks.run(in_rank, num_replicas, world=world):
            for (norm, gradients), (own_norm, own) in zip(expected, found, strict=True):
                assert own_norm == (None if norm is None else pytest.approx(norm, rel=1e-12))
                assert difference(own, gradients) < 1e-14


def test_manual_optimization_of_a_sharded_module_is_refused_before_training(ranks: Any) -> None:
    """Its step would see shards, and fail on mixed tensors in the middle of the user's code."""

    def in_rank() -> Any:
        module = Classifier()
        module.automatic_optimization = False
        trainer = drivetrain.Trainer(
            accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, strategy="fsdp",
        )  # fmt: skip
        try:
            trainer.fit(module, DataLoader(NumberedDataset(8), batch_size=2))
        finally:
            trainer._fabric.close()

    for kind, code, text in ranks.run(error_of, in_rank):
        assert (kind, code) == ("ConfigError", "manual-optimization"), text
        assert "'fsdp'" in text


@pytest.mark.parametrize(("policy", "num_calls"), [(None, 3), ((Block,), 6), (lambda one: isinstance(one, Block), 6)])
def test_chosen_submodules_run_again_in_backward(ranks: Any, policy: Any, num_calls: int) -> None:
    """The argument would be taken, and the memory be used as before."""

    def count() -> tuple[int, list[str]]:
        with sharded_fabric(FSDP(activation_checkpointing_policy=policy)) as fabric:
            module, calls = Deep(), []
            names = list(module.state_dict())
            for block in module.blocks:
                block.linear.register_forward_hook(lambda *args: calls.append(1))
            model = fabric.setup(module, methods=("loss_on",))
            fabric.backward(model.loss_on(*samples(range(4))), model)
            assert list(module.state_dict()) == names
            return len(calls), [name for name, p in module.named_parameters() if p.grad is None]

    assert ranks.run(count, world=2) == [(num_calls, [])] * 2


def test_what_is_to_run_again_is_chosen_by_class_or_function() -> None:
    """A name would be taken for something, and nothing be chosen."""

    def prepare() -> None:
        with opened(activation_checkpointing_policy="Block") as strategy:
            strategy.prepare(Deep())

    assert error_of(prepare)[1] == "shard-policy"
