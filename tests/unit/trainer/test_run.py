"""What a run does to the module, the process and the trainer; and several optimizers."""

from __future__ import annotations

import copy
import pickle
import re
from typing import Any

import pytest
import torch
from torch.nn import functional

from drivetrain import Callback, ConfigError, DataError, DataModule, NotOpenError, Trainer
from drivetrain.testing.fixtures import make_mlp
from tests.unit.trainer.runs import QUIET, Classifier, are_equal, fit, loader, weights


@pytest.mark.parametrize("name", ["trainer", "optimizers", "lr_schedulers", "all_gather", "log"])
def test_what_belongs_to_a_run_is_refused_outside_of_it(name: str) -> None:
    """A `None` would be returned, and fail somewhere else."""
    module = Classifier()
    for _ in range(2):
        with pytest.raises(NotOpenError, match=r"Classifier\.\w+ was used outside of a run") as caught:
            found = getattr(module, name)
            found(*{"all_gather": [1], "log": ["x", 1.0]}.get(name, []))
        assert caught.value.code == "outside-run"
        fit(module)


def test_counters_and_ranks_can_be_read_outside_of_a_run() -> None:
    """`current_epoch` in a forward would break the use of a trained module."""
    module = Classifier()
    assert (module.current_epoch, module.global_step, module.global_rank, module.local_rank) == (0, 0, 0, 0)
    assert module.logger is None and module.loggers == []
    assert module.device == torch.device("cpu") and module.dtype == torch.float64


def test_a_module_can_be_copied_and_pickled_inside_a_run() -> None:
    """A copy for an average of weights would copy the trainer and all its data."""

    class Copying(Classifier):
        def on_train_start(self) -> None:
            for one in (copy.deepcopy(self), pickle.loads(pickle.dumps(self.net))):
                assert "_trainer" not in vars(one)

    fit(Copying())


def test_torchs_switches_are_as_they_were() -> None:
    """A run would make everything after it slower or different."""
    benchmark, found = torch.backends.cudnn.benchmark, []

    class Look(Callback):
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            found.append((torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark))

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            if trainer.deterministic == "warn":
                assert torch.is_deterministic_algorithms_warn_only_enabled()
                raise KeyError

    fit(callbacks=[Look()], deterministic=True, benchmark=True)
    fit(callbacks=[Look()], benchmark=True)
    with pytest.raises(KeyError):
        fit(callbacks=[Look()], deterministic="warn")
    assert found == [(True, False), (False, True), (True, benchmark)]
    assert not torch.are_deterministic_algorithms_enabled() and torch.backends.cudnn.benchmark == benchmark
    assert not torch.is_deterministic_algorithms_warn_only_enabled()
    assert torch.is_grad_enabled() and torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize("precision", ["64-true", "bf16-true", "bf16-mixed", "16-mixed"])
def test_the_default_dtype_is_as_it_was(precision: str) -> None:
    """Tensors made after the run would have another dtype."""

    class Single(Classifier):
        def __init__(self) -> None:
            super().__init__()
            self.net = self.net.float()

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            assert batch[0].dtype in (self.net[0].weight.dtype, torch.float64)
            return functional.cross_entropy(self.net(batch[0].to(self.net[0].weight.dtype)), batch[1])

    _, trainer = fit(Single(), precision=precision)
    assert torch.get_default_dtype() == torch.float32 and trainer.global_step == 6


def test_a_run_in_64_bits_converts_module_and_batches() -> None:
    """A float32 module would get float64 batches, or the other way round."""

    class Single(Classifier):
        def __init__(self) -> None:
            super().__init__()
            self.net = self.net.float()

    module, _ = fit(Single(), precision="64-true")
    assert module.dtype == torch.float64


def test_a_trainer_says_what_it_does() -> None:
    """A callback could not tell validation inside of a fit from one outside."""
    found: list[Any] = []

    class Look(Callback):
        def note(self, trainer: Any) -> None:
            flags = ("training", "validating", "testing", "predicting", "sanity_checking")
            on = [flag for flag in flags if getattr(trainer, flag)]
            found.append((trainer.state.fn, trainer.state.stage, on))

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            self.note(trainer)

        def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
            self.note(trainer)

        def on_test_start(self, trainer: Any, pl_module: Any) -> None:
            self.note(trainer)

    module, trainer = fit(val_data=loader(4), callbacks=[Look()])
    assert trainer.state.finished and not trainer.interrupted
    trainer.test(module, loader(4), verbose=False)
    assert found == [
        ("fit", "sanity_check", ["sanity_checking"]),
        ("fit", "train", ["training"]),
        ("fit", "validate", ["validating"]),
        ("test", "test", ["testing"]),
    ]


def test_a_trainer_has_the_familiar_parts() -> None:
    """Scripts and callbacks that read them would fail."""
    module, trainer = fit(max_epochs=3, accumulate_grad_batches=2, log_every_n_steps=7)
    assert (trainer.max_epochs, trainer.max_steps, trainer.accumulate_grad_batches) == (3, -1, 2)
    assert (trainer.log_every_n_steps, trainer.world_size, trainer.num_nodes, trainer.num_devices) == (7, 1, 1, 1)
    assert trainer.lightning_module is module and trainer.is_global_zero and trainer.logger is None
    assert trainer.train_dataloader.batch_size == 4 and trainer.val_dataloaders is None
    assert trainer.early_stopping_callback is None and trainer.progress_bar_callback is None
    assert trainer.device == torch.device("cpu") and trainer.log_dir == trainer.default_root_dir


class Two(Classifier):
    """Two networks with an optimizer each."""

    def __init__(self) -> None:
        super().__init__()
        self.other = make_mlp(seed=1)

    def loss_of(self, batch: Any) -> Any:
        return functional.cross_entropy(self.net(batch[0]) + self.other(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        return [
            torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9),
            torch.optim.AdamW(self.other.parameters(), lr=0.01),
        ]


def test_two_optimizers_step_together_as_in_a_plain_loop() -> None:
    """One of them would step on stale gradients, or the counter count twice."""
    plain = Two()
    optimizers = plain.configure_optimizers()
    for batch in list(loader()) * 2:
        plain.loss_of(batch).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    module, trainer = fit(Two(), max_epochs=2)
    assert trainer.global_step == 12 and len(trainer.optimizers) == 2
    for name, value in plain.state_dict().items():
        assert torch.equal(module.state_dict()[name], value), name


@pytest.mark.parametrize("algorithm", ["norm", "value"])
def test_gradients_are_clipped_by_norm_or_by_value(algorithm: str) -> None:
    """The other algorithm would be used, or none."""
    largest: list[float] = []

    class Steep(Classifier):
        def loss_of(self, batch: Any) -> Any:
            return super().loss_of(batch) * 1e4

        def on_before_zero_grad(self, optimizer: Any) -> None:
            gradients = torch.cat([p.grad.flatten() for p in self.parameters() if p.grad is not None])
            largest.append(float(gradients.norm() if algorithm == "norm" else gradients.abs().max()))

    fit(Steep(), gradient_clip_val=0.25, gradient_clip_algorithm=algorithm)
    assert largest == pytest.approx([0.25] * 6, abs=1e-6)


def test_loaders_and_a_datamodule_together_are_refused() -> None:
    """One of them would be ignored."""
    with pytest.raises(ConfigError) as caught:
        Trainer(**QUIET).fit(Classifier(), loader(), datamodule=DataModule())
    assert caught.value.code == "data-twice"


@pytest.mark.parametrize("value", [0, 0.0, None])
def test_nothing_to_clip_to_means_no_clipping(value: float | None) -> None:
    """All gradients would be scaled to 0, and nothing be trained."""
    plain, _ = fit()
    module, _ = fit(gradient_clip_val=value)
    assert are_equal(weights(module), weights(plain))


@pytest.mark.parametrize(
    ("options", "error", "code", "text"),
    [
        ({"limit_train_batches": 0}, DataError, "no-batches", "limit_train_batches leaves no batch"),
        ({"limit_train_batches": 0.01}, DataError, "no-batches", "limit_train_batches leaves no batch"),
        ({"val_check_interval": 7}, ConfigError, "val-interval", "an epoch has 6 micro-batches"),
        ({"data": {"a": loader(), "b": "text"}}, DataError, "not-a-loader", "this is a str"),
        ({"data": [loader(), "text"]}, DataError, "not-a-loader", "this is a str"),
        ({"data": []}, ConfigError, "no-loader", "fit was given no loader"),
        ({"val_data": {"a": "text"}}, DataError, "not-a-loader", "this is a str"),
    ],
)
def test_data_that_cannot_be_used_are_refused(
    options: dict[str, Any], error: type[Exception], code: str, text: str
) -> None:
    """The text would be that of some line of the user's step, or there would be none."""
    with pytest.raises(error, match=re.escape(text)) as caught:
        fit(**{"val_data": loader(), **options})
    assert caught.value.code == code  # type: ignore[attr-defined]


@pytest.mark.parametrize("stage", ["validate", "test", "predict"])
def test_an_evaluation_of_no_loaders_is_refused(stage: str) -> None:
    """An empty list would give an empty result, or an index error."""
    with pytest.raises(ConfigError) as caught:
        getattr(Trainer(**QUIET), stage)(Classifier(), [])
    assert caught.value.code == "no-loader"


def test_a_module_compiles_its_parts_in_place() -> None:
    """A compiled module would be told to derive from what it derives from; and names in checkpoints would change."""

    class Compiles(Classifier):
        def configure_model(self) -> None:
            if self.net._compiled_call_impl is None:
                self.net.compile(backend="eager")

    plain, _ = fit(Classifier())
    compiled, _ = fit(Compiles())
    assert are_equal(weights(compiled), weights(plain))
