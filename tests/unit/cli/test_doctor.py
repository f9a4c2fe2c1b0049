"""`drivetrain doctor`."""

from __future__ import annotations

import io
import json
import socket
from pathlib import Path

import pytest
from rich.console import Console

from drivetrain import Fabric, __version__
from drivetrain.cli.doctor import show
from drivetrain.cli.finding import Finding
from drivetrain.cli.machine_checks import check_disk, check_network, check_threads
from drivetrain.cli.main import main
from drivetrain.cli.rank_checks import check_ranks, time_collectives


def test_a_sound_machine_is_said_to_be_sound(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A look that finds fault with every machine, or leaves out what it looked at."""
    assert main(["doctor", "--ranks", "0", "--folder", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {one["area"] for one in found} == {"versions", "devices", "threads", "network", "ranks", "disk"}
    values = {one["name"]: one["value"] for one in found}
    assert values["drivetrain"] == __version__
    assert set(values) >= {name for _, name in socket.if_nameindex()}
    assert "MB/s" in values[str(tmp_path)] and not list(tmp_path.iterdir())


def test_what_is_broken_ends_with_status_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script would start a run that cannot work."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "no-such-interface")
    assert main(["doctor", "--ranks", "0", "--folder", str(tmp_path / "missing")]) == 1
    text = capsys.readouterr().out
    assert "there is no no-such-interface" in text and "Use one of lo" in text
    assert "cannot be written: No such file or directory" in text


def test_half_an_environment_of_a_rank_is_found() -> None:
    """A run would wait for ranks that nobody started."""
    (one,) = [one for one in check_network({"RANK": "1"}) if one.name == "launcher"]
    assert one.state == "broken" and "WORLD_SIZE" in one.value and "unset RANK" in one.advice


def test_the_limit_of_a_container_is_found(tmp_path: Path) -> None:
    """Threads of sixteen cores on the quota of one and a half: everything is slow, and nothing says why."""
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    (limit,) = [one for one in check_threads({}, num_cores=16, cgroup=tmp_path) if one.name == "CPU limit"]
    assert (limit.value, limit.state) == ("1.5 cores, of 16 that are seen", "look")
    assert "OMP_NUM_THREADS=1" in limit.advice
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert not [one for one in check_threads({}, num_cores=16, cgroup=tmp_path) if one.name == "CPU limit"]


def test_the_disk_is_tried(tmp_path: Path) -> None:
    """A read-only folder would be found at the first save."""
    speed, free = check_disk(tmp_path, size_bytes=1_000_000)
    assert "MB/s with 1 MB" in speed.value and free.name == "free"


def test_what_is_wrong_stands_below_the_table() -> None:
    """The one line that matters would have to be found among thirty."""
    stream = io.StringIO()
    findings = [Finding("disk", "free", "1 of 100 GB", "look", "Make room."), Finding("disk", "a", "fine")]
    show(findings, Console(file=stream))
    lines = stream.getvalue().splitlines()
    assert lines[-2:] == ["look: disk, free: 1 of 100 GB", "    Make room."]
    stream = io.StringIO()
    show(findings[1:], Console(file=stream))
    assert stream.getvalue().splitlines()[-1] == "Nothing looks wrong."


@pytest.mark.slow
def test_ranks_are_started_and_timed() -> None:
    """Ranks that cannot talk would be found when a run hangs."""
    found = {one.name: one for one in check_ranks(2, size_bytes=400_000)}
    assert set(found) == {"start and end", "latency", "bandwidth"}
    assert "us" in found["latency"].value and "0 MB over 2 ranks" in found["bandwidth"].value


def test_ranks_that_cannot_start_are_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The doctor itself would end in a traceback."""
    monkeypatch.setenv("RANK", "0")
    (one,) = check_ranks(2)
    assert one.state == "broken" and "WORLD_SIZE" in one.value


def test_sums_are_what_they_should_be() -> None:
    """A network that loses data would be called fast."""
    fabric = Fabric(accelerator="cpu", devices=1)
    small_s, large_s, sums = time_collectives(fabric, 4000)
    assert sums == [1.0, 1.0] and small_s >= 0 and large_s >= 0
    fabric.close()
