"""What number formats mean to FSDP2."""

from __future__ import annotations

import dataclasses

import torch
from torch.distributed.fsdp import MixedPrecisionPolicy

from drivetrain.precision.precision import Precision


def make_policy(precision: Precision) -> MixedPrecisionPolicy:
    """The policy of all parts.

    With a compute dtype, parameters are gathered in it, which halves what forward and backward send; gradients are
    reduced and accumulated in float32 unless the precision says otherwise. Inputs are left alone: the step runs under
    autocast, as it does under DDP, and targets are not rounded.
    """
    if precision.compute_dtype is None:
        return MixedPrecisionPolicy(reduce_dtype=precision.reduce_dtype)
    return MixedPrecisionPolicy(
        param_dtype=precision.compute_dtype,
        reduce_dtype=precision.reduce_dtype or torch.float32,
        cast_forward_inputs=False,
    )


def policy_of_root(policy: MixedPrecisionPolicy, precision: Precision) -> MixedPrecisionPolicy:
    """The same for the whole, whose outputs come back in float32 where the step computes in less."""
    if precision.compute_dtype is None or policy.output_dtype is not None:
        return policy
    return dataclasses.replace(policy, output_dtype=torch.float32)
