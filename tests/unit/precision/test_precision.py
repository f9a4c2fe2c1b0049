"""Number formats: names, what they change, and what they leave alone."""

from __future__ import annotations

import pytest
import torch

from drivetrain import ConfigError, Precision
from drivetrain.precision.precision import default_dtype, make_precision

NAMES = ["32-true", "64-true", "16-mixed", "bf16-mixed", "16-true", "bf16-true"]


@pytest.mark.parametrize("name", NAMES)
def test_every_name_gives_its_own_precision(name: str) -> None:
    """A run would compute in another format than the one that was asked for."""
    assert make_precision(name).name == name


@pytest.mark.parametrize(
    ("given", "name"),
    [(None, "32-true"), (32, "32-true"), ("32", "32-true"), (64, "64-true"), (16, "16-mixed"), ("bf16", "bf16-mixed")],
)
def test_short_names_are_known(given: str | int | None, name: str) -> None:
    """Scripts that write `precision=16` would not run."""
    assert make_precision(given).name == name


def test_a_precision_of_ones_own_is_taken_as_it_is() -> None:
    """A format that has no name could not be used."""
    own = Precision("own", compute_dtype=torch.bfloat16)
    assert make_precision(own) is own


@pytest.mark.parametrize(
    ("given", "near"), [("bf16-mixd", "bf16-mixed"), ("float16", "16-true"), ("64true", "64-true")]
)
def test_an_unknown_name_is_told_the_nearest(given: str, near: str) -> None:
    """A typing error would train in float32 without a word."""
    with pytest.raises(ConfigError) as caught:
        make_precision(given)
    text = str(caught.value)
    assert caught.value.code == "precision"
    assert f"precision={given!r} is not known" in text and near in text and all(name in text for name in NAMES)


def test_only_float16_with_autocast_scales_the_loss() -> None:
    """Gradients of float16 would underflow, or those of bfloat16 be scaled for nothing."""
    assert [name for name in NAMES if make_precision(name).is_loss_scaled] == ["16-mixed"]


@pytest.mark.parametrize("name", ["16-mixed", "bf16-mixed"])
def test_mixed_formats_run_a_step_under_autocast(name: str) -> None:
    """A step would run in float32."""
    precision = make_precision(name)
    with precision.context_for("cpu")():
        assert torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype == precision.compute_dtype
    assert precision.parameter_dtype is None


@pytest.mark.parametrize("name", ["64-true", "bf16-true", "16-true"])
def test_true_formats_make_new_tensors_in_their_own_dtype(name: str) -> None:
    """A tensor made in a step would not fit the parameters."""
    precision = make_precision(name)
    before = torch.get_default_dtype()
    with precision.context_for("cpu")():
        assert torch.zeros(1).dtype == precision.parameter_dtype
    assert torch.get_default_dtype() == before


def test_float32_changes_nothing() -> None:
    """The common case would pay for conversions."""
    precision = make_precision(None)
    batch = {"x": torch.ones(2, dtype=torch.float64)}
    assert precision.changes_nothing
    assert precision.convert_input(batch) is batch and precision.convert_output(batch) is batch


def test_inputs_are_converted_where_they_are_floating() -> None:
    """Indices and masks would become floats."""
    batch = {"x": torch.ones(2), "ids": torch.ones(2, dtype=torch.int64), "mask": torch.ones(2, dtype=torch.bool)}
    converted = make_precision("bf16-true").convert_input(batch)
    assert [one.dtype for one in converted.values()] == [torch.bfloat16, torch.int64, torch.bool]


def test_outputs_of_autocast_come_back_as_float32() -> None:
    """A loss made of them outside of autocast would overflow when it is scaled."""
    output = [torch.ones(2, dtype=torch.bfloat16), torch.ones(2, dtype=torch.float64), torch.ones(1, dtype=torch.int32)]
    converted = make_precision("bf16-mixed").convert_output(output)
    assert [one.dtype for one in converted] == [torch.float32, torch.float64, torch.int32]


def test_the_default_dtype_is_restored_after_an_error() -> None:
    """Everything after a failed block would be made in another dtype."""
    before = torch.get_default_dtype()
    with pytest.raises(KeyError), default_dtype(torch.float64):
        raise KeyError
    assert torch.get_default_dtype() == before
