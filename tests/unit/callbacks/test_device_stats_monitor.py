from __future__ import annotations

import pytest

from drivetrain import DeviceStatsMonitor, TQDMProgressBar
from drivetrain.base.errors import ConfigError
from tests.unit.trainer.runs import ListLogger, fit


def test_memory_and_time_are_written_with_the_rows() -> None:
    """Rows of their own would be written with each step."""
    logger = ListLogger()
    fit(callbacks=[DeviceStatsMonitor()], logger=logger, log_every_n_steps=3)
    memory = logger.of("cpu/peak_resident_bytes")
    assert [step for step, _ in memory] == [3, 6] and all(value > 10e6 for _, value in memory)
    assert all(value >= 0 for _, value in logger.of("cpu/busy_processors"))


def test_nothing_of_the_process_is_written_unless_it_is_wanted() -> None:
    """Rows would be full of what nobody asked for."""
    logger = ListLogger()
    fit(callbacks=[DeviceStatsMonitor(cpu_stats=False)], logger=logger, log_every_n_steps=3)
    assert logger.of("cpu/peak_resident_bytes") == []


def test_a_run_without_a_logger_is_refused() -> None:
    """Nothing would be written, after hours."""
    with pytest.raises(ConfigError) as raised:
        fit(callbacks=[DeviceStatsMonitor()])
    assert raised.value.code == "no-logger"


@pytest.mark.parametrize("rate", [0, 1, 20])
def test_a_bar_of_another_name_shows_something_unless_its_rate_is_0(
    rate: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """A script that switches the bar off would print; or find no bar."""
    bar = TQDMProgressBar(refresh_rate=rate)
    _, trainer = fit(callbacks=[bar], enable_progress_bar=True)
    assert trainer.progress_bar_callback is bar
    assert ("Epoch" in capsys.readouterr().err) is (rate > 0)
    with pytest.raises(ConfigError):
        TQDMProgressBar(refresh_rate=-1)
