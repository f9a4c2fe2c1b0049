"""What a run iterates over: a user's loader, sharded, positioned, and on the device."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from torch import nn
from torch.utils.data import DataLoader

from drivetrain.base.errors import DataError
from drivetrain.base.pulse import PULSE
from drivetrain.base.rng import capture_rng, mix_seed, restore_rng
from drivetrain.data.combined_loader import CombinedBatches
from drivetrain.data.copies import Copies
from drivetrain.data.data_shard import DataShard
from drivetrain.data.global_batches import GlobalBatch, GlobalBatches
from drivetrain.data.order import length_of, tell_parts
from drivetrain.data.own_batches import OwnBatches, can_begin_anywhere, with_own_batches
from drivetrain.data.replay import begin_anew, has_lasting_workers, read_past, stateful_part
from drivetrain.data.shard_loader import batches_of, own_batches_of, shard_loader
from drivetrain.data.unrecorded import unrecorded
from drivetrain.data.worker_seeds import SeededStream


class Loader:
    """A loader of this rank.

    Each `iter` gives one epoch: the next one, or the one that `set_epoch` chose. Other attributes are the user's own
    loader's.

    Args:
        source: The user's loader, or any iterable of batches that can be iterated over again; it is not changed.
        shard: Which rank, of how many.
        seed: Of the data order; equal on all ranks.
        training: Its data set hears of each new epoch; in evaluation only of epochs that are set, since training may
            read the same one.
        move: Applied to each batch as it is handed out; an attribute, too.
        hands_off: Iterate over the user's own object, unsharded.
        pins: Put batches into pinned memory.
        global_batch: Cut batches from it, instead of those of the source's own size.
        drops_last: Leave out a last global batch that is not full.

    Attributes:
        source: The user's loader.
        epoch: The epoch that the next `iter` gives.
        global_batch: What batches are cut from; `None` for those of the source's own size.
        finder: Splits micro-batches that do not fit into memory, where that was asked for.
        plan_is_said: The plan was printed.
        plan: How the samples of a step are cut, also where they are whole batches of the source.
        holds_epoch: Each epoch is read like the first one: the same batches in the same order.
        copies: Brings batches to the device beside what it computes; `None` for as they are handed out.
        after: Applied to each batch that was brought by `copies`, as it is handed out.
        is_even: All ranks were found to hold the same number of batches, though they shard themselves.
        batch_size: Nominal samples of a micro-batch; `None` if unknown.
        num_batches: Batches of this rank; `None` if unknown.
        num_rounds: Micro-batches of the rank that has most; `None` where drivetrain does not shard.
        num_samples: Samples of all ranks together; `None` if unknown.

    Raises:
        DataError: It is no loader, cannot be sharded, or is empty.
    """

    def __init__(
        self,
        source: Any,
        shard: DataShard,
        *,
        seed: int,
        training: bool = True,
        move: Callable[[Any], Any] | None = None,
        hands_off: bool = False,
        pins: bool = False,
        global_batch: GlobalBatch | None = None,
        drops_last: bool = False,
    ) -> None:
        check_loader(source)
        self.source = source
        self.training = training
        self.epoch = 0
        self.is_even = self.holds_epoch = False
        self._shard = shard
        self._seed = seed
        self.move = move
        self.copies: Copies | None = None
        self.after: Callable[[Any], Any] | None = None
        is_own = isinstance(source, DataLoader) and not hands_off
        self.global_batch = self.plan = global_batch
        self.finder: Any = None
        self.plan_is_said = False
        self._loader: Iterable[Any] = source
        if is_own:
            self._loader = shard_loader(
                source, shard, seed=seed, pins=pins, global_batch=global_batch, drops_last=drops_last
            )
        self._batches = batches_of(self._loader) if is_own else None
        self._own: OwnBatches | None = own_batches_of(self._loader) if is_own else None
        self._part = stateful_part(self._loader) if self._batches is None and training else None
        self._told: int | None = None
        self._has_begun = False
        self._has_loaded = False  # a state that may be that of the end of an epoch
        self._begin_rng: dict[str, Any] | None = None  # from which an epoch was begun that can only be read again
        self._saved: dict[str, Any] | None = None
        self.batch_size: int | None = (
            self._batches.batch_size if self._batches is not None else getattr(source, "batch_size", None)
        )
        if self._batches is None and shard.count == 1 and self.num_batches == 0:
            raise DataError("The loader holds no batch.", code="no-batches", do="Give it at least one.")

    @property
    def seed(self) -> int:
        """Of the data order."""
        return self._seed

    @seed.setter
    def seed(self, seed: int) -> None:
        self._seed = seed
        if self._batches is not None:
            self._batches.seed = seed
        if self._own is not None:
            self._own.seed = mix_seed(seed, self._shard.index)
        if isinstance(self.source, CombinedBatches):
            for part, own in zip(self.source.parts, part_seeds(seed, len(self.source.parts)), strict=True):
                part.seed = own

    @property
    def num_batches(self) -> int | None:
        """Batches of this rank; `None` if unknown."""
        return length_of(self._loader)

    @property
    def num_rounds(self) -> int | None:
        """Micro-batches of the rank that has most; this one's on one rank; `None` if unknown."""
        if self._batches is not None:
            return self._batches.num_rounds
        return self.num_batches if self._shard.count == 1 or self.is_even else None

    @property
    def can_position(self) -> bool:
        """`set_position` works: an epoch can begin anywhere without reading what comes before."""
        return self._batches is not None

    @property
    def num_samples(self) -> int | None:
        """Samples of an epoch on all ranks together; `None` if unknown."""
        return self._batches.num_samples if self._batches is not None else None

    @property
    def num_full_rounds(self) -> int:
        """Rounds at the beginning of an epoch in which every rank has `batch_size` samples, as far as that is known."""
        return self._batches.num_full_rounds if self._batches is not None else 0

    def window_rounds(self, index: int) -> int | None:
        """Rounds of the window that begins with a round; `None` where windows are not cut from a global batch."""
        return self._batches.window_rounds(index) if isinstance(self._batches, GlobalBatches) else None

    def round_size(self, index: int) -> int | None:
        """Samples of all ranks in a round; `None` if unknown."""
        return self._batches.round_size(index) if self._batches is not None else None

    def local_size(self, index: int) -> int | None:
        """This rank's samples in a round; `None` if unknown."""
        return self._batches.local_size(index) if self._batches is not None else None

    def num_local(self, start: int, rounds: int) -> int:
        """This rank's micro-batches in so many rounds: in the last of them it may have no samples."""
        while rounds and self.local_size(start + rounds - 1) == 0:
            rounds -= 1
        return rounds

    def rounds_before(self, num_samples: int) -> int | None:
        """Rounds, as this run cuts them, that hold the first so many samples of an epoch; `None` if unknown.

        After a resume on another number of ranks this says where in the epoch the run is.
        """
        return self._batches.rounds_before(num_samples) if self._batches is not None else None

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next `iter`.

        Reaches samplers and data sets that have a `set_epoch`: wrapped ones, and those in workers, too.
        """
        self.epoch = self._told = epoch = 0 if self.holds_epoch else epoch
        tell_parts(self.source, epoch)
        if self._batches is not None:
            self._batches.set_epoch(epoch)
            self._batches.told_epoch = epoch
        if self._own is not None:
            self._own.told_epoch = epoch

    def set_position(self, num_samples: int) -> None:
        """Let the next `iter` begin after so many samples of its epoch, on all ranks together."""
        if self._batches is not None:
            self._advance()
            self._batches.set_position(num_samples)

    def index_batches(self) -> list[list[Any]] | None:
        """Which samples the batches of the next `iter` hold, on this rank; `None` where drivetrain does not shard."""
        if self._batches is None:
            return None
        batches = copy.copy(self._batches)
        batches.set_epoch(self.epoch)
        return [list(one) for one in batches]

    def samples_text(self, index: int) -> str:
        """Which samples of the data set a micro-batch of this rank holds in this epoch, in words; empty if unknown."""
        found = self._batches.batch_at(index) if self._batches is not None else None
        return "" if found is None else f"samples {', '.join(map(str, found))}"

    def note_place(self, error: Exception, index: int) -> None:
        """Add to an error which micro-batch was read when it came."""
        epoch = self._batches.epoch if self._batches is not None else self._told
        known = [f"micro-batch {index}", *([f"epoch {epoch}"] if epoch is not None else [])]
        samples = self.samples_text(index)
        rank = f" on rank {self._shard.index} of {self._shard.count}" if self._shard.count > 1 else ""
        error.add_note(f"It came while {' of '.join(known)} was read{rank}{': ' if samples else ''}{samples}.")

    def __iter__(self) -> Iterator[Any]:
        return self.iterate_from(0)

    def iterate_from(self, num_batches: int) -> Iterator[Any]:
        """The rest of an epoch, of which this rank has consumed so many batches before it was resumed.

        Where `set_position` has said where to begin, or a state was loaded that says it, or indices can be left out,
        none of them is read. The random state is that of the moment, not of the beginning of the epoch.
        """
        self._advance()
        if self._own is not None:
            self._own.epoch, self._own.first = self.epoch, num_batches
        dataset = getattr(self._loader, "dataset", None)
        if isinstance(dataset, SeededStream) and not self._has_begun:
            dataset.begin(self.epoch, is_told=self._told is not None)
        self.epoch += not self.holds_epoch
        saved, self._saved = self._saved, None
        if num_batches == 0 and saved is None:
            batches = self._begin()
        else:
            batches = self._go_on(saved or {}, num_batches)
        batches = unrecorded(batches)
        if self.copies is None or self.move is None:
            return map(self._hand_out, batches)
        return map(self._hand_out_copied, self.copies.of(batches, self.move, is_ahead=self._can_read_ahead))

    def _hand_out(self, batch: Any) -> Any:
        PULSE.count += 1
        return batch if self.move is None else self.move(batch)

    def _hand_out_copied(self, batch: Any) -> Any:
        PULSE.count += 1
        return batch if self.after is None else self.after(batch)

    @property
    def _can_read_ahead(self) -> bool:
        """To read a batch changes nothing in this process: position and random state are those of consumed ones."""
        return self._batches is not None and getattr(self._loader, "num_workers", 0) > 0

    def wrap_move(self, wrap: Callable[[Callable[[Any], Any]], Callable[[Any], Any]]) -> None:
        """Put another function around what brings batches to the device, if anything does."""
        if self.move is not None:
            self.move = wrap(self.move)
        if self.after is not None:
            self.after = wrap(self.after)

    def _begin(self) -> Iterator[Any]:
        if self.training and self._batches is None and self._own is None and self._part is None:
            self._begin_rng = capture_rng()
        self._has_begun = True
        had_loaded, self._has_loaded = self._has_loaded, False
        return begin_anew(self._loader) if had_loaded else iter(self._loader)

    def _go_on(self, saved: dict[str, Any], num_batches: int) -> Iterator[Any]:
        now, own = capture_rng(), saved.get("own")
        # Whoever draws a seed for workers did it before the random state that is in force now.
        is_drawn = num_batches > 0 or (saved.get("has_begun", False) and has_lasting_workers(self._loader))
        if own is not None and self._part is not None:
            self._part.load_state_dict(own)
            self._has_loaded = True
            batches = iter(self._loader) if num_batches else self._begin()
        elif num_batches == 0:
            batches = self._begin()
        else:
            batches = self._leave_out(saved, num_batches)
        self._has_begun = True
        if is_drawn:
            restore_rng(now)
        return batches

    def _leave_out(self, saved: dict[str, Any], num_batches: int) -> Iterator[Any]:
        if self._batches is not None or self._own is not None:
            return iter(self._loader)
        if saved.get("rng") is not None:
            self._begin_rng = saved["rng"]
            restore_rng(saved["rng"])
        if can_begin_anywhere(self._loader):
            copied, rest = with_own_batches(self._loader, self._shard, seed=self._seed, carries_seeds=False)  # type: ignore[arg-type]
            rest.first = num_batches
            return iter(copied)
        batches = iter(self._loader)
        read_past(batches, num_batches)
        return batches

    def close(self) -> None:
        """End workers that stay over epochs; the next `iter` starts others. Those of the user's own loader stay.

        Workers that are left to the garbage collector may miss the word, and are killed after 5 s each (torch 2.13).
        """
        if self._loader is not self.source:
            self._loader.__dict__["_iterator"] = None
        if isinstance(self.source, CombinedBatches):
            for part in self.source.parts:
                part.close()

    def state_dict(self) -> dict[str, Any]:
        """Where this rank's loader stands, beside the samples that were consumed: between two batches, plain data."""
        if self._saved is not None:  # nothing was read since it was loaded
            return {**self._saved, "epoch": self.epoch}
        return {
            "epoch": self.epoch,
            "has_begun": self._has_begun,
            "rng": self._begin_rng,
            "own": self._part.state_dict() if self._part is not None and self._has_begun else None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next epoch, or the rest of this one, go on from there."""
        self.epoch, self._saved = state["epoch"], state

    def take_place_of(self, other: Loader) -> None:
        """Go on where another loader of the same run stands, which is not read any more."""
        self.seed, self.finder, self.plan_is_said = other.seed, other.finder, other.plan_is_said
        self.epoch, self._saved = other.epoch, other._saved
        other.close()

    def _advance(self) -> None:
        """Go to the epoch after the last, if none was set. What drivetrain does not shard is left to its owner."""
        if self._batches is None or self._told == self.epoch:
            return
        self._told = self.epoch
        self._batches.set_epoch(self.epoch)
        if self.training:
            tell_parts(self.source, self.epoch)
            self._batches.told_epoch = self.epoch

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if "source" not in self.__dict__:  # while it is copied
            raise AttributeError(name)
        return getattr(self.source, name)


def part_seeds(seed: int, num_parts: int) -> list[int]:
    """The seeds of loaders that are read side by side: those of equal lengths are not shuffled alike."""
    return [seed if index == 0 else mix_seed(seed, index) for index in range(num_parts)]


def check_loader(source: Any) -> None:
    """Refuse what cannot be iterated over.

    Raises:
        DataError: It is text, a module, or has no `__iter__`; or it holds loaders instead of batches.
    """
    is_several = isinstance(source, (list, tuple)) and any(isinstance(one, DataLoader) for one in source)
    if isinstance(source, (str, bytes, Mapping, nn.Module)) or is_several or not hasattr(source, "__iter__"):
        raise DataError(
            f"A loader was expected; this is a {type(source).__name__}{' of loaders' if is_several else ''}.",
            code="not-a-loader",
            do="Pass a torch DataLoader, any iterable of batches, or several loaders as a CombinedLoader.",
        )
