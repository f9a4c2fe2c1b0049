"""Count what a rank sends, from Python, on any backend."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_NAMESPACES = frozenset(("c10d", "_c10d_functional", "_c10d_functional_autograd"))
_NOT_SENT = frozenset(("wait_tensor", "_wrap_tensor_autograd", "barrier", "monitored_barrier_"))
_NOT_COUNTED = frozenset(("wait_tensor", "_wrap_tensor_autograd"))
# c10d operators that write into their first argument and read what this rank gives from the second.
_OUTPUT_FIRST = frozenset(
    (
        "allgather_",
        "_allgather_base_",
        "allgather_coalesced_",
        "allgather_into_tensor_coalesced_",
        "reduce_scatter_",
        "_reduce_scatter_base_",
        "reduce_scatter_tensor_coalesced_",
        "gather_",
        "scatter_",
        "alltoall_",
        "alltoall_base_",
    )
)
# Subclasses that turn into plain tensors first; their collectives are seen then.
_SUBCLASSES = frozenset(("DTensor", "AsyncCollectiveTensor", "FunctionalTensor"))


@dataclass(frozen=True)
class CommCount:
    """Calls of one collective, and the bytes that this rank handed to them."""

    calls: int
    bytes: int


class CommCounter(TorchDispatchMode):
    """Counts collectives while it is entered: DDP's reducer, `torch.distributed`, FSDP2, tensor parallel.

    Bytes are the payload that this rank gives (the input), not what goes over the wire. One counter can be entered
    several times; it adds up.

        with CommCounter() as counter:
            loss.backward()
        assert counter.num_calls("allreduce_") == 1

    Attributes:
        calls: Calls by operator name, e.g. `"allreduce_"`, `"all_gather_into_tensor"`.
        bytes: Bytes by operator name.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if any(kind.__name__ in _SUBCLASSES for kind in types):
            return NotImplemented
        if getattr(func, "namespace", None) in _NAMESPACES:
            self._count(func, args)
        return func(*args, **(kwargs or {}))

    def _count(self, func: Any, args: Sequence[Any]) -> None:
        name = str(func._schema.name).split("::")[1]
        if name in _NOT_COUNTED:
            return
        self.calls[name] += 1
        if name in _NOT_SENT:
            return
        given = args[1] if name in _OUTPUT_FIRST and func.namespace == "c10d" else args[0]
        self.bytes[name] += sum(
            tensor.numel() * tensor.element_size() for tensor in tree_leaves(given) if isinstance(tensor, Tensor)
        )

    def num_calls(self, *names: str) -> int:
        """Calls of the named operators; of all without a name."""
        return sum(self.calls[name] for name in names) if names else self.calls.total()

    def num_bytes(self, *names: str) -> int:
        """Bytes of the named operators; of all without a name."""
        return sum(self.bytes[name] for name in names) if names else self.bytes.total()

    def counts(self) -> dict[str, CommCount]:
        """Both, by operator name."""
        return {name: CommCount(calls, self.bytes[name]) for name, calls in sorted(self.calls.items())}

    def clear(self) -> None:
        """Start again from 0."""
        self.calls.clear()
        self.bytes.clear()


def parameter_bytes(module: torch.nn.Module) -> int:
    """What one sync of all gradients of a module sends: the bytes of its trainable parameters."""
    return sum(p.numel() * p.element_size() for p in module.parameters() if p.requires_grad)
