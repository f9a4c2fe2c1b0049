"""A Trainer makes the run that a hand-written loop makes, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

import drivetrain as dt
from drivetrain.testing.fixtures import make_dataset, make_mlp

QUIET: dict[str, Any] = {
    "accelerator": "cpu", "logger": False, "enable_checkpointing": False, "enable_progress_bar": False,
    "enable_model_summary": False,
}  # fmt: skip


class Classifier(dt.Module):
    """With dropout, so that the random state matters."""

    def __init__(self) -> None:
        super().__init__()
        self.net = make_mlp(dropout=0.3)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5), "interval": "step"},
        }


def hand_written(net: nn.Module, loader: DataLoader[Any], *, epochs: int, size: int, max_norm: float | None) -> None:
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    for _ in range(epochs):
        batches = list(loader) if size > 1 else loader
        for index, (features, targets) in enumerate(batches):
            (functional.cross_entropy(net(features), targets) / size).backward()  # type: ignore[no-untyped-call]
            if (index + 1) % size:
                continue
            if max_norm is not None:
                nn.utils.clip_grad_norm_(net.parameters(), max_norm)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("max_norm", [None, 0.3])
def test_a_trainer_equals_a_hand_written_loop(size: int, max_norm: float | None) -> None:
    """Weights, or the random state left behind, would differ from the loop that a user replaced."""
    loader = DataLoader(make_dataset(64), batch_size=4)
    plain = make_mlp(dropout=0.3)
    torch.manual_seed(5)
    hand_written(plain, loader, epochs=2, size=size, max_norm=max_norm)
    state = torch.get_rng_state()
    module = Classifier()
    torch.manual_seed(5)
    dt.Trainer(**QUIET, max_epochs=2, accumulate_grad_batches=size, gradient_clip_val=max_norm).fit(module, loader)
    for name, value in plain.state_dict().items():
        assert torch.equal(module.net.state_dict()[name], value), name
    assert torch.equal(torch.get_rng_state(), state)


def test_windows_of_fabric_equal_a_trainer() -> None:
    """The two ways into the library would train differently."""
    loader = DataLoader(make_dataset(66), batch_size=4, shuffle=True)
    module, raw = Classifier(), Classifier()
    torch.manual_seed(5)
    dt.Trainer(**QUIET, max_epochs=2, accumulate_grad_batches=3, gradient_clip_val=0.3).fit(module, loader)

    torch.manual_seed(5)
    fabric = dt.Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    optimizer = torch.optim.AdamW(raw.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    model, prepared = fabric.setup(raw, optimizer)
    assert prepared is optimizer, "nothing had to be wrapped"
    batches = fabric.setup_dataloaders(loader)
    for _ in range(2):
        for window in fabric.windows(batches, model, optimizer, size=3, max_norm=0.3):
            for index, batch in enumerate(window):
                window.backward(model.training_step(batch, index))
            schedule.step()
    for name, value in module.state_dict().items():
        assert torch.equal(raw.state_dict()[name], value), name


@pytest.mark.parametrize("stop", [1, 5, 8, 11, 16])
def test_a_run_that_is_resumed_equals_one_that_was_not_interrupted(tmp_path: Any, stop: int) -> None:
    """A resumed run would repeat batches, shift its schedule, or drop other neurons."""
    loader = DataLoader(make_dataset(64), batch_size=4, shuffle=True)
    torch.manual_seed(5)
    whole = Classifier()
    dt.Trainer(**QUIET, max_epochs=2, accumulate_grad_batches=2).fit(whole, loader)

    class Stop(dt.Callback):
        def on_step_end(self, trainer: Any, pl_module: Any) -> None:
            if trainer.global_step == stop:
                trainer.save_checkpoint(tmp_path / "stopped.ckpt")
                raise KeyboardInterrupt

    torch.manual_seed(5)
    with pytest.raises(KeyboardInterrupt):
        dt.Trainer(**QUIET, max_epochs=2, accumulate_grad_batches=2, callbacks=[Stop()]).fit(Classifier(), loader)
    torch.manual_seed(99)
    resumed, trainer = Classifier(), dt.Trainer(**QUIET, max_epochs=2, accumulate_grad_batches=2)
    trainer.fit(resumed, loader, ckpt_path=tmp_path / "stopped.ckpt")
    assert trainer.global_step == 16
    for name, value in whole.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], value), name
