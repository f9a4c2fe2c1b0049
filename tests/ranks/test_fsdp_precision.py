"""Number formats of sharded modules."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.distributed.fsdp import MixedPrecisionPolicy

from drivetrain import Precision
from drivetrain.strategies.sharded_gradients import local_part
from drivetrain.testing.comm_counter import CommCounter
from drivetrain.testing.strategy_contract import SCATTERS
from tests.ranks.open_fabric import sgd
from tests.ranks.sharded_training import NUM_PARTS, Deep, mean_gradients, opened, samples, whole_gradients

GATHERS = ("_allgather_base_",)
SIZE = sum(p.numel() for p in Deep().parameters()) - 1  # one is not sharded
BLOCKS = sum(p.numel() for p in Deep().blocks.parameters())  # are gathered in backward, too


def one_window(options: dict[str, Any]) -> dict[str, Any]:
    """Two micro-batches and a step: which formats were seen, and how many bytes this rank gave."""
    with opened(**options) as strategy:
        module = Deep().float()
        prepared = strategy.prepare(module, methods=("loss_on", "forward"))
        seen: list[Any] = []
        module.blocks[1].linear.register_forward_hook(
            lambda layer, args, output: seen.append((layer.weight.dtype, output.dtype))
        )
        arrived: list[torch.dtype] = []
        module.register_forward_pre_hook(lambda module, args: arrived.append(args[0].dtype))
        features, targets = samples(range(8))
        features = features.to(module.scale.dtype)
        counter = CommCounter()
        with counter:
            for index in range(2):
                with strategy.gradient_sync(prepared, index == 1):
                    loss = strategy.call(prepared, "loss_on", features, targets)
                    strategy.backward(loss, prepared)
        optimizer = sgd(module)
        strategy.unscale(optimizer)
        gradients = whole_gradients(module)
        assert strategy.step([optimizer])
        with torch.no_grad():
            output = strategy.call(prepared, "forward", features)
        return {
            "weight": seen[0][0],
            "activation": seen[0][1],
            "input": arrived[0],
            "loss": loss.dtype,
            "output": output.dtype,
            "parameters": {p.dtype for p in module.parameters()},
            "gradients": {g.dtype for g in gradients.values() if g is not None},
            "gathered": counter.num_bytes(*GATHERS),
            "reduced": counter.num_bytes(*SCATTERS),
            "last": gradients["last.bias"],
        }


@pytest.mark.parametrize(
    ("options", "kept", "computed", "sent", "reduced"),
    [
        ({}, torch.float32, torch.float32, 4, 4),
        ({"precision": "64-true"}, torch.float64, torch.float64, 8, 8),
        ({"precision": "bf16-mixed"}, torch.float32, torch.bfloat16, 2, 4),
        ({"precision": "16-mixed"}, torch.float32, torch.float16, 2, 4),
        ({"precision": "bf16-true"}, torch.bfloat16, torch.bfloat16, 2, 2),
        ({"precision": Precision(compute_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)},
         torch.float32, torch.bfloat16, 2, 2),
        ({"policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)},
         torch.float32, torch.bfloat16, 2, 4),
    ],
    ids=lambda value: str(value).split("(")[0][:40],
)  # fmt: skip
def test_parameters_are_kept_gathered_and_reduced_in_the_formats_that_were_asked_for(
    ranks: Any, options: dict[str, Any], kept: torch.dtype, computed: torch.dtype, sent: int, reduced: int
) -> None:
    """A run would keep, send or add up numbers in other formats than its precision says."""
    has_own_policy = "policy" in options
    exact = 2 * mean_gradients([range(8)])["last.bias"]
    for found in ranks.run(one_window, options):
        assert (found["weight"], found["activation"]) == (computed, computed)
        assert found["parameters"] == found["gradients"] == {kept}
        assert has_own_policy or found["input"] == found["loss"] == found["output"] == kept
        # Each rank gives its half: 2 forwards of all, 2 backwards of the blocks. The shards are even.
        assert found["gathered"] == sent * (SIZE + BLOCKS)
        assert found["reduced"] == reduced * SIZE
        assert (found["last"].double() - exact).abs().max() < (1e-6 if computed.itemsize >= 4 else 2e-2)


def test_an_overflow_on_one_rank_skips_the_step_on_all(ranks: Any) -> None:
    """One rank would step and the others not: their shards would be of different models."""

    def in_rank() -> Any:
        with opened(precision="16-mixed") as strategy:
            module = Deep().float()
            prepared = strategy.prepare(module, methods=("forward",))
            optimizer = sgd(module)
            found = []
            for index in range(3):
                loss = strategy.call(prepared, "forward", torch.ones(1, 8)).square().mean() * 1e-2
                strategy.backward(loss, prepared)
                if index == 0 and strategy.collectives.rank == 1:
                    local_part(module.first.bias.grad)[-1] = torch.inf
                strategy.unscale(optimizer)
                found.append((strategy.step([optimizer]), strategy.scaler.get_scale()))
                optimizer.zero_grad()
            return found, module.scale.item()

    first, second = ranks.run(in_rank)
    assert first == second
    assert first[0] == [(False, 65536.0), (True, 32768.0), (True, 32768.0)]


def test_parts_that_sit_out_a_micro_batch_are_accumulated_in_the_reduce_format(ranks: Any) -> None:
    """torch adds up gradients of two formats in one group only if each part ran in each micro-batch."""

    def in_rank() -> Any:
        with opened(precision="bf16-mixed") as strategy:
            module = Deep().float()
            prepared = strategy.prepare(module, methods=("loss_on",))
            with strategy.gradient_sync(prepared, False):
                if strategy.collectives.rank == 0:
                    loss = strategy.call(prepared, "loss_on", samples(range(4))[0].float(), samples(range(4))[1])
                    strategy.backward(loss, prepared)
                else:
                    strategy.sync_idle(prepared)
            with strategy.gradient_sync(prepared, True):
                if strategy.collectives.rank == 1:
                    loss = strategy.call(prepared, "loss_on", samples(range(4))[0].float(), samples(range(4))[1])
                    strategy.backward(loss, prepared)
                else:
                    strategy.sync_idle(prepared)
            assert len(prepared.parts) == NUM_PARTS
            return whole_gradients(module)

    exact = Deep()
    exact.loss_on(*samples(range(4))).backward()
    for found in ranks.run(in_rank):
        for name, parameter in exact.named_parameters():
            assert (found[name].double() - parameter.grad).abs().max() < 2e-2, name
