"""A backbone that is trained after its head."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer

from drivetrain.base.errors import ConfigError
from drivetrain.callbacks.base_finetuning import BaseFinetuning


def _twice(epoch: int) -> float:
    return 2.0


class BackboneFinetuning(BaseFinetuning):
    """Freezes `module.backbone`, and trains it from an epoch on, at a learning rate that grows to that of the head.

    Args:
        unfreeze_backbone_at_epoch: The first epoch that trains it, counted from 0.
        lambda_func: By which its rate is multiplied before each epoch after that; it is given the epoch.
        backbone_initial_ratio_lr: Its first rate, as a part of the head's.
        backbone_initial_lr: Its first rate, instead.
        should_align: The rate never gets above the head's.
        train_bn: Batch norms of the backbone are trained from the beginning.
        verbose: Print the rates, on rank 0.

    Raises:
        ConfigError: When a run begins: the module has no `backbone`.
    """

    def __init__(
        self,
        unfreeze_backbone_at_epoch: int = 10,
        lambda_func: Callable[[int], float] = _twice,
        backbone_initial_ratio_lr: float = 0.1,
        backbone_initial_lr: float | None = None,
        should_align: bool = True,
        train_bn: bool = True,
        verbose: bool = False,
    ) -> None:
        super().__init__()
        self.unfreeze_backbone_at_epoch = unfreeze_backbone_at_epoch
        self.lambda_func = lambda_func
        self.backbone_initial_ratio_lr = backbone_initial_ratio_lr
        self.backbone_initial_lr = backbone_initial_lr
        self.should_align, self.train_bn, self.verbose = should_align, train_bn, verbose
        self._rate: float | None = None

    def state_dict(self) -> dict[str, Any]:
        """The backbone's rate as well. All ranks."""
        return {**super().state_dict(), "rate": self._rate}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore it as well. All ranks."""
        super().load_state_dict(state_dict)
        self._rate = state_dict["rate"]

    def freeze_before_training(self, pl_module: Any) -> None:
        """Freeze the backbone.

        Raises:
            ConfigError: There is none.
        """
        if getattr(pl_module, "backbone", None) is None:
            raise ConfigError(
                f"BackboneFinetuning: {type(pl_module).__name__} has no backbone.",
                code="finetuning",
                do="Make it in __init__ or setup as self.backbone, or derive from BaseFinetuning.",
            )
        self._rate = None
        self.freeze(pl_module.backbone, self.train_bn)

    def finetune_function(self, pl_module: Any, epoch: int, optimizer: Optimizer) -> None:
        """Unfreeze the backbone, and move its rate."""
        if epoch < self.unfreeze_backbone_at_epoch:
            return
        head = float(optimizer.param_groups[0]["lr"])
        if self._rate is None:
            first = self.backbone_initial_lr
            self._rate = head * self.backbone_initial_ratio_lr if first is None else first
            self.unfreeze_and_add_param_group(pl_module.backbone, optimizer, self._rate)
        else:
            self._rate *= self.lambda_func(epoch)
            if self.should_align:
                self._rate = min(self._rate, head)
            optimizer.param_groups[-1]["lr"] = self._rate
        if self.verbose and pl_module.global_rank == 0:
            print(f"Epoch {epoch}: the backbone's learning rate is {self._rate:.3g}, the head's {head:.3g}.")
