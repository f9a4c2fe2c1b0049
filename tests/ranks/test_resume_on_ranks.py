"""Checkpoints that are verified by all ranks together, and what one process takes out of those of many."""

from __future__ import annotations

import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from drivetrain import DDP, FSDP, CheckpointError, Fabric, ModelCheckpoint, SingleDevice, Trainer, seed_everything
from drivetrain.checkpoint.read import read_tensors
from drivetrain.checkpoint.verify import problems
from drivetrain.cli.main import main
from drivetrain.cluster.read_cluster import current_cluster
from drivetrain.fabric.downloads import Downloads
from tests import stores
from tests.ranks import training
from tests.ranks.open_fabric import error_of, open_fabric
from tests.ranks.sharded_training import Deep, difference, sharded_fabric
from tests.ranks.test_sharded_state import two_steps
from tests.unit.trainer.runs import QUIET, Classifier, loader, weights


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.fixture(scope="module")
def saved(ranks: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Two checkpoints of two ranks of FSDP, and the weights in them."""
    root = tmp_path_factory.mktemp("resume")
    for name in ("a", "b"):
        trained, _ = ranks.run(lambda name=name: two_steps("fsdp", save=root / name))
    return root, trained


def latest_of(root: str, checkpoint: str) -> Any:
    """What a rank finds, what it warns of, and the error of a load by path."""
    stores.register()
    with sharded_fabric(FSDP()) as fabric:
        model = fabric.setup(Deep())
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = fabric.latest(root)
        texts = [str(one.message) for one in caught if "passed over" in str(one.message)]
        return found and Path(found).name, texts, error_of(fabric.load, f"{root}/{checkpoint}", {"model": model})[:2]


@pytest.mark.parametrize("scheme", ["", "shared://"])
@pytest.mark.parametrize("name", ["__0_0.distcp", "__1_0.distcp", "state.pt", ".metadata"])
def test_damage_that_one_rank_sees_is_known_to_all(ranks: Any, saved: Any, name: str, scheme: str) -> None:
    """Some ranks would go on with a checkpoint that others have refused, and wait for them for ever."""
    root, _ = saved
    flip(root / "b" / name)
    assert problems(root / "b")
    first, second = ranks.run(latest_of, f"{scheme}{root}", "b")
    flip(root / "b" / name)
    assert problems(root / "b") == []
    for found, _, error in (first, second):
        assert found == "a" and error == ("CheckpointError", "checkpoint-corrupt")
    assert f"b: {name} has other content" in first[1][0] and second[1] == []


def test_files_are_read_by_one_rank_each(saved: Any) -> None:
    """Each rank, or one for all, would read the shards of all: a load would take as many times as long."""
    root, _ = saved
    flip(root / "b" / "__1_0.distcp")
    assert sorted(len(problems(root / "b", share=(rank, 2))) for rank in range(2)) == [0, 1]
    flip(root / "b" / "__1_0.distcp")


def test_a_sharded_model_is_exported_by_one_process(
    saved: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What many ranks have trained could only be taken out by as many ranks."""
    root, expected = saved
    assert main(["checkpoint", "export", str(root / "a"), str(tmp_path / "model.pt"), "--name", "model"]) == 0
    exported: Any = read_tensors(tmp_path / "model.pt")
    assert exported.keys() == expected.keys() and difference(exported, expected) == 0
    Deep().load_state_dict(exported)


def test_checkpoints_of_different_strategies_are_compared(
    saved: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whether two ways to train are the same could not be seen from what they have saved."""
    root, _ = saved
    two_steps("single", save=tmp_path / "single", load=root / "a")
    assert main(["checkpoint", "diff", str(root / "a"), str(root / "b")]) == 0
    assert main(["checkpoint", "diff", str(root / "a"), str(tmp_path / "single")]) == 1
    names = {line.split(":")[0] for line in capsys.readouterr().out.splitlines()}
    assert {"model.first.weight", "optimizer.state.model.first.weight.exp_avg"} <= names


def train(root: Path | str, steps: int, kind: str = "ddp", **options: Any) -> Any:
    """Steps of a Trainer in this rank, with a checkpoint after each; weights and the steps done."""
    seed_everything(1, verbose=False)
    world = current_cluster().world_size
    module = Classifier()
    trainer = Trainer(
        **{**QUIET, "enable_checkpointing": None},
        strategy={"ddp": DDP, "fsdp": FSDP, "single": SingleDevice}[kind if world > 1 else "single"](),
        devices=world,
        callbacks=ModelCheckpoint(root, "{step}", every_n_train_steps=1, save_top_k=-1),
        max_steps=steps,
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*passed over.*")
        trainer.fit(module, loader(24, shuffle=True, batch_size=4 // world), **options)
    return weights(module), trainer.global_step


def test_ranks_resume_together_from_the_newest_whole_checkpoint(ranks: Any, tmp_path: Path) -> None:
    """Ranks that each look for themselves would go on from different steps."""
    whole = ranks.run(train, tmp_path / "whole", 6)
    ranks.run(train, tmp_path / "cut", 4)
    flip(tmp_path / "cut" / "step=4.ckpt" / "rank_1.pt")
    resumed = ranks.run(lambda: train(tmp_path / "cut", 6, resume="auto"))
    for (own, steps), (expected, _) in zip(resumed, whole, strict=True):
        assert steps == 6 and all(torch.equal(own[name], expected[name]) for name in expected)


def test_ranks_begin_together_where_there_is_nothing(ranks: Any, tmp_path: Path) -> None:
    """The first start of a job that is always started in the same way would fail."""
    assert [steps for _, steps in ranks.run(lambda: train(tmp_path / "new", 2, resume="auto"))] == [2, 2]


def test_a_module_is_built_from_shards_by_one_process(ranks: Any, tmp_path: Path) -> None:
    """A model that was trained in shards could only be used by as many ranks."""
    stores.register()
    expected, _ = ranks.run(train, tmp_path / "ddp", 2)[0]
    ranks.run(lambda: train(tmp_path / "fsdp", 2, "fsdp"))
    for place in (tmp_path / "fsdp", f"shared://{tmp_path}/fsdp"):
        module = Classifier.load_from_checkpoint(f"{place}/step=2.ckpt")
        assert difference(weights(module), expected) < 1e-12
    flip(tmp_path / "fsdp" / "step=2.ckpt" / "__1_0.distcp")
    for place in (tmp_path / "fsdp", f"shared://{tmp_path}/fsdp"):
        with pytest.raises(CheckpointError, match=f"{place}/step=2.ckpt is damaged: __1_0.distcp has other content"):
            Classifier.load_from_checkpoint(f"{place}/step=2.ckpt")


def resume_from_store(root: Path) -> tuple[dict[str, Any], str, list[str]]:
    """The weights after a resume from a store; what `latest` finds there, and the downloads that are left."""
    stores.register()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(root))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*passed over.*")
            own, _ = train(f"shared://{root}/cut", 6, resume="auto")
            with open_fabric() as fabric:
                found = str(fabric.latest(f"shared://{root}/cut"))
                fabric.barrier()
    return own, found, [path.name for path in root.glob("drivetrain-*")]


def test_ranks_resume_together_from_a_store(ranks: Any, tmp_path: Path) -> None:
    """A download that only one rank can read, whose damage one rank knows of, or that is gone while others read it."""
    whole = ranks.run(train, tmp_path / "whole", 6)
    ranks.run(train, tmp_path / "cut", 4)
    flip(tmp_path / "cut" / "step=4.ckpt" / "rank_1.pt")
    for (own, found, left), (expected, _) in zip(ranks.run(resume_from_store, tmp_path), whole, strict=True):
        assert all(torch.equal(own[name], expected[name]) for name in expected)
        assert found == f"shared://{tmp_path}/cut/step=6.ckpt" and left == []


def read_late(root: Path) -> float:
    """A rank that reads a download when the other has read it."""
    stores.register()
    with open_fabric() as fabric, Downloads(fabric.strategy) as downloads:
        directory = downloads.directory_of(f"shared://{root}/one")
        time.sleep(0.5 * fabric.global_rank)
        return float(read_tensors(directory / "state.pt")["value"])


def test_a_download_is_there_until_all_have_read_it(ranks: Any, tmp_path: Path) -> None:
    """The slower rank would find half a checkpoint, or none."""
    fabric = Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    fabric.save(tmp_path / "one", {"value": torch.tensor(3.0)})
    fabric.close()
    assert ranks.run(read_late, tmp_path) == [3.0, 3.0]


def load_folder(root: Path | str) -> int:
    stores.register()
    with open_fabric() as fabric:
        model = fabric.setup(torch.nn.Linear(2, 1))
        for step in (1, 2):
            fabric.save(f"{root}/step={step}", {"model": model, "step": step})
        state = {"model": model, "step": 0}
        fabric.load(root, state)
        return int(state["step"])


def test_a_folder_is_loaded_by_all_ranks(ranks: Any, tmp_path: Path) -> None:
    """A rank that waits for others which have chosen another way."""
    assert ranks.run(load_folder, tmp_path / "here") == [2, 2]
    assert ranks.run(load_folder, f"shared://{tmp_path}/store") == [2, 2]


def three_ranks_resumed(root: str, keeps_buckets: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a rank has trained in two epochs, and in one and one more."""
    options: dict[str, Any] = {"batch_size": 4, "accumulate": 1, "devices": 3}
    path = f"{root}/{keeps_buckets}"

    def strategy() -> DDP:
        return DDP(find_unused_parameters=keeps_buckets)

    whole = training.train(**options, strategy=strategy())
    training.train(**options, strategy=strategy(), epochs=1, save_path=path)
    return whole, training.train(**options, strategy=strategy(), ckpt_path=path)


@pytest.mark.parametrize("keeps_buckets", [True, False])
def test_three_ranks_go_on_to_rounding_and_exactly_with_the_same_buckets(
    ranks: Any, tmp_path: Path, keeps_buckets: bool
) -> None:
    """DDP adds up three in another order once it knows its buckets: a greater difference would not come from that."""
    for whole, resumed in ranks.run(three_ranks_resumed, str(tmp_path), keeps_buckets, world=3):
        assert training.difference(whole, resumed) <= (0 if keeps_buckets else 1e-12)
