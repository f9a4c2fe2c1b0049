"""What DDP's communication hooks send, and what PowerSGD computes and keeps."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader

from drivetrain import DDP, PowerSGD
from drivetrain.testing.comm_counter import parameter_bytes
from drivetrain.testing.fixtures import make_dataset, make_mlp
from drivetrain.testing.rank_runner import RankCallError
from tests.ranks.counted_windows import Recorder, fit
from tests.ranks.open_fabric import error_of, largest_difference, open_fabric, sgd, weights

MANY_BUCKETS = {"bucket_cap_mb": 0.001}


class Wide(Recorder):
    """Large enough for PowerSGD, in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.net = make_mlp(num_hidden=256).float()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return functional.cross_entropy(self.net(batch[0].float()), batch[1])


def test_a_hook_changes_what_a_window_sends_and_not_that_it_syncs_once(ranks: Any) -> None:
    """Each micro-batch would send, or a hook save nothing of what the window sends."""

    def in_rank(hook: str | None) -> Any:
        module = Wide()
        fit(
            module, DataLoader(make_dataset(256), batch_size=4), strategy=DDP(comm_hook=hook), accumulate_grad_batches=8
        )
        return [window["allreduce_"] for window in module.sent], parameter_bytes(module)

    sent = {hook: ranks.run(in_rank, hook)[0] for hook in (None, "bf16", "powersgd")}
    full = sent[None][1]
    assert len(sent[None][0]) == 4
    for calls, size in sent[None][0]:
        assert calls == 1 and size == full
    for calls, size in sent["bf16"][0]:
        assert calls == 1 and size == full / 2
    for calls, size in sent["powersgd"][0][2:]:
        assert calls == 2 and size < full / 4


# ---------------------------------------------------------------- PowerSGD


def batches(count: int) -> list[tuple[Tensor, Tensor]]:
    """`count` batches, the same in every process."""
    features, targets = make_dataset(count * 4).tensors
    return list(zip(features.split(4), targets.split(4), strict=True))


def make() -> nn.Sequential:
    """Two matrices of which one is worth compressing at rank 2, and biases."""
    return make_mlp(num_hidden=64, num_outputs=8)


def train(*, steps: range, path: Path | None = None, saves: bool = False, **options: Any) -> dict[str, Tensor]:
    """Weights after some steps, begun from what was saved or ended by a save."""
    with open_fabric(comm_hook="powersgd", comm_state=PowerSGD(2, start_step=1), **options) as fabric:
        model, optimizer = fabric.setup(*(lambda m: (m, sgd(m)))(make()))
        state = {"model": model, "optimizer": optimizer, "step": steps.stop}
        if path is not None and not saves:
            fabric.load(path, state)
        for step in steps:
            x, y = batches(40)[fabric.world_size * step + fabric.global_rank]
            fabric.backward(functional.cross_entropy(model(x), y))
            optimizer.step()
            optimizer.zero_grad()
        if path is not None and saves:
            fabric.save(path, state)
        return weights(model)


@pytest.mark.parametrize("options", [{}, MANY_BUCKETS], ids=["one bucket", "many"])
def test_powersgd_is_what_the_paper_says(ranks: Any, options: dict[str, Any]) -> None:
    """Factors of unrelated parameters, errors of another step, or a sum instead of the mean."""
    first, second = ranks.run(lambda more: train(steps=range(6), **more), options)
    assert largest_difference(first, second) == 0
    assert largest_difference(first, by_hand(6)) < 1e-10
    assert largest_difference(first, by_hand(6, has_errors=False)) > 1e-6


def by_hand(num_steps: int, *, has_errors: bool = True) -> dict[str, Tensor]:
    """Algorithms 1 and 2 of the paper for two ranks, in one process."""
    model = make()
    optimizer = sgd(model)
    state = PowerSGD(2).of_module(model)
    errors: dict[str, Any] = {name: [0.0, 0.0] for name, _ in model.named_parameters()}
    right: dict[str, Tensor] = {}
    for step in range(num_steps):
        own = []
        for x, y in batches(40)[2 * step : 2 * step + 2]:
            optimizer.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            own.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
        for name, parameter in model.named_parameters():
            gradients = [one[name] for one in own]
            if step < 1 or parameter.ndim < 2:
                parameter.grad = sum(gradients) / 2
                continue
            matrices = [g + (e if has_errors else 0.0) for g, e in zip(gradients, errors[name], strict=True)]
            q = right.get(name, state._right(name, matrices[0]))
            p = torch.linalg.qr(sum(m @ q for m in matrices)).Q
            right[name] = sum(m.T @ p for m in matrices) / 2
            parameter.grad = p @ right[name].T
            errors[name] = [m - parameter.grad for m in matrices]
        optimizer.step()
    return model.state_dict()


def test_powersgd_goes_on_bit_for_bit_after_a_resume(ranks: Any, tmp_path: Path) -> None:
    """What was not sent yet would be lost, and the first steps after a resume be exact ones again."""
    whole = ranks.run(lambda: train(steps=range(7), **MANY_BUCKETS))
    path = tmp_path / "saved"
    ranks.run(lambda path: train(steps=range(4), path=path, saves=True, **MANY_BUCKETS), path)
    resumed = ranks.run(lambda path: train(steps=range(4, 7), path=path, **MANY_BUCKETS), path)
    assert largest_difference(resumed[0], whole[0]) == 0
    assert sorted(one.name for one in path.glob("comm_hook_*")) == ["comm_hook_0.pt", "comm_hook_1.pt"]


def test_another_number_of_ranks_is_told_what_powersgd_loses(ranks: Any, tmp_path: Path) -> None:
    """Errors of ranks that are gone would be dropped, or taken for another's, without a word."""

    def resume(path: Path) -> Any:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            after = train(steps=range(4, 6), path=path)
        return after, [str(one.message) for one in caught if "PowerSGD" in str(one.message)]

    ranks.run(lambda path: train(steps=range(4), path=path, saves=True), tmp_path / "saved")
    results = ranks.run(resume, tmp_path / "saved", world=3)
    assert [len(said) for _, said in results] == [1, 0, 0] and "2 ranks" in results[0][1][0]
    assert all(largest_difference(after, results[0][0]) == 0 for after, _ in results)


def test_settings_of_powersgd_that_cannot_be_are_refused(ranks: Any) -> None:
    """torch's own state would be ignored, and its rank with it."""
    for arguments in ({"rank": 0}, {"start_step": -1}):
        assert error_of(lambda given: PowerSGD(**given), arguments)[:2] == ("ConfigError", "comm-hook")

    def in_rank() -> None:
        with open_fabric(comm_hook="powersgd", comm_state={"rank": 4}) as fabric:
            fabric.setup(make())

    with pytest.raises(RankCallError) as caught:
        ranks.run(in_rank)
    assert {getattr(error, "code", "") for error in caught.value.errors.values()} == {"comm-hook"}
