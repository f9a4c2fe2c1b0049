"""Which program a Python command line names."""

from __future__ import annotations

import pytest

from drivetrain.launch.program import Program, find_program


@pytest.mark.parametrize(
    ("words", "program"),
    [
        (["train.py", "--lr", "1", "-m"], Program("script", "train.py", ("--lr", "1", "-m"))),
        (["-u", "-W", "error", "train.py"], Program("script", "train.py", ())),
        (["-Werror", "-Xdev", "-X", "utf8", "./train.py", "-c"], Program("script", "./train.py", ("-c",))),
        (["-m", "pkg.train", "a"], Program("module", "pkg.train", ("a",))),
        (["-um", "pkg.train"], Program("module", "pkg.train", ())),
        (["-mpkg.train", "b"], Program("module", "pkg.train", ("b",))),
        (["-c", "print(1)", "x y"], Program("command", "print(1)", ("x y",))),
        (["-Bcprint(1)"], Program("command", "print(1)", ())),
        (["--check-hash-based-pycs", "never", "train.py"], Program("script", "train.py", ())),
        (["--", "train.py", "x"], Program("script", "train.py", ("x",))),
        (["/usr/bin/tool", "run"], Program("script", "/usr/bin/tool", ("run",))),
    ],
)
def test_a_program_is_found_behind_interpreter_options(words: list[str], program: Program) -> None:
    """Ranks would run something else than the program that launched them."""
    assert find_program(["python", *words]) == program


@pytest.mark.parametrize("words", [[], ["-i"], ["-"], ["-u", "-"], ["-W", "error"], ["--"], ["-I", "-q"]])
def test_a_prompt_has_no_program(words: list[str]) -> None:
    """A notebook or a prompt would be started again in each rank."""
    assert find_program(["python", *words]) is None


def test_arguments_are_as_python_gives_them() -> None:
    """A script would parse other arguments in a rank."""
    assert Program("script", "train.py", ("--lr", "1")).argv == ["train.py", "--lr", "1"]
    assert Program("command", "print(1)", ("a",)).argv == ["-c", "a"]
