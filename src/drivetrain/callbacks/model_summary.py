"""A table of a module's layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from drivetrain.loop.callback import Callback


@dataclass(frozen=True)
class LayerSummary:
    """One layer.

    Attributes:
        name: Its name in the module.
        kind: Its class.
        num_parameters: All of them, each counted once in the layer.
        num_trainable: Those that need gradients.
        is_training: It is in train mode.
    """

    name: str
    kind: str
    num_parameters: int
    num_trainable: int
    is_training: bool


@dataclass(frozen=True)
class Summary:
    """A module.

    Attributes:
        layers: Down to the depth asked for.
        num_parameters: Of the whole module, each counted once, also where layers share it.
        num_trainable: Those that need gradients.
        size_bytes: Of parameters and buffers.
        has_lazy: Parameters that get their shape with the first batch are not counted.
    """

    layers: tuple[LayerSummary, ...]
    num_parameters: int
    num_trainable: int
    size_bytes: int
    has_lazy: bool = False


def summarize(module: nn.Module, max_depth: int = 1) -> Summary:
    """Count a module's parameters, by layer.

    Args:
        module: Any.
        max_depth: How deep layers are listed; -1 for all, 0 for none.
    """
    layers = [
        LayerSummary(name, type(one).__name__, *_count(one), one.training)
        for name, one in module.named_modules()
        if name and (max_depth == -1 or name.count(".") < max_depth)
    ]
    tensors = [*module.parameters(), *module.buffers()]
    sizes = [tensor.numel() * tensor.element_size() for tensor in tensors if not is_lazy(tensor)]
    return Summary(tuple(layers), *_count(module), sum(sizes), any(is_lazy(tensor) for tensor in tensors))


def _count(module: nn.Module) -> tuple[int, int]:
    parameters = list(module.parameters())
    return sum(map(_numel, parameters)), sum(_numel(one) for one in parameters if one.requires_grad)


def _numel(tensor: Tensor) -> int:
    return 0 if is_lazy(tensor) else tensor.numel()


class ModelSummary(Callback):
    """Prints a table of the module's layers once, on rank 0, when training begins.

    Args:
        max_depth: How deep layers are listed; -1 for all, 0 for no table.
    """

    def __init__(self, max_depth: int = 1) -> None:
        self.max_depth = max_depth

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Print."""
        if trainer.is_global_zero and self.max_depth != 0:
            show_summary(summarize(pl_module, self.max_depth))


RichModelSummary = ModelSummary


def show_summary(summary: Summary, *, file: Any = None) -> None:
    """Print a summary as a table.

    Args:
        summary: What to print.
        file: Where to; by default standard error.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("name", "type", "parameters", "trainable", "mode"):
        table.add_column(title, justify="right" if title in ("parameters", "trainable") else "left")
    for layer in summary.layers:
        numbers = (f"{layer.num_parameters:,}", f"{layer.num_trainable:,}")
        table.add_row(Text(layer.name), Text(layer.kind), *numbers, "train" if layer.is_training else "eval")
    console = Console(file=file, stderr=file is None)
    if summary.layers:
        console.print(table)
    frozen = summary.num_parameters - summary.num_trainable
    lazy = "; lazy parameters are not counted yet" if summary.has_lazy else ""
    console.print(
        f"{summary.num_parameters:,} parameters ({summary.num_trainable:,} trainable, {frozen:,} frozen), "
        f"{summary.size_bytes / 1e6:.3g} MB{lazy}",
        highlight=False,
        soft_wrap=True,
    )
