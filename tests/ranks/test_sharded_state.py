"""Checkpoints of sharded modules: by shards, and read by any strategy on any number of ranks."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import drivetrain
from drivetrain import DDP, FSDP, CheckpointError, SingleDevice
from drivetrain.checkpoint.verify import problems
from drivetrain.strategies.tensor_files import METADATA_FILE, read_metadata
from tests.ranks.open_fabric import error_of
from tests.ranks.sharded_training import Deep, difference, samples, sharded_fabric, whole_weights
from tests.ranks.test_fsdp import train

KINDS: dict[str, Any] = {
    "fsdp": FSDP,
    "other parts": lambda: FSDP(shard=[nn.Linear]),
    "hsdp": lambda: FSDP(num_replicas=2),
    "ddp": DDP,
    "single": SingleDevice,
}


def two_steps(kind: str, *, save: Path | None = None, load: Path | None = None, is_reversed: bool = False) -> Any:
    """Two optimizer steps of a strategy, from a checkpoint or to one; whole weights."""
    strategy = KINDS[kind]()
    with sharded_fabric(strategy) as fabric:
        module = Deep(seed=1 if load else 0)
        parameters = list(module.parameters())
        optimizer = torch.optim.AdamW(parameters[::-1] if is_reversed else parameters, lr=1e-2)
        model, optimizer = fabric.setup(module, optimizer, methods=("loss_on",))
        state = {"model": model, "optimizer": optimizer, "epoch": 0 if load else 7}
        if load:
            fabric.load(load, state)
            assert state["epoch"] == 7
        for step in range(2):
            first = 24 * (step + (2 if load else 0))
            fabric.backward(model.loss_on(*samples(range(first, first + 24)[fabric.global_rank :: fabric.world_size])))
            optimizer.step()
            optimizer.zero_grad()
        if save:
            fabric.save(save, state)
        return whole_weights(strategy, model.prepared)


@pytest.fixture(scope="module")
def saved(ranks: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Checkpoints of several strategies, and the weights two steps later in one process."""
    root = tmp_path_factory.mktemp("sharded")
    for kind, world in [("single", 1), ("ddp", 2), ("fsdp", 2), ("hsdp", 4)]:
        ranks.run(lambda kind=kind: two_steps(kind, save=root / kind), world=world)
    return root, two_steps("single", load=root / "single")


@pytest.mark.parametrize(
    ("source", "kind", "world", "is_reversed"),
    [
        ("fsdp", "fsdp", 2, False),
        ("fsdp", "other parts", 1, True),
        ("fsdp", "other parts", 4, False),
        ("fsdp", "hsdp", 4, False),
        ("fsdp", "ddp", 2, True),
        ("fsdp", "single", 1, False),
        ("hsdp", "fsdp", 2, False),
        ("hsdp", "single", 1, True),
        ("ddp", "fsdp", 2, True),
        ("single", "fsdp", 4, False),
    ],
)
def test_a_run_goes_on_from_the_checkpoint_of_any_strategy(
    ranks: Any, saved: Any, source: str, kind: str, world: int, is_reversed: bool
) -> None:
    """A run could not go on on other ranks, or would give a parameter the optimizer state of another one."""
    root, expected = saved
    function = lambda: two_steps(kind, load=root / source, is_reversed=is_reversed)  # noqa: E731
    for own in ranks.run(function, world=world):
        assert difference(own, expected) < 1e-12


def test_a_process_without_ranks_goes_on_from_shards(saved: Any) -> None:
    """What many ranks have trained could not be used on one device, or only with a warning."""
    root, expected = saved
    assert difference(two_steps("single", load=root / "fsdp"), expected) < 1e-12


def test_each_shard_is_written_once_and_hashed(saved: Any) -> None:
    """Replicas would write everything several times, or a changed shard be loaded."""
    root, _ = saved
    whole = 3 * 8 * sum(p.numel() for p in Deep().parameters())  # weights and two moments, in float64
    for kind, world in [("fsdp", 2), ("hsdp", 4)]:
        assert problems(root / kind) == []
        stored = sum(chunk.sizes.numel() for one in described(root / kind) for chunk in one.chunks)
        assert 8 * (stored + 3) == whole  # the scalar is in state.pt
        assert len(list((root / kind).glob("*.distcp"))) >= world // 2
    files = sorted(path.name for path in (root / "fsdp").iterdir())
    assert files == [".metadata", "__0_0.distcp", "__1_0.distcp", "drivetrain-manifest.json", "state.pt"]


def described(directory: Path) -> Any:
    return read_metadata(directory).state_dict_metadata.values()


def test_names_in_the_checkpoint_are_the_modules(saved: Any) -> None:
    """Other tools could not find a parameter, or only under a wrapper's name."""
    names = set(read_metadata(saved[0] / "fsdp").state_dict_metadata)
    assert {"model.blocks.2.linear.weight", "optimizer.model.first.bias.exp_avg_sq"} <= names
    assert not any("module" in name for name in names)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_torch_reads_the_shards_itself(saved: Any) -> None:
    """The checkpoint could be read by drivetrain alone."""
    from torch.distributed.checkpoint import FileSystemReader, load

    target = {"model.first.weight": torch.zeros(10, 8, dtype=torch.float64)}
    load(target, storage_reader=FileSystemReader(saved[0] / "fsdp"), no_dist=True)
    assert target["model.first.weight"].any()


class Bomb:
    """Runs code when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_a_description_that_names_anything_else_is_not_run(tmp_path: Path) -> None:
    """Whoever can write to the checkpoint could run code in the run that loads it."""
    (tmp_path / METADATA_FILE).write_bytes(pickle.dumps(Bomb(tmp_path / "ran")))
    with pytest.raises(CheckpointError, match="checkpoint-corrupt"):
        read_metadata(tmp_path)
    assert not (tmp_path / "ran").exists()


def test_a_description_of_bytes_or_of_files_elsewhere_is_refused(saved: Any, tmp_path: Path) -> None:
    """Torch would unpickle the bytes without a look at what they name, or read a file beside the checkpoint."""
    from torch.distributed.checkpoint.metadata import BytesStorageMetadata

    with_bytes, elsewhere = (read_metadata(saved[0] / "fsdp") for _ in range(2))
    with_bytes.state_dict_metadata["model.first.weight"] = BytesStorageMetadata()
    for info in elsewhere.storage_data.values():
        info.relative_path = f"../{info.relative_path}"
    for metadata in (with_bytes, elsewhere):
        (tmp_path / METADATA_FILE).write_bytes(pickle.dumps(metadata))
        with pytest.raises(CheckpointError, match="checkpoint-corrupt"):
            read_metadata(tmp_path)


def test_a_checkpoint_of_another_module_is_refused_on_every_rank(ranks: Any, saved: Any) -> None:
    """A parameter would keep the values that it was made with."""

    def in_rank(source: str, width: int) -> None:
        with sharded_fabric(FSDP()) as fabric:
            fabric.load(saved[0] / source, {"model": fabric.setup(Deep(width=width))})

    for source in ("fsdp", "ddp"):
        for kind, code, text in ranks.run(error_of, in_rank, source, 6):
            assert (kind, code) == ("CheckpointError", "checkpoint-keys")
            assert "size mismatch for first.weight" in text


def test_an_optimizer_with_other_parameters_is_refused(ranks: Any, saved: Any) -> None:
    """Its state would go to other parameters, by their place in a list."""

    def in_rank(source: str) -> None:
        with sharded_fabric(FSDP() if source == "fsdp" else SingleDevice()) as fabric:
            module = Deep()
            optimizer = torch.optim.AdamW(module.blocks.parameters())
            model, optimizer = fabric.setup(module, optimizer)
            fabric.load(saved[0] / source, {"optimizer": optimizer, "model": model, "epoch": 0})

    for source, world in [("fsdp", 2), ("single", 1)]:
        for kind, code, text in ranks.run(error_of, in_rank, source, world=world):
            assert (kind, code) == ("CheckpointError", "checkpoint-keys")
            assert "model.first.weight" in text


def test_an_optimizer_that_made_steps_before_it_was_set_up_is_refused(ranks: Any) -> None:
    """Its state would be lost without a word."""

    def in_rank() -> None:
        with sharded_fabric(FSDP()) as fabric:
            module = Deep()
            optimizer = torch.optim.AdamW(module.parameters())
            module.loss_on(*samples(range(3))).backward()
            optimizer.step()
            fabric.setup(module, optimizer)

    for kind, code, _ in ranks.run(error_of, in_rank):
        assert (kind, code) == ("OptimizerError", "optimizer-state")


def test_a_sharded_trainer_goes_on_from_its_checkpoint_on_another_number_of_ranks(ranks: Any, tmp_path: Path) -> None:
    """A run could not be resumed, or only on the same ranks."""

    def first() -> Any:
        class Halt(drivetrain.Callback):
            def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
                trainer.save_checkpoint(tmp_path / f"epoch{trainer.current_epoch}")

        return train("fsdp", 4, 2, 48, callbacks=[Halt()])

    def second(batch_size: int) -> Any:
        return train("fsdp", batch_size, 2, 48, ckpt_path=tmp_path / "epoch0")

    expected = ranks.run(first, world=2)[0]
    for world, batch_size in [(2, 4), (1, 8)]:
        for weights, metrics in ranks.run(second, batch_size, world=world):
            assert difference(weights, expected[0]) < 1e-12
            assert metrics["val_loss"] == pytest.approx(expected[1]["val_loss"], rel=1e-9)
