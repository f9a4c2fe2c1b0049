"""The profiler that a user asked for."""

from __future__ import annotations

from drivetrain.base.errors import ConfigError
from drivetrain.profilers.advanced_profiler import AdvancedProfiler
from drivetrain.profilers.profiler import PassThroughProfiler, Profiler
from drivetrain.profilers.pytorch_profiler import PyTorchProfiler
from drivetrain.profilers.simple_profiler import SimpleProfiler

_NAMED: dict[str, type[Profiler]] = {
    "simple": SimpleProfiler, "advanced": AdvancedProfiler, "pytorch": PyTorchProfiler,
}  # fmt: skip


def make_profiler(profiler: Profiler | str | None) -> Profiler:
    """A profiler by its name, or the object that was given.

    Raises:
        ConfigError: It is neither.
    """
    if profiler is None:
        return PassThroughProfiler()
    if isinstance(profiler, Profiler):
        return profiler
    if profiler not in _NAMED:
        raise ConfigError(
            f"profiler={profiler!r} is not known.",
            code="profiler",
            do="Use 'simple', 'advanced', 'pytorch', or a drivetrain.profilers.Profiler.",
        )
    return _NAMED[profiler]()
