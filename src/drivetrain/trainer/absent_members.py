"""Members of a trainer that people know and that are not there: what to read instead."""

from __future__ import annotations

_LOOPS = "there are no loops as objects"

ABSENT_MEMBERS = {
    "fit_loop": f"{_LOOPS}: read trainer.current_epoch, trainer.global_step, trainer.micro_step, trainer.max_epochs, "
    "trainer.num_training_batches or trainer.progress, and set trainer.limits or trainer.should_stop",
    "validate_loop": f"{_LOOPS}: read trainer.num_val_batches and trainer.callback_metrics",
    "test_loop": f"{_LOOPS}: read trainer.num_test_batches and trainer.callback_metrics",
    "predict_loop": f"{_LOOPS}: trainer.predict returns the predictions",
    "accelerator": "read trainer.device, or trainer.strategy.device",
    "is_last_batch": "compare batch_idx + 1 with trainer.num_training_batches",
    "num_gpus": "read trainer.num_devices",
    "gpus": "read trainer.num_devices",
    "progress_bar_dict": "read trainer.progress_bar_metrics",
    "root_gpu": "read trainer.device",
    "training_type_plugin": "read trainer.strategy",
    "reset_train_dataloader": "pass reload_dataloaders_every_n_epochs to the Trainer",
    "logdir": "read trainer.log_dir",
    "lr_schedulers": "read trainer.lr_scheduler_configs",
    "tune": "use Tuner(trainer)",
}
