"""Predictions of several ranks are put together."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from drivetrain import Trainer
from drivetrain.testing.fixtures import make_mlp
from tests.unit.callbacks.test_writers import Notes
from tests.unit.trainer.runs import QUIET, Classifier, loader


@pytest.mark.parametrize("length", [19, 4])
def test_each_sample_is_written_once_and_they_come_in_order(ranks: Any, length: int) -> None:
    """Samples that are padded would be written twice, or predictions be those of others."""

    def in_rank() -> Any:
        notes = Notes("epoch")
        trainer = Trainer(**QUIET, strategy="ddp", callbacks=[notes])
        try:
            trainer.predict(Classifier(), loader(length), return_predictions=False)
        finally:
            trainer._fabric.close()
        _, indices, ordered = notes.epochs[0]
        return [index for batch in indices for index in batch], torch.cat(ordered).tolist()

    results = ranks.run(in_rank)
    assert sorted(index for own, _ in results for index in own) == list(range(length))
    expected = make_mlp()(loader(length).dataset.tensors[0]).detach()  # type: ignore[attr-defined]
    for _, ordered in results:
        torch.testing.assert_close(torch.tensor(ordered, dtype=torch.float64), expected, rtol=0, atol=1e-14)
