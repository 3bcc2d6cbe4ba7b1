"""Walk-forward and combinatorial purged evaluation: a training for every fold, judged on bars that it never saw.

Everything lies within training and validation windows: the panel is cut before the test window at the door. Each
training has a run folder of its own under the protocol's folder, and a note beside it that says by which
configuration, code and prices it was made; one that was finished is not made again, one that was stopped goes on.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from finflow.config import Config, EvaluationConfig, config_hash
from finflow.errors import ConfigError, MarketError
from finflow.evaluation import fold_paths
from finflow.evaluation.backtest import Backtest, index_backtest, run_backtests
from finflow.evaluation.field import Make, sharing_fits
from finflow.evaluation.fold_paths import Judged, Paths
from finflow.evaluation.metrics import summarise
from finflow.evaluation.readings import Tries
from finflow.evaluation.report import write_report
from finflow.evaluation.results import BASELINE, ReportData
from finflow.experiments.folds import Fold, Protocol, folds_of, purge_of
from finflow.files import check_writable, write_atomically
from finflow.guard.checkpoint import BEST, LATEST, MODELS, CheckpointFolder
from finflow.market.panel import MarketPanel
from finflow.market.sources import load_panel
from finflow.market.splits import split_panel, visible
from finflow.strategies.base import Strategy
from finflow.strategies.classical import COMPARED, named_strategy
from finflow.strategies.patient import PatientEqualWeight
from finflow.training.agent_strategy import AgentStrategy
from finflow.training.checkpoints import policy_of, read_checkpoint
from finflow.training.code import code_hash
from finflow.training.finetune import vector_steps
from finflow.training.held_out import AGENT, LIBRARIES, REPORTS, Outcome, cash_rate, execution
from finflow.training.materials import Materials, choose_device, prepare_pieces, process_on
from finflow.training.progress import ProgressDisplay
from finflow.training.stopping import stopping_at_once
from finflow.training.trainer import FinFlowTrainer

__all__ = ["Estimate", "Plan", "estimate", "plan_of", "run_protocol"]

NOTE = "training.json"
PATHS = "paths.csv"
PROBE_UPDATES = 20  # of each phase: what an estimate is made from


@dataclass(frozen=True)
class Plan:
    """What a protocol is going to do.

    Attributes
    ----------
    protocol : str
    config : Config
    panel : MarketPanel
        Cut before the test window.
    folds : tuple of Fold
    folder : Path
        Of the runs and the report.
    """

    protocol: Protocol
    config: Config
    panel: MarketPanel
    folds: tuple[Fold, ...]
    folder: Path

    @property
    def seeds(self) -> range:
        """Seeds of the trainings of each fold."""
        first = self.config.train.seed
        return range(first, first + self.config.evaluation.protocol.seeds)

    @property
    def trainings(self) -> list[tuple[Fold, int]]:
        """Fold and seed of each training, in the order that they are made in."""
        return [(fold, seed) for seed in self.seeds for fold in self.folds]

    @property
    def windows(self) -> list[range]:
        """The judged windows, in the order of time."""
        return sorted({test for fold in self.folds for test in fold.tests}, key=lambda test: test.start)

    def place(self, fold: Fold, seed: int) -> Path:
        """Folder of a training."""
        return self.folder / f"fold-{fold.number:02d}-seed-{seed}"

    def settings(self, fold: Fold, seed: int) -> Config:
        """The configuration of a training; how it will be judged is no part of it."""
        output = self.config.output.model_copy(update={"logs_dir": self.place(fold, seed)})
        train = self.config.train.model_copy(update={"seed": seed})
        changes = {"train": train, "output": output, "evaluation": EvaluationConfig()}
        return self.config.model_copy(update=changes)

    def materials(self, fold: Fold, config: Config) -> Materials:
        """The market of a training, without what it will be judged on."""
        try:
            return prepare_pieces(self.panel, config, fold.pieces, fold.validation)
        except MarketError as error:
            raise MarketError(f"fold {fold.number} of {len(self.folds)} cannot be trained: {error}") from error

    def span(self, bars: range) -> str:
        """A window in dates."""
        return f"{self.panel.dates[bars.start]} to {self.panel.dates[bars.stop - 1]}"


def plan_of(config: Config, protocol: Protocol, parent: Path | None = None) -> Plan:
    """Load the prices, cut them, and see that every fold can be trained and judged.

    Parameters
    ----------
    config : Config
    protocol : str
    parent : Path, optional
        The protocol's folder goes here; into ``protocols`` under ``output.logs_dir`` when left out.

    Raises
    ------
    FinflowError
        If there is too little to learn from or to be judged on, or a setting cannot be had.
    """
    if config.offline.decisions:
        raise ConfigError(
            "offline.decisions cannot be learned from where parts of the market are held out: decisions of a held-out "
            "day know its prices; leave offline.decisions out"
        )
    panel = load_panel(config.market)
    panel = visible(panel, split_panel(panel, config.market))
    settings = config.evaluation.protocol
    folds = folds_of(protocol, panel.n_bars, settings)
    learning = config_hash(config.model_copy(update={"evaluation": EvaluationConfig()}))
    cuts = json.dumps([learning, settings.model_dump(exclude={"seeds"})], sort_keys=True)
    name = f"{protocol}-{hashlib.sha256(cuts.encode()).hexdigest()[:8]}"
    plan = Plan(protocol, config, panel, folds, (parent or config.output.logs_dir / "protocols") / name)
    for fold in folds:  # before the first of them takes hours
        process = plan.materials(fold, config).process
        for test in fold.tests:
            if len(range(max(test.start, process.first_bar), test.stop - 1)) < 2:
                raise MarketError(
                    f"fold {fold.number} of {len(folds)} cannot be judged from {plan.span(test)}: too few bars after "
                    "the longest feature; use fewer folds or groups, or more data"
                )
    return plan


def run_protocol(plan: Plan, tell: Callable[[str], None] = print) -> Outcome:
    """Train what is not there yet, judge every training on its windows, and write the report.

    Returns
    -------
    Outcome
        Its summary is of the path of median Sharpe ratio, beside the classical strategies over the same days.
    """
    check_writable(plan.folder, keep=False)
    device = choose_device(plan.config.train.device)
    checkpoints = []
    for number, (fold, seed) in enumerate(plan.trainings, start=1):
        windows = ", ".join(plan.span(test) for test in fold.tests)
        tell(f"training {number} of {len(plan.trainings)}: fold {fold.number}, seed {seed}, to be judged on {windows}")
        checkpoints.append(train_fold(plan, fold, seed))
    tell("judging the trainings on their windows")
    with stopping_at_once():
        return _judge(plan, checkpoints, device)


def train_fold(plan: Plan, fold: Fold, seed: int) -> Path:
    """The best checkpoint of a training: of one that was finished before, or of one that is made or goes on now."""
    config, place = plan.settings(fold, seed), plan.place(fold, seed)
    materials = plan.materials(fold, config)
    stamp = {
        "configuration": config_hash(config),
        "code": code_hash(),
        "market": materials.panel.sha256,
        "stretches": [[one.start, one.stop] for one in materials.stretches],
        "validation": fold.validation,
    }
    note = _read(place / NOTE)
    same = {name: note.get(name) for name in stamp} == stamp
    run = place / str(note.get("run"))
    if same and note.get("finished") and _best(run).is_file():
        return _best(run)
    goes_on = same and CheckpointFolder(run / MODELS).path(LATEST).is_file()
    trainer = FinFlowTrainer(config, resume=run if goes_on else None, materials=materials)
    try:
        _write(place / NOTE, {**stamp, "run": trainer.run_folder.name, "finished": False})
        trainer.train_iql()
        trainer.finetune()
    finally:
        trainer.discard_if_unused()
    _write(place / NOTE, {**stamp, "run": trainer.run_folder.name, "finished": True})
    return _best(trainer.run_folder)


@dataclass(frozen=True)
class Estimate:
    """How long a protocol will take.

    Attributes
    ----------
    trainings : int
        Of the whole protocol.
    finished : int
        Of these, those that are there already.
    offline_updates, online_updates : int
        Of each training.
    seconds : float
        For what is not there yet, trainings alone.
    """

    trainings: int
    finished: int
    offline_updates: int
    online_updates: int
    seconds: float

    def lines(self) -> list[str]:
        """What to tell."""
        if self.finished == self.trainings:
            return [f"{self.trainings} trainings, all of them there already; only judging them is left"]
        updates = f"about {self.offline_updates:,} offline and {self.online_updates:,} online updates each"
        there = f", {self.finished} of them there already" if self.finished else ""
        return [
            f"{self.trainings} trainings{there}; {updates}",
            f"about {_duration(self.seconds)} for those that are missing, by a probe of {PROBE_UPDATES} updates of "
            "each phase on this machine; judging them comes on top",
        ]


def estimate(plan: Plan) -> Estimate:
    """Count the trainings, and time a few updates of the last fold's in a folder that is removed again."""
    config, train = plan.config, plan.config.train
    count = len(plan.trainings)
    finished = sum(_is_there(plan, fold, seed) for fold, seed in plan.trainings)
    if finished == count:
        return Estimate(count, finished, 0, 0, 0.0)
    fold = plan.folds[-1]
    length = config.env.episode_length
    episodes = min(train.offline_episodes, -(-PROBE_UPDATES * train.offline_batch_size // length))
    short = {
        "offline_episodes": episodes,
        "offline_training_epochs": 1,
        "online_episodes": max(1, PROBE_UPDATES * train.n_envs // length),
        "warmup_episodes": 1,
        "critic_only_updates": 0,
        "validation_updates": 10**9,
        "checkpoint_updates": 10**9,
    }
    with tempfile.TemporaryDirectory(prefix="finflow-probe-") as folder:
        output = config.output.model_copy(update={"logs_dir": Path(folder), "offline_dir": Path(folder)})
        changes = {"train": train.model_copy(update=short), "output": output, "evaluation": EvaluationConfig()}
        small = config.model_copy(update=changes)
        watch = Stopwatch()
        trainer = FinFlowTrainer(small, materials=plan.materials(fold, small), progress=watch)
        began = time.monotonic()
        rows = len(trainer.collect_offline_data())
        collecting = (time.monotonic() - began) * train.offline_episodes / episodes
        trainer.train_iql()
        trainer.finetune()
        del trainer
    rows = round(rows * train.offline_episodes / episodes)
    offline = train.offline_training_epochs * max(rows // train.offline_batch_size, 1)
    online = vector_steps(config, train.online_episodes) * train.updates_per_vector_step
    checks = offline // train.validation_updates + online // train.validation_updates + 3
    one = collecting + offline * watch.update(0) + online * watch.update(1) + checks * watch.validation
    return Estimate(count, finished, offline, online, one * (count - finished))


class Stopwatch(ProgressDisplay):
    """Shows nothing, and times what it is told."""

    def __init__(self) -> None:
        super().__init__(stream=io.StringIO())
        self._phases: list[list[float]] = []
        self._validations: list[float] = []
        self._latest = time.monotonic()

    def start_phase(self, name: str, total: int, done: int = 0) -> None:
        """Begin to time another phase."""
        self._phases.append([])
        self._latest = time.monotonic()

    def advance(self, n: int = 1, **facts: object) -> None:
        """Note how long it was since the last call: an update where ``n`` is 1, a validation where it is 0."""
        now = time.monotonic()
        (self._phases[-1] if n else self._validations).append(now - self._latest)
        self._latest = now

    def message(self, text: str) -> None:
        """Show nothing."""

    def end_phase(self) -> None:
        """Show nothing."""

    def update(self, phase: int) -> float:
        """Median seconds of an update; the first few, in which everything is still being set up, do not count."""
        times = self._phases[phase]
        return float(np.median(times[len(times) // 4 :])) if times else 0.0

    @property
    def validation(self) -> float:
        """Median seconds of a validation."""
        return float(np.median(self._validations)) if self._validations else 0.0


def _judge(plan: Plan, checkpoints: Sequence[Path], device: torch.device) -> Outcome:
    """Play every training on its windows and the classical strategies beside them, and write the report."""
    config, windows = plan.config, plan.windows
    makers: dict[str, Make] = {name: _maker(name, config) for name in (BASELINE, *COMPARED)}
    playing = sharing_fits(makers)
    judged: list[Judged] = []
    others: dict[int, tuple[Backtest, ...]] = {}
    seldom: dict[int, Backtest] = {}
    for (fold, seed), path in zip(plan.trainings, checkpoints, strict=True):
        process = process_on(plan.materials(fold, plan.settings(fold, seed)), plan.panel)
        policy = policy_of(read_checkpoint(path), device)
        for test, way in zip(fold.tests, fold.paths, strict=True):
            window = windows.index(test)
            (run,) = run_backtests(process, test, [AgentStrategy(policy, device, AGENT)])
            judged.append(Judged(fold.number, seed, window, way, run))
            if window not in others:
                patient: Strategy = PatientEqualWeight(config.evaluation.rebalance_every)
                *played, seldom[window] = run_backtests(
                    process, test, [*(make() for make in playing.values()), patient]
                )
                index = index_backtest(process, test)
                others[window] = (*played, *([index] if index is not None else []))
    protocol = config.evaluation.protocol
    settings = {**protocol.model_dump(), "purge": purge_of(protocol)}
    found = Paths(plan.protocol, tuple(judged), tuple(others[window] for window in range(len(windows))), settings)
    agent = found.agents[found.middle]
    strategies = found.compared
    data = ReportData(
        title=f"{AGENT}, {plan.protocol}: {len(plan.trainings)} trainings",
        agent=agent,
        strategies=strategies,
        bootstrap_samples=config.evaluation.bootstrap_samples,
        confidence=config.evaluation.confidence,
        block_length=config.evaluation.block_length,
        seed=config.train.seed,
        cvar_alpha=config.objectives.cvar_alpha,
        training=pd.DataFrame(),
        facts=_facts(plan),
        notes=_limits(plan, len(found.agents)),
        sections=(fold_paths.section(found, config.evaluation.confidence, config.train.seed),),
        files={PATHS: _paths_table(found)},
        tries=Tries(config.evaluation.configurations_tried),
        patient=fold_paths.joined([seldom[window] for window in range(len(windows))]),
    )
    report = write_report(plan.folder / REPORTS, data)
    summary = {run.name: summarise(run, config.objectives.cvar_alpha) for run in (agent, *strategies)}
    return Outcome(plan.folder, report, summary)


def _maker(name: str, config: Config) -> Make:
    return lambda: named_strategy(name, config.evaluation)


def _facts(plan: Plan) -> dict[str, Any]:
    """Provenance for the report."""
    config, panel = plan.config, plan.panel
    return {
        "data": panel.describe(),
        "protocol": {
            "name": plan.protocol,
            "bars": f"{panel.n_bars:,} before the test window, {plan.span(range(panel.n_bars))}",
            **config.evaluation.protocol.model_dump(),
            "purge": purge_of(config.evaluation.protocol),
        },
        "judged windows": [plan.span(window) for window in plan.windows],
        "execution": execution(config.env) | {"cash rate": cash_rate(panel)},
        "seeds": list(plan.seeds),
        "configuration": config_hash(config)[:16],
        "code": code_hash(),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in ("finflow", *LIBRARIES)}},
    }


def _limits(plan: Plan, paths: int) -> tuple[str, ...]:
    """What the protocol cannot show."""
    survivorship = plan.panel.provenance.get("survivorship")
    notes = [str(survivorship)] if survivorship else []
    notes.append(
        "The days judged here lie before the test window. Whoever chose the configuration may have seen them: this "
        "says how far results depend on the period and the seed, and is no substitute for the test window."
    )
    if plan.protocol == "cpcv":
        notes.append(
            "A combinatorial fold also learns from days after those it is judged on. Nobody could have traded its "
            "paths; they show how results scatter, not what would have been earned."
        )
    if paths == 1:
        notes.append("There is one path from one seed: nothing here tells the luck of the seed (--seeds N).")
    return tuple(notes)


def _paths_table(found: Paths) -> bytes:
    """Daily returns of every path, and of what they are compared with."""
    columns = {f"path {number}": run.returns for number, run in enumerate(found.agents, start=1)}
    columns |= {run.name: run.returns for run in found.compared}
    table = pd.DataFrame(columns, index=pd.Index(found.compared[0].dates.astype(str), name="date"))
    return table.to_csv(lineterminator="\n").encode()


def _is_there(plan: Plan, fold: Fold, seed: int) -> bool:
    """Whether a training was finished, by this configuration and code."""
    note = _read(plan.place(fold, seed) / NOTE)
    now = {"configuration": config_hash(plan.settings(fold, seed)), "code": code_hash(), "finished": True}
    return {name: note.get(name) for name in now} == now


def _best(run: Path) -> Path:
    """The run's best checkpoint by validation, or its latest without one."""
    models = CheckpointFolder(run / MODELS)
    return models.path(BEST) if models.path(BEST).is_file() else models.path(LATEST)


def _read(path: Path) -> dict[str, Any]:
    """A note; empty where there is none that can be read."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _write(path: Path, note: Mapping[str, object]) -> None:
    write_atomically(path, json.dumps(note, indent=2, sort_keys=True) + "\n")


def _duration(seconds: float) -> str:
    """Seconds in words."""
    if seconds < 90.0:
        return f"{max(round(seconds), 1)} seconds"
    return f"{seconds / 60.0:.0f} minutes" if seconds < 5400.0 else f"{seconds / 3600.0:.1f} hours"
