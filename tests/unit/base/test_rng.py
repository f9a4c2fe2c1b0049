"""Random state: seeded alike everywhere, kept and put back whole."""

from __future__ import annotations

import random
import subprocess
import sys

import numpy
import pytest
import torch

from drivetrain import ConfigError, seed_everything
from drivetrain.base.rng import capture_rng, forked_rng, mix_seed, restore_rng


def draw() -> tuple[float, float, float]:
    return random.random(), float(numpy.random.rand()), float(torch.rand(()))


def test_one_seed_seeds_python_numpy_and_torch() -> None:
    """Augmentations that draw from one of the three would differ between two equal runs."""
    assert seed_everything(7, verbose=False) == 7
    first = draw()
    seed_everything(7, verbose=False)
    assert draw() == first
    seed_everything(8, verbose=False)
    assert all(a != b for a, b in zip(draw(), first, strict=True))


def test_without_a_seed_one_is_drawn_and_given_back(capsys: pytest.CaptureFixture[str]) -> None:
    """A run without a seed could never be repeated."""
    seed = seed_everything(None)
    assert 0 <= seed < 2**32
    assert str(seed) in capsys.readouterr().err
    first = draw()
    seed_everything(seed, verbose=False)
    assert draw() == first


@pytest.mark.parametrize("seed", [-1, 2**32, 1.5, True, "3"])
def test_a_seed_outside_its_range_is_refused(seed: object) -> None:
    """NumPy would refuse it with words of its own, after Python was seeded."""
    with pytest.raises(ConfigError) as caught:
        seed_everything(seed, verbose=False)  # type: ignore[arg-type]
    assert caught.value.code == "seed" and repr(seed) in str(caught.value)


def test_captured_state_is_plain_and_comes_back() -> None:
    """A resumed run would draw other numbers than the one that was stopped."""
    random.gauss(0, 1)  # leaves a second number behind, which is part of the state
    numpy.random.randn()
    state = capture_rng()
    first = (draw(), random.gauss(0, 1), float(numpy.random.randn()))
    restore_rng(state)
    assert (draw(), random.gauss(0, 1), float(numpy.random.randn())) == first


def test_a_state_without_numpy_leaves_numpy_alone() -> None:
    """A checkpoint of a process that had no NumPy could not be read by one that has it."""
    state = capture_rng()
    del state["numpy"]
    numpy.random.seed(3)
    before = numpy.random.get_state()[1].tolist()
    restore_rng(state)
    assert numpy.random.get_state()[1].tolist() == before


def test_a_borrowed_state_is_put_back_even_after_an_error() -> None:
    """Drawing the order of an epoch would change the dropout masks after it."""
    seed_everything(1, verbose=False)
    state = capture_rng()
    expected = draw()
    restore_rng(state)
    with pytest.raises(KeyError), forked_rng(5):
        inside = draw()
        raise KeyError
    assert draw() == expected
    with forked_rng(5):
        assert draw() == inside


def test_mixed_seeds_are_stable_and_apart() -> None:
    """Ranks, machines or Python versions would shuffle differently; or epochs alike."""
    assert mix_seed(1, 2) == 863661761539424187
    seeds = {mix_seed(a, b) for a in range(30) for b in range(30)}
    assert len(seeds) == 900
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert mix_seed(1, 23) != mix_seed(12, 3)


def test_mixed_seeds_do_not_depend_on_the_process() -> None:
    """Python's own hash differs from process to process."""
    code = "from drivetrain.base.rng import mix_seed; print(mix_seed(11, 4, 0))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert int(shown) == mix_seed(11, 4, 0)
