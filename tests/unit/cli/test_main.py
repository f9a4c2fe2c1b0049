"""The `drivetrain` command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from drivetrain import __version__
from drivetrain.cli.main import DEMOS, find_demo, main, make_parser

SRC = Path(__file__).parents[3] / "src"


def run_python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python with drivetrain importable."""
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "", "PYTHONPATH": str(SRC), "OMP_NUM_THREADS": "1"},
    )


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """A report of an error would not say of which version."""
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert (end.value.code, capsys.readouterr().out) == (0, f"drivetrain {__version__}\n")


def test_python_m_drivetrain_is_the_command() -> None:
    """Where the script is not on the path there would be no command."""
    result = run_python("-m", "drivetrain", "--version")
    assert (result.returncode, result.stdout) == (0, f"drivetrain {__version__}\n"), result.stderr


def test_what_follows_the_name_of_a_demo_is_the_demos() -> None:
    """`drivetrain demo digits --help` would not list the demo's options, or `--epochs` would be unknown."""
    options = make_parser().parse_args(["demo", "digits", "--help", "--epochs", "3", "--version"])
    assert (options.name, options.arguments) == ("digits", ["--help", "--epochs", "3", "--version"])


@pytest.mark.parametrize("arguments", [[], ["demo"], ["demo", "nothing"], ["other"]])
def test_what_is_not_understood_ends_with_the_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A slip of the pen would end in a traceback."""
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    assert "usage: drivetrain" in capsys.readouterr().err


@pytest.mark.parametrize("name", sorted(DEMOS))
def test_a_demo_is_found_in_a_checkout(name: str) -> None:
    """`make demo` would find nothing to run."""
    assert find_demo(name).name == f"{name}.py"


def test_a_demo_sees_its_own_command_line_and_ours_is_put_back(capsys: pytest.CaptureFixture[str]) -> None:
    """The options of a demo would be read from the wrong command line."""
    before = list(sys.argv)
    with pytest.raises(SystemExit) as end:
        main(["demo", "text", "--help"])
    assert (end.value.code, sys.argv) == (0, before)
    assert "usage: text.py" in capsys.readouterr().out


def test_a_missing_package_is_named_with_what_installs_it() -> None:
    """A first look at drivetrain would end in a traceback."""
    code = (
        "import sys; sys.modules['sklearn'] = None\nfrom drivetrain.cli.main import main\nsys.exit(main(sys.argv[1:]))"
    )
    result = run_python("-c", code, "demo", "digits")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("MissingExtraError: [missing-extra] drivetrain demo digits needs sklearn")
    assert "pip install 'drivetrain[demo]'" in result.stderr and "Traceback" not in result.stderr


def test_an_argument_that_is_refused_is_answered_without_a_traceback() -> None:
    """The sentence that says what to do would stand below twenty lines of ours."""
    result = run_python("-m", "drivetrain", "demo", "digits", "--devices", "0")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("ConfigError: [devices] devices=0") and "Traceback" not in result.stderr
