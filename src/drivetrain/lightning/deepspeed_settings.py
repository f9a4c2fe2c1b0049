"""Settings of DeepSpeed: read where they mean something here, passed over where no result depends on them, or refused.

Names are those of its configuration, with dots between a section and what is in it.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch

from drivetrain.base.errors import ConfigError
from drivetrain.precision.precision import Precision

_ZERO = "zero_optimization"
_SECTIONS = (_ZERO, f"{_ZERO}.offload_optimizer", f"{_ZERO}.offload_param", "fp16", "bf16")
_OFFLOADS = (
    f"{_ZERO}.offload_optimizer.device", f"{_ZERO}.offload_param.device", f"{_ZERO}.cpu_offload",
    f"{_ZERO}.cpu_offload_params",
)  # fmt: skip
_READ = (f"{_ZERO}.stage", f"{_ZERO}.ignore_unused_parameters", *_OFFLOADS, "fp16.enabled", "bf16.enabled")

# In which pieces, how far ahead, and with how much of a log of its own DeepSpeed works.
PASSED_OVER = {
    "": "steps_per_print wall_clock_breakdown memory_breakdown dump_state disable_allgather aio "
    "zero_allow_untested_optimizer zero_force_ds_cpu_optimizer",
    _ZERO: "allgather_partitions allgather_bucket_size overlap_comm reduce_scatter reduce_bucket_size "
    "contiguous_gradients round_robin_gradients use_multi_rank_bucket_allreduce sub_group_size prefetch_bucket_size "
    "param_persistence_threshold model_persistence_threshold max_live_parameters max_reuse_distance "
    "module_granularity_threshold stage3_prefetch_bucket_size stage3_param_persistence_threshold "
    "stage3_model_persistence_threshold stage3_max_live_parameters stage3_max_reuse_distance "
    "stage3_module_granularity_threshold stage3_use_all_reduce_for_fetch_params use_all_reduce_for_fetch_params "
    "memory_efficient_linear log_trace_cache_warnings cpu_offload_use_pin_memory",
    f"{_ZERO}.offload_optimizer": "pin_memory buffer_count fast_init pipeline_read pipeline_write nvme_path",
    f"{_ZERO}.offload_param": "pin_memory buffer_count buffer_size max_in_cpu nvme_path",
}
_PASSED_OVER = {f"{section}.{name}".lstrip(".") for section, names in PASSED_OVER.items() for name in names.split()}
PASSED_OVER_ARGUMENTS = (
    "zero_allow_untested_optimizer nvme_path params_buffer_count params_buffer_size max_in_cpu optimizer_buffer_count "
    "block_size queue_depth single_submit overlap_events thread_count pin_memory sub_group_size contiguous_gradients "
    "overlap_comm allgather_partitions reduce_scatter allgather_bucket_size reduce_bucket_size logging_level "
    "logging_batch_size_per_gpu load_full_weights"
)

# What DeepSpeed does anyway, and what torch's loss scaling begins with.
_USUAL = {
    "gradient_predivide_factor": 1,
    "remote_device": "cpu",
    "sequence_parallel_size": 1,
    f"{_ZERO}.offload_optimizer.ratio": 1,
    f"{_ZERO}.offload_param.ratio": 1,
    f"{_ZERO}.zero_hpz_partition_size": 1,
    f"{_ZERO}.mics_shard_size": -1,
    "fp16.initial_scale_power": 16,
    "fp16.loss_scale_window": 1000,
    "fp16.hysteresis": 2,
    "fp16.min_loss_scale": 1,
}
_LOGGER = "Trainer(logger=...)"
_EXPORT = "'drivetrain checkpoint export PATH model.safetensors', which makes one file of a checkpoint"
_INSTEAD = {
    "train_batch_size": "Trainer(global_batch_size=...)",
    "train_micro_batch_size_per_gpu": "DataLoader(batch_size=...)",
    "gradient_accumulation_steps": "Trainer(accumulate_grad_batches=...), or fabric.windows(size=...)",
    "gradient_clipping": "Trainer(gradient_clip_val=...), or fabric.windows(max_norm=...)",
    "optimizer": "an optimizer of torch, in configure_optimizers",
    "scheduler": "a scheduler of torch, in configure_optimizers",
    "communication_data_type": "Trainer(precision=drivetrain.Precision(reduce_dtype=...))",
    "amp": "Trainer(precision='16-mixed')",
    **dict.fromkeys(("activation_checkpointing", "partition_activations", "cpu_checkpointing",
                     "contiguous_memory_optimization", "synchronize_checkpoint_boundary"),
                    "activation_checkpointing_policy={Block}, whose forward runs again in backward"),
    "tensor_parallel": "tensor_parallel_size=...",
    "flops_profiler": "ThroughputMonitor among the callbacks",
    "remote_device": "trainer.init_module(), or a module on the meta device with reset_parameters()",
    **dict.fromkeys(("tensorboard", "wandb", "csv_monitor", "comet"), _LOGGER),
    f"{_ZERO}.zero_hpz_partition_size": "reshard_after_forward=..., with the ranks over which parts stay sharded",
    f"{_ZERO}.mics_shard_size": "num_replicas=..., copies of the sharded module",
    **{f"{_ZERO}.{name}": _EXPORT for name in
       ("gather_16bit_weights_on_model_save", "stage3_gather_16bit_weights_on_model_save")},
}  # fmt: skip


@dataclass(frozen=True)
class Zero:
    """What is read.

    Attributes:
        stage: Of ZeRO, from 1.
        offloads: Something is to be in the memory of the host.
        finds_unused: A parameter without a gradient is no error; `None` where nothing was said.
        formats: Settings of `fp16` and `bf16`, for `check_formats`.
    """

    stage: int
    offloads: bool
    finds_unused: bool | None
    formats: Mapping[str, Any]


def read_settings(config: Any, given: Mapping[str, Any]) -> Zero:
    """What the configuration and arguments ask for.

    Args:
        config: A mapping, the path of a JSON file, or `None`.
        given: Settings that were given as arguments.

    Raises:
        ConfigError: They ask for what is not done here, or say two things.
    """
    said = dict(_flat(_loaded(config)))
    for name, value in given.items():
        if name in said and said[name] != value:
            raise ConfigError(
                f"config says {name}={said[name]!r}, and an argument {name}={value!r}.",
                code="spelled-twice",
                do="Drop one of the two.",
            )
        said[name] = value
    for name, value in said.items():
        if name not in _READ and not name.startswith(("fp16.", "bf16.")):
            _check_unread(name, value)
    stage = said.get(f"{_ZERO}.stage", 2 if config is None else 0)
    if type(stage) is not int or not 0 <= stage <= 3:
        _refuse(f"{_ZERO}.stage", stage, "stage 1, 2 or 3")
    if stage == 0:
        raise ConfigError(
            "Stage 0 of ZeRO shards nothing" + (", and config asks for no other." if config is not None else "."),
            code="deepspeed-setting",
            do="Use strategy=DDPStrategy(), which keeps a copy on each rank; or stage=1, 2 or 3.",
        )
    ignores = said.get(f"{_ZERO}.ignore_unused_parameters")
    return Zero(
        stage=stage,
        offloads=any([_is_offload(name, said[name]) for name in _OFFLOADS if name in said]),
        finds_unused=None if _says_nothing(ignores) else bool(ignores),
        formats={name: value for name, value in said.items() if name.startswith(("fp16.", "bf16."))},
    )


def check_formats(formats: Mapping[str, Any], precision: Precision) -> None:
    """Compare number formats with those of the run.

    Args:
        formats: Of `Zero`.
        precision: Of the run.

    Raises:
        ConfigError: They are others, or ask for a loss scale that torch's scaling does not have.
    """
    dtype = precision.compute_dtype or precision.parameter_dtype
    for section, own, name in (("fp16", torch.float16, "16-mixed"), ("bf16", torch.bfloat16, "bf16-mixed")):
        enabled = formats.get(f"{section}.enabled", "auto")
        if enabled not in (None, "auto") and bool(enabled) != (dtype is own):
            raise ConfigError(
                f"{section}.enabled={enabled!r}, and the run has precision={precision.name!r}.",
                code="deepspeed-setting",
                do=f"Say it once: Trainer(precision={name if enabled else '32-true'!r}).",
            )
    of_run = {torch.float16: "fp16.", torch.bfloat16: "bf16."}.get(dtype) if dtype is not None else None
    for name, value in formats.items():
        if of_run is not None and name.startswith(of_run) and name not in _READ:
            _check_unread(name, value)


def _loaded(config: Any) -> Mapping[str, Any]:
    if isinstance(config, (str, Path)):
        try:
            config = json.loads(Path(config).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"config={str(config)!r} cannot be read: {error}.",
                code="deepspeed-setting",
                do="Give the path of a JSON file, or a dict.",
            ) from None
    if config is None or isinstance(config, Mapping):
        return config or {}
    raise ConfigError(
        f"config={config!r} is no configuration.",
        code="deepspeed-setting",
        do="Give a dict, or the path of a JSON file.",
    )


def _flat(settings: Mapping[str, Any], section: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in settings.items():
        name = f"{section}.{key}".lstrip(".")
        if name in _SECTIONS and isinstance(value, Mapping):
            yield from _flat(value, name)
        elif name in _SECTIONS and not _says_nothing(value):
            _refuse(name, value, "a section, as {...}")
        else:
            yield name, value


def _says_nothing(value: Any) -> bool:
    """It is off, or left to whatever the run does."""
    if isinstance(value, Mapping):
        return not value.get("enabled", True) or all(map(_says_nothing, value.values()))
    return value in (None, False, "auto")


def _check_unread(name: str, value: Any) -> None:
    if not (_says_nothing(value) or name in _PASSED_OVER or (name in _USUAL and value == _USUAL[name])):
        _refuse(name, value, _INSTEAD.get(name, ""))


def _is_offload(name: str, value: Any) -> bool:
    if _says_nothing(value) or value == "none":
        return False
    if value not in ("cpu", True):
        _refuse(name, value, "'cpu', if it is to be offloaded: shards are in the memory of a GPU or of the host")
    return True


def _refuse(name: str, value: Any, instead: str) -> NoReturn:
    known = {*_SECTIONS, *_READ, *_PASSED_OVER, *_USUAL, *_INSTEAD}
    near = [] if instead or name in known else difflib.get_close_matches(name, known, n=1, cutoff=0.8)
    hint = f"Did you mean {near[0]!r}?" if near else "Take it out."
    raise ConfigError(
        f"{name}={value!r}: torch's FSDP2 runs here, and has no such setting.",
        code="deepspeed-setting",
        do=f"Take it out, and use {instead}." if instead else f"{hint} All that are read: docs/concepts/fsdp.md.",
    )
