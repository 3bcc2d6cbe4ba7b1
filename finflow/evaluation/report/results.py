"""Numbers of a report: the one source of its tables, its sentences and `metrics.json`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Annotated, Any, NotRequired

import pandas as pd
from typing_extensions import TypedDict

from finflow.errors import EvidenceError
from finflow.evaluation.analysis.attribution import Explanation
from finflow.evaluation.analysis.decision_quality import KnownOptimum
from finflow.evaluation.backtest import BASELINE, Backtest
from finflow.evaluation.page.page_numbers import Bounds, Number, Share, about, schema_of
from finflow.evaluation.page.section import Section
from finflow.evaluation.statistics.backtest_overfitting import Overfitting, cscv_of
from finflow.evaluation.statistics.bootstrap import (
    CONFIDENCE,
    Draws,
    Resampling,
    SharpeDifference,
    draw_days,
    interval,
    resample,
    sharpe_difference,
)
from finflow.evaluation.statistics.metrics import Metrics, summarise
from finflow.evaluation.statistics.significance_tests import SIZE, UNKNOWN, Tries, superior_strategies, track_of
from finflow.evaluation.statistics.verdict import Verdict, judge

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
    """Data of a report."""

    title: str
    agent: Backtest  # the strategy that is judged: a trained agent, or any other
    strategies: tuple[Backtest, ...]  # that it is compared with, over the same days
    resampling: Resampling
    cvar_alpha: float
    training: pd.DataFrame  # rows that training logged; may be empty; `figures.training` says which columns are drawn
    facts: Mapping[str, object]  # provenance and settings to print, in this order
    notes: tuple[str, ...] = ()  # limits of the data, a sentence each
    optimum: KnownOptimum | None = None
    experts: tuple[Backtest, ...] = ()  # of the agent, each deciding alone
    sections: tuple[Section, ...] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)
    tries: Tries = field(default_factory=Tries)  # on the panel so far
    in_ledger: bool = True  # false where the judged days lie before the test window, whose readings alone it has
    patient: Backtest | None = None  # equal weight rebalanced once a month, over the same days, for the verdict
    unjudged: str = ""  # reason why there is no verdict; empty where there is one
    #: Of the guard in training, with ``update``, ``phase``, ``level`` and ``message``; None: nothing is known of one.
    events: tuple[Mapping[str, object], ...] | None = None

    @property
    def runs(self) -> tuple[Backtest, ...]:
        """The judged strategy and the others, in the order of the tables."""
        return (self.agent, *self.strategies)

    @property
    def names(self) -> list[str]:
        return [run.name for run in self.runs]

    @property
    def baseline(self) -> Backtest | None:
        """Equal weight, unless it is missing or is itself the one that is judged."""
        return next((run for run in self.strategies if run.name == BASELINE), None)


@dataclass(frozen=True)
class Results:
    """The data of a report, and what its page says of them; None for what could not be computed."""

    data: ReportData
    numbers: dict[str, Any]  # content of `metrics.json` but for the sections; no times of day and no paths
    difference: SharpeDifference | None  # Sharpe ratio of the agent less that of equal weight
    verdict: Verdict | None
    overfitting: Overfitting | None  # of choosing the best of all strategies by Sharpe ratio


def compute_results(data: ReportData) -> Results:
    """Compute every number of a report; the same data and seed give the same numbers."""
    agent, baseline, alpha, resampling = data.agent, data.baseline, data.cvar_alpha, data.resampling
    draws, overfitting = draw_days(len(agent.returns), resampling), cscv_of(data.runs)
    difference = verdict = superior = None
    if baseline is not None:
        difference = sharpe_difference(agent, baseline, draws)
        if not data.unjudged:
            rivals = [run.returns for run in (baseline, data.patient) if run is not None]
            year = agent.bars_per_year
            verdict = judge(
                agent.returns, rivals, agent.cash_returns, data.tries, resampling, draws, bars_per_year=year
            )
            others = {run.name: run.returns for run in data.runs if run is not baseline}
            with suppress(EvidenceError):
                superior = superior_strategies(baseline.returns, others, resampling)
    numbers = {
        "agent": agent.name,
        "bootstrap": {"confidence": CONFIDENCE, **vars(resampling)},
        "cvar_alpha": alpha,
        "experts": {run.name: summarise(run, alpha) for run in data.experts},
        "against_equal_weight": {
            "finding": "not compared" if difference is None else difference.finding,
            "sharpe_difference": None if difference is None else difference.value,
            "interval": None if difference is None else difference.interval.bounds,
            "share_ahead": None if difference is None else difference.share_ahead,
        },
        "strategies": {run.name: _strategy_numbers(run, draws, alpha) for run in data.runs},
        "window": {"start": str(agent.dates[0]), "end": str(agent.dates[-1]), "days": len(agent.dates)},
        "verdict": verdict,
        "stepm": None if superior is None else {"size": SIZE, "superior": list(superior)},
        "overfitting": None if overfitting is None else overfitting.numbers(data.names),
    }
    return Results(data, numbers, difference, verdict, overfitting)


def _strategy_numbers(run: Backtest, draws: Draws, alpha: float) -> dict[str, Any]:
    track = UNKNOWN
    with suppress(EvidenceError):
        track = track_of(run.returns - run.cash_returns)
    return {
        **summarise(run, alpha),
        "psr": track.psr(),
        "minimum_track_record": track.minimum_length(),
        "intervals": {metric: interval(values).bounds for metric, values in resample(run, draws, alpha).items()},
    }


def json_schema() -> dict[str, Any]:
    """JSON schema of the `metrics.json` of a run: every key that it may have, and what stands there."""
    return schema_of(Report, "metrics.json of a finflow report")
