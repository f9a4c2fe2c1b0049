"""Weights that are cut off, saved, and gone on with."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.utils import prune

from drivetrain import ConfigError, ModelCheckpoint, ModelPruning, Trainer, seed_everything
from tests.unit.trainer.runs import QUIET, Classifier, are_equal, fit, loader, weights


def zeros(module: torch.nn.Module) -> tuple[int, int]:
    """Zeros among all weights."""
    values = torch.cat([one.flatten() for one in module.parameters()])
    return int((values == 0).sum()), values.numel()


class Adam(Classifier):
    """With momentum, which moves what is masked."""

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=0.05)


def pruning(**options: Any) -> ModelPruning:
    return ModelPruning(**{"pruning_fn": "l1_unstructured", "use_lottery_ticket_hypothesis": False, **options})


@pytest.mark.parametrize("epochs", [1, 2])
def test_a_part_of_what_is_left_is_cut_after_each_epoch(epochs: int) -> None:
    """Twice a half would be everything, or nothing would be cut."""
    module, _ = fit(callbacks=[pruning()], max_epochs=epochs)
    found, total = zeros(module)
    assert found == pytest.approx(total * (1 - 0.5**epochs), abs=2)
    assert all("_orig" not in name and "_mask" not in name for name in module.state_dict())


def test_what_was_cut_stays_zero_while_training_goes_on() -> None:
    """Momentum would bring it back."""
    cut: list[torch.Tensor] = []

    class Watch(Adam):
        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            self.net(batch[0])
            if self.trainer.current_epoch == 1:
                cut.append(self.net[0].weight.detach() == 0)

    fit(Watch(), callbacks=[pruning(amount=lambda epoch: 0.5 if epoch == 0 else None)], max_epochs=2)
    assert cut[0].any() and all(torch.equal(one, cut[0]) for one in cut)


def test_only_what_is_named_is_pruned() -> None:
    """Biases, or the head, would be cut too."""
    module = Classifier()
    fit(module, callbacks=[pruning(parameters_to_prune=[(module.net[0], "weight")], amount=10)])
    assert int((module.net[0].weight == 0).sum()) == 10 and zeros(module)[0] == 10


def test_parts_of_a_parameter_are_cut() -> None:
    """Structured pruning that cuts single weights."""
    module, _ = fit(callbacks=[
        pruning(pruning_fn="ln_structured", use_global_unstructured=False, pruning_dim=0, pruning_norm=2,
                parameter_names=["weight"])
    ])  # fmt: skip
    weight = module.net[0].weight
    rows = (weight == 0).all(dim=1)
    assert int(rows.sum()) == weight.shape[0] // 2 and not (weight[~rows] == 0).any()


def test_a_ticket_begins_again_from_the_first_weights() -> None:
    """The weights that are left would be trained ones."""
    module = Classifier()
    first = weights(module)
    fit(module, callbacks=[pruning(use_lottery_ticket_hypothesis=True, make_pruning_permanent=True)])
    for name, value in weights(module).items():
        assert torch.equal(value, torch.where(value == 0, 0.0, first[name]))


def test_a_checkpoint_loads_without_the_callback(tmp_path: Path) -> None:
    """A model under other names than its own, or without the zeros."""
    keeper = ModelCheckpoint(
        tmp_path, every_n_epochs=1, save_on_train_epoch_end=True, filename="{epoch}", save_top_k=-1
    )
    fit(callbacks=[pruning(), keeper], enable_checkpointing=None, max_epochs=2)
    plain = Classifier.load_from_checkpoint(keeper.last_model_path)
    assert zeros(plain)[0] > 0.5 * zeros(plain)[1]


@pytest.mark.parametrize(("ticket", "is_permanent"), [(False, True), (True, True), (False, False)])
def test_a_run_that_goes_on_equals_one_that_was_not_stopped(tmp_path: Path, ticket: bool, is_permanent: bool) -> None:
    """The weights behind the masks, or the masks, would be lost with the run."""

    def run(*callbacks: Any, **options: Any) -> Any:
        seed_everything(1, verbose=False)
        callback = pruning(
            use_lottery_ticket_hypothesis=ticket, amount=0.3, make_pruning_permanent=is_permanent
        )  # what is behind the masks stays in the module then
        trainer = Trainer(**{**QUIET, "enable_checkpointing": None if callbacks else False}, max_epochs=4,
                          callbacks=[callback, *callbacks])  # fmt: skip
        module = Adam()
        trainer.fit(module, loader(24, shuffle=True), **options)
        return module

    whole = run()
    saved = run(ModelCheckpoint(tmp_path, every_n_train_steps=3, filename="{step}", save_top_k=-1))
    again = run(ckpt_path=tmp_path / "step=15.ckpt")  # in the third epoch, after two cuts
    assert are_equal(weights(whole), weights(saved)) and are_equal(weights(whole), weights(again))


def test_masks_may_stay_in_the_module() -> None:
    """`make_pruning_permanent=False` that drops them."""
    module, _ = fit(callbacks=[pruning(make_pruning_permanent=False)])
    assert prune.is_pruned(module) and "net.0.weight_mask" in module.state_dict()


def test_how_much_was_cut_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """`verbose` that says nothing."""
    with caplog.at_level(logging.INFO, "drivetrain.callbacks"):
        fit(callbacks=[pruning(verbose=2)])
    assert "(50.0 %)" in caplog.text and "net.0.weight: " in caplog.text


@pytest.mark.parametrize(
    "options",
    [
        {"pruning_fn": "l2_magic"}, {"pruning_fn": "ln_structured", "use_global_unstructured": False},
        {"pruning_fn": "random_structured", "pruning_dim": 0}, {"parameter_names": ["no_such"]},
    ],
)  # fmt: skip
def test_what_cannot_be_pruned_is_refused(options: dict[str, Any]) -> None:
    """A run that ends with all of its weights."""
    with pytest.raises(ConfigError) as raised:
        fit(callbacks=[pruning(**options)])
    assert raised.value.code == "pruning"
