"""Members of a trainer that people know and that are not there: what to read instead."""

from __future__ import annotations

ABSENT_MEMBERS = {
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
