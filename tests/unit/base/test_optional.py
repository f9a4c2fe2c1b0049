"""Optional packages: imported when they are there, named with their extra when not."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from drivetrain import MissingExtraError
from drivetrain.base.optional import import_extra


def test_what_is_there_is_imported() -> None:
    """A logger would not find its package though it is installed."""
    assert import_extra("json", extra="x", purpose="y") is json


def test_what_is_missing_is_named_with_its_extra() -> None:
    """A user would have to guess which package brings the module."""
    with pytest.raises(MissingExtraError) as caught:
        import_extra("no_such_module.part", extra="tensorboard", purpose="TensorBoardLogger")
    text = str(caught.value)
    assert caught.value.code == "missing-extra"
    assert "TensorBoardLogger needs no_such_module.part" in text
    assert "pip install 'drivetrain[tensorboard]'" in text
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


def test_a_package_that_is_there_and_broken_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Installing it again would be advised, without the reason why it fails."""
    (tmp_path / "broken_for_test.py").write_text("raise ImportError('libfoo.so is too old')")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with pytest.raises(MissingExtraError, match="libfoo.so is too old"):
        import_extra("broken_for_test", extra="x", purpose="y")
