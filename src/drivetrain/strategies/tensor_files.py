"""Files of `torch.distributed.checkpoint` inside of a checkpoint: sharded tensors, and nothing else.

torch describes them in a pickle, `.metadata`, which its own reader would load with whatever that names. Here it is read
with a list of what it may name, so that reading a checkpoint runs no code from it.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, cast

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor

from drivetrain.base.errors import CheckpointError
from drivetrain.base.files import Write
from drivetrain.checkpoint.manifest import FileRecord
from drivetrain.checkpoint.state_files import Place, StateFiles
from drivetrain.checkpoint.write import record_file
from drivetrain.strategies.saved_tensor import SHARDED_KEY, SavedTensor, map_parts

METADATA_FILE = ".metadata"
_METADATA = "torch.distributed.checkpoint.metadata"
_ALLOWED = {
    *((_METADATA, name) for name in ("Metadata", "MetadataIndex", "StorageMeta", "TensorStorageMetadata")),
    *((_METADATA, name) for name in ("TensorProperties", "ChunkStorageMetadata", "_MEM_FORMAT_ENCODING")),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch.serialization", "_get_layout"),
    ("torch", "Size"),
}


class _Stream:
    """A file whose own error is kept: the zip writer of torch (2.13) replaces it by one about a position."""

    def __init__(self, file: BinaryIO, write: Write) -> None:
        self._file = file
        self._write = write
        self.failure: OSError | None = None

    def write(self, data: bytes | memoryview) -> int:
        try:
            self._write(self._file, data)
        except OSError as error:
            self.failure = error
            raise
        return len(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class _Files(FileSystem):
    def __init__(self, write: Write) -> None:
        self._write = write

    @contextmanager
    def create_stream(self, path: Any, mode: str) -> Iterator[Any]:
        with open(path, mode) as file:
            stream = _Stream(cast(BinaryIO, file), self._write)
            try:
                yield stream
            except Exception:
                if stream.failure is not None:
                    raise stream.failure from None
                raise


class _Writer(FileSystemWriter):
    def __init__(self, place: Place) -> None:
        super().__init__(place.directory)
        self.fs = _Files(place.write)

    def storage_meta(self) -> None:
        """Nothing of where the files were written: they are renamed afterwards."""


class _Reader(FileSystemReader):
    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        return read_metadata(Path(self.path))


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _ALLOWED or (module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def add_sharded(tensors: Mapping[str, DTensor], files: StateFiles) -> None:
    """Save this rank's shards, each shard once among all ranks.

    Ranks: all.

    Args:
        tensors: By name, the same names on all ranks.
        files: The share of this rank.

    Raises:
        CheckpointError: It cannot be written.
    """
    layouts = {name: tensor._spec for name, tensor in tensors.items()}

    def write(place: Place, shards: Mapping[str, Tensor]) -> list[FileRecord]:
        # Made anew from its layout, as `DTensor.from_local` would bring a copy back to the device of its mesh.
        whole = {name: DTensor(shard, layouts[name], requires_grad=False) for name, shard in shards.items()}
        return _write_sharded(whole, place)

    files.add_with(write, {name: tensor.to_local().detach() for name, tensor in tensors.items()})


def _write_sharded(tensors: dict[str, DTensor], place: Place) -> list[FileRecord]:
    collectives, directory = place.collectives, place.directory
    try:
        save(
            tensors,
            storage_writer=_Writer(place),
            planner=DefaultSavePlanner(flatten_state_dict=False),
            process_group=collectives.cpu_group,
        )
    except CheckpointException as error:
        failed, (cause, _) = next(iter(error.failures.items()))
        raise CheckpointError(
            f"{directory} could not be written: rank {failed} failed with {type(cause).__name__}: {cause}.",
            code="checkpoint-write",
            do="The checkpoint was not made; earlier ones are intact.",
        ) from (cause if isinstance(cause, OSError) else error)
    names = sorted(path.name for path in directory.glob(f"__{collectives.rank}_*.distcp"))
    return [record_file(directory, name) for name in (*names, *([METADATA_FILE] if collectives.rank == 0 else []))]


def read_metadata(directory: Path) -> Metadata:
    """What torch says of the files.

    Raises:
        CheckpointError: It is damaged, or names more than torch's own descriptions of tensors.
    """
    try:
        with open(directory / METADATA_FILE, "rb") as file:
            metadata: Metadata = _Unpickler(file).load()
        for name, one in metadata.state_dict_metadata.items():
            if not isinstance(one, TensorStorageMetadata):
                raise pickle.UnpicklingError(f"{name} is no tensor")
        for info in metadata.storage_data.values():
            if PurePosixPath(info.relative_path).parts != (info.relative_path,) or info.relative_path == "..":
                raise pickle.UnpicklingError(f"it names the file {info.relative_path}")
    except Exception as error:
        raise CheckpointError(
            f"{directory / METADATA_FILE} cannot be read: {error}.",
            code="checkpoint-corrupt",
            do="No code from it was run. Resume from an earlier checkpoint.",
        ) from error
    return metadata


class ShardReader:
    """The sharded tensors of a checkpoint. They are asked for one by one, and read together.

    Args:
        directory: Of a checkpoint that was verified.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._sizes: dict[str, tuple[torch.Size, torch.dtype]] = {}
        self._pending: dict[str, Tensor] = {}
        if (directory / METADATA_FILE).exists():
            described: Any = read_metadata(directory).state_dict_metadata
            self._sizes = {name: (one.size, one.properties.dtype) for name, one in described.items()}

    def ask(self, name: str, like: DTensor | None = None) -> Tensor:
        """A tensor that `read` will fill: sharded as another one, or whole.

        One whose size is not that of `like` comes back on the meta device, to be reported by whoever loads it.

        Raises:
            CheckpointError: There is none of that name.
        """
        size, dtype = self._describe(name)
        if like is None:
            target: Tensor = torch.empty(size, dtype=dtype)
        elif like.shape != size:
            return torch.empty(size, dtype=dtype, device="meta")
        else:
            target = torch.empty_like(like, dtype=dtype)
        self._pending[name] = target
        return target

    def _describe(self, name: str) -> tuple[torch.Size, torch.dtype]:
        if name not in self._sizes:
            raise CheckpointError(
                f"{self._directory} has no shards of {name!r}.",
                code="checkpoint-corrupt",
                do="Resume from an earlier checkpoint.",
            )
        return self._sizes[name]

    def lazy(self, value: Any) -> Any:
        """A nested state in which tensors that are read when they are used are in the place of the names.

        Raises:
            CheckpointError: There are no shards of a name.
        """
        if isinstance(value, Mapping) and set(value) == {SHARDED_KEY}:
            return SavedTensor(value[SHARDED_KEY], *self._describe(value[SHARDED_KEY]), self._read_one)
        return map_parts(self.lazy, value)

    def _read_one(self, name: str) -> Tensor:
        target = self.ask(name)
        self.read()
        return target

    def whole(self, value: Any) -> Any:
        """A nested state in which whole tensors are in the place of the names of sharded ones."""
        if isinstance(value, Mapping):
            if set(value) == {SHARDED_KEY}:
                return self.ask(value[SHARDED_KEY])
            for key in [key for key, one in value.items() if isinstance(one, (Mapping, list, tuple))]:
                value[key] = self.whole(value[key])  # type: ignore[index]
        elif type(value) in (list, tuple):
            return type(value)(self.whole(one) for one in value)
        return value

    def read(self) -> None:
        """Fill what was asked for.

        Ranks: any; each reads what it needs.
        """
        if self._pending:
            planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
            with warnings.catch_warnings():  # without ranks torch says that it assumes what no_dist says
                warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
                load(self._pending, storage_reader=_Reader(self._directory), planner=planner, no_dist=True)
        self._pending = {}
