"""What is done to a run: one line for each fault, such as `kill rank=1 attempt=0 step=137 place=on_after_backward`."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drivetrain import Callback

PLACES = (
    "on_train_batch_start", "on_before_backward", "on_after_backward", "on_before_optimizer_step", "on_step_end",
)  # fmt: skip


@dataclass(frozen=True)
class Fault:
    """One fault of one rank.

    Attributes:
        kind: `"kill"` (SIGKILL), `"exit"` (`os._exit(0)`), `"raise"`, or `"stop"`: the run is asked to end.
        rank: Whose.
        step: Optimizer steps done when it comes; with `is_after` counted from where the attempt began.
        place: The hook in which it comes.
        attempt: How often the ranks had been started again by then.
        is_after: See `step`.
    """

    kind: str
    rank: int
    step: int
    place: str = "on_after_backward"
    attempt: int = 0
    is_after: bool = False

    def __str__(self) -> str:
        step = f"step={'+' if self.is_after else ''}{self.step}"
        return f"{self.kind} rank={self.rank} attempt={self.attempt} {step} place={self.place}"

    @classmethod
    def parse(cls, line: str) -> Fault:
        """The fault that a line describes."""
        kind, *words = line.split()
        parts = dict(word.split("=") for word in words)
        step = parts["step"]
        return cls(kind, int(parts["rank"]), int(step), parts["place"], int(parts["attempt"]), step.startswith("+"))


def ask(directory: Path, fault: Fault) -> None:
    """Have a rank that runs do it to itself, in the micro-batch that comes next."""
    hidden = directory / ".asked"
    hidden.write_text(str(fault), encoding="utf-8")
    hidden.rename(directory / f"asked_{fault.rank}")


class FaultInjector(Callback):
    """Does what the lines say, and what it is asked for meanwhile, in the rank in which it runs."""

    def __init__(self, lines: Sequence[str], log: Any) -> None:
        self.faults = [Fault.parse(line) for line in lines]
        self.log = log
        self.due: list[Fault] = []
        self.first_step = 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Look for what is meant for this rank in this attempt."""
        self.first_step = trainer.global_step
        attempt = trainer.strategy.cluster.restart_count
        self.due = [one for one in self.faults if one.rank == trainer.global_rank and one.attempt == attempt]

    def _at(self, place: str, trainer: Any) -> None:
        for fault in self.due:
            done = trainer.global_step - (self.first_step if fault.is_after else 0)
            if fault.place == place and done >= fault.step:
                self._do(fault, trainer)

    def _do(self, fault: Fault, trainer: Any) -> None:
        self.log.write("fault", line=str(fault), step=trainer.global_step)
        self.due.remove(fault)
        if fault.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif fault.kind == "exit":
            os._exit(0)
        elif fault.kind == "raise":
            raise RuntimeError("a fault of the test")
        else:
            trainer.should_stop = True

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        asked = self.log.directory / f"asked_{trainer.global_rank}"
        if asked.exists():
            self.due.append(Fault.parse(asked.read_text(encoding="utf-8")))
            asked.unlink()
        self._at("on_train_batch_start", trainer)

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        self._at("on_before_backward", trainer)

    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        self._at("on_after_backward", trainer)

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        self._at("on_before_optimizer_step", trainer)

    def on_step_end(self, trainer: Any, pl_module: Any) -> None:
        self._at("on_step_end", trainer)
