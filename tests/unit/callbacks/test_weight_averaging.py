from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.swa_utils import update_bn

from drivetrain import Callback, Module, Trainer
from drivetrain.base.errors import ConfigError
from drivetrain.callbacks.stochastic_weight_averaging import StochasticWeightAveraging
from drivetrain.callbacks.weight_averaging import EMA, WeightAveraging
from drivetrain.testing.fixtures import make_mlp
from tests.unit.trainer.runs import QUIET, Classifier, are_equal, fit, loader, weights


class Trail(Callback):
    """Keeps the weights after each optimizer step, and those that validation and the test see."""

    runs_last = True

    def __init__(self) -> None:
        self.trained: list[dict[str, Tensor]] = []
        self.seen: list[dict[str, Tensor]] = []

    def on_step_end(self, trainer: Any, pl_module: Any) -> None:
        self.trained.append(weights(pl_module))

    def on_validation_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self.seen.append(weights(pl_module))

    on_test_epoch_start = on_validation_epoch_start


def mean_of(trained: list[dict[str, Tensor]], decay: float | None = None) -> dict[str, Tensor]:
    """The closed form: of the first weights and those after."""
    last = len(trained) - 1
    parts = [1 / len(trained)] * len(trained)
    if decay is not None:
        parts = [decay**last, *((1 - decay) * decay ** (last - index) for index in range(1, last + 1))]
    return {name: sum(p * one[name] for p, one in zip(parts, trained, strict=True)) for name in trained[0]}  # type: ignore[misc]


def assert_close(left: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    torch.testing.assert_close(left, right, rtol=0, atol=1e-14)


@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize("decay", [0.9, None])
def test_the_average_after_some_steps_is_the_closed_form(window: int, decay: float | None) -> None:
    """It would be updated with each micro-batch, twice in a step, or with weights of before it."""
    trail = Trail()
    module, _ = fit(accumulate_grad_batches=window, max_epochs=2, callbacks=[WeightAveraging(decay), trail])
    assert len(trail.trained) == 12 // window
    assert_close(weights(module), mean_of(trail.trained, decay))


def test_an_average_of_ones_own_is_given_value_and_number() -> None:
    """A function that needs the number of updates would average something else."""
    trail = Trail()
    module, _ = fit(callbacks=[WeightAveraging(avg_fn=lambda a, v, n: (a * n + v) / (n + 1)), trail])
    assert_close(weights(module), mean_of(trail.trained))


def test_updates_come_at_their_interval_and_not_before_their_beginning() -> None:
    """The average would hold the first, bad weights; or of an interval with a unit each step."""
    trail = Trail()
    average = EMA(0.5, update_every="2 steps", update_starting_at_step=4)
    module, _ = fit(max_epochs=2, callbacks=[average, trail])
    assert average.num_updates == 5
    assert_close(weights(module), mean_of(trail.trained[3::2], 0.5))


def test_the_end_of_an_epoch_is_averaged_before_its_validation() -> None:
    """Validation would see the average of the epoch before."""
    trail = Trail()
    fit(max_epochs=2, val_data=loader(), num_sanity_val_steps=0, callbacks=[EMA(0.5, "1 epoch"), trail])
    assert_close(trail.seen[0], trail.trained[5])
    assert_close(trail.seen[1], mean_of(trail.trained[5::6], 0.5))


class SomeSkipped(Classifier):
    """Its losses of odd batches have no weight."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return {"loss": self.loss_of(batch), "weight": float(batch_idx % 2 == 0)}


@pytest.mark.filterwarnings("ignore:A window had no weight")
def test_a_step_that_was_skipped_is_no_update() -> None:
    """Weights that did not change would count twice."""
    trail, average = Trail(), EMA(0.9)
    module, trainer = fit(SomeSkipped(), callbacks=[average, trail])
    assert trainer.global_step == 6 and average.num_updates == 3
    assert_close(weights(module), mean_of(trail.trained[::2], 0.9))


def test_a_step_whose_scaled_gradients_overflow_is_no_update() -> None:
    """Weights that did not change would count twice in float16."""

    class Overflows(Classifier):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.loss_of(batch) * (float("inf") if batch_idx == 1 else 1.0)

    average = EMA(0.9)
    _, trainer = fit(Overflows(), callbacks=[average], precision="16-mixed")
    assert trainer.global_step == 6 and average.num_updates == 5


def test_validation_and_test_see_the_average_and_training_goes_on_without_it() -> None:
    """Training would go on from the average, or the reported loss would be that of other weights."""
    trail, plain = Trail(), Trail()
    average = EMA(0.5)
    data = {"val_data": loader(), "max_epochs": 2, "val_check_interval": 2, "num_sanity_val_steps": 1}
    module, trainer = fit(callbacks=[average, trail], **data)
    fit(callbacks=[plain], **data)
    assert all(are_equal(*pair) for pair in zip(trail.trained, plain.trained, strict=True))
    for number, seen in enumerate(trail.seen[1:], 1):
        assert_close(seen, mean_of(trail.trained[: 2 * number], 0.5))
    trainer.test(module, loader(), verbose=False)
    assert_close(trail.seen[-1], mean_of(trail.trained, 0.5))
    assert_close(weights(module), trail.seen[-1])


def test_the_weights_of_training_are_back_after_an_exception() -> None:
    """A run that is saved, or goes on, after a failing validation would do so with the average."""

    class Fails(Classifier):
        def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
            raise KeyError("validation")

    trail, module = Trail(), Fails()
    with pytest.raises(KeyError):
        fit(module, val_data=loader(), num_sanity_val_steps=0, callbacks=[EMA(0.5), trail])
    assert are_equal(weights(module), trail.trained[-1])


@pytest.mark.parametrize("stop", [1, 4, 6, 7])
def test_a_resumed_run_is_the_uninterrupted_one(tmp_path: Path, stop: int) -> None:
    """The average would begin anew, or training go on from the average."""
    data: dict[str, Any] = {"val_data": loader(), "max_epochs": 2, "num_sanity_val_steps": 0}
    trail = Trail()
    module, _ = fit(callbacks=[EMA(0.7, "2 steps"), trail], **data)
    _, first = fit(callbacks=[EMA(0.7, "2 steps")], **{**data, "max_epochs": -1, "max_steps": stop})
    first.save_checkpoint(tmp_path / "a")
    rest, resumed = Trail(), Classifier()
    trainer = Trainer(**QUIET, max_epochs=2, callbacks=[EMA(0.7, "2 steps"), rest])
    trainer.fit(resumed, loader(), loader(), ckpt_path=tmp_path / "a")
    assert all(are_equal(*pair) for pair in zip(rest.trained, trail.trained[stop:], strict=True))
    assert are_equal(weights(resumed), weights(module))


def test_a_checkpoint_made_in_training_holds_the_average_as_its_model(tmp_path: Path) -> None:
    """What was validated, and what is loaded from the checkpoint, would be two models."""

    class Saves(Callback):
        def on_step_end(self, trainer: Any, pl_module: Any) -> None:
            before = weights(pl_module)
            trainer.save_checkpoint(tmp_path / f"{trainer.global_step}")
            assert are_equal(before, weights(pl_module))

    trail = Trail()
    fit(callbacks=[EMA(0.5), trail, Saves()])
    module = Classifier.load_from_checkpoint(tmp_path / "4")
    assert_close(weights(module), mean_of(trail.trained[:4], 0.5))
    tested = Trail()
    Trainer(**QUIET, callbacks=[EMA(0.5), tested]).test(Classifier(), loader(), ckpt_path=tmp_path / "4", verbose=False)
    assert_close(tested.seen[0], mean_of(trail.trained[:4], 0.5))
    # Of one that holds no average, the weights themselves are tested, whatever was averaged before.
    _, trainer = fit(max_epochs=1)
    trainer.save_checkpoint(tmp_path / "plain")
    average = EMA(0.5)
    other, trainer = fit(callbacks=[average, tested], max_epochs=1)
    trainer.test(other, loader(), ckpt_path=tmp_path / "plain", verbose=False)
    assert are_equal(tested.seen[-1], weights(Classifier.load_from_checkpoint(tmp_path / "plain")))


def test_a_resumed_run_without_the_callback_is_told_that_it_trains_the_average(tmp_path: Path) -> None:
    """It would go on from other weights than those that were trained, without a word."""
    _, trainer = fit(callbacks=[EMA(0.5)])
    trainer.save_checkpoint(tmp_path / "a")
    with pytest.warns(UserWarning, match="EMA.decay=0.5, update_every=1 step. holds the weights that were trained"):
        Trainer(**QUIET, max_epochs=2, callbacks=[EMA(0.6)]).fit(Classifier(), loader(), ckpt_path=tmp_path / "a")


def test_a_second_fit_goes_on_unless_the_module_was_changed() -> None:
    """Weights that a user has loaded would be overwritten by those of the run before."""
    trail, whole = Trail(), Trail()
    module = Classifier()
    trainer = Trainer(**QUIET, max_epochs=1, callbacks=[EMA(0.5), trail])
    trainer.fit(module, loader())
    trainer.limits = replace(trainer.limits, max_epochs=2)
    trainer.fit(module, loader())
    fit(max_epochs=2, callbacks=[whole])
    assert are_equal(trail.trained[-1], whole.trained[-1])
    assert_close(weights(module), mean_of(whole.trained, 0.5))
    with torch.no_grad():
        module.net[0].bias.fill_(1.0)
    trainer.limits = replace(trainer.limits, max_epochs=3)
    with pytest.warns(UserWarning, match="changed since its weights were averaged"):
        trainer.fit(module, loader())
    assert_close(weights(module), mean_of(trail.trained[-6:], 0.5))


def test_an_average_of_bfloat16_is_kept_in_float32() -> None:
    """A small step of the average would be rounded away."""
    average = EMA(0.9)
    module = nn.Linear(1, 1, bias=False).to(torch.bfloat16)
    module.weight.data.fill_(1.0)
    average.update(module)
    module.weight.data.fill_(1.015625)
    average.update(module)
    assert average.state_dict()["average"]["weight"].item() == pytest.approx(1.0015625, abs=1e-6)


class Normed(Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = make_mlp(has_batch_norm=True, dropout=0.5)

    def forward(self, features: Tensor) -> Tensor:
        outputs: Tensor = self.net(features)
        return outputs

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return functional.cross_entropy(self(batch[0]), batch[1])

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val", functional.cross_entropy(self(batch[0]), batch[1]))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]


def test_averaged_buffers_are_evaluated_with_and_put_back() -> None:
    """Evaluation would have the batch statistics of other weights; or training go on with averaged ones."""
    runs = []
    for options in ({"use_buffers": True}, {}):
        torch.manual_seed(0)
        trail = Trail()
        fit(Normed(), callbacks=[EMA(0.5, **options), trail], val_data=loader(), num_sanity_val_steps=0)
        runs.append(trail)
    average = mean_of(runs[0].trained, 0.5)
    torch.testing.assert_close(runs[0].seen[0]["net.1.running_var"], average["net.1.running_var"], rtol=0, atol=1e-14)
    assert torch.equal(runs[1].seen[0]["net.1.running_var"], runs[1].trained[-1]["net.1.running_var"])
    assert all(are_equal(*pair) for pair in zip(runs[0].trained, runs[1].trained, strict=True))


def test_two_averages_keep_separate_states_and_only_one_may_replace_the_weights(tmp_path: Path) -> None:
    """One average would be taken for what is trained by the other; or a resumed run would mix them up."""
    with pytest.raises(ConfigError, match="would both put their average") as raised:
        fit(callbacks=[EMA(0.9), EMA(0.5)])
    assert raised.value.code == "weight-averaging"
    pair = [EMA(0.9), EMA(0.5, use_in_evaluation=False)]
    module, trainer = fit(callbacks=pair)
    trainer.save_checkpoint(tmp_path / "a")
    other = [EMA(0.5, use_in_evaluation=False), EMA(0.9)]
    resumed = Trainer(**QUIET, max_epochs=1, callbacks=other)
    resumed.fit(Classifier(), loader(), ckpt_path=tmp_path / "a")
    for mine, saved in zip(other, reversed(pair), strict=True):
        with mine.averaged(resumed, resumed.model), saved.averaged(trainer, module):
            assert are_equal(weights(resumed.model), weights(module))  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{"decay": 1.0}, {"decay": -0.1}, {"decay": 0.9, "avg_fn": max}])
def test_arguments_that_mean_nothing_are_refused(options: dict[str, Any]) -> None:
    """An average that never moves."""
    with pytest.raises(ConfigError) as raised:
        WeightAveraging(**options)
    assert raised.value.code == "weight-averaging"


# ---------------------------------------------------------------- stochastic weight averaging


class Rates(Callback):
    def __init__(self) -> None:
        self.rates: list[float] = []

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 0:
            self.rates.append(trainer.optimizers[0].param_groups[0]["lr"])


def test_the_ends_of_the_last_epochs_are_averaged_at_their_own_rate() -> None:
    """A rate that the schedulers keep on lowering; or an average of the wrong epochs."""
    trail, rates = Trail(), Rates()
    swa = StochasticWeightAveraging(0.5, swa_epoch_start=0.5, annealing_epochs=2, annealing_strategy="linear")
    module, _ = fit(Normed(), max_epochs=8, callbacks=[swa, trail, rates], val_data=loader())
    before = 0.1 * 0.9**4
    assert rates.rates == pytest.approx([0.1, 0.09, 0.081, 0.0729, before, (before + 0.5) / 2, 0.5, 0.5])
    average = mean_of(trail.trained[29::6])
    parameters = {name for name, _ in module.named_parameters()}
    assert_close(
        {name: value for name, value in weights(module).items() if name in parameters},
        {name: value for name, value in average.items() if name in parameters},
    )
    assert are_equal(trail.seen[-1], trail.trained[-1])  # validation during training is of what is trained


def test_batch_statistics_are_those_of_the_average() -> None:
    """The average would be evaluated with the statistics of other weights."""
    module, _ = fit(Normed(), max_epochs=2, callbacks=[StochasticWeightAveraging(0.1, 1)])
    reference = Normed()
    reference.load_state_dict(module.state_dict())
    reference.net[3].p = 0.0  # the statistics of evaluation
    update_bn([features for features, _ in loader()], reference)
    assert_close(weights(module), weights(reference))
    assert all(one.training for one in module.modules()) and module.net[1].momentum == 0.1


@pytest.mark.parametrize("stop", [5, 12, 15])
def test_a_resumed_run_of_stochastic_averaging_is_the_uninterrupted_one(tmp_path: Path, stop: int) -> None:
    """The rates from which it began, or the average, would be lost; or the batch statistics of the end kept."""

    def swa() -> StochasticWeightAveraging:
        return StochasticWeightAveraging(0.3, 1, annealing_epochs=3)

    class Plain(Normed):
        def __init__(self) -> None:
            super().__init__()
            self.net[3].p = 0.0

    module, _ = fit(Plain(), max_epochs=4, callbacks=[swa()])
    with pytest.warns(UserWarning, match="ended before its first epoch") if stop < 6 else nullcontext():
        _, first = fit(Plain(), max_epochs=-1, max_steps=stop, callbacks=[swa()])
    first.save_checkpoint(tmp_path / "a")
    trainer = Trainer(**QUIET, max_epochs=4, callbacks=[swa()])
    resumed = Plain()
    trainer.fit(resumed, loader(), ckpt_path=tmp_path / "a")
    left, right = weights(module), weights(resumed)
    for name in [name for name in left if name.endswith("num_batches_tracked")]:
        del left[name], right[name]
    assert_close(left, right)


def test_a_part_of_a_run_without_an_end_is_refused() -> None:
    """It would begin at an epoch that nobody meant."""
    with pytest.raises(ConfigError, match="is a part of max_epochs"):
        fit(max_epochs=-1, max_steps=3, callbacks=[StochasticWeightAveraging(0.1)])
    with pytest.raises(ConfigError, match="2 rates, and the optimizers 1"):
        fit(max_epochs=1, callbacks=[StochasticWeightAveraging([0.1, 0.2], 0)])
