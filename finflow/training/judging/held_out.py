"""The held-out evaluation: the one function that judges an agent or a strategy on the test window."""

from __future__ import annotations

import datetime as dt
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from finflow.agent.networks.policy import EXPERTS, ExpertPolicy
from finflow.config import Config, EnvConfig, config_hash
from finflow.env.decision_process import DecisionProcess
from finflow.errors import ConfigError, EvidenceError
from finflow.evaluation.analysis import expert_traits
from finflow.evaluation.analysis.attribution import attribution_section, decisions_section
from finflow.evaluation.analysis.decision_quality import score_runs
from finflow.evaluation.analysis.training_sections import sections_of_training
from finflow.evaluation.backtest import (
    BASELINE,
    Backtest,
    ComparisonContext,
    Make,
    index_backtest,
    run_shared_backtests,
    with_memos,
)
from finflow.evaluation.multi_run.repeated_trainings import ensemble_section
from finflow.evaluation.page.section import Section
from finflow.evaluation.page.whole_page import Page
from finflow.evaluation.report.report import sections_of, tables_of, write_report
from finflow.evaluation.report.results import ReportData
from finflow.evaluation.statistics.bootstrap import Resampling
from finflow.evaluation.statistics.metrics import summarise
from finflow.evaluation.statistics.significance_tests import (
    FILE,
    Reading,
    Tries,
    readings_of,
    record,
    track_of,
    tries_of,
)
from finflow.files import check_writable
from finflow.ledger.costs import costs_of
from finflow.market.bar_frequency import bar_rhythm
from finflow.market.panel import MarketPanel, split_panel
from finflow.market.plausibility.checks import find_implausible
from finflow.market.plausibility.finding import in_sentence
from finflow.market.plausibility.price_notes import cash_rate, price_notes
from finflow.strategies.classical import COMPARED, PatientEqualWeight, named_strategy
from finflow.strategies.kept_fits import kept_fits
from finflow.strategies.optimal_policy import OPTIMAL, Optimum, optimum_of
from finflow.strategies.strategy import Strategy
from finflow.training.data.training_data import TrainingData
from finflow.training.judging.agent_strategy import AgentStrategy, experts_alone, gate_on, traits_on
from finflow.training.judging.explainer import Explainer

REPORTS = "reports"
EXPLAINED = 3  # trades that a report explains
LIBRARIES = ("torch", "numpy", "pandas", "skfolio", "quantstats", "arch")


class EvaluationOutcome(NamedTuple):
    """Result of an application function.

    ``summary``: strategy -> metric -> value, over the test window; the one reported on comes first.
    """

    run_folder: Path
    report: Path
    summary: dict[str, dict[str, float]]
    page: Page


def judge_held_out(
    training_data: TrainingData,
    makers: Mapping[str, Make],
    identity: str,
    folder: Path,
    sweeps: bool,
    facts: Mapping[str, object] | None = None,
    *,
    policy: ExpertPolicy | None = None,
    members: Sequence[Strategy] = (),
    training: pd.DataFrame | None = None,
    events: tuple[dict[str, Any], ...] | None = None,
    sections: Sequence[Section] = (),
) -> EvaluationOutcome:
    """Backtest the judged strategy and those it is compared with over the test window, and write the report.

    ``makers``: name -> makes a strategy, fresh. The first is judged; others are compared with it as the classical ones
    are. The rest are facts about it that no backtest has.
    """
    check_writable(folder / REPORTS, keep=False)
    config, process = training_data.config, training_data.held_out_process()
    split, panel = training_data.split, training_data.panel
    window, windows = split.test, {"train": split.train, "validation": split.validation, "test": split.test}
    readings_of(ledger_of(config), panel.sha256)  # a damaged ledger is an error before any work is done
    compared = with_compared(makers, config, panel)
    names = {"embedded": "{} stocks of the S&P 500", "french": "{} portfolios of US stocks, monthly"}
    universe = names.get(config.market.source, f"{{}} assets ({config.market.source})").format(panel.n_assets)
    best, unknown = _optimum(config)
    optimal = [best.policy] if best is not None and best.policy.name not in compared else []
    strategies = [*(make() for make in compared.values()), *optimal]
    judged = strategies[0]
    experts = experts_alone(judged) if isinstance(judged, AgentStrategy) else []
    backtests, patient, index = backtest_window(process, window, [*strategies, *experts, *members])
    ends = np.cumsum([len(strategies), len(experts)])
    played, alone, agents = backtests[: ends[0]], backtests[ends[0] : ends[1]], backtests[ends[1] :]
    known = score_runs(process, window, played, best) if best is not None else None
    runs = (*played, *(one for one in index if one.name not in compared))
    context = ComparisonContext(process, window, compared, played[: len(compared)])
    with counted_reading(config, panel.sha256, identity, runs, folder) as tries:
        return report_on(
            config,
            folder,
            runs,
            title=f"{context.judged} on {universe}",
            training=training if training is not None else pd.DataFrame(),
            facts={**(facts or {}), **provenance(config, panel, windows)},
            notes=(*_limits(training_data, runs, len(members)), *unknown),
            optimum=known,
            experts=alone,
            sections=(
                *sections,
                *_ensemble(context, played, agents, best, config),
                *_explanations(context, training_data, policy),
                *sections_of_training(training),
                *sections_of(context, split, config, sweeps),
            ),
            files=tables_of(context, tuple(makers)),
            tries=tries,
            patient=patient,
            events=events,
        )


def backtest_window(
    process: DecisionProcess, window: range, strategies: Sequence[Strategy]
) -> tuple[tuple[Backtest, ...], Backtest, tuple[Backtest, ...]]:
    """Backtest strategies over a window, with the references of every report: patient equal weight, and any index."""
    *runs, patient = run_shared_backtests(process, window, [*strategies, PatientEqualWeight()])
    index = index_backtest(process, window)
    return tuple(runs), patient, () if index is None else (index,)


def maker_of(name: str, config: Config) -> Make:
    if name == OPTIMAL:
        best = optimum_of(config.market, config.env).policy
        return lambda: best
    return lambda: named_strategy(name, config.evaluation)


def with_compared(makers: Mapping[str, Make], config: Config, panel: MarketPanel) -> dict[str, Make]:
    """Strategies with the classical ones that every report compares them with, whose fits are kept on disk."""
    together = {**makers, **{name: maker_of(name, config) for name in COMPARED if name not in makers}}
    return with_memos(together, kept_fits(config.market, panel.sha256))


def report_on(config: Config, folder: Path, runs: Sequence[Backtest], **details: Any) -> EvaluationOutcome:
    """Write the report of backtests, the first of which is judged."""
    evaluation, alpha = config.evaluation, config.objectives.cvar_alpha
    data = ReportData(
        agent=runs[0],
        strategies=tuple(run for run in runs[1:] if run.name != runs[0].name),
        resampling=Resampling(evaluation.bootstrap_samples, evaluation.block_length, config.train.seed),
        cvar_alpha=alpha,
        **details,
    )
    page, summary = write_report(folder / REPORTS, data), {run.name: summarise(run, alpha) for run in runs}
    return EvaluationOutcome(folder, folder / REPORTS / "report.html", summary, page)


def provenance(config: Config, panel: MarketPanel, windows: Mapping[str, range] | None = None) -> dict[str, Any]:
    """Data, settings and versions, as every report prints them; of one training its windows and its seed too."""
    dates, spans = panel.dates, dict[str, object]()
    if windows is not None:
        spans["windows"] = {name: f"{dates[bars.start]} to {dates[bars.stop - 1]}" for name, bars in windows.items()}
    return {
        "data": panel.describe(),
        **spans,
        "execution": execution(config.env) | {"cash rate": cash_rate(panel)},
        **({} if windows is None else {"seed": config.train.seed}),
        "configuration": config_hash(config)[:16],
        "versions": {"python": platform.python_version(), **{name: version(name) for name in ("finflow", *LIBRARIES)}},
    }


def _ensemble(
    context: ComparisonContext,
    played: Sequence[Backtest],
    agents: Sequence[Backtest],
    best: Optimum | None,
    config: Config,
) -> list[Section]:
    if not agents:
        return []
    judged, baseline = context.runs[0], next(run for run in context.runs if run.name == BASELINE)
    scores = None
    if best is not None:
        found = score_runs(context.process, context.window, (*played, *agents), best).scores
        shown = (judged, baseline, *agents)
        scores = {run.name: found[run.name].score for run in shown if run.name in found}
    return [ensemble_section(judged, agents, baseline, config.train.seed, scores)]


def _explanations(
    context: ComparisonContext, training_data: TrainingData, policy: ExpertPolicy | None
) -> list[Section]:
    made = [attribution_section(context, EXPERTS if policy is None else policy.sources)]
    if policy is not None:
        traits = traits_on(policy, context.process, training_data.split.validation)
        if traits is not None:
            made.append(expert_traits.expert_section(traits, "the decisions of the validation window"))
        fitted, known = training_data.features.fitted, range(context.window.stop)
        mixed = None if fitted is None else gate_on(policy, context.process, known, fitted.crisis)
        if mixed is not None:
            where = "all decisions up to the end of the judged window"
            made.append(expert_traits.gate_section(mixed, policy.sources, where))
        explainer = Explainer(policy, context.process, training_data.features, context.window, context.runs[0])
        made.append(decisions_section(explainer.largest(EXPLAINED)))
    return made


def _optimum(config: Config) -> tuple[Optimum | None, tuple[str, ...]]:
    """The optimum of a synthetic market, from its price process; or None, and the reason why it is unknown."""
    if config.market.source != "synthetic":
        return None, ()
    try:
        return optimum_of(config.market, config.env), ()
    except ConfigError as error:
        return None, (f"There is no score against the optimum: {error}.",)


def execution(env: EnvConfig) -> dict[str, str]:
    """Fills and costs of orders, for the report; costs by size and limits where they are configured."""
    facts = {
        "lag": f"{env.execution_lag} bar(s) between the newest bar known and the fill",
        "fill": env.fill,
        "commission": f"{env.commission_bps:g} bp",
        "slippage": f"{env.slippage_bps:g} bp",
    }
    changed = env.model_dump(exclude_defaults=True)
    if "costs" in changed:
        facts |= {f"costs.{name}": f"{value:g}" for name, value in changed["costs"].items()}
        facts["initial capital"] = f"{env.initial_capital:,.0f}"
    limits = ("max_weight", "max_turnover", "no_trade_band")
    return facts | {name: f"{changed[name]:g}" for name in limits if name in changed}


def _limits(training_data: TrainingData, runs: Sequence[Backtest], agents: int) -> tuple[str, ...]:
    panel = training_data.panel
    remarks = [str(panel.provenance.get("survivorship") or ""), *price_notes(panel)]
    remarks.append(in_sentence(find_implausible(panel)))
    notes = [f"{note[:1].upper()}{note[1:]}." for note in remarks if note]
    one = "One agent from one seed was" if agents < 2 else f"{agents} agents from {agents} seeds were"
    luck = "luck of the seed or of the period" if agents < 2 else "luck of the period"
    notes += [
        f"{one} judged on one test window: the interval covers luck within that window, not the {luck}.",
        f"Prices are {bar_rhythm(panel.bars_per_year)} ({panel.provenance.get('adjusted', 'as they were given')}); "
        "orders fill whole, at the configured price, and "
        + (
            "their market impact is a cost of the trade only: later prices do not change."
            if costs_of(training_data.config.env).needs_market
            else "with the configured costs, and have no market impact."
        ),
    ]
    name = runs[-1].name
    if training_data.panel.benchmark is not None and name == training_data.panel.benchmark_name:
        notes.append(f"{name} is an index bought once at the same costs; it cannot be held by the agent.")
    return tuple(notes)


def ledger_of(config: Config) -> Path:
    """Path of the ledger of readings: ``output.readings``, or a file in ``output.logs_dir``."""
    return config.output.readings or config.output.logs_dir / FILE


@contextmanager
def counted_reading(config: Config, panel: str, judged: str, runs: Sequence[Backtest], folder: Path) -> Iterator[Tries]:
    """Record that the test window was read, and give what had been tried on it before.

    A reading that ends in an error showed no figure: it stays a try, and its Sharpe ratio is taken back. So it is where
    the account grew beyond all numbers. Raises EvidenceError, OutputError if the ledger is damaged, or cannot be
    written.
    """
    path, first, active_sharpe = ledger_of(config), runs[0], None
    before = readings_of(path, panel)
    for baseline in (run for run in runs[1:] if run.name == BASELINE and np.isfinite(first.wealth).all()):
        with suppress(EvidenceError):
            active_sharpe = track_of(first.returns - baseline.returns).sharpe
    reading = Reading(
        panel=panel,
        judged=judged,
        name=first.name,
        compared=tuple(run.name for run in runs[1:]),
        configuration=config_hash(config),
        configurations=config.evaluation.configurations_tried,
        window=(str(first.dates[0]), str(first.dates[-1])),
        active_sharpe=active_sharpe,
        run=str(folder),
        date=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
    )
    record(path, reading)
    try:
        yield tries_of(before, judged, config.evaluation.configurations_tried)
    except Exception:
        if not any(one.judged == judged and one.active_sharpe is not None for one in before):
            record(path, replace(reading, active_sharpe=None))
        raise


def mark_leak(config: Config, panel: MarketPanel, judged: str, name: str, reason: str) -> None:
    """Record in the ledger that an audit found a leak in what a hash of code or weights stands for."""
    split = split_panel(panel, config.market)
    window = (str(panel.dates[split.validation_end]), str(panel.dates[split.test_end - 1]))
    when, tried = dt.datetime.now(dt.UTC).isoformat(timespec="seconds"), config.evaluation.configurations_tried
    seen = panel.until(split.test_end).sha256
    record(
        ledger_of(config), Reading(seen, judged, name, (), config_hash(config), tried, window, None, "", when, reason)
    )
