"""Where a run stands: monotone counters, stored, never derived."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class Progress:
    """The counters of one run. All but `epoch_*` only ever grow.

    Attributes:
        step: Optimizer steps done: one counter, also with several optimizers (`global_step`).
        micro_step: Micro-batches done on each rank; where ranks differ, on the one that has most of them.
        epoch: Epochs completed (`current_epoch` while one runs).
        samples: Samples consumed by all ranks together.
        epoch_micro_step: Micro-batches done in this epoch, on each rank.
        epoch_samples: Samples consumed in this epoch by all ranks: the position in the data.
        seconds: Training, validation included, on this rank's clock. No two runs have the same.
    """

    step: int = 0
    micro_step: int = 0
    epoch: int = 0
    samples: int = 0
    epoch_micro_step: int = 0
    epoch_samples: int = 0
    seconds: float = field(default=0.0, compare=False)

    def state_dict(self) -> dict[str, Any]:
        """All counters as plain data."""
        return asdict(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore every counter; a counter that the state lacks keeps its value."""
        for name, value in state.items():
            if name in self.__dataclass_fields__:
                setattr(self, name, value)
