"""One trial of a study: a configuration trained on every fold with every seed, and evaluated out of sample.

Nothing here can read the test window: the panel is cut before it when it is loaded, so that features, rewards and
strategies have no bar of it, and the training data have no test window.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from finflow.arrays import FloatArray
from finflow.config import RANKING_OBJECTIVES, Config, EvaluationConfig, TuneConfig, replace_values
from finflow.env.decision_process import DecisionProcess
from finflow.errors import EvidenceError, FinflowError
from finflow.evaluation.analysis.decision_quality import Ranking, rank_run
from finflow.evaluation.backtest import BASELINE, Backtest, run_backtests
from finflow.evaluation.statistics.metrics import summarise
from finflow.evaluation.statistics.significance_tests import track_of
from finflow.experiments.jobs.walk_forward import Fold, folds_of, history_of, last_fold, load_before_test
from finflow.experiments.task_progress import NullStream
from finflow.market.features.feature_set import Features
from finflow.market.panel import MarketPanel
from finflow.strategies.classical import named_strategy
from finflow.training.checkpoints.checkpoint_reader import ONLINE
from finflow.training.data.training_data import TrainingData, features_on, process_on
from finflow.training.logs.progress_display import ProgressDisplay
from finflow.training.phases.training_run import Validation
from finflow.training.trainer import FinFlowTrainer

LEVELS = 10
"""Points of each training at which a trial may be stopped: tenths of it, half of them offline and half online."""
DATA_KEYS = ("objectives.", "env.", "train.offline_episodes")
"""Keys on which the behaviour data depend: where they are searched, every trial collects its own."""

DEVIATIONS = 0.5  # between trainings, less which their mean counts
NEVER = 10**9

Report = Callable[[int, tuple[float, ...], int], None]
"""Takes a level, from 1, the objectives so far and the updates made; what it raises ends the trial."""


@dataclass(frozen=True)
class TrialContext:
    """Market, folds and seeds that every trial of a study is trained and evaluated on."""

    config: Config
    panel: MarketPanel
    folds: tuple[Fold, ...]
    seeds: tuple[int, ...]
    searched: tuple[str, ...]
    tries: int
    features: dict[tuple[int, str], Features] = field(default_factory=dict)
    """By fold, of its training and of all bars: computed once for all trials, since no key of theirs is searched."""

    @property
    def units(self) -> list[tuple[Fold, int]]:
        """Fold and seed of each training of a trial, in their order."""
        return [(fold, seed) for seed in self.seeds for fold in self.folds]

    @property
    def levels(self) -> int:
        return LEVELS * len(self.units)


def trial_context(config: Config, searched: Sequence[str], tries: int) -> TrialContext:
    """Load the prices, cut them before the test window, and check that every fold can be trained.

    Raises FinflowError if there is too little to learn from or to be evaluated on.
    """
    seen, train_end = load_before_test(config)
    protocol, tune = config.evaluation.protocol, config.tune
    history, protocol = history_of(seen), protocol.model_copy(update={"folds": tune.folds})
    if tune.folds > 1:
        folds = folds_of("walk-forward", seen.n_bars, protocol, history)
    else:
        folds = (last_fold(train_end, seen.n_bars, protocol, history),)
    seeds = tuple(range(config.train.seed, config.train.seed + tune.seeds))
    context = TrialContext(config, seen, folds, seeds, tuple(searched), tries)
    for fold in folds:
        fold.training_data(seen, config)
    return context


@dataclass(frozen=True)
class TrialResult:
    """Result of a trial; ``excess`` (days,) are daily returns less cash over the windows, the mean over seeds."""

    values: tuple[float, ...]
    excess: FloatArray
    updates: int


def run_trial(
    context: TrialContext, config: Config, scratch: Path, report: Report, display: ProgressDisplay | None = None
) -> TrialResult:
    """Train and evaluate a configuration. The same configuration and seeds give the same values, bit for bit.

    Raises FinflowError if an objective of a training is not a number.

    ``scratch``: trainings write here; it is removed at the end, however that comes. Behaviour data that suit every
    trial go into the folder ``offline`` beside it.
    """
    trial = TrialRun(context, config, scratch, report)
    excess: dict[int, list[FloatArray]] = {seed: [] for seed in context.seeds}
    try:
        for fold, seed in context.units:
            backtest = trial.train(fold, seed, display)
            excess[seed].append(backtest.returns - backtest.cash_returns)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    paths = np.stack([np.concatenate(parts) for parts in excess.values()])
    return TrialResult(trial.objectives(trial.finished), paths.mean(axis=0), trial.updates)


class TrialRun:
    """A trial under way: its trainings, one after another, and its objectives so far."""

    def __init__(self, context: TrialContext, config: Config, scratch: Path, report: Report) -> None:
        self.context, self.config, self.scratch, self.report = context, config, scratch, report
        self.tune = context.config.tune
        self.finished: list[tuple[float, ...]] = []
        self.updates = self.level = 0
        self._compares = "dsr" in self.tune.objective  # with equal weight

    def train(self, fold: Fold, seed: int, display: ProgressDisplay | None) -> Backtest:
        """Train once, and backtest the best policy on the fold's test window; its checkpoints are not kept."""
        settings = self._settings(seed)
        known, panel = self.context.features, self.context.panel
        training_data = fold.training_data(panel, settings, known.get((fold.number, "training")))
        known[fold.number, "training"] = training_data.features
        progress = display or ProgressDisplay(stream=NullStream())
        listener = self._listener(training_data, progress)
        trainer = FinFlowTrainer(settings, training_data=training_data, progress=progress, on_validation=listener)
        trainer.train_iql()
        trainer.finetune()
        rivals = [named_strategy(BASELINE, self.config.evaluation)] if self._compares else []
        known[fold.number, "all"] = known.get((fold.number, "all")) or features_on(training_data, panel)
        process = process_on(training_data, panel, known[fold.number, "all"])
        (backtests,) = fold.judge(process, trainer.agents(), rivals)
        shutil.rmtree(trainer.run_folder, ignore_errors=True)
        values = self._measure(process, fold.tests[0], *backtests)
        for name, value in zip(self.tune.objective, values, strict=True):
            if not np.isfinite(value):
                raise FinflowError(f"{name} of fold {fold.number}, seed {seed} is not a number: {_reason(name)}")
        self.finished.append(values)
        return backtests[0]

    def objectives(self, units: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
        return tuple(cautious_mean(values) for values in zip(*units, strict=True))

    def _settings(self, seed: int) -> Config:
        """Configuration of one training, which keeps nothing but its best checkpoint."""
        private = any(key.startswith(DATA_KEYS) for key in self.context.searched)
        changes = {
            "train.seed": seed,
            "train.seeds": 1,
            "train.save_latest": False,
            "train.max_checkpoints": 0,
            "train.profile": False,
            "train.checkpoint_interval": NEVER,
            "train.checkpoint_updates": NEVER,
            "output.logs_dir": self.scratch / "logs",
            "output.offline_dir": (self.scratch if private else self.scratch.parent) / "offline",
            "evaluation": EvaluationConfig(),
            "tune": TuneConfig(),
        }
        return replace_values(self.config, changes)

    def _listener(self, training_data: TrainingData, progress: ProgressDisplay) -> Callable[[Validation], None]:
        """Reports the objectives of the training's best policy so far, where they are numbers."""
        before, baseline = self.updates, tuple[Backtest, ...]()
        if self._compares:
            equal_weight = named_strategy(BASELINE, training_data.config.evaluation)
            baseline = run_backtests(training_data.process, training_data.split.validation, [equal_weight])
        current: tuple[float, ...] | None = None

        def on_validation(validation: Validation) -> None:
            nonlocal current
            self.updates = before + validation.update
            if validation.best or current is None:
                process, window = training_data.process, training_data.split.validation
                current = self._measure(process, window, validation.backtest, *baseline)
            share = ((validation.phase == ONLINE) + progress.share(validation.phase_update)) / 2.0  # a half each phase
            reached = LEVELS * len(self.finished) + min(int(LEVELS * share), LEVELS)
            values = self.objectives([*self.finished, current])
            if not np.isfinite(values).all():
                return
            for level in range(self.level + 1, reached + 1):
                self.level = level
                self.report(level, values, self.updates)

        return on_validation

    def _measure(
        self, process: DecisionProcess, window: range, run: Backtest, baseline: Backtest | None = None
    ) -> tuple[float, ...]:
        study, tries, ranking = self.context.config, self.context.tries, None
        if set(self.tune.objective) & set(RANKING_OBJECTIVES):
            ranking = rank_run(process, window, run, study.objectives.ranking.horizon)
        return measure_objectives(self.tune.objective, run, study.objectives.cvar_alpha, baseline, tries, ranking)


def measure_objectives(
    names: Sequence[str],
    backtest: Backtest,
    alpha: float,
    baseline: Backtest | None = None,
    tries: int = 1,
    ranking: Ranking | None = None,
) -> tuple[float, ...]:
    """Objectives of a backtest, in the order of their names; NaN where one is undefined.

    ``alpha`` is the share of the tail that ``cvar`` is the mean of; ``baseline`` is equal weight over the same days,
    for ``dsr``, of the return over it; ``ranking`` is of the weights, for ``ndcg``, ``hit``, ``mrr`` and ``rank_ic``.
    """
    known = summarise(backtest, alpha)
    known |= {name: math.nan if ranking is None else float(getattr(ranking, name)) for name in RANKING_OBJECTIVES}
    return tuple(_dsr(backtest, baseline, tries) if name == "dsr" else known[name] for name in names)


def _dsr(backtest: Backtest, baseline: Backtest | None, tries: int) -> float:
    """Deflated Sharpe ratio for so many tries, whose Sharpe ratios vary as those of strategies without skill."""
    if baseline is None:
        raise ValueError("the deflated Sharpe ratio is one of the return over equal weight")
    try:
        track = track_of(backtest.returns - baseline.returns)
    except EvidenceError:
        return math.nan
    return track.dsr(tries, 1.0 / (track.days - 1))


def cautious_mean(values: Sequence[float]) -> float:
    """Mean of several trainings less half their standard deviation (n - 1); NaN where one of them is."""
    array = np.asarray(values, dtype=np.float64)
    spread = float(array.std(ddof=1)) if len(array) > 1 else 0.0
    return float(array.mean()) - DEVIATIONS * spread


def _reason(objective: str) -> str:
    if objective == "rank_ic":
        return "its policy held all assets alike, or there are too few of them"
    return "there are too few assets or days to rank" if objective in RANKING_OBJECTIVES else "its policy took no risk"
