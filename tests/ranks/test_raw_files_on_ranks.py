"""Plain state files, loaded on several ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from drivetrain import DDP, FSDP
from drivetrain.cluster.read_cluster import current_cluster
from tests.ranks.open_fabric import error_of
from tests.ranks.sharded_training import Block, Deep, difference, sharded_fabric, whole_weights


def test_each_rank_takes_its_share_of_whole_weights_and_momentum(ranks: Any, tmp_path: Path) -> None:
    """Pretrained weights could not be loaded into a sharded model, or all of them would be on each rank."""

    def in_rank() -> tuple[float, float, bool]:
        reference = Deep(seed=5)
        trained = torch.optim.SGD(reference.parameters(), lr=0.5, momentum=0.9)
        for parameter in reference.parameters():
            parameter.grad = torch.full_like(parameter, 0.25)
        trained.step()
        path = tmp_path / f"rank{current_cluster().rank}"
        torch.save(reference.state_dict(), f"{path}.pt")
        torch.save(trained.state_dict(), f"{path}_optimizer.pt")
        with sharded_fabric(FSDP(shard={Block})) as fabric:
            module = Deep(seed=1)
            prepared, optimizer = fabric.setup(module, torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9))
            fabric.load_raw(f"{path}.pt", prepared)
            fabric.load_raw(f"{path}_optimizer.pt", optimizer)
            expected = reference.state_dict()
            off = difference(whole_weights(fabric.strategy, prepared.prepared), expected)
            momentum = [optimizer.state[one]["momentum_buffer"] for one in module.parameters() if one.dim() == 2]
            gap = max(float((one.full_tensor() - 0.25).abs().max()) for one in momentum)
            return off, gap, optimizer.param_groups[0]["lr"] == 0.5

    assert ranks.run(in_rank) == [(0.0, 0.0, True)] * 2


def test_a_file_that_one_rank_cannot_read_changes_no_rank(ranks: Any, tmp_path: Path) -> None:
    """Ranks would go on with different weights, or wait for one that has ended."""
    torch.save(Deep(seed=5).state_dict(), tmp_path / "rank0.pt")

    def in_rank() -> tuple[str, float]:
        with sharded_fabric(DDP()) as fabric:
            module = Deep(seed=1)
            prepared = fabric.setup(module)
            _, code, _ = error_of(fabric.load_raw, tmp_path / f"rank{fabric.global_rank}.pt", prepared)
            return code, difference(module.state_dict(), Deep(seed=1).state_dict())

    assert ranks.run(in_rank) == [("checkpoint-other-rank", 0.0), ("checkpoint-missing", 0.0)]
