"""Stores without renames, made of files of this machine, so that several ranks share one; requests may fail."""

from __future__ import annotations

from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem


class SharedStore(LocalFileSystem):
    """`shared:///path`: the objects are files below that path.

    Attributes:
        fail_at: The request for writing that fails, counted from 0; `None` for none.
        fails_reading: No object can be read.
        written: What was written, in order.
    """

    protocol = ("shared",)
    cachable = False
    fail_at: int | None = None
    fails_reading = False
    written: list[str] = []

    def __init__(self, **options: Any) -> None:
        super().__init__(auto_mkdir=True, **options)

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        text = str(path).removeprefix("shared://")
        return "/" + text.strip("/")

    def put_file(self, lpath: Any, rpath: Any, **options: Any) -> None:
        self._note(rpath)
        super().put_file(lpath, rpath, **options)

    def pipe_file(self, path: Any, value: Any, **options: Any) -> None:
        self._note(path)
        super().pipe_file(path, value, **options)

    def cat_file(self, path: Any, *given: Any, **options: Any) -> Any:
        if SharedStore.fails_reading:
            raise RuntimeError("ServiceUnavailable")
        return super().cat_file(path, *given, **options)

    def mv(self, *paths: Any, **options: Any) -> None:
        raise NotImplementedError("a store has no rename")

    def _note(self, path: str) -> None:
        if SharedStore.fail_at == len(SharedStore.written):
            SharedStore.fail_at = None
            raise RuntimeError("SlowDown: please reduce your request rate")
        SharedStore.written.append(path)


def register() -> None:
    """Let fsspec know the store in this process, which has written nothing yet."""
    fsspec.register_implementation("shared", SharedStore, clobber=True)
    SharedStore.fail_at, SharedStore.fails_reading, SharedStore.written = None, False, []
