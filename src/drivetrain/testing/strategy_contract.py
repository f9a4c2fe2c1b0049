"""What every strategy must do, as functions that run in each rank: ours and a user's own.

    ranks.run(check_strategy, MyStrategy, world=2)

Each check compares with one process that holds the whole batch, in float64 on the CPU. Where ranks step apart
(`traits.steps_apart`) they make no such step: a rank's gradients are compared with those of its own share, nothing may
be sent before the end of a step, and that several steps equal one process is not asked.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from drivetrain.base.errors import MethodNotPreparedError
from drivetrain.checkpoint.state_files import Place, WrittenFiles
from drivetrain.cluster.read_cluster import current_cluster
from drivetrain.strategies.prepared import Prepared
from drivetrain.strategies.strategy import Strategy
from drivetrain.testing.comm_counter import CommCounter, parameter_bytes
from drivetrain.testing.fixtures import make_dataset, make_mlp, max_difference

NUM_MICRO_BATCHES = 4
BATCH_SIZE = 3
SCATTERS = ("reduce_scatter_", "_reduce_scatter_base_", "reduce_scatter_tensor")
REDUCTIONS = ("allreduce_", "allreduce_coalesced_")


class ContractModel(nn.Module):
    """A model with two methods beside forward, one of which is not prepared."""

    def __init__(self) -> None:
        super().__init__()
        self.net = make_mlp(num_hidden=24)
        self.register_buffer("offset", torch.zeros((), dtype=torch.float64))

    def forward(self, features: Tensor) -> Tensor:
        result: Tensor = self.net(features) + self.offset
        return result

    def loss_on(self, features: Tensor, targets: Tensor) -> Tensor:
        """The mean loss of a batch."""
        return functional.cross_entropy(self(features), targets)

    def unprepared(self, features: Tensor) -> Tensor:
        """Not named to `prepare`."""
        result: Tensor = self(features)
        return result


def check_strategy(make_strategy: Callable[[], Strategy], *, tolerance: float = 1e-12) -> None:
    """Run all checks in this rank.

    Ranks: all.

    Args:
        make_strategy: Gives a new strategy that is not open.
        tolerance: Largest difference from one process that is put down to rounding.
    """
    cluster = current_cluster()
    for check in (
        check_window_syncs_once,
        check_steps_equal_one_process,
        check_sync_flag_is_restored,
        check_idle_rank_adds_nothing,
        check_idle_rank_joins_each_micro_batch,
        check_unprepared_method_is_refused,
        check_state_comes_back,
        check_parts_are_equal_over_ranks,
        check_all_agree_on_one_model,
    ):
        strategy = make_strategy()
        strategy.open(cluster, torch.device("cpu"))
        try:
            check(strategy, tolerance)
        finally:
            strategy.close()


def check_window_syncs_once(strategy: Strategy, tolerance: float) -> None:
    """A window has exactly one gradient sync if the strategy syncs, of the bytes of the parameters, and none if not.

    Ranks: all.
    """
    module, prepared = _prepare(strategy)
    counter = CommCounter()
    with counter:
        _run_window(strategy, prepared, _share(strategy, 0))
    # Where gradients are scattered, only a share of them may be reduced once more, over replicas.
    sent = counter.num_bytes(*SCATTERS) or counter.num_bytes(*REDUCTIONS)
    expected = parameter_bytes(module) if strategy.traits.syncs_gradients else 0
    least = expected if _world(strategy) > 1 else 0  # to itself a rank need not send anything
    assert least <= sent <= 1.1 * expected, f"{sent} bytes for a window, not {expected}: {counter.counts()}"
    batch = _own_samples(strategy, 0) if _steps_apart(strategy) else _samples(strategy, 0)
    full = _gradient_of(*batch)
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None, f"{name} got no gradient"
        difference = (whole(parameter.grad) - full[name]).abs().max().item()
        assert difference <= tolerance, f"the gradient of {name} differs by {difference} from the full batch's"


def check_steps_equal_one_process(strategy: Strategy, tolerance: float) -> None:
    """Several clipped steps give the parameters that one process gives. Not asked where ranks step apart.

    Ranks: all.
    """
    if _steps_apart(strategy):
        return
    module, prepared = _prepare(strategy)
    alone = copy.deepcopy(ContractModel())
    optimizers = [torch.optim.AdamW(one.parameters(), lr=1e-2) for one in (module, alone)]
    for step in range(5):
        _run_window(strategy, prepared, _share(strategy, step))
        strategy.unscale(optimizers[0])
        strategy.clip_gradients(module.parameters(), max_norm=0.5)
        assert strategy.step([optimizers[0]]), "a step was skipped"
        optimizers[0].zero_grad()
        alone.loss_on(*_samples(strategy, step)).backward()
        torch.nn.utils.clip_grad_norm_(alone.parameters(), 0.5)
        optimizers[1].step()
        optimizers[1].zero_grad()
    difference = max_difference(_whole_copy(strategy, prepared), alone)
    assert difference <= 1e3 * tolerance, f"parameters differ by {difference} from one process"


def check_sync_flag_is_restored(strategy: Strategy, tolerance: float) -> None:
    """After a block without sync, nested or left by an exception, the next backward is synced again.

    Ranks: all.
    """
    module, prepared = _prepare(strategy)
    features, targets = _share(strategy, 0)[0]
    with strategy.gradient_sync(prepared, False), strategy.gradient_sync(prepared, True):
        pass
    try:
        with strategy.gradient_sync(prepared, False):
            raise KeyError("leaves the block")
    except KeyError:
        pass
    strategy.backward(strategy.call(prepared, "loss_on", features, targets), prepared)
    gradients = [whole(p.grad).clone() for p in module.parameters() if p.grad is not None]
    if _steps_apart(strategy):
        own = _gradient_of(features, targets).values()
        assert all(torch.allclose(a, b, atol=tolerance) for a, b in zip(own, gradients, strict=True)), "not its own"
        return
    for one in strategy.collectives.gather_objects(gradients):
        assert all(torch.equal(a, b) for a, b in zip(one, gradients, strict=True)), "ranks hold different gradients"


def check_idle_rank_adds_nothing(strategy: Strategy, tolerance: float) -> None:
    """A rank without data takes part in the sync; the sum is that of the others.

    Ranks: all.
    """
    module, prepared = _prepare(strategy)
    world = _world(strategy)
    features, targets = _samples(strategy, 0)
    if strategy.collectives.rank == 0:
        with strategy.gradient_sync(prepared, True):
            strategy.backward(strategy.call(prepared, "loss_on", features, targets), prepared)
    else:
        strategy.sync_idle(prepared)
    averaged = world if strategy.traits.syncs_gradients else 1
    if _steps_apart(strategy) and strategy.collectives.rank > 0:
        assert all(p.grad is None for p in module.parameters()), "gradients came from nowhere"
        return
    for name, gradient in _gradient_of(features, targets).items():
        own = module.get_parameter(name).grad
        assert own is not None, f"{name} got no gradient"
        assert (whole(own) * averaged - gradient).abs().max().item() <= tolerance, (
            f"the gradient of {name} is not the others'"
        )


def check_idle_rank_joins_each_micro_batch(strategy: Strategy, tolerance: float) -> None:
    """Where a forward communicates, a rank is idle in a whole window, or has a forward and no loss.

    Ranks: all.
    """
    if not strategy.traits.communicates_in_forward:
        return
    module, prepared = _prepare(strategy)
    world, rank = _world(strategy), strategy.collectives.rank
    features, targets = _samples(strategy, 0)
    for index in range(2):
        with strategy.gradient_sync(prepared, index == 1):
            loss = strategy.call(prepared, "loss_on", features, targets) if rank != 1 else None
            if rank == 0:
                assert loss is not None
                strategy.backward(loss / 2, prepared)
            else:
                strategy.sync_idle(prepared)
    strategy.finish_sync(prepared)
    for name, gradient in _gradient_of(features, targets).items():
        own = module.get_parameter(name).grad
        assert own is not None, f"{name} got no gradient"
        difference = (whole(own) * world - gradient).abs().max().item()
        assert difference <= tolerance, f"the gradient of {name} is not rank 0's"


def check_unprepared_method_is_refused(strategy: Strategy, tolerance: float) -> None:
    """A method that was not named raises; it never runs beside the wrapper.

    Ranks: all.
    """
    _, prepared = _prepare(strategy)
    features, _ = _share(strategy, 0)[0]
    try:
        strategy.call(prepared, "unprepared", features)
    except MethodNotPreparedError:
        return
    raise AssertionError("a method that was not prepared ran")


def check_state_comes_back(strategy: Strategy, tolerance: float) -> None:
    """What is saved is the user's module's state under its own names, and loads into a fresh module and optimizer.

    Ranks: all.
    """
    module, prepared = _prepare(strategy)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    _run_window(strategy, prepared, _share(strategy, 0))
    strategy.step([optimizer])
    strategy.end_step(prepared)
    own = tempfile.TemporaryDirectory() if strategy.collectives.is_global_zero else None
    directory = Path(strategy.collectives.broadcast(own.name if own is not None else None))
    files = WrittenFiles(Place(directory, strategy.collectives))
    strategy.save_state({"model": prepared, "optimizer": optimizer, "note": [1, "two"]}, files)
    records = strategy.collectives.gather_objects(files.records)
    written = sorted(record.name for share in records for record in share)
    assert written == sorted(path.name for path in directory.iterdir()), f"{written} were named, others are there"
    full = strategy.full_state({"model": prepared})["model"]
    assert set(full) == set(ContractModel().state_dict()), f"names were changed: {sorted(full)}"
    fresh, fresh_prepared = _prepare(strategy, seed=1)
    fresh_optimizer = torch.optim.AdamW(fresh.parameters(), lr=1e-2)
    rest = strategy.load_state({"model": fresh_prepared, "optimizer": fresh_optimizer}, directory)
    assert rest == {"note": [1, "two"]}, f"plain data came back as {rest}"
    copies = [_whole_copy(strategy, one) for one in (prepared, fresh_prepared)]
    assert max_difference(*copies) == 0.0, "weights came back changed"
    assert len(fresh_optimizer.state_dict()["state"]) == len(optimizer.state_dict()["state"]), "optimizer state is lost"
    strategy.collectives.barrier()
    if own is not None:
        own.cleanup()


def check_parts_are_equal_over_ranks(strategy: Strategy, tolerance: float) -> None:
    """Buffers are those of rank 0 after `sync_buffers`; shards of the data do not overlap.

    Ranks: all.
    """
    module, prepared = _prepare(strategy)
    module.offset.fill_(float(strategy.collectives.rank + 1))
    strategy.sync_buffers(prepared)
    assert float(module.offset) == 1.0, "a buffer is not rank 0's"
    shard = strategy.data_shard()
    shards = strategy.collectives.gather_objects((shard.index, shard.count))
    assert {count for _, count in shards} == {shard.count}
    assert {index for index, _ in shards} == set(range(shard.count)), f"shards are {shards}"


def check_all_agree_on_one_model(strategy: Strategy, tolerance: float) -> None:
    """In `agreed_model`, in `full_state` and after `end_training` ranks hold one model; a block gives their own back.

    Ranks: all.
    """
    module, prepared = _prepare(strategy)
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-2)
    _run_window(strategy, prepared, _share(strategy, 0))
    strategy.step([optimizer])
    strategy.end_step(prepared)
    own = {name: value.clone() for name, value in module.named_parameters()}
    with strategy.agreed_model(prepared):
        _check_equal_over_ranks(strategy, module.state_dict(), "in agreed_model")
    changed = [name for name, value in module.named_parameters() if not torch.equal(whole(value), whole(own[name]))]
    assert not changed, f"{changed} did not come back after agreed_model"
    _check_equal_over_ranks(strategy, strategy.full_state({"model": prepared})["model"], "in full_state")
    strategy.end_training(prepared)
    _check_equal_over_ranks(strategy, module.state_dict(), "after end_training")


def _check_equal_over_ranks(strategy: Strategy, state: dict[str, Tensor], where: str) -> None:
    state = {name: whole(value) for name, value in state.items()}
    for rank, other in enumerate(strategy.collectives.gather_objects(state)):
        differing = [name for name in state if not torch.equal(state[name], other[name])]
        assert not differing, f"{where} {differing} of rank {rank} differ"


def _steps_apart(strategy: Strategy) -> bool:
    return strategy.traits.steps_apart and strategy.collectives.world_size > 1


def _prepare(strategy: Strategy, seed: int = 0) -> tuple[Any, Prepared]:
    module = ContractModel()
    if seed:
        module.net.load_state_dict(make_mlp(num_hidden=24, seed=seed).state_dict())
    return module, strategy.prepare(module, methods=("forward", "loss_on"))


def whole(tensor: Tensor) -> Tensor:
    """The whole of a tensor that may be sharded.

    Ranks: all.
    """
    gather = getattr(tensor, "full_tensor", None)
    gathered: Tensor = tensor if gather is None else gather()
    return gathered.detach()


def _whole_copy(strategy: Strategy, prepared: Prepared) -> ContractModel:
    copied = ContractModel()
    copied.load_state_dict(strategy.full_state({"model": prepared})["model"])
    return copied


def _run_window(strategy: Strategy, prepared: Prepared, batches: list[tuple[Tensor, Tensor]]) -> None:
    for index, (features, targets) in enumerate(batches):
        with strategy.gradient_sync(prepared, index == len(batches) - 1):
            loss = strategy.call(prepared, "loss_on", features, targets)
            strategy.backward(loss / len(batches), prepared)


def _world(strategy: Strategy) -> int:
    return strategy.data_shard().count


def _samples(strategy: Strategy, step: int) -> tuple[Tensor, Tensor]:
    size = NUM_MICRO_BATCHES * BATCH_SIZE * _world(strategy)
    features, targets = make_dataset(5 * size).tensors
    return features[step * size : (step + 1) * size], targets[step * size : (step + 1) * size]


def _share(strategy: Strategy, step: int) -> list[tuple[Tensor, Tensor]]:
    features, targets = _samples(strategy, step)
    shard = strategy.data_shard()
    parts = list(zip(features.split(BATCH_SIZE), targets.split(BATCH_SIZE), strict=True))
    return parts[shard.index :: shard.count]


def _own_samples(strategy: Strategy, step: int) -> tuple[Tensor, Tensor]:
    features, targets = zip(*_share(strategy, step), strict=True)
    return torch.cat(features), torch.cat(targets)


def _gradient_of(features: Tensor, targets: Tensor) -> dict[str, Tensor]:
    alone = ContractModel()
    alone.loss_on(features, targets).backward()
    return {name: p.grad for name, p in alone.named_parameters() if p.grad is not None}
