"""The files of wandb: what of a run is on the disk.

A file is a log of records in blocks of 32 KiB, as LevelDB writes it (doc/log_format.md of google/leveldb), after a
header of 7 bytes; each record is a protobuf message. wandb 0.31 writes it every 15 seconds or so.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from drivetrain.base.optional import import_extra

_BLOCK, _HEADER = 32768, 7
_WHOLE, _LAST = 1, 4  # kinds of parts with which a record ends


def run_files(save_dir: str | Path, run_id: str) -> list[Path]:
    """The files of a run: one for each time that it was begun, in that order."""
    found = (Path(save_dir) / "wandb").glob(f"*run-*/run-{run_id}.wandb")
    return sorted(found, key=lambda path: path.parent.name.removeprefix("offline-"))  # the time is in the name


def records_of(path: Path) -> Iterator[Any]:
    """The whole records of a file, from its beginning."""
    records = import_extra("wandb.proto.wandb_internal_pb2", extra="wandb", purpose="WandbLogger")
    data, position, parts = path.read_bytes(), _HEADER, []
    while position + _HEADER <= len(data):
        left = _BLOCK - position % _BLOCK
        if left < _HEADER:  # filled up
            position += left
            continue
        length, kind = struct.unpack_from("<HB", data, position + 4)  # after a checksum
        parts.append(data[position + _HEADER : position + _HEADER + length])
        position += _HEADER + length
        if kind in (_WHOLE, _LAST):
            yield records.Record.FromString(b"".join(parts))
            parts = []


def last_steps(save_dir: str | Path, run_id: str, *, step_name: str) -> dict[str, int]:
    """The last step that is on the disk under each name of a run."""
    steps: dict[str, int] = {}
    for path in run_files(save_dir, run_id):
        for record in records_of(path):
            names = [one.key or one.nested_key[0] for one in record.history.item]
            if step_name in names:
                step = int(float(record.history.item[names.index(step_name)].value_json))
                steps.update((name, max(step, steps.get(name, -1))) for name in names)
    return steps
