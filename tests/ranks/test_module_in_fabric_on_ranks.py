"""A `drivetrain.Module` in a raw loop on several ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import drivetrain
from tests.ranks.open_fabric import error_of
from tests.ranks.sharded_training import sharded_fabric


class Lit(drivetrain.Module):
    """Talks to ranks, and runs backward itself if it is asked to."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def training_step(self, batch: Any, is_manual: bool = False) -> Any:
        loss = self.layer(batch).sum()
        if is_manual:
            self.manual_backward(loss)
        return loss


def in_rank(strategy: str) -> Any:
    with sharded_fabric(strategy) as fabric:
        module = Lit()
        model = fabric.setup(module)
        gathered = module.all_gather(torch.tensor([module.global_rank])).tolist()
        ones = torch.ones(1, 2)
        refused = error_of(model.training_step, ones, True)[:2]
        return gathered, module.fabric is fabric, refused, module.device_mesh is not None


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_ranks_talk_and_a_backward_that_would_escape_the_sync_is_refused(ranks: Any, strategy: str) -> None:
    """Ranks would step on gradients of their own, and nobody see it."""
    for result in ranks.run(in_rank, strategy, world=2):
        refused = ("ConfigError", "manual-optimization")
        assert result == ([[0], [1]], True, refused, strategy == "fsdp")


def test_ranks_that_step_apart_run_their_own_backward(ranks: Any) -> None:
    """A backward that nothing syncs would be refused."""
    for result in ranks.run(in_rank, "local_sgd", world=2):
        assert result[2] == ("", "")
