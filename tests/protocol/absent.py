"""What is not there, and what to use instead: the one place in which a missing name has its reason."""

from __future__ import annotations

# (heading of the table, name) -> instead
ABSENT: dict[tuple[str, str], str] = {
    ("`Trainer(...)`", "model_registry"): "none: `trainer.save_checkpoint` and the registry's own client",
    ("What a module uses of itself", "device_mesh"): "none: there is no tensor parallelism",
    ("What a module uses of itself", "fabric"): "a module of a `Trainer` has `self.trainer`",
    ("Loggers", "CometLogger"): "a `Logger` of one's own: two methods",
    ("Loggers", "NeptuneLogger"): "a `Logger` of one's own: two methods",
    ("Strategies", "DeepSpeedStrategy"): "`FSDP`",
    ("Strategies", "ModelParallelStrategy"): "none: there is no tensor parallelism",
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
