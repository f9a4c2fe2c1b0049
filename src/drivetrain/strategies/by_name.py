"""Strategies by name."""

from __future__ import annotations

import difflib
from collections.abc import Callable

from drivetrain.base.errors import ConfigError
from drivetrain.strategies.data_parallel import DataParallel
from drivetrain.strategies.ddp import DDP
from drivetrain.strategies.diloco import DiLoCo
from drivetrain.strategies.fsdp import FSDP
from drivetrain.strategies.local_sgd import LocalSGD
from drivetrain.strategies.single_device import SingleDevice
from drivetrain.strategies.strategy import Strategy


def _zero(stage: int, *, offload: bool = False) -> Callable[[], Strategy]:
    """What a stage of DeepSpeed's ZeRO shards, sharded by FSDP: see docs/adr/0012."""
    return lambda: FSDP(reshard_after_forward=None if stage == 3 else False, cpu_offload=offload)


STRATEGIES: dict[str, Callable[[], Strategy]] = {
    "single_device": SingleDevice,
    "ddp": DDP,
    "ddp_spawn": lambda: DDP(start="spawn"),
    "ddp_fork": lambda: DDP(start="fork"),
    "ddp_notebook": lambda: DDP(start="fork"),
    "ddp_find_unused_parameters_true": lambda: DDP(find_unused_parameters=True),
    "dp": DataParallel,
    "local_sgd": LocalSGD,
    "diloco": DiLoCo,
    "fsdp": FSDP,
    "deepspeed": _zero(2),
    "deepspeed_stage_1": _zero(1),
    "deepspeed_stage_1_offload": _zero(1, offload=True),
    "deepspeed_stage_2": _zero(2),
    "deepspeed_stage_2_offload": _zero(2, offload=True),
    "deepspeed_stage_3": _zero(3),
    "deepspeed_stage_3_offload": _zero(3, offload=True),
}


def make_strategy(strategy: Strategy | str, *, num_ranks: int) -> Strategy:
    """A strategy from its name.

    Args:
        strategy: A name, `"auto"` (DDP for more than one rank, else a single device), or a strategy.
        num_ranks: Ranks of the run if each device has its own.

    Raises:
        ConfigError: The name is not known.
    """
    if isinstance(strategy, Strategy):
        return strategy
    if strategy == "auto":
        return DDP() if num_ranks > 1 else SingleDevice()
    if strategy in STRATEGIES:
        return STRATEGIES[strategy]()
    near = difflib.get_close_matches(str(strategy), STRATEGIES, n=1)
    raise ConfigError(
        f"strategy={strategy!r} is not known.",
        code="strategy",
        do=(f"Did you mean {near[0]!r}? " if near else "") + f"Known: auto, {', '.join(STRATEGIES)}, or a Strategy.",
    )
