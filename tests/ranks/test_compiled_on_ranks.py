"""A compiled module makes, on several ranks, the steps that it makes on one, and those of one that is not compiled."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader

from drivetrain import DDP, FSDP, Fabric
from drivetrain.testing.fixtures import NumberedDataset
from drivetrain.testing.strategy_contract import whole
from tests.ranks.sharded_training import Deep
from tests.ranks.training import difference, samples_by_step, train

GRAPHS: list[int] = []
SENT: list[str] = []


def make_strategy(name: str) -> Any:
    """One whose gradient syncs are noted."""
    if name == "alone":
        return "auto"
    if name.startswith("fsdp"):
        return FSDP() if name == "fsdp" else FSDP(defer="none", reshard_after_forward=True)
    more: dict[str, Any] = {} if name == "ddp" else {"static_graph": True, "bucket_cap_mb": 1}
    return DDP(comm_hook=noted_mean, **more)


def noted_mean(state: Any, bucket: dist.GradBucket) -> Any:
    """DDP's own mean, noted."""
    SENT.append("bucket")
    work = dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True)
    return work.get_future().then(lambda future: future.value()[0])  # type: ignore[union-attr]


@contextmanager
def noted_scatters() -> Iterator[None]:
    """FSDP's reduce-scatters are noted."""
    own = dist.reduce_scatter_single

    def noted(*args: Any, **kwargs: Any) -> Any:
        SENT.append("scatter")
        return own(*args, **kwargs)

    dist.reduce_scatter_single = noted
    try:
        yield
    finally:
        dist.reduce_scatter_single = own


def counted(graph: torch.fx.GraphModule, inputs: Any) -> Any:
    """A backend of torch.compile that counts what it is given."""
    GRAPHS.append(len(list(graph.graph.nodes)))
    return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)


@pytest.mark.parametrize("length", [120, 125])
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_compiled_ranks_train_the_same_model_as_one_process(ranks: Any, strategy: str, length: int) -> None:
    """Compiled under a wrapper, a window would lose its sync, or hooks would run at another time."""
    alone = train(batch_size=6, accumulate=4, length=length)
    options = {"batch_size": 3, "accumulate": 4, "length": length, "compile": {"backend": "aot_eager"}}
    results = ranks.run(train_on_ranks, {**options, "strategy": strategy}, world=2)
    for result in results:
        assert result["steps"] == alone["steps"]
        assert difference(result, alone) < 1e-10
        assert result["metrics"]["val_loss"] == pytest.approx(alone["metrics"]["val_loss"], abs=1e-6)
    assert samples_by_step(results) == samples_by_step([alone])


def train_on_ranks(options: dict[str, Any]) -> dict[str, Any]:
    """In each rank."""
    return train(**options)


@pytest.mark.parametrize("name", ["ddp", "ddp-buckets", "fsdp", "fsdp-none"])
def test_a_compiled_module_sends_what_it_sends_otherwise(ranks: Any, name: str) -> None:
    """A graph would be cut at hooks into no graph at all, or each micro-batch would sync."""
    is_wide = name == "ddp-buckets"
    alone = train_deep("alone", batch_size=8, is_compiled=False, is_wide=is_wide)
    plain = ranks.run(partial(train_deep, name, batch_size=4, is_compiled=False, is_wide=is_wide), world=2)
    compiled = ranks.run(partial(train_deep, name, batch_size=4, is_compiled=True, is_wide=is_wide), world=2)
    for one, other in zip(plain, compiled, strict=True):
        assert one["sent"] == other["sent"] and one["sent"]
        assert other["graphs"] > 0
        assert max((other["weights"][key] - value).abs().max() for key, value in alone["weights"].items()) < 1e-12
        assert list(other["weights"]) == list(alone["weights"])


def train_deep(name: str, *, batch_size: int, is_compiled: bool, is_wide: bool = False) -> dict[str, Any]:
    """In each rank: a few windows of three micro-batches, and an evaluation between them."""
    torch._dynamo.reset()
    GRAPHS.clear()
    SENT.clear()
    fabric = Fabric(accelerator="cpu", strategy=make_strategy(name), precision="64-true")
    fabric.launch()
    module = Deep(width=400 if is_wide else 10)
    model = fabric.setup(module, compile={"backend": counted, "fullgraph": True} if is_compiled else None)
    optimizer = fabric.setup_optimizers(torch.optim.SGD(model.parameters(), lr=0.1))
    loader = fabric.setup_dataloaders(DataLoader(NumberedDataset(60), batch_size=batch_size))
    with noted_scatters():
        for window in fabric.windows(loader, model, optimizer, size=3):
            for features, targets, _ in window:
                window.backward(nn.functional.cross_entropy(model(features), targets))
            with torch.no_grad():
                model.eval()
                model(features)
                model.train()
    weights = {key: whole(value).clone() for key, value in module.state_dict().items()}
    fabric.close()
    return {"weights": weights, "graphs": len(GRAPHS), "sent": list(SENT)}


@pytest.mark.parametrize("is_wrapped", [True, False])
def test_a_sharded_and_compiled_run_goes_on_alone_and_uncompiled(ranks: Any, is_wrapped: bool, tmp_path: Path) -> None:
    """Names of shards, or of an optimizer's state, would be those of a compiled module."""
    path = str(tmp_path / "one")
    (weights, _) = ranks.run(partial(save_sharded, path, is_wrapped=is_wrapped), world=2)
    fabric, own = Fabric(accelerator="cpu", precision="64-true"), Deep(seed=5)
    model, optimizer = fabric.setup(own, torch.optim.AdamW(own.parameters(), lr=0.1))
    fabric.load(path, {"model": model, "optimizer": optimizer})
    assert own.state_dict().keys() == weights.keys() == Deep().state_dict().keys()
    assert all(torch.equal(own.state_dict()[name], value) for name, value in weights.items())
    assert len(optimizer.state) == len(list(own.parameters()))


def save_sharded(path: str, *, is_wrapped: bool) -> dict[str, Any]:
    """In each rank: one step of a compiled module, which is saved."""
    torch._dynamo.reset()
    GRAPHS.clear()
    fabric, own = Fabric(accelerator="cpu", strategy=FSDP(), precision="64-true"), Deep()
    fabric.launch()
    if is_wrapped:
        for number in range(len(own.blocks)):
            own.blocks[number] = torch.compile(own.blocks[number], backend=counted)  # type: ignore[assignment]
    model = fabric.setup(own, compile=None if is_wrapped else {"backend": counted})
    optimizer = fabric.setup_optimizers(torch.optim.AdamW(model.parameters(), lr=0.1))
    with fabric.strategy.gradient_sync(model.prepared):
        fabric.backward(model(NumberedDataset(4)[:4][0]).square().sum())
    optimizer.step()
    fabric.save(path, {"model": model, "optimizer": optimizer})
    weights = {name: whole(value).clone() for name, value in own.state_dict().items()}
    assert GRAPHS
    fabric.close()
    return weights
