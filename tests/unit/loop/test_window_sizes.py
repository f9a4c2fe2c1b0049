"""The size of a window is a function of where the run stands."""

from __future__ import annotations

import math
from typing import Any

import pytest

from drivetrain import ConfigError
from drivetrain.base.progress import Progress
from drivetrain.callbacks.gradient_accumulation_scheduler import GradientAccumulationScheduler
from drivetrain.loop.window_sizes import WindowSizes


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        (3, [3, 3, 3, 3, 3, 3]),
        ({0: 8, 2: 4, 4: 1}, [8, 8, 4, 4, 1, 1]),
        ({4: 1, 0: 8, 2: 4}, [8, 8, 4, 4, 1, 1]),
        ({3: 2}, [1, 1, 1, 2, 2, 2]),
    ],
)
def test_a_size_holds_from_its_first_epoch_on(sizes: Any, expected: list[int]) -> None:
    """An epoch that is not named would fall back to another size."""
    assert [WindowSizes(sizes).at(Progress(epoch=epoch)) for epoch in range(6)] == expected


def test_a_function_is_asked_with_the_steps_done() -> None:
    """A resumed run, or windows without a step, would count from somewhere else."""
    assert [WindowSizes(lambda step: 1 + step // 2).at(Progress(step=step, epoch=7)) for step in range(4)] == [
        1,
        1,
        2,
        2,
    ]


@pytest.mark.parametrize(
    ("sizes", "batches", "epochs", "most", "expected"),
    [
        (4, 10, 3, math.inf, 9),
        (4, 10, 3, 5, 5),
        ({0: 8, 2: 4, 4: 1}, 10, 1000, math.inf, 2 * 2 + 2 * 3 + 996 * 10),
        ({0: 8, 2: 4}, 10, 1, math.inf, 2),
        ({0: 8, 2: 4}, 10, 3, 6, 6),
        (lambda step: 1 if step < 4 else 3, 10, 2, math.inf, 6 + 4),
        (lambda step: 1, 10, 10**9, 7, 7),
    ],
)
def test_the_steps_of_a_run_are_known_beforehand(
    sizes: Any, batches: int, epochs: int, most: float, expected: int
) -> None:
    """A schedule that ends with the run would end somewhere else."""
    assert WindowSizes(sizes).num_steps(batches, epochs, most) == expected


@pytest.mark.parametrize(
    ("sizes", "code"),
    [
        (0, "limits"),
        (True, "limits"),
        ("4", "limits"),
        ({}, "window-size"),
        ({0: 0}, "window-size"),
        ({-1: 2}, "window-size"),
        ({"0": 2}, "window-size"),
        ({0: 2.0}, "window-size"),
    ],
)
def test_sizes_that_mean_nothing_are_refused(sizes: Any, code: str) -> None:
    """A window without a micro-batch would never end."""
    with pytest.raises(ConfigError) as caught:
        WindowSizes(sizes)
    assert caught.value.code == code
    if code == "window-size":
        with pytest.raises(ConfigError, match="scheduling="):
            GradientAccumulationScheduler(sizes)


@pytest.mark.parametrize("size", [0, -1, 1.5, None, True])
def test_a_function_that_gives_no_size_is_told(size: Any) -> None:
    """The run would stand still in empty windows."""
    with pytest.raises(ConfigError, match=f"accumulate_grad_batches gave {size!r} after 5 steps") as caught:
        WindowSizes(lambda step: size).at(Progress(step=5))
    assert caught.value.code == "window-size"
