"""What hooks make of a checkpoint: before it is written, and before it is loaded."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drivetrain.base.errors import CheckpointError
from drivetrain.fabric.together import together
from drivetrain.loop.shown_checkpoint import (
    LEFT_OUT,
    MODEL,
    OPTIMIZERS,
    STATE_DICT,
    completed,
    optimizers_in,
    read_unverified,
    shown,
    take_model,
    take_optimizers,
)
from drivetrain.strategies.edited_state import EditedState
from drivetrain.strategies.replicated_state import replica_state
from drivetrain.strategies.saved_tensor import unread

_SAVE, _LOAD = "on_save_checkpoint", "on_load_checkpoint"


def let_hooks_save(
    run: Any, parts: Mapping[str, Any], plain: dict[str, Any]
) -> tuple[Mapping[str, Any], dict[str, Any]]:
    """The state to save, as the hooks of a run want it, and what its manifest says of that.

    Ranks: all (one message; another where the state is sharded).

    Args:
        run: That is saved.
        parts: Its module and optimizers.
        plain: Everything else; hooks add to it.

    Raises:
        CheckpointError: They have left something that is no checkpoint.
    """
    if not run.hooks.on_save_checkpoint:
        return {**parts, "trainer": plain}, {}
    traits = run.fabric.strategy.traits
    if traits.shards_state:
        from drivetrain.strategies.sharded_state import reshard  # only here: it takes a while to import

        reshard(parts)
    own = replica_state(parts)
    before, names = dict(own[MODEL]), _optimizers_of(run, own)
    checkpoint = shown({name: own[name] for name in (MODEL, *names)}, plain)

    def hear() -> tuple[dict[str, Any], dict[str, Any]]:
        for hook in run.hooks.on_save_checkpoint:
            hook(checkpoint)
        left = take_model(checkpoint, _SAVE), take_optimizers(checkpoint, names, _SAVE)
        _check_own_keys(plain, checkpoint)
        if _differs(left[0], before):
            _require_one_model(run, _SAVE)
        return left

    model, optimizers = together(run.fabric.collectives, hear)
    if traits.shards_state:
        _check_alike(run, model, optimizers)
    told: dict[str, Any] = {}
    edited: dict[str, Any] = dict(optimizers)
    if names and not optimizers:
        parts, told = {name: value for name, value in parts.items() if name not in names}, {"weights_only": True}
    if _differs(model, before):
        edited[MODEL] = model
        checkpoint[LEFT_OUT] = [name for name in before if name not in model]
        told["num_left_out"] = len(checkpoint[LEFT_OUT])
    return EditedState({**parts, "trainer": {**_may_go(), **checkpoint}}, edited), told


@dataclass
class OpenedCheckpoint:
    """A checkpoint that was verified; hooks have seen it, and nothing of it is loaded yet.

    Attributes:
        directory: Its files.
        name: What the user knows it by.
        saved: All that its file holds, as hooks left it.
        is_changed: Hooks have seen it, or it lacks names of the module.
        takes_optimizers: Hooks left their states.
        takes_schedulers: Likewise.
    """

    directory: Path
    name: str
    saved: dict[str, Any]
    is_changed: bool = True
    takes_optimizers: bool = True
    takes_schedulers: bool = True

    @property
    def plain(self) -> dict[str, Any]:
        """What it holds beside module and optimizers."""
        plain: dict[str, Any] = self.saved["trainer"]
        return plain

    def state_for(self, run: Any, parts: Mapping[str, Any]) -> EditedState:
        """What a strategy loads into the parts of a run; its file is not read again."""
        saved = self.saved
        if self.is_changed:
            model = completed(
                saved[MODEL], run.module, self.plain.get(LEFT_OUT, ()), name=self.name,
                strict=run.module.strict_loading, is_said=run.fabric.is_global_zero,
            )  # fmt: skip
            saved = {**saved, MODEL: model}
        return EditedState(parts, saved, is_whole=True)


def open_checkpoint(run: Any, directory: Path, *, name: str) -> OpenedCheckpoint:
    """Let the hooks of a run see a checkpoint that was verified, before it is loaded.

    Ranks: all.

    Raises:
        CheckpointError: It was not written by a Trainer, or hooks have left nothing that can be loaded.
    """
    saved: dict[str, Any] = together(run.fabric.collectives, lambda: read_unverified(directory))
    plain = saved.get("trainer")
    if plain is None or MODEL not in saved:
        raise CheckpointError(
            f"{name} was not written by a Trainer.", code="checkpoint-keys", do="Load it with Fabric.load."
        )
    hooks, strict = run.hooks.on_load_checkpoint, run.module.strict_loading
    if not hooks and strict and not plain.get(LEFT_OUT):
        return OpenedCheckpoint(directory, name, unread(saved), is_changed=False)
    before, names = dict(saved[MODEL]), _optimizers_of(run, saved)
    checkpoint = shown({name: saved[name] for name in (MODEL, *names)}, plain)

    def hear() -> dict[str, Any]:
        for hook in hooks:
            hook(checkpoint)
        after = checkpoint.get(STATE_DICT)
        if isinstance(after, Mapping) and _differs(after, before):
            _require_one_model(run, _LOAD)
        return {MODEL: take_model(checkpoint, _LOAD), **take_optimizers(checkpoint, names, _LOAD)}

    edited = together(run.fabric.collectives, hear)
    takes_optimizers = not names or len(edited) > 1
    takes_schedulers = bool(checkpoint.get("lr_schedulers")) or not plain["lr_schedulers"]
    gone = [key for key, takes in ((OPTIMIZERS, takes_optimizers), ("lr_schedulers", takes_schedulers)) if not takes]
    if gone and run.request.stage == "fit" and run.fabric.is_global_zero:
        warnings.warn(f"{_LOAD} took {' and '.join(gone)} out of {name}: they begin anew.", stacklevel=2)
    rest = {key: value for key, value in saved.items() if key not in names}
    whole = unread({**rest, **edited, "trainer": {**plain, **_may_go(), **checkpoint}})
    return OpenedCheckpoint(
        directory, name, whole, takes_optimizers=takes_optimizers, takes_schedulers=takes_schedulers
    )


def _may_go() -> dict[str, Any]:
    """What a checkpoint has in the place of what hooks may take out of it."""
    return {"callbacks": {}, "lr_schedulers": []}


def _optimizers_of(run: Any, state: Mapping[str, Any]) -> list[str]:
    """The optimizers whose states hooks see: none where each rank has its own."""
    return [] if run.fabric.strategy.traits.steps_apart else list(optimizers_in(state))


def _differs(model: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    return model.keys() != before.keys() or any(model[name] is not value for name, value in before.items())


def _require_one_model(run: Any, hook: str) -> None:
    traits = run.fabric.strategy.traits
    if traits.steps_apart:
        raise CheckpointError(
            f"{hook} changed checkpoint['state_dict'] under strategy={traits.name!r}, where each rank has weights of "
            "its own.",
            code="checkpoint-hook",
            do="Override state_dict and load_state_dict of the module, or train with strategy='ddp'.",
        )


def _check_own_keys(plain: Mapping[str, Any], checkpoint: Mapping[str, Any]) -> None:
    gone = [key for key in plain if key not in checkpoint and key not in _may_go()]
    if gone:
        raise CheckpointError(
            f"{_SAVE} took {', '.join(gone)} out of the checkpoint, without which it cannot be loaded.",
            code="checkpoint-hook",
            do="Add keys, change checkpoint['state_dict'], or delete optimizer_states, lr_schedulers and callbacks.\n"
            "To save something else in the place of a checkpoint, write a file of your own in on_step_end.",
        )


def _check_alike(run: Any, model: Mapping[str, Any], optimizers: Mapping[str, Any]) -> None:
    """Each rank writes its shards of the same tensors, or the file would lack some of them.

    Ranks: all.
    """
    described = sorted((name, str(getattr(value, "shape", ""))) for name, value in model.items())
    described += [(name, "") for name in optimizers]
    digests = run.fabric.collectives.gather_objects(hashlib.sha256(repr(described).encode()).digest())
    strange = [rank for rank, one in enumerate(digests) if one != digests[0]]
    if strange:
        raise CheckpointError(
            f"{_SAVE} left other names of weights or optimizers on rank {strange[0]} than on rank 0.",
            code="checkpoint-hook",
            do="Each rank saves its shards: let the hook do the same on all ranks, without rank_zero_only.",
        )
