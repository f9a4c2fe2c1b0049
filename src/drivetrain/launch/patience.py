"""How long ranks may show nothing before the run is ended."""

from __future__ import annotations

from dataclasses import dataclass, fields

from drivetrain.base.errors import ConfigError


@dataclass(frozen=True)
class Patience:
    """Seconds after which a rank counts as stalled. `float("inf")` switches a clock off.

    A rank that waits for others is never the stalled one. Progress is a collective that was begun, a batch that was
    handed out, bytes of a checkpoint that were written or verified, and `note_progress()`.

    Attributes:
        heartbeat_s: The process of a rank is stopped (SIGSTOP), or gives no sign of life: noticed within this time.
        stall_s: Other ranks wait for it, and it makes no progress and uses neither processor nor disk.
        busy_s: Other ranks wait for it, and it computes without any progress: an endless loop, or something slow.
    """

    heartbeat_s: float = 5.0
    stall_s: float = 60.0
    busy_s: float = 600.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
                raise ConfigError(
                    f"Patience({field.name}={value!r}) is not a number of seconds.",
                    code="stall-patience",
                    do='Use a number above 0; float("inf") switches the clock off.',
                )


DEFAULT_PATIENCE = Patience()
