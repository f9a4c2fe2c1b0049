"""A fabric of one rank and a network whose gradients can be checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from drivetrain import Fabric
from drivetrain.fabric.window import Window
from drivetrain.testing.fixtures import make_mlp


def open_fabric(**options: Any) -> Fabric:
    """Launched, on one CPU rank."""
    fabric = Fabric(accelerator="cpu", devices=1, **options)
    fabric.launch()
    return fabric


class Watched:
    """A network of one fabric whose every step is noted as the gradient that the optimizer saw."""

    def __init__(self, fabric: Fabric | None = None) -> None:
        self.fabric = fabric if fabric is not None else open_fabric()
        self.net = make_mlp()
        self.gradients: list[list[Tensor]] = []
        optimizer = torch.optim.SGD(self.net.parameters(), lr=0.0)
        optimizer.register_step_pre_hook(self._note)
        self.model, self.optimizer = self.fabric.setup(self.net, optimizer)

    def _note(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self.gradients.append([p.grad.clone() for p in self.net.parameters() if p.grad is not None])

    def run(
        self, loader: Any, step: Callable[[Any, Window, Any], None] | None = None, **options: Any
    ) -> list[list[Tensor]]:
        """Run one epoch; the gradients of its steps."""
        for window in self.fabric.windows(loader, self.model, self.optimizer, **options):
            for batch in window:
                if step is None:
                    window.backward(functional.cross_entropy(self.model(batch[0]), batch[1]))
                else:
                    step(self.model, window, batch)
        return self.gradients


def gradient_of(samples: Iterable[tuple[Tensor, Tensor]], weights: Iterable[float] | None = None) -> list[Tensor]:
    """The gradient of the weighted mean loss over samples, all at once."""
    pairs = list(samples)
    features, targets = torch.stack([one[0] for one in pairs]), torch.stack([one[1] for one in pairs])
    net = make_mlp()
    losses = functional.cross_entropy(net(features), targets, reduction="none")
    scale = torch.tensor(list(weights) if weights is not None else [1.0] * len(pairs), dtype=torch.float64)
    ((losses * scale).sum() / scale.sum()).backward()  # type: ignore[no-untyped-call]
    return [p.grad for p in net.parameters() if p.grad is not None]


def distance(left: list[Tensor], right: list[Tensor]) -> float:
    """The largest difference of two gradients."""
    assert len(left) == len(right)
    return max(float((a - b).abs().max()) for a, b in zip(left, right, strict=True))


class Net(nn.Module):
    """With parts of all kinds, and methods beside forward."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2, dtype=torch.float64)
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("scratch", torch.ones(1), persistent=False)
        self.note = "own"

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.layer(x)
        return result

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return self(batch).sum()

    def loss_of(self, x: Tensor) -> Tensor:
        return self(x).square().sum()

    def num_outputs(self) -> int:
        return self.layer.out_features
