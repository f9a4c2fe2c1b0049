"""Services hear of a run from one rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from drivetrain import MLFlowLogger, ModelCheckpoint, WandbLogger
from drivetrain.loggers.wandb_files import run_files
from tests.unit.loggers.wandb_files import rows_of
from tests.unit.trainer.runs import Given, fit, numbers


def test_two_ranks_write_one_run(ranks: Any, tmp_path: Path) -> None:
    """Each rank would begin a run; or the ranks would save checkpoints in different directories."""
    pytest.importorskip("wandb")

    def in_rank(root: Path) -> tuple[Any, Any, str]:
        import os

        logger = WandbLogger(
            save_dir=root,
            project="p",
            mode="offline",
            settings={"silent": True, "console": "off", "x_disable_meta": True},
        )
        before = dict(os.environ)
        _, trainer = fit(
            Given(), numbers(1.0, 2.0, 3.0, 4.0), logger=logger, strategy="ddp", log_every_n_steps=1,
        )  # fmt: skip
        logger.experiment.log({"own": 1})
        if trainer.is_global_zero:
            import wandb

            logger.experiment.finish()
            wandb.teardown()
            for name in set(os.environ) - set(before):
                del os.environ[name]
        kind = type(logger.experiment).__name__ if not trainer.is_global_zero else "Run"
        trainer._fabric.close()
        return logger.version, trainer.log_dir, kind

    (left, right) = ranks.run(in_rank, tmp_path)
    assert left[:2] == right[:2] and (left[2], right[2]) == ("Run", "SilentExperiment")
    assert len(run_files(tmp_path, "*")) == 1
    assert [row["loss"] for row in rows_of(tmp_path) if "loss" in row] == [1.5, 3.5]


def test_two_ranks_register_one_version(ranks: Any, tmp_path: Path) -> None:
    """Each rank would register the same checkpoint, or one would wait for the other."""
    pytest.importorskip("mlflow")

    def in_rank(root: Path) -> int:
        import os

        before = dict(os.environ)
        os.environ.update(MLFLOW_ALLOW_FILE_STORE="true", MLFLOW_DISABLE_TELEMETRY="true")
        logger = MLFlowLogger(save_dir=root / "mlruns")
        _, trainer = fit(
            Given(), numbers(1.0, 2.0, 3.0, 4.0), logger=logger, strategy="ddp", enable_checkpointing=None,
            callbacks=[ModelCheckpoint(root / "kept")], model_registry="net",
        )  # fmt: skip
        num_versions = 0
        if trainer.is_global_zero:
            num_versions = len(logger.experiment.search_model_versions("name = 'net'"))
        trainer._fabric.close()
        for name in set(os.environ) - set(before):
            del os.environ[name]
        return num_versions

    assert ranks.run(in_rank, tmp_path) == [1, 0]
