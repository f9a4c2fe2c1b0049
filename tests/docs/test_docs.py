"""What the documentation shows runs."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 100
FENCE = re.compile(r"^(?P<indent> *)```(?:python|py)\b[^\n]*\n(?P<code>.*?)^(?P=indent)```", re.MULTILINE | re.DOTALL)
FIGURE = re.compile(r"([\d.]+) \(has to be (above|below) ([\d.]+): ")
RUN = re.compile(r"^# run:(.*)$", re.MULTILINE)

Run = Callable[..., str]


def program_of(text: str) -> str:
    """The Python blocks of a page as one program; lines keep their numbers, so that errors point to the page."""
    lines = [""] * (text.count("\n") + 1)
    for match in FENCE.finditer(text):
        first = text.count("\n", 0, match.start("code"))
        for offset, line in enumerate(match["code"].splitlines()):
            lines[first + offset] = line.removeprefix(match["indent"])
    return "\n".join(lines)


def pages() -> list[str]:
    """Pages with at least one Python block."""
    files = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [path.relative_to(ROOT).as_posix() for path in files if path.is_file() and FENCE.search(path.read_text())]


def examples() -> list[tuple[str, str]]:
    """Each example script with each of its documented command lines."""
    found = []
    for path in sorted((ROOT / "examples").glob("*.py")):
        arguments = [line.strip() for line in RUN.findall(path.read_text())]
        found += [(path.relative_to(ROOT).as_posix(), line) for line in arguments or ["(no '# run:' line)"]]
    return found


@pytest.fixture(scope="module")
def server() -> Iterator[subprocess.Popen[str]]:
    """A process that has imported torch and runs programs in forks of itself."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}
    script = Path(__file__).with_name("program_server.py")
    with subprocess.Popen(
        [sys.executable, "-W", "ignore::DeprecationWarning", str(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()
        process.wait(timeout=10)


@pytest.fixture
def run(server: subprocess.Popen[str], tmp_path: Path) -> Run:
    """Run a program in an empty directory and give what it printed; a failure of it is one of the test."""

    def run_program(path: Path, *arguments: str) -> str:
        directory, log = tmp_path / "empty", tmp_path / "log.txt"
        directory.mkdir()
        request = {
            "path": str(path),
            "arguments": arguments,
            "directory": str(directory),
            "log": str(log),
            "timeout_s": TIMEOUT_S,
        }
        assert server.stdin is not None and server.stdout is not None
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        answer = json.loads(server.stdout.readline())
        printed = log.read_text(errors="replace")
        assert answer == {"exit_code": 0, "is_late": False}, printed[-4000:]
        return printed

    return run_program


@pytest.mark.parametrize("page", pages())
def test_a_page_runs_as_one_program(page: str, run: Run, tmp_path: Path) -> None:
    """A reader copies an example that does not run."""
    program = tmp_path / f"page_{Path(page).stem.replace('-', '_')}.py"  # no name of the standard library
    program.write_text(program_of((ROOT / page).read_text()))
    run(program)


@pytest.mark.parametrize(("script", "arguments"), examples())
def test_an_example_runs_as_its_first_lines_say(script: str, arguments: str, run: Run) -> None:
    """A reader starts an example that does not run."""
    text = (ROOT / script).read_text()
    assert RUN.search("\n".join(text.splitlines()[:20])), f"{script} does not begin with '# run: <small arguments>'"
    printed = run(ROOT / script, *shlex.split(arguments))
    figures = FIGURE.findall(printed)
    assert bool(figures) == ("(has to be " in text), printed
    for figure, how, other in figures:
        assert float(figure) > float(other) if how == "above" else float(figure) < float(other), printed


def test_the_blocks_of_a_page_are_one_program() -> None:
    """A block that uses what an earlier one made would fail, and errors would point to a wrong line."""
    page = "# T\n```python\na = 1\n```\ntext\n\n    ```python\n    b = a\n    ```\n```bash\nls\n```\n"
    assert program_of(page).splitlines() == ["", "", "a = 1", "", "", "", "", "b = a", "", "", "", ""]


def test_a_failing_program_fails_the_test(run: Run, tmp_path: Path) -> None:
    """The tests above would pass whatever the programs do."""
    program = tmp_path / "fails.py"
    program.write_text("import sys\nprint('so far')\nsys.exit(3)\n")
    with pytest.raises(AssertionError, match="so far"):
        run(program)


def test_a_program_is_main_in_an_empty_directory(run: Run, tmp_path: Path) -> None:
    """A program that starts ranks finds itself by `__main__` and `sys.argv`."""
    program = tmp_path / "shows.py"
    program.write_text(
        "import os, sys\nprint(__name__, os.listdir(), sys.argv[1:], sys.modules['__main__'].__file__)\n"
    )
    assert run(program, "--epochs", "1").split("\n")[0] == f"__main__ [] ['--epochs', '1'] {program}"
