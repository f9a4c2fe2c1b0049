"""Arguments of a Trainer: what is unknown, what means nothing, what does not fit together."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest
from torch.utils.data import DataLoader

import drivetrain
from drivetrain import Callback, ConfigError, ModelCheckpoint, Trainer
from drivetrain.fabric.batch_plan import plan_batch
from drivetrain.testing.fixtures import make_dataset
from drivetrain.trainer.arguments import _FORMER, require_positive, resolve_limit
from tests.unit.trainer.runs import QUIET, ListLogger


def sized(batch_size: int | None) -> DataLoader[Any]:
    return DataLoader(make_dataset(8), batch_size=batch_size)


KNOWN = set(inspect.signature(Trainer.__init__).parameters)


@pytest.mark.parametrize("name", sorted(_FORMER))
def test_a_former_argument_is_told_todays_way(name: str) -> None:
    """A script of some years ago would get a TypeError without a hint."""
    with pytest.raises(ConfigError, match=f"Trainer has no argument {name!r}") as caught:
        Trainer(**QUIET, **{name: 1})
    assert caught.value.code == "former-argument" and _FORMER[name] in str(caught.value)


@pytest.mark.parametrize("hint", sorted(set(_FORMER.values())))
def test_what_a_hint_names_is_there(hint: str) -> None:
    """A user who follows it would get the next error."""
    if hint.startswith("nothing"):
        named = re.findall(r"(\w+)=", hint)
    else:
        for owner, arguments in re.findall(r"(trainer\.\w+|[A-Z]\w+)\((.*?)\)", hint):
            found = getattr(Trainer, owner.removeprefix("trainer."), None) or getattr(drivetrain, owner)
            assert set(re.findall(r"(\w+)=", arguments)) <= set(inspect.signature(found).parameters)
        rest = re.sub(r"[\w.]+\(.*?\)", "", hint)
        named = re.findall(r"(\w+)=", rest) + [word for word in re.findall(r"[a-z]+_\w+", rest) if word[:3] != "on_"]
        assert all(hasattr(Callback, word) for word in re.findall(r"on_\w+", rest))
        values = dict(re.findall(r"(strategy|precision)='([^']+)'", rest))
        Trainer(**{**QUIET, **values})
    assert set(named) <= KNOWN


@pytest.mark.parametrize(
    ("name", "near"),
    [("max_epoch", "max_epochs"), ("device", "devices"), ("accumulate_grad_batch", "accumulate_grad_batches")],
)
def test_an_unknown_argument_is_told_the_nearest(name: str, near: str) -> None:
    """A typing error would be ignored."""
    with pytest.raises(ConfigError, match=f"Did you mean {near!r}?") as caught:
        Trainer(**QUIET, **{name: 1})
    assert caught.value.code == "unknown-argument" and name not in KNOWN


def test_an_argument_like_nothing_is_still_named() -> None:
    """The text would name an argument that has nothing to do with it."""
    with pytest.raises(ConfigError, match="no argument 'zzz'") as caught:
        Trainer(**QUIET, zzz=1)
    assert "Did you mean" not in str(caught.value)


@pytest.mark.parametrize(
    ("limit", "num_batches", "expected"),
    [
        (None, 10, None), (1.0, 10, None), (1.0, None, None), (3, 10, 3), (30, 10, 30), (0, 10, 0), (0.0, 10, 0),
        (0.35, 10, 3), (5, None, 5),
    ],
)  # fmt: skip
def test_limits_are_numbers_or_parts(limit: Any, num_batches: int | None, expected: int | None) -> None:
    """1 would be read as all, or 1.0 as one."""
    assert resolve_limit("limit_x", limit, num_batches) == expected


@pytest.mark.parametrize(
    ("limit", "num_batches"), [(1.5, 10), (-1, 10), (-0.5, 10), (True, 10), ("all", 10), (0.5, None)]
)
def test_a_limit_that_means_nothing_is_refused(limit: Any, num_batches: int | None) -> None:
    """It would be rounded to something."""
    with pytest.raises(ConfigError, match="limit_x=") as caught:
        resolve_limit("limit_x", limit, num_batches)
    assert caught.value.code == "limits" and repr(limit) in str(caught.value)


@pytest.mark.parametrize(
    ("total", "batch_size", "ranks", "expected"), [(32, 4, 1, 8), (32, 4, 2, 4), (32, 4, 8, 1), (4, 4, 1, 1)]
)
def test_a_global_batch_is_split_over_ranks_and_micro_batches(
    total: int, batch_size: int, ranks: int, expected: int
) -> None:
    """A step would see another number of samples on another number of ranks."""
    plan = plan_batch(sized(batch_size), global_batch_size=total, micro_batch_size=None, num_shards=ranks)
    assert (plan.num_rounds, plan.is_cut) == (expected, False)


@pytest.mark.parametrize(
    ("total", "batch_size", "ranks", "text"),
    [
        (30, 4, 2, "Use 24 or 32"),
        (6, 4, 2, "Use 8"),
        (10, 4, 1, "micro-batches of 4 on 1 rank."),
        (8, None, 1, "the loader has no batch_size"),
    ],
)
def test_a_global_batch_that_cannot_be_split_is_told_the_nearest(
    total: int, batch_size: int | None, ranks: int, text: str
) -> None:
    """It would be rounded, and the step be another."""
    with pytest.raises(ConfigError, match=f"global_batch_size={total}") as caught:
        plan_batch(sized(batch_size), global_batch_size=total, micro_batch_size=None, num_shards=ranks)
    assert caught.value.code == "batch-split" and text in str(caught.value)


@pytest.mark.parametrize("value", [0, -1, 1.0, True, "2", None])
def test_a_count_is_a_whole_number_from_one(value: Any) -> None:
    """A window of 0 micro-batches would never step."""
    with pytest.raises(ConfigError) as caught:
        require_positive("accumulate_grad_batches", value)
    assert caught.value.code == "limits" and f"accumulate_grad_batches={value!r}" in str(caught.value)


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        ({"accumulate_grad_batches": 0}, "limits", "accumulate_grad_batches=0"),
        ({"log_every_n_steps": 0}, "limits", "log_every_n_steps=0"),
        ({"log_every": "0 steps"}, "interval", "log_every='0 steps'"),
        ({"log_every": "10 stepps"}, "interval", "Did you mean 'steps'?"),
        ({"log_every": "5 steps", "log_every_n_steps": 5}, "log-interval", "log_every_n_steps=5"),
        ({"val_check_interval": "10 batches"}, "interval", "Did you mean 'micro-batches'?"),
        ({"val_check_interval": "9 steps", "check_val_every_n_epoch": 2}, "val-interval", "check_val_every_n_epoch=2"),
        ({"accumulate_grad_batches": {0: 0}}, "window-size", "{0: 0}"),
        ({"accumulate_grad_batches": {-1: 2}}, "window-size", "{-1: 2}"),
        ({"accumulate_grad_batches": {}}, "window-size", "{}"),
        ({"global_batch_size": 8, "accumulate_grad_batches": {0: 2}}, "batch-split", "Give one of the two"),
        ({"gradient_clip_algorithm": "l2"}, "clip", "'l2'"),
        ({"gradient_clip_val": -1.0}, "clip", "gradient_clip_val=-1.0"),
        ({"gradient_clip_val": "1"}, "clip", "gradient_clip_val='1'"),
        ({"num_sanity_val_steps": -2}, "limits", "num_sanity_val_steps=-2"),
        ({"check_val_every_n_epoch": 0}, "val-interval", "check_val_every_n_epoch=0"),
        ({"global_batch_size": 8, "accumulate_grad_batches": 2}, "batch-split", "Give one of the two"),
        ({"callbacks": [ModelCheckpoint()]}, "checkpointing-off", "enable_checkpointing=False"),
        ({"max_epochs": -2}, "limits", "max_epochs=-2"),
        ({"strategy": "ddp_spwan"}, "strategy", "Did you mean 'ddp_spawn'?"),
        ({"num_nodes": 0}, "devices", "num_nodes=0"),
    ],
)
def test_arguments_are_checked_when_the_trainer_is_made(options: dict[str, Any], code: str, text: str) -> None:
    """They would be found out after the data were loaded, on every rank."""
    with pytest.raises(ConfigError) as caught:
        Trainer(**{**QUIET, **options})
    assert caught.value.code == code and text in str(caught.value)


def test_parts_are_added_unless_they_are_switched_off_or_there_already() -> None:
    """Two checkpoints or two bars would be kept; or none."""
    own = ModelCheckpoint()
    kinds = [type(one).__name__ for one in Trainer(accelerator="cpu").callbacks]
    assert kinds == ["RichProgressBar", "ModelSummary", "ModelCheckpoint"]
    assert Trainer(accelerator="cpu", callbacks=own).checkpoint_callbacks == [own]
    assert Trainer(**QUIET).callbacks == []
    assert [type(one).__name__ for one in Trainer(accelerator="cpu").loggers] == ["CSVLogger"]
    loggers = [ListLogger(), ListLogger()]
    assert Trainer(**{**QUIET, "logger": loggers}).loggers == loggers
    one = Callback()
    assert Trainer(**QUIET, callbacks=one).callbacks == [one]
