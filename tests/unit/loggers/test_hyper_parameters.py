from __future__ import annotations

import json
import math
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy
import torch

from drivetrain.loggers.hyper_parameters import as_mapping, flatten, to_yaml


def read_lines(text: str) -> dict[str, Any]:
    pairs = (line.split(": ", 1) for line in text.splitlines())
    return {json.loads(key) if key.startswith('"') else key: json.loads(value) for key, value in pairs}


def test_values_come_back_as_they_were() -> None:
    """A file of hyperparameters that says something else than the run used."""
    params = {"lr": 1e-05, "layers": [1, 2], "net": {"act": "relu", "bias": True}, "none": None, "text": 'a "b": é\n'}
    assert read_lines(to_yaml(params)) == params


def test_small_numbers_are_numbers_for_yaml() -> None:
    """YAML 1.1 reads 1e-05 as text, and a script that loads it fails far from here."""
    assert to_yaml({"lr": 1e-05, "big": 1e20, "half": 0.5}) == "lr: 1.0e-05\nbig: 1.0e+20\nhalf: 0.5\n"


def test_what_is_not_finite_has_the_words_of_yaml() -> None:
    """NaN, which YAML reads as text."""
    assert to_yaml({"a": math.nan, "b": -math.inf}) == "a: .nan\nb: -.inf\n"


def test_keys_that_yaml_would_read_as_something_else_are_quoted() -> None:
    """A hyperparameter named `on` that comes back as True."""
    assert to_yaml({"on": 1, "a:b": 2}) == '"on": 1\n"a:b": 2\n'


def test_numbers_of_numpy_and_torch_are_numbers() -> None:
    """`tensor(0.5)` as text on the dashboard."""
    flat = flatten({"a": torch.tensor(0.5), "b": numpy.int64(3), "c": {"d": Path("x"), "e": Namespace(f=True)}})
    assert flat == {"a": 0.5, "b": 3, "c/d": "x", "c/e/f": True}


def test_namespaces_and_nothing_are_mappings() -> None:
    """A logger that only takes dicts, where scripts hold an argparse namespace."""
    assert as_mapping(Namespace(lr=1)) == {"lr": 1}
    assert as_mapping(None) == {}
