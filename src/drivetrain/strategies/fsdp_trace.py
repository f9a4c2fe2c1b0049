"""Which collectives a micro-batch issues, in which order: written down while it runs, so that an idle rank can follow.

A block is one micro-batch, of one or several modules. In each block every rank either runs it, or follows those that
do. While a kind of block is run for the first time, each event is also put into the store of the process group, before
the collective is issued: a rank that is idle from the start reads there what comes next. Afterwards every rank has its
own record, and nothing is put there.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, NamedTuple

from drivetrain.base.errors import ModelError, ProcessGroupError

Kind = Literal["forward", "backward", "reduce", "scatter", "plain"]
Key = tuple[str, ...]

_END = "end"
PLAIN = -1  # in the place of a part's number: what is not sharded
Place = tuple[int, int]  # the numbers of a prepared module and of its part
_POLL_S = 0.001


class Event(NamedTuple):
    """One collective.

    Attributes:
        kind: `"forward"` and `"backward"` gather parameters; `"reduce"` reduces gradients over all ranks, `"scatter"`
            over those of a replica only; `"plain"` reduces the gradients that are not sharded.
        module: The number of the prepared module.
        part: The number of its part, or `PLAIN`.
    """

    kind: Kind
    module: int
    part: int


class _Record(NamedTuple):
    """A whole block: its events, and the parts whose gradients it left to be reduced later."""

    events: tuple[Event, ...]
    left: frozenset[Place]


class Trace:
    """The record of a rank.

    Attributes:
        left: Parts with gradients that are still to be reduced, here or on other ranks.

    Args:
        store: Shared by all ranks, and nobody else's names begin with `prefix`.
        prefix: Of the names in the store.
        rank: This rank.
        world_size: Ranks.
        timeout_s: How long an idle rank waits for the next event.
    """

    def __init__(self, store: Any, prefix: str, *, rank: int, world_size: int, timeout_s: float) -> None:
        self._store = store
        self._prefix = prefix
        self.rank, self.world_size = rank, world_size
        self._timeout_s = timeout_s
        self.left: set[Place] = set()
        self._known: dict[Key, _Record] = {}
        self._counts: Counter[Key] = Counter()
        self._depth = 0
        self._key: Key = ()
        self._events: list[Event] = []
        self._is_told = self._is_whole = False
        self._followed: _Record | None = None

    @property
    def is_open(self) -> bool:
        """A block runs."""
        return self._depth > 0

    def begin(self, key: Key) -> None:
        """Begin a block of some kind; one inside of another is a part of it."""
        self._depth += 1
        if self._depth > 1:
            return
        self._key, self._events = key, []
        self._counts[key] += 1
        self._is_told = key not in self._known
        self._is_whole, self._followed = True, None

    def end(self, left: Callable[[], Iterable[Place]] | None = None) -> None:
        """End it, and keep what was seen.

        Args:
            left: Gives the parts whose gradients wait to be reduced; `None` after an exception.
        """
        self._depth -= 1
        if self._depth or left is None or not self._events or not self._is_whole:
            return
        record = self._followed or _Record(tuple(self._events), frozenset(left()))
        if self._is_told:
            self._tell(len(self._events), " ".join([_END, *(f"{module}.{part}" for module, part in record.left)]))
        self._known[self._key] = record
        self.left |= record.left

    def note(self, kind: Kind, module: int, part: int) -> None:
        """A collective is about to be issued."""
        if kind in ("reduce", "plain"):
            self.left.discard((module, part))
        if self._depth:
            if self._is_told:
                self._tell(len(self._events), f"{kind} {module} {part}")
            self._events.append(Event(kind, module, part))

    def follow(self, otherwise: list[Event]) -> Iterator[Event]:
        """What the other ranks still issue in this block. Whoever takes it issues the same before the next is given.

        Args:
            otherwise: What is left to do when all ranks are idle and none has a record.

        Raises:
            ModelError: The beginning of the block is not that of the record.
            ProcessGroupError: Nothing came in time.
        """
        known = self._known.get(self._key)
        if known is None:
            yield from self._follow_live(otherwise)
            return
        done = len(self._events)
        if tuple(self._events) != known.events[:done]:
            raise ModelError(
                "The parts of the module ran in another order than in the micro-batch before, and this one has no loss "
                "on this rank: what the other ranks do in their backward is not known here.",
                code="idle-order",
                do="Run the parts in the same order in each micro-batch, or return a loss in each of them.",
                rank=(self.rank, self.world_size),
            )
        self._followed = known
        yield from known.events[done:]

    def _follow_live(self, otherwise: list[Event]) -> Iterator[Event]:
        self._is_told = False
        num_idle = self._store.add(self._name("idle"), 1)
        while True:
            done = len(self._events)
            text = self._next_text(done, num_idle)
            if text is None:
                self._is_whole = False
                yield from otherwise
                return
            kind, *numbers = text.split()
            if kind == _END:
                left = frozenset((int(place.split(".")[0]), int(place.split(".")[1])) for place in numbers)
                self._followed = _Record(tuple(self._events), left)
                return
            yield Event(kind, int(numbers[0]), int(numbers[1]))  # type: ignore[arg-type]
            assert len(self._events) == done + 1, f"{text!r} was followed by {self._events[done:]}"

    def _next_text(self, index: int, num_idle: int) -> str | None:
        """The next event; `None` when all ranks are idle, so that there is none."""
        name = self._name(str(index))
        deadline = time.monotonic() + self._timeout_s
        while not self._store.check([name]):
            if num_idle == self.world_size and not self._store.check([name]):
                return None
            if time.monotonic() > deadline:
                raise ProcessGroupError(
                    f"No other rank began collective {index} of its micro-batch within {self._timeout_s} s.",
                    code="idle-timeout",
                    do="All ranks must run equally many micro-batches: see which of them waits, and where.",
                    rank=(self.rank, self.world_size),
                )
            time.sleep(_POLL_S)
            num_idle = self._store.add(self._name("idle"), 0)
        text: str = self._store.get(name).decode()
        return text

    def _tell(self, index: int, text: str) -> None:
        self._store.set(self._name(str(index)), text)

    def _name(self, what: str) -> str:
        return f"{self._prefix}/{'.'.join(self._key)}/{self._counts[self._key]}/{what}"
