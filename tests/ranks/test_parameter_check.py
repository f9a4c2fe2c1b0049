"""Ranks that drift apart are told so, all of them alike."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Subset

import drivetrain
from drivetrain import LocalSGD, ModelCheckpoint, ParameterCheck
from drivetrain.cluster.read_cluster import current_cluster
from drivetrain.testing.comm_counter import CommCounter
from drivetrain.testing.fixtures import make_mlp
from tests.ranks.counted_windows import DATA
from tests.ranks.open_fabric import error_of, open_fabric, sgd


class Drifting(drivetrain.Module):
    """One rank changes a parameter in place after a step; notes the steps that came to their end."""

    def __init__(self, drift_rank: int = -1, drift_step: int = -1) -> None:
        super().__init__()
        self.net = make_mlp()
        self.drift_rank, self.drift_step = drift_rank, drift_step
        self.steps_seen: list[int] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return functional.cross_entropy(self.net(batch[0]), batch[1])

    def on_before_zero_grad(self, optimizer: Any) -> None:
        # The counter of the loop moves on after this hook.
        if self.global_step + 1 == self.drift_step and self.global_rank == self.drift_rank:
            with torch.no_grad():
                self.net[2].bias[0] += 1e-12

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.steps_seen.append(self.global_step)

    def configure_optimizers(self) -> Any:
        return sgd(self)


def train(module: Drifting, *callbacks: Any, num_steps: int = 6, strategy: Any = "ddp") -> list[int]:
    """Steps of one micro-batch of 2 samples."""
    loader = DataLoader(Subset(DATA, range(4 * num_steps)), batch_size=2)
    trainer = drivetrain.Trainer(
        accelerator="cpu", strategy=strategy, max_epochs=1, callbacks=list(callbacks), logger=False,
        enable_checkpointing=any(isinstance(one, ModelCheckpoint) for one in callbacks), enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    try:
        trainer.fit(module, loader)
    finally:
        trainer._fabric.close()
    return module.steps_seen


def test_the_first_parameter_that_differs_its_ranks_and_the_step_are_named(ranks: Any) -> None:
    """Two models would be trained for days, and one of them saved."""

    def in_rank() -> Any:
        return error_of(train, Drifting(drift_rank=1, drift_step=3), ParameterCheck(every_n_steps=2))

    for rank, (kind, code, text) in enumerate(ranks.run(in_rank)):
        assert (kind, code) == ("ModelError", "ranks-differ")
        assert f"[rank {rank}/2] After step 4: 'net.2.bias' has another value on rank 1 than on rank 0." in text


def test_ranks_that_stay_together_train_to_the_end(ranks: Any) -> None:
    """The check would end a run that is right."""

    def in_rank() -> list[int]:
        return train(Drifting(), ParameterCheck(every_n_steps=1))

    assert ranks.run(in_rank) == [[1, 2, 3, 4, 5, 6]] * 2


@pytest.mark.parametrize("num_steps", [6, 5])
def test_the_end_of_training_is_looked_at_whatever_the_interval(ranks: Any, num_steps: int) -> None:
    """What the last steps broke would be saved as the result."""

    def in_rank() -> Any:
        module = Drifting(drift_rank=0, drift_step=num_steps)
        return error_of(lambda: train(module, ParameterCheck(every_n_steps=100), num_steps=num_steps))

    for kind, code, text in ranks.run(in_rank):
        assert (kind, code) == ("ModelError", "ranks-differ")
        assert f"After step {num_steps}: 'net.2.bias'" in text


class Looked(ParameterCheck):
    """Notes at which steps it looked."""

    def __init__(self, every_n_steps: int) -> None:
        super().__init__(every_n_steps)
        self.looks: list[int] = []

    def _look(self, trainer: Any, module: Any) -> int:
        self.looks.append(trainer.global_step)
        return super()._look(trainer, module)


@pytest.mark.parametrize("every", [2, 4, 100])
def test_it_looks_before_training_at_its_interval_and_once_at_the_end(ranks: Any, every: int) -> None:
    """A last step that falls on the interval would be hashed twice."""

    def in_rank() -> list[int]:
        check = Looked(every)
        train(Drifting(), check)
        return check.looks

    assert ranks.run(in_rank) == [[0, *range(every, 6, every), 6]] * 2


def test_a_step_in_which_ranks_differ_is_not_saved(ranks: Any, tmp_path: Path) -> None:
    """The newest checkpoint would hold one of two models."""

    def in_rank() -> Any:
        saved = ModelCheckpoint(dirpath=tmp_path, every_n_train_steps=2, save_top_k=-1)
        return error_of(train, Drifting(drift_rank=1, drift_step=4), saved, ParameterCheck(every_n_steps=2))[1]

    assert ranks.run(in_rank) == ["ranks-differ"] * 2
    assert [path.name for path in tmp_path.glob("*.ckpt")] == ["epoch=0-step=2.ckpt"]


def test_ranks_that_step_apart_are_looked_at_when_they_have_come_together(ranks: Any) -> None:
    """Each run of a strategy whose ranks differ by design would end at its first look; or would not be looked at."""

    def in_rank() -> Any:
        check = Looked(every_n_steps=1)
        return error_of(lambda: train(Drifting(), check, strategy=LocalSGD(4)))[1], check.looks

    assert ranks.run(in_rank) == [("", [0, 6])] * 2


def test_a_run_whose_parameters_are_all_sharded_says_that_nothing_is_compared(ranks: Any) -> None:
    """A run would seem to be checked, and is not."""

    def in_rank() -> list[int]:
        check = Looked(every_n_steps=2)
        with pytest.warns(UserWarning, match="ParameterCheck compares nothing: all parameters are sharded"):
            train(Drifting(), check, strategy="fsdp")
        return check.looks

    assert ranks.run(in_rank) == [[0, 2, 4, 6]] * 2


# ---------------------------------------------------------------- on a loop of one's own


def test_equal_ranks_exchange_one_small_message(ranks: Any) -> None:
    """The parameters, or a hash of each, would travel at each look."""

    def in_rank() -> Any:
        with open_fabric() as fabric:
            model = fabric.setup(make_mlp())
            fabric.collectives.board = None  # as on several machines; on one it goes over memory
            fabric.check_parameters(model)  # the numbers of the places are made once
            with CommCounter() as counter:
                num_compared = fabric.check_parameters(model)
            sent = {name: (one.calls, one.bytes) for name, one in counter.counts().items()}
            return num_compared, len(list(model.parameters())), sent

    for num_compared, num_parameters, sent in ranks.run(in_rank):
        assert num_compared == num_parameters
        assert sent == {"allreduce_": (1, 32)}


def test_all_ranks_that_differ_from_rank_0_are_named(ranks: Any) -> None:
    """One would look for the fault in one place, where there are several."""

    def in_rank() -> Any:
        with open_fabric() as fabric:
            model = fabric.setup(make_mlp())
            with torch.no_grad():
                if fabric.global_rank in (1, 3):
                    model.original[0].weight[1, 1] *= 2
                if fabric.global_rank == 2:
                    model.original[2].weight[0, 0] *= 2
            return error_of(fabric.check_parameters, model)

    for rank, (kind, code, text) in enumerate(ranks.run(in_rank, world=4)):
        assert (kind, code) == ("ModelError", "ranks-differ")
        assert f"[rank {rank}/4] '0.weight' has another value on ranks 1, 3 than on rank 0 (2 of 4 differ)." in text


def test_rank_0_may_be_the_one_that_differs(ranks: Any) -> None:
    """Only the other ranks' values would be compared."""

    def in_rank() -> Any:
        with open_fabric() as fabric:
            model = fabric.setup(make_mlp())
            with torch.no_grad():
                model.original[0].weight[0, 0] += float(fabric.global_rank == 0)
            return error_of(fabric.check_parameters, model)[2]

    for text in ranks.run(in_rank, world=3):
        assert "has another value on ranks 1, 2 than on rank 0" in text


def test_nan_on_all_ranks_is_equal_and_on_one_is_not(ranks: Any) -> None:
    """A nan is not equal to itself: a comparison of numbers would always fail, or never."""

    def in_rank() -> Any:
        with open_fabric() as fabric:
            model = fabric.setup(make_mlp())
            with torch.no_grad():
                model.original[0].bias.fill_(math.nan)
            num_compared = fabric.check_parameters(model)
            with torch.no_grad():
                model.original[2].bias[0] = math.nan if fabric.global_rank else 1.0
            return num_compared, error_of(fabric.check_parameters, model)

    for num_compared, (_, code, text) in ranks.run(in_rank):
        assert num_compared == 4
        assert code == "ranks-differ" and "'2.bias'" in text and "differ)" not in text


def test_buffers_are_compared_if_they_are_asked_for(ranks: Any) -> None:
    """Batch statistics, which differ by design, would end every run; or buffers could not be checked at all."""

    def in_rank() -> Any:
        with open_fabric() as fabric:
            model = fabric.setup(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)))
            model.original[1].running_mean[1] = fabric.global_rank
            return fabric.check_parameters(model), error_of(
                lambda: fabric.check_parameters(model, buffers=True, step=7)
            )

    for num_compared, (_, code, text) in ranks.run(in_rank):
        assert num_compared == 4
        assert code == "ranks-differ" and "After step 7: '1.running_mean'" in text


def test_modules_of_another_layout_differ(ranks: Any) -> None:
    """A parameter that only one rank has would be compared with nothing."""

    def in_rank() -> Any:
        with open_fabric() as fabric:
            module = nn.Linear(2, 2, bias=fabric.global_rank == 1)
            nn.init.zeros_(module.weight)
            return error_of(fabric.check_parameters, module)

    for _, code, text in ranks.run(in_rank):
        assert code == "ranks-differ" and "'bias' has another value on rank 1" in text


def test_parameters_that_are_sharded_are_left_out(ranks: Any) -> None:
    """Shards hold different values by design: each sharded run would end at its first look."""

    def in_rank() -> Any:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Replicate, Shard, distribute_tensor

        with open_fabric() as fabric:
            mesh = init_device_mesh("cpu", (2,))
            module = nn.Linear(4, 2, bias=False)
            full = torch.arange(8.0).view(2, 4)
            module.weight = nn.Parameter(distribute_tensor(full, mesh, [Shard(0)]))
            sharded = fabric.check_parameters(module)
            module.weight = nn.Parameter(distribute_tensor(full, mesh, [Replicate()]))
            whole = fabric.check_parameters(module)
            with torch.no_grad():
                module.weight.to_local()[0, 0] += current_cluster().rank
            return sharded, whole, error_of(fabric.check_parameters, module)[1]

    assert ranks.run(in_rank) == [(0, 1, "ranks-differ")] * 2
