"""What Comet has of an experiment: in archives on the disk, or in the service.

An offline experiment becomes a zip archive when it ends, one for each time that it was begun; `messages.json` in it has
a JSON object on each line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

from drivetrain.base.optional import import_extra

_MESSAGES = "messages.json"


def archives(directory: str | Path, key: str) -> list[Path]:
    """The archives of an experiment, the oldest first."""
    return sorted(Path(directory).glob(f"{key}*.zip"), key=lambda path: path.stat().st_mtime_ns)


def messages_of(path: Path) -> Iterator[dict[str, Any]]:
    """What an archive would tell the service; nothing if the process was killed before it was written."""
    try:
        with ZipFile(path) as archive:
            lines = archive.read(_MESSAGES).splitlines() if _MESSAGES in archive.namelist() else []
    except BadZipFile:
        return
    for line in lines:
        yield json.loads(line)


def last_steps_on_disk(directory: str | Path, key: str) -> dict[str, int]:
    """The last step that is on the disk under each name of an experiment."""
    steps: dict[str, int] = {}
    for path in archives(directory, key):
        for message in messages_of(path):
            metric = message["payload"].get("metric", {})
            if metric.get("step") is not None:
                name = metric["metricName"]
                steps[name] = max(int(metric["step"]), steps.get(name, -1))
    return steps


def last_steps_in_service(api_key: str | None, key: str) -> dict[str, int]:
    """The last step that Comet has under each name of an experiment; empty for one that it does not know."""
    comet = import_extra("comet_ml", extra="comet", purpose="CometLogger")
    found = comet.API(api_key=api_key).get_experiment_by_key(key)
    if found is None:
        return {}
    # https://www.comet.com/docs/v2/api-and-sdk/rest-api/read-endpoints/: a value without a step has none to repeat.
    rows = [row for row in found.get_metrics_summary() or [] if row.get("stepCurrent") is not None]
    return {row["name"]: int(row["stepCurrent"]) for row in rows}
