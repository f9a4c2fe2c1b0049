"""Constructor arguments, kept as `hparams`."""

from __future__ import annotations

import argparse
import pickle
from typing import Any

import pytest

from drivetrain import ConfigError, DataModule, Module


class Model(Module):
    def __init__(self, width: int, depth: int = 2, *, rate: float = 0.1) -> None:
        super().__init__()
        local = width * depth  # not an argument
        self.save_hyperparameters()
        self.size = local


class Chosen(Module):
    def __init__(self, a: int, b: int, c: int) -> None:
        super().__init__()
        self.save_hyperparameters("a", "c")


class Ignoring(Module):
    def __init__(self, a: int, b: int, c: int) -> None:
        super().__init__()
        self.save_hyperparameters(ignore=["b"])


class IgnoringOne(Module):
    def __init__(self, net: Any, c: int) -> None:
        super().__init__()
        self.save_hyperparameters(ignore="net")


class Open(Module):
    def __init__(self, a: int, **options: Any) -> None:
        super().__init__()
        self.save_hyperparameters()


class Child(Model):
    def __init__(self, extra: str, width: int = 5) -> None:
        super().__init__(width, rate=0.5)
        self.extra = extra


class Config(Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.save_hyperparameters(config)


class Data(DataModule):
    def __init__(self, folder: str, batch_size: int = 4) -> None:
        self.save_hyperparameters()


@pytest.mark.parametrize(
    ("make", "hparams"),
    [
        (lambda: Model(3), {"width": 3, "depth": 2, "rate": 0.1}),
        (lambda: Model(3, 4, rate=0.2), {"width": 3, "depth": 4, "rate": 0.2}),
        (lambda: Chosen(1, 2, 3), {"a": 1, "c": 3}),
        (lambda: Ignoring(1, 2, 3), {"a": 1, "c": 3}),
        (lambda: IgnoringOne(object(), 3), {"c": 3}),
        (lambda: Open(1, b=2), {"a": 1, "b": 2}),
        (lambda: Child("x"), {"extra": "x", "width": 5}),
        (lambda: Config({"lr": 0.1, "n": 3}), {"lr": 0.1, "n": 3}),
        (lambda: Config(argparse.Namespace(lr=0.1)), {"lr": 0.1}),
        (lambda: Data("here"), {"folder": "here", "batch_size": 4}),
        (lambda: Module(), {}),
    ],
)
def test_the_arguments_of_the_constructor_are_kept(make: Any, hparams: dict[str, Any]) -> None:
    """A checkpoint could not build its module again."""
    assert make().hparams == hparams


def test_a_module_is_built_again_from_what_was_kept() -> None:
    """`load_from_checkpoint` would miss an argument, or give one that the class does not take."""
    for one in (Model(3, 4), Child("x", 7), Open(1, b=2)):
        assert type(one)(**one.hparams).hparams == one.hparams


def test_they_can_be_read_as_attributes() -> None:
    """`self.hparams.width` is how they are used."""
    model = Model(3)
    assert model.hparams.width == 3
    model.hparams.width = 9
    assert model.hparams["width"] == 9
    with pytest.raises(AttributeError, match="no hyperparameter 'wdth'; there are width, depth, rate"):
        model.hparams.wdth  # noqa: B018


def test_a_name_that_is_no_argument_is_refused() -> None:
    """A typing error would leave a hyperparameter out of every checkpoint."""

    class Wrong(Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.save_hyperparameters("widht")

    with pytest.raises(ConfigError, match="names widht, which __init__ does not have") as caught:
        Wrong(1)
    assert caught.value.code == "hyperparameters"


def test_they_survive_a_process_border() -> None:
    """A launched rank would build its checkpoint without them."""
    assert pickle.loads(pickle.dumps(Model(3))).hparams == {"width": 3, "depth": 2, "rate": 0.1}
