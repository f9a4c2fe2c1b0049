"""What FSDP can be told beside what is reduced when: shards on the host, replicas by machine, torch's wrap policies."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import drivetrain
from drivetrain import FSDP
from drivetrain.cluster.read_cluster import current_cluster
from drivetrain.testing.fixtures import NumberedDataset
from tests.ranks.open_fabric import error_of
from tests.ranks.sharded_training import (
    Block,
    Deep,
    difference,
    mean_gradients,
    opened,
    samples,
    sharded_fabric,
    whole_gradients,
    whole_weights,
)
from tests.ranks.test_fsdp import Classifier, train


@pytest.mark.parametrize("options", [{}, {"defer": "none"}, {"num_replicas": 2}], ids=str)
def test_offloaded_shards_train_the_same_model_as_one_process(ranks: Any, options: dict[str, Any]) -> None:
    """Gradients that are added up on the host would be lost, or clipped by another norm."""

    def in_rank() -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it changes nothing on a CPU
            return train(FSDP(cpu_offload=True, **options), 3, 2, 50)

    world = 4 if options.get("num_replicas") else 2
    weights, metrics = train("auto", 3 * world, 2, 50)
    for own, values in ranks.run(in_rank, world=world):
        assert difference(own, weights) < 1e-12
        assert values == pytest.approx(metrics, rel=1e-6)


def test_every_part_is_told_to_offload(ranks: Any) -> None:
    """Some shards would stay on the GPU, and the run take more of its memory than was asked for."""
    from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy

    def in_rank(value: Any) -> Any:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with opened(cpu_offload=value) as strategy:
                prepared: Any = strategy.prepare(Deep())
                kinds = {type(part.group.offload_policy) for part in prepared.parts}
                rank = strategy.collectives.rank
        return kinds, rank, [str(one.message) for one in caught if "cpu_offload" in str(one.message)]

    for value, kind in [(True, CPUOffloadPolicy), (CPUOffloadPolicy(), CPUOffloadPolicy), (False, OffloadPolicy),
                        (OffloadPolicy(), OffloadPolicy)]:  # fmt: skip
        for kinds, rank, said in ranks.run(in_rank, value):
            assert kinds == {kind}
            assert len(said) == (kind is CPUOffloadPolicy and rank == 0)


def test_a_checkpoint_of_offloaded_shards_goes_on_under_another_strategy(ranks: Any, tmp_path: Any) -> None:
    """Shards that are elsewhere than their mesh would be written, or put back, as somebody else's."""

    def step(fabric: Any, model: Any, optimizer: Any, first: int) -> None:
        numbers = range(first, first + 8)[fabric.global_rank :: fabric.world_size]
        fabric.backward(model.loss_on(*samples(numbers)), model)
        optimizer.step()
        optimizer.zero_grad()

    def run(strategy: Any, *, saves: bool, first: int) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with sharded_fabric(strategy) as fabric:
                module = Deep(seed=0 if saves else 1)
                optimizer: Any = torch.optim.Adam(module.parameters(), lr=1e-2)
                model, optimizer = fabric.setup(module, optimizer, methods=("loss_on",))
                if not saves:
                    fabric.load(tmp_path / "saved", {"model": model, "optimizer": optimizer})
                step(fabric, model, optimizer, first)
                if saves:
                    fabric.save(tmp_path / "saved", {"model": model, "optimizer": optimizer})
                return whole_weights(strategy, model.prepared)

    def with_offload(saves: bool, first: int) -> Any:
        return run(FSDP(cpu_offload=True), saves=saves, first=first)

    alone = Deep()
    optimizer = torch.optim.Adam(alone.parameters(), lr=1e-2)
    expected = []
    for first in (0, 8):
        alone.loss_on(*samples(range(first, first + 8))).backward()
        optimizer.step()
        optimizer.zero_grad()
        expected.append({name: value.clone() for name, value in alone.state_dict().items()})
    ranks.run(with_offload, True, 0)
    for again in (*ranks.run(with_offload, False, 8), run(drivetrain.SingleDevice(), saves=False, first=8)):
        assert difference(again, expected[1]) < 1e-12


def test_a_backend_without_the_cpu_cannot_sum_what_is_offloaded() -> None:
    """The first norm would fail on all ranks, in torch's words."""
    from drivetrain.strategies.fsdp_offload import check_offload

    assert error_of(lambda: check_offload(True, backends="cuda:nccl"))[1] == "cpu-offload"
    assert error_of(lambda: check_offload("yes", backends="cpu:gloo"))[1] == "cpu-offload"  # type: ignore[arg-type]
    check_offload(False, backends="cuda:nccl")
    check_offload(True, backends="cpu:gloo,cuda:nccl")


def test_a_replica_for_each_machine_is_as_many_as_there_are_machines(ranks: Any) -> None:
    """Parameters would be gathered across machines, at the network's pace."""

    def in_rank(num_nodes: int, defer: str) -> Any:
        cluster = dataclasses.replace(current_cluster(), num_nodes=num_nodes)
        strategy = FSDP(num_replicas="nodes", defer=defer)  # type: ignore[arg-type]
        try:
            strategy.open(cluster, torch.device("cpu"))
            module = Deep()
            prepared = strategy.prepare(module, methods=("loss_on",))
            rank = strategy.collectives.rank
            with strategy.gradient_sync(prepared, True):
                loss = strategy.call(prepared, "loss_on", *samples(range(3 * rank, 3 * rank + 3)))
                strategy.backward(loss, prepared)
            return strategy.mesh.shape, whole_gradients(module)
        finally:
            strategy.close()

    expected = mean_gradients([range(3 * rank, 3 * rank + 3) for rank in range(4)])
    for num_nodes, shape in [(2, (2, 2)), (1, (4,))]:
        for found, gradients in ranks.run(in_rank, num_nodes, "reduce", world=4):
            assert found == shape
            assert difference(gradients, expected) < 1e-14
    assert {code for _, code, _ in ranks.run(error_of, in_rank, 1, "all-reduce", world=2)} == {"defer"}
    assert {code for _, code, _ in ranks.run(error_of, in_rank, 2, "reduce", world=2)} == {"num-replicas"}


def test_a_wrap_policy_of_torch_chooses_the_parts(ranks: Any) -> None:
    """A script that has one would have to name its classes again, or get one part for all."""
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy, size_based_auto_wrap_policy

    def in_rank(policy: Any) -> Any:
        with opened(shard=policy) as strategy:
            module = Deep()
            prepared: Any = strategy.prepare(module, methods=("loss_on",))
            strategy.backward(strategy.call(prepared, "loss_on", *samples(range(3))), prepared)
            return [type(part.module).__name__ for part in prepared.parts], whole_gradients(module)

    by_size = functools.partial(size_based_auto_wrap_policy, min_num_params=110, exclude_wrap_modules=set())
    for policy, blocks in [(ModuleWrapPolicy({Block}), 3), (by_size, 3), ({Block}, 3)]:
        for kinds, gradients in ranks.run(in_rank, policy):
            assert kinds.count("FSDPBlock") + kinds.count("FSDPLinear") == blocks, kinds
            assert difference(gradients, mean_gradients([range(3)])) < 1e-14


SPELLINGS: list[dict[str, Any]] = [
    {"sharding_strategy": "SHARD_GRAD_OP", "auto_wrap_policy": {Block}, "activation_checkpointing": Block},
    {"sharding_strategy": "HYBRID_SHARD", "device_mesh": (2, 2), "cpu_offload": False},
]


@pytest.mark.parametrize("options", SPELLINGS, ids=str)
def test_sharding_as_scripts_spell_it_trains_the_same_model_as_one_process(ranks: Any, options: dict[str, Any]) -> None:
    """A script that changes its imports would train another model."""
    from drivetrain.lightning.strategies import FSDPStrategy

    def in_rank() -> Any:
        strategy = FSDPStrategy(process_group_backend="gloo", **options)
        return train(strategy, 3, 2, 50)[0]

    world = 4 if "device_mesh" in options else 2
    weights, _ = train("auto", 3 * world, 2, 50)
    for own in ranks.run(in_rank, world=world):
        assert difference(own, weights) < 1e-12
    if "device_mesh" in options:
        assert {code for _, code, _ in ranks.run(error_of, in_rank, world=2)} == {"num-replicas"}


class Meshed(Classifier):
    """Writes down the mesh in each place where a module may ask for it."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = [self.device_mesh]

    def configure_model(self) -> None:
        self.seen.append(self.device_mesh and self.device_mesh.mesh_dim_names)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.seen.append(self.device_mesh and self.device_mesh.shape)
        return super().training_step(batch, batch_idx)


def test_a_module_knows_the_mesh_over_which_it_is_sharded(ranks: Any) -> None:
    """Parts of a module that communicate themselves could not find their ranks."""

    def in_rank(strategy: Any) -> Any:
        trainer = drivetrain.Trainer(
            accelerator="cpu", devices=current_cluster().world_size, max_steps=1, logger=False,
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, strategy=strategy,
        )  # fmt: skip
        module = Meshed()
        trainer.fit(module, DataLoader(NumberedDataset(8), batch_size=2))
        trainer._fabric.close()
        return [*module.seen, module.device_mesh]

    assert ranks.run(in_rank, FSDP(), world=2) == [[None, ("shard",), (2,), None]] * 2
    assert ranks.run(in_rank, FSDP(num_replicas=2), world=4) == [[None, ("replicate", "shard"), (2, 2), None]] * 4
    assert ranks.run(in_rank, "ddp", world=2) == [[None, None, None, None]] * 2


def test_parts_are_those_that_torch_would_wrap() -> None:
    """A policy that counts parameters would choose other parts here than there."""
    from torch.distributed.fsdp import wrap

    from drivetrain.strategies.module_choice import chosen_modules

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.TransformerEncoderLayer(8, 2, 16) for _ in range(3))
            self.head = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 64))

    functions = [
        *(functools.partial(wrap.size_based_auto_wrap_policy, min_num_params=size) for size in (1, 99, 300, 700, 9999)),
        functools.partial(wrap.transformer_auto_wrap_policy, transformer_layer_cls={nn.TransformerEncoderLayer}),
        wrap.ModuleWrapPolicy({nn.Linear}).__call__,
    ]
    for policy in functions:
        module, expected = Encoder(), []

        def note(one: nn.Module, *, into: list[nn.Module] = expected) -> nn.Module:
            into.append(one)
            return one

        wrap._recursive_wrap(module, policy, note, set(), set(), only_wrap_children=True)
        assert [id(one) for one in chosen_modules(module, policy, "shard")] == [id(one) for one in expected]
    assert len(expected) == 3 * 3 + 2


def test_a_wrap_policy_that_says_more_than_which_modules_is_refused() -> None:
    """What it says of a part, such as other number formats, would be dropped without a word."""
    from torch.distributed.fsdp.wrap import CustomPolicy

    from drivetrain.strategies.module_choice import chosen_modules

    module = Deep()
    plain = CustomPolicy(lambda one: isinstance(one, Block))
    assert chosen_modules(module, plain, "shard") == list(module.blocks)
    more = CustomPolicy(lambda one: {"mixed_precision": None, "ranks": 2} if isinstance(one, Block) else False)
    assert error_of(chosen_modules, module, more, "shard")[1] == "shard-policy"
    assert error_of(chosen_modules, module, 3, "shard")[1] == "shard-policy"
