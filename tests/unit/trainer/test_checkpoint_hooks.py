"""`on_save_checkpoint` and `on_load_checkpoint` see the weights, and what they make of them is saved and loaded."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from drivetrain import Callback, CheckpointError, Trainer, seed_everything
from drivetrain.checkpoint.manifest import read_manifest
from drivetrain.checkpoint.read import read_tensors
from drivetrain.checkpoint.verify import problems
from tests.unit.trainer.runs import QUIET, Classifier, are_equal, fit, loader, weights

Change = Callable[[dict[str, Any]], Any]


class Frozen(Classifier):
    """A backbone that is not trained, in front of a head that is; always built with the same values."""

    def __init__(self) -> None:
        super().__init__(dropout=0.2)
        self.net[0].requires_grad_(False)

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW([p for p in self.parameters() if p.requires_grad], lr=1e-2)


class HeadAlone(Frozen):
    """Leaves the backbone out, as scripts do."""

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        for name, parameter in self.named_parameters():
            if not parameter.requires_grad:
                del checkpoint["state_dict"][name]


def changing(kind: type[Classifier], *, save: Change | None = None, load: Change | None = None) -> Classifier:
    """A module of a kind with these hooks."""

    class Changing(kind):  # type: ignore[misc, valid-type]
        def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            if save is not None:
                save(checkpoint)

        def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            if load is not None:
                load(checkpoint)

    module: Classifier = Changing()
    return module


def run(
    module: Classifier, *, epochs: int, save_to: Path | None = None, asynchronous: bool = False, **options: Any
) -> Trainer:
    seed_everything(5, verbose=False)

    class Save(Callback):
        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            if save_to is not None:
                trainer.save_checkpoint(save_to, wait=not asynchronous)

    trainer = Trainer(**QUIET, max_epochs=epochs, callbacks=[Save(), *options.pop("callbacks", [])])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*has no values for.*")
        trainer.fit(module, loader(20, shuffle=True), **options)
    return trainer


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_frozen_part_is_left_out_and_the_resume_is_exact(asynchronous: bool, tmp_path: Path) -> None:
    """The file would hold a backbone that never changes, or the run that goes on would be refused, or be another."""
    run(whole := HeadAlone(), epochs=2)
    run(HeadAlone(), epochs=1, save_to=tmp_path / "ck", asynchronous=asynchronous)
    saved = read_tensors(tmp_path / "ck" / "state.pt")
    assert not any(name.startswith("net.0.") for name in saved["model"]) and saved["model"]
    assert saved["trainer"]["left_out_by_hooks"] == ["net.0.weight", "net.0.bias"]
    assert read_manifest(tmp_path / "ck").extra["num_left_out"] == 2 and problems(tmp_path / "ck") == []
    run(resumed := HeadAlone(), epochs=2, ckpt_path=tmp_path / "ck")
    assert are_equal(weights(resumed), weights(whole))
    run(unhooked := Frozen(), epochs=2, ckpt_path=tmp_path / "ck")
    assert are_equal(weights(unhooked), weights(whole)), "the file says by itself what it lacks"


def test_names_that_keep_their_values_are_said(tmp_path: Path) -> None:
    """A backbone that was built with other values would be evaluated without a word."""
    run(HeadAlone(), epochs=1, save_to=tmp_path / "ck")
    with pytest.warns(UserWarning, match=r"no values for 2 of 4 names: net.0.weight, net.0.bias\."):
        Trainer(**QUIET).validate(HeadAlone(), loader(4), ckpt_path=tmp_path / "ck", verbose=False)
    with pytest.warns(UserWarning, match="no values for 2 of 4"):
        again = HeadAlone.load_from_checkpoint(tmp_path / "ck")
    assert torch.equal(again.net[0].weight, HeadAlone().net[0].weight)


def test_only_what_was_left_out_may_be_missing(tmp_path: Path) -> None:
    """One name that was left out would let all others be missing, too."""
    run(HeadAlone(), epochs=1, save_to=tmp_path / "ck")
    drops = changing(Frozen, load=lambda checkpoint: checkpoint["state_dict"].pop("net.3.bias"))
    with pytest.raises(CheckpointError, match=r"missing \['net.3.bias'\]") as caught:
        run(drops, epochs=2, ckpt_path=tmp_path / "ck")
    assert caught.value.code == "checkpoint-keys"


def test_without_strict_loading_what_is_missing_stays_as_it_was_built(tmp_path: Path) -> None:
    """`strict_loading = False`, which scripts with frozen parts set, would be passed over."""
    run(Frozen(), epochs=1, save_to=tmp_path / "ck")
    drops = changing(Frozen, load=lambda checkpoint: checkpoint["state_dict"].pop("net.0.bias"))
    drops.strict_loading = False
    run(drops, epochs=1, ckpt_path=tmp_path / "ck")
    assert torch.equal(drops.net[0].bias, Frozen().net[0].bias)


class Renamed(Classifier):
    """The network under the name that it has got since."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = self.net
        del self.net

    def loss_of(self, batch: Any) -> Any:
        return nn.functional.cross_entropy(self.trunk(batch[0]), batch[1])

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        state = checkpoint["state_dict"]
        checkpoint["state_dict"] = {name.replace("net.", "trunk."): value for name, value in state.items()}
        checkpoint["optimizer_states"] = []


def test_names_are_changed_while_loading(tmp_path: Path) -> None:
    """A module that has changed since could not read what it has saved."""
    module, trainer = fit()
    trainer.save_checkpoint(tmp_path / "ck")
    again = Renamed.load_from_checkpoint(tmp_path / "ck")
    tested = Renamed()
    Trainer(**QUIET).test(tested, loader(4), ckpt_path=tmp_path / "ck", verbose=False)
    for one in (again, tested):
        assert are_equal({k.replace("trunk.", "net."): v for k, v in weights(one).items()}, weights(module))


def test_optimizers_that_are_taken_out_begin_anew(tmp_path: Path) -> None:
    """A changed module could not be trained on, since the optimizer's state is of another."""
    _, trainer = fit()
    trainer.save_checkpoint(tmp_path / "ck")
    with pytest.warns(UserWarning, match="took optimizer_states out"):
        trainer = Trainer(**QUIET, max_epochs=2)
        trainer.fit(Renamed(), loader(), ckpt_path=tmp_path / "ck")
    assert trainer.current_epoch == 2


def test_a_state_of_an_optimizer_may_be_changed_while_loading(tmp_path: Path) -> None:
    """A run could not go on with another rate, as scripts make it."""

    def lower(checkpoint: dict[str, Any]) -> None:
        checkpoint["optimizer_states"][0]["param_groups"][0]["lr"] = 0.01

    run(Classifier(), epochs=1, save_to=tmp_path / "ck")
    trainer = run(changing(Classifier, load=lower), epochs=2, ckpt_path=tmp_path / "ck")
    assert trainer.optimizers[0].param_groups[0]["lr"] == 0.01


def test_a_module_grows_in_its_hook_to_what_was_saved(tmp_path: Path) -> None:
    """The hook would come when the module is wrapped already, and the optimizer has the small one's parameters."""

    class Vocabulary(Classifier):
        def __init__(self, words: int = 3) -> None:
            super().__init__()
            self.words = nn.Embedding(words, 2, dtype=torch.float64)

        def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            num = len(checkpoint["state_dict"]["words.weight"])
            self.words = nn.Embedding(num, 2, dtype=torch.float64)

    run(large := Vocabulary(7), epochs=1, save_to=tmp_path / "ck")
    trainer = run(small := Vocabulary(), epochs=2, ckpt_path=tmp_path / "ck")
    assert torch.equal(small.words.weight, large.words.weight)
    assert any(one is small.words.weight for one in trainer.optimizers[0].param_groups[0]["params"])


def test_values_that_a_hook_puts_there_are_saved(tmp_path: Path) -> None:
    """An average that a callback keeps could not be the model of its checkpoints."""

    class Zeros(Callback):
        def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
            checkpoint["trained"] = checkpoint["state_dict"]
            checkpoint["state_dict"] = {name: torch.zeros_like(one) for name, one in checkpoint["trained"].items()}

        def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
            checkpoint["state_dict"] = checkpoint["trained"]

    run(whole := Classifier(), epochs=2)
    run(Classifier(), epochs=1, save_to=tmp_path / "ck", callbacks=[Zeros()])
    again = Classifier.load_from_checkpoint(tmp_path / "ck")
    assert all(not one.any() for one in again.state_dict().values())
    run(resumed := Classifier(), epochs=2, ckpt_path=tmp_path / "ck", callbacks=[Zeros()])
    assert are_equal(weights(resumed), weights(whole))


def test_hooks_find_the_keys_that_scripts_read(tmp_path: Path) -> None:
    """A script that reads them would end with a KeyError."""
    seen: list[Any] = []

    def note(checkpoint: dict[str, Any]) -> None:
        counters = checkpoint["epoch"], checkpoint["global_step"], checkpoint["hyper_parameters"]
        seen.append((*counters, list(checkpoint["state_dict"]), len(checkpoint["optimizer_states"])))
        assert {"callbacks", "lr_schedulers"} <= checkpoint.keys()

    module = changing(Classifier, save=note, load=note)
    run(module, epochs=1, save_to=tmp_path / "ck")
    run(module, epochs=1, ckpt_path=tmp_path / "ck")
    type(module).load_from_checkpoint(tmp_path / "ck")
    assert seen == [(0, 5, {}, list(weights(module)), 1)] * 3


def test_a_checkpoint_without_optimizers_is_one_of_weights_alone(tmp_path: Path) -> None:
    """The newest checkpoint of a run would be one from which it cannot go on, and nobody would know before."""

    def drop(checkpoint: dict[str, Any]) -> None:
        del checkpoint["optimizer_states"], checkpoint["lr_schedulers"], checkpoint["callbacks"]

    run(changing(Classifier, save=drop), epochs=1, save_to=tmp_path / "ck")
    assert read_manifest(tmp_path / "ck").extra["weights_only"] is True
    assert set(read_tensors(tmp_path / "ck" / "state.pt")) == {"model", "trainer"}
    Trainer(**QUIET).test(Classifier(), loader(4), ckpt_path=tmp_path / "ck", verbose=False)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda checkpoint: checkpoint.pop("state_dict"), r"left no checkpoint\['state_dict'\]"),
        (lambda checkpoint: checkpoint.update(state_dict=3), "left a int as"),
        (lambda checkpoint: checkpoint.pop("progress"), "took progress out of"),
        (lambda checkpoint: checkpoint["optimizer_states"].append({}), "left 2 of 1"),
        (lambda checkpoint: checkpoint["no such key"], "no such key"),
    ],
)
def test_a_hook_that_makes_no_checkpoint_leaves_the_last_good_one(change: Change, said: str, tmp_path: Path) -> None:
    """A file that cannot be loaded would take the place of one that can."""
    run(first := Classifier(), epochs=1, save_to=tmp_path / "ck")
    with pytest.raises((CheckpointError, KeyError), match=said) as caught:
        run(changing(Classifier, save=change), epochs=1, save_to=tmp_path / "ck")
    assert getattr(caught.value, "code", "checkpoint-hook") == "checkpoint-hook"
    assert {path.name for path in tmp_path.iterdir()} == {"ck", "latest"} and problems(tmp_path / "ck") == []
    assert are_equal(weights(Classifier.load_from_checkpoint(tmp_path / "ck")), weights(first))
