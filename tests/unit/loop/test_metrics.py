"""Logged values: which are reported, under which names, weighted by what, and at what cost."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch

from drivetrain import LoggingError
from drivetrain.comm.collectives import SoloCollectives
from drivetrain.loop.metrics import MetricStore

Row = dict[str, float]


def log(store: MetricStore, name: str, value: Any, **options: Any) -> None:
    """As `Module.log` does, with its defaults."""
    given = {
        "prog_bar": False, "logger": True, "on_step": None, "on_epoch": None, "reduce_fx": "mean", "is_reduced": True,
        "batch_size": None, **options,
    }  # fmt: skip
    store.log(name, value, **given)


def run_epoch(
    windows: list[list[tuple[Any, Any]]], *, place: str = "train", store: MetricStore | None = None, **options: Any
) -> tuple[list[Row], Row]:
    """Windows of (value, weight) through a store: the rows of steps, and that of the epoch."""
    store = store if store is not None else MetricStore(SoloCollectives())
    store.begin_epoch(place)
    rows = []
    for window in windows:
        store.begin_window()
        for value, weight in window:
            store.samples = weight
            log(store, "x", value, **options)
            store.end_micro_batch(weight)
        rows.append(store.report_step())
    return rows, store.report_epoch()


ONE_EACH: list[list[tuple[Any, Any]]] = [[(1.0, 2)], [(4.0, 1)]]


@pytest.mark.parametrize(
    ("place", "options", "steps", "epoch"),
    [
        ("train", {}, [{"x": 1.0}, {"x": 4.0}], {}),
        ("train", {"on_epoch": True}, [{"x_step": 1.0}, {"x_step": 4.0}], {"x_epoch": 2.0}),
        ("train", {"on_step": False, "on_epoch": True}, [{}, {}], {"x": 2.0}),
        ("train", {"on_step": False}, [{}, {}], {}),
        ("evaluate", {}, [{}, {}], {"x": 2.0}),
        ("evaluate", {"on_epoch": False}, [{}, {}], {}),
    ],
)
def test_names_say_whether_a_value_is_of_a_step_or_of_an_epoch(
    place: str, options: dict[str, bool], steps: list[Row], epoch: Row
) -> None:
    """A monitor or a plot would look for a name that nobody writes."""
    assert run_epoch(ONE_EACH, place=place, **options) == (steps, epoch)


@pytest.mark.parametrize(
    ("reduce_fx", "window", "epoch"),
    [
        ("mean", 2.2, 3.0),
        ("avg", 2.2, 3.0),
        (torch.mean, 2.2, 3.0),
        ("sum", 6.0, 10.0),
        (sum, 6.0, 10.0),
        ("min", 1.0, 1.0),
        ("max", 3.0, 4.0),
        (torch.max, 3.0, 4.0),
    ],
)
@pytest.mark.parametrize("as_tensor", [False, True])
def test_values_are_reduced_over_micro_batches(reduce_fx: Any, window: float, epoch: float, as_tensor: bool) -> None:
    """A sum would be averaged, or a mean not be weighted."""
    values = [[(1.0, 1), (2.0, 2), (3.0, 2)], [(4.0, 3)]]
    wrap = torch.tensor if as_tensor else float
    windows = [[(wrap(value), weight) for value, weight in one] for one in values]
    rows, end = run_epoch(windows, reduce_fx=reduce_fx, on_epoch=True)
    assert rows[0] == {"x_step": pytest.approx(window, abs=1e-15)} and rows[1] == {"x_step": 4.0}
    assert end == {"x_epoch": pytest.approx(23 / 8 if epoch == 3.0 else epoch, abs=1e-15)}


def test_a_batch_size_of_ones_own_is_the_weight() -> None:
    """A batch of graphs would be weighted by its first tensor."""
    store = MetricStore(SoloCollectives())
    store.begin_epoch("train")
    store.begin_window()
    for value, size in ((1.0, 1), (5.0, 3)):
        log(store, "x", value, batch_size=size, on_epoch=True)
        store.end_micro_batch(10)
    assert store.report_step() == {"x_step": 4.0} and store.report_epoch() == {"x_epoch": 4.0}


def test_weights_may_be_tensors_of_the_device() -> None:
    """Token counts would have to be read back in each step."""
    rows, epoch = run_epoch(
        [[(torch.tensor(1.0), torch.tensor(1)), (torch.tensor(4.0), torch.tensor(2))]], on_epoch=True
    )
    assert rows == [{"x_step": 3.0}] and epoch == {"x_epoch": 3.0}


def test_a_mean_over_no_weight_is_no_number() -> None:
    """Zero would be reported for what was never measured."""
    _, epoch = run_epoch([[(1.0, 0)]], on_epoch=True)
    assert epoch["x_epoch"] != epoch["x_epoch"]


def test_sums_are_kept_in_double_precision() -> None:
    """An epoch of a million small losses would be off in the third digit."""
    windows = [[(torch.tensor(0.1), 1)] for _ in range(1000)]
    _, epoch = run_epoch(windows, on_step=False, on_epoch=True)
    assert abs(epoch["x"] - float(torch.tensor(0.1))) < 1e-12


def test_reported_values_can_be_read_under_both_names() -> None:
    """A callback that monitors `x` would fail once `on_step` is set too."""
    store = MetricStore(SoloCollectives())
    run_epoch(ONE_EACH, store=store, on_epoch=True)
    metrics = {name: float(value) for name, value in store.callback_metrics.items()}
    assert metrics == {"x": 2.0, "x_step": 4.0, "x_epoch": 2.0}
    assert all(value.ndim == 0 for value in store.callback_metrics.values())


def test_a_value_that_is_not_for_loggers_can_still_be_monitored() -> None:
    """`logger=False` would hide it from early stopping."""
    store = MetricStore(SoloCollectives())
    assert run_epoch(ONE_EACH, store=store, logger=False) == ([{}, {}], {})
    assert float(store.callback_metrics["x"]) == 4.0


def test_the_bar_shows_what_was_asked_for() -> None:
    """The bar would show nothing, or everything."""
    store = MetricStore(SoloCollectives())
    store.begin_epoch("train")
    store.begin_window()
    log(store, "shown", torch.tensor(1.0), prog_bar=True)
    log(store, "hidden", 2.0)
    log(store, "late", 3.0, prog_bar=True, on_step=False, on_epoch=True)
    assert store.bar_values() == {"shown": 1.0}
    store.end_micro_batch(1)
    store.report_epoch()
    assert store.bar_values() == {"shown": 1.0, "late": 3.0}
    store.begin_epoch("evaluate")
    log(store, "validated", 4.0, prog_bar=True)
    store.end_micro_batch(1)
    store.report_epoch()
    store.begin_epoch("train")
    assert store.bar_values()["validated"] == 4.0, "a value of validation is shown while training goes on"


def test_a_value_that_a_window_did_not_log_is_not_repeated() -> None:
    """A value logged each tenth step would be written in each."""
    store = MetricStore(SoloCollectives())
    store.begin_epoch("train")
    rows = []
    for number in range(3):
        store.begin_window()
        if number != 1:
            log(store, "x", float(number))
        store.end_micro_batch(1)
        rows.append(store.report_step())
    assert rows == [{"x": 0.0}, {}, {"x": 2.0}]


def test_each_epoch_starts_anew() -> None:
    """The mean of an epoch would hold those before it."""
    store = MetricStore(SoloCollectives())
    assert run_epoch([[(1.0, 1)]], store=store, on_epoch=True)[1] == {"x_epoch": 1.0}
    assert run_epoch([[(3.0, 1)]], store=store, on_epoch=True)[1] == {"x_epoch": 3.0}


def test_a_graph_is_not_kept() -> None:
    """Memory would grow with each logged loss."""
    store = MetricStore(SoloCollectives())
    store.begin_epoch("train")
    store.begin_window()
    log(store, "x", torch.ones(1, requires_grad=True) * 2, on_epoch=True)
    ((value, _, _),) = store.entries["x"].pending
    assert value.ndim == 0 and not value.requires_grad
    store.end_micro_batch(1)
    assert not store.entries["x"].total.requires_grad


def test_the_number_of_kept_tensors_does_not_grow_with_the_epoch() -> None:
    """A long epoch would fill the device's memory."""

    def tensors_after(num_windows: int) -> int:
        store = MetricStore(SoloCollectives())
        store.begin_epoch("train")
        gc.collect()
        before = sum(issubclass(type(one), torch.Tensor) for one in gc.get_objects())
        for _ in range(num_windows):
            store.begin_window()
            log(store, "x", torch.ones(()), on_epoch=True)
            store.end_micro_batch(torch.ones(()))
        gc.collect()
        return sum(issubclass(type(one), torch.Tensor) for one in gc.get_objects()) - before

    assert tensors_after(200) == tensors_after(5) < 8


def test_the_last_batchs_hooks_and_the_end_of_an_evaluation_count() -> None:
    """What is computed over a whole evaluation, and logged at its end, would be lost."""
    store = MetricStore(SoloCollectives())
    store.begin_epoch("evaluate")
    store.begin_window()
    log(store, "batch", 1.0)
    store.end_micro_batch(2)
    store.begin_window()
    log(store, "batch", 4.0)
    store.end_micro_batch(1)
    log(store, "after", 7.0)
    store.end_evaluation()
    log(store, "end", 5.0)
    assert store.report_epoch() == {"batch": 2.0, "after": 7.0, "end": 5.0}


def test_a_metric_object_is_computed_at_the_end_of_the_epoch_and_reset() -> None:
    """An accuracy would be the mean of its batches, or go on over epochs."""

    class Best:
        def __init__(self) -> None:
            self.value = 0.0

        def update(self, value: float) -> None:
            self.value = max(self.value, value)

        def compute(self) -> torch.Tensor:
            return torch.tensor(self.value)

        def reset(self) -> None:
            self.value = 0.0

    best, store = Best(), MetricStore(SoloCollectives())
    store.begin_epoch("evaluate")
    for value in (1.0, 3.0, 2.0):
        store.begin_window()
        best.update(value)
        log(store, "best", best)
        store.end_micro_batch(1)
    assert store.report_epoch() == {"best": 3.0}
    assert best.value == 0.0 and float(store.callback_metrics["best"]) == 3.0


def test_with_several_loaders_names_have_the_loaders_number() -> None:
    """Two validation sets would be averaged into one value."""
    store = MetricStore(SoloCollectives())
    store.begin_epoch("evaluate")
    for number in range(2):
        store.loader_suffix = f"/dataloader_idx_{number}"
        store.begin_window()
        log(store, "x", float(number))
        log(store, "both", float(number), add_dataloader_idx=False)
        store.end_micro_batch(1)
    assert store.report_epoch() == {"x/dataloader_idx_0": 0.0, "x/dataloader_idx_1": 1.0, "both": 0.5}


@pytest.mark.parametrize(
    ("name", "value", "options", "code", "text"),
    [
        ("x", torch.ones(3), {}, "log-value", "shape [3]"),
        ("x", "text", {}, "log-value", "a str"),
        ("x", None, {}, "log-value", "a NoneType"),
        (3, 1.0, {}, "log-name", "the name 3"),
        ("x", 1.0, {"reduce_fx": "median"}, "log-reduction", "'median'"),
        ("x", 1.0, {"reduce_fx": torch.std}, "log-reduction", "std"),
    ],
)
def test_what_cannot_be_logged_is_refused(name: Any, value: Any, options: dict[str, Any], code: str, text: str) -> None:
    """It would fail at the end of the epoch, far from the line that logged it."""
    store = MetricStore(SoloCollectives())
    store.begin_epoch("train")
    store.begin_window()
    with pytest.raises(LoggingError) as caught:
        log(store, name, value, **options)
    assert caught.value.code == code and text in str(caught.value)


def test_a_value_logged_where_nothing_reports_it_is_refused() -> None:
    """It would be lost without a word."""
    with pytest.raises(LoggingError, match=r"log\('x'\)") as caught:
        log(MetricStore(SoloCollectives()), "x", 1.0)
    assert caught.value.code == "log-place"


def test_a_value_of_steps_cannot_become_one_of_an_epoch() -> None:
    """What is logged at the end of an epoch would be lost, since the name is one of steps."""
    store = MetricStore(SoloCollectives())
    run_epoch(ONE_EACH, store=store)
    store.place = "epoch_end"
    with pytest.raises(LoggingError, match=r"log\('x'\) was called at the end of an epoch") as caught:
        log(store, "x", 1.0)
    assert caught.value.code == "log-place"
