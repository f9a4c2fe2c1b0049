"""What Neptune has of a run: in files on the disk, or in the service.

An offline run is a directory of operations, one JSON object on each line. Its id is that of one start only, so that
drivetrain writes its own into it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from drivetrain.base.optional import import_extra

ID_FIELD = "drivetrain/run_id"


def offline_runs(run_id: str) -> list[Path]:
    """The directories of an offline run: one for each time that it was begun, the oldest first."""
    found = sorted(_directory().glob("run__*"), key=lambda path: path.stat().st_mtime_ns)
    return [path for path in found if run_id in path.name or _id_in(path) == run_id]


def operations_of(path: Path) -> Iterator[dict[str, Any]]:
    """What a directory would tell the service, up to where the process was killed."""
    for file in sorted(path.glob("data-*.log"), key=lambda file: int(file.stem.removeprefix("data-"))):
        for line in file.read_text(encoding="utf-8").splitlines():
            try:
                yield json.loads(line)["obj"]
            except json.JSONDecodeError:
                return


def last_steps_on_disk(run_id: str) -> dict[str, int]:
    """The last step that is on the disk under each name of a run."""
    steps: dict[str, int] = {}
    for path in offline_runs(run_id):
        for operation in operations_of(path):
            if operation["type"] == "LogFloats":
                name = "/".join(operation["path"])
                found = [int(one["step"]) for one in operation["values"] if one["step"] is not None]
                steps[name] = max([steps.get(name, -1), *found])
    return steps


def last_steps_in_service(run: Any) -> dict[str, int]:
    """The last step that the service has under each name of a run that was begun."""
    series = import_extra("neptune.attributes.series", extra="neptune", purpose="NeptuneLogger").FloatSeries
    steps = {}
    for name, attribute in _fields(run.get_structure()):
        if isinstance(attribute, series):
            values = run[name].fetch_values(include_timestamp=False, progress_bar=False)
            steps[name] = int(values["step"].max()) if len(values) else -1
    return steps


def is_offline(run: Any) -> bool:
    """Its data go to the disk only."""
    return str(run.get_url()).startswith("offline/")


def id_of(run: Any) -> str:
    """By what a run is found again: the service's id such as `ABC-12`, or that of its directory."""
    return run.get_url().removeprefix("offline/") if is_offline(run) else str(run["sys/id"].fetch())


def _directory() -> Path:
    # Neptune takes the place of its files from the environment alone.
    parts = import_extra("neptune.internal.operation_processors.utils", extra="neptune", purpose="NeptuneLogger")
    kind = import_extra("neptune.internal.container_type", extra="neptune", purpose="NeptuneLogger").ContainerType.RUN
    return Path(parts.get_container_full_path("offline", "any", kind)).parent


def _id_in(path: Path) -> str | None:
    written = (one["value"] for one in operations_of(path) if "/".join(one["path"]) == ID_FIELD)
    return next(written, None)


def _fields(structure: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in structure.items():
        if isinstance(value, Mapping):
            yield from _fields(value, f"{above}{name}/")
        else:
            yield above + name, value
