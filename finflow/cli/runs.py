"""Training and evaluation from the command line, and how Ctrl-C stops them."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from finflow.cli.configuration import evaluation_overrides
from finflow.cli.options import explicit, program
from finflow.cli.output import plain, show_audit, show_outcome
from finflow.errors import CheckpointError, FinflowError, OutputError

if TYPE_CHECKING:
    from types import FrameType

    from finflow.config import Config

#: What an evaluation may change without changing its figures.
_NOT_DECIDING = ("output.", "train.", "market.cache_dir", "market.use_cache", "env.episode_length")


def run_training(
    config: Config,
    *,
    resume: Path | None = None,
    pretrained: Path | None = None,
    dataset: Path | None = None,
    recollect: bool = False,
    offline_only: bool = False,
) -> None:
    """Train, and show the outcome. Ctrl-C stops between two updates, after writing `checkpoint_latest`.

    Parameters
    ----------
    config
        The resolved configuration.
    resume, pretrained
        Where to go on from, or the offline phase's checkpoint to start the online phase from.
    dataset
        The file of the offline dataset; one under `output.offline_dir` when left out.
    recollect
        Collect the offline dataset even where the file is there.
    offline_only
        Stop after the offline phase.

    Raises
    ------
    KeyboardInterrupt
        With a line that says how to go on.
    """
    from finflow.training.trainer import FinFlowTrainer, request_stop

    with stopping_between_updates(request_stop):
        trainer = FinFlowTrainer(config, resume=resume, pretrained=pretrained)
        try:
            if dataset is not None or recollect:
                trainer.collect_offline_data(dataset, recollect)
            outcome = trainer.train_offline() if offline_only else trainer.train()
        except KeyboardInterrupt:
            command = _how_to_go_on(trainer.run_folder)
            end = f"; to go on: {command}" if command else " before the first checkpoint: nothing to go on from"
            raise KeyboardInterrupt(f"stopped{end}") from None
        except OutputError as error:
            command = _how_to_go_on(trainer.run_folder)
            raise OutputError(f"{error}; then go on with: {command}" if command else str(error)) from error
        finally:
            trainer.discard_if_unused()
    show_outcome(outcome)


def run_evaluation(
    arguments: argparse.Namespace,
    checkpoint: Path,
    only: Sequence[str] | None = None,
    with_backtest: bool = False,
) -> None:
    """Judge a trained agent on the test window, and show the outcome.

    The report goes into the run's folder; that of a changed market or environment into a folder of its own there.

    Parameters
    ----------
    arguments
        With the options of `add_configuration_options`.
    checkpoint
        A run folder or checkpoint file.
    only
        Strategies to list beside the agent; all of them when left out.
    with_backtest
        Run the sweeps and the stress periods, whatever `evaluation.sweeps` says.
    """
    overrides = evaluation_overrides(arguments, checkpoint)
    from finflow.training.judging.held_out import evaluate_checkpoint

    folder = _evaluation_folder(checkpoint, overrides, elsewhere=explicit(arguments).get("output.logs_dir"))
    show_outcome(evaluate_checkpoint(checkpoint, overrides, folder, with_backtest), only)


def run_ensemble(arguments: argparse.Namespace, paths: Sequence[Path], with_backtest: bool = False) -> None:
    """Judge several agents that act as one, by the mean of their portfolios, and show the outcome.

    Parameters
    ----------
    arguments
        With the options of `add_configuration_options`.
    paths
        Checkpoint files, run folders, or folders of jobs, which stand for all of their agents.
    with_backtest
        Run the sweeps and the stress periods, whatever `evaluation.sweeps` says.
    """
    overrides = evaluation_overrides(arguments, paths[0])
    elsewhere = explicit(arguments).get("output.logs_dir")
    from finflow.training.checkpoints.run_resolver import resolve_run
    from finflow.training.judging.ensemble import evaluate_ensemble

    agents = [agent for path in paths for agent in resolve_run(path).find_agents()]
    if len(paths) == 1:
        folder = _evaluation_folder(paths[0], overrides, elsewhere) or paths[0]
        outcome = evaluate_ensemble(agents, overrides, folder, with_backtest=with_backtest)
    else:
        parent = resolve_run(paths[0]).folder.parent if elsewhere is None else Path(str(elsewhere))
        outcome = evaluate_ensemble(
            agents, overrides, parent / "ensembles", _part(overrides), with_backtest, own_folder=True
        )
    show_outcome(outcome)


def backtest_named(config: Config, names: Sequence[str]) -> None:
    """Judge a named strategy on the test window, beside any others that are named, and show the outcome."""
    sys.path.append(str(Path.cwd()))  # a user's own strategy lies where the user is
    from finflow.training.judging.held_out import backtest_strategies

    show_outcome(backtest_strategies(config, names))


def run_audit(config: Config, strategies: Sequence[str], checkpoint: Path | None) -> None:
    """Audit a configuration, with strategies of a user's own and an agent if given, and show what was found.

    Raises
    ------
    FinflowError
        One line that names the component that looks ahead.
    """
    sys.path.append(str(Path.cwd()))  # a user's own strategy or feature lies where the user is
    from finflow.training.audit.configuration_audit import audit_configuration

    outcome = audit_configuration(config, strategies, checkpoint)
    show_audit(outcome.findings)
    if outcome.complaint is not None:
        raise FinflowError(outcome.complaint)


def run_inspection(path: Path) -> None:
    """Show what a run's checkpoints hold.

    Raises
    ------
    CheckpointError
        One line that names those that are not whole.
    """
    from finflow.training.checkpoints.inspection import inspect_checkpoints

    found = inspect_checkpoints(path)
    print("\n".join(line for inspection in found for line in inspection.lines()))
    bad = [inspection.path.name for inspection in found if inspection.complaint is not None]
    if bad:
        others = "use another one" if len(bad) < len(found) else "start a new run"
        raise CheckpointError(f"{len(bad)} of {len(found)} checkpoints cannot be used: {', '.join(bad)}; {others}")


def _evaluation_folder(checkpoint: Path, overrides: Mapping[str, object], elsewhere: object) -> Path | None:
    """Where the report goes; None for the run's own folder, whose report no other evaluation may replace."""
    from finflow.training.checkpoints.run_resolver import resolve_run

    run = resolve_run(checkpoint).folder
    folder = None if elsewhere is None else Path(str(elsewhere)) / run.name
    part = _part(overrides)
    return folder if part is None else (folder or run) / part


def _part(overrides: Mapping[str, object]) -> Path | None:
    """Where, in a folder, an evaluation under other conditions goes; None under the same."""
    deciding = {key: plain(value) for key, value in sorted(overrides.items()) if not key.startswith(_NOT_DECIDING)}
    if not deciding:
        return None
    return Path("evaluations") / hashlib.sha256(json.dumps(deciding).encode()).hexdigest()[:8]


@contextmanager
def stopping_between_updates(request_stop: Callable[[], None]) -> Iterator[None]:
    """Let the first Ctrl-C (or SIGTERM) ask for a stop at the next update, and the second stop at once.

    Only the main thread can do that; in others nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        request_stop()
        with suppress(OSError):  # not print, in the middle of which a signal may arrive
            os.write(2, b"\nstopping after the next update; once more to stop at once\n")

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _how_to_go_on(run_folder: Path) -> str | None:
    """The command that resumes a run; None for one without a checkpoint."""
    if not any(run_folder.glob("models/checkpoint_latest*")):
        return None
    command = program() if program() == "finflow" else "python main.py"
    return f"{command} --mode train --resume {shlex.quote(str(run_folder))}"
