"""What wandb wrote to the disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from drivetrain.loggers.wandb_files import records_of, run_files


def rows_of(root: Path, run_id: str = "*") -> list[dict[str, Any]]:
    """All rows of a run, in the order in which they are sent, without what wandb adds."""
    rows = []
    for path in run_files(root, run_id):
        for record in records_of(path):
            if record.WhichOneof("record_type") == "history":
                row = {".".join(one.nested_key) or one.key: json.loads(one.value_json) for one in record.history.item}
                rows.append({name: value for name, value in row.items() if not name.startswith("_")})
    return rows


def config_of(root: Path, run_id: str = "*") -> dict[str, Any]:
    """The hyperparameters of a run."""
    config: dict[str, Any] = {}
    for path in run_files(root, run_id):
        for record in records_of(path):
            for update in (record.config.update, record.run.config.update):
                config.update({one.key or one.nested_key[0]: json.loads(one.value_json) for one in update})
    return config
