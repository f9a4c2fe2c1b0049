"""The block around one micro-batch: whether gradients are reduced in it, and what collectives it issues."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType

from drivetrain.base.errors import ConfigError
from drivetrain.strategies.fsdp_parts import ShardedModule, fill_accumulated
from drivetrain.strategies.fsdp_trace import PLAIN, Place, Trace


class SyncBlock(AbstractContextManager[None]):
    """`FSDPModule.set_requires_gradient_sync` for several modules; the flags found are restored.

    Args:
        trace: Hears where the block begins and ends.
        modules: Those of the micro-batch.
        enabled: This is the last micro-batch of a window.
        reduces: Gradients are reduced in the block.
        reduces_over_all: They are reduced over replicas, too.
    """

    def __init__(
        self, trace: Trace, modules: Sequence[ShardedModule], *, enabled: bool, reduces: bool, reduces_over_all: bool
    ) -> None:
        self.trace = trace
        self.modules = modules
        self.key = (*(str(one.number) for one in modules), "last" if enabled else "not-last")
        self.flags = reduces, reduces_over_all
        self.found: list[tuple[bool, bool]] = []

    def __enter__(self) -> None:
        groups = [part.group for module in self.modules for part in module.parts]
        self.found = [(group.reduce_grads, group.all_reduce_grads) for group in groups]
        for group in groups:
            group.reduce_grads, group.all_reduce_grads = self.flags
            if group.reduce_scatter_unused_params and group.reduce_grads:
                fill_accumulated(group)
        self.trace.begin(self.key)

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        groups = [part.group for module in self.modules for part in module.parts]
        for group, (reduces, reduces_over_all) in zip(groups, self.found, strict=True):
            group.reduce_grads, group.all_reduce_grads = reduces, reduces_over_all
        self.trace.end(self._left if kind is None else None)
        if kind is not None:
            for module in self.modules:
                module.forget_pass()

    def _left(self) -> Iterator[Place]:
        """The parts with gradients that were not reduced."""
        for module in self.modules:
            yield from ((module.number, part.number) for part in module.parts if part.is_pending)
            if not all(self.flags) and any(parameter.grad is not None for parameter in module.plain):
                yield module.number, PLAIN


@contextmanager
def evaluation_block(trace: Trace, prepared: ShardedModule, method: str) -> Iterator[None]:
    """The block around one call without gradients; inside of a micro-batch it is a part of that one.

    Ranks: all.
    """
    if trace.is_open:
        yield
        prepared.reshard()
        return
    trace.begin((str(prepared.number), method))
    try:
        yield
    except BaseException:
        trace.end()
        raise
    prepared.reshard()
    trace.end(lambda: ())


def check_defer(defer: str, num_replicas: int | str) -> None:
    """Refuse to defer what is not there.

    Raises:
        ConfigError: No such thing waits.
    """
    if defer not in ("reduce", "all-reduce", "none") or (defer == "all-reduce" and num_replicas == 1):
        raise ConfigError(
            f"defer={defer!r} with num_replicas={num_replicas} says nothing that could wait.",
            code="defer",
            do="Use 'reduce' or 'none'; 'all-reduce' needs num_replicas of 2 or more.",
        )
