"""Familiar names that drivetrain does not have: what to use instead, said where they are imported."""

from __future__ import annotations

_OWN_LOGGER = "derive a Logger of your own: it has two methods"
_CLUSTER = "nothing: variables of torchrun, Slurm and others are read; see drivetrain doctor"

ABSENT = {
    "BitsandbytesPrecision": "the layers of bitsandbytes in the module itself",
    "CheckpointIO": "ModelCheckpoint(dirpath=url): a store is chosen by the URL",
    "ClusterEnvironment": _CLUSTER,
    "DDPPlugin": "DDPStrategy",
    "DDPSpawnStrategy": "strategy='ddp_spawn'",
    "FSDPPrecision": "Trainer(precision=...)",
    "GPUAccelerator": "Trainer(accelerator='cuda')",
    "GPUStatsMonitor": "DeviceStatsMonitor",
    "HalfPrecision": "Trainer(precision='bf16-true') or '16-true'",
    "LightningEnvironment": _CLUSTER,
    "LightningLoggerBase": "Logger",
    "LitLogger": _OWN_LOGGER,
    "LoggerCollection": "Trainer(logger=[...]), and trainer.loggers",
    "MPIEnvironment": _CLUSTER,
    "MixedPrecision": "Trainer(precision='bf16-mixed') or '16-mixed'",
    "MixedPrecisionPlugin": "Trainer(precision='bf16-mixed') or '16-mixed'",
    "ParallelStrategy": "Strategy, or DDPStrategy",
    "Precision": "drivetrain.Precision, as Trainer(precision=...)",
    "PrecisionPlugin": "drivetrain.Precision, as Trainer(precision=...)",
    "ProgressBarBase": "ProgressBar",
    "SLURMEnvironment": _CLUSTER,
    "StrategyRegistry": "Trainer(strategy=...) with a Strategy of your own",
    "TestTubeLogger": "TensorBoardLogger",
    "TorchCheckpointIO": "nothing: a checkpoint is a directory, written whole or not at all",
    "TorchElasticEnvironment": _CLUSTER,
    "XLAAccelerator": "nothing: there is no accelerator for TPUs",
    "XLAStrategy": "nothing: there is no accelerator for TPUs",
    "convert_zero_checkpoint_to_fp32_state_dict": "drivetrain checkpoint export, which makes one file of a checkpoint",
}
