"""What a raw loop gets beside windows: state, logs, callbacks, and who am I."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from drivetrain import CheckpointError, Fabric, LaunchError, Logger
from drivetrain.testing.fixtures import make_dataset, make_mlp, max_difference
from tests.unit.fabric.raw_loop import Watched, open_fabric


class ListLogger(Logger):
    def __init__(self) -> None:
        self.rows: list[tuple[dict[str, Any], int | None]] = []

    @property
    def name(self) -> str:
        return "list"

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        if self.is_writing:
            self.rows.append((dict(metrics), step))

    def log_hyperparams(self, params: Any) -> None: ...


class Counter:
    """Anything with a state."""

    def __init__(self, value: int) -> None:
        self.value = value

    def state_dict(self) -> dict[str, int]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.value = state["value"]


def trained() -> tuple[Fabric, nn.Module, Any, Any]:
    fabric = open_fabric()
    net = make_mlp(has_batch_norm=True)
    model, optimizer = fabric.setup(net, torch.optim.AdamW(net.parameters(), lr=1e-2))
    for window in fabric.windows(DataLoader(make_dataset(16), batch_size=4), model, optimizer):
        for features, targets in window:
            window.backward(nn.functional.cross_entropy(model(features), targets))
    return fabric, net, model, optimizer


def test_a_saved_state_comes_back_whole(tmp_path: Path) -> None:
    """A resumed raw loop would go on from other weights, another optimizer, or another step."""
    fabric, net, model, optimizer = trained()
    state = {"model": model, "optimizer": optimizer, "counter": Counter(3), "step": 4, "names": ["a", {"b": 1.5}]}
    fabric.save(tmp_path / "ck", state)
    other = open_fabric()
    fresh = make_mlp(has_batch_norm=True, seed=1)
    fresh_model, fresh_optimizer = other.setup(fresh, torch.optim.AdamW(fresh.parameters(), lr=1.0))
    counter = Counter(0)
    again: dict[str, Any] = {"model": fresh_model, "optimizer": fresh_optimizer, "counter": counter, "step": 0}
    rest = other.load(tmp_path / "ck", again)
    assert rest == {"names": ["a", {"b": 1.5}]}
    assert again["step"] == 4 and counter.value == 3 and again["model"] is fresh_model
    assert max_difference(net, fresh) == 0.0
    assert fresh_optimizer.param_groups[0]["lr"] == 1e-2
    for name, own in optimizer.state_dict()["state"][0].items():
        assert torch.equal(fresh_optimizer.state_dict()["state"][0][name], own)


def test_a_plain_module_is_saved_and_loaded_alike(tmp_path: Path) -> None:
    """A second, frozen model beside the trained one could not be kept."""
    fabric = open_fabric()
    net, fresh = make_mlp(), make_mlp(seed=1)
    fabric.save(tmp_path / "ck", {"teacher": net})
    fabric.load(tmp_path / "ck", {"teacher": fresh})
    assert max_difference(net, fresh) == 0.0


def test_strict_loading_names_what_is_missing_and_what_is_unexpected(tmp_path: Path) -> None:
    """A renamed layer would be half reported, or keep its random weights."""
    fabric = open_fabric()
    fabric.save(
        tmp_path / "ck", {"model": nn.ModuleDict({"shared": nn.Linear(2, 2), "former": nn.Linear(2, 2, bias=False)})}
    )
    target = nn.ModuleDict({"shared": nn.Linear(2, 2), "new": nn.Linear(2, 2, bias=False)})
    with pytest.raises(CheckpointError) as caught:
        fabric.load(tmp_path / "ck", {"model": target})
    assert caught.value.code == "checkpoint-keys"
    assert "missing ['new.weight']" in str(caught.value) and "unexpected ['former.weight']" in str(caught.value)
    fabric.load(tmp_path / "ck", {"model": target}, strict=False)


def test_a_name_that_was_not_saved_is_an_error(tmp_path: Path) -> None:
    """An optimizer would silently begin anew."""
    fabric = open_fabric()
    fabric.save(tmp_path / "ck", {"model": nn.Linear(2, 2)})
    with pytest.raises(CheckpointError, match="holds model, but not optimizer") as caught:
        fabric.load(tmp_path / "ck", {"model": nn.Linear(2, 2), "optimizer": Counter(0)})
    assert caught.value.code == "checkpoint-keys"


def test_a_checkpoint_is_verified_before_anything_is_loaded(tmp_path: Path) -> None:
    """A flipped bit would become a weight."""
    fabric, net = open_fabric(), make_mlp()
    fabric.save(tmp_path / "ck", {"net": net})
    file = tmp_path / "ck" / "state.pt"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    fresh = make_mlp(seed=1)
    with pytest.raises(CheckpointError, match="state.pt") as caught:
        fabric.load(tmp_path / "ck", {"net": fresh})
    assert caught.value.code == "checkpoint-corrupt" and max_difference(fresh, make_mlp(seed=1)) == 0.0


def test_sizes_that_differ_are_told_of_the_users_module(tmp_path: Path) -> None:
    """torch's own text does not say which of several models does not fit."""
    fabric = open_fabric()
    fabric.save(tmp_path / "ck", {"net": nn.Linear(2, 2)})
    with pytest.raises(CheckpointError, match="The saved 'net' does not fit Linear: (?s:.)*size mismatch") as caught:
        fabric.load(tmp_path / "ck", {"net": nn.Linear(3, 2)}, strict=False)
    assert caught.value.code == "checkpoint-keys"


def test_modules_are_made_in_the_dtype_of_the_run() -> None:
    """A large model would be made in float32 first."""
    fabric = open_fabric(precision="bf16-true")
    before = torch.get_default_dtype()
    with fabric.init_module():
        layer = nn.Linear(4, 4)
    assert layer.weight.dtype == torch.bfloat16 and layer.weight.device == fabric.device
    assert torch.get_default_dtype() == before


def test_an_empty_init_skips_the_random_numbers() -> None:
    """Minutes would be spent on weights that are loaded next."""
    fabric = open_fabric()
    state = torch.get_rng_state()
    with fabric.init_module(empty_init=True):
        nn.Linear(4, 4)
    assert torch.equal(torch.get_rng_state(), state)
    with fabric.init_module():
        nn.Linear(4, 4)
    assert not torch.equal(torch.get_rng_state(), state)


def test_autocast_is_that_of_the_precision() -> None:
    """Code outside of a module's forward would run in another format."""
    with open_fabric(precision="bf16-mixed").autocast():
        assert torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype == torch.bfloat16
    with open_fabric().autocast():
        assert torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype == torch.float32


def test_values_are_logged_as_plain_numbers_to_every_logger() -> None:
    """A logger would get tensors that keep a graph alive."""
    loggers = [ListLogger(), ListLogger()]
    fabric = open_fabric(loggers=loggers)
    fabric.log("loss", torch.tensor(0.5, requires_grad=True), step=3)
    fabric.log_dict({"a": 0.1, "b": torch.tensor([2.0])}, step=4)
    for logger in loggers:
        assert logger.rows == [({"loss": 0.5}, 3), ({"a": 0.1, "b": 2.0}, 4)]
        assert all(type(value) is float for row, _ in logger.rows for value in row.values())
    assert fabric.logger is loggers[0] and fabric.loggers == loggers


def test_one_logger_or_none_may_be_given() -> None:
    """`loggers=CSVLogger(...)` would be iterated over."""
    own = ListLogger()
    assert open_fabric(loggers=own).loggers == [own]
    fabric = open_fabric()
    assert fabric.logger is None
    fabric.log("nobody", 1.0)


def test_callbacks_are_called_if_they_have_the_method() -> None:
    """Each callback would need every method."""
    heard: list[Any] = []

    class One:
        def on_anything(self, *args: Any, **kwargs: Any) -> None:
            heard.append((args, kwargs))

    class Other:
        on_anything = 3

    fabric = open_fabric(callbacks=[One(), Other(), object()])
    fabric.call("on_anything", 1, two=2)
    fabric.call("on_nothing")
    assert heard == [((1,), {"two": 2})]
    alone = open_fabric(callbacks=One())
    alone.call("on_anything")
    assert len(heard) == 2


def test_rank_zero_first_runs_the_block_once_and_hands_errors_on() -> None:
    """A download on one rank would not run, or its error would vanish."""
    fabric, runs = open_fabric(), []
    for local in (False, True):
        with fabric.rank_zero_first(local=local):
            runs.append(local)
    assert runs == [False, True]
    with pytest.raises(KeyError), fabric.rank_zero_first():
        raise KeyError


def test_one_rank_knows_who_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """A script that asks would fail without a launcher."""
    fabric = open_fabric()
    assert (fabric.global_rank, fabric.local_rank, fabric.node_rank, fabric.world_size) == (0, 0, 0, 1)
    assert fabric.is_global_zero and fabric.device == torch.device("cpu")
    fabric.print("hello", end="!")
    assert capsys.readouterr().out == "hello!"
    fabric.barrier()
    assert fabric.broadcast("x") == "x"
    assert fabric.all_gather(torch.ones(2)).shape == (1, 2)
    assert float(fabric.all_reduce(2, reduce_op="sum")) == 2.0
    assert fabric.to_device([torch.ones(1)])[0].device == fabric.device


def test_a_function_is_launched_with_its_arguments() -> None:
    """`fabric.launch(main, config)` would lose what it was given, or what it returns."""
    fabric = Fabric(accelerator="cpu", devices=1)
    assert fabric.launch(lambda own, a, b=0: (own is fabric, a, b), 1, b=2) == (True, 1, 2)
    with pytest.raises(LaunchError) as caught:
        fabric.launch()
    assert caught.value.code == "launched-twice"


def test_one_rank_need_not_be_launched() -> None:
    """A notebook with one device would need a line that does nothing."""
    watched = Watched(Fabric(accelerator="cpu", devices=1))
    assert len(watched.run(DataLoader(make_dataset(8), batch_size=4))) == 2


def test_one_or_several_loaders_may_be_set_up() -> None:
    """A script with a training and a test loader would need two calls; with one, it would get a list."""
    fabric = open_fabric()
    own = DataLoader(make_dataset(8), batch_size=4)
    assert fabric.setup_dataloaders(own).source is own
    first, second = fabric.setup_dataloaders(own, own)
    assert len(first) == len(second) == 2


def test_batches_are_converted_on_request() -> None:
    """Code outside of a module that was set up would get float64 beside bfloat16 weights."""
    fabric = open_fabric(precision="bf16-true")
    own = DataLoader(make_dataset(4), batch_size=4)
    features, targets = next(iter(fabric.setup_dataloaders(own, convert_input=True)))
    assert features.dtype == torch.bfloat16 and targets.dtype == torch.int64
    features, _ = next(iter(fabric.setup_dataloaders(own)))
    assert features.dtype == torch.float64
