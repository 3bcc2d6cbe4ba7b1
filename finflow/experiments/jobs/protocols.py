"""Walk-forward and combinatorial purged evaluation: a training for every fold, evaluated out of sample.

Everything lies within training and validation windows: the panel is cut before the test window when it is loaded. The
trainings run here or elsewhere, each in a folder of its own under the protocol's.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from finflow.config import Config, EvaluationConfig, config_hash, replace_values
from finflow.errors import MarketError
from finflow.evaluation.backtest import Backtest, run_backtests
from finflow.evaluation.multi_run.repeated_trainings import (
    ProtocolPaths,
    WindowResult,
    joined,
    joined_section,
    protocol_section,
)
from finflow.evaluation.statistics.bootstrap import Resampling
from finflow.evaluation.statistics.readings_ledger import Tries
from finflow.experiments.jobs.folds import Fold, Protocol, folds_of, history_of, load_before_test, purge_of
from finflow.experiments.jobs.independent_trainings import Training, training_config
from finflow.market.panel import MarketPanel
from finflow.provenance import code_hash, short_hash
from finflow.training.checkpoints.checkpoint_reader import policy_of, read_checkpoint
from finflow.training.data.training_data import device_here, process_on
from finflow.training.judging.agent_strategy import AGENT, AgentStrategy
from finflow.training.judging.held_out import (
    EvaluationOutcome,
    backtest_window,
    provenance,
    report_on,
    with_compared,
)

PATHS = "paths.csv"
NO_VERDICT_ON_PATHS = (
    "There is no verdict on a combinatorial path: its folds also learned from days after those they are evaluated on, "
    "so it could not have been traded. Walk-forward has one."
)


@dataclass(frozen=True)
class ProtocolJob:
    """Trainings of a protocol, and the judgement of their agents."""

    protocol: Protocol
    config: Config
    panel: MarketPanel
    folds: tuple[Fold, ...]
    folder: Path
    market: str = ""

    @property
    def seeds(self) -> range:
        first = self.config.train.seed
        return range(first, first + self.config.evaluation.protocol.seeds)

    @property
    def parts(self) -> list[tuple[Fold, int]]:
        """Fold and seed of each training, in the order that they are made in."""
        return [(fold, seed) for seed in self.seeds for fold in self.folds]

    @property
    def trainings(self) -> list[Training]:
        return [self.training(fold, seed) for fold, seed in self.parts]

    def training(self, fold: Fold, seed: int) -> Training:
        """One of them; its market lacks what it will be evaluated on."""
        folder = self.folder / f"fold-{fold.number:02d}-seed-{seed}"
        name = f"{self._of}fold {fold.number}, seed {seed}"
        return Training(name, folder, training_config(self.config, folder, seed), self.market, fold)

    @property
    def _of(self) -> str:
        return f"{self.market}, " if self.market else ""

    @property
    def windows(self) -> list[range]:
        """The evaluated windows, in the order of time."""
        return sorted({test for fold in self.folds for test in fold.tests}, key=lambda test: test.start)

    def begin(self) -> list[str]:
        """Lines that say what each fold is evaluated on; there is nothing to write before the trainings."""
        return [
            f"{self._of}fold {fold.number} is evaluated on {', '.join(self.span(test) for test in fold.tests)}"
            for fold in self.folds
        ]

    def judge(self, checkpoints: Sequence[Path]) -> EvaluationOutcome:
        """Backtest every training and the classical strategies on its windows, and write the report."""
        config = self.config
        paths, windows = self._backtest(checkpoints)
        tries, patient = Tries(config.evaluation.configurations_tried), joined(windows)
        sections = [protocol_section(paths, config.train.seed)]
        if self.protocol == "walk-forward":
            evaluation = config.evaluation
            resampling = Resampling(evaluation.bootstrap_samples, evaluation.block_length, config.train.seed)
            sections.insert(0, joined_section(paths, patient, tries, resampling))
        columns = {f"path {number}": run.returns for number, run in enumerate(paths.agents, start=1)}
        columns |= {run.name: run.returns for run in paths.compared}
        table = pd.DataFrame(columns, index=pd.Index(paths.compared[0].dates.astype(str), name="date"))
        return report_on(
            config,
            self.folder,
            (paths.agents[paths.middle], *paths.compared),
            title=f"{AGENT}, {self.protocol}: {len(self.parts)} trainings",
            training=pd.DataFrame(),
            facts=_facts(self),
            notes=_limits(self, len(paths.agents)),
            sections=tuple(sections),
            files={PATHS: table.to_csv(lineterminator="\n").encode()},
            tries=tries,
            patient=patient,
            unjudged=NO_VERDICT_ON_PATHS if self.protocol == "cpcv" else "",
        )

    def _backtest(self, checkpoints: Sequence[Path]) -> tuple[ProtocolPaths, list[Backtest]]:
        """Backtests of every training on its windows, and of its comparisons; of patient equal weight one a window."""
        config, windows, device = self.config, self.windows, device_here(self.config.train.device)
        makers = with_compared({}, config)
        judged: list[WindowResult] = []
        others: dict[int, tuple[Backtest, ...]] = {}
        patient: dict[int, Backtest] = {}
        for (fold, seed), path in zip(self.parts, checkpoints, strict=True):
            process = process_on(self.training(fold, seed).training_data(self.panel), self.panel)
            policy = policy_of(read_checkpoint(path), device)
            for test, path_number in zip(fold.tests, fold.paths, strict=True):
                window = windows.index(test)
                (run,) = run_backtests(process, test, [AgentStrategy(policy, device, AGENT, acting=config.acting)])
                judged.append(WindowResult(fold.number, seed, window, path_number, run))
                if window not in others:
                    runs, patient[window], index = backtest_window(process, test, [make() for make in makers.values()])
                    others[window] = (*runs, *index)
        protocol, places = config.evaluation.protocol, range(len(windows))
        settings = {**protocol.model_dump(), "purge": purge_of(protocol, history_of(self.panel))}
        paths = ProtocolPaths(self.protocol, tuple(judged), tuple(others[place] for place in places), settings)
        return paths, [patient[place] for place in places]

    def span(self, bars: range) -> str:
        return f"{self.panel.dates[bars.start]} to {self.panel.dates[bars.stop - 1]}"


def make_protocol_job(config: Config, protocol: Protocol, parent: Path | None = None, market: str = "") -> ProtocolJob:
    """Load the prices, cut them, and check that every fold can be trained and evaluated.

    Raises
    ------
    FinflowError
        If there is too little to learn from or to be evaluated on, or a setting is impossible.
    """
    panel, _ = load_before_test(config)
    settings = config.evaluation.protocol
    folds = folds_of(protocol, panel.n_bars, settings, history_of(panel))
    learning = config_hash(replace_values(config, {"evaluation": EvaluationConfig()}))
    cuts = json.dumps([learning, settings.model_dump(exclude={"seeds"})], sort_keys=True)
    name = f"{protocol}-{short_hash(cuts)}"
    job = ProtocolJob(protocol, config, panel, folds, (parent or config.output.logs_dir / "protocols") / name, market)
    for fold in folds:  # before hours of training
        process = job.training(fold, config.train.seed).training_data(panel).process
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
            **config.evaluation.protocol.model_dump(),
            "purge": purge_of(config.evaluation.protocol, history_of(panel)),
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
