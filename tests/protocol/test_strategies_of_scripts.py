"""Strategies with arguments as scripts spell them: each does what it does there, or says what to write."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from datetime import timedelta
from typing import Any

import pytest
import torch
from torch import nn

import drivetrain
from drivetrain import ConfigError
from drivetrain.lightning.strategies import DDPStrategy, FSDPStrategy, SingleDeviceStrategy
from tests.arch.source_tree import ROOT
from tests.unit.trainer.runs import QUIET, loader


def code_of(kind: Any, **options: Any) -> tuple[str, str]:
    with pytest.raises(ConfigError) as caught:
        kind(**options)
    return str(caught.value.code), str(caught.value)


def test_a_strategy_is_of_the_familiar_class_whoever_made_it() -> None:
    """Callbacks that ask for the class of `trainer.strategy` would take another way."""
    for own, familiar in [(drivetrain.DDP, DDPStrategy), (drivetrain.FSDP, FSDPStrategy)]:
        assert isinstance(own(), familiar) and isinstance(familiar(), own)
        assert not isinstance(drivetrain.SingleDevice(), familiar)

        class Mine(familiar):  # type: ignore[misc, valid-type]
            """A script's own."""

        assert isinstance(Mine(), familiar) and not isinstance(own(), Mine) and not isinstance(familiar(), Mine)
    assert not isinstance(DDPStrategy(), FSDPStrategy) and SingleDeviceStrategy is drivetrain.SingleDevice


def test_spellings_are_the_arguments_of_ddp() -> None:
    """An argument would be taken, and nothing be done with it."""

    def hook(state: Any, bucket: Any) -> Any:
        return None

    strategy = DDPStrategy(
        process_group_backend="gloo", timeout=timedelta(minutes=2), start_method="spawn", find_unused_parameters=True,
        ddp_comm_hook=hook, ddp_comm_state="state", gradient_as_bucket_view=True,
    )  # fmt: skip
    assert (strategy.backend, strategy.timeout_s, strategy.start) == ("gloo", 120.0, "spawn")
    assert (strategy.comm_hook, strategy.comm_state) == (hook, "state")
    assert strategy.find_unused_parameters and strategy.gradient_as_bucket_view
    assert DDPStrategy(start_method="popen").start == DDPStrategy().start == "script"
    assert DDPStrategy().timeout_s == drivetrain.DDP().timeout_s
    assert pickle.loads(pickle.dumps(DDPStrategy(start_method="fork"))).start == "fork"


def test_spellings_are_the_arguments_of_fsdp() -> None:
    """An argument would be taken, and nothing be done with it."""
    from torch.distributed.fsdp import CPUOffload, ShardingStrategy

    strategy = FSDPStrategy(
        auto_wrap_policy={nn.Linear}, activation_checkpointing=nn.Linear, cpu_offload=CPUOffload(offload_params=True),
        limit_all_gathers=True, state_dict_type="sharded", process_group_backend="gloo", timeout=60.0,
    )  # fmt: skip
    assert strategy.shard == {nn.Linear} and strategy.activation_checkpointing_policy is nn.Linear
    assert strategy.cpu_offload is True and (strategy.backend, strategy.timeout_s) == ("gloo", 60.0)
    assert FSDPStrategy(activation_checkpointing_policy={nn.Linear}).activation_checkpointing_policy == {nn.Linear}
    for name, reshards, replicas in [
        ("FULL_SHARD", None, 1),
        ("SHARD_GRAD_OP", False, 1),
        (ShardingStrategy.SHARD_GRAD_OP, False, 1),
        ("hybrid_shard", None, "nodes"),
        (ShardingStrategy._HYBRID_SHARD_ZERO2, False, "nodes"),
    ]:
        made = FSDPStrategy(sharding_strategy=name)
        assert (made.reshard_after_forward, made.num_replicas) == (reshards, replicas)
    assert FSDPStrategy(sharding_strategy="HYBRID_SHARD", num_replicas=2).num_replicas == 2
    assert FSDPStrategy(sharding_strategy="HYBRID_SHARD", device_mesh=(4, 2)).num_replicas == 4


@pytest.mark.parametrize(
    ("kind", "options", "code", "text"),
    [
        (FSDPStrategy, {"sharding_strategy": "NO_SHARD"}, "fsdp-argument", "DDPStrategy"),
        (FSDPStrategy, {"sharding_strategy": "SOME"}, "fsdp-argument", "HYBRID_SHARD"),
        (FSDPStrategy, {"state_dict_type": "full"}, "fsdp-argument", "drivetrain checkpoint export"),
        (FSDPStrategy, {"limit_all_gathers": False}, "fsdp-argument", "Leave it out"),
        (FSDPStrategy, {"device_mesh": "2x2"}, "fsdp-argument", "num_replicas=2"),
        (FSDPStrategy, {"use_orig_params": True}, "unknown-argument", "keep their names"),
        (FSDPStrategy, {"shard": [nn.Linear], "auto_wrap_policy": {nn.Linear}}, "spelled-twice", "auto_wrap_policy"),
        (FSDPStrategy, {"sharding_strategy": "SHARD_GRAD_OP", "reshard_after_forward": True}, "spelled-twice", "False"),
        (DDPStrategy, {"backend": "gloo", "process_group_backend": "nccl"}, "spelled-twice", "'nccl'"),
        (DDPStrategy, {"find_unused_params": True}, "unknown-argument", "find_unused_parameters"),
        (DDPStrategy, {"start_method": "forkserver"}, "start-method", "'spawn'"),
        (DDPStrategy, {"accelerator": "tpu"}, "accelerator", "Trainer"),
        (DDPStrategy, {"accelerator": object()}, "accelerator", "Trainer"),
        (DDPStrategy, {"cluster_environment": object()}, "cluster-environment", "main_address"),
    ],
)  # fmt: skip
def test_what_is_not_done_says_what_to_write(kind: Any, options: dict[str, Any], code: str, text: str) -> None:
    """A run that differs from what was asked for, or an error in Python's words."""
    found, said = code_of(kind, **options)
    assert found == code and text in said, said


class Cluster:
    """A cluster environment, as scripts define one."""

    def __init__(self, **differing: Any) -> None:
        self.values = {"global_rank": 0, "world_size": 1, "local_rank": 0, "node_rank": 0, "main_address": "",
                       "main_port": 0, "creates_processes_externally": True, **differing}  # fmt: skip
        self.told: list[Any] = []

    creates_processes_externally = property(lambda self: self.values["creates_processes_externally"])
    main_address = property(lambda self: self.values["main_address"])
    main_port = property(lambda self: self.values["main_port"])

    def world_size(self) -> int:
        return int(self.values["world_size"])

    def global_rank(self) -> int:
        return int(self.values["global_rank"])

    def local_rank(self) -> int:
        return int(self.values["local_rank"])

    def node_rank(self) -> int:
        return int(self.values["node_rank"])

    def set_world_size(self, size: int) -> None:
        self.told.append(("world_size", size))

    def set_global_rank(self, rank: int) -> None:
        self.told.append(("global_rank", rank))


class CPUAccelerator:
    """As scripts import it."""


class CUDAAccelerator:
    """As scripts import it."""


class Step(drivetrain.Module):
    """The smallest one."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4).double()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.layer(batch[0]).square().mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(strategy: Any) -> Any:
    trainer = drivetrain.Trainer(**{**QUIET, "strategy": strategy}, max_epochs=1)
    try:
        trainer.fit(Step(), loader(8))
    finally:
        trainer._fabric.close()
    return trainer


def test_an_accelerator_of_a_strategy_is_compared_with_that_of_the_run() -> None:
    """Somebody would train on the CPU, and believe it to be the GPU that was asked for."""
    for same in ("cpu", "auto", CPUAccelerator()):
        assert fit(DDPStrategy(accelerator=same)).global_step == 2
    for kind in (DDPStrategy, FSDPStrategy):
        for other in ("gpu", CUDAAccelerator()):
            with pytest.raises(ConfigError, match=r"Trainer\(accelerator='(gpu|cuda)'\)"):
                fit(kind(accelerator=other))


def test_a_cluster_environment_is_compared_with_the_variables_of_the_run() -> None:
    """Ranks would take the place of others, or each train alone, though they were told who they are."""
    assert fit(DDPStrategy(cluster_environment=Cluster())).global_step == 2
    code, said = code_of(DDPStrategy, cluster_environment=Cluster(world_size=4, global_rank=3, main_port=29500))
    assert code == "cluster-environment"
    assert "RANK is 3 (here 0)" in said and "RANK=3 WORLD_SIZE=4 LOCAL_RANK=0" in said and "LOCAL_WORLD_SIZE" in said
    with pytest.raises(ConfigError, match="node_rank|GROUP_RANK"):
        fit(FSDPStrategy(cluster_environment=Cluster(node_rank=1)))
    environment = Cluster(world_size=7, creates_processes_externally=False)
    fit(DDPStrategy(cluster_environment=environment))
    assert environment.told == [("world_size", 1), ("global_rank", 0)]


PROGRAM = """
import torch, drivetrain.lightning as L
from drivetrain.lightning.strategies import FSDPStrategy, DDPStrategy
from tests.protocol.test_strategies_of_scripts import Cluster, Step, QUIET, loader
import os
names = {"global_rank": "RANK", "world_size": "WORLD_SIZE", "local_rank": "LOCAL_RANK", "main_port": "MASTER_PORT"}
said = {name: int(os.environ[variable]) for name, variable in names.items()}
environment = Cluster(**said, main_address=os.environ["MASTER_ADDR"])
strategy = FSDPStrategy(cluster_environment=environment, auto_wrap_policy={torch.nn.Linear}, device_mesh=(1, 2))
trainer = L.Trainer(**{**QUIET, "strategy": strategy, "devices": 2}, max_epochs=1)
trainer.fit(Step(), loader(8))
open(f"rank{trainer.global_rank}", "w").write(f"{trainer.global_step} steps of {trainer.world_size} ranks")
"""


def test_a_cluster_environment_that_says_what_the_variables_say_is_taken(tmp_path: Any) -> None:
    """A script with an environment of its own could not run where it is right."""
    script = tmp_path / "script.py"
    script.write_text(PROGRAM)
    result = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1"},
    )
    said = [path.read_text() for path in sorted(tmp_path.glob("rank?"))]
    assert said == ["1 steps of 2 ranks"] * 2, result.stderr
