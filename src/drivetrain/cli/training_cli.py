"""`fit`, `validate`, `test` and `predict` from a command line and YAML files."""

from __future__ import annotations

import hashlib
import os
import random
import sys
from argparse import SUPPRESS
from collections.abc import Mapping, Sequence
from typing import Any

from drivetrain.base.rng import seed_everything
from drivetrain.cli.argument_parser import ArgumentParser, Namespace, import_named_classes
from drivetrain.cli.configured_optimizers import make_object, use_configured
from drivetrain.cli.save_config import SaveConfigCallback
from drivetrain.cli.stages import STAGES
from drivetrain.cluster.read_cluster import current_cluster
from drivetrain.launch.worker_env import env_for_a_while
from drivetrain.loop.callback import Callback
from drivetrain.loop.data_module import DataModule
from drivetrain.loop.module import Module
from drivetrain.trainer.trainer import Trainer

ArgsType = Sequence[str] | Mapping[str, Any] | Namespace | None

_OBJECTS = {"self", "model", "train_dataloaders", "val_dataloaders", "dataloaders", "datamodule"}
_SEED = "DRIVETRAIN_SEED"


class CLI:
    """A training from a command line: it parses, makes the trainer, the module and the data, and runs a stage.

    `python main.py fit --config run.yaml --trainer.max_epochs 5`: later arguments win. The configuration of a run is
    written to its log directory, and is accepted by `--config` of every stage.

    Args:
        model_class: The module's class; by default any, by its path: `--model my_package.MyModule`.
        datamodule_class: The datamodule's class; by default any, or none: `--data my_package.MyData`.
        save_config_callback: Writes the configuration; `None` for nobody.
        save_config_kwargs: Its further arguments.
        trainer_class: A `Trainer`.
        trainer_defaults: Arguments of the trainer, where the command line has none. Callbacks are always added.
        seed_everything_default: A seed; `True` draws one, `False` leaves the random state as it is.
        parser_kwargs: Further arguments of the parser; or for each stage such arguments.
        parser_class: An `ArgumentParser`.
        subclass_mode_model: `model_class` is a base: `--model` names the class.
        subclass_mode_data: Likewise for `datamodule_class`.
        args: Instead of those of the process: words, or a mapping (with `"subcommand"` naming the stage).
        run: False makes the objects and runs nothing; the command line has no stage then.
        auto_configure_optimizers: Take `--optimizer` and `--lr_scheduler` instead of `configure_optimizers`.

    Attributes:
        subcommand: The stage; `None` with `run=False`.
        config: What was asked for, as plain values; with a stage under its name.
        config_init: The same with objects.
        trainer: The trainer.
        model: The module.
        datamodule: The datamodule, or `None`.
        result: What the trainer's method returned.
    """

    def __init__(
        self,
        model_class: type[Module] | None = None,
        datamodule_class: type[DataModule] | None = None,
        save_config_callback: type[SaveConfigCallback] | None = SaveConfigCallback,
        save_config_kwargs: Mapping[str, Any] | None = None,
        trainer_class: type[Trainer] = Trainer,
        trainer_defaults: Mapping[str, Any] | None = None,
        seed_everything_default: bool | int = True,
        parser_kwargs: Mapping[str, Any] | None = None,
        parser_class: type[ArgumentParser] = ArgumentParser,
        subclass_mode_model: bool = False,
        subclass_mode_data: bool = False,
        args: ArgsType = None,
        run: bool = True,
        auto_configure_optimizers: bool = True,
    ) -> None:
        self.model_class, self.datamodule_class = model_class or Module, datamodule_class or DataModule
        self.subclass_mode_model = subclass_mode_model or model_class is None
        self.subclass_mode_data = subclass_mode_data or datamodule_class is None
        self.needs_data = datamodule_class is not None
        self.save_config_callback, self.save_config_kwargs = save_config_callback, dict(save_config_kwargs or {})
        self.trainer_class, self.trainer_defaults = trainer_class, dict(trainer_defaults or {})
        self.seed_everything_default = seed_everything_default
        self.auto_configure_optimizers = auto_configure_optimizers
        self.subcommand: str | None
        self.subcommand, given = _split(sys.argv[1:] if args is None else args) if run else (None, args)
        import_named_classes()
        own = dict(parser_kwargs or {})
        self.parser = parser_class(
            **{
                "prog": _program(self.subcommand),
                **own.get(self.subcommand or "", {}),
                **{name: one for name, one in own.items() if name not in STAGES},
            }
        )
        self._add_arguments()
        config = self._parse(given)
        self.seed = _seed(config.get("seed_everything"))
        if self.seed is not None:
            config["seed_everything"] = self.seed
        self._stage_config = config
        self.config = self._of_stage(config)
        self.before_instantiate_classes()
        self.instantiate_classes()
        self.result: Any = None
        if self.subcommand is not None:
            self._run(self.subcommand)

    # ---------------------------------------------------------------- to override

    def add_arguments_to_parser(self, parser: ArgumentParser) -> None:
        """Add arguments, defaults and links: `parser.link_arguments("data.batch_size", "model.batch_size")`."""

    def before_instantiate_classes(self) -> None:
        """`self.config` is complete, and nothing is made yet."""

    # ---------------------------------------------------------------- parse

    def _add_arguments(self) -> None:
        parser = self.parser
        parser.add_argument(
            "-c", "--config", action="config", help="a YAML file with the arguments; may be given several times"
        )
        parser.add_argument(
            "--seed_everything",
            type=bool | int,
            default=self.seed_everything_default,
            help="a seed; true draws one, false leaves the random state as it is",
        )
        parser.add_lightning_class_args(self.trainer_class, "trainer")
        parser.add_lightning_class_args(self.model_class, "model", subclass_mode=self.subclass_mode_model)
        parser.add_lightning_class_args(
            self.datamodule_class, "data", subclass_mode=self.subclass_mode_data, required=self.needs_data
        )
        if self.subcommand is not None:
            self._add_stage_arguments(self.subcommand)
        defaults = {f"trainer.{name}": one for name, one in self.trainer_defaults.items() if name != "callbacks"}
        parser.set_defaults(defaults)
        self.add_arguments_to_parser(parser)
        if self.auto_configure_optimizers:
            known = {action.dest for action in parser._actions}
            if "optimizer" not in known:
                parser.add_optimizer_args()
            if "lr_scheduler" not in known:
                parser.add_lr_scheduler_args()

    def _add_stage_arguments(self, stage: str) -> None:
        """Those of the trainer's method; and of the others: each stage reads the file that another one wrote."""
        own = self.parser.add_method_arguments(self.trainer_class, stage, skip=set(_OBJECTS), fail_untyped=False)
        self.method_arguments = list(own)
        self._foreign: set[str] = set()
        for other in STAGES:
            given = ArgumentParser().add_method_arguments(
                self.trainer_class, other, skip=set(_OBJECTS), fail_untyped=False
            )
            for name in given:
                if name not in own and name not in self._foreign:
                    self._foreign.add(name)
                    self.parser.add_argument(f"--{name}", type=Any, default=None, help=SUPPRESS)

    def _parse(self, given: Any) -> Any:
        if isinstance(given, (Mapping, Namespace)):
            return self.parser.parse_object(given)
        words = [str(word) for word in (sys.argv[1:] if given is None else given)]
        for name in self._foreign if self.subcommand is not None else ():
            if any(word.split("=")[0] == f"--{name}" for word in words):
                self.parser.error(f"{self.subcommand} has no argument --{name}.")
        return self.parser.parse_args(words)

    # ---------------------------------------------------------------- make

    def instantiate_classes(self) -> None:
        """Make what the configuration names."""
        made = self.parser.instantiate(self._stage_config)
        self.config_init = self._of_stage(made)
        self._made = made
        self.model: Any = made["model"]
        self.datamodule: Any = made.get("data")
        self.trainer = self.instantiate_trainer(**dict(made["trainer"]))
        if self.auto_configure_optimizers:
            use_configured(self.model, made.get("optimizer"), made.get("lr_scheduler"))

    def _of_stage(self, config: Any) -> Any:
        if self.subcommand is None:
            return config
        both = Namespace({self.subcommand: config})  # type: ignore[no-untyped-call]
        both["subcommand"] = self.subcommand
        return both

    def instantiate_trainer(self, *, callbacks: Any = None, **options: Any) -> Trainer:
        """The trainer, with the callbacks of defaults and groups, and the one that writes the configuration."""
        everyone = [*_as_list(callbacks), *_as_list(self.trainer_defaults.get("callbacks"))]
        everyone += [self._made[key] for key in self.parser.callback_keys if self._made.get(key) is not None]
        if self.save_config_callback is not None and not options.get("fast_dev_run"):
            config = self._stage_config
            everyone.append(self.save_config_callback(self.parser, config, **self.save_config_kwargs))
        strategy = options.get("strategy")
        if isinstance(strategy, str) and "." in strategy:
            options["strategy"] = make_object({"class_path": strategy})
        return self.trainer_class(callbacks=everyone, **options)

    # ---------------------------------------------------------------- run

    def _run(self, stage: str) -> None:
        given = {name: self._made[name] for name in self.method_arguments}
        if self.datamodule is not None:
            given["datamodule"] = self.datamodule
        for moment in ("before", stage, "after"):
            if moment != stage:
                getattr(self, f"{moment}_{stage}", _nothing)()
                continue
            # Ranks that are started now run all of this again, with the same seed.
            with env_for_a_while({} if self.seed is None else {_SEED: str(self.seed)}):
                self.result = getattr(self.trainer, stage)(self.model, **given)


def _split(args: Any) -> tuple[str, Any]:
    """The stage, and what it is given."""
    if isinstance(args, (Mapping, Namespace)):
        stage = args.get("subcommand")
        if stage in STAGES:
            return stage, args.get(stage) or {}
        rest: list[str] = [] if stage is None else [str(stage)]
    else:
        rest = [str(word) for word in args]
        if rest and rest[0] in STAGES:
            return rest[0], rest[1:]
    lines = "".join(f"    {name:<10}{text}\n" for name, text in STAGES.items())
    usage = f"usage: {_program(None)} STAGE [--config FILE] [--model CLASS] ...\n\n{lines}"
    if rest[:1] in (["-h"], ["--help"]):
        print(f"{usage}\nThe arguments of a stage: {_program('fit')} --help")
        raise SystemExit(0)
    print(
        f"{usage}\n{_program(None)}: {f'{rest[0]!r} is not a stage.' if rest else 'no stage was given.'}",
        file=sys.stderr,
    )
    raise SystemExit(2)


def _program(stage: str | None) -> str:
    name = os.path.basename(sys.argv[0]) or "drivetrain"
    return f"{name} {stage}" if stage else name


def _seed(asked: Any) -> int | None:
    """The seed of this process: as asked for, or one that was drawn, the same on all ranks."""
    if asked is None or asked is False:
        return None
    cluster = current_cluster()
    if asked is True:
        if cluster.launched_by == "drivetrain" and _SEED in os.environ:
            asked = int(os.environ[_SEED])
        elif cluster.is_launched:
            shared = f"{cluster.run_id} {cluster.main_address} {cluster.main_port}"
            asked = int.from_bytes(hashlib.sha256(shared.encode()).digest()[:4], "big")
        else:
            asked = random.SystemRandom().randint(0, 2**32 - 1)
    return seed_everything(asked, verbose=cluster.rank == 0)


def _as_list(callbacks: Callback | Sequence[Callback] | None) -> list[Callback]:
    if callbacks is None:
        return []
    return list(callbacks) if isinstance(callbacks, (list, tuple)) else [callbacks]  # type: ignore[list-item]


def _nothing() -> None:
    """Nobody listens."""
