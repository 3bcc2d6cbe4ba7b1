"""Numbers of a report: the one source of its tables, its sentences and `metrics.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, NotRequired

import numpy as np
import pandas as pd
from typing_extensions import TypedDict

from finflow.evaluation.analysis.attribution import Explanation
from finflow.evaluation.analysis.optimality import KnownOptimum
from finflow.evaluation.backtest import BASELINE, Backtest
from finflow.evaluation.page.page_numbers import Bounds, Number, Share, about, plain, schema_of
from finflow.evaluation.page.section import Section
from finflow.evaluation.statistics import bootstrap as significance, metrics
from finflow.evaluation.statistics.bootstrap import Interval, Resampling, SharpeDifference
from finflow.evaluation.statistics.metrics import Metrics
from finflow.evaluation.statistics.readings_ledger import Tries
from finflow.evaluation.statistics.report_statistics import (
    SignificanceResults,
    evidence_table,
    gather_evidence,
)
from finflow.evaluation.statistics.verdict import Verdict

Figures = dict[str, Any]


class StrategyNumbers(Metrics):
    """One strategy: its metrics, track record against cash and bootstrap intervals."""

    psr: Annotated[Share, about("Probabilistic Sharpe ratio: confidence that the true ratio over cash is above zero.")]
    minimum_track_record: Annotated[
        Number, about("Days needed to be 95 % confident of that; null where none would do.")
    ]
    intervals: Annotated[dict[str, Bounds], about("By metric, low and high end of its bootstrap interval.")]


class Report(TypedDict):
    """Every number of `report.html`.

    Fractions, not percent; null where a figure is undefined. No times of day and no paths. What a report has nothing to
    say of is left out; a key that is not named here does not belong.
    """

    agent: Annotated[str, about("Name of the judged strategy: a key of strategies.")]
    against_equal_weight: Annotated[Figures, about("Sharpe ratio less that of equal weight: interval and finding.")]
    bootstrap: Annotated[Figures, about("Settings of the stationary bootstrap; blocks in days.")]
    cvar_alpha: Annotated[Number, about("Level of the CVaR.")]
    experts: Annotated[dict[str, Metrics], about("By expert of the agent, deciding alone.")]
    strategies: Annotated[dict[str, StrategyNumbers], about("By strategy, the judged one among them.")]
    window: Annotated[Figures, about("End of the first and of the last holding period, and their number.")]
    verdict: Annotated[Verdict | None, about("Verdict against equal weight; null where it was not compared.")]
    stepm: Annotated[Figures | None, about("StepM of all strategies together; null where it cannot be made.")]
    overfitting: Annotated[
        Figures | None, about("CSCV of choosing the best by Sharpe ratio; null where it cannot be computed.")
    ]
    optimum: NotRequired[KnownOptimum]
    attribution: NotRequired[Annotated[Figures, about("By strategy: earnings of 1 invested, by source, in money.")]]
    decisions: NotRequired[
        Annotated[dict[str, Explanation], about("By date of the fill: the largest trades of an agent.")]
    ]
    tax: NotRequired[Annotated[Figures, about("Settings, and by strategy a year's return before and after tax.")]]
    sweeps: NotRequired[Annotated[Figures, about("Strategies at other costs, lags and capital; break-even costs.")]]
    stress: NotRequired[Annotated[Figures, about("By stress period: its days, and figures by strategy.")]]
    factors: NotRequired[Annotated[Figures, about("Regressions on factors of the panel and on ETFs, by strategy.")]]
    ranking: NotRequired[Annotated[Figures, about("The weights as a ranking of the assets, by horizon in bars.")]]
    protocol: NotRequired[Annotated[Figures, about("Trainings for every fold, their windows, paths and spread.")]]
    walk_forward: NotRequired[Annotated[Figures, about("Verdict over all judged years of a walk-forward.")]]
    choice: NotRequired[Annotated[Figures, about("Choice of the best of several configurations.")]]
    generalisation: NotRequired[Annotated[Figures, about("Values in training and validation, first, best and last.")]]
    out_of_fold: NotRequired[Annotated[Figures, about("Evidence from blocks of training years that were left out.")]]
    feature_distance: NotRequired[Annotated[Figures, about("Features of another market against those of training.")]]
    seeds: NotRequired[Annotated[Figures, about("Agents of several seeds, each alone, beside their ensemble.")]]
    gate_states: NotRequired[Annotated[Figures, about("Shares of the experts by the crisis score that was observed.")]]
    expert_traits: NotRequired[Annotated[Figures, about("Traits of the experts' portfolios, and of equal weight.")]]


@dataclass(frozen=True)
class ReportData:
    """Data of a report.

    Attributes
    ----------
    agent
        The strategy that is judged: a trained agent, or any other.
    strategies, experts
        Strategies that it is compared with, over the same days (one with the agent's own name is left out), and its
        experts, each deciding alone.
    block_length
        In days.
    training
        Rows that training logged; may be empty. See `agent_figures.training` for the columns that are drawn.
    facts, notes
        Provenance and settings to print, in this order, and limits of the data, a sentence each.
    tries
        Tries on the panel so far; None where they are not counted, as in tests.
    patient
        Equal weight rebalanced once a month, over the same days, for the verdict.
    unjudged
        Reason why there is no verdict; empty where there is one.
    events
        Events of the guard in training: rows with ``update``, ``phase``, ``level`` and ``message``; None where
        nothing is known of a training.
    """

    title: str
    agent: Backtest
    strategies: tuple[Backtest, ...]
    bootstrap_samples: int
    confidence: float
    block_length: int
    seed: int
    cvar_alpha: float
    training: pd.DataFrame
    facts: Mapping[str, object]
    notes: tuple[str, ...] = ()
    optimum: KnownOptimum | None = None
    experts: tuple[Backtest, ...] = ()
    sections: tuple[Section, ...] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)
    tries: Tries | None = None
    patient: Backtest | None = None
    unjudged: str = ""
    events: tuple[Mapping[str, object], ...] | None = None

    def __post_init__(self) -> None:
        if len(self.agent.returns) == 0:
            raise ValueError(f"the backtest of {self.agent.name} holds no returns")
        names = [run.name for run in self.strategies]
        if len(set(names)) < len(names):
            raise ValueError(f"two strategies share a name: {', '.join(sorted(names))}")
        for run in (*self.strategies, *([self.patient] if self.patient else [])):
            if not np.array_equal(run.dates, self.agent.dates):
                raise ValueError(f"{run.name} covers other days than {self.agent.name}")

    @property
    def names(self) -> list[str]:
        """Names of the judged strategy and of the others, in the order of the tables."""
        return [run.name for run in (self.agent, *self.compared)]

    @property
    def compared(self) -> tuple[Backtest, ...]:
        return tuple(run for run in self.strategies if run.name != self.agent.name)

    @property
    def baseline(self) -> Backtest | None:
        """Equal weight, unless it is missing or is itself the one that is judged."""
        return next((run for run in self.compared if run.name == BASELINE), None)


@dataclass(frozen=True)
class Results:
    """The numbers of a report.

    Attributes
    ----------
    metrics, experts
        By strategy, the agent first, and by expert that decides alone: `metrics.summarise`.
    intervals
        By strategy and metric.
    difference
        Sharpe ratio of the agent less that of equal weight; None without a comparison.
    """

    metrics: dict[str, dict[str, float]]
    intervals: dict[str, dict[str, Interval]]
    difference: SharpeDifference | None
    evidence: SignificanceResults
    experts: dict[str, dict[str, float]] = field(default_factory=dict)

    @property
    def finding(self) -> str:
        """`ahead`, `behind`, `not shown`, or `not compared`."""
        return "not compared" if self.difference is None else self.difference.finding


def compute_results(data: ReportData) -> Results:
    """Compute every number of a report; the same data and seed give the same numbers."""
    runs = (data.agent, *data.compared)
    resampling = Resampling(data.bootstrap_samples, data.block_length, data.seed)
    draws = significance.draw_days(len(data.agent.returns), resampling)
    resampled = {run.name: significance.resample(run, draws, data.cvar_alpha) for run in runs}
    intervals = {
        name: {metric: significance.interval(values, data.confidence) for metric, values in table.items()}
        for name, table in resampled.items()
    }
    difference = None
    if data.baseline is not None:
        difference = significance.sharpe_difference(
            data.agent,
            data.baseline,
            resampled[data.agent.name]["sharpe"],
            resampled[BASELINE]["sharpe"],
            data.confidence,
        )
    summaries = {run.name: metrics.summarise(run, data.cvar_alpha) for run in runs}
    experts = {run.name: metrics.summarise(run, data.cvar_alpha) for run in data.experts}
    sharpes = {name: table["sharpe"] for name, table in resampled.items()}
    if data.patient is not None:
        sharpes[data.patient.name] = significance.resample(data.patient, draws, data.cvar_alpha)["sharpe"]
    evidence = gather_evidence(
        data.agent,
        data.compared,
        None if data.unjudged else data.baseline,
        sharpes,
        data.tries or Tries(),
        resampling,
        data.patient,
        draws,
    )
    return Results(summaries, intervals, difference, evidence, experts)


def contents(data: ReportData, results: Results) -> dict[str, object]:
    """Content of `metrics.json` but for the sections: None for what is undefined; no times of day and no paths."""
    difference = results.difference
    content: dict[str, object] = {
        "agent": data.agent.name,
        "bootstrap": {
            "block_length": data.block_length,
            "confidence": data.confidence,
            "samples": data.bootstrap_samples,
            "seed": data.seed,
        },
        "cvar_alpha": data.cvar_alpha,
        "experts": results.experts,
        "against_equal_weight": {
            "finding": results.finding,
            "sharpe_difference": None if difference is None else difference.value,
            "interval": None if difference is None else difference.interval.bounds,
            "share_ahead": None if difference is None else difference.share_ahead,
        },
        "strategies": {
            name: {
                **summary,
                **results.evidence.tracks[name],
                "intervals": {key: bounds.bounds for key, bounds in results.intervals[name].items()},
            }
            for name, summary in results.metrics.items()
        },
        "window": {
            "start": str(data.agent.dates[0]),
            "end": str(data.agent.dates[-1]),
            "days": len(data.agent.dates),
        },
        **evidence_table(results.evidence),
    }
    made: dict[str, object] = plain(content)
    return made


def json_schema() -> dict[str, Any]:
    """JSON schema of the `metrics.json` of a run: every key that it may have, and what stands there."""
    return schema_of(Report, "metrics.json of a finflow report")
