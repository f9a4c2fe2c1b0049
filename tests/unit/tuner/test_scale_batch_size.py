"""`Tuner.scale_batch_size`."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch

from drivetrain import ConfigError, DataModule, OutOfMemoryError, Tuner
from tests.unit.trainer.runs import Classifier, are_equal, loader, weights
from tests.unit.tuner.test_lr_find import quiet


def memory_for(num_samples: int) -> Callable[[int], None]:
    """A device that holds so many samples."""

    def probe(size: int) -> None:
        if size > num_samples:
            raise torch.OutOfMemoryError(f"{size} samples")

    return probe


def count_tensors() -> int:
    """Those that live, without asking each object of this process for its class."""
    return sum(issubclass(type(one), torch.Tensor) for one in gc.get_objects())


def scale(module: Any = None, length: int = 200, tuner: Tuner | None = None, **options: Any) -> int | None:
    return (tuner or Tuner(quiet())).scale_batch_size(module or Classifier(), loader(length), **options)


@pytest.mark.parametrize(
    ("mode", "first", "fits", "result", "tried"),
    [
        ("power", 2, 24, 16, [2, 4, 8, 16, 32]),
        ("binsearch", 2, 24, 24, [2, 4, 8, 16, 32, 24, 28, 26, 25]),
        ("power", 32, 5, 4, [32, 16, 8, 4]),
        ("binsearch", 32, 5, 5, [32, 16, 8, 4, 6, 5]),
        ("binsearch", 1, 1, 1, [1, 2]),
    ],
)
def test_the_largest_size_that_fits_is_found(mode: Any, first: int, fits: int, result: int, tried: list[int]) -> None:
    """Memory that is there would not be used, or training would run out of it."""
    tuner = Tuner(quiet())
    size = scale(tuner=tuner, mode=mode, init_val=first, steps_per_trial=1, probe=memory_for(fits))
    assert (size, list(tuner.tried)) == (result, tried)
    assert tuner.tried == {one: one <= fits for one in tried}


def test_no_size_is_larger_than_the_data() -> None:
    """A small data set would fit for ever."""
    assert scale(length=21, steps_per_trial=1) == 21


def test_trials_are_limited() -> None:
    """A search that does not end, where each trial takes long."""
    assert scale(steps_per_trial=1, max_trials=3) == 8


def test_where_nothing_fits_that_is_said() -> None:
    """The search would go on with half a sample."""
    with pytest.raises(OutOfMemoryError, match="1 sample does not fit"):
        scale(init_val=4, probe=memory_for(0))


def test_other_errors_are_not_taken_for_memory() -> None:
    """A bug in the model would look like a small device."""

    def probe(size: int) -> None:
        raise RuntimeError("shapes do not match")

    with pytest.raises(RuntimeError, match="shapes do not match"):
        scale(probe=probe)


def test_nothing_is_left_of_the_trials(capsys: pytest.CaptureFixture[str]) -> None:
    """Memory of failed trials would be missing in the training; weights would be those of a search."""
    module, trainer = Classifier(), quiet()
    before, rng = weights(module), torch.get_rng_state()
    scale(tuner=Tuner(trainer), module=module, steps_per_trial=1, probe=memory_for(10))  # imports and caches
    gc.collect()
    num_tensors = count_tensors()
    scale(tuner=Tuner(trainer), module=module, steps_per_trial=1, probe=memory_for(10))
    gc.collect()
    assert count_tensors() <= num_tensors
    assert are_equal(weights(module), before) and torch.equal(torch.get_rng_state(), rng)
    assert (trainer.global_step, trainer.global_batch_size, trainer.run) == (0, None, None)
    assert capsys.readouterr().out == ""


class Data(DataModule):
    batch_size = 4
    num_setups = 0

    def setup(self, stage: str) -> None:
        self.num_setups += 1

    def train_dataloader(self) -> Any:
        return loader(100, batch_size=self.batch_size)


def test_the_result_is_set_where_that_was_asked_for() -> None:
    """It would be lost; or set without being asked for."""
    data = Data()
    options: dict[str, Any] = {"datamodule": data, "steps_per_trial": 1, "probe": memory_for(16)}
    assert Tuner(quiet()).scale_batch_size(Classifier(), **options) == 16
    assert data.batch_size == 4 and data.trainer is None
    assert Tuner(quiet()).scale_batch_size(Classifier(), **options, update_attr=True) == 16
    assert data.batch_size == 16
    with pytest.raises(ConfigError, match="no attribute batch_size"):
        scale(update_attr=True)


@pytest.mark.parametrize("options", [{"mode": "guess"}, {"init_val": 0}, {"steps_per_trial": 0}])
def test_a_search_that_means_nothing_is_refused(options: Any) -> None:
    """It would run for ever, or find what is not there."""
    with pytest.raises(ConfigError) as refused:
        scale(**options)
    assert refused.value.code == "batch-size"
