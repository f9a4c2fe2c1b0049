"""DeepSpeed's strategy in scripts: what is asked for is done with FSDP2, or refused."""

from __future__ import annotations

import json
import pickle
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import drivetrain
from drivetrain import FSDP, ConfigError
from drivetrain.lightning.deepspeed_settings import _READ, PASSED_OVER, PASSED_OVER_ARGUMENTS
from drivetrain.lightning.strategies import DDPStrategy, DeepSpeedStrategy, FSDPStrategy
from drivetrain.strategies.by_name import make_strategy
from tests.arch.source_tree import ROOT
from tests.protocol.test_strategies_of_scripts import CUDAAccelerator, code_of, fit
from tests.unit.trainer.runs import QUIET


def zero(stage: int, **settings: Any) -> dict[str, Any]:
    """A configuration of a stage."""
    return {"zero_optimization": {"stage": stage, **settings}}


def test_stages_are_when_parameters_are_sharded_again() -> None:
    """A run would take more memory, or send more, than its stage says."""
    for stage, reshards in [(1, False), (2, False), (3, None)]:
        for made in (DeepSpeedStrategy(stage=stage), DeepSpeedStrategy(config=zero(stage))):
            assert (made.stage, made.reshard_after_forward, made.cpu_offload) == (stage, reshards, False)
    assert DeepSpeedStrategy().stage == 2 and DeepSpeedStrategy(stage=3, config=zero(3)).stage == 3
    assert isinstance(DeepSpeedStrategy(), FSDPStrategy) and not isinstance(DeepSpeedStrategy(), DDPStrategy)
    assert not isinstance(FSDP(), DeepSpeedStrategy), "a script would call the engine that is not there"


@pytest.mark.parametrize(
    ("name", "reshards", "offloads"),
    [
        ("deepspeed", False, False),
        ("deepspeed_stage_1", False, False),
        ("deepspeed_stage_1_offload", False, True),
        ("deepspeed_stage_2", False, False),
        ("deepspeed_stage_2_offload", False, True),
        ("deepspeed_stage_3", None, False),
        ("deepspeed_stage_3_offload", None, True),
    ],
)
def test_a_stage_may_be_named(name: str, reshards: bool | None, offloads: bool) -> None:
    """A script that gives the name alone would not run, or with another stage."""
    made: Any = make_strategy(name, num_ranks=2)
    assert type(made) is FSDP and (made.reshard_after_forward, made.cpu_offload) == (reshards, offloads)
    assert make_strategy(name, num_ranks=2) is not made


def test_what_is_offloaded_is_offloaded() -> None:
    """A model that does not fit would be left on the GPU."""
    for asked in (
        {"offload_optimizer": True},
        {"stage": 3, "offload_parameters": True, "offload_params_device": "cpu"},
        {"config": zero(2, offload_optimizer={"device": "cpu", "pin_memory": True})},
        {"config": zero(3, offload_param={"device": "cpu"}, offload_optimizer={"device": "none"})},
        {"config": zero(2, cpu_offload=True)},
    ):
        assert DeepSpeedStrategy(**asked).cpu_offload is True, asked
    assert DeepSpeedStrategy(config=zero(3, offload_param={"device": "none"}, cpu_offload=False)).cpu_offload is False
    assert DeepSpeedStrategy(config=zero(3), cpu_offload=True).cpu_offload is True


def test_other_arguments_are_those_of_fsdp() -> None:
    """An argument would be taken, and nothing be done with it."""
    made = DeepSpeedStrategy(
        process_group_backend="gloo", timeout=timedelta(minutes=2), activation_checkpointing_policy=nn.Linear,
        defer="none", shard={nn.Linear}, config=zero(2, ignore_unused_parameters=True), remote_device="cpu",
        partition_activations=False,
    )  # fmt: skip
    assert (made.backend, made.timeout_s, made.defer, made.shard) == ("gloo", 120.0, "none", {nn.Linear})
    assert made.activation_checkpointing_policy is nn.Linear and made.find_unused_parameters
    assert not DeepSpeedStrategy(config=zero(2, ignore_unused_parameters=False)).find_unused_parameters
    assert DeepSpeedStrategy().timeout_s == FSDP().timeout_s
    assert pickle.loads(pickle.dumps(DeepSpeedStrategy(stage=3))).stage == 3


def test_settings_of_speed_and_of_its_own_log_are_passed_over() -> None:
    """Each script would have to be emptied of them, though no result depends on one."""
    everything: dict[str, Any] = {**zero(3), "gradient_clipping": "auto", "bf16": {"enabled": "auto"}}
    for section, names in PASSED_OVER.items():
        inside = everything
        for part in section.split(".") if section else []:
            inside = inside.setdefault(part, {})
        inside.update(dict.fromkeys(names.split(), 5))
    made = DeepSpeedStrategy(config=everything, **dict.fromkeys(PASSED_OVER_ARGUMENTS.split(), 5))
    assert vars(made).keys() == vars(DeepSpeedStrategy()).keys() and made.cpu_offload is False and made.stage == 3


def test_a_configuration_is_read_from_a_file(tmp_path: Path) -> None:
    """A script that keeps it in a file would run with the defaults."""
    path = tmp_path / "zero.json"
    path.write_text(json.dumps(zero(3, offload_param={"device": "cpu"})))
    for given in (path, str(path)):
        made = DeepSpeedStrategy(config=given)
        assert (made.stage, made.cpu_offload) == (3, True)
    path.write_text("{")
    assert code_of(DeepSpeedStrategy, config=path)[0] == "deepspeed-setting"


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        ({"stage": 0}, "deepspeed-setting", "DDPStrategy"),
        ({"zero_optimization": False}, "deepspeed-setting", "DDPStrategy"),
        ({"config": {"steps_per_print": 5}}, "deepspeed-setting", "config asks for no other"),
        ({"stage": 4}, "deepspeed-setting", "stage 1, 2 or 3"),
        ({"config": zero(True)}, "deepspeed-setting", "stage 1, 2 or 3"),
        ({"stage": 2, "config": zero(3)}, "spelled-twice", "zero_optimization.stage=3"),
        ({"reshard_after_forward": True}, "spelled-twice", "stage=2"),
        ({"offload_optimizer": True, "cpu_offload": True}, "spelled-twice", "offload_optimizer=True"),
        ({"config": 3}, "deepspeed-setting", "path of a JSON file"),
        ({"config": "no_such.json"}, "deepspeed-setting", "no_such.json"),
        ({"config": {"zero_optimization": True}}, "deepspeed-setting", "a section"),
        ({"config": {**zero(2), "gradient_clipping": 1.0}}, "deepspeed-setting", "Trainer(gradient_clip_val=...)"),
        ({"config": {**zero(2), "gradient_accumulation_steps": 1}}, "deepspeed-setting", "accumulate_grad_batches"),
        ({"config": {**zero(2), "train_batch_size": 8}}, "deepspeed-setting", "global_batch_size"),
        ({"config": {**zero(2), "train_micro_batch_size_per_gpu": 8}}, "deepspeed-setting", "DataLoader"),
        ({"config": {**zero(2), "optimizer": {"type": "Adam"}}}, "deepspeed-setting", "configure_optimizers"),
        ({"config": {**zero(2), "elasticity": {"enabled": True}}}, "deepspeed-setting", "Take it out."),
        ({"config": {"zero_optimisation": {"stage": 3}}}, "deepspeed-setting", "mean 'zero_optimization'?"),
        ({"config": zero(3, overlap_com=True)}, "deepspeed-setting", "'zero_optimization.overlap_comm'"),
        ({"config": zero(3, mics_shard_size=8)}, "deepspeed-setting", "num_replicas"),
        ({"config": zero(3, offload_param={"device": "nvme"})}, "deepspeed-setting", "'cpu'"),
        ({"offload_optimizer": True, "offload_optimizer_device": "nvme"}, "deepspeed-setting", "'cpu'"),
        ({"config": zero(3, stage3_gather_16bit_weights_on_model_save=True)}, "deepspeed-setting", "checkpoint export"),
        ({"cpu_checkpointing": True}, "deepspeed-setting", "activation_checkpointing_policy"),
        ({"exclude_frozen_parameters": True}, "deepspeed-setting", "Take it out."),
        ({"remote_device": "nvme"}, "deepspeed-setting", "init_module"),
        ({"precision": "16-mixed"}, "unknown-argument", "Trainer(precision=...)"),
        ({"no_such": 1}, "unknown-argument", "no_such"),
    ],
)  # fmt: skip
def test_what_is_not_done_says_what_to_write(options: dict[str, Any], code: str, text: str) -> None:
    """A run would differ from what was asked for, without a word."""
    found, said = code_of(DeepSpeedStrategy, **options)
    assert found == code and text in said, said


@pytest.mark.parametrize(
    ("section", "settings", "precision", "is_same"),
    [
        ("fp16", {"enabled": True}, "32-true", False),
        ("fp16", {"enabled": True}, "16-true", True),
        ("fp16", {"enabled": False}, "16-true", False),
        ("fp16", {"enabled": "auto", "loss_scale": 128}, "16-true", False),
        ("fp16", {"enabled": "auto", "loss_scale": 0, "initial_scale_power": 16, "hysteresis": 2}, "16-true", True),
        ("fp16", {"enabled": False, "loss_scale": 128}, "bf16-mixed", True),
        ("bf16", {"enabled": True}, "bf16-mixed", True),
        ("bf16", {"enabled": True}, "bf16-true", True),
        ("bf16", {"enabled": True}, "64-true", False),
        ("bf16", {"enabled": False}, "bf16-mixed", False),
        ("bf16", {"enabled": "auto", "immediate_grad_update": True}, "bf16-mixed", False),
    ],
)
def test_number_formats_are_compared_with_those_of_the_run(
    section: str, settings: dict[str, Any], precision: str, is_same: bool
) -> None:
    """Somebody would train in float32, and believe it to be the half precision of the configuration."""
    trainer = drivetrain.Trainer(
        **{**QUIET, "strategy": DeepSpeedStrategy(config={**zero(2), section: settings}), "precision": precision}
    )
    try:
        if is_same:
            assert trainer._fabric.world_size == 1
            return
        with pytest.raises(ConfigError) as caught:
            assert trainer._fabric.world_size
        assert caught.value.code == "deepspeed-setting" and section in str(caught.value)
    finally:
        trainer._fabric.close()


def test_a_loss_scale_of_ones_own_is_refused_where_losses_are_scaled() -> None:
    """Steps would be skipped, or not, by another scale than the one that was asked for."""
    trainer = drivetrain.Trainer(
        **{**QUIET, "strategy": DeepSpeedStrategy(initial_scale_power=8), "precision": "16-mixed"}
    )
    with pytest.raises(ConfigError, match=r"fp16.initial_scale_power=8"):
        assert trainer._fabric.world_size


def test_the_world_outside_is_compared_with_the_run() -> None:
    """Somebody would train on the CPU, and believe it to be the GPU that was asked for."""
    assert fit(DeepSpeedStrategy(accelerator="cpu")).global_step == 2
    with pytest.raises(ConfigError, match=r"Trainer\(accelerator='cuda'\)"):
        fit(DeepSpeedStrategy(accelerator=CUDAAccelerator()))


def test_the_page_names_each_setting_that_is_read_or_passed_over() -> None:
    """Somebody would not know what of their configuration counts."""
    page = (ROOT / "docs" / "concepts" / "fsdp.md").read_text(encoding="utf-8")
    named = set(re.findall(r"\w+", page.partition("## Settings of DeepSpeed")[2]))
    assert {name for names in PASSED_OVER.values() for name in names.split()} - named == set()
    assert set(PASSED_OVER_ARGUMENTS.split()) - named == set()
    assert {part for name in _READ for part in name.split(".")} - named == set()
