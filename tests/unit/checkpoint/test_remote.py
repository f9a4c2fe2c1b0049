"""Checkpoints in a store: the same promises as on a disk, without a rename."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import urllib.request
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch

from drivetrain import CheckpointError, ModelCheckpoint, Trainer
from drivetrain.base.locations import is_url, join, locate
from drivetrain.checkpoint.manifest import MANIFEST_NAME
from drivetrain.checkpoint.remote import checkpoints_in, exists, remove
from drivetrain.testing.fixtures import make_dataset
from tests import stores
from tests.unit.fabric.raw_loop import open_fabric
from tests.unit.trainer.runs import QUIET, Classifier


def save(url: str, value: float) -> None:
    fabric = open_fabric()
    fabric.save(url, {"weight": torch.full((50,), value), "step": int(value)})
    fabric.close()


def value_in(url: str) -> float:
    rest = open_fabric().load(url)
    assert set(rest["weight"].tolist()) == {float(rest["step"])}
    return float(rest["step"])


@pytest.fixture
def shared(tmp_path: Path) -> str:
    """The URL of an empty store."""
    stores.register()
    return f"shared://{tmp_path}"


@pytest.fixture(scope="module")
def s3_server() -> Iterator[str]:
    """The address of an S3 of this machine."""
    pytest.importorskip("s3fs")
    pytest.importorskip("moto.server")
    log = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"], stderr=subprocess.PIPE, text=True
    )
    assert log.stderr is not None
    try:
        line = next(line for line in log.stderr if "Running on" in line)
        yield line.split("Running on ")[1].split()[0]
    finally:
        log.terminate()
        log.wait()
        log.stderr.close()


@pytest.fixture
def s3(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of an empty bucket."""
    for name, value in [
        ("AWS_ENDPOINT_URL", s3_server), ("AWS_ACCESS_KEY_ID", "test"), ("AWS_SECRET_ACCESS_KEY", "test"),
        ("AWS_DEFAULT_REGION", "us-east-1"), ("AWS_EC2_METADATA_DISABLED", "true"),
    ]:  # fmt: skip
        monkeypatch.setenv(name, value)
    bucket = f"bucket-{time.monotonic_ns()}"
    urllib.request.urlopen(urllib.request.Request(f"{s3_server}/{bucket}", method="PUT")).close()
    return f"s3://{bucket}"


def test_locations_are_paths_or_urls(tmp_path: Path) -> None:
    """A directory called `s3:` in the current one, and no checkpoint in the store."""
    assert locate("s3://bucket/a/") == locate(Path("s3://bucket/a")) == "s3://bucket/a"
    assert locate(f"file://{tmp_path}/a") == str(tmp_path / "a") and not is_url(locate(tmp_path))
    assert join("s3://bucket/a", "b", "c") == "s3://bucket/a/b/c" and join("/a", "b") == "/a/b"
    assert locate("a:b") == str(Path("a:b").absolute())


@pytest.mark.parametrize("url", ["memory://runs/one", "shared"])
def test_a_checkpoint_comes_back_and_is_replaced(url: str, shared: str) -> None:
    """A state that is not found again, or a second one that does not take the place of the first."""
    url = f"{shared}/one" if url == "shared" else url
    for value in (1.0, 2.0):
        save(url, value)
        assert value_in(url) == value
    store, path = fsspec.core.url_to_fs(url)
    assert len([name for name in store.find(path) if name.endswith("state.pt")]) == 1
    assert remove(url) and not exists(url) and store.find(path) == []


def test_the_manifest_is_put_there_last(shared: str) -> None:
    """A checkpoint that exists before all of it is there."""
    save(f"{shared}/one", 1.0)
    names = [path.rpartition("/")[2] for path in stores.SharedStore.written]
    assert names == ["state.pt", MANIFEST_NAME, "latest"]


@pytest.mark.parametrize("fail_at", [0, 1])
def test_a_request_that_fails_leaves_the_checkpoint_before(shared: str, tmp_path: Path, fail_at: int) -> None:
    """A failed upload that takes the last good checkpoint with it, or leaves its files behind."""
    save(f"{shared}/one", 1.0)
    before = sorted(tmp_path.rglob("*"))
    stores.SharedStore.written, stores.SharedStore.fail_at = [], fail_at
    with pytest.raises(CheckpointError, match="SlowDown") as caught:
        save(f"{shared}/one", 2.0)
    assert caught.value.code == "checkpoint-write"
    assert value_in(f"{shared}/one") == 1.0
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == [path for path in before if path.is_file()]


def test_a_checkpoint_without_its_manifest_does_not_exist(shared: str, tmp_path: Path) -> None:
    """Half an upload that is loaded."""
    save(f"{shared}/one", 1.0)
    (tmp_path / "one" / MANIFEST_NAME).unlink()
    with pytest.raises(CheckpointError) as caught:
        value_in(f"{shared}/one")
    assert caught.value.code == "checkpoint-missing" and checkpoints_in(shared) == ([], [])


def test_damage_is_found_when_it_is_loaded(shared: str, tmp_path: Path) -> None:
    """A flipped bit in the store that goes into the weights; or a missing object."""
    save(f"{shared}/one", 1.0)
    (file,) = (tmp_path / "one").glob("*/state.pt")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    for damaged in (bytes(content), None):
        file.unlink() if damaged is None else file.write_bytes(damaged)
        with pytest.raises(CheckpointError) as caught:
            value_in(f"{shared}/one")
        assert caught.value.code == "checkpoint-corrupt"


def test_a_directory_that_was_copied_to_a_store_loads(shared: str, tmp_path: Path) -> None:
    """A checkpoint that a person uploaded and cannot use."""
    save(str(tmp_path / "local" / "one"), 3.0)
    shutil.copytree(tmp_path / "local" / "one", tmp_path / "copied")
    assert value_in(f"{shared}/copied") == 3.0


def test_the_newest_is_found_by_step(shared: str, tmp_path: Path) -> None:
    """`step=9` after `step=10`; or one whose manifest cannot be read, left out without a word."""
    for value in (9.0, 10.0, 11.0):
        save(f"{shared}/runs/step={value}", value)
    (tmp_path / "runs" / "step=11.0" / MANIFEST_NAME).write_text("{")
    found, skipped = checkpoints_in(f"{shared}/runs")
    assert [url for url, _ in found] == [f"{shared}/runs/step={value}" for value in (10.0, 9.0)]
    assert len(skipped) == 1 and skipped[0].startswith("step=11.0: ")
    assert checkpoints_in(f"{shared}/nothing") == ([], [])


def test_an_unknown_kind_of_url_says_so() -> None:
    """An error of a library that the user does not know."""
    with pytest.raises(CheckpointError, match="nosuch://"):
        save("nosuch://bucket/a", 1.0)


def fit(url: str, **options: Any) -> tuple[Trainer, ModelCheckpoint, Classifier]:
    module = Classifier()
    keeper = ModelCheckpoint(dirpath=url, filename="{step}", every_n_train_steps=2, save_last=True, save_async=True)
    trainer = Trainer(**{**QUIET, "enable_checkpointing": True}, callbacks=[keeper], max_steps=6)
    data = torch.utils.data.DataLoader(make_dataset(48), batch_size=4)
    trainer.fit(module, data, **options)
    return trainer, keeper, module


def check_run_in(url: str) -> None:
    """A run that keeps its checkpoints in a store, and one that goes on from there."""
    _, keeper, module = fit(url)
    assert keeper.best_model_path == f"{url}/step=6.ckpt"
    store, path = fsspec.core.url_to_fs(url)
    names = sorted(name.rstrip("/").rpartition("/")[2] for name in store.ls(path, detail=False, refresh=True))
    assert names == ["last.ckpt", "latest", "step=6.ckpt"]
    ways = ({"ckpt_path": keeper.best_model_path}, {"ckpt_path": "last"}, {"resume": "auto"}, {"resume": url})
    for options in ways:
        _, _, resumed = fit(url, **options)
        assert not resumed.seen  # all steps were made
        for name, value in module.state_dict().items():
            assert torch.equal(value, resumed.state_dict()[name])


def test_a_run_keeps_its_checkpoints_in_a_store(shared: str) -> None:
    """Retention, names and resuming that work on a disk alone."""
    check_run_in(f"{shared}/run")


def test_a_run_keeps_its_checkpoints_in_s3(s3: str) -> None:
    """A store of files behaves otherwise than S3."""
    check_run_in(f"{s3}/run")
    with pytest.raises(CheckpointError) as caught:
        save(f"{s3}-is-not-there/one", 1.0)
    assert caught.value.code == "checkpoint-write"


def test_the_root_directory_may_be_a_url(shared: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints in a local directory that is called like the URL; or logs, without a word."""
    monkeypatch.chdir(tmp_path)
    options = {**QUIET, "enable_checkpointing": True, "default_root_dir": f"{shared}/store", "max_steps": 2}
    data = torch.utils.data.DataLoader(make_dataset(8), batch_size=4)
    trainer = Trainer(**options)
    trainer.fit(Classifier(), data)
    assert trainer.checkpoint_callback.best_model_path == f"{shared}/store/checkpoints/epoch=0-step=2.ckpt"
    with pytest.warns(UserWarning, match="is a URL"):
        trainer = Trainer(**{**options, "logger": True})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer.fit(Classifier(), data)
    assert trainer.checkpoint_callback.best_model_path.startswith(f"{shared}/store/drivetrain_logs/version_0/checkpo")
    assert exists(trainer.checkpoint_callback.best_model_path)
    assert sorted(os.listdir(tmp_path)) == ["drivetrain_logs", "store"]
