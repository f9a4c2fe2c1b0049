"""What has to hold after a trial: I1 to I7. Each check raises an `AssertionError` that begins with its name."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from drivetrain.checkpoint.verify import list_checkpoints, problems
from drivetrain.testing.fixtures import PRIME_LENGTH
from tests.faults.trial import End

BOUND_NAME = "FAULTS_FIRST_STEP_S"


def first_step_s() -> float:
    """How long the first new step may take to come after a fault (I4): more where a machine is shared."""
    return float(os.environ.get(BOUND_NAME, "10"))


@dataclass(frozen=True)
class Record:
    """What the ranks of a run have noted, in the order of time."""

    lines: list[dict[str, Any]]

    @classmethod
    def read(cls, directory: Path) -> Record:
        """The notes of all ranks; a line that a killed rank has written in part is left out."""
        lines = []
        for path in sorted(directory.glob("notes_*.jsonl")):
            for text in path.read_text(encoding="utf-8").splitlines():
                try:
                    lines.append(json.loads(text))
                except ValueError:
                    continue
        return cls(sorted(lines, key=lambda line: line["time"]))

    def of(self, kind: str) -> list[dict[str, Any]]:
        """The lines of one kind."""
        return [line for line in self.lines if line["kind"] == kind]

    def up_to(self, step: int) -> Record:
        """What was noted until that many steps were done."""
        return Record([
            line for line in self.lines
            if line["step"] < step or (line["step"] == step and line["kind"] == "step")
        ])  # fmt: skip

    def attempts(self) -> list[tuple[str, int]]:
        """The attempts in which training began, in order."""
        return list(dict.fromkeys((line["run"], line["attempt"]) for line in self.of("begin")))

    def begins(self) -> list[int]:
        """The step from which each attempt went on."""
        steps = {(line["run"], line["attempt"]): line["step"] for line in self.of("begin")}
        return [steps[attempt] for attempt in self.attempts()]

    def windows(self) -> dict[int, tuple[int, list[int], float]]:
        """Epoch, samples in their global order and summed loss of each step, of the attempt that made it count."""
        attempts = self.attempts()
        begins = dict(zip(attempts, self.begins(), strict=True))
        parts: dict[tuple[int, tuple[str, int]], dict[int, list[dict[str, Any]]]] = defaultdict(
            lambda: defaultdict(list)
        )
        for line in self.of("samples"):
            parts[line["step"], (line["run"], line["attempt"])][line["rank"]].append(line)
        found = {}
        for step in sorted({step for step, _ in parts}):
            attempt = [one for one in attempts if begins[one] <= step and (step, one) in parts][-1]
            ranks = parts[step, attempt]
            rounds = max(map(len, ranks.values()))
            ordered = [
                ranks[rank][index] for index in range(rounds) for rank in sorted(ranks) if index < len(ranks[rank])
            ]
            ids = [number for line in ordered for number in line["ids"]]
            found[step] = (ordered[0]["epoch"], ids, sum(line["loss"] for line in ordered))
        return found

    def longest_wait_s(self) -> float:
        """The longest time from a fault that ended an attempt to the first step of the next."""
        waits = [0.0]
        steps = self.of("step")
        for fault in self.of("fault"):
            own = (fault["run"], fault["attempt"])
            later = [
                one["time"] for one in steps if one["time"] > fault["time"] and (one["run"], one["attempt"]) != own
            ]
            if later:
                waits.append(min(later) - fault["time"])
        return max(waits)


def check_digests(found: Record, reference: Record) -> None:
    """I1: after each step, in each attempt and on each rank, all state is that of the uninterrupted run."""
    expected = {(line["rank"], line["step"]): line["digest"] for line in reference.of("step")}
    for line in found.of("step"):
        place = (line["rank"], line["step"])
        assert line["digest"] == expected[place], f"I1: other state on rank {place[0]} after step {place[1]}"


def check_ends(found: Record, reference: Record) -> None:
    """I1: every rank ends at the step of the uninterrupted run."""
    ends = {line["rank"]: line["step"] for line in found.of("end")}
    assert ends == {line["rank"]: line["step"] for line in reference.of("end")}, f"I1: ended at {ends}"


def check_equal_to(found: Path, reference: Path, *, tolerance: float) -> None:
    """I1, on other numbers of ranks: losses of all steps and the final weights are those of the reference."""
    ours, theirs = Record.read(found).windows(), Record.read(reference).windows()
    for step, (_, ids, loss) in theirs.items():
        difference = abs(ours[step][2] - loss) / len(ids)
        assert difference < tolerance, f"I1: the loss of step {step} differs by {difference}"
    left, right = (torch.load(path / "weights_0.pt", weights_only=True) for path in (found, reference))
    worst = max((left[name] - right[name]).abs().max().item() for name in right)
    assert worst < tolerance, f"I1: weights differ by {worst}"


def check_samples(found: Record, reference: Record) -> None:
    """I2: each step takes the samples of the reference, in its order; each sample once in an epoch."""
    ours, theirs = found.windows(), reference.windows()
    assert ours.keys() == theirs.keys(), f"I2: steps {sorted(ours.keys() ^ theirs.keys())} are too much or missing"
    epochs: dict[int, list[int]] = defaultdict(list)
    for step in theirs:
        assert ours[step][:2] == theirs[step][:2], f"I2: other samples in step {step}: {ours[step]}, not {theirs[step]}"
        epochs[ours[step][0]] += ours[step][1]
    for epoch, ids in epochs.items():
        assert len(set(ids)) == len(ids), f"I2: a sample came twice in epoch {epoch}"
        assert epoch == max(epochs) or len(ids) == PRIME_LENGTH, f"I2: epoch {epoch} has {len(ids)} samples"


def check_repeated(found: Record, *, most: int) -> None:
    """I3: after each start again, no more steps are repeated than lie between two checkpoints."""
    attempts, begins = found.attempts(), found.begins()
    done = 0
    for attempt, begin in zip(attempts, begins, strict=True):
        assert done - begin <= most, f"I3: {done - begin} steps were made again, after {done}"
        steps = [line["step"] for line in found.of("step") if (line["run"], line["attempt"]) == attempt]
        done = max([done, *steps])


def check_wait(found: Record) -> None:
    """I4: the first new step comes soon enough after a fault."""
    waited_s = found.longest_wait_s()
    print(f"{waited_s:.1f} s to the next step")
    assert waited_s <= first_step_s(), f"I4: {waited_s:.1f} s from a fault to the next step"


def check_end(end: End, *, exit_code: int, says: list[str]) -> None:
    """I6: the exit code, and lines on the console in this order."""
    assert end.exit_code == exit_code, f"I6: exit code {end.exit_code} instead of {exit_code}:\n{end.console[-3000:]}"
    place = 0
    for text in says:
        at = end.console.find(text, place)
        assert at >= 0, f"I6: {text!r} is not on the console:\n{end.console[-3000:]}"
        place = at


def check_checkpoints(directory: Path) -> None:
    """I7: every checkpoint that is visible verifies, and there is one."""
    paths = list_checkpoints(directory / "kept")
    assert paths, "I7: there is no checkpoint"
    wrong = {path.name: found for path in paths if (found := problems(path, is_thorough=True))}
    assert not wrong, f"I7: {wrong}"


def check_exact(directory: Path, reference: Path, *, save_every: int) -> None:
    """I1 to I4 and I7, for a run on as many ranks as its reference."""
    found = Record.read(directory)
    assert found.of("fault"), "no fault came"
    check_went_on(directory, reference, save_every=save_every)
    check_wait(found)


def check_went_on(directory: Path, reference: Path, *, save_every: int) -> None:
    """I1 to I3 and I7: what must hold of a run that was started again, whoever did it."""
    found, expected = Record.read(directory), Record.read(reference)
    check_digests(found, expected)
    check_ends(found, expected)
    check_samples(found, expected)
    check_repeated(found, most=save_every)
    check_checkpoints(directory)
