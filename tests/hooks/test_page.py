"""The page about hooks says what runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from drivetrain import DataModule, Module
from drivetrain.loop.hooks import CALLBACK_EVENTS, MODULE_EVENTS
from tests.arch.source_tree import ROOT
from tests.hooks.named import CALLBACK, DATA_MODULE, MODULE, all_hooks, names_of
from tests.hooks.order import Part, Row, listing, rows_of, tree_of
from tests.hooks.page import page
from tests.hooks.record import FAILING, NUM_RANKS, Recording, record


@pytest.fixture(scope="module")
def recordings(ranks: Any, tmp_path_factory: pytest.TempPathFactory) -> Sequence[Recording]:
    """What each of two ranks has heard."""
    heard: Sequence[Recording] = ranks.run(record, str(tmp_path_factory.mktemp("heard")), world=NUM_RANKS)
    return heard


def test_the_page_is_up_to_date(recordings: Sequence[Recording]) -> None:
    """It would name another order than that of a run: `python -m tests.hooks --write docs/hooks.md` makes it."""
    assert page(recordings) == (ROOT / "docs" / "hooks.md").read_text(encoding="utf-8")


def test_every_hook_is_heard_in_a_run(recordings: Sequence[Recording]) -> None:
    """A method that a user overrides would never be called."""
    heard = {note for recording in recordings for notes in recording.values() for note in notes}
    assert [(hook.owner, hook.name) for hook in all_hooks() if (hook.owner, hook.name) not in heard] == []


def test_a_hook_says_the_same_wherever_it_is() -> None:
    """A callback and a module would promise different things of one moment."""
    said: dict[str, set[tuple[str, str]]] = {}
    for hook in all_hooks():
        assert hook.when.endswith("."), f"{hook.name} of a {hook.owner} does not say when it runs"
        if hook.name.startswith("on_"):
            said.setdefault(hook.name, set()).add((hook.when, hook.arguments))
    assert {name: ways for name, ways in said.items() if len(ways) > 1} == {}


def test_no_hook_is_overlooked() -> None:
    """A new one would be missing on the page, and nobody would see it."""
    assert set(CALLBACK_EVENTS) < set(names_of(CALLBACK)) and {"setup", "teardown"} < set(names_of(CALLBACK))
    assert set(MODULE_EVENTS) < set(names_of(MODULE))
    for cls, owner in ((Module, MODULE), (DataModule, DATA_MODULE)):
        assert {name for name in dir(cls) if name.startswith("on_")} <= set(names_of(owner))
        assert len(names_of(owner)) == len(set(names_of(owner)))


def test_all_ranks_hear_the_same_in_the_same_order(recordings: Sequence[Recording]) -> None:
    """A hook in which a user communicates would wait for ranks that never come."""
    for run in recordings[0]:
        if run != FAILING:
            alone, other = ([note for note in one[run] if note[1] != "prepare_data"] for one in recordings)
            assert alone == other, run


def test_one_process_hears_what_rank_0_of_several_hears(recordings: Sequence[Recording], tmp_path: Any) -> None:
    """The order would depend on how many ranks there are."""
    assert record(str(tmp_path), num_ranks=1) == recordings[0]


@pytest.mark.parametrize(("run", "event"), [("validate", "val"), ("predict", "predict")])
def test_evaluations_have_one_order(recordings: Sequence[Recording], run: str, event: str) -> None:
    """The page shows that of the test for all of them."""
    own = {f"{event}_dataloader": "test_dataloader", "on_validation_model_zero_grad": ""}
    event = "validation" if event == "val" else event
    named = [(owner, own.get(name, name.replace(event, "test"))) for owner, name in recordings[0][run]]
    assert [note for note in named if note[1]] == recordings[0]["test"]


def test_what_is_repeated_is_shown_once() -> None:
    """A reader would have to compare, or be shown one of two that differ."""
    micro_batch = [("module", "on_before_batch_transfer"), ("callback", "on_train_batch_end")]
    step_end = [("callback", "on_step_end"), ("module", "on_step_end")]
    window = [*micro_batch, *micro_batch, *step_end]
    start = [("module", "on_train_epoch_start")]
    notes = [*start, *window, *window, *micro_batch, *step_end, ("module", "on_train_end")]
    assert listing(tree_of(rows_of(notes)), notes={"on_train_end": "!"}) == [
        "epoch:",
        "    on_train_epoch_start              module",
        "    window, 2 times:",
        "        micro-batch, 2 times:",
        "            on_before_batch_transfer  module",
        "            on_train_batch_end        callback",
        "        on_step_end                   callback, module",
        "    window:",
        "        micro-batch:",
        "            on_before_batch_transfer  module",
        "            on_train_batch_end        callback",
        "        on_step_end                   callback, module",
        "on_train_end                          module!",
    ]
    with pytest.raises(AssertionError, match="epoch has not ended"):
        tree_of(rows_of([*start, *window]))


def test_an_event_that_is_heard_twice_is_two_events() -> None:
    """A hook that runs twice in a row would look as if it ran once."""
    assert rows_of([("module", "a"), ("callback", "a"), ("module", "a")]) == [
        Row("a", ["module", "callback"]),
        Row("a", ["module"]),
    ]
    assert tree_of([Row("a", ["module"])]) == Part("", None, [Row("a", ["module"])])
