"""Bars that users derive."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest

from drivetrain import HookError, NotOpenError, ProgressBar, RichProgressBar, TQDMProgressBar, Trainer
from drivetrain.callbacks import Callback, RichProgressBarTheme
from drivetrain.callbacks.progress_display import LiveDisplay, Status
from tests.unit.trainer.runs import QUIET, Classifier, loader


class Percent(ProgressBar):
    """Notes what a script would draw."""

    def __init__(self) -> None:
        self.drawn: list[Any] = []
        self.values: list[str] = []

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self.is_enabled:
            self.drawn.append(100 * self.train_batch_idx / self.total_train_batches)
            self.values = sorted(self.get_metrics(trainer, pl_module))

    def on_validation_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        if self.is_enabled:
            one = self.total_val_batches_current_dataloader
            self.drawn.append((self.val_batch_idx, one, self.total_val_batches, trainer.sanity_checking))

    def on_test_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self.drawn.append((self.test_batch_idx, self.total_test_batches_current_dataloader, self.total_test_batches))

    def on_predict_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self.drawn.append((self.predict_batch_idx, self.total_predict_batches_current_dataloader))


class Shown(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        self.log("loss", loss, prog_bar=True)
        return loss


def trainer_with(*callbacks: Callback, **options: Any) -> Trainer:
    return Trainer(**{**QUIET, "enable_progress_bar": True, "max_epochs": 1, "callbacks": list(callbacks), **options})


def test_a_bar_of_ones_own_knows_how_much_there_is_and_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    """It would show nothing, or another bar beside it."""
    bar = Percent()
    trainer = trainer_with(bar, num_sanity_val_steps=1)
    trainer.fit(Shown(), loader(16), [loader(8), loader(12)])
    sanity = [(1, 1, 2, True), (1, 1, 2, True)]
    validation = [(1, 2, 5, False), (2, 2, 5, False), (1, 3, 5, False), (2, 3, 5, False), (3, 3, 5, False)]
    assert bar.drawn == [*sanity, 25.0, 50.0, 75.0, 100.0, *validation] and bar.values == ["loss"]
    assert trainer.progress_bar_callback is bar and trainer.callbacks == [bar]
    bar.drawn.clear()
    trainer.test(Shown(), [loader(4), loader(8)], verbose=False)
    trainer.predict(Shown(), loader(8))
    assert bar.drawn == [(1, 1, 3), (1, 2, 3), (2, 2, 3), (1, 2), (2, 2)]
    assert capsys.readouterr().err == ""


def test_a_bar_is_shown_while_it_is_enabled_and_knows_its_run_only_in_it() -> None:
    """A script could not switch it off; or it would keep the trainer, and go with it to other processes."""

    class Halved(Percent):
        def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
            self.disable() if batch_idx in (1, 2) else self.enable()
            assert copy.copy(self)._trainer is None

    bar = Halved()
    trainer_with(bar).fit(Shown(), loader(16))
    assert bar.drawn == [25.0, 100.0] and bar.is_enabled
    with pytest.raises(NotOpenError, match="Halved was asked for its run outside of one"):
        bar.total_train_batches  # noqa: B018


def test_the_bar_that_comes_with_it_can_be_switched_off() -> None:
    """`disable` would be taken, and change nothing."""
    file = io.StringIO()
    bar = RichProgressBar(file=file)
    bar.disable()
    trainer_with(bar).fit(Shown(), loader(8))
    assert file.getvalue() == "" and bar.is_disabled
    bar.enable()
    trainer_with(bar).fit(Shown(), loader(8))
    assert file.getvalue().startswith("Epoch 1/1: 2/2 steps")


def test_the_rank_decides_whether_a_bar_is_enabled() -> None:
    """As many bars as ranks."""

    class Other:
        is_global_zero = False

    bar = Percent()
    bar.setup(Other(), None, "fit")
    assert bar.is_disabled
    bar.teardown(Other(), None, "fit")


def drawn(theme: Any, color_system: str | None = "truecolor") -> str:
    from rich.console import Console

    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=120, color_system=color_system)  # type: ignore[arg-type]
    display = LiveDisplay(console, 1.0, RichProgressBar(theme=theme).theme)
    display.show(Status("train", "Epoch 1/2", 5, 10, "steps", 2.0, {"loss": 0.123456, "acc": 0.5, "run": "a"}))
    display.close()
    return file.getvalue()


def test_a_theme_is_what_a_live_bar_looks_like() -> None:
    """The argument would be taken, and change nothing."""
    theme = RichProgressBarTheme(
        description="#000001", progress_bar="#000002", batch_progress="#000003", time="#000004",
        processing_speed="#000005", metrics="#000006", metrics_text_delimiter=" | ", metrics_format=".2f",
    )  # fmt: skip
    text = drawn(theme)
    for number, part in enumerate(("Epoch 1/2", "━", "5/10 steps", "0:00:02 left", "2 steps/s", "loss=0.12"), 1):
        assert f"38;2;0;0;{number}m{part}" in text, part
    plain = drawn(theme, color_system=None)
    assert "0:00:02 left, loss=0.12 | acc=0.50 | run=a" in plain
    assert "loss=0.1235, acc=0.5, run=a" in drawn(None, color_system=None)
    assert drawn({"metrics_format": ".2f"}, color_system=None).count("loss=0.12,") > 0
    with pytest.raises(TypeError, match="no_such"):
        RichProgressBar(theme={"no_such": "red"})


class NotedTqdm:
    """What a bar of tqdm is told."""

    made: list[NotedTqdm] = []

    def __init__(self, desc: str) -> None:
        self.desc, self.n, self.total, self.is_closed = desc, 0, None, False
        self.drawn: list[Any] = []
        self.postfix: dict[str, Any] = {}
        NotedTqdm.made.append(self)

    def reset(self, total: int | None = None) -> None:
        self.n, self.total = 0, total

    def set_description(self, desc: str, refresh: bool = True) -> None:
        self.desc = desc

    def set_postfix(self, values: dict[str, Any], refresh: bool = True) -> None:
        self.postfix = values

    def refresh(self) -> None:
        self.drawn.append((self.desc, self.n, self.total, sorted(self.postfix)))

    def close(self) -> None:
        self.is_closed = True


def test_bars_of_tqdm_that_a_subclass_makes_are_drawn() -> None:
    """They would be made, and nothing be shown in them."""

    class Own(TQDMProgressBar):
        def init_train_tqdm(self) -> Any:
            return NotedTqdm(self.train_description)

        def init_validation_tqdm(self) -> Any:
            return NotedTqdm("checking")

        def init_sanity_tqdm(self) -> Any:
            return NotedTqdm("sanity")

        def init_test_tqdm(self) -> Any:
            return NotedTqdm("testing")

    NotedTqdm.made.clear()
    bar = Own()
    bar.refresh_s = 0.0
    trainer = trainer_with(bar, max_epochs=2, num_sanity_val_steps=1)
    trainer.fit(Shown(), loader(8), loader(4))
    trainer.test(Shown(), loader(4), verbose=False)
    sanity, train, first, second, test = NotedTqdm.made
    assert [one for index, one in enumerate(train.drawn) if one not in train.drawn[:index]] == [
        ("Epoch 1/2", 1, 2, ["loss"]), ("Epoch 1/2", 2, 2, ["loss"]),
        ("Epoch 2/2", 1, 2, ["loss"]), ("Epoch 2/2", 2, 2, ["loss"]),
    ]  # fmt: skip
    assert sanity.desc == "sanity" and first.drawn == second.drawn == [("checking", 1, 1, [])]
    assert test.drawn[-1] == ("testing", 1, 1, []) and all(one.is_closed for one in NotedTqdm.made)


def test_bars_of_the_real_tqdm_are_drawn() -> None:
    """The fake of the test above would be what is drawn to."""
    pytest.importorskip("tqdm")

    class Described(TQDMProgressBar):
        def init_validation_tqdm(self) -> Any:
            bar = super().init_validation_tqdm()
            bar.set_description("checking")
            return bar

    file = io.StringIO()
    bar = Described()
    bar.refresh_s, bar._file = 0.0, file
    trainer_with(bar).fit(Shown(), loader(8), loader(4))
    text = file.getvalue()
    assert "Epoch 1/1: 100%" in text and "2/2" in text and "loss=" in text and "checking: 100%" in text


def test_bars_of_tqdm_elsewhere_are_refused() -> None:
    """They would never be made."""
    kind = type("Mine", (RichProgressBar,), {"init_train_tqdm": lambda self: None})
    with pytest.raises(HookError, match="init_train_tqdm") as refused:
        trainer_with(kind())
    assert "TQDMProgressBar" in str(refused.value)
