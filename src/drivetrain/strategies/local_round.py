"""A round: what a rank does alone between two syncs of parameters, and how it is saved.

state.pt        a replica's state, as every strategy reads it: the mean over ranks of the parameters, and the
                buffers and optimizers of rank 0
round.pt        what is equal on all ranks: steps since the last sync, the anchor and its outer optimizer
local_<r>.pt    of each rank: its own parameters and buffers, and its own optimizers (but for rank 0's)
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from drivetrain.base.errors import ConfigError, ModelError
from drivetrain.base.tree import map_tensors
from drivetrain.checkpoint.read import read_tensors
from drivetrain.checkpoint.state_files import StateFiles
from drivetrain.comm.collectives import Collectives
from drivetrain.strategies.flat_message import average_in_place, broadcast_in_place
from drivetrain.strategies.prepared import Prepared
from drivetrain.strategies.replicated_state import add_replica, numbered, put_back, read_replica, replica_state

ROUND_FILE = "round.pt"


class Round:
    """The steps of one module between two syncs.

    Attributes:
        sync_every: Optimizer steps of a round.
        num_steps: Optimizer steps since the last sync, the same on all ranks.
        trained: The parameters that are synced: those that are trainable when it is made.
    """

    def __init__(self, module: nn.Module, *, sync_every: int) -> None:
        self.module = module
        self.sync_every = sync_every
        self.num_steps = 0
        self.trained: list[Tensor] = [p for p in module.parameters() if p.requires_grad]
        self._own: list[Tensor] | None = None

    @property
    def has_agreed(self) -> bool:
        """The module holds the mean over ranks; this rank's own parameters are kept beside it."""
        return self._own is not None

    def end_step(self) -> None:
        """Count a step, and sync after the last one of the round.

        Ranks: all.
        """
        self.num_steps += 1
        if self.num_steps < self.sync_every:
            return
        self._check_trained()
        self.sync()
        self.share_buffers()
        self.num_steps = 0

    def sync(self) -> None:
        """Bring the parameters of all ranks together.

        Ranks: all.
        """
        average_in_place(self.trained)

    def share_buffers(self) -> None:
        """Give all ranks the buffers of rank 0.

        Ranks: all (one broadcast for each dtype).
        """
        broadcast_in_place(self.module.buffers())

    @torch.no_grad()
    def show_agreed(self) -> None:
        """Put the mean over ranks into the module, and this rank's own parameters aside.

        Ranks: all (one all-reduce for each dtype; none right after a sync).
        """
        if self._own is None and self.num_steps and self.trained:
            self._own = [p.detach().clone() for p in self.trained]
            average_in_place(self.trained)

    @torch.no_grad()
    def show_own(self) -> None:
        """Undo `show_agreed`."""
        if self._own is not None:
            torch._foreach_copy_(self.trained, self._own)
            self._own = None

    @contextmanager
    def agreed(self) -> Iterator[None]:
        """The mean over ranks for a block; what was in the module before is there again afterwards.

        Ranks: all.
        """
        found = self.has_agreed
        self.show_agreed()
        try:
            yield
        finally:
            if not found:
                self.show_own()

    @contextmanager
    def own(self) -> Iterator[None]:
        """This rank's own parameters for a block, also where the mean is shown."""
        if self._own is None:
            yield
            return
        mean, own = [p.detach().clone() for p in self.trained], self._own
        self.show_own()
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(self.trained, mean)
            self._own = own

    def restart(self) -> None:
        """Begin a round with the parameters as they are now."""
        self._own = None
        self.num_steps = 0

    def state_dict(self) -> dict[str, Any]:
        """What is equal on all ranks."""
        return {"num_steps": self.num_steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on in the middle of a round."""
        self._own = None
        self.num_steps = state["num_steps"]

    def _check_trained(self) -> None:
        known = set(map(id, self.trained))
        late = [name for name, p in self.module.named_parameters() if p.requires_grad and id(p) not in known]
        if late:
            raise ModelError(
                f"These parameters became trainable after the module was prepared, so they are not synced: "
                f"{', '.join(late)}.",
                code="late-parameters",
                do="Make them trainable before setup, and freeze them afterwards if they are to begin later.",
            )


def round_of(prepared: Prepared) -> Round:
    """The round of a prepared module."""
    kept = prepared.kept
    assert isinstance(kept, Round), f"{kept!r} is not a round"
    return kept


def check_sync_every(sync_every: Any) -> None:
    """Refuse what is not a number of optimizer steps.

    Raises:
        ConfigError: It is not.
    """
    if isinstance(sync_every, bool) or not isinstance(sync_every, int) or sync_every < 1:
        raise ConfigError(
            f"sync_every={sync_every!r} is not a number of optimizer steps.", code="sync-every", do="Use 1 or more."
        )


def refuse_sync_batchnorm(name: str) -> ConfigError:
    """Ranks that step apart have no forward in common."""
    return ConfigError(
        f"sync_batchnorm=True with strategy={name!r}: ranks run apart between two syncs of parameters.",
        code="sync-batchnorm",
        do="Switch it off, or use strategy='ddp'.",
    )


def add_rounds(state: Mapping[str, Any], files: StateFiles, *, strategy: str, collectives: Collectives) -> None:
    """Save the mean for everybody, and what each rank needs to go on with its own.

    Ranks: all (one all-reduce for each dtype of a module, none right after a sync).

    Raises:
        CheckpointError: It cannot be written.
    """
    rounds = _rounds_in(state)
    with ExitStack() as stack:
        for one in rounds.values():
            stack.enter_context(one.agreed())
        if collectives.is_global_zero:
            add_replica(state, files)
            told = {name: one.state_dict() for name, one in rounds.items()}
            shared = {"strategy": strategy, "num_ranks": collectives.world_size, "rounds": told}
            files.add(ROUND_FILE, shared)
        for one in rounds.values():
            stack.enter_context(one.own())
        own = {
            name: value
            for name, value in state.items()
            if name in rounds or (hasattr(value, "state_dict") and not collectives.is_global_zero)
        }
        files.add(_local_file(collectives.rank), replica_state(own))


def read_rounds(
    state: Mapping[str, Any], directory: Path, *, strategy: str, collectives: Collectives, strict: bool
) -> dict[str, Any]:
    """Put a state back: each rank its own, if there are as many ranks as it was saved by.

    Otherwise all go on from the mean of the ranks' parameters, in the same round, with the optimizers of rank 0.

    Raises:
        CheckpointError: It does not fit.
    """
    rest = read_replica(state, directory, strict=strict)
    rounds = _rounds_in(state)
    saved = read_tensors(directory / ROUND_FILE) if (directory / ROUND_FILE).exists() else None
    if saved is None or saved["strategy"] != strategy:  # of another strategy: it is the state of one model
        for one in rounds.values():
            one.restart()
        return rest
    for name, one in rounds.items():
        if name in saved["rounds"]:
            one.load_state_dict(saved["rounds"][name])
        else:
            one.restart()
    if saved["num_ranks"] == collectives.world_size:
        local: dict[str, Any] = read_tensors(directory / _local_file(collectives.rank))
        put_back({name: state[name] for name in local if name in state}, numbered(state, local), strict=strict)
    elif any(one.num_steps for one in rounds.values()) and collectives.is_global_zero:
        warnings.warn(
            f"The checkpoint was saved by {saved['num_ranks']} ranks in the middle of a round, and is loaded by "
            f"{collectives.world_size}: all go on from the mean of their parameters, with the optimizer state of rank "
            "0.",
            stacklevel=2,
        )
    return rest


def agreed_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """Modules as copies of the agreed model, with rank 0's buffers; the rest as it is on this rank.

    Ranks: all (for each module one all-reduce and one broadcast for each dtype; no all-reduce right after a sync).
    """
    rounds = _rounds_in(state)
    full: dict[str, Any] = {}
    for name, value in state.items():
        if name not in rounds:
            full.update(replica_state({name: value}))
            continue
        rounds[name].share_buffers()
        with rounds[name].agreed():
            full[name] = map_tensors(torch.clone, value.original.state_dict())
    return full


def _rounds_in(state: Mapping[str, Any]) -> dict[str, Round]:
    return {name: round_of(value) for name, value in state.items() if isinstance(value, Prepared)}


def _local_file(rank: int) -> str:
    return f"local_{rank}.pt"
