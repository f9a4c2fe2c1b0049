"""Modules and runs that several tests of equality share."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional
from torch.utils.data import DataLoader

import drivetrain
from drivetrain.testing.fixtures import NumberedDataset, make_mlp
from drivetrain.testing.strategy_contract import whole


class Classifier(drivetrain.Module):
    """A float64 network; remembers which samples it saw in which step, and the losses."""

    def __init__(self, *, weighted: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.net = make_mlp(dropout=dropout)
        self.weighted = weighted
        self.seen: list[tuple[int, list[int]]] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        features, targets, numbers = batch
        self.seen.append((self.global_step, numbers.tolist()))
        losses = functional.cross_entropy(self.net(features), targets, reduction="none")
        if not self.weighted:
            self.log("loss", losses.mean(), on_epoch=True)
            return losses.mean()
        weights = (numbers % 5).double()
        total = weights.sum()
        return {"loss": (losses * weights).sum() / total, "weight": total}

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        features, targets, _ = batch
        self.log("val_loss", functional.cross_entropy(self.net(features), targets))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 60)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def train(
    *, batch_size: int, accumulate: int, length: int = 120, epochs: int = 2, shuffle: bool = True,
    weighted: bool = False, ckpt_path: str | None = None, save_path: str | None = None, **options: Any,
) -> dict[str, Any]:  # fmt: skip
    """Train in this rank, or alone; returns weights, metrics and what was seen."""
    drivetrain.seed_everything(11, verbose=False)
    module = Classifier(weighted=weighted)
    trainer = drivetrain.Trainer(
        accelerator="cpu", max_epochs=epochs, accumulate_grad_batches=accumulate, gradient_clip_val=0.5, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, **options,
    )  # fmt: skip
    data = NumberedDataset(length)
    trainer.fit(
        module,
        DataLoader(data, batch_size=batch_size, shuffle=shuffle),
        DataLoader(data, batch_size=7),
        ckpt_path=ckpt_path,
    )
    if save_path is not None:
        trainer.save_checkpoint(save_path)
    result = {
        "weights": {name: whole(value).clone() for name, value in module.state_dict().items()},
        "metrics": {name: float(value) for name, value in trainer.callback_metrics.items()},
        "steps": trainer.global_step,
        "seen": module.seen,
    }
    trainer._fabric.close()
    return result


def difference(left: dict[str, Any], right: dict[str, Any]) -> float:
    """The largest difference of weights."""
    return max((left["weights"][name] - value).abs().max().item() for name, value in right["weights"].items())


def samples_by_step(results: list[dict[str, Any]]) -> dict[int, list[int]]:
    """For each optimizer step the numbers of the samples that all ranks saw, sorted."""
    steps: dict[int, list[int]] = {}
    for result in results:
        for step, numbers in result["seen"]:
            steps.setdefault(step, []).extend(numbers)
    return {step: sorted(numbers) for step, numbers in steps.items()}
