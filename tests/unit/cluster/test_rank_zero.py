"""What only rank 0 does."""

from __future__ import annotations

from typing import Any

import pytest

from drivetrain import rank_zero_info, rank_zero_only, rank_zero_warn

OTHER = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


@rank_zero_only
def doubled(number: int) -> int:
    """Twice."""
    return 2 * number


@pytest.mark.parametrize(("environment", "expected"), [({}, 4), (OTHER, None)], ids=["rank 0", "rank 1"])
def test_only_rank_0_runs_it(environment: dict[str, str], expected: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank would write the same file."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert doubled(2) == expected and doubled.__name__ == "doubled"


def test_only_rank_0_says_it(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line would be there once for each rank."""
    rank_zero_info("a", 1)
    with pytest.warns(UserWarning, match="careful") as caught:
        rank_zero_warn("careful")
    assert caught[0].filename == __file__
    for name, value in OTHER.items():
        monkeypatch.setenv(name, value)
    rank_zero_info("b")
    rank_zero_warn("would be an error here")
    assert capsys.readouterr().err == "a 1\n"
