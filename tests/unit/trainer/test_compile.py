"""Training a module whose parts are compiled."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from drivetrain import BatchSizeFinder, Callback, ConfigError, LearningRateFinder, ModelSummary, Trainer, Tuner
from drivetrain.cli.main import main
from drivetrain.trainer.request import Request
from tests.counted_graphs import GRAPHS, counted
from tests.unit.trainer.runs import QUIET, Classifier, are_equal, fit, loader, weights
from tests.unit.tuner.test_lr_find import Rated

pytestmark = pytest.mark.usefixtures("fresh_graphs")


class Forwarding(Classifier):
    """Its steps call the module itself."""

    def forward(self, features: Tensor) -> Tensor:
        return self.net(features)

    def loss_of(self, batch: Any) -> Tensor:
        return torch.nn.functional.cross_entropy(self(batch[0]), batch[1])


def seeded_fit(kind: type[Classifier], ckpt_path: Path | None = None, **options: Any) -> tuple[Classifier, Trainer]:
    """Train with dropout; the module and its trainer."""
    torch.manual_seed(0)
    module, trainer = kind(dropout=0.3), Trainer(**{**QUIET, "max_epochs": 1, **options})
    trainer.fit(module, loader(shuffle=True), loader(), ckpt_path=ckpt_path)
    return module, trainer


@pytest.mark.parametrize("kind", [Classifier, Forwarding])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_compiled_run_is_the_run(kind: type[Classifier], accumulate: int) -> None:
    """Steps, windows, evaluation or predictions would be others; or nothing would be compiled."""
    plain, _ = seeded_fit(kind, accumulate_grad_batches=accumulate)
    compiled, trainer = seeded_fit(
        kind, accumulate_grad_batches=accumulate, compile={"backend": counted, "fullgraph": True}
    )
    assert are_equal(weights(compiled), weights(plain))
    assert compiled.seen == plain.seen
    assert GRAPHS
    (values,) = trainer.validate(compiled, loader(), verbose=False)
    predictions = trainer.predict(compiled, loader())
    other = Trainer(**QUIET)
    assert values == other.validate(plain, loader(), verbose=False)[0]
    assert all(torch.equal(one, two) for one, two in zip(predictions, other.predict(plain, loader()), strict=True))


def test_a_module_that_is_compiled_already_is_trained_as_itself() -> None:
    """It would be refused, or its checkpoints hold torch's prefix."""
    plain, _ = fit(Classifier())
    own = Classifier()
    _, trainer = fit(torch.compile(own, backend=counted))  # type: ignore[arg-type]
    assert GRAPHS and trainer.model is own
    assert are_equal(weights(own), weights(plain))
    GRAPHS.clear()
    torch._dynamo.reset()
    fit(torch.compile(Classifier(), backend=counted), compile=False)  # type: ignore[arg-type]
    assert not GRAPHS


class Wrapping(Classifier):
    """Its network is wrapped by torch's compiler when it is made."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.net = torch.compile(self.net, backend="eager")  # type: ignore[assignment]


def test_checkpoints_and_summaries_hold_the_modules_own_names(tmp_path: Path, capsys: Any) -> None:
    """What was trained compiled could not be read without it, neither by drivetrain nor after an export."""
    one, trainer = fit(Wrapping(), callbacks=[ModelSummary()])
    assert "_orig_mod" not in capsys.readouterr().out
    trainer.save_checkpoint(tmp_path / "one")
    assert main(["checkpoint", "export", str(tmp_path / "one"), str(tmp_path / "one.pt")]) in (0, None)
    assert "_orig_mod" not in str(torch.load(tmp_path / "one.pt", weights_only=True).keys())
    for kind in (Classifier, Wrapping):
        loaded = kind.load_from_checkpoint(tmp_path / "one")
        assert all(torch.equal(*pair) for pair in zip(loaded.parameters(), one.parameters(), strict=True))


@pytest.mark.parametrize("wraps", [False, True])
def test_a_compiled_run_goes_on_where_it_was(wraps: bool, tmp_path: Path) -> None:
    """A resume would draw other random numbers, or find other names."""
    kind = Wrapping if wraps else Classifier
    options: dict[str, Any] = {"compile": None if wraps else {"backend": "aot_eager"}, "max_epochs": 2}
    whole, _ = seeded_fit(kind, **options)

    class Save(Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if trainer.global_step == 3:
                trainer.save_checkpoint(tmp_path / "third")

    seeded_fit(kind, callbacks=[Save()], **options)
    resumed, _ = seeded_fit(kind, ckpt_path=tmp_path / "third", **options)
    assert are_equal(weights(resumed), weights(whole))


def test_ranks_that_are_sent_a_module_are_told_that_it_is_not_compiled_there() -> None:
    """torch's objects would be pickled; or the ranks train uncompiled, and nobody know why."""
    module = Classifier()
    module.net.compile(backend="eager")
    with pytest.warns(UserWarning, match="was compiled in this process"):
        Request("fit", module).__getstate__()


def test_a_copy_of_a_compiled_module_is_its_own() -> None:
    """An average of weights would be evaluated with the weights from which it was made."""
    module, _ = fit(Forwarding(), compile={"backend": "eager"})
    copied = copy.deepcopy(module)
    assert module._compiled_call_impl is not None and copied._compiled_call_impl is None
    with torch.no_grad():
        copied.net[0].weight.zero_()
    features = loader().dataset[:4][0]  # type: ignore[index]
    assert not torch.equal(copied(features), module(features))


def test_a_module_that_steps_by_itself_is_compiled_too() -> None:
    """Manual windows would run beside what is compiled."""

    class Manual(Classifier):
        automatic_optimization = False

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            with self.window(self.optimizers(), size=2) as window:
                window.backward(self.loss_of(batch))

    plain, _ = seeded_fit(Manual)
    compiled, _ = seeded_fit(Manual, compile={"backend": counted})
    assert GRAPHS and are_equal(weights(compiled), weights(plain))


@pytest.mark.parametrize("is_inside", [True, False])
def test_a_search_for_a_learning_rate_is_compiled_once_with_the_training(is_inside: bool) -> None:
    """It would find the rate of another rounding, slowly; or each copy would be compiled anew, up to torch's limit."""

    class Thrice(LearningRateFinder):
        def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
            for _ in range(3):
                self.lr_find(trainer, pl_module)
                counts.append(len(GRAPHS))

    counts: list[int] = []
    options = {**QUIET, "max_epochs": 1, "compile": {"backend": counted, "dynamic": False}}
    module, data = Rated(), loader(48)
    if is_inside:
        Trainer(**options, callbacks=[Thrice(num_training_steps=12, update_attr=False)]).fit(module, data)
    else:
        trainer = Trainer(**options)
        Tuner(trainer).lr_find(module, data, num_training=12)
        counts.append(len(GRAPHS))
        trainer.fit(module, data)
    assert counts == [1] * len(counts) and len(GRAPHS) == 1


def test_a_search_for_a_batch_size_leaves_the_training_compiled() -> None:
    """Each size is a shape: torch would give up after some, and the training run uncompiled."""

    class Sized(Classifier):
        batch_size = 2

        def train_dataloader(self) -> Any:
            return loader(1024, batch_size=self.batch_size)

    module = Sized()
    finder = BatchSizeFinder(steps_per_trial=1)
    trainer = Trainer(**QUIET, max_steps=1, callbacks=[finder], compile={"backend": counted, "dynamic": False})
    trainer.fit(module)
    assert module.batch_size == 1024 and len(GRAPHS) == 1


def test_what_is_no_argument_of_the_compiler_is_refused_at_once() -> None:
    """It would be refused in the ranks, after they were started."""
    with pytest.raises(ConfigError) as caught:
        Trainer(**QUIET, compile={"modes": "default"})
    assert caught.value.code == "compile-options"
