"""The page about names says what is there."""

from __future__ import annotations

import pytest

from drivetrain import Callback, ConfigError, HookError, Module, Trainer
from drivetrain.loop.hooks import check_callback, check_module
from tests.arch.source_tree import ROOT
from tests.protocol.absent import ABSENT
from tests.protocol.names import FORMER_ARGUMENTS, FORMER_HOOKS, GROUPS, Group
from tests.protocol.page import named_tests, page
from tests.protocol.present import is_there
from tests.protocol.uses import Uses


def test_the_page_is_up_to_date() -> None:
    """It would say that something is there, or tested, that is not: `python -m tests.protocol --write` makes it."""
    committed = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
    assert page(committed) == committed


def test_every_name_is_there_or_has_a_reason() -> None:
    """A script of this field would end with a bare AttributeError, and nobody had decided so."""
    missing = {(group.title, name) for group in GROUPS for name in group if not is_there(group, name)}
    assert missing == set(ABSENT)


def test_no_name_is_written_twice() -> None:
    """A table would count it twice."""
    for group in GROUPS:
        assert len(list(group)) == len(set(group)), group.title


@pytest.mark.parametrize("name", FORMER_ARGUMENTS.split())
def test_a_former_argument_is_refused(name: str) -> None:
    """The page would promise an error that does not come."""
    with pytest.raises(ConfigError) as caught:
        Trainer(**{name: 1})
    assert caught.value.code == "former-argument"


@pytest.mark.parametrize("name", FORMER_HOOKS.split())
def test_a_former_hook_is_refused(name: str) -> None:
    """The page would promise an error that does not come."""
    with pytest.raises(HookError):
        check_callback(type("Mine", (Callback,), {name: lambda *args: None})())
    with pytest.raises(HookError):
        check_module(type("Mine", (Module,), {name: lambda *args: None})())


def test_what_is_not_there_is_seen() -> None:
    """The tests above would pass whatever is there."""
    assert not is_there(Group("", "argument", "Trainer", ""), "no_such_argument")
    assert not is_there(Group("", "member", "Trainer", ""), "no_such_member")
    assert not is_there(Group("", "class", "", ""), "NoSuchClass")
    assert is_there(Group("", "member", "Trainer", ""), "should_stop"), "the constructor sets it"


def test_the_test_of_a_name_is_found_through_what_it_uses() -> None:
    """Each name that is used by a function of the tests would look untested."""
    uses = Uses()
    assert uses.test_of(Group("", "argument", "Trainer", ""), "max_epochs").startswith("tests/")
    assert uses.test_of(Group("", "argument", "Trainer", ""), "no_such_argument") == ""
    group = Group("", "override", "DataModule", "")
    kept = "tests/unit/trainer/test_hook_order.py::test_a_datamodule_is_asked_in_order"
    assert uses.test_of(group, "prepare_data", "tests/x.py::test_gone") == uses.test_of(group, "prepare_data", kept)


def test_the_tests_of_a_page_are_read_back() -> None:
    """Every new test would change the page."""
    text = "## `A(...)`\n\n| name | there | test |\n| `b` | as `C` | `tests/d.py::test_e` |\n| `f` | yes | - |\n"
    assert named_tests(text) == {("`A(...)`", "b"): "tests/d.py::test_e"}
