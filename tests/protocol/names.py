"""The names that scripts of this field use, by where they are written; in a group by how often, the commonest first.

They were counted in public programs. Names alone: what they mean here is said by the classes that have them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Group:
    """Names that are used in the same way.

    Attributes:
        title: Its heading on the page.
        kind: `"argument"` of a call; `"member"` that is read or called; `"override"` in a subclass; `"class"`.
        owner: What has them: a path below `drivetrain`; of an argument what is called.
        names: In a string, for reading.
    """

    title: str
    kind: str
    owner: str
    names: str

    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter(self.names.split())


GROUPS = (
    Group(
        "`Trainer(...)`",
        "argument",
        "Trainer",
        "max_epochs callbacks accelerator logger devices precision strategy default_root_dir log_every_n_steps "
        "check_val_every_n_epoch gradient_clip_val num_sanity_val_steps limit_val_batches deterministic "
        "enable_progress_bar limit_train_batches num_nodes enable_checkpointing accumulate_grad_batches max_steps "
        "profiler enable_model_summary fast_dev_run min_epochs limit_test_batches val_check_interval sync_batchnorm "
        "benchmark detect_anomaly plugins overfit_batches gradient_clip_algorithm reload_dataloaders_every_n_epochs "
        "use_distributed_sampler inference_mode min_steps limit_predict_batches barebones max_time "
        "enable_autolog_hparams model_registry",
    ),
    Group("`trainer.fit(...)`", "argument", "Trainer.fit", "datamodule model ckpt_path train_dataloaders "
          "val_dataloaders"),
    Group("`trainer.test(...)`", "argument", "Trainer.test", "datamodule ckpt_path model dataloaders verbose"),
    Group("`trainer.validate(...)`", "argument", "Trainer.validate", "datamodule dataloaders ckpt_path verbose model"),
    Group("`trainer.predict(...)`", "argument", "Trainer.predict", "datamodule return_predictions dataloaders "
          "ckpt_path model"),
    Group(
        "The trainer",
        "member",
        "Trainer",
        "fit test logger global_step current_epoch checkpoint_callback datamodule callback_metrics predict validate "
        "max_epochs strategy save_checkpoint global_rank model is_global_zero optimizers world_size loggers "
        "train_dataloader sanity_checking estimated_stepping_batches callbacks fit_loop num_devices should_stop "
        "max_steps state log_every_n_steps logged_metrics accumulate_grad_batches val_dataloaders default_root_dir "
        "num_training_batches fast_dev_run lightning_module limit_train_batches test_dataloaders local_rank "
        "accelerator ckpt_path init_module lr_scheduler_configs interrupted predict_dataloaders predict_loop "
        "precision val_check_interval num_sanity_val_steps testing log_dir is_last_batch num_val_batches profiler "
        "training",
    ),
    Group(
        "What a module defines",
        "override",
        "Module",
        "configure_optimizers training_step forward validation_step test_step on_validation_epoch_end predict_step "
        "train_dataloader val_dataloader on_train_epoch_end setup on_test_epoch_end test_dataloader "
        "on_train_batch_end on_train_start on_train_epoch_start on_load_checkpoint prepare_data "
        "on_validation_epoch_start on_save_checkpoint on_fit_start optimizer_step configure_callbacks "
        "on_test_epoch_start on_validation_start on_train_batch_start on_train_end on_predict_start "
        "on_before_optimizer_step backward on_validation_end on_test_start configure_model on_after_backward "
        "on_before_zero_grad on_test_end on_predict_end load_state_dict configure_gradient_clipping "
        "on_validation_batch_end optimizer_zero_grad lr_scheduler_step on_test_model_eval on_validation_model_eval "
        "on_after_batch_transfer on_fit_end on_predict_batch_end on_predict_epoch_end on_predict_epoch_start "
        "on_test_batch_end state_dict transfer_batch_to_device on_validation_model_zero_grad teardown "
        "on_predict_batch_start on_test_batch_start on_validation_batch_start predict_dataloader",
    ),
    Group(
        "What a module uses of itself",
        "member",
        "Module",
        "log save_hyperparameters hparams trainer log_dict device current_epoch global_step logger optimizers "
        "automatic_optimization manual_backward example_input_array global_rank lr_schedulers all_gather "
        "clip_gradients loggers print untoggle_optimizer local_rank toggle_optimizer device_mesh unfreeze freeze "
        "load_from_checkpoint dtype fabric",
    ),
    Group("`self.log(...)`, `self.log_dict(...)`", "argument", "Module.log",
          "prog_bar on_epoch on_step sync_dist logger batch_size name value rank_zero_only add_dataloader_idx"),
    Group("`self.save_hyperparameters(...)`", "argument", "Module.save_hyperparameters", "ignore logger"),
    Group("A scheduler's entry in `configure_optimizers`", "argument", "loop.optimizers.LRSchedulerConfig",
          "scheduler interval frequency monitor name strict"),
    Group(
        "What a callback defines",
        "override",
        "Callback",
        "on_train_batch_end on_train_epoch_end on_train_start on_train_epoch_start on_validation_epoch_end "
        "on_train_batch_start on_fit_start on_train_end on_validation_batch_end on_validation_end "
        "on_validation_epoch_start on_validation_start setup load_state_dict state_dict on_after_backward "
        "on_test_start on_test_batch_end on_predict_batch_end on_test_epoch_end on_fit_end on_predict_start "
        "on_sanity_check_start on_test_end on_predict_epoch_end on_save_checkpoint teardown "
        "on_validation_batch_start on_predict_end on_test_batch_start on_before_optimizer_step "
        "on_predict_batch_start on_exception on_sanity_check_end on_load_checkpoint on_test_epoch_start "
        "on_predict_epoch_start state_key on_before_backward on_before_zero_grad",
    ),
    Group("What a progress bar defines", "override", "TQDMProgressBar",
          "init_train_tqdm get_metrics init_validation_tqdm"),
    Group(
        "What a data module defines",
        "override",
        "DataModule",
        "train_dataloader val_dataloader setup test_dataloader prepare_data predict_dataloader teardown "
        "load_state_dict state_dict transfer_batch_to_device on_after_batch_transfer on_before_batch_transfer",
    ),
    Group("`Fabric(...)`", "argument", "Fabric",
          "devices precision strategy accelerator loggers plugins num_nodes callbacks"),
    Group(
        "The fabric",
        "member",
        "Fabric",
        "backward launch device setup setup_dataloaders print log_dict barrier save init_module setup_optimizers load "
        "seed_everything clip_gradients global_rank world_size setup_module no_backward_sync is_global_zero logger "
        "call rank_zero_first strategy to_device log all_gather all_reduce load_raw accelerator init_tensor loggers "
        "autocast broadcast local_rank",
    ),
    Group(
        "Classes and functions",
        "class",
        "",
        "LightningModule Trainer LightningDataModule seed_everything Callback Fabric rank_zero_only rank_zero_info "
        "LightningCLI __version__ CombinedLoader Tuner MisconfigurationException SaveConfigCallback "
        "LightningArgumentParser",
    ),
    Group(
        "Callbacks",
        "class",
        "callbacks",
        "ModelCheckpoint EarlyStopping LearningRateMonitor RichProgressBar TQDMProgressBar ModelSummary "
        "BasePredictionWriter DeviceStatsMonitor RichModelSummary BaseFinetuning BackboneFinetuning ProgressBar "
        "StochasticWeightAveraging ThroughputMonitor Timer GradientAccumulationScheduler LambdaCallback "
        "OnExceptionCheckpoint ModelPruning WeightAveraging EMAWeightAveraging LearningRateFinder BatchSizeFinder",
    ),
    Group("Loggers", "class", "loggers",
          "TensorBoardLogger WandbLogger CSVLogger Logger MLFlowLogger CometLogger NeptuneLogger"),
    Group("Strategies", "class", "strategies",
          "DDPStrategy FSDPStrategy DeepSpeedStrategy Strategy SingleDeviceStrategy ModelParallelStrategy "
          "DataParallelStrategy"),
    Group("Profilers", "class", "profilers",
          "PyTorchProfiler SimpleProfiler AdvancedProfiler PassThroughProfiler Profiler"),
    Group("`ModelCheckpoint(...)`", "argument", "ModelCheckpoint",
          "monitor save_top_k mode dirpath filename save_last every_n_epochs verbose save_weights_only "
          "auto_insert_metric_name save_on_train_epoch_end every_n_train_steps"),
    Group("`EarlyStopping(...)`", "argument", "EarlyStopping",
          "patience monitor mode verbose min_delta strict stopping_threshold check_finite"),
    Group("`LearningRateMonitor(...)`", "argument", "LearningRateMonitor", "logging_interval log_momentum"),
    Group("`ModelSummary(...)`", "argument", "ModelSummary", "max_depth"),
    Group("`TQDMProgressBar(...)`", "argument", "TQDMProgressBar", "refresh_rate"),
    Group("`RichProgressBar(...)`", "argument", "RichProgressBar", "theme"),
    Group("`TensorBoardLogger(...)`", "argument", "TensorBoardLogger",
          "name save_dir version default_hp_metric log_graph prefix"),
    Group("`CSVLogger(...)`", "argument", "CSVLogger", "name save_dir version flush_logs_every_n_steps"),
    Group("`WandbLogger(...)`", "argument", "WandbLogger",
          "project name id log_model save_dir offline experiment resume entity group job_type tags mode settings"),
    Group("`MLFlowLogger(...)`", "argument", "MLFlowLogger", "experiment_name run_name"),
    Group("`CometLogger(...)`", "argument", "CometLogger", "api_key project_name save_dir"),
    Group("`LightningCLI(...)`", "argument", "CLI",
          "seed_everything_default run model_class datamodule_class trainer_defaults save_config_kwargs "
          "parser_kwargs args"),
    Group("`DDPStrategy(...)`", "argument", "lightning.strategies.DDPStrategy",
          "find_unused_parameters process_group static_graph gradient_as_bucket_view process_group_backend "
          "start_method cluster_environment accelerator"),
    Group("`FSDPStrategy(...)`", "argument", "lightning.strategies.FSDPStrategy",
          "auto_wrap_policy cpu_offload limit_all_gathers state_dict_type activation_checkpointing_policy "
          "sharding_strategy activation_checkpointing"),
)  # fmt: skip

# The same thing under another name.
OWN_NAMES = {
    "LightningModule": "Module",
    "LightningDataModule": "DataModule",
    "LightningCLI": "CLI",
    "LightningArgumentParser": "cli.ArgumentParser",
    "SaveConfigCallback": "cli.SaveConfigCallback",
    "MisconfigurationException": "ConfigError",
    "DDPStrategy": "DDP",
    "FSDPStrategy": "FSDP",
    "DeepSpeedStrategy": "lightning.strategies.DeepSpeedStrategy",
    "ModelParallelStrategy": "lightning.strategies.ModelParallelStrategy",
    "SingleDeviceStrategy": "SingleDevice",
    "DataParallelStrategy": "DataParallel",
}

# Of versions long gone: an error names today's way.
FORMER_ARGUMENTS = (
    "gpus progress_bar_refresh_rate resume_from_checkpoint checkpoint_callback amp_backend distributed_backend "
    "weights_summary early_stop_callback max_nb_epochs amp_level auto_scale_batch_size auto_select_gpus tpu_cores "
    "auto_lr_find flush_logs_every_n_steps move_metrics_to_cpu multiple_trainloader_mode "
    "reload_dataloaders_every_epoch row_log_interval terminate_on_nan test_percent_check track_grad_norm"
)
FORMER_HOOKS = (
    "validation_epoch_end training_epoch_end test_epoch_end training_step_end validation_step_end on_epoch_end "
    "on_epoch_start on_batch_end on_pretrain_routine_start on_keyboard_interrupt on_init_start on_init_end "
    "configure_sharded_model"
)
