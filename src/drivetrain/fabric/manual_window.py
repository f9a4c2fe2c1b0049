"""A window whose micro-batches are blocks of the user's own code: several models and optimizers, each at its own pace.

with window:                            # one micro-batch of it
    window.backward(loss, weight)       # gradients for this window's parameters alone
in the last block:                      # once for `size` blocks
    sync                                # one for the window
    rescale                             # to sum(w * g) / sum(w) over micro-batches and ranks
    clip, step, zero_grad
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Self

from torch import Tensor
from torch.optim import Optimizer

from drivetrain.base.errors import ConfigError, StepOutputError, WindowError
from drivetrain.fabric.weighted_loss import (
    has_loss,
    multiply_gradients,
    read_weight,
    scale_loss,
    sum_weights,
)
from drivetrain.fabric.window_job import Clip, unique
from drivetrain.strategies.optimizer_calls import zero_gradients
from drivetrain.strategies.optimizer_names import parameters_of
from drivetrain.strategies.prepared import Prepared
from drivetrain.strategies.strategy import Strategy


class ManualWindow:
    """A window of blocks. A loss may go through other models as well: their gradients are not touched.

    Gradients are synced after the last backward of the window, for the parameters of its optimizers.

    Attributes:
        size: Micro-batches of a full window, on each rank; may be changed between two windows.
        index: Micro-batches done in the present window.
        num_steps: Optimizer steps made.
        weight: Sum of the weights in the present window so far, on this rank.
        is_idle: This rank has no data: its losses count 0.

    Args:
        strategy: Owns the sync.
        prepared: All modules that a loss may go through.
        optimizers: They step at the end of the window.
        size: Micro-batches of a full window, on each rank.
        clip: Applied between rescaling and the step.
        nominal: Weight of a usual micro-batch, equal on all ranks: the scale that is right without correction.
        default_weight: The weight of a micro-batch for which none is given.
        make_step: Runs clipping and step; given whether there is anything to step on. By default just that.
        ends: The modules whose optimizer step is over with this window.
    """

    def __init__(
        self,
        strategy: Strategy,
        prepared: Sequence[Prepared],
        optimizers: Sequence[Optimizer],
        *,
        size: int = 1,
        clip: Clip | None = None,
        nominal: float = 1.0,
        default_weight: Callable[[], Any] | None = None,
        make_step: Callable[[ManualWindow], bool] | None = None,
        ends: Sequence[Prepared] = (),
    ) -> None:
        if not isinstance(size, int) or size < 1:
            raise ConfigError(
                f"size={size!r} is not a number of micro-batches.", code="window-size", do="Use 1 or more."
            )
        self.strategy = strategy
        self.prepared = prepared
        self.optimizers = optimizers
        self.parameters = unique(p for optimizer in optimizers for p in parameters_of(optimizer))
        self.size = size
        self.clip = clip if clip is not None else Clip()
        self.nominal = nominal
        self.default_weight = default_weight
        self.make_step = make_step if make_step is not None else ManualWindow.clip_and_step
        self.ends = ends
        self.index = self.num_steps = 0
        self.is_idle = False
        self.weight: Any = 0
        self._block: AbstractContextManager[None] | None = None
        self._is_weighed = False

    @property
    def is_last(self) -> bool:
        """The present, or the next, block is the last of the window."""
        return self.index >= self.size - 1

    def __enter__(self) -> Self:
        if self._block is not None:
            raise WindowError(
                "A window was entered inside of itself.", code="window-nested", do="Use one block for a micro-batch."
            )
        self._block = self.strategy.gradient_sync(self.prepared, False)
        self._block.__enter__()
        self._is_weighed = False
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        block, self._block = self._block, None
        assert block is not None
        block.__exit__(kind, value, trace)
        if kind is not None:
            return
        self.index += 1
        if self.index >= self.size:
            self.step()

    def backward(self, loss: Tensor | None, weight: Any = None) -> None:
        """Run backward on a mean loss, for the parameters of this window's optimizers. Losses of one block add up.

        Ranks: any (nothing is sent).

        Args:
            loss: The mean over `weight` units, 0-dim. `None` adds nothing.
            weight: Units that the loss is a mean over: a number or a 0-dim tensor. Inside of a Trainer by default the
                samples of the micro-batch.

        Raises:
            StepOutputError: The loss is not a 0-dim tensor with a graph, or its weight is not known.
            WindowError: Outside of a block.
        """
        if self._block is None:
            raise WindowError(
                "window.backward was called outside of the window's block.",
                code="window-block",
                do="Write `with window:` around the forward and backward of each micro-batch.",
            )
        if weight is None and self.default_weight is not None:
            weight = self.default_weight()
        if weight is None:
            raise StepOutputError(
                "window.backward was given no weight.",
                code="loss-weight",
                do="Say how many samples, or tokens, the loss is a mean over: window.backward(loss, weight=len(x)).",
            )
        weight = read_weight(weight)
        if self.is_idle or not has_loss(loss, weight):
            return
        assert loss is not None
        if not self._is_weighed:
            self.weight = self.weight + weight
            self._is_weighed = True
        if self.strategy.loss_scale is not None:
            self.strategy.loss_scale.hold(self)
        loss = scale_loss(loss, weight, self.size * self.nominal)
        self.strategy.backward(loss, inputs=self.parameters)

    def step(self) -> bool:
        """Sync, rescale, clip, step and zero: done by the last block. By hand for a window that is to end early.

        Ranks: all.

        Returns:
            False if no step was made: all weights were 0, or scaled gradients overflowed.
        """
        self.sync()
        has_stepped = self.make_step(self)
        self.num_steps += has_stepped
        for optimizer in self.optimizers:
            zero_gradients(optimizer)
        self.index, self.weight = 0, 0
        if self.strategy.loss_scale is not None:
            self.strategy.loss_scale.release(self)
        if self.ends:
            self.strategy.end_step(self.ends)
        return has_stepped

    def sync(self) -> None:
        """Average the gradients over ranks, weighted, and undo the loss scaling. Where ranks step apart, on this rank.

        Ranks: all (one gradient sync, and one small message).
        """
        strategy = self.strategy
        num_ranks = strategy.collectives.world_size if strategy.traits.syncs_gradients else 1
        strategy.sync_gradients(self.parameters)
        if not strategy.traits.steps_apart:
            self.weight = sum_weights(self.weight, strategy.collectives, strategy.device)
        if not isinstance(self.weight, Tensor) and self.weight == 0:
            return
        for optimizer in self.optimizers:
            strategy.unscale(optimizer)
        multiply_gradients(self.parameters, num_ranks * self.size * self.nominal / self.weight)

    def clip_and_step(self) -> bool:
        """Clip and step; after `sync`. False if there is nothing to step on, or scaled gradients overflowed.

        Ranks: all.
        """
        if not isinstance(self.weight, Tensor) and self.weight == 0:
            return False
        if self.clip.max_norm is not None or self.clip.max_value is not None:
            self.strategy.clip_gradients(self.parameters, max_norm=self.clip.max_norm, max_value=self.clip.max_value)
        return self.strategy.step(self.optimizers)

    def flush(self) -> bool:
        """Make the step of a window that is not full, with the right scale: at the end of an epoch. Harmless otherwise.

        Ranks: all.

        Returns:
            False if there was nothing to step on.
        """
        return self.step() if self.index else False
