"""Every strategy of ours keeps the strategy contract."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from torch import nn

from drivetrain import DDP, FSDP, DataParallel, DiLoCo, LocalSGD, SingleDevice
from drivetrain.testing.strategy_contract import check_strategy


def quiet_data_parallel() -> DataParallel:
    """Says that it has one device; that is tested elsewhere."""
    warnings.simplefilter("ignore", UserWarning)
    return DataParallel()


@pytest.mark.parametrize(
    ("make", "world"),
    [
        (SingleDevice, 1),
        (quiet_data_parallel, 1),
        (DDP, 1),
        (DDP, 2),
        (lambda: DDP(gradient_as_bucket_view=True), 2),
        (lambda: DDP(find_unused_parameters=True), 2),
        (DDP, 4),
        (LocalSGD, 1),
        (lambda: LocalSGD(1), 2),
        (LocalSGD, 2),
        (DiLoCo, 1),
        (DiLoCo, 2),
        (FSDP, 1),
        (FSDP, 2),
        (lambda: FSDP(shard=[nn.Linear]), 2),
        (lambda: FSDP(shard=[nn.Linear], reshard_after_forward=False), 2),
        (lambda: FSDP(shard=[nn.Linear], num_replicas=2), 4),
    ],
    ids=[
        "single_device",
        "dp",
        "ddp-1",
        "ddp-2",
        "ddp-2-views",
        "ddp-2-unused",
        "ddp-4",
        "local-1",
        "local-2-every",
        "local-2",
        "diloco-1",
        "diloco-2",
        "fsdp-1",
        "fsdp-2",
        "fsdp-2-parts",
        "fsdp-2-kept",
        "hsdp-4",
    ],
)
def test_a_strategy_keeps_the_contract(ranks: Any, make: Any, world: int) -> None:
    """A strategy that breaks it would sync too often, or change the result."""
    ranks.run(check_strategy, make, world=world)
