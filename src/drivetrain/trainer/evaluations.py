"""Validation, test and prediction by themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from drivetrain.base.errors import ConfigError
from drivetrain.cluster.read_cluster import current_cluster
from drivetrain.fabric.compiled import make_compiler, take_wrappers_off
from drivetrain.loop.data_module import DataModule
from drivetrain.loop.module import Module
from drivetrain.trainer import trainer_state
from drivetrain.trainer.defaults import resolve_checkpoint, with_callbacks_of
from drivetrain.trainer.request import Request
from drivetrain.trainer.run import run_evaluation
from drivetrain.trainer.view import TrainerView


class Evaluations(TrainerView):
    """The stages of a trainer that change no weights."""

    compile: Any

    def validate(
        self,
        model: Module | None = None,
        dataloaders: Any = None,
        ckpt_path: str | Path | None = None,
        verbose: bool = True,
        datamodule: DataModule | None = None,
    ) -> list[dict[str, float]]:
        """Run validation once.

        Ranks: all.

        Args:
            model: The module; by default the one that was trained, with the weights of its best checkpoint.
            dataloaders: One loader, a list, or a datamodule.
            ckpt_path: Weights to load before; `"best"` and `"last"` are those of this trainer's `ModelCheckpoint`.
            verbose: Print the result on rank 0.
            datamodule: Instead of loaders.

        Returns:
            The reduced values of each loader.
        """
        return self._evaluate("validate", model, dataloaders, ckpt_path, datamodule, verbose)  # type: ignore[no-any-return]

    def test(
        self,
        model: Module | None = None,
        dataloaders: Any = None,
        ckpt_path: str | Path | None = None,
        verbose: bool = True,
        datamodule: DataModule | None = None,
    ) -> list[dict[str, float]]:
        """Run the test once; see `validate`.

        Ranks: all.
        """
        return self._evaluate("test", model, dataloaders, ckpt_path, datamodule, verbose)  # type: ignore[no-any-return]

    def predict(
        self,
        model: Module | None = None,
        dataloaders: Any = None,
        datamodule: DataModule | None = None,
        return_predictions: bool | None = None,
        ckpt_path: str | Path | None = None,
    ) -> Any:
        """Predict.

        Ranks: all.

        Args:
            model: The module; by default the one that was trained.
            dataloaders: One loader, a list, or a datamodule.
            datamodule: Instead of loaders.
            return_predictions: False keeps nothing in memory.
            ckpt_path: Weights to load before.

        Returns:
            What `predict_step` returned for each batch of this rank; for several loaders a list of such lists.
        """
        keeps = return_predictions is None or return_predictions
        predictions = self._evaluate("predict", model, dataloaders, ckpt_path, datamodule, False, keeps)
        return predictions if keeps else None

    def _evaluate(
        self, stage: str, model: Module | None, loaders: Any, ckpt_path: Any, datamodule: Any, verbose: bool,
        keeps_predictions: bool = True,
    ) -> Any:  # fmt: skip
        if isinstance(loaders, DataModule):
            loaders, datamodule = None, loaders
        if model is None:
            model = self.model
            keeper = self.checkpoint_callback
            if ckpt_path is None and keeper is not None and keeper.best_model_path:
                ckpt_path = "best"
        if model is None:
            raise ConfigError(f"{stage} was given no model.", code="no-model", do="Pass one, or fit one first.")
        request = self._request(stage, model, loaders, None, datamodule, ckpt_path, keeps_predictions)
        with self.in_stage(stage), self._global_switches():
            result = trainer_state.take_back(self, request.module, self._fabric.start(run_evaluation, self, request))
        if verbose and stage != "predict" and self.is_global_zero:
            for one in result:
                print(f"{stage}: " + ", ".join(f"{name} {value:.6g}" for name, value in one.items()))
        return result

    def _request(
        self, stage: str, model: Module, loaders: Any, val_loaders: Any, datamodule: Any, ckpt_path: Any,
        keeps_predictions: bool = True,
    ) -> Request:  # fmt: skip
        has_data = loaders is not None or datamodule is not None
        model, compiler = take_wrappers_off(model)
        request = Request(
            stage, model, loaders, val_loaders, datamodule if has_data else self.datamodule,
            resolve_checkpoint(self, ckpt_path), is_elsewhere=self._fabric.plan.needs_launch(current_cluster()),
            keeps_predictions=keeps_predictions,
            compiler=compiler if self.compile is None else make_compiler(self.compile),
        )  # fmt: skip
        request.check()
        if stage == "fit" or model is not self.model:  # an evaluation keeps what the fit has noted
            self.callbacks = with_callbacks_of(model, self.callbacks)
        self.model, self.datamodule = model, request.datamodule
        return request
