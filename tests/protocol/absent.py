"""What is not there, and what to use instead: the one place in which a missing name has its reason."""

from __future__ import annotations

_BAR = "refused: `get_metrics` says what the bar shows, `open_display` where"

# (heading of the table, name) -> instead
ABSENT: dict[tuple[str, str], str] = {
    ("`Trainer(...)`", "model_registry"): "none: `trainer.save_checkpoint` and the registry's own client",
    ("What a module uses of itself", "device_mesh"): "none: there is no tensor parallelism",
    ("What a module uses of itself", "fabric"): "a module of a `Trainer` has `self.trainer`",
    ("What a progress bar defines", "init_train_tqdm"): _BAR,
    ("What a progress bar defines", "init_validation_tqdm"): _BAR,
    ("Callbacks", "ProgressBar"): "derive from `RichProgressBar`, or from `Callback`",
    ("Callbacks", "LearningRateFinder"): "`Tuner(trainer).lr_find(module, ...)` before `fit`",
    ("Callbacks", "BatchSizeFinder"): '`micro_batch_size="auto"`, or `Tuner(trainer).scale_batch_size(module, ...)`',
    ("Loggers", "CometLogger"): "a `Logger` of one's own: two methods",
    ("Loggers", "NeptuneLogger"): "a `Logger` of one's own: two methods",
    ("Strategies", "DeepSpeedStrategy"): "`FSDP`",
    ("Strategies", "ModelParallelStrategy"): "none: there is no tensor parallelism",
    ("`RichProgressBar(...)`", "theme"): "none",
    ("`DDPStrategy(...)`", "process_group_backend"): "`backend`",
    ("`DDPStrategy(...)`", "start_method"): "`start`",
    (
        "`DDPStrategy(...)`",
        "cluster_environment",
    ): "torchrun's variables are read; other launchers set `RANK` and its like",
    ("`DDPStrategy(...)`", "accelerator"): "`Trainer(accelerator=...)`",
    ("`FSDPStrategy(...)`", "auto_wrap_policy"): "`shard`",
    ("`FSDPStrategy(...)`", "cpu_offload"): "`activation_checkpointing_policy`, or more ranks",
    ("`FSDPStrategy(...)`", "limit_all_gathers"): "not needed: FSDP2 has no such setting",
    ("`FSDPStrategy(...)`", "state_dict_type"): "sharded, always; `drivetrain export` makes one file of it",
    ("`FSDPStrategy(...)`", "sharding_strategy"): "`reshard_after_forward`, `num_replicas`",
    ("`FSDPStrategy(...)`", "activation_checkpointing"): "`activation_checkpointing_policy`",
}
