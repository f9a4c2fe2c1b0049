"""Ranks that share layers train the model of one process: gradients, norms, metrics and checkpoints."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader

import drivetrain
from drivetrain import FSDP
from drivetrain.callbacks.prediction_writer import in_order
from drivetrain.cluster.read_cluster import current_cluster
from drivetrain.testing.comm_counter import CommCounter
from drivetrain.testing.fixtures import NUM_CLASSES, NUM_FEATURES, NumberedDataset
from tests.ranks.open_fabric import error_of
from tests.ranks.sharded_training import difference, num_scatters, samples, sharded_fabric, whole_weights


class Shared(nn.Module):
    """Layers that ranks may share, a norm that each has for itself, a part, and a parameter without a dim."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.up = nn.Linear(NUM_FEATURES, 12)
            self.down = nn.Linear(12, 6)
            self.norm = nn.LayerNorm(6)
            self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 6))])
            self.last = nn.Linear(6, NUM_CLASSES)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.double()

    def share(self, mesh: Any) -> None:
        """Let the ranks of a mesh share the wide layers."""
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        parallelize_module(self, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
        parallelize_module(self.blocks[0], mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})

    def forward(self, features: Tensor) -> Tensor:
        features = self.norm(self.down(torch.tanh(self.up(features))))
        for block in self.blocks:
            features = features + block(features).clone()
        outputs: Tensor = self.last(features) * self.scale
        return outputs

    def loss_on(self, features: Tensor, targets: Tensor) -> Tensor:
        """The mean loss of a batch."""
        return functional.cross_entropy(self(features), targets)


class Classifier(drivetrain.Module):
    """Shares layers where the run has a mesh for it."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.net = Shared(seed)

    def configure_model(self) -> None:
        if self.device_mesh is not None and not hasattr(self.net.up.weight, "device_mesh"):  # once, not in each run
            self.net.share(self.device_mesh["tensor_parallel"])

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.net.loss_on(*batch[:2])
        self.log("loss", loss, on_epoch=True)
        self.log("batches", 1.0, reduce_fx="sum", on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.net.loss_on(*batch[:2]))
        self.log("val_samples", float(len(batch[0])), reduce_fx="sum")

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def trainer_of(strategy: Any, **options: Any) -> drivetrain.Trainer:
    return drivetrain.Trainer(
        accelerator="cpu", gradient_clip_val=0.5, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, strategy=strategy, devices=current_cluster().world_size, **options,
    )  # fmt: skip


def train(strategy: Any, batch_size: int, length: int, **options: Any) -> Any:
    drivetrain.seed_everything(11, verbose=False)
    trainer = trainer_of(strategy, max_epochs=2, accumulate_grad_batches=2, **options)
    data = NumberedDataset(length)
    module = Classifier(seed=current_cluster().rank)  # each rank has other values: they get those of rank 0
    trainer.fit(module, DataLoader(data, batch_size=batch_size, shuffle=True), DataLoader(data, batch_size=7))
    weights = whole_weights(trainer.strategy, trainer._fabric._modules[0].prepared)
    trainer._fabric.close()
    return weights, {name: float(value) for name, value in trainer.callback_metrics.items()}


@pytest.mark.parametrize(("data_ranks", "length"), [(2, 48), (2, 50), (2, 41), (1, 30)])
def test_ranks_that_share_layers_train_the_model_of_one_process(ranks: Any, data_ranks: int, length: int) -> None:
    """Data would be read twice, gradients be summed over the wrong ranks, or a norm or metric be counted twice."""

    def in_rank() -> Any:
        return train(FSDP(tensor_parallel_size=2), 3, length)

    weights, metrics = train("auto", 3 * data_ranks, length)
    expected = {**metrics, "batches": metrics["batches"] * data_ranks}
    for own, values in ranks.run(in_rank, world=2 * data_ranks):
        assert difference(own, weights) < 1e-12
        expected["batches"] = values["batches"] if length % 3 else expected["batches"]  # of the ragged end
        assert values == pytest.approx(expected, rel=1e-6)


def test_a_window_sends_what_it_sends_without_shared_layers(ranks: Any) -> None:
    """Gradients would be reduced once for each micro-batch, or over ranks that hold parts of one layer."""

    def in_rank(tensor_parallel_size: int) -> Any:
        strategy = FSDP(tensor_parallel_size=tensor_parallel_size)
        with sharded_fabric(strategy) as fabric:
            module = Shared()
            module.share(strategy.device_mesh["tensor_parallel"])
            model, optimizer = fabric.setup(
                module, torch.optim.Adam(module.parameters(), lr=1e-2, foreach=True), methods=("loss_on",)
            )
            shard = strategy.data_shard()
            counter = CommCounter()
            with counter:
                for index in range(4):
                    numbers = range(8 * index, 8 * index + 8)[shard.index :: shard.count]
                    with fabric.no_backward_sync(model, enabled=index < 3):
                        fabric.backward(model.loss_on(*samples(numbers)) / 4, model)
            norm = fabric.clip_gradients(model, optimizer, max_norm=0.1)
            optimizer.step()
            return (
                float(norm),
                whole_weights(strategy, model.prepared),
                num_scatters(counter),
                len(model.prepared.parts),
            )

    alone = Shared()
    optimizer = torch.optim.Adam(alone.parameters(), lr=1e-2)
    alone.loss_on(*samples(range(32))).backward()
    norm = float(nn.utils.clip_grad_norm_(alone.parameters(), 0.1))
    optimizer.step()
    for size, world in [(2, 4), (4, 4), (2, 2), (1, 2)]:
        for own_norm, own, scatters, num_parts in ranks.run(in_rank, size, world=world):
            assert own_norm == pytest.approx(norm, rel=1e-12)
            assert difference(own, dict(alone.state_dict())) < 1e-12
            assert (scatters, num_parts) == (2 if world > size else 0, 2)


def test_a_checkpoint_goes_on_with_other_ranks_and_another_strategy(ranks: Any, tmp_path: Path) -> None:
    """A layer that ranks shared would come back as a part of itself, or with the momentum of another part."""
    data = NumberedDataset(48)

    def run(strategy: Any, batch_size: int, max_steps: int, ckpt_path: Any, save_to: Any) -> Any:
        drivetrain.seed_everything(11, verbose=False)
        trainer = trainer_of(strategy, max_steps=max_steps)
        module = Classifier(seed=0 if ckpt_path is None else 5)
        trainer.fit(module, DataLoader(data, batch_size=batch_size, shuffle=True), ckpt_path=ckpt_path)
        if save_to is not None:
            trainer.save_checkpoint(save_to)
        weights = whole_weights(trainer.strategy, trainer._fabric._modules[0].prepared)
        trainer._fabric.close()
        return weights, float(trainer.callback_metrics.get("loss_epoch", 0.0))

    def in_rank(size: int, *args: Any) -> Any:
        return run(FSDP(tensor_parallel_size=size), *args)

    whole = run("auto", 12, 4, None, None)
    ranks.run(in_rank, 2, 6, 2, None, tmp_path / "four", world=4)
    run("auto", 12, 2, None, tmp_path / "one")
    for saved in ("four", "one"):
        path = tmp_path / saved
        again = [*ranks.run(in_rank, 2, 6, 4, path, None, world=4), *ranks.run(in_rank, 2, 12, 4, path, None, world=2),
                 *ranks.run(in_rank, 1, 6, 4, path, None, world=2), run("auto", 12, 4, path, None)]  # fmt: skip
        for weights, loss in again:
            assert difference(weights, whole[0]) < 1e-12
            assert loss == pytest.approx(again[-1][1], rel=1e-6)


class Predictions(drivetrain.BasePredictionWriter):
    """Brings the predictions of all ranks together."""

    def write_on_epoch_end(self, trainer: Any, pl_module: Any, predictions: Any, batch_indices: Any) -> None:
        self.found = in_order(trainer, predictions, batch_indices)


def test_what_ranks_do_alike_counts_once(ranks: Any) -> None:
    """Each prediction would be there twice, and twice as many tokens be trained in a second."""

    def in_rank() -> Any:
        writer, speed = Predictions("epoch"), drivetrain.ThroughputMonitor(tokens_fn=lambda batch: 3 * len(batch[0]))
        trainer = trainer_of(FSDP(tensor_parallel_size=2), max_epochs=1, log_every_n_steps=2, callbacks=[writer, speed])
        module = Predicting()
        trainer.fit(module, DataLoader(NumberedDataset(24), batch_size=2))
        odd = float(trainer.callback_metrics["odd"])
        trainer.predict(module, DataLoader(NumberedDataset(10), batch_size=2))
        trainer._fabric.close()
        tokens = speed.values["throughput/tokens_per_s"] / speed.values["throughput/samples_per_s"]
        return len(writer.found), tokens, odd

    assert ranks.run(in_rank, world=4) == [(10, pytest.approx(3.0), 6.0)] * 4


class Predicting(Classifier):
    """Predicts, too; and logs a value on one rank alone, which is not the first of its row."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if self.global_rank == 1:
            self.log("odd", 1.0, reduce_fx="sum", on_step=False, on_epoch=True)
        return super().training_step(batch, batch_idx)

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        return self.net(batch[0])


def test_a_model_of_which_no_layer_is_shared_is_said_to_be_computed_twice(ranks: Any) -> None:
    """Half of the machines would do what the others do, and nobody see it."""

    def in_rank() -> Any:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with sharded_fabric(FSDP(tensor_parallel_size=2)) as fabric:
                fabric.setup(Shared())
                return fabric.global_rank, sum("compute the same" in str(one.message) for one in caught)

    assert ranks.run(in_rank) == [(0, 1), (1, 0)]


@pytest.mark.parametrize(
    ("options", "shape"),
    [({}, (1, 4)), ({"data_parallel_size": 2}, (2, 2)), ({"tensor_parallel_size": 1}, (4, 1)),
     ({"data_parallel_size": 1, "tensor_parallel_size": 4, "process_group_backend": "gloo"}, (1, 4))],
    ids=str,
)  # fmt: skip
def test_sizes_as_scripts_spell_them_train_the_model_of_one_process(ranks: Any, options: Any, shape: Any) -> None:
    """A script that changes its imports would train another model, or on other rows of ranks."""
    from drivetrain.lightning.strategies import ModelParallelStrategy

    def in_rank() -> Any:
        strategy = ModelParallelStrategy(**options)
        weights, _ = train(strategy, 12 // shape[0], 48)
        return weights, (strategy.sizes[0], strategy.tensor_parallel_size)

    weights, _ = train("auto", 12, 48)
    for own, (_, of_layers) in ranks.run(in_rank, world=4):
        assert difference(own, weights) < 1e-12
        assert of_layers == shape[1]


def test_sizes_that_do_not_make_up_the_ranks_are_refused(ranks: Any) -> None:
    """Some ranks would have no layer to compute, or one file be expected where there are shards."""
    from drivetrain.lightning.strategies import ModelParallelStrategy

    def opened_with(options: dict[str, Any]) -> None:
        with sharded_fabric(ModelParallelStrategy(**options)):
            pass

    for options in ({"data_parallel_size": 2, "tensor_parallel_size": 2}, {"tensor_parallel_size": 4}):
        assert {code for _, code, _ in ranks.run(error_of, opened_with, options, world=2)} == {"tensor-parallel"}
    assert error_of(opened_with, {"save_distributed_checkpoint": False})[1] == "fsdp-argument"


def test_rows_that_cannot_be_made_are_refused(ranks: Any) -> None:
    """Ranks would be left out, or torch fail in its own words."""

    def opened_with(options: dict[str, Any]) -> None:
        with sharded_fabric(FSDP(**options)):
            pass

    def sharded_twice() -> None:
        from torch.distributed.fsdp import fully_shard

        strategy = FSDP(tensor_parallel_size=2)
        with sharded_fabric(strategy) as fabric:
            module = Shared()
            fully_shard(module.last, mesh=strategy.mesh)
            fabric.setup(module)

    for options in ({"tensor_parallel_size": 3}, {"tensor_parallel_size": 2, "num_replicas": 2},
                    {"tensor_parallel_size": 0}):  # fmt: skip
        assert {code for _, code, _ in ranks.run(error_of, opened_with, options, world=4)} == {"tensor-parallel"}
    assert {code for _, code, _ in ranks.run(error_of, sharded_twice, world=4)} == {"already-sharded"}
