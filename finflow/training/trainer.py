"""The whole job in order: data, offline phase, hand-over, online phase, held-out evaluation, report."""

from __future__ import annotations

import weakref
from pathlib import Path

import torch

from finflow.agent.learners.bcell import BCell
from finflow.agent.networks.policy import ExpertPolicy
from finflow.config import Config, as_config, hyperparameters
from finflow.errors import FinflowError
from finflow.guard.checkpoint_folder import BEST, LATEST, PRETRAINED
from finflow.offline.dataset import OfflineDataset
from finflow.training.checkpoints.checkpoint_reader import OFFLINE, ONLINE, read_checkpoint
from finflow.training.checkpoints.reference_policy import read_reference
from finflow.training.checkpoints.run_folder import RunFolder, new_run_folder
from finflow.training.data.training_data import OfflineData, TrainingData, choose_device, offline_data, prepare
from finflow.training.judging.agent_strategy import AGENT, Agents
from finflow.training.judging.evaluations import judge_agents
from finflow.training.judging.held_out import EvaluationOutcome
from finflow.training.logs.progress_display import ProgressDisplay
from finflow.training.logs.trackers import WandbRun, check_tracker
from finflow.training.phases.finetune import finetune
from finflow.training.phases.finetune_on_policy import finetune_on_policy
from finflow.training.phases.pretrain import pretrain, pretraining_in_parallel
from finflow.training.phases.stopping import request_stop, stopping_at_once
from finflow.training.phases.training_run import OnValidation, TrainingRun
from finflow.training.phases.training_state import read_start, start_online, starting_point

__all__ = ["EvaluationOutcome", "FinFlowTrainer", "new_run_folder", "request_stop"]


class FinFlowTrainer:
    """Trainer of one agent: from the data to the report on the test window.

    Parameters
    ----------
    resume : Path, optional
        A run folder, or its latest checkpoint: goes on in the same folder exactly where it stopped. Another
        checkpoint file branches into a new run folder.
    pretrained : Path, optional
        A checkpoint of the offline phase's end, to start the online phase from; or a checkpoint of either phase from
        another market, of as many assets as that had: its networks go on learning online in this one.
    training_data : TrainingData, optional
        The market to learn in, such as a fold's; that of the configuration when left out.
    on_validation : callable, optional
        Called after every validation; what it raises ends the training.

    Attributes
    ----------
    run_folder : Path
        Everything is written there.

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
        config: Config | Path | str,
        resume: Path | None = None,
        pretrained: Path | None = None,
        training_data: TrainingData | None = None,
        progress: ProgressDisplay | None = None,
        on_validation: OnValidation | None = None,
    ) -> None:
        self.config = config = as_config(config)
        check_tracker(config)
        torch.set_num_threads(config.train.threads)
        self.device = choose_device(config.train.device)
        checkpoint = read_start(config, resume, pretrained)
        self.training_data = prepare(config) if training_data is None else training_data
        self._start = starting_point(checkpoint, resume, self.training_data, self.device)
        before_online = self._start.moved or checkpoint is None or checkpoint.counters["phase"] == OFFLINE
        self._reference = read_reference(config, self.training_data, self.device) if before_online else None
        resumed = checkpoint.run_folder if checkpoint is not None and self._start.resumes else None
        self._folder = RunFolder(config.output.logs_dir, resumed)
        self.run_folder = self._folder.path
        self._progress = progress
        self._on_validation = on_validation
        self._offline_data: OfflineData | None = None
        self._run: TrainingRun | None = None
        self._remarks = self._start.remarks()
        for line in self._remarks:
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
            return pretrain(run)

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
        if self._reference is not None and run.state.bcell is not None and run.state.counters.vector_step == 0:
            run.state.bcell.reference = self._reference
        if self.config.objectives.workers and not self.config.online.on_policy:
            run.progress.note(
                f"objectives.workers: {self.config.online.algorithm} learns from every reward before its next "
                "decision, so rewards of this phase are computed in the process; on-policy algorithms need not wait"
            )
        with run.progress:
            result = (finetune_on_policy if self.config.online.on_policy else finetune)(run)
        run.writer.require_written()
        return result

    def train_offline(self) -> EvaluationOutcome:
        """The offline phase alone, and its report."""
        run = self._begin()
        self.train_iql()
        run.writer.save_as(PRETRAINED, run.snapshot())  # to start online phases from
        run.writer.require_written()
        return _evaluate(run)

    def train(self) -> EvaluationOutcome:
        """The whole pipeline, from wherever the state stands."""
        run = self._begin()
        with pretraining_in_parallel(run):
            self.train_iql()
        self.finetune()
        return _evaluate(run)

    def agents(self) -> Agents:
        """The agent of the best checkpoint; where there is none, of a latest one that is written now."""
        return _agents_of(self._begin())

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

    def discard_if_unused(self) -> None:
        """Remove the run folder, if it was made here and holds no checkpoint: there is nothing in it to go on from."""
        if self._folder.is_unused and self._run is not None:
            self._run.log.close()
        self._folder.discard_if_unused()

    def _begin(self) -> TrainingRun:
        if self._run is None:
            config, market, folder = self.config, self.training_data, self.run_folder
            data = self._data()
            state = self._start.make_state(len(data))
            log = self._start.open_log(folder)
            weakref.finalize(self, log.close)
            self._folder.describe(market, data, self.device)
            progress = self._progress or ProgressDisplay()
            progress.console_log = log.console
            if config.output.log_with == "wandb":
                log.trackers.append(WandbRun(config, folder, progress.message))
            for line in self._remarks:
                log.console(line)
            collected = self._offline_data if self._start.checkpoint is None else None
            opening = market.opening_lines(alone=self._progress is None)
            for note in (*opening, *(collected.lines() if collected is not None else [])):
                progress.note(note)
            if problem := self._start.bring_best(state, folder):
                progress.message(problem)
            self._run = TrainingRun(
                config, market, data, self.device, state, folder, log, progress, on_validation=self._on_validation
            )
        return self._run

    def _data(self) -> OfflineDataset:
        return self.collect_offline_data() if self._offline_data is None else self._offline_data.dataset

    def _hand_over(self, run: TrainingRun) -> None:
        if run.state.learner is None:
            raise FinflowError("there is nothing to hand over: the offline phase left no networks")
        run.writer.save_as(PRETRAINED, run.snapshot())  # to start online phases from
        learner = run.state.learner
        start_online(run.state, self.config, self.training_data, self.device).seed_from(learner)
        run.state.counters.phase, run.state.counters.phase_update = ONLINE, 0


def _agents_of(run: TrainingRun) -> Agents:
    path = run.checkpoints.path(BEST)
    if not path.is_file():
        run.checkpoints.save_as(LATEST, *run.snapshot())
        path = run.checkpoints.path(LATEST)
    return Agents.of([read_checkpoint(path)], run.config, run.device)


def _evaluate(run: TrainingRun) -> EvaluationOutcome:
    run.progress.message("judging the best checkpoint on the test window")
    with stopping_at_once():
        outcome = judge_agents(run.training_data, _agents_of(run), run.folder)
    run.log.result(hyperparameters(run.config), outcome.summary[AGENT])
    return outcome
