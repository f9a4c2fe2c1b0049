"""Importing the package changes nothing, and costs next to nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from tests.arch.source_tree import ROOT


@lru_cache
def probe(what: str) -> dict[str, Any]:
    """What `import_probe.py` saw in a fresh process."""
    script = Path(__file__).with_name("import_probe.py")
    environment = {"PYTHONPATH": str(ROOT / "src"), "PATH": "", "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:drivetrain", str(script), what],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    seen: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return seen


@pytest.mark.parametrize("what", ["nothing", "names"])
def test_importing_changes_no_global_state(what: str) -> None:
    """A program that behaves differently because it imports drivetrain."""
    assert probe(what)["changed"] == {}


@pytest.mark.parametrize("what", ["nothing", "names"])
def test_importing_starts_no_thread_process_or_socket(what: str) -> None:
    """A process that cannot be forked, or listens, because of an import."""
    assert probe(what)["events"] == []


@pytest.mark.parametrize("what", ["nothing", "names"])
def test_importing_loads_no_heavy_package(what: str) -> None:
    """Seconds of waiting for something that this run does not use."""
    assert probe(what)["heavy"] == []


def test_the_bare_import_does_not_even_load_torch() -> None:
    """`drivetrain --help` would take as long as torch."""
    code = "import sys, drivetrain; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": str(ROOT / "src")}, check=True)


def test_every_public_name_can_be_imported() -> None:
    """A name in `__all__` that leads nowhere."""
    assert probe("names")["missing"] == []
