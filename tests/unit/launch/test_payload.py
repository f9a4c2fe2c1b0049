"""Functions as bytes."""

from __future__ import annotations

import pickle
import traceback

import torch

from drivetrain.launch.payload import dump_payload


def test_a_closure_over_a_module_travels() -> None:
    """A function that was not defined at the top of an importable file could not be launched."""
    model = torch.nn.Linear(2, 1)
    function = pickle.loads(dump_payload(lambda x: model(x) + 1))
    x = torch.ones(3, 2)
    assert torch.equal(function(x), model(x) + 1)


def test_a_traceback_names_the_file_of_a_function_that_travelled() -> None:
    """The line that failed in a rank could not be found."""

    def fail() -> None:
        raise KeyError("x")  # this very line

    try:
        pickle.loads(dump_payload(fail))()
    except KeyError as error:
        text = "".join(traceback.format_exception(error))
    assert __file__ in text
    assert "this very line" in text
