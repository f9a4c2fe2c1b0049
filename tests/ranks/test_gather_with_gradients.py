"""What is gathered of other ranks gives them their gradients."""

from __future__ import annotations

from typing import Any

import torch

from tests.ranks.open_fabric import open_fabric


def test_gradients_go_back_to_the_rank_of_each_part(ranks: Any) -> None:
    """A contrastive loss would train each rank's encoder on its own half of the pairs alone."""
    whole = torch.arange(6, dtype=torch.float64).reshape(2, 3).requires_grad_()
    loss_of(whole).backward()
    results = ranks.run(gathered, True, world=2)
    assert [gradient for gradient, _ in results] == [(2 * part).tolist() for part in whole.grad]
    assert [plain for _, plain in results] == [None, None]


def loss_of(parts: Any) -> Any:
    return (parts[0] * parts[1]).sum() + parts.pow(3).sum()


def gathered(sync_grads: bool) -> tuple[Any, Any]:
    """In each rank: the gradients of what it gave, and whether there are any without `sync_grads`."""
    with open_fabric() as fabric:
        own = torch.arange(3, dtype=torch.float64).add(3 * fabric.global_rank).requires_grad_()
        plain = fabric.all_gather({"x": own})["x"]
        loss_of(fabric.all_gather({"x": own}, sync_grads=sync_grads)["x"]).backward()
        return own.grad.tolist(), plain.grad_fn
