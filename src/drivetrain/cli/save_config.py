"""The configuration of a run, kept beside its logs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from drivetrain.base.errors import ConfigError
from drivetrain.base.files import write_text_atomically
from drivetrain.loop.callback import Callback


class SaveConfigCallback(Callback):
    """Writes the configuration to the log directory, on rank 0, in the form in which it is read back.

    A file that is there already stays: another configuration gets the next free name, such as `config_1.yaml`.
    Override `save_config` to write it elsewhere too.

    Args:
        parser: Knows how `config` is written.
        config: Of the stage that runs.
        config_filename: The file's name in the log directory.
        overwrite: Replace a file that is there already.
        save_to_log_dir: False writes nothing by itself: `save_config` does.
    """

    def __init__(
        self,
        parser: Any,
        config: Any,
        config_filename: str = "config.yaml",
        overwrite: bool = False,
        save_to_log_dir: bool = True,
    ) -> None:
        if not config_filename.endswith((".yaml", ".yml")):
            raise ConfigError(
                f"config_filename={config_filename!r} is not of a YAML file.",
                code="config-file",
                do="Let it end in .yaml.",
            )
        self.parser, self.config = parser, config
        self.config_filename = config_filename
        self.overwrite = overwrite
        self.save_to_log_dir = save_to_log_dir
        self.text: str = parser.dump(config, skip_unset=False)
        self._is_saved = False

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "parser": None, "config": None}  # a rank that is sent this needs the text alone

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Evaluation knows its directory from the start."""
        if stage != "fit":
            self._save(trainer, pl_module, stage)

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Training knows it when a checkpoint was loaded: a resumed run goes on in the directory of the first one."""
        self._save(trainer, pl_module, "fit")

    def save_config(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Write `self.text` elsewhere; for subclasses.

        Ranks: 0.

        Args:
            trainer: The run.
            pl_module: The module.
            stage: `"fit"`, `"validate"`, `"test"` or `"predict"`.
        """

    def _save(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if self._is_saved or not trainer.is_global_zero:
            return
        self._is_saved = True
        if self.save_to_log_dir and trainer.log_dir is not None:
            self.path = write_config(Path(trainer.log_dir), self.config_filename, self.text, overwrite=self.overwrite)
        self.save_config(trainer, pl_module, stage)


def write_config(folder: Path, name: str, text: str, *, overwrite: bool = False) -> Path:
    """Write a text under this name, or the next free one if another text has it."""
    folder.mkdir(parents=True, exist_ok=True)
    stem, suffix = os.path.splitext(name)
    path, number = folder / name, 0
    while not overwrite:
        try:
            with open(path, "x", encoding="utf-8") as file:
                file.write(text)
            return path
        except FileExistsError:
            if path.read_text(encoding="utf-8") == text:
                return path
        number += 1
        path = folder / f"{stem}_{number}{suffix}"
    write_text_atomically(path, text)
    return path
