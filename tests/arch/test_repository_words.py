"""The repository names no machine."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.arch.source_tree import ROOT

# Written in parts, so that this file does not contain them.
FOLDERS = ("work", "root", "opt/wheels")
HOSTS = ("pypi" + ".org", "pythonhosted" + ".org", "download.pytorch" + ".org", "npmjs" + ".org", "anaconda" + ".org")
MACHINE_WORDS = re.compile(
    "|".join([rf"(?<![\w.~-])/{folder}(?![\w-])" for folder in FOLDERS] + [re.escape(host) for host in HOSTS])
)


def tracked_files() -> list[Path]:
    """Files that git tracks."""
    result = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        pytest.skip(f"not a git checkout: {result.stderr.strip()}")
    return [ROOT / name for name in result.stdout.split("\0") if name]


def test_no_tracked_file_names_a_machine_or_a_registry() -> None:
    """What works on one machine only."""
    found = []
    for path in tracked_files():
        if not path.is_file():
            continue
        text = path.read_bytes().decode("utf-8", errors="ignore")
        found += [
            f"{path.relative_to(ROOT)}:{number} {line.strip()[:100]}"
            for number, line in enumerate(text.splitlines(), 1)
            if MACHINE_WORDS.search(line)
        ]
    assert found == []


def test_words_are_recognised() -> None:
    """The test above would pass whatever the files say."""
    assert MACHINE_WORDS.search("cd /" + "work/main")
    assert MACHINE_WORDS.search("--index-url https://" + HOSTS[0] + "/simple")
    assert not MACHINE_WORDS.search("network/work/x and /workflows/")
