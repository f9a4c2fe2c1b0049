"""Experiments of Comet in its offline mode, read back from its archives."""

from __future__ import annotations

import json
import pickle
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from drivetrain import CometLogger, ConfigError, LoggingError, ModelCheckpoint, Trainer
from drivetrain.loggers.comet_files import archives, last_steps_in_service, last_steps_on_disk, messages_of
from drivetrain.loggers.comet_logger import _BEGUN, _WRITTEN
from drivetrain.loggers.logger import SilentExperiment
from tests.unit.trainer.runs import QUIET, Given, fit, numbers

QUIET_COMET: dict[str, Any] = {
    "log_code": False, "parse_args": False, "auto_output_logging": False, "log_env_details": False,
    "log_git_metadata": False, "log_git_patch": False, "display_summary_level": 0,
}  # fmt: skip


@pytest.fixture(autouse=True)
def comet(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The package, which patches others when it is imported and reports its errors, unless it is told not to."""
    monkeypatch.setenv("COMET_DISABLE_AUTO_LOGGING", "1")
    monkeypatch.setenv("COMET_ERROR_TRACKING_ENABLE", "false")
    monkeypatch.setenv("COMET_INTERNAL_REPORTING", "false")
    monkeypatch.setattr(socket, "getaddrinfo", only_here(socket.getaddrinfo))
    yield pytest.importorskip("comet_ml")
    finish()


def only_here(look_up: Any) -> Any:
    """A look-up of names that knows this machine alone."""

    def getaddrinfo(host: Any, *args: Any, **options: Any) -> Any:
        assert host in ("127.0.0.1", "localhost", None), f"{host} was asked for"
        return look_up(host, *args, **options)

    return getaddrinfo


def finish() -> None:
    """End the experiment, as the end of the process does, and forget what this process knows."""
    import comet_ml

    comet_ml.end()
    _BEGUN.clear()
    _WRITTEN.clear()


def made(root: Path, **options: Any) -> CometLogger:
    return CometLogger(save_dir=root, offline=True, **{"project": "p", **QUIET_COMET, **options})


def opened(root: Path, *, resume_step: int | None = None, **options: Any) -> CometLogger:
    logger = made(root, **options)
    logger.open(is_global_zero=True, resume_step=resume_step)
    return logger


def payloads(root: Path, name: str, key: str = "") -> list[Any]:
    """What archives have under a name, in the order in which they were written."""
    messages = [message for path in archives(root, key) for message in messages_of(path)]
    return [message["payload"][name] for message in messages if name in message["payload"]]


def rows_of(root: Path, key: str = "") -> list[tuple[int, str, Any]]:
    rows = [(row["step"], row["metricName"], row["metricValue"]) for row in payloads(root, "metric", key)]
    return [row for row in rows if row[1] != "process duration"]


def steps_of(root: Path, name: str) -> list[tuple[int, Any]]:
    return [(step, value) for step, found, value in rows_of(root) if found == name]


def test_values_are_read_back_under_their_step(tmp_path: Path) -> None:
    """A curve with other values, or at other steps, than were logged."""
    logger = opened(tmp_path / "a" / "b", prefix="x", experiment_name="first", tags=["tag"])
    logger.log_metrics({"loss": torch.tensor(0.5), "epoch": 2}, step=10)
    logger.log_metrics({"loss": 0.25, "n": np.int64(3)}, step=20)
    logger.log_metrics({"loss": float("nan")})
    assert not logger.experiment.auto_metric_logging  # Comet's own values would be between them
    logger.finalize("success")
    finish()
    found = rows_of(tmp_path / "a" / "b")
    assert found == [(10, "x_loss", 0.5), (20, "x_loss", 0.25), (20, "x_n", 3.0), (21, "x_loss", "NaN")]
    assert payloads(tmp_path / "a" / "b", "metric")[0]["epoch"] == 2
    (path,) = archives(tmp_path / "a" / "b", str(logger.version))
    others = {message["payload"].get("key"): message["payload"].get("value") for message in messages_of(path)}
    assert others["Name"] == "first"


def test_parameters_from_before_and_after_the_start_are_there(tmp_path: Path) -> None:
    """Experiments that cannot be compared."""
    logger = made(tmp_path)
    logger.log_hyperparams({"seed": 1})
    logger.open(is_global_zero=True)
    logger.log_metrics({"a": 1}, step=1)
    logger.log_hyperparams({"net": {"lr": 0.5}})
    finish()
    params = {one["paramName"]: one["paramValue"] for one in payloads(tmp_path, "param")}
    assert (params["seed"], params["net/lr"]) == (1, 0.5)


def test_a_second_stage_goes_on_in_the_same_experiment(tmp_path: Path) -> None:
    """A test after training in an experiment of its own."""
    logger = opened(tmp_path)
    logger.log_metrics({"loss": 1}, step=1)
    logger.finalize("success")
    logger.log_metrics({"loss": 2}, step=1)
    logger.finalize("success")
    finish()
    assert steps_of(tmp_path, "loss") == [(1, 1), (1, 2)] and len(archives(tmp_path, "")) == 1


def test_two_loggers_one_after_the_other_have_an_experiment_each(tmp_path: Path) -> None:
    """In a cross-validation all folds would be one experiment, or one would lose its end."""
    loggers = []
    for fold in range(2):
        logger = opened(tmp_path, mode="create")
        logger.log_metrics({"fold": fold}, step=1)
        logger.finalize("success")
        loggers.append(logger)
        for _ in range(2000):  # not waited for: the next logger is to do that
            logger.experiment.log_other("more", f"fold {fold}")
    loggers[0].open(is_global_zero=True)  # a test of the first fold
    loggers[0].log_metrics({"test": 5}, step=1)
    finish()
    others = payloads(tmp_path, "value")
    assert others.count("fold 0") == others.count("fold 1") == 2000
    first, second = (rows_of(tmp_path, str(logger.version)) for logger in loggers)
    assert first == [(1, "fold", 0), (1, "test", 5)] and second == [(1, "fold", 1)]


def test_two_loggers_of_one_run_are_refused(tmp_path: Path) -> None:
    """Comet ends one experiment when another begins: each row would begin one."""
    left, right = opened(tmp_path), opened(tmp_path)
    left.log_metrics({"a": 1}, step=1)
    right.log_metrics({"a": 1}, step=1)
    with pytest.raises(LoggingError) as caught:
        left.log_metrics({"a": 2}, step=2)
    assert caught.value.code == "comet-experiment"


def test_an_experiment_of_the_script_is_taken_over(tmp_path: Path, comet: Any) -> None:
    """The script's experiment would end empty."""
    config = comet.ExperimentConfig(offline_directory=str(tmp_path), **QUIET_COMET)
    run = comet.start(online=False, experiment_config=config)
    logger = opened(tmp_path)
    logger.log_metrics({"a": 1}, step=1)
    assert logger.version == run.get_key() and logger.experiment is run
    finish()
    assert steps_of(tmp_path, "a") == [(1, 1)]


@pytest.mark.parametrize("same_process", [True, False])
def test_a_resumed_run_has_each_step_once_under_its_key(tmp_path: Path, same_process: bool) -> None:
    """An experiment of its own after each crash, or two values for the steps after the last checkpoint."""
    values = [float(value) for value in range(1, 9)]
    keeper: dict[str, Any] = {"filename": "{step}", "every_n_train_steps": 3, "save_top_k": -1}

    class Crash(Given):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if batch_idx == 5:
                raise RuntimeError("crash")
            return super().training_step(batch, batch_idx)

    first, second = made(tmp_path), made(tmp_path)
    saving = {"enable_checkpointing": None, "callbacks": [ModelCheckpoint(tmp_path / "kept", **keeper)]}
    with pytest.raises(RuntimeError, match="crash"):
        fit(Crash(), numbers(*values), logger=first, log_every_n_steps=1, **saving)
    if not same_process:
        finish()
    trainer = Trainer(**{**QUIET, "logger": second}, max_epochs=1, log_every_n_steps=1)
    trainer.fit(Given(), numbers(*values), ckpt_path=tmp_path / "kept" / "step=3.ckpt")
    finish()
    assert second.version == first.version
    assert len(archives(tmp_path, str(first.version))) == len(archives(tmp_path, "")) == (1 if same_process else 2)
    assert steps_of(tmp_path, "loss") == [(step, float(step)) for step in range(1, 9)]


def test_what_was_not_written_of_the_last_step_is_written_when_it_comes_again(tmp_path: Path) -> None:
    """A crash between a step's row and its validation would leave a hole."""
    key = "k" * 32
    first = opened(tmp_path, experiment_key=key)
    first.log_metrics({"loss": 1}, step=1)
    first.log_metrics({"loss": 2}, step=2)
    first.finalize("failed")
    finish()  # from here on only the disk tells
    assert last_steps_on_disk(tmp_path, key)["loss"] == 2
    (tmp_path / f"{key}-killed.zip").write_bytes(b"PK")  # a process that was killed while it wrote
    second = opened(tmp_path, experiment_key=key, resume_step=1)
    second.log_metrics({"loss": 2, "val": 5}, step=2)
    second.log_metrics({"loss": 3}, step=3)
    second.finalize("success")
    second.log_metrics({"loss": 4}, step=3)  # a further stage repeats nothing
    finish()
    assert steps_of(tmp_path, "loss") == [(1, 1), (2, 2), (3, 3), (3, 4)]
    assert steps_of(tmp_path, "val") == [(2, 5)]


class Service(BaseHTTPRequestHandler):
    """Answers the two questions of its REST interface that a resumed run asks; what it does not know is not there."""

    known: dict[str, Any] = {}

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        answer = next((one for end, one in self.known.items() if path.endswith(end) and KEY in query), None)
        body = json.dumps({} if answer is None else answer).encode()
        self.send_response(404 if answer is None else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        """Not to the terminal."""


KEY = "e" * 32


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Service]]:
    """On this machine, under the address of Comet's."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Known", (Service,), {"known": {}}))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setenv("COMET_URL_OVERRIDE", f"http://127.0.0.1:{server.server_port}/clientlib/")
    yield server.RequestHandlerClass  # type: ignore[misc]
    server.shutdown()
    server.server_close()
    thread.join()


def test_online_the_service_is_asked_for_the_last_steps(service: type[Service]) -> None:
    """A resumed run on another machine has no other way to know; a new experiment would be an error."""
    assert last_steps_in_service("key", KEY) == {}
    service.known = {
        "experiment/metadata": {"experimentKey": KEY, "workspaceName": "w", "projectName": "p", "projectId": "i"},
        "experiment/metrics/summary": {"values": [
            {"name": "loss", "valueCurrent": "0.5", "stepCurrent": 12}, {"name": "best", "valueCurrent": "1"},
        ]},
    }  # fmt: skip
    assert last_steps_in_service("key", KEY) == {"loss": 12}


def test_a_run_goes_on_if_the_service_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hours of training would end for a curve."""
    monkeypatch.setenv("COMET_URL_OVERRIDE", "http://127.0.0.1:9/clientlib/")
    monkeypatch.setenv("COMET_HTTP_SESSION_RETRY_TOTAL", "0")
    logger = CometLogger("key", experiment_key=KEY, project_name="p")
    with pytest.warns(UserWarning, match="did not say what it has"):
        logger.open(is_global_zero=True, resume_step=1)


def test_it_is_offline_where_that_is_all_that_can_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script without a key, but with a directory, would wait for a key to be typed."""
    logger = CometLogger(save_dir=tmp_path)
    assert not logger._is_online() and CometLogger("key", save_dir=tmp_path)._is_online()
    assert CometLogger()._is_online() and not CometLogger(online=False)._is_online()
    monkeypatch.setenv("COMET_START_ONLINE", "false")
    assert not CometLogger("key")._is_online() and CometLogger(online=True)._is_online()


def test_images_figures_text_and_layers_are_written(tmp_path: Path) -> None:
    """Media that are dropped, or that need Comet's own calls."""
    pyplot, image = pytest.importorskip("matplotlib.pyplot"), pytest.importorskip("PIL.Image")
    logger = opened(tmp_path)
    logger.log_metrics({"a": 1}, step=4)
    logger.log_image("image", [image.new("RGB", (4, 4))] * 2)
    figure, axes = pyplot.subplots(figsize=(1, 1))
    axes.plot([1, 2])
    logger.log_figure("figure", figure, step=5)
    pyplot.close(figure)
    logger.log_text("text", "yes", step=6)
    logger.log_graph(torch.nn.Linear(2, 3))
    finish()
    steps = [one["step"] for one in payloads(tmp_path, "additional_params")]
    kinds = list(zip(steps, payloads(tmp_path, "upload_type"), strict=True))
    assert kinds == [(4, "visualization"), (4, "visualization"), (5, "visualization"), (6, "text-sample")]
    assert {"name": "text"} in payloads(tmp_path, "metadata")
    assert any("in_features=2" in str(graph) for graph in payloads(tmp_path, "graph"))


@pytest.mark.parametrize(("log_model", "kept"), [("all", {3, 6, 7}), (True, {7})])
def test_checkpoints_are_kept_as_models(tmp_path: Path, log_model: Any, kept: set[int]) -> None:
    """`log_model` that does nothing, or that names files which are deleted by then."""
    logger = made(tmp_path, log_model=log_model)
    keeper = ModelCheckpoint(filename="{step}", every_n_train_steps=3, save_top_k=-1)
    data = numbers(*(float(value) for value in range(7)))
    fit(Given(), data, logger=logger, enable_checkpointing=None, callbacks=[keeper])
    assert keeper.last_model_path.startswith(str(tmp_path / "p" / str(logger.version) / "checkpoints"))
    finish()
    models = [one for one in payloads(tmp_path, "additional_params") if one["type"] == "model-element"]
    assert {one["groupingName"] for one in models} == {f"step={step}.ckpt" for step in kept}
    assert any(one["fileName"].endswith("manifest.json") for one in models)


def test_nothing_is_begun_on_other_ranks_and_before_a_run(tmp_path: Path, comet: Any) -> None:
    """An experiment for each rank; or calls before the run that are lost without a word."""
    logger = made(tmp_path)
    with pytest.warns(UserWarning, match="does nothing before"):
        assert isinstance(logger.experiment, SilentExperiment)
    logger.open(is_global_zero=False)
    logger.log_metrics({"a": 1}, step=1)
    logger.log_image("b", [1])
    logger.log_graph(torch.nn.Linear(1, 1))
    logger.experiment.anything(1)["x"] = 2
    logger.finalize("success")
    running = comet.get_running_experiment()
    assert list(tmp_path.iterdir()) == [] and (running is None or running.ended)


def test_a_logger_with_an_experiment_can_be_sent_to_another_process(tmp_path: Path) -> None:
    """A second launch would fail to pickle the trainer."""
    logger = opened(tmp_path)
    logger.log_metrics({"a": 1}, step=1)
    assert pickle.loads(pickle.dumps(logger)).version == logger.version


def test_what_is_no_number_or_no_policy_is_refused(tmp_path: Path) -> None:
    """A misspelt word that means no, or a text in a curve."""
    with pytest.raises(ConfigError) as raised:
        CometLogger(log_model="every")
    assert raised.value.code == "log-model"
    with pytest.raises(LoggingError) as wrong:
        opened(tmp_path).log_metrics({"a": "b"}, step=1)
    assert wrong.value.code == "log-value"
