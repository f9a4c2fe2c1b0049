"""Shards on the host whose mesh is of GPUs, as torch leaves them when it offloads: made by hand, without a GPU."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

import drivetrain
from drivetrain.checkpoint.state_files import Place, WrittenFiles
from drivetrain.cluster.read_cluster import current_cluster
from drivetrain.fabric.weighted_loss import multiply_gradients
from drivetrain.strategies.fsdp_parts import ShardedModule
from drivetrain.strategies.sharded_gradients import ShardedGradScaler, clip_norm, total_norm
from drivetrain.strategies.sharded_state import add_shards, read_shards, whole_state
from tests.ranks.sharded_training import opened

ROWS = 5  # not the same number for each rank


def offloaded(whole: Tensor) -> DTensor:
    """This rank's rows, on the host, of a tensor whose mesh is of GPUs."""
    world, rank = dist.get_world_size(), dist.get_rank()
    group = dist.group.WORLD
    assert group is not None
    own = torch.chunk(whole, world)[rank].clone()
    host = DeviceMesh.from_group(group, "cpu", mesh_dim_names=("shard",))
    like: Any = DTensor.from_local(own, host, [Shard(0)], run_check=False, shape=whole.shape, stride=whole.stride())
    mesh = DeviceMesh.from_group(group, "cuda", mesh_dim_names=("shard",))
    return DTensor(own, dataclasses.replace(like._spec, mesh=mesh), requires_grad=False)


def model(seed: int) -> nn.Linear:
    """A layer whose weight has a gradient."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = nn.Linear(3, ROWS, bias=False).double()
        module.weight.grad = torch.randn_like(module.weight)
    return module


def shard(module: nn.Linear) -> ShardedModule:
    """Put offloaded shards in the place of the weight and its gradient."""
    gradient = module.weight.grad
    module.weight = nn.Parameter(offloaded(module.weight.detach()))
    if gradient is not None:
        module.weight.grad = offloaded(gradient)
    return ShardedModule(module, module, frozenset(("forward",)), tuple(module.parameters()))


def test_gradients_on_the_host_are_scaled_and_clipped_as_whole_ones(ranks: Any) -> None:
    """A norm would be that of one rank, or the factor be on another device than what it scales."""

    def in_rank() -> Any:
        with opened():
            module = model(0)
            shard(module)
            scaler = ShardedGradScaler("cpu", init_scale=4.0)
            scaler.scale(torch.zeros(()))
            scaler.unscale_(torch.optim.SGD(module.parameters(), lr=0.1))
            multiply_gradients(module.parameters(), torch.tensor(3.0, dtype=torch.float64))
            gradients: Any = [module.weight.grad]
            norm = total_norm(gradients, 2.0, torch.device("cpu"))
            clip_norm(gradients, 0.5, norm, error_if_nonfinite=True)
            assert gradients[0].to_local().device.type == "cpu"
            return float(norm), gradients[0].full_tensor()

    alone = model(0)
    assert alone.weight.grad is not None
    alone.weight.grad *= 3 / 4
    norm = float(nn.utils.clip_grad_norm_(alone.parameters(), 0.5))
    for own_norm, gradient in ranks.run(in_rank):
        assert own_norm == pytest.approx(norm, rel=1e-12)
        assert (gradient - alone.weight.grad).abs().max() < 1e-15


@pytest.mark.parametrize("is_saved_whole", [False, True])
def test_state_on_the_host_is_saved_and_comes_back_there(ranks: Any, tmp_path: Path, is_saved_whole: bool) -> None:
    """A resume would bring everything to the GPU that was offloaded because it does not fit there."""

    def in_rank() -> Any:
        with opened() as strategy:
            module = model(0)
            prepared = shard(module)
            optimizer = torch.optim.Adam(module.parameters(), lr=0.1)
            optimizer.step()
            state = {"model": prepared, "optimizer": optimizer}
            files = WrittenFiles(Place(tmp_path, strategy.collectives))
            if is_saved_whole:  # as a strategy with replicas does
                state = whole_state(state)
            if strategy.collectives.is_global_zero or not is_saved_whole:
                add_shards(state, files, is_global_zero=strategy.collectives.is_global_zero)
            strategy.collectives.barrier()

            fresh = model(1)
            again = shard(fresh)
            fresh_optimizer = torch.optim.Adam(fresh.parameters(), lr=0.1)
            read_shards({"model": again, "optimizer": fresh_optimizer}, tmp_path)
            fresh.weight.grad = copy.copy(module.weight.grad)
            fresh_optimizer.step()
            moments = [one for one in fresh_optimizer.state[fresh.weight].values() if isinstance(one, DTensor)]
            assert len(moments) == 2
            assert {one.to_local().device.type for one in (fresh.weight, *moments)} == {"cpu"}  # type: ignore[union-attr]
            return whole_state({"model": again})["model"]["weight"]

    alone = model(0)
    optimizer = torch.optim.Adam(alone.parameters(), lr=0.1)
    optimizer.step()
    optimizer.step()
    for weight in ranks.run(in_rank):
        assert (weight - alone.weight).abs().max() < 1e-14


def test_a_module_computes_on_the_device_of_the_run_though_its_shards_are_on_the_host(ranks: Any) -> None:
    """A step that makes tensors on `self.device` would make them where its forward does not compute."""

    def in_rank() -> Any:
        with opened():

            class Offloaded(drivetrain.Module):
                def __init__(self) -> None:
                    super().__init__()
                    self.layer = model(0)

            module = Offloaded()
            shard(module.layer)
            outside = module.device
            module._trainer = SimpleNamespace(device=torch.device("cuda", current_cluster().local_rank))
            return str(outside), str(module.device)

    assert ranks.run(in_rank) == [("cpu", "cuda:0"), ("cpu", "cuda:1")]
