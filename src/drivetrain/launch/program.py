"""What this Python was started to run."""

from __future__ import annotations

import builtins
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

_OPTIONS_WITH_VALUE = "cmWX"


@dataclass(frozen=True)
class Program:
    """A script, module or command with its arguments.

    Attributes:
        kind: How it was named: `python x.py`, `python -m x` or `python -c x`.
        target: The path, the module's name, or the code.
        arguments: What follows it.
    """

    kind: Literal["script", "module", "command"]
    target: str
    arguments: tuple[str, ...]

    @property
    def argv(self) -> list[str]:
        """`sys.argv` as Python sets it when the program begins."""
        first = {"script": self.target, "module": "-m", "command": "-c"}[self.kind]
        return [first, *self.arguments]


def find_program(orig_argv: Sequence[str]) -> Program | None:
    """The program in a Python command line; `None` if there is none (a prompt, or code from standard input).

    Args:
        orig_argv: As in `sys.orig_argv`.
    """
    rest = list(orig_argv[1:])
    while rest:
        word = rest.pop(0)
        if word == "-":
            return None
        if word == "--":
            return Program("script", rest[0], tuple(rest[1:])) if rest and rest[0] != "-" else None
        if word.startswith("--"):
            if word == "--check-hash-based-pycs" and rest:
                rest.pop(0)
            continue
        if not word.startswith("-"):
            return Program("script", word, tuple(rest))
        for index, option in enumerate(word[1:], start=2):
            if option in _OPTIONS_WITH_VALUE:
                value = word[index:] or (rest.pop(0) if rest else "")
                if option in "cm":
                    return Program("command" if option == "c" else "module", value, tuple(rest))
                break
    return None


def current_program() -> Program | None:
    """The program of this process; `None` in an interactive session or a notebook."""
    if hasattr(sys, "ps1") or hasattr(builtins, "__IPYTHON__"):
        return None
    return find_program(sys.orig_argv)


def find_script(program: Program) -> str:
    """The full path of a script, also after the working directory was changed."""
    started: str | None = getattr(sys.modules["__main__"], "__file__", None)
    if started is not None and os.path.basename(started) == os.path.basename(program.target):
        return os.path.abspath(started)
    return os.path.abspath(program.target)
