"""A small network learns from a large one: a teacher with 1,000 labels, a student with 50.

The teacher is a part of the student's module, frozen and in eval mode, and is left so: its dropout stays off and the
statistics of its batch norms stay, while the student trains beside it. The student sees the teacher's answers to all
images, and labels of 50.
"""

# run: --epochs 4

from __future__ import annotations

import argparse

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import drivetrain as dt


class Classifier(dt.Module):
    """A network that learns from labels."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, pixels: Tensor) -> Tensor:
        return self.net(pixels)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        pixels, digits = batch
        loss = F.cross_entropy(self(pixels), digits)
        self.log("loss", loss)
        return loss

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        pixels, digits = batch
        self.log("accuracy", (self(pixels).argmax(dim=1) == digits).double().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW((one for one in self.parameters() if one.requires_grad), lr=3e-3)


class Student(Classifier):
    """A network that learns from another one's answers; the labels are not looked at."""

    def __init__(self, net: nn.Module, teacher: Classifier, temperature: float = 3.0) -> None:
        super().__init__(net)
        teacher.freeze()
        self.teacher, self.temperature = teacher, temperature

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        pixels, _ = batch
        wanted = F.log_softmax(self.teacher(pixels) / self.temperature, dim=1)
        answers = F.log_softmax(self(pixels) / self.temperature, dim=1)
        loss = F.kl_div(answers, wanted, reduction="batchmean", log_target=True) * self.temperature**2
        self.log("loss", loss)
        return loss


def large_net(hidden: int = 256) -> nn.Module:
    return nn.Sequential(
        nn.Linear(64, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Dropout(0.3),
        nn.Linear(hidden, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Dropout(0.3),
        nn.Linear(hidden, 10),
    )  # fmt: skip


def small_net(hidden: int = 16) -> nn.Module:
    return nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=1, help="ranks on this machine")
    parser.add_argument("--epochs", type=int, default=20)
    options = parser.parse_args()

    dt.seed_everything(1, verbose=False)
    digits = load_digits()
    pixels, labels = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    order = torch.randperm(len(pixels), generator=torch.Generator().manual_seed(0))
    few, most, test = (TensorDataset(pixels[part], labels[part]) for part in (order[:50], order[:1000], order[1000:]))

    def fit_and_test(model: Classifier, data: TensorDataset, epochs: int) -> float:
        trainer = dt.Trainer(
            accelerator="cpu", devices=options.devices, max_epochs=epochs, logger=False,
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        trainer.fit(model, DataLoader(data, batch_size=20 // options.devices, shuffle=True))
        (result,) = trainer.test(model, DataLoader(test, batch_size=100), verbose=False)
        return result["accuracy"]

    teacher = Classifier(large_net())
    of_teacher = fit_and_test(teacher, most, options.epochs)
    alone = fit_and_test(Classifier(small_net()), few, options.epochs * 20)  # as many steps
    student = Student(small_net(), teacher)
    before = {name: value.clone() for name, value in teacher.state_dict().items()}
    of_student = fit_and_test(student, most, options.epochs)
    assert all(torch.equal(value, before[name]) for name, value in teacher.state_dict().items())
    assert student.training and not teacher.training

    student.print(f"teacher           {of_teacher:.4f}")
    student.print(f"student accuracy  {of_student:.4f} (has to be above {alone:.4f}: the same network from 50 labels)")


if __name__ == "__main__":
    main()
