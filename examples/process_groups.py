"""Process groups of one's own: a subgroup, and remote calls beside it.

`init_process_groups` is the one place where the groups of a run are made, whoever started the ranks. What it registers
on `stack` ends in reverse order when the run ends: remote calls first, then the subgroup, then the default group.
"""

# run:

from __future__ import annotations

import os
import warnings
from contextlib import ExitStack
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import rpc

import drivetrain as dt


class MyDDP(dt.DDP):
    """DDP with a group for evaluation, and with `torch.distributed.rpc`."""

    def init_process_groups(self, cluster: dt.ClusterInfo, stack: ExitStack) -> None:
        super().init_process_groups(cluster, stack)
        self.evaluators = dist.new_group([0, 1], timeout=timedelta(seconds=60))
        stack.callback(dist.destroy_process_group, self.evaluators)
        warnings.filterwarnings("ignore", message="You are using a Backend")  # torch 2.13's rpc calls it the old way
        rpc.init_rpc(f"rank{cluster.rank}", rank=cluster.rank, world_size=cluster.world_size)
        stack.callback(rpc.shutdown)


def main(fabric: dt.Fabric) -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = fabric.setup(model, optimizer)
    for _ in range(3):  # a step as usual: gradients are averaged over the default group
        fabric.backward(model(torch.ones(2, 4)).square().mean())
        optimizer.step()
        optimizer.zero_grad()

    score = torch.tensor(float(fabric.global_rank + 1))
    dist.all_reduce(score, group=fabric.strategy.evaluators)  # over the group for evaluation: 1 + 2
    other = 1 - fabric.global_rank
    answer = rpc.rpc_sync(f"rank{other}", torch.add, args=(torch.tensor(40), 2))  # computed in the other rank
    fabric.print(f"sum over the subgroup: {score.item():.0f}; rank {other} answers: {answer.item()}")


if __name__ == "__main__":
    os.environ.setdefault("TP_SOCKET_IFNAME", "lo")  # remote calls stay on this machine
    fabric = dt.Fabric(accelerator="cpu", devices=2, strategy=MyDDP())
    fabric.launch(main)
