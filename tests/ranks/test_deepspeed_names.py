"""What scripts ask of DeepSpeed's ZeRO trains the model of one process."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

from drivetrain.lightning.strategies import DeepSpeedStrategy
from drivetrain.testing.comm_counter import CommCounter
from tests.ranks.open_fabric import error_of
from tests.ranks.sharded_training import Deep, difference, samples, sharded_fabric
from tests.ranks.test_fsdp import train


@pytest.mark.parametrize(
    "options",
    [
        {"stage": 3},
        {"stage": 2},
        {"stage": 1},
        {"stage": 2, "offload_optimizer": True},
        {"config": {"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}, "overlap_comm": True}}},
        "deepspeed_stage_3",
        "deepspeed",
    ],
    ids=str,
)
def test_each_stage_trains_the_same_model_as_one_process(ranks: Any, options: Any) -> None:
    """A script that changes its imports would train another model."""

    def in_rank() -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that offloading changes nothing on a CPU
            return train(options if isinstance(options, str) else DeepSpeedStrategy(**options), 3, 4, 61)

    weights, metrics = train("auto", 6, 4, 61)
    for own, values in ranks.run(in_rank, world=2):
        assert difference(own, weights) < 1e-12
        assert values == pytest.approx(metrics, rel=1e-6)


def test_parameters_are_gathered_once_in_stages_one_and_two_and_twice_in_stage_three(ranks: Any) -> None:
    """The stage would change nothing of what is sent, and of the memory that is taken."""

    def in_rank(stage: int) -> int:
        with sharded_fabric(DeepSpeedStrategy(stage=stage)) as fabric:
            module = Deep()
            model = fabric.setup(module, methods=("loss_on",))
            counter = CommCounter()
            with counter:
                fabric.backward(model.loss_on(*samples(range(4))), model)
            assert all(p.grad is not None for p in model.parameters())
            return counter.num_calls("_allgather_base_")

    gathers = {stage: set(ranks.run(in_rank, stage)) for stage in (1, 2, 3)}
    assert gathers == {1: {4}, 2: {4}, 3: {7}}  # three blocks and the rest, which backward begins with


def test_a_format_that_the_run_does_not_have_is_refused_on_every_rank(ranks: Any) -> None:
    """Some ranks would wait for those that have ended."""

    def in_rank() -> Any:
        def begin() -> None:
            config = {"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}}
            with sharded_fabric(DeepSpeedStrategy(config=config), precision="32-true"):
                torch.zeros(1)

        return error_of(begin)[:2]

    assert ranks.run(in_rank, world=2) == [("ConfigError", "deepspeed-setting")] * 2
