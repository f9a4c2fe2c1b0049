"""Statistics of batch norms for weights that they were not trained with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from drivetrain.comm.collectives import Collectives


def batch_norms(module: nn.Module) -> dict[str, _BatchNorm]:
    """Those that keep statistics, by name."""
    return {
        name: one for name, one in module.named_modules() if isinstance(one, _BatchNorm) and one.track_running_stats
    }


@contextmanager
def counted_anew(module: nn.Module, collectives: Collectives) -> Iterator[None]:
    """Forwards of the block give the batch norms their statistics: of each the mean over all batches of all ranks.

    All other parts are in eval mode: dropout would change what is counted. Afterwards each part has the mode that it
    had.

    Ranks: all (one all-reduce for each statistic). How many batches each has may differ.

    Args:
        module: What runs in the block, without gradients.
        collectives: Between the ranks.
    """
    norms = batch_norms(module)
    modes = [(one, one.training) for one in module.modules()]
    momenta = [(one, one.momentum) for one in norms.values()]
    module.eval()
    for one in norms.values():
        one.reset_running_stats()
        one.momentum = None  # a plain mean
        one.train()
    try:
        yield
        if collectives.world_size > 1:
            for one in norms.values():
                _pool(one, collectives)
    finally:
        for norm, momentum in momenta:
            norm.momentum = momentum
        for part, mode in modes:
            part.training = mode


def _pool(norm: Any, collectives: Collectives) -> None:
    number: Tensor = norm.num_batches_tracked
    total = collectives.all_reduce(number, op="sum")
    for statistic in (norm.running_mean, norm.running_var):
        statistic.copy_(collectives.all_reduce(statistic * number, op="sum") / torch.clamp(total, min=1))
    number.copy_(total)
