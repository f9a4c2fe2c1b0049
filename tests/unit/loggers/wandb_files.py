"""What wandb wrote to the disk: a log of records in blocks, as LevelDB writes it, after a header of 7 bytes."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_BLOCK, _HEADER = 32768, 7


def _records(data: bytes) -> Iterator[bytes]:
    position, parts = _HEADER, []
    while position + _HEADER <= len(data):
        left = _BLOCK - position % _BLOCK
        if left < _HEADER:
            position += left
            continue
        length, kind = struct.unpack_from("<HB", data, position + 4)
        parts.append(data[position + _HEADER : position + _HEADER + length])
        position += _HEADER + length
        if kind in (1, 4):  # whole, or the last part
            yield b"".join(parts)
            parts = []


def records_of(path: Path) -> list[Any]:
    """The records of one file."""
    from wandb.proto.wandb_internal_pb2 import Record

    return [Record.FromString(one) for one in _records(path.read_bytes())]


def run_files(root: Path, run_id: str = "*") -> list[Path]:
    """The files of a run in their order: one for each time that it was begun."""
    return sorted((root / "wandb").glob(f"*run-*/run-{run_id}.wandb"), key=lambda path: path.stat().st_ctime_ns)


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
