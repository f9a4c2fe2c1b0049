"""`CLI`, and `drivetrain fit`, `validate`, `test` and `predict`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from drivetrain import CSVLogger, EarlyStopping, Trainer
from drivetrain.cli import CLI, ArgumentParser, SaveConfigCallback
from drivetrain.cli.main import main
from tests.unit.cli.trained import Counter, Data, Net

HERE = "tests.unit.cli.trained"
STAGES = ("fit", "validate", "test", "predict")


def quiet(folder: Path) -> list[str]:
    values = {
        "accelerator": "cpu", "devices": 1, "max_epochs": 2, "enable_progress_bar": "false",
        "enable_model_summary": "false", "default_root_dir": folder,
    }  # fmt: skip
    return [f"--trainer.{name}={value}" for name, value in values.items()]


def words(folder: Path, stage: str = "fit", *more: str) -> list[str]:
    return [stage, f"--model={HERE}.Net", f"--data={HERE}.Data", *quiet(folder), *more]


class Parsed(CLI):
    """Parses, and makes nothing."""

    def instantiate_classes(self) -> None:
        """Nothing."""

    def _run(self, stage: str) -> None:
        """Nothing."""


# ---------------------------------------------------------------- run


def test_a_module_is_trained_by_its_path(tmp_path: Path) -> None:
    """Each training would need a script of its own that reads arguments."""
    more = ["--model.num_hidden=3", "--data.batch_size=8", "--trainer.callbacks+=EarlyStopping"]
    cli = CLI(args=words(tmp_path, "fit", *more, "--trainer.callbacks.monitor=val_loss", "--seed_everything=7"))
    assert (cli.trainer.global_step, cli.model.num_hidden, cli.datamodule.batch_size) == (4, 3, 8)
    assert isinstance(cli.trainer.early_stopping_callback, EarlyStopping)
    torch.manual_seed(7)
    assert cli.model.drawn == Net().drawn


@pytest.mark.parametrize(("stage", "printed"), [("validate", "val_loss"), ("test", "test_loss")])
def test_the_command_evaluates(stage: str, printed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A checkpoint could not be judged from the shell."""
    main(words(tmp_path, "fit"))
    (checkpoint,) = tmp_path.glob("drivetrain_logs/version_0/checkpoints/*.ckpt")
    capsys.readouterr()
    assert main(words(tmp_path, stage, f"--ckpt_path={checkpoint}")) == 0
    assert capsys.readouterr().out.startswith(f"{stage}: {printed} ")


def test_predictions_come_back(tmp_path: Path) -> None:
    """`predict` from a script of one's own would give nothing."""
    cli = CLI(Net, Data, args=["predict", *quiet(tmp_path)])
    assert [tuple(one.shape) for one in cli.result] == [(4, 4)] * 4


def test_the_working_directory_is_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--model my_module.Net` would be found by `python -m drivetrain` alone."""
    (tmp_path / "of_this_folder.py").write_text(f"from {HERE} import Net\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    assert main(["fit", "--model=of_this_folder.Net", f"--data={HERE}.Data", *quiet(tmp_path)]) == 0
    monkeypatch.delitem(sys.modules, "of_this_folder")


# ---------------------------------------------------------------- configuration


def test_the_configuration_of_a_run_is_kept_and_repeats_it(tmp_path: Path) -> None:
    """Nobody could say how a model was trained, or train it again."""
    first = CLI(args=words(tmp_path, "fit", "--model.num_hidden=3"))
    config = Path(first.trainer.log_dir or "") / "config.yaml"
    assert yaml.safe_load(config.read_text())["seed_everything"] == first.seed
    second = CLI(args=["fit", "--config", str(config)])
    assert (second.config.fit.model, second.seed) == (first.config.fit.model, first.seed)
    assert second.model.drawn == first.model.drawn
    for left, right in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(left, right)


def test_what_one_stage_wrote_every_stage_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The configuration of a training would have to be edited before it is tested."""
    for first in STAGES:
        more = {"fit": ["--resume=auto"], "predict": ["--return_predictions=false"]}.get(first, ["--verbose=false"])
        cli = CLI(args=words(tmp_path, first, *more))
        config = Path(cli.trainer.log_dir or "") / "config.yaml"
        for second in STAGES:
            assert Parsed(args=[second, "--config", str(config)]).config[second].model.class_path == f"{HERE}.Net"


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    stage=st.sampled_from(STAGES),
    trainer=st.fixed_dictionaries(
        {},
        optional={
            "max_steps": st.integers(-1, 9),
            "precision": st.sampled_from(["32-true", "bf16-mixed", None]),
            "limit_train_batches": st.one_of(st.none(), st.integers(1, 5), st.floats(0.125, 0.875)),
            "val_check_interval": st.sampled_from([None, 3, 0.5, "500 steps", "15 min"]),
            "check_val_every_n_epoch": st.sampled_from([None, 2]),
            "accumulate_grad_batches": st.sampled_from([1, 4, {0: 8, 4: 2}]),
            "callbacks": st.sampled_from(
                [None, [{"class_path": "EarlyStopping", "init_args": {"monitor": "x"}}, {"class_path": "Timer"}]]
            ),
            "logger": st.sampled_from(
                [None, False, True, [{"class_path": "CSVLogger", "init_args": {"save_dir": "x"}}]]
            ),
        },
    ),
    seed=st.sampled_from([False, 0, 1, 2**32 - 1]),
)
def test_a_configuration_that_is_read_back_is_the_same(stage: str, trainer: dict[str, Any], seed: Any) -> None:
    """A run would be repeated with something else than it was made with."""
    first = Parsed(Net, Data, args={"subcommand": stage, stage: {"trainer": trainer, "seed_everything": seed}})
    text = first.parser.dump(first.config[stage], skip_unset=False)
    second = Parsed(Net, Data, args={"subcommand": stage, stage: yaml.safe_load(text)})
    assert second.parser.dump(second.config[stage], skip_unset=False) == text
    assert second.config[stage].trainer.as_dict() == first.config[stage].trainer.as_dict()


def test_epochs_that_are_keys_stay_numbers(tmp_path: Path) -> None:
    """A schedule of window sizes would be refused when it comes from a file."""
    config = tmp_path / "a.yaml"
    config.write_text("trainer:\n  accumulate_grad_batches: {0: 2, 1: 4}\n")
    cli = CLI(Net, Data, args=["fit", "-c", str(config), *quiet(tmp_path)])
    assert cli.trainer.global_step == 3
    saved = Path(cli.trainer.log_dir or "") / "config.yaml"
    assert CLI(Net, Data, args=["fit", "-c", str(saved)]).trainer.global_step == 3


def test_another_runs_configuration_is_never_overwritten(tmp_path: Path) -> None:
    """A resumed run would lose how its first part was made."""
    logger = [f"--trainer.logger={name}" for name in ("CSVLogger",)] + [f"--trainer.logger.save_dir={tmp_path}"]
    more = [*logger, "--trainer.logger.version=one", "--seed_everything=1"]
    CLI(args=words(tmp_path, "fit", *more))
    folder = tmp_path / "drivetrain_logs" / "one"
    before = (folder / "config.yaml").read_text()
    CLI(args=words(tmp_path, "fit", *more))
    CLI(args=words(tmp_path, "fit", *more, "--model.num_hidden=3"))
    assert sorted(path.name for path in folder.glob("*.yaml")) == ["config.yaml", "config_1.yaml"]
    assert (folder / "config.yaml").read_text() == before
    assert yaml.safe_load((folder / "config_1.yaml").read_text())["model"]["init_args"]["num_hidden"] == 3
    CLI(args=words(tmp_path, "fit", *more, "--model.num_hidden=5"), save_config_kwargs={"overwrite": True})
    assert yaml.safe_load((folder / "config.yaml").read_text())["model"]["init_args"]["num_hidden"] == 5


def test_a_resumed_run_keeps_its_directory(tmp_path: Path) -> None:
    """The file of the configuration would keep the logger from going on where the run was."""
    CLI(args=words(tmp_path, "fit"))
    cli = CLI(args=words(tmp_path, "fit", "--resume=auto", "--trainer.max_epochs=3"))
    assert cli.trainer.global_step == 12
    assert [path.name for path in (tmp_path / "drivetrain_logs").iterdir()] == ["version_0"]
    assert sorted(path.name for path in tmp_path.rglob("config*.yaml")) == ["config.yaml", "config_1.yaml"]


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("--trainer.max_epoch=3", "Did you mean 'trainer.max_epochs'?"),
        ("--model.num_hiden=3", "Did you mean 'num_hidden'?"),
        ("--trainer.max_epochs=many", "Expected a int"),
        ("--trainer.callbacks+=EarlyStoping", "Did you mean 'EarlyStopping'?"),
        (f"--model={HERE}.Nett", "Did you mean 'Net'?"),
        ("--verbose=true", "fit has no argument --verbose."),
        ("--config=nowhere.yaml", "nowhere.yaml"),
    ],
)
def test_a_slip_is_answered_with_what_was_meant(
    wrong: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A page of usage, or a traceback, in which the one wrong word has to be found."""
    with pytest.raises(SystemExit) as end:
        main(words(tmp_path, "fit", wrong))
    error = capsys.readouterr().err
    assert end.value.code == 2
    assert "ConfigError: [command-line]" in error and message in error
    assert len(error.splitlines()) <= 3 and "Traceback" not in error


def test_an_unknown_key_of_a_file_is_answered_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A slip in a file would be ignored, or cost more time than one on the command line."""
    (tmp_path / "a.yaml").write_text("trainer:\n  max_epoch: 3\n")
    with pytest.raises(SystemExit) as end:
        CLI(Net, Data, args=["fit", "--config", str(tmp_path / "a.yaml")])
    assert end.value.code == 2 and "Did you mean 'trainer.max_epochs'?" in capsys.readouterr().err


@pytest.mark.parametrize(("args", "code"), [([], 2), (["fti"], 2), (["--help"], 0), (["fit", "--help"], 0)])
def test_a_script_says_what_it_understands(args: list[str], code: int, capsys: pytest.CaptureFixture[str]) -> None:
    """A stage that is forgotten would end in a traceback."""
    with pytest.raises(SystemExit) as end:
        CLI(Net, args=args)
    printed = capsys.readouterr()
    assert end.value.code == code
    assert "usage:" in (printed.out if code == 0 else printed.err)


# ---------------------------------------------------------------- of one's own


def test_a_command_line_of_ones_own(tmp_path: Path) -> None:
    """Links, defaults and callbacks of a project would have to be written into every file."""
    moments = []

    class Own(CLI):
        def add_arguments_to_parser(self, parser: ArgumentParser) -> None:
            parser.link_arguments("data.batch_size", "model.num_hidden")
            parser.add_lightning_class_args(Counter, "counter")
            parser.set_defaults({"counter.start": 100})

        def before_fit(self) -> None:
            moments.append(("before", self.trainer.global_step))

        def after_fit(self) -> None:
            moments.append(("after", self.trainer.global_step))

    cli = Own(
        Net, Data, args=["fit", *quiet(tmp_path), "--data.batch_size=8"],
        trainer_defaults={"max_steps": 3, "callbacks": [Counter(7)]}, seed_everything_default=5,
    )  # fmt: skip
    assert (cli.model.num_hidden, cli.seed, moments) == (8, 5, [("before", 0), ("after", 3)])
    assert [one.count for one in cli.trainer.callbacks if isinstance(one, Counter)] == [10, 103]


def test_nothing_runs_where_that_was_asked_for(tmp_path: Path) -> None:
    """A script could not use the objects of a configuration in its own way."""
    cli = CLI(Net, Data, run=False, args=quiet(tmp_path), save_config_callback=None, seed_everything_default=False)
    assert (cli.subcommand, cli.trainer.global_step, cli.seed) == (None, 0, None)
    assert not any(isinstance(one, SaveConfigCallback) for one in cli.trainer.callbacks)
    cli.trainer.fit(cli.model, datamodule=cli.datamodule)
    assert cli.trainer.global_step == 8 and not list(tmp_path.rglob("config.yaml"))


def test_a_subclass_can_be_named(tmp_path: Path) -> None:
    """Several models of one kind would need a script each."""
    cli = CLI(
        Net, Data, subclass_mode_model=True, run=False, args=["--model=Net", "--model.num_hidden=5", *quiet(tmp_path)]
    )
    assert cli.model.num_hidden == 5


@pytest.mark.filterwarnings("ignore:Net.configure_optimizers is not called")
def test_an_optimizer_and_its_schedule_are_chosen_outside_of_the_module(tmp_path: Path) -> None:
    """To compare optimizers, the module would have to be edited."""
    more = ["--optimizer=AdamW", "--optimizer.lr=0.5", "--lr_scheduler=ExponentialLR", "--lr_scheduler.gamma=0.5"]
    trainer = CLI(Net, Data, args=["fit", *quiet(tmp_path), *more]).trainer
    assert type(trainer.optimizers[0]) is torch.optim.AdamW
    assert trainer.optimizers[0].param_groups[0]["lr"] == 0.125


def test_a_trainer_of_ones_own(tmp_path: Path) -> None:
    """A subclass with arguments of its own could not be configured."""

    class Mine(Trainer):
        def __init__(self, *, mark: int = 0, logger: CSVLogger | bool | None = None, **options: Any) -> None:
            super().__init__(logger=logger, **options)
            self.mark = mark

    cli = CLI(Net, Data, trainer_class=Mine, args=["fit", *quiet(tmp_path), "--trainer.mark=3"])
    assert (cli.trainer.mark, cli.trainer.global_step) == (3, 8)  # type: ignore[attr-defined]


def test_a_strategy_is_named_by_its_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A strategy of one's own could be named in a file alone."""
    config = tmp_path / "a.yaml"
    config.write_text("trainer: {strategy: {class_path: drivetrain.DDP, init_args: {find_unused_parameters: true}}}\n")
    for more in (["--trainer.strategy=drivetrain.SingleDevice"], ["--config", str(config)]):
        cli = CLI(Net, Data, run=False, args=[*quiet(tmp_path), *more])
        assert type(cli.trainer.strategy).__name__ in ("SingleDevice", "DDP")
    assert cli.trainer.strategy.traits.name == "ddp"
    assert main(words(tmp_path, "fit", "--trainer.strategy=drivetrain.Nothing")) == 1
    assert "[command-line] drivetrain.Nothing is not a class" in capsys.readouterr().err
