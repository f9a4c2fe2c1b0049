"""Sharding a module in place: brought to the device part by part, made equal on all ranks, and cut."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor

from drivetrain.base.errors import ModelError
from drivetrain.strategies.fsdp_parts import Part, ShardedModule
from drivetrain.strategies.fsdp_recorders import record_part
from drivetrain.strategies.fsdp_trace import Trace
from drivetrain.strategies.router import Router


@dataclass(frozen=True)
class ShardRule:
    """How modules are sharded.

    Attributes:
        mesh: Over which ranks.
        device: Where parameters compute.
        dtype: What parameters and buffers are converted to.
        reshard_after_forward: torch's argument.
        policy: Number formats of the parts.
        root_policy: Number formats of the rest.
        offload: Where shards are between computations.
        fills_unused: A parameter without gradient, in a group with some, counts as one whose gradient is zero.
    """

    mesh: DeviceMesh
    device: torch.device
    dtype: torch.dtype | None
    reshard_after_forward: bool | int | None
    policy: MixedPrecisionPolicy
    root_policy: MixedPrecisionPolicy
    offload: OffloadPolicy
    fills_unused: bool


def check_shardable(module: nn.Module, parts: Iterable[nn.Module], tensor_mesh: DeviceMesh | None) -> None:
    """Refuse what torch would refuse later, in the first forward and in other words.

    Args:
        module: The user's.
        parts: With a group of their own.
        tensor_mesh: Over which layers may be shared by ranks already.

    Raises:
        ModelError: It is sharded already, or trainable parameters of one group have several dtypes.
    """
    num_alike = tensor_mesh.size() if tensor_mesh is not None else 1
    if num_alike > 1 and not any(map(_shared_tensors, module.modules())) and dist.get_rank() == 0:
        warnings.warn(
            f"No layer of {type(module).__name__} is shared, so {num_alike} ranks at a time compute the same. Call "
            "parallelize_module with device_mesh['tensor_parallel'] in configure_model.",
            stacklevel=3,
        )
    for name, one in module.named_modules():
        meshes = [own.device_mesh for own in one._parameters.values() if isinstance(own, DTensor)]
        if isinstance(one, FSDPModule) or any(mesh != tensor_mesh for mesh in meshes):
            raise ModelError(
                f"{name or type(module).__name__} was sharded already, by fully_shard or an earlier run.",
                code="already-sharded",
                do="Give the module as it was made: FSDP shards it, also where ranks share layers over "
                "device_mesh['tensor_parallel'].\nSay with FSDP(shard=...) which parts have a group of their own.",
            )
    taken: set[int] = set()
    for part in [*parts, module]:
        own = {name: p for name, p in part.named_parameters() if p.requires_grad and p.ndim and id(p) not in taken}
        taken |= {id(p) for p in own.values()}
        dtypes = {p.dtype: name for name, p in own.items()}
        if len(dtypes) > 1:
            shown = ", ".join(f"{name!r} is {dtype}" for dtype, name in dtypes.items())
            raise ModelError(
                f"Trainable parameters of one group of {type(part).__name__} have several dtypes: {shown}.",
                code="mixed-dtypes",
                do="Convert them to one dtype, or give those of another one a group of their own with FSDP(shard=...).",
            )


def shard_in_place(
    router: Router,
    chosen: Sequence[nn.Module],
    rule: ShardRule,
    trace: Trace,
    *,
    number: int,
    methods: frozenset[str],
) -> ShardedModule:
    """Shard the parts of a router's module, and the rest of it with the router as root.

    Ranks: all.

    Args:
        router: To the user's module.
        chosen: The parts, inner ones first.
        rule: How.
        trace: Hears of the collectives of all parts.
        number: Of the prepared module.
        methods: That may be called.
    """
    module: nn.Module = router.module
    before = list(module.parameters())
    plain = {parameter for parameter in before if not parameter.ndim}
    for one in [*chosen, router]:
        _bring_own(one, rule)
        fully_shard(
            one,
            mesh=rule.mesh,
            reshard_after_forward=rule.reshard_after_forward,
            mp_policy=rule.policy if one is not router else rule.root_policy,
            offload_policy=rule.offload,
            ignored_params=plain,
        )
    after = list(module.parameters())
    pairs = zip(before, after, strict=True)
    replaced = {id(old): (weakref.ref(old), new) for old, new in pairs if old is not new}
    parts = _parts_of(router)
    for part in parts:
        # torch (2.13) expects of parts that do not run that they were gathered once, and not under inference mode.
        part.module.unshard()
        part.module.reshard()
        part.group.reduce_scatter_unused_params = rule.fills_unused
        if trace.world_size > 1:
            record_part(trace, number, part)
    kept = tuple(parameter for parameter in after if parameter in plain)
    return ShardedModule(
        module, router, methods, tuple(after), number=number, parts=parts, plain=kept, replaced=replaced
    )


def _parts_of(router: Any) -> tuple[Part, ...]:
    root = router._get_fsdp_state()
    root._lazy_init()
    names = {id(parameter): name for name, parameter in router.module.named_parameters()}
    states = root._state_ctx.all_states
    found = [(state._modules[0], group) for state in states for group in state._fsdp_param_groups]
    return tuple(
        Part(number, module, group, tuple(names[id(one.sharded_param)] for one in group.fsdp_params))
        for number, (module, group) in enumerate(found)
    )


def _bring_own(part: nn.Module, rule: ShardRule) -> None:
    """Bring to the device what is not sharded yet, and give all ranks what rank 0 holds.

    Of a layer that several ranks share, what the first ranks hold that do.
    """

    def convert(tensor: Tensor) -> Tensor:
        return tensor.to(rule.device, rule.dtype if tensor.is_floating_point() else None)

    for one in _unsharded_modules(part):
        if any(tensor.is_meta for tensor in (*_own_tensors(one), *_shared_tensors(one))):
            _initialise(one, rule.device)
        one._apply(convert, recurse=False)
        for tensor in _own_tensors(one):
            tensor.data = tensor.data.contiguous()
            dist.broadcast(tensor.data, group_src=0)
        for tensor in _shared_tensors(one):
            dist.broadcast(tensor._local_tensor, group=rule.mesh.get_group(), group_src=0)


def _unsharded_modules(part: nn.Module) -> Iterator[nn.Module]:
    yield part
    for child in part.children():
        if not isinstance(child, FSDPModule):
            yield from _unsharded_modules(child)


def _own_tensors(module: nn.Module) -> list[Tensor]:
    tensors = [*module._parameters.values(), *module._buffers.values()]
    return [tensor for tensor in tensors if tensor is not None and not isinstance(tensor, DTensor)]


def _shared_tensors(module: nn.Module) -> list[DTensor]:
    return [one for one in (*module._parameters.values(), *module._buffers.values()) if isinstance(one, DTensor)]


def _initialise(module: nn.Module, device: torch.device) -> None:
    reset = getattr(module, "reset_parameters", None)
    if not callable(reset):
        raise ModelError(
            f"{type(module).__name__} was made on the meta device and has no reset_parameters().",
            code="meta-parameters",
            do="Give it a method reset_parameters() that initialises its own parameters and buffers, or make it on a "
            "real device.",
        )
    module.to_empty(device=device, recurse=False)
    reset()
