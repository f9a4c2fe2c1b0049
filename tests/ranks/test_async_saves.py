"""Saves beside training on several ranks: what is saved, and where an error comes up."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import torch
from torch.nn import functional

import drivetrain
from drivetrain import CheckpointError, ModelCheckpoint
from drivetrain.base.files import hash_file
from drivetrain.checkpoint.verify import problems
from drivetrain.cluster.read_cluster import current_cluster
from drivetrain.testing.comm_counter import CommCounter
from drivetrain.testing.fixtures import NumberedDataset, make_dataset, make_mlp
from tests import stores
from tests.ranks.open_fabric import largest_difference, open_fabric


class Held:
    """A `Write` that waits until it is opened."""

    def __init__(self) -> None:
        self.opened = threading.Event()

    def __call__(self, file: BinaryIO, data: bytes | memoryview) -> None:
        assert self.opened.wait(30)
        file.write(data)


def trained(fabric: Any) -> tuple[dict[str, Any], Any]:
    """A state after one step, and a function that makes another step."""
    net = make_mlp()
    model, optimizer = fabric.setup(net, torch.optim.AdamW(net.parameters()))
    x, y = (torch.stack(one) for one in zip(*make_dataset(8, seed=fabric.global_rank), strict=True))

    def step() -> None:
        fabric.backward(functional.cross_entropy(model(x), y))
        optimizer.step()
        optimizer.zero_grad()

    step()
    return {"model": model, "optimizer": optimizer, "step": 1}, step


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "local_sgd", "diloco"])
def test_every_file_is_that_of_a_save_that_waits(ranks: Any, tmp_path: Path, strategy: str) -> None:
    """Shards or moments of a later step in the checkpoint, or of another rank."""

    def in_rank() -> None:
        with open_fabric(strategy=strategy) as fabric:
            state, step = trained(fabric)
            fabric.save(tmp_path / "waited", state)
            fabric.saves.write = held = Held()
            handle = fabric.save(tmp_path / "beside", state, wait=False)
            for _ in range(3):
                step()
            held.opened.set()
            handle.wait()

    ranks.run(in_rank)
    names = sorted(set(os.listdir(tmp_path / "waited")) - {"drivetrain-manifest.json"})
    assert names and problems(tmp_path / "beside") == []
    assert sorted(os.listdir(tmp_path)) == ["beside", "latest", "waited"]
    for name in names:
        assert hash_file(tmp_path / "waited" / name) == hash_file(tmp_path / "beside" / name)


def test_a_step_sends_nothing_more_while_a_checkpoint_is_written(ranks: Any, tmp_path: Path) -> None:
    """Messages of writers among those of training, in another order on each rank."""

    def in_rank() -> list[int]:
        with open_fabric() as fabric:
            state, step = trained(fabric)
            step()  # in which DDP orders its buckets
            counts = []
            for is_saving in (False, True):
                handle = None
                if is_saving:
                    fabric.saves.write = held = Held()
                    handle = fabric.save(tmp_path / "a", state, wait=False)
                with CommCounter() as counter:
                    step()
                    if handle is not None:
                        handle.check()
                counts.append(counter.num_calls())
                if is_saving:
                    held.opened.set()
                    handle.wait()
            return counts

    for before, during in ranks.run(in_rank):
        assert before == during


class Failing:
    """A `Write` that fails on one rank."""

    def __init__(self, is_failing: bool) -> None:
        self.is_failing = is_failing

    def __call__(self, file: BinaryIO, data: bytes | memoryview) -> None:
        if self.is_failing:
            raise OSError(28, "No space left on device")
        file.write(data)


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("failing", [0, 1])
def test_a_failure_of_one_rank_ends_all_after_the_same_step(
    ranks: Any, tmp_path: Path, failing: int, world: int
) -> None:
    """A rank that stops while the others wait for its gradients for half an hour."""

    class Classifier(drivetrain.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = make_mlp()

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return functional.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    class Filling(drivetrain.Callback):
        def on_step_end(self, trainer: Any, pl_module: Any) -> None:
            if trainer.global_step == 3:
                trainer.run.fabric.saves.settle()
                trainer.run.fabric.saves.write = Failing(trainer.global_rank == failing)

    def in_rank() -> tuple[int, str, str]:
        keeper = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=2, save_async=True)
        trainer = drivetrain.Trainer(
            accelerator="cpu", devices=current_cluster().world_size, strategy="ddp", max_steps=10**6, logger=False,
            enable_progress_bar=False, enable_model_summary=False, callbacks=[Filling(), keeper],
        )  # fmt: skip
        try:
            trainer.fit(Classifier(), torch.utils.data.DataLoader(NumberedDataset(96), batch_size=4))
        except CheckpointError as error:
            return trainer.global_step, error.code, str(error)
        finally:
            trainer._fabric.close()
        raise AssertionError("the run did not end")

    told = ranks.run(in_rank, world=world)
    assert len({step for step, _, _ in told}) == 1 and told[0][0] >= 4
    for rank, (_, code, text) in enumerate(told):
        assert code == ("checkpoint-write" if rank == failing else "checkpoint-other-rank")
        assert "No space left" in text
    assert problems(tmp_path / "step=2.ckpt") == []
    assert sorted(os.listdir(tmp_path)) == ["latest", "step=2.ckpt"]


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_all_ranks_send_their_share_to_a_store(ranks: Any, tmp_path: Path, strategy: str) -> None:
    """A checkpoint in a store that holds the files of rank 0 alone; or that one rank cannot read."""

    def in_rank() -> float:
        stores.register()
        with open_fabric(strategy=strategy) as fabric:
            state, step = trained(fabric)
            fabric.save(f"shared://{tmp_path}/run/one", state, wait=False)
            whole = fabric.strategy.full_state({"model": state["model"].prepared})["model"]
            saved = {name: value.clone() for name, value in whole.items()}
            step()
            fabric.load(f"shared://{tmp_path}/run/one", state)
            now = fabric.strategy.full_state({"model": state["model"].prepared})["model"]
            return largest_difference(saved, dict(now))

    assert ranks.run(in_rank) == [0.0, 0.0]
