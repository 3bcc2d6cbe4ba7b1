"""Walk-forward and combinatorial purged evaluation: a training for every fold, evaluated out of sample.

Everything lies within training and validation windows: the panel is cut before the test window when it is loaded. The
trainings run here or elsewhere, each in a folder of its own under the protocol's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from finflow.config import Config
from finflow.errors import MarketError
from finflow.evaluation.backtest import Backtest
from finflow.evaluation.multi_run.repeated_trainings import (
    ProtocolPaths,
    WindowResult,
    joined,
    joined_section,
    protocol_section,
)
from finflow.evaluation.statistics.bootstrap import Resampling
from finflow.evaluation.statistics.significance_tests import Tries
from finflow.experiments.jobs.independent_trainings import Job, Training, mark_of
from finflow.experiments.jobs.walk_forward import Fold, Protocol, folds_of, history_of, load_before_test, purge_of
from finflow.provenance import code_hash
from finflow.training.checkpoints.checkpoint_reader import read_checkpoint
from finflow.training.data.training_data import device_here, process_on
from finflow.training.judging.agent_strategy import AGENT, Agents
from finflow.training.judging.held_out import EvaluationOutcome, backtest_window, provenance, report_on, with_compared
from finflow.training.phases.stopping import stopping_at_once

PATHS = "paths.csv"
NO_VERDICT_ON_PATHS = (
    "There is no verdict on a combinatorial path: its folds also learned from days after those they are evaluated on, "
    "so it could not have been traded. Walk-forward has one."
)


@dataclass(frozen=True, kw_only=True)
class ProtocolJob(Job):
    """Trainings of a protocol, and the judgement of their agents; their markets lack what they are evaluated on."""

    protocol: Protocol
    folds: tuple[Fold, ...]

    @property
    def seeds(self) -> range:
        first = self.config.train.seed
        return range(first, first + self.config.evaluation.protocol.seeds)

    @property
    def trainings(self) -> list[Training]:
        """All folds of the first seed, then those of the next."""
        return [self.fold_training(fold, seed) for seed in self.seeds for fold in self.folds]

    def fold_training(self, fold: Fold, seed: int) -> Training:
        return self.training(f"fold {fold.number}, seed {seed}", f"fold-{fold.number:02d}-seed-{seed}", seed, fold)

    @property
    def windows(self) -> list[range]:
        """The evaluated windows, in the order of time."""
        return sorted({test for fold in self.folds for test in fold.tests}, key=lambda test: test.start)

    def lines(self) -> list[str]:
        of = f"{self.market}, " if self.market else ""
        return [
            f"{of}fold {fold.number} is evaluated on {', '.join(self.span(test) for test in fold.tests)}"
            for fold in self.folds
        ]

    @stopping_at_once()
    def judge(self, checkpoints: Sequence[Path]) -> EvaluationOutcome:
        """Backtest every training and the classical strategies on its windows, and write the report."""
        config, evaluation = self.config, self.config.evaluation
        paths, patient = self._backtest(checkpoints)
        tries = Tries(evaluation.configurations_tried)
        sections = [protocol_section(paths, config.train.seed)]
        if self.protocol == "walk-forward":
            resampling = Resampling(evaluation.bootstrap_samples, evaluation.block_length, config.train.seed)
            sections.insert(0, joined_section(paths, patient, tries, resampling))
        columns = {f"path {number}": run.returns for number, run in enumerate(paths.agents, start=1)}
        columns |= {run.name: run.returns for run in paths.compared}
        table = pd.DataFrame(columns, index=pd.Index(paths.compared[0].dates.astype(str), name="date"))
        return report_on(
            config,
            self.folder,
            (paths.agents[paths.middle], *paths.compared),
            title=f"{AGENT}, {self.protocol}: {len(checkpoints)} trainings",
            training=pd.DataFrame(),
            facts=_facts(self),
            notes=_limits(self, len(paths.agents)),
            sections=tuple(sections),
            files={PATHS: table.to_csv(lineterminator="\n").encode()},
            tries=tries,
            in_ledger=False,
            patient=patient,
            unjudged=NO_VERDICT_ON_PATHS if self.protocol == "cpcv" else "",
        )

    def _backtest(self, checkpoints: Sequence[Path]) -> tuple[ProtocolPaths, Backtest]:
        """Backtests of every training on its windows, and of its comparisons; of patient equal weight over all."""
        config, windows, device = self.config, self.windows, device_here(self.config.train.device)
        makers = with_compared({}, config, self.panel)
        judged: list[WindowResult] = []
        compared: dict[int, tuple[tuple[Backtest, ...], Backtest, tuple[Backtest, ...]]] = {}
        parts = [(fold, seed) for seed in self.seeds for fold in self.folds]
        for (fold, seed), path in zip(parts, checkpoints, strict=True):
            process = process_on(self.fold_training(fold, seed).training_data(self.panel), self.panel)
            runs = fold.judge(process, Agents.of([read_checkpoint(path)], config, device))
            for test, number, (run,) in zip(fold.tests, fold.paths, runs, strict=True):
                window = windows.index(test)
                judged.append(WindowResult(fold.number, seed, window, number, run))
                if window not in compared:
                    compared[window] = backtest_window(process, test, [make() for make in makers.values()])
        in_time = [compared[window] for window in range(len(windows))]
        others = tuple((*runs, *index) for runs, _, index in in_time)
        patient = joined([patient for _, patient, _ in in_time])
        return ProtocolPaths(self.protocol, tuple(judged), others, self.settings), patient

    @property
    def settings(self) -> dict[str, Any]:
        """Settings that cut the bars, to be printed."""
        protocol = self.config.evaluation.protocol
        return {**protocol.model_dump(), "purge": purge_of(protocol, history_of(self.panel))}

    def span(self, bars: range) -> str:
        return f"{self.panel.dates[bars.start]} to {self.panel.dates[bars.stop - 1]}"


def make_protocol_job(config: Config, protocol: Protocol, parent: Path | None = None, market: str = "") -> ProtocolJob:
    """Load the prices, cut them, and check that every fold can be trained and evaluated.

    Raises FinflowError if there is too little to learn from or to be evaluated on, or a setting is impossible.
    """
    panel, _ = load_before_test(config)
    settings = config.evaluation.protocol
    folds = folds_of(protocol, panel.n_bars, settings, history_of(panel))
    mark = mark_of(config, settings.model_dump(exclude={"seeds"}))
    folder = (parent or config.output.logs_dir / "protocols") / f"{protocol}-{mark}"
    job = ProtocolJob(config, panel, folder, market, protocol=protocol, folds=folds)
    for fold in folds:  # before hours of training
        process = job.fold_training(fold, config.train.seed).training_data(panel).process
        for test in fold.tests:
            if len(range(max(test.start, process.first_bar), test.stop - 1)) < 2:
                raise MarketError(
                    f"fold {fold.number} of {len(folds)} cannot be evaluated from {job.span(test)}: too few bars after "
                    "the longest feature; use fewer folds or groups, or more data"
                )
    return job


def _facts(job: ProtocolJob) -> dict[str, Any]:
    config, panel = job.config, job.panel
    known = provenance(config, panel)
    return {
        "data": known["data"],
        "protocol": {
            "name": job.protocol,
            "bars": f"{panel.n_bars:,} before the test window, {job.span(range(panel.n_bars))}",
            **job.settings,
        },
        "judged windows": [job.span(window) for window in job.windows],
        "execution": known["execution"],
        "seeds": list(job.seeds),
        "configuration": known["configuration"],
        "code": code_hash(),
        "versions": known["versions"],
    }


def _limits(job: ProtocolJob, paths: int) -> tuple[str, ...]:
    survivorship = job.panel.provenance.get("survivorship")
    notes = [str(survivorship)] if survivorship else []
    notes.append(
        "The days evaluated here lie before the test window, and the configuration may have been chosen with knowledge "
        "of them: this shows how far results depend on the period and the seed, and does not replace the test window."
    )
    if job.protocol == "cpcv":
        notes.append(
            "A combinatorial fold also learns from days after those it is judged on. Its paths could not have been "
            "traded; they show the dispersion of results, not achievable returns."
        )
    if paths == 1:
        notes.append("There is one path from one seed: the effect of the seed is not known (--seeds N).")
    return tuple(notes)
