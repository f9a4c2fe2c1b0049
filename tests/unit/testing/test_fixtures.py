"""Small modules and data are the same wherever they are made."""

from __future__ import annotations

import torch

from drivetrain.testing.fixtures import NumberedDataset, make_dataset, make_mlp, max_difference


def test_the_same_seed_makes_the_same_module_and_leaves_random_state() -> None:
    """Ranks would start from different weights, or a test from other random numbers."""
    state = torch.get_rng_state()
    assert max_difference(make_mlp(seed=3), make_mlp(seed=3)) == 0.0
    assert max_difference(make_mlp(seed=3), make_mlp(seed=4)) > 0.0
    assert torch.equal(torch.get_rng_state(), state)


def test_layers_are_there_on_request_and_everything_is_float64() -> None:
    """Equality tests would be about rounding."""
    model = make_mlp(dropout=0.1, has_batch_norm=True)
    assert [type(layer).__name__ for layer in model] == ["Linear", "BatchNorm1d", "Tanh", "Dropout", "Linear"]
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float64}


def test_samples_carry_their_number() -> None:
    """It could not be told which samples a rank has seen."""
    data = NumberedDataset(5)
    assert [data[index][2] for index in range(len(data))] == [0, 1, 2, 3, 4]
    assert torch.equal(data[3][0], make_dataset(5)[3][0])
