"""The whole job: data, offline phase, hand-over, online phase, held-out evaluation, report."""

from __future__ import annotations

import shutil
import weakref
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import torch

from finflow.agent.learners.bcell import BCell
from finflow.agent.networks.policy import ExpertPolicy
from finflow.config import Config, dump_run
from finflow.errors import CheckpointError, FinflowError, OutputError
from finflow.files import check_writable, missing_folders, reason, remove_empty, write_atomically
from finflow.guard.checkpoint_folder import BEST, LATEST, MODELS, PRETRAINED, CheckpointFolder, numbered
from finflow.guard.state_capture import restore
from finflow.offline.dataset import OfflineDataset, card_file
from finflow.training.checkpoints.checkpoint_reader import (
    Checkpoint,
    carry_over,
    check_same_configuration,
    check_same_features,
    read_checkpoint,
    shape_of,
)
from finflow.training.checkpoints.manifest import MANIFEST, manifest_text
from finflow.training.checkpoints.run_resolver import CONFIG
from finflow.training.checkpoints.runtime import changed, runtime
from finflow.training.data.offline_data import CARD, OfflineData, offline_data
from finflow.training.data.training_data import TrainingData, choose_device, prepare
from finflow.training.judging.held_out import Outcome, evaluate_agent
from finflow.training.logs.progress_display import ProgressDisplay
from finflow.training.logs.run_log import METRICS, RunLog
from finflow.training.phases.finetune import finetune
from finflow.training.phases.pretrain import pretrain
from finflow.training.phases.stopping import request_stop, stopping_at_once
from finflow.training.phases.training_run import OnValidation, TrainingRun
from finflow.training.phases.training_state import OFFLINE, ONLINE, TrainingState, start_offline, start_online

__all__ = ["FinFlowTrainer", "Outcome", "request_stop"]

GAPS_SHOWN = 5  # assets with gaps that are named


class FinFlowTrainer:
    """Trains an agent and tells what it is worth.

    Parameters
    ----------
    config : Config
    resume : Path, optional
        A run folder, or its latest checkpoint: goes on in the same folder exactly where it stopped. Another
        checkpoint file branches into a new run folder.
    pretrained : Path, optional
        A checkpoint of the offline phase's end, to start the online phase from; or a checkpoint of either phase from
        another market, of as many assets as that had: its networks go on learning online in this one.
    training_data : TrainingData, optional
        The market to learn in, such as a fold's; that of the configuration when left out.
    progress : ProgressDisplay, optional
        Shows how far it is; one on standard output when left out.
    on_validation : callable, optional
        Is told of every validation; what it raises ends the training.

    Attributes
    ----------
    run_folder : Path
        Where everything is written.

    Raises
    ------
    FinflowError
        If the market, the checkpoint or the output folder cannot be used; nothing has been written then.

    Notes
    -----
    Files appear in the run folder when the training begins: after the data were found or collected, and the checkpoint
    was found to fit.
    """

    def __init__(
        self,
        config: Config,
        resume: Path | None = None,
        pretrained: Path | None = None,
        training_data: TrainingData | None = None,
        progress: ProgressDisplay | None = None,
        on_validation: OnValidation | None = None,
    ) -> None:
        self.config = config
        torch.set_num_threads(config.train.threads)
        self.device = choose_device(config.train.device)
        checkpoint = self._read(resume or pretrained, exact=pretrained is None)
        self.training_data = prepare(config) if training_data is None else training_data
        self._moves = False
        if checkpoint is not None:
            self._moves = self._is_elsewhere(checkpoint, may_move=pretrained is not None)
            check_same_features(checkpoint, self.training_data.features)
        self._offline_data: OfflineData | None = None
        self._start_from = checkpoint
        self._branches = resume is not None
        self._run: TrainingRun | None = None
        self._log: RunLog | None = None
        self._progress = progress
        self._on_validation = on_validation
        self._made: list[Path] = []
        if resume is not None and checkpoint is not None and _goes_on_in_place(resume, checkpoint.path):
            self.run_folder, self._in_place = checkpoint.run_folder, True
        else:
            self.run_folder, self._in_place = self._new_folder(), False
        try:
            check_writable(self.run_folder / MODELS)
        except BaseException:
            self.discard_if_unused()
            raise
        self._warnings = [] if checkpoint is None else self._remarks(checkpoint)
        for line in self._warnings:
            print(line)

    def collect_offline_data(self, path: Path | None = None, recollect: bool = False) -> OfflineDataset:
        """Collect the behaviour data, or reuse what was collected by the same code from the same market.

        Parameters
        ----------
        path : Path, optional
            The npz file; one named after what made it, under ``output.offline_dir``, when left out. A file given
            here that was made by something else is refused, not overwritten.
        recollect : bool
            Collect even where the file is there, and write over it.
        """
        self._offline_data = offline_data(self.config, self.training_data, path, recollect)
        return self._offline_data.dataset

    def train_iql(self) -> dict[str, float]:
        """Run the offline phase to its end.

        Returns
        -------
        dict
            ``v_loss``, ``q_loss``, ``policy_loss`` and others of the last update, and the validation metrics; empty
            where the phase was already over.
        """
        run = self._begin()
        if run.state.counters.phase != OFFLINE:
            return {}
        with run.progress:
            return pretrain(run, self._data())

    def finetune(self) -> dict[str, float]:
        """Hand over from IQL, if that has not happened yet, and run the online phase to its end.

        Returns
        -------
        dict
            Losses of the last update, and the validation metrics; empty where the phase was already over.
        """
        run = self._begin()
        if run.state.counters.phase == OFFLINE:
            self._hand_over(run)
        with run.progress:
            result = finetune(run, self._data())
        run.writer.require_written()
        return result

    def train_offline(self) -> Outcome:
        """The offline phase alone, and its report."""
        run = self._begin()
        self.train_iql()
        self._keep_pretrained(run)
        run.writer.require_written()
        return self._evaluate(run)

    def train(self) -> Outcome:
        """The whole pipeline, from wherever the state stands."""
        run = self._begin()
        self.train_iql()
        self.finetune()
        return self._evaluate(run)

    @property
    def agent(self) -> BCell:
        """The B-Cell agent; there is none before the hand-over."""
        bcell = self._begin().state.bcell
        if bcell is None:
            raise FinflowError("there is no B-Cell agent before the offline phase has ended; call finetune() first")
        return bcell

    @property
    def policy(self) -> ExpertPolicy:
        """The policy as it stands, in either phase."""
        state = self._begin().state
        policy = state.bcell.deployed if state.bcell is not None else state.learner.policy if state.learner else None
        if not isinstance(policy, ExpertPolicy):
            raise FinflowError("this training has no policy for portfolios")
        return policy

    def _begin(self) -> TrainingRun:
        """The run, made when it is first needed."""
        if self._run is None:
            data, checkpoint = self._data(), self._start_from
            state = start_offline(self.config, self.training_data, self.device, len(data))
            if checkpoint is not None and self._moves:
                self._carry_over(state, checkpoint)
            elif checkpoint is not None:
                self._restore(state, checkpoint)
            self._log = log = self._open_log(checkpoint)
            weakref.finalize(self, log.close)
            CheckpointFolder(self.run_folder / MODELS).sweep()
            write_atomically(self.run_folder / CONFIG, dump_run(self.config))
            write_atomically(self.run_folder / CARD, card_file(data))
            write_atomically(self.run_folder / MANIFEST, manifest_text(self.training_data, self.device))
            progress = self._progress or ProgressDisplay()
            progress.write_to(log.console)
            for line in self._warnings:
                log.console(line)
            if unlisted := self.training_data.unlisted():
                progress.note(gaps_line(unlisted))
            if checkpoint is not None:
                self._bring_best(state, checkpoint, progress)
            if checkpoint is None and self._offline_data is not None:
                for line in self._offline_data.lines():
                    progress.note(line)
            self._run = TrainingRun(
                self.config,
                self.training_data,
                self.device,
                state,
                self.run_folder,
                log,
                progress,
                on_validation=self._on_validation,
            )
        return self._run

    def discard_if_unused(self) -> None:
        """Remove the run folder, if it was made here and holds no checkpoint: there is nothing in it to go on from."""
        if not self._made or any((self.run_folder / MODELS).glob("checkpoint_*")):
            return
        if self._log is not None:
            self._log.close()
        shutil.rmtree(self.run_folder, ignore_errors=True)
        remove_empty(self._made)
        self._made = []

    def _new_folder(self) -> Path:
        """A new run folder; what is made for it is noted."""
        missing = missing_folders(self.config.output.logs_dir)
        folder = new_run_folder(self.config.output.logs_dir)
        self._made = [folder, *missing]
        return folder

    def _restore(self, state: TrainingState, checkpoint: Checkpoint) -> None:
        """Put a checkpoint's state into the one just made."""
        if checkpoint.counters["phase"] == ONLINE:
            state.bcell, state.world = start_online(self.config, self.training_data, self.device)
            state.learner = state.behaviour_returns = None
        try:
            if shape_of(checkpoint.facts) != self.training_data.shape:
                raise CheckpointError("its networks have other sizes")
            restore(state, checkpoint.tensors, checkpoint.facts["training"])
        except CheckpointError as error:
            raise CheckpointError(
                f"{checkpoint.path} is of another configuration or another version of finflow: {error}; start a new "
                "run, or use the configuration and the finflow that it was written with"
            ) from error

    def _is_elsewhere(self, checkpoint: Checkpoint, may_move: bool) -> bool:
        """Whether a checkpoint is of another market, to which its networks alone can be carried over.

        Raises
        ------
        CheckpointError
            If it is and may not be, or if there is no online phase to start from it.
        """
        if checkpoint.facts["market"] != self.training_data.process.panel.sha256:
            if not may_move:
                raise CheckpointError(
                    f"{checkpoint.path} was trained on other prices than the configured market has now"
                )
            return True
        if may_move and checkpoint.counters["phase"] != OFFLINE:
            raise CheckpointError(f"{checkpoint.path} is from the online phase; give one of the offline phase's end")
        return False

    def _carry_over(self, state: TrainingState, checkpoint: Checkpoint) -> None:
        """Begin the online phase with the networks of another market's checkpoint; all else begins afresh."""
        if shape_of(checkpoint.facts) != self.training_data.shape:
            raise CheckpointError(
                f"the networks in {checkpoint.path} have other sizes than configured; leave bcell.hidden_dim as it was"
            )
        bcell, world = start_online(self.config, self.training_data, self.device)
        carry_over(checkpoint, bcell)
        state.learner = state.behaviour_returns = None
        state.bcell, state.world = bcell, world
        state.counters.phase = ONLINE

    def _remarks(self, checkpoint: Checkpoint) -> list[str]:
        """What is to be said of a checkpoint that is gone on from: damage, another market, another runtime."""
        moved = None
        if self._moves:
            moved = (
                f"{checkpoint.path} was trained on other prices: its networks go on learning online in this market; "
                "optimisers, replay and counters begin afresh"
            )
        remarks = (checkpoint.warning, moved, changed(checkpoint.facts["runtime"], runtime(self.device)))
        return [remark for remark in remarks if remark is not None]

    def _bring_best(self, state: TrainingState, checkpoint: Checkpoint, progress: ProgressDisplay) -> None:
        """See that the best checkpoint so far is in this run's folder; where it is gone, the best is sought afresh."""
        update = state.counters.best_update
        if update is None:
            return
        source, target = (CheckpointFolder(run / MODELS) for run in (checkpoint.run_folder, self.run_folder))
        in_place = source.folder.resolve() == target.folder.resolve()
        problem = f"{source.path(BEST)} is not there"
        for path in (source.path(BEST), source.path(numbered(update))):
            if not path.is_file():
                continue
            try:
                found = read_checkpoint(path).counters["update"]
            except CheckpointError as error:
                problem = str(error)
                continue
            if in_place and path == source.path(BEST) and found >= update:
                return  # one found after the checkpoint will be found again
            if found == update:
                write_atomically(target.path(BEST), path.read_bytes())
                return
        state.counters.best_score = state.counters.best_update = None
        if in_place:
            progress.message(f"{problem}; the best checkpoint is sought afresh from here")

    def _data(self) -> OfflineDataset:
        """The behaviour data."""
        return self.collect_offline_data() if self._offline_data is None else self._offline_data.dataset

    def _hand_over(self, run: TrainingRun) -> None:
        """B-Cell takes over from the offline phase, with nothing lost."""
        if run.state.learner is None:
            raise FinflowError("there is nothing to hand over: the offline phase left no networks")
        self._keep_pretrained(run)
        bcell, world = start_online(self.config, self.training_data, self.device)
        bcell.seed_from(run.state.learner)
        run.state.learner = run.state.behaviour_returns = None
        run.state.bcell, run.state.world = bcell, world
        run.state.counters.phase, run.state.counters.phase_update = ONLINE, 0

    def _keep_pretrained(self, run: TrainingRun) -> None:
        """Write the offline phase's end under a name of its own, to start online phases from."""
        run.writer.save_as(PRETRAINED, run.snapshot())

    def _evaluate(self, run: TrainingRun) -> Outcome:
        """Judge the best checkpoint on the test window; without one, the state as it stands."""
        path = run.checkpoints.path(BEST)
        if not path.is_file():
            run.checkpoints.save_as(LATEST, *run.snapshot())
            path = run.checkpoints.path(LATEST)
        run.progress.message("judging the best checkpoint on the test window")
        with stopping_at_once():
            return evaluate_agent(self.training_data, read_checkpoint(path), self.device, self.run_folder)

    def _read(self, path: Path | None, exact: bool) -> Checkpoint | None:
        """Read the checkpoint to start from, if there is one, and see that it fits."""
        if path is None:
            return None
        checkpoint = read_checkpoint(path)
        if exact:
            check_same_configuration(checkpoint, self.config)
        return checkpoint

    def _open_log(self, checkpoint: Checkpoint | None) -> RunLog:
        """The run's log, cut off at the checkpoint where a run goes on or branches."""
        if checkpoint is None:
            return RunLog(self.run_folder)
        position = checkpoint.facts["log"]
        if self._in_place:
            return RunLog(self.run_folder, resume_at=position)
        source = checkpoint.run_folder
        if not self._branches or not (source / METRICS).is_file():
            return RunLog(self.run_folder)
        return RunLog(self.run_folder, resume_at=position, branch_from=source)


def gaps_line(unlisted: Sequence[str]) -> str:
    """What is to be known before an agent learns where assets list late or end early."""
    shown = ", ".join(unlisted[:GAPS_SHOWN]) + (", ..." if len(unlisted) > GAPS_SHOWN else "")
    count = "1 asset is" if len(unlisted) == 1 else f"{len(unlisted)} assets are"
    return (
        f"warning: {count} not listed throughout the training window ({shown}), and learning on a market with gaps is "
        "not ready (docs/limits.md): set market.start so that all assets are listed throughout, or leave assets out"
    )


def new_run_folder(logs: Path) -> Path:
    """A folder named after now, ``YYYYMMDD_HHMMSS``; numbered where there is one already.

    Raises
    ------
    OutputError
        If it cannot be made.
    """
    name = datetime.now().strftime("%Y%m%d_%H%M%S")
    for suffix in ("", *(f"_{number}" for number in range(2, 1000))):
        folder = logs / f"{name}{suffix}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError as error:
            if folder.is_dir():
                continue
            raise OutputError(f"cannot make {folder}: {reason(error, 'output.logs_dir')}") from error
        except OSError as error:
            raise OutputError(f"cannot make {folder}: {reason(error, 'output.logs_dir')}") from error
        return folder
    raise OutputError(f"cannot make a new run folder in {logs}")


def _goes_on_in_place(given: Path, found: Path) -> bool:
    """Whether a run goes on in its own folder: a run folder was given, or its latest checkpoint."""
    return given.is_dir() or found.name == CheckpointFolder(found.parent).path(LATEST).name
