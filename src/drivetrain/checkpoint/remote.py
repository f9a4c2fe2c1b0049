"""Checkpoints in a store without renames, such as S3: everything is there before the manifest, which is put there last.

    <url>/<token>/state.pt ...             the files, below a name that no other save has
    <url>/drivetrain-manifest.json         names the token: a checkpoint without its manifest does not exist

A manifest is replaced in one request. Files of earlier saves under the same URL are deleted after that.
"""

from __future__ import annotations

import contextlib
import secrets
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from drivetrain.base.errors import CheckpointError, MissingExtraError
from drivetrain.base.fence import FENCE
from drivetrain.base.files import Write, write_plainly
from drivetrain.base.locations import is_url, join
from drivetrain.checkpoint.commit import LATEST_NAME, discard
from drivetrain.checkpoint.destination import Destination, LocalDestination
from drivetrain.checkpoint.manifest import MANIFEST_NAME, FileRecord, Manifest, manifest_text, parse_manifest
from drivetrain.checkpoint.verify import age_key, newest_first

_FILES_KEY = "files_in"  # in the manifest's extra data: below which name its files are


def destination_of(location: str) -> Destination:
    """Where a checkpoint goes: to a directory, or to the store of a URL."""
    return RemoteDestination(location) if is_url(location) else LocalDestination(Path(location))


class RemoteDestination(Destination):
    """The store of a URL. Files are written to this machine's temporary directory first, and deleted once sent.

    Args:
        url: Of the checkpoint.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._store, self._path = _store_of(url)

    def begin(self) -> str:
        """Choose a name; a store has no directories that could be made."""
        with _requests(self._url, writes=True):
            if self._store.isfile(self._path):
                raise CheckpointError(
                    f"{self._url} is an object that is not a checkpoint; it would be hidden if one took its name.",
                    code="checkpoint-occupied",
                    do="Save under another name, or move it away.",
                )
        return f"save-{secrets.token_hex(8)}"

    @contextlib.contextmanager
    def opened(self, token: str) -> Iterator[Path]:
        """A temporary directory of this machine."""
        with tempfile.TemporaryDirectory(prefix="drivetrain-checkpoint-") as directory:
            yield Path(directory)

    def send(self, token: str, directory: Path, records: Sequence[FileRecord]) -> None:
        """Upload the files."""
        for record in records:
            with _requests(join(self._url, record.name), writes=True):
                self._store.put_file(str(directory / record.name), f"{self._path}/{token}/{record.name}")

    def finish(self, token: str, manifest: Manifest, *, write: Write = write_plainly) -> None:
        """Put the manifest there, once the store lists every file in its length."""
        manifest = replace(manifest, extra={**manifest.extra, _FILES_KEY: token})
        self._check_sizes(token, manifest)
        parent, _, name = self._path.rpartition("/")
        FENCE.require_open(self._url)
        with _requests(self._url, writes=True):
            self._store.pipe_file(f"{self._path}/{MANIFEST_NAME}", manifest_text(manifest).encode())
            self._store.pipe_file(f"{parent}/{LATEST_NAME}", f"{name}\n".encode())
        with contextlib.suppress(Exception):  # the next save to this URL tries again
            for other in self._store.ls(self._path, detail=False, refresh=True):
                if other.rstrip("/").rpartition("/")[2].startswith("save-") and not other.rstrip("/").endswith(token):
                    self._store.rm(other, recursive=True)

    def abandon(self, token: str) -> None:
        """Delete what was uploaded."""
        with contextlib.suppress(Exception):
            self._store.rm(f"{self._path}/{token}", recursive=True)

    def _check_sizes(self, token: str, manifest: Manifest) -> None:
        with _requests(self._url, writes=True):
            found = self._store.find(f"{self._path}/{token}", detail=True, refresh=True)
        sizes = {name.rpartition(f"/{token}/")[2]: entry["size"] for name, entry in found.items()}
        wanted = {record.name: record.size_bytes for record in manifest.files}
        if sizes != wanted:
            raise CheckpointError(
                f"{self._url} does not hold what was uploaded: it lists {sizes}, and {wanted} were sent.",
                code="checkpoint-write",
                do="The store lost something without an error. The checkpoint was not made; earlier ones are intact.",
            )


def fetch(url: str, directory: Path) -> None:
    """Download a checkpoint into a directory, where it is verified and read like any other.

    Raises:
        CheckpointError: `checkpoint-missing`, `checkpoint-corrupt`, or `checkpoint-read` if the store fails.
    """
    store, path = _store_of(url)
    with _requests(url, writes=False):
        text = _get(store, f"{path}/{MANIFEST_NAME}")
    if text is None:
        raise CheckpointError(
            f"There is no checkpoint at {url}: it has no {MANIFEST_NAME}.",
            code="checkpoint-missing",
            do="Give the URL of a complete checkpoint.",
        )
    manifest = parse_manifest(text, join(url, MANIFEST_NAME))
    (directory / MANIFEST_NAME).write_bytes(text)
    for record in manifest.files:
        target = directory / record.name
        target.parent.mkdir(parents=True, exist_ok=True)
        place = "/".join(filter(None, [path, manifest.extra.get(_FILES_KEY), record.name]))
        with _requests(join(url, record.name), writes=False):
            with contextlib.suppress(FileNotFoundError):  # the directory is verified: it is told there
                store.get_file(place, str(target))


@contextlib.contextmanager
def downloaded(location: str) -> Iterator[Path]:
    """A checkpoint as a directory of this machine, for a block: that of a store is downloaded, and deleted again.

    Raises:
        CheckpointError: As `fetch`. An error in the block names the URL instead of the copy.
    """
    if not is_url(location):
        yield Path(location)
        return
    with tempfile.TemporaryDirectory(prefix="drivetrain-checkpoint-") as directory:
        try:
            fetch(location, Path(directory))
            yield Path(directory)
        except CheckpointError as error:
            what = error.what.replace(directory, location)
            raise CheckpointError(what, code=error.code, do=error.do) from error


def checkpoints_in(folder: str) -> tuple[list[tuple[str, Manifest]], list[str]]:
    """The checkpoints in a directory or below a URL, newest first; their files are not read.

    Returns:
        Each with its manifest, and one line for each whose manifest cannot be read: its name and what is wrong with it.

    Raises:
        CheckpointError: `checkpoint-read` if the store fails, `checkpoint-missing` if a directory cannot be searched.
    """
    if not is_url(folder):
        found, skipped = newest_first(Path(folder))
        return [(str(path), manifest) for path, manifest in found], skipped
    store, path = _store_of(folder)
    readable, skipped = [], []
    with _requests(folder, writes=False):
        texts = [(name, _get(store, f"{path}/{name}/{MANIFEST_NAME}")) for name in _names_below(store, path)]
    for name, text in texts:
        try:
            if text is not None:
                readable.append((name, parse_manifest(text, MANIFEST_NAME)))
        except CheckpointError as error:
            skipped.append(f"{name}: {error.what.removesuffix('.')}")
    readable.sort(key=lambda pair: age_key(*pair), reverse=True)
    return [(join(folder, name), manifest) for name, manifest in readable], skipped


def exists(location: str) -> bool:
    """There is a checkpoint, or anything else of that name."""
    if not is_url(location):
        return Path(location).exists()
    store, path = _store_of(location)
    with _requests(location, writes=False):
        store.invalidate_cache()
        return bool(store.exists(path))


def remove(location: str) -> bool:
    """Delete a checkpoint; in a store its manifest first, so that no part of it passes for one.

    Returns:
        Whether all of it is gone.
    """
    if not is_url(location):
        return discard(Path(location))
    try:
        store, path = _store_of(location)
        with contextlib.suppress(FileNotFoundError):
            store.rm_file(f"{path}/{MANIFEST_NAME}")
        with contextlib.suppress(FileNotFoundError):
            store.rm(path, recursive=True)
    except Exception:
        return False
    return True


def get_text(url: str) -> str:
    """A small object; empty if there is none.

    Raises:
        CheckpointError: `checkpoint-read`.
    """
    store, path = _store_of(url)
    with _requests(url, writes=False):
        return (_get(store, path) or b"").decode()


def put_text(url: str, text: str) -> None:
    """Write a small object.

    Raises:
        CheckpointError: `checkpoint-write`.
    """
    store, path = _store_of(url)
    with _requests(url, writes=True):
        store.pipe_file(path, text.encode())


def _store_of(url: str) -> tuple[Any, str]:
    import fsspec  # only here: it takes a while to import

    try:
        store, path = fsspec.core.url_to_fs(url)
    except ImportError as cause:
        raise MissingExtraError(
            f"{url} needs a package that cannot be imported ({cause}).",
            code="missing-extra",
            do="Install the fsspec package of that store; for s3:// that is: pip install 'drivetrain[s3]'",
        ) from cause
    except ValueError as cause:
        raise CheckpointError(
            f"{url} is not a place to save to: {cause}.", code="checkpoint-missing", do="Use a URL that fsspec knows."
        ) from cause
    return store, path.rstrip("/")


def _get(store: Any, path: str) -> bytes | None:
    try:
        content: bytes = store.cat_file(path)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        return None
    return content


def _names_below(store: Any, path: str) -> list[str]:
    try:
        names = [entry.rstrip("/").rpartition("/")[2] for entry in store.ls(path, detail=False, refresh=True)]
    except FileNotFoundError:
        return []
    return [name for name in names if not name.startswith(".")]


@contextlib.contextmanager
def _requests(url: str, *, writes: bool) -> Iterator[None]:
    """Clients of stores raise errors of their own kinds, often no `OSError`."""
    try:
        yield
    except (CheckpointError, MemoryError):
        raise
    except Exception as error:
        raise CheckpointError(
            f"{url} could not be {'written' if writes else 'read'}: {type(error).__name__}: {error}.",
            code="checkpoint-write" if writes else "checkpoint-read",
            do="The checkpoint was not made; earlier ones are intact. Look at the store and at the rights to it."
            if writes
            else "Look at the store and at the rights to it; nothing was loaded.",
        ) from error
