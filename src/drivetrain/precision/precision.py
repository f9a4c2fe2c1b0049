"""Number formats of a run, as data. Each strategy reads it in its own way."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from drivetrain.base.errors import ConfigError
from drivetrain.base.tree import map_tensors


@dataclass(frozen=True)
class Precision:
    """Which number format is used for what. `None` leaves it as it is.

    Attributes:
        name: As the user wrote it, e.g. `"bf16-mixed"`.
        parameter_dtype: Parameters and buffers are converted to it.
        compute_dtype: The step runs under autocast to it.
        reduce_dtype: Gradients are reduced in it, where a strategy can choose.
        buffer_dtype: Buffers, where a strategy can choose.
        is_loss_scaled: Losses are scaled up before backward, because float16 gradients underflow.
    """

    name: str = "32-true"
    parameter_dtype: torch.dtype | None = None
    compute_dtype: torch.dtype | None = None
    reduce_dtype: torch.dtype | None = None
    buffer_dtype: torch.dtype | None = None
    is_loss_scaled: bool = False

    @property
    def changes_nothing(self) -> bool:
        """Neither parameters nor the step are touched."""
        return self.parameter_dtype is None and self.compute_dtype is None

    def context_for(self, device_type: str) -> Callable[[], AbstractContextManager[Any]]:
        """What a step runs in, as a factory: autocast, or the default dtype of `*-true` formats, or nothing."""
        if self.compute_dtype is not None:
            dtype = self.compute_dtype
            return lambda: torch.autocast(device_type, dtype=dtype)
        if self.parameter_dtype is not None:
            dtype = self.parameter_dtype
            return lambda: default_dtype(dtype)
        return nullcontext

    def convert_input(self, batch: Any) -> Any:
        """Floating tensors of a batch in the parameters' dtype; everything else as it is."""
        dtype = self.parameter_dtype
        if dtype is None:
            return batch
        return map_tensors(lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor, batch)

    def convert_output(self, output: Any) -> Any:
        """What autocast left in its format, as float32; everything else as it is.

        A loss that is made of it outside of autocast would overflow when it is scaled: 2**16 is no float16.
        """
        dtype = self.compute_dtype
        if dtype is None:
            return output
        return map_tensors(lambda tensor: tensor.float() if tensor.dtype == dtype else tensor, output)


_PRECISIONS = {
    "32-true": Precision("32-true"),
    "64-true": Precision("64-true", parameter_dtype=torch.float64),
    "16-mixed": Precision("16-mixed", compute_dtype=torch.float16, is_loss_scaled=True),
    "bf16-mixed": Precision("bf16-mixed", compute_dtype=torch.bfloat16),
    "16-true": Precision("16-true", parameter_dtype=torch.float16),
    "bf16-true": Precision("bf16-true", parameter_dtype=torch.bfloat16),
}
_SHORT = {"32": "32-true", "64": "64-true", "16": "16-mixed", "bf16": "bf16-mixed"}


def make_precision(precision: Precision | str | int | None) -> Precision:
    """A `Precision` from its name.

    Args:
        precision: `"32-true"` (`32`, `None`), `"64-true"` (`64`), `"16-mixed"` (`16`), `"bf16-mixed"` (`"bf16"`),
            `"16-true"`, `"bf16-true"`, or a `Precision`.

    Raises:
        ConfigError: The name is not known.
    """
    if precision is None:
        return _PRECISIONS["32-true"]
    if isinstance(precision, Precision):
        return precision
    name = _SHORT.get(str(precision), str(precision))
    if name in _PRECISIONS:
        return _PRECISIONS[name]
    near = difflib.get_close_matches(name, _PRECISIONS, n=1)
    hint = f"Did you mean {near[0]!r}? " if near else ""
    raise ConfigError(
        f"precision={precision!r} is not known.", code="precision", do=f"{hint}Known: {', '.join(_PRECISIONS)}."
    )


def given_precision(precision: Precision | str | int | None, plugins: Any) -> Precision | str | int | None:
    """The number formats of a run, given by their own argument or among `plugins`.

    Args:
        precision: The argument of its own.
        plugins: A `Precision`, or a list of one; `None` or an empty list for none. Nothing else is taken.

    Raises:
        ConfigError: There is something else among them, or formats are given twice.
    """
    given = list(plugins) if isinstance(plugins, Sequence) and not isinstance(plugins, str) else [plugins]
    given = [one for one in given if one is not None]
    for one in given:
        if not isinstance(one, Precision):
            raise ConfigError(
                f"plugins holds {one!r}, which is no Precision.",
                code="plugins",
                do="Use strategy=... with a Strategy of your own for whatever is distributed; for other stores "
                "ModelCheckpoint(dirpath=url); for a cluster nothing: the variables of torchrun, Slurm and others are "
                "read.",
            )
    if len(given) + (precision is not None) > 1:
        names = [f"precision={precision!r}"] if precision is not None else []
        raise ConfigError(
            f"Number formats are given {len(given) + len(names)} times: "
            f"{', '.join([*names, *(f'{one.name} in plugins' for one in given)])}.",
            code="plugins",
            do="Give them once, as precision=....",
        )
    return given[0] if given else precision


@contextmanager
def default_dtype(dtype: torch.dtype) -> Any:
    """torch's default dtype for a block."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
