"""What can be asked of DDP: hooks, unused parameters, a static graph, views, buffers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

import drivetrain
from drivetrain import DDP
from drivetrain.checkpoint.read import read_tensors
from drivetrain.cluster.read_cluster import current_cluster
from drivetrain.testing.comm_counter import CommCounter, parameter_bytes
from drivetrain.testing.fixtures import make_dataset, make_mlp
from drivetrain.testing.rank_runner import RankCallError
from tests.ranks.open_fabric import error_of, gradients, largest_difference, open_fabric, sgd, weights
from tests.ranks.training import difference, train


class Branches(nn.Module):
    """Parts that a forward may or may not use, and one that is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.first = make_mlp(seed=1)
        self.second = make_mlp(seed=2)
        self.unused = nn.Linear(3, 2, dtype=torch.float64)
        self.frozen = nn.Linear(3, 2, dtype=torch.float64).requires_grad_(False)
        for parameter in (*self.unused.parameters(), *self.frozen.parameters()):
            nn.init.constant_(parameter, 0.5)

    def forward(self, x: Tensor, parts: str) -> Tensor:
        return sum((getattr(self, part)(x) for part in parts.split()), start=torch.zeros((), dtype=x.dtype))


def batches(count: int, size: int = 4) -> list[tuple[Tensor, Tensor]]:
    """`count` micro-batches, the same in every process."""
    features, targets = make_dataset(count * size).tensors
    return list(zip(features.split(size), targets.split(size), strict=True))


def wide_mlp() -> nn.Sequential:
    """About 1.5 MB in float32: more than torch's first bucket, and worth compressing."""
    return make_mlp(num_features=600, num_hidden=600).float()


# ---------------------------------------------------------------- hooks


@pytest.mark.parametrize("hook", ["bf16", "fp16"])
def test_a_cast_hook_sends_half_the_bytes_and_keeps_the_mean(ranks: Any, hook: str) -> None:
    """The option would be accepted and do nothing, as torch's own hooks do on gloo."""

    def in_rank(hook: str | None) -> Any:
        with open_fabric(comm_hook=hook) as fabric:
            model = fabric.setup(make_mlp().float())
            x, y = batches(2)[fabric.global_rank]
            with CommCounter() as counter:
                fabric.backward(functional.cross_entropy(model(x.float()), y))
            return counter.num_bytes("allreduce_"), parameter_bytes(model), gradients(model)

    (sent, full, own), (_, _, other) = ranks.run(in_rank, hook)
    exact = ranks.run(in_rank, None)[0][2]
    assert sent * 2 == full
    assert largest_difference(own, other) == 0
    assert 0 < largest_difference(own, exact) < 5e-3


def test_powersgd_sends_less_in_several_buckets_and_trains(ranks: Any) -> None:
    """On gloo torch's own hook mixes up the collectives of several buckets: an error, or nonsense."""

    def in_rank() -> Any:
        with open_fabric(comm_hook="powersgd") as fabric:
            model, optimizer = fabric.setup(*(lambda m: (m, sgd(m)))(wide_mlp()))
            x = torch.randn(8, 600, generator=torch.Generator().manual_seed(fabric.global_rank))
            y = torch.arange(8) % 4
            sent, losses = [], []
            for _ in range(8):
                with CommCounter() as counter:
                    loss = functional.cross_entropy(model(x), y)
                    fabric.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                sent.append(counter.num_bytes("allreduce_"))
                losses.append(loss.item())
            return sent, parameter_bytes(model), losses, weights(model)

    (sent, full, losses, own), (_, _, _, other) = ranks.run(in_rank)
    assert sent[:2] == [full, full]
    assert max(sent[3:]) < full / 50
    assert losses[-1] < losses[0] / 2
    assert largest_difference(own, other) == 0


def test_a_hook_of_ones_own_is_called_with_its_state(ranks: Any) -> None:
    """A hook would be ignored without a word."""

    def hook(state: list[int], bucket: Any) -> Any:
        state.append(bucket.buffer().numel())
        work: Any = dist.all_reduce(bucket.buffer().div_(2), async_op=True)
        return work.get_future().then(lambda future: future.value()[0])

    def in_rank() -> Any:
        state: list[int] = []
        with open_fabric(comm_hook=hook, comm_state=state) as fabric:
            model = fabric.setup(make_mlp())
            x, y = batches(2)[fabric.global_rank]
            fabric.backward(functional.cross_entropy(model(x), y))
            return state, sum(p.numel() for p in model.parameters()), gradients(model)

    (state, size, own), (_, _, other) = ranks.run(in_rank)
    assert state == [size]
    assert largest_difference(own, other) == 0


def test_an_unknown_hook_is_refused(ranks: Any) -> None:
    """A typing error would train without compression."""

    def in_rank() -> Any:
        with open_fabric(comm_hook="pf16") as fabric:
            return error_of(fabric.setup, make_mlp())

    for kind, code, text in ranks.run(in_rank):
        assert (kind, code) == ("ConfigError", "comm-hook")
        assert "'pf16'" in text and "Did you mean 'fp16'?" in text and "powersgd" in text


# ---------------------------------------------------------------- unused parameters


@pytest.mark.parametrize("how", ["backward", "window"])
def test_unused_parameters_are_named_in_the_step_in_which_they_were_unused(ranks: Any, how: str) -> None:
    """The run would fail one step later, with numbers instead of names, or ranks would drift apart."""

    def step(how: str) -> None:
        with open_fabric() as fabric:
            model, optimizer = fabric.setup(*(lambda m: (m, sgd(m)))(Branches()))
            x, y = batches(1)[0]
            if how == "backward":
                fabric.backward(functional.cross_entropy(model(x, "first"), y))
                return
            for window in fabric.windows(fabric.setup_dataloaders(batches(2), uneven="join"), model, optimizer, size=2):
                for x, y in window:
                    window.backward(functional.cross_entropy(model(x, "first"), y))

    expected = ", ".join([f"second.{i}.{kind}" for i in (0, 2) for kind in ("weight", "bias")])
    for rank, (kind, code, text) in enumerate(ranks.run(error_of, step, how)):
        assert (kind, code) == ("ModelError", "unused-parameters")
        assert f"[rank {rank}/2]" in text
        assert f"were not synced: {expected}, unused.weight, unused.bias." in text
        assert "find_unused_parameters=True" in text


def test_a_parameter_unused_on_one_rank_is_named_by_it_and_the_other_ends(ranks: Any) -> None:
    """The other rank would wait for a gradient that never comes."""

    def in_rank() -> None:
        with open_fabric() as fabric:
            model = fabric.setup(Pair())
            x, y = batches(1)[0]
            fabric.backward(functional.cross_entropy(model(x, has_b=fabric.global_rank == 0), y))

    with pytest.raises(RankCallError) as caught:
        ranks.run(in_rank)
    assert sorted(caught.value.texts) == [0, 1]
    error: Any = caught.value.errors[1]
    assert error.code == "unused-parameters"
    assert "not synced: b.weight, b.bias." in str(error)


class Pair(nn.Module):
    """Two layers, one of which may be left out."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(8, 4, dtype=torch.float64)
        self.b = nn.Linear(8, 4, dtype=torch.float64)

    def forward(self, x: Tensor, has_b: bool) -> Tensor:
        result: Tensor = self.a(x) + self.b(x) if has_b else self.a(x)
        return result


def train_branches(parts_of: Any, *, size: int, optimizer: Any, **options: Any) -> Any:
    """Three windows of micro-batches; micro-batch `i` of the window uses the branches `parts_of(i, size)`.

    On one rank the micro-batches of both ranks follow each other, so that the step is the same.
    """
    with open_fabric(**options) as fabric:
        module = Branches()
        model, stepper = fabric.setup(module, optimizer(module.parameters()))
        num = 2 * size
        all_batches = [(x, y, parts_of(i % num)) for i, (x, y) in enumerate(batches(3 * num))]
        own = all_batches[fabric.global_rank :: fabric.world_size]
        synced = []
        for window in fabric.windows(own, model, stepper, size=num // fabric.world_size):
            for x, y, parts in window:
                window.backward(functional.cross_entropy(model(x, parts), y))
                if window.is_last:
                    synced.append(gradients(model))
        return weights(model), [{name: g for name, g in one.items() if g is not None} for one in synced]


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_with_unused_parameters_ranks_train_as_one_process(ranks: Any, size: int, optimizer: Any) -> None:
    """A part that only some ranks, or only earlier micro-batches, use would not be synced; one that none uses would
    be decayed."""

    def parts_of(index: int) -> str:
        return ["first", "second", "first second"][index % 3] if index < 2 * size - 2 or size == 1 else "first"

    def make(parameters: Any) -> Any:
        return optimizer(parameters, lr=0.1)

    def in_rank() -> Any:
        return train_branches(parts_of, size=size, optimizer=make, find_unused_parameters=True)

    alone, _ = in_rank()
    for own, _ in ranks.run(in_rank):
        assert largest_difference(own, alone) < 1e-10
        assert torch.equal(own["unused.weight"], torch.full((2, 3), 0.5, dtype=torch.float64))


def test_a_part_used_only_in_earlier_micro_batches_is_an_error_without_the_option(ranks: Any) -> None:
    """Its gradients would differ between ranks, silently."""

    def parts_of(index: int) -> str:
        return "first second" if index < 4 else "first"

    def in_rank() -> Any:
        return error_of(lambda: train_branches(parts_of, size=3, optimizer=sgd_of))

    for kind, code, text in ranks.run(in_rank):
        assert (kind, code) == ("ModelError", "unused-parameters")
        assert "second.0.weight" in text and "first" not in text.partition("synced")[2].partition("\n")[0]


def sgd_of(parameters: Any) -> Any:
    """See `sgd`."""
    return torch.optim.SGD(parameters, lr=0.1)


# ---------------------------------------------------------------- graph and views


@pytest.mark.parametrize(
    "options",
    [
        {"static_graph": True},
        {"gradient_as_bucket_view": True},
        {"static_graph": True, "gradient_as_bucket_view": True},
    ],
    ids=lambda options: " ".join(options),
)
@pytest.mark.parametrize("accumulate", [1, 4])
def test_options_of_speed_change_no_weight(ranks: Any, options: dict[str, bool], accumulate: int) -> None:
    """They would be faster, and train another model."""

    def in_rank() -> Any:
        return train(batch_size=5, accumulate=accumulate, length=83, strategy=DDP(**options))

    alone = train(batch_size=10, accumulate=accumulate, length=83)
    for result in ranks.run(in_rank):
        assert difference(result, alone) < 1e-10


# ---------------------------------------------------------------- buffers and layers


def test_buffers_are_those_of_rank_0_when_they_are_evaluated_and_saved(ranks: Any, tmp_path: Path) -> None:
    """Ranks would evaluate different models, and the checkpoint hold yet another one."""

    def in_rank(path: Path) -> Any:
        with open_fabric() as fabric:
            module = make_mlp(has_batch_norm=True)
            model, optimizer = fabric.setup(module, sgd(module))
            for window in fabric.windows(batches(6)[fabric.global_rank :: 2], model, optimizer, size=2):
                for x, y in window:
                    window.backward(functional.cross_entropy(model(x), y))
            trained = weights(model)
            fabric.strategy.sync_buffers(model.prepared)
            evaluated = weights(model)
            fabric.save(path, {"model": model, "optimizer": optimizer})
            return trained, evaluated

    (trained, first), (other_trained, second) = ranks.run(in_rank, tmp_path / "saved")
    assert not torch.equal(trained["1.running_mean"], other_trained["1.running_mean"])
    assert largest_difference(first, second) == 0
    assert largest_difference(first, trained) == 0
    assert first["1.num_batches_tracked"] == 3
    saved: Any = read_tensors(tmp_path / "saved" / "state.pt")
    assert largest_difference(saved["model"], first) == 0


def test_a_trainer_evaluates_and_ends_with_equal_buffers(ranks: Any) -> None:
    """Validation of a model with batch norm would depend on the rank."""

    class Normed(drivetrain.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = make_mlp(has_batch_norm=True)
            self.seen: list[Tensor] = []

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return functional.cross_entropy(self.net(batch[0]), batch[1])

        def on_validation_epoch_start(self) -> None:
            self.seen.append(self.net[1].running_mean.clone())

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            pass

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def in_rank() -> Any:
        module = Normed()
        trainer = drivetrain.Trainer(
            accelerator="cpu", strategy="ddp", max_epochs=2, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
        )  # fmt: skip
        loader = torch.utils.data.DataLoader(make_dataset(24), batch_size=4)
        trainer.fit(module, loader, loader)
        trainer._fabric.close()
        return module.seen

    first, second = ranks.run(in_rank)
    assert len(first) == 2 and not torch.equal(first[0], first[1])
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_sync_batchnorm_on_cpu_says_that_torch_has_none(ranks: Any) -> None:
    """It would fail in the first forward, deep inside torch."""

    def in_rank() -> Any:
        with open_fabric(sync_batchnorm=True) as fabric:
            return error_of(fabric.setup, make_mlp(has_batch_norm=True))

    for kind, code, text in ranks.run(in_rank):
        assert (kind, code) == ("ConfigError", "sync-batchnorm")
        assert "cpu" in text and "GPU" in text


@pytest.mark.parametrize("differs", ["shape", "dtype", "name"])
def test_ranks_that_hold_different_models_all_say_so(ranks: Any, differs: str) -> None:
    """One rank would wait in DDP's constructor, or gradients of different parameters would be added up."""

    def in_rank(differs: str) -> Any:
        rank = current_cluster().rank
        module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2 + rank if differs == "shape" else 2))
        if differs == "dtype" and rank == 1:
            module[1].double()
        if differs == "name" and rank == 1:
            module.append(nn.Linear(2, 2))
        with open_fabric() as fabric:
            return error_of(fabric.setup, module)

    said = {
        "shape": "'1.weight' is [2, 4] torch.float32 on rank 0 and [3, 4] torch.float32 on rank 1",
        "dtype": "'1.weight' is [2, 4] torch.float32 on rank 0 and [2, 4] torch.float64 on rank 1",
        "name": "'2.weight' is missing on rank 0 and [2, 2] torch.float32 on rank 1",
    }[differs]
    for rank, (kind, code, text) in enumerate(ranks.run(in_rank, differs)):
        assert (kind, code) == ("ModelError", "model-differs")
        assert f"[rank {rank}/2]" in text and said in text


def test_a_plain_backward_on_the_output_of_a_set_up_module_is_synced(ranks: Any) -> None:
    """Ranks would drift apart without a word."""

    def in_rank() -> Any:
        with open_fabric() as fabric:
            model = fabric.setup(make_mlp())
            x, y = batches(2)[fabric.global_rank]
            functional.cross_entropy(model(x), y).backward()
            return gradients(model)

    alone = make_mlp()
    (x, y), (x2, y2) = batches(2)
    functional.cross_entropy(alone(torch.cat([x, x2])), torch.cat([y, y2])).backward()
    for own in ranks.run(in_rank):
        assert largest_difference(own, {n: p.grad for n, p in alone.named_parameters() if p.grad is not None}) < 1e-12
