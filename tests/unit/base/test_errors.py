"""Errors: one tree, three parts, a code, and a way through process borders."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest

import drivetrain
from drivetrain.base import errors
from drivetrain.base.errors import ConfigError, DrivetrainError, RankFailedError, UnevenDataError

CLASSES = [one for _, one in inspect.getmembers(errors, inspect.isclass) if issubclass(one, DrivetrainError)]
BUILTINS = {
    "ConfigError": ValueError,
    "MissingExtraError": ImportError,
    "MissingNameError": ImportError,
    "DeviceError": RuntimeError,
    "LaunchError": RuntimeError,
    "StepOutputError": TypeError,
    "HookError": TypeError,
    "WindowError": RuntimeError,
    "NonFiniteError": ArithmeticError,
    "DataError": ValueError,
    "CheckpointError": RuntimeError,
}


def make(kind: type[DrivetrainError]) -> DrivetrainError:
    if kind is RankFailedError:
        return RankFailedError("rank 1 failed", failed_rank=1, exit_code=-9, traceback_text="Traceback")
    return kind("what is", code="some-code", do="what to do", rank=(2, 8))


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_error_survives_a_process_border(kind: type[DrivetrainError]) -> None:
    """The launching process would see an unpickling error instead of the rank's own."""
    error = make(kind)
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is kind
        assert str(again) == str(error) and again.args == error.args
        assert again.__dict__ == error.__dict__


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_error_is_public_and_says_so(kind: type[DrivetrainError]) -> None:
    """A traceback would name a module that users do not import from."""
    assert getattr(drivetrain, kind.__name__) is kind
    assert kind.__module__ == "drivetrain"


@pytest.mark.parametrize(("name", "builtin"), BUILTINS.items())
def test_user_errors_are_also_the_builtin_that_fits(name: str, builtin: type[Exception]) -> None:
    """Code that catches ValueError or RuntimeError today would not catch ours."""
    assert issubclass(getattr(drivetrain, name), builtin)


def test_the_text_has_code_rank_and_advice() -> None:
    """A user of eight ranks could not tell who speaks, nor what to do."""
    error = UnevenDataError("ran out of data", code="uneven", do="one line\nanother", rank=(2, 8))
    assert str(error) == "[uneven] [rank 2/8] ran out of data\n    one line\n    another"


def test_one_rank_is_not_named() -> None:
    """A run on one device would be told of rank 0 of 1."""
    assert str(ConfigError("wrong", code="x", rank=(0, 1))) == "[x] wrong"
