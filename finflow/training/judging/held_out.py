"""The held-out evaluation: the one place that reads the test window."""

from __future__ import annotations

import io
import json
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

from finflow.agent.networks.policy import EXPERTS, ExpertPolicy
from finflow.config import Config, EnvConfig, config_hash
from finflow.env.decision_process import DecisionProcess
from finflow.errors import ConfigError
from finflow.evaluation.analysis import attribution, expert_traits, gate_states
from finflow.evaluation.analysis import decision_explanation as why
from finflow.evaluation.analysis import generalisation_section as generalisation
from finflow.evaluation.analysis.comparison_context import Field, Make, sharing_fits
from finflow.evaluation.analysis.optimality import score_runs
from finflow.evaluation.backtest import Backtest, index_backtest, run_backtests
from finflow.evaluation.multi_run.repeated_trainings import ensemble_section
from finflow.evaluation.report.report import sections_of, tables_of, write_report
from finflow.evaluation.report.results import BASELINE, ReportData
from finflow.evaluation.report.section import Section
from finflow.evaluation.statistics.metrics import summarise
from finflow.evaluation.statistics.readings_ledger import readings_of
from finflow.files import check_writable
from finflow.ledger.costs import costs_of
from finflow.market.panel import BARS_PER_YEAR, MarketPanel
from finflow.strategies.classical import COMPARED, PatientEqualWeight, named_strategy
from finflow.strategies.optimal.optimal_policy import OPTIMAL, Optimum, optimum_of
from finflow.strategies.strategy import Strategy
from finflow.training.checkpoints.checkpoint_reader import Checkpoint, load_agent, policy_of
from finflow.training.checkpoints.manifest import write_manifest
from finflow.training.data.offline_data import CARD
from finflow.training.data.training_data import TrainingData, prepare
from finflow.training.judging.agent_strategy import AgentStrategy, experts_alone
from finflow.training.judging.expert_portfolios import gate_on, traits_on
from finflow.training.judging.explainer import Explainer
from finflow.training.judging.reading_count import count_reading, ledger_of, policy_identity, strategy_identity
from finflow.training.logs.run_log import EVENTS, METRICS

REPORTS = "reports"
AGENT = "finflow"
NOTABLE = 3  # trades that a report takes apart
LIBRARIES = ("torch", "numpy", "pandas", "skfolio", "quantstats", "arch")


class Outcome(NamedTuple):
    """What an application function leaves behind.

    Attributes
    ----------
    run_folder : Path
    report : Path
    summary : dict
        Strategy -> metric -> value, over the test window; the one reported on comes first. In a synthetic market
        ``optimality`` is the score against the optimum.
    """

    run_folder: Path
    report: Path
    summary: dict[str, dict[str, float]]


def evaluate_agent(
    training_data: TrainingData, checkpoint: Checkpoint, device: torch.device, folder: Path, with_backtest: bool = False
) -> Outcome:
    """Judge the policy in a checkpoint on the test window, beside the classical strategies, and write the report.

    Parameters
    ----------
    training_data : TrainingData
    checkpoint : Checkpoint
    device : torch.device
    folder : Path
        The report goes into its ``reports``.
    with_backtest : bool
        Run the sweeps and the stress periods, whatever ``evaluation.sweeps`` says.
    """
    policy = policy_of(checkpoint, device)
    counters = checkpoint.counters
    facts = {"checkpoint": f"update {counters['update']}, {counters['phase']} phase", **_behaviour(checkpoint)}
    lines = _logged(checkpoint, folder, METRICS)
    rows = pd.read_json(io.StringIO("\n".join(lines)), lines=True) if lines else pd.DataFrame()
    told = _logged(checkpoint, folder, EVENTS)
    events = None if told is None else tuple(json.loads(line) for line in told)
    makers: dict[str, Make] = {AGENT: lambda: AgentStrategy(policy, device, AGENT)}
    sweeps = with_backtest or training_data.config.evaluation.sweeps
    return judge_held_out(
        training_data,
        makers,
        policy_identity(policy),
        folder,
        facts,
        sweeps,
        training=rows,
        experts=experts_alone(policy, device),
        events=events,
        policy=policy,
    )


def evaluate_checkpoint(
    path: Path, overrides: Mapping[str, object], output: Path | None = None, with_backtest: bool = False
) -> Outcome:
    """Evaluate a trained agent from its checkpoint.

    Parameters
    ----------
    path : Path
        A checkpoint file, or a run folder (its best by validation, or its latest without one).
    overrides : mapping
        As in `load_agent`.
    output : Path, optional
        Where ``reports`` goes, with a manifest of its own; the run's own folder when left out.
    with_backtest : bool
        Run the sweeps and the stress periods, whatever ``evaluation.sweeps`` says.

    Raises
    ------
    ConfigError, CheckpointError, MarketError
    """
    checkpoint, training_data, device = load_agent(path, overrides)
    outcome = evaluate_agent(training_data, checkpoint, device, output or checkpoint.run_folder, with_backtest)
    if output is not None:
        write_manifest(output, training_data, device, checkpoint_update=checkpoint.counters["update"])
    return outcome


def backtest_strategies(config: Config, names: Sequence[str], output: Path | None = None) -> Outcome:
    """Backtest named strategies over the test window; the first is the one reported on.

    Parameters
    ----------
    config : Config
    names : sequence of str
        Of ``strategies.classical.NAMED``, import paths, or ``optimal`` in a synthetic market whose optimum is known.
    output : Path, optional
        A folder named after the first strategy, under ``output.logs_dir``, when left out.
    """
    makers: dict[str, Make] = {}
    for path in names:
        make = _maker(path, config)
        name = make().name
        if name in makers:
            raise ConfigError(f"--strategy names {name} twice; leave one of them out")
        makers[name] = make
    folder = output or config.output.logs_dir / f"backtest_{next(iter(makers))}"
    training_data = prepare(config)
    identity = strategy_identity(next(iter(makers.values()))())
    outcome = judge_held_out(training_data, makers, identity, folder, {}, sweeps=True)
    write_manifest(folder, training_data, torch.device("cpu"), strategies=list(names))
    return outcome


def _maker(path: str, config: Config) -> Make:
    """What makes a named strategy, fresh."""
    if path == OPTIMAL:
        best = optimum_of(config.market, config.env).policy
        return lambda: best
    return lambda: named_strategy(path, config.evaluation)


def judge_held_out(
    training_data: TrainingData,
    makers: Mapping[str, Make],
    identity: str,
    folder: Path,
    facts: Mapping[str, object],
    sweeps: bool,
    training: pd.DataFrame | None = None,
    experts: Sequence[Strategy] = (),
    events: tuple[dict[str, Any], ...] | None = None,
    policy: ExpertPolicy | None = None,
    members: Sequence[Strategy] = (),
) -> Outcome:
    """Run a strategy, the first, and those it is compared with over the test window, and write the report.

    Parameters
    ----------
    training_data : TrainingData
    makers : mapping of str to callable
        Name -> what makes a strategy, fresh.
    identity : str
        What the ledger of readings knows the judged one by.
    folder : Path
        The report goes into its ``reports``.
    facts : mapping
        To print beside those of the market.
    sweeps : bool
        Whether to run all again under other conditions.
    training, events
        What was logged in training.
    experts : sequence of Strategy
        Each expert of the judged agent, deciding alone.
    policy : ExpertPolicy, optional
        Of the judged agent, whose decisions are taken apart.
    members : sequence of Strategy
        The agents that the judged ensemble is made of, each deciding alone.
    """
    check_writable(folder / REPORTS, keep=False)
    config, process, window = training_data.config, training_data.held_out_process(), training_data.split.test
    readings_of(ledger_of(config), training_data.panel.sha256)  # a damaged ledger is told before any work is done
    playing = sharing_fits({**makers, **{name: _maker(name, config) for name in COMPARED if name not in makers}})
    best, unknown = _best_policy(config)
    optimal = [best.policy] if best is not None and best.policy.name not in makers else []
    patient = PatientEqualWeight()
    *both, seldom = run_backtests(
        process, window, [*(make() for make in playing.values()), *optimal, *experts, *members, patient]
    )
    both, own = both[: len(both) - len(members)], both[len(both) - len(members) :]
    played, alone = tuple(both[: len(both) - len(experts)]), tuple(both[len(both) - len(experts) :])
    known = score_runs(process, window, played, best) if best is not None else None
    index = index_backtest(process, window)
    runs = (*played, index) if index is not None and index.name not in makers else played
    field = Field(process, window, playing, played[: len(playing)])
    tries = count_reading(config, training_data.panel.sha256, identity, runs, folder)
    data = ReportData(
        title=f"{field.judged} on {_universe(training_data)}",
        agent=runs[0],
        strategies=runs[1:],
        bootstrap_samples=config.evaluation.bootstrap_samples,
        confidence=config.evaluation.confidence,
        block_length=config.evaluation.block_length,
        seed=config.train.seed,
        cvar_alpha=config.objectives.cvar_alpha,
        training=training if training is not None else pd.DataFrame(),
        facts={**facts, **_provenance(training_data, process)},
        notes=(*_limits(training_data, runs, len(members)), *unknown),
        optimum=known,
        experts=alone,
        sections=(
            *_together(field, played, own, best, config),
            *_reasons(field, training_data, policy),
            *_learned(training),
            *sections_of(field, training_data.split, config, sweeps),
        ),
        files=tables_of(field, tuple(makers)),
        tries=tries,
        patient=seldom,
        events=events,
    )
    report = write_report(folder / REPORTS, data)
    summary = {run.name: summarise(run, config.objectives.cvar_alpha) for run in runs}
    for name, one in known.scores.items() if known is not None else ():
        summary[name]["optimality"] = one.score
    return Outcome(folder, report, summary)


def _together(
    field: Field, played: Sequence[Backtest], agents: Sequence[Backtest], best: Optimum | None, config: Config
) -> list[Section]:
    """What the agents of an ensemble are worth, each alone."""
    if not agents:
        return []
    baseline = next(run for run in field.runs if run.name == BASELINE)
    scores = None
    if best is not None:
        found = score_runs(field.process, field.window, (*played, *agents), best).scores
        shown = (field.runs[0].name, baseline.name, *(run.name for run in agents))
        scores = {name: found[name].score for name in shown if name in found}
    settings = config.evaluation
    return [ensemble_section(field.runs[0], agents, baseline, settings.confidence, config.train.seed, scores)]


def _reasons(field: Field, training_data: TrainingData, policy: ExpertPolicy | None) -> list[Section]:
    """What the return came from, and for an agent why it traded when it traded most."""
    made = [attribution.section(field, EXPERTS if policy is None else policy.names)]
    if policy is not None:
        traits = traits_on(policy, field.process, training_data.split.validation)
        if traits is not None:
            made.append(expert_traits.section(traits, "the decisions of the validation window"))
        fitted, known = training_data.features.fitted, range(field.window.stop)
        mixed = None if fitted is None else gate_on(policy, field.process, known, fitted.crisis)
        if mixed is not None:
            made.append(gate_states.section(mixed, policy.names, "all decisions up to the end of the judged window"))
        explainer = Explainer(policy, field.process, training_data.features, field.window, field.runs[0])
        made.append(why.section(explainer.largest(NOTABLE)))
    return made


def _learned(training: pd.DataFrame | None) -> list[Section]:
    """How the training generalised, where it was measured."""
    found = None if training is None else generalisation.section(training)
    return [] if found is None else [found]


def _best_policy(config: Config) -> tuple[Optimum | None, tuple[str, ...]]:
    """The optimum of a synthetic market, from its law; or None, and why it is not known."""
    if config.market.source != "synthetic":
        return None, ()
    try:
        return optimum_of(config.market, config.env), ()
    except ConfigError as error:
        return None, (f"There is no score against the optimum: {error}.",)


def _logged(checkpoint: Checkpoint, folder: Path, name: str) -> list[str] | None:
    """The whole lines of a log of the training, where it is still beside the checkpoint; None where it is not."""
    for candidate in (folder, checkpoint.run_folder):
        path = candidate / name
        if path.is_file():
            return [line for line in path.read_text("utf-8", errors="replace").splitlines() if _is_row(line)]
    return None


def _behaviour(checkpoint: Checkpoint) -> dict[str, str]:
    """What the agent learned from before it decided for itself, where the run's data card is still there."""
    try:
        card = json.loads((checkpoint.run_folder / CARD).read_text("utf-8"))
        episodes = {name: f"{family['episodes']:,} episodes" for name, family in card["families"].items()}
        for name, family in card["families"].items():
            sharpe, turnover = (family["returns"][key]["median"] for key in ("sharpe", "annual_turnover"))
            if sharpe is not None and turnover is not None:
                episodes[name] += f" (Sharpe {sharpe:.2f}, turnover {turnover:.1f})"
        told = ", ".join(f"{name} {words}" for name, words in episodes.items())
        return {"behaviour data": f"{card['transitions']:,} decisions in the training window, medians a year: {told}"}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _is_row(line: str) -> bool:
    """Whether a line of the log is whole: the last may not be, where a run was killed."""
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def _universe(training_data: TrainingData) -> str:
    """How the report names the market."""
    source, count = training_data.config.market.source, training_data.panel.n_assets
    return f"{count} stocks of the S&P 500" if source == "embedded" else f"{count} assets ({source})"


def cash_rate(panel: MarketPanel) -> str:
    """What cash earns a year on the panel, for the report: one rate, or the range of a series."""
    annual = (1.0 + panel.cash_returns[1:]) ** BARS_PER_YEAR - 1.0
    if np.ptp(annual) < 1e-9:
        return f"{annual[0]:.2%} a year"
    return f"{annual.min():.2%} to {annual.max():.2%} a year, {annual.mean():.2%} on average"


def execution(env: EnvConfig) -> dict[str, str]:
    """How orders fill and what they cost, for the report; costs by size and limits where they are configured."""
    told = {
        "lag": f"{env.execution_lag} bar(s) between the newest bar known and the fill",
        "fill": env.fill,
        "commission": f"{env.commission_bps:g} bp",
        "slippage": f"{env.slippage_bps:g} bp",
    }
    costs = env.costs.model_dump(exclude_defaults=True)
    if costs:
        told |= {f"costs.{name}": f"{value:g}" for name, value in costs.items()}
        told["initial capital"] = f"{env.initial_capital:,.0f}"
    for name in ("max_weight", "max_turnover", "no_trade_band"):
        value = getattr(env, name)
        if value != EnvConfig.model_fields[name].default:
            told[name] = f"{value:g}"
    return told


def _provenance(training_data: TrainingData, process: DecisionProcess) -> dict[str, Any]:
    """What the report prints about data and settings."""
    config, panel, split = training_data.config, training_data.panel, training_data.split

    def window(bars: range) -> str:
        return f"{panel.dates[bars.start]} to {panel.dates[bars.stop - 1]}"

    return {
        "data": panel.describe(),
        "windows": {
            "train": window(split.train),
            "validation": window(split.validation),
            "test": window(split.test),
        },
        "execution": execution(config.env) | {"cash rate": cash_rate(panel)},
        "seed": config.train.seed,
        "configuration": config_hash(config)[:16],
        "versions": {"python": platform.python_version(), **{name: version(name) for name in ("finflow", *LIBRARIES)}},
    }


def _limits(training_data: TrainingData, runs: Sequence[Backtest], agents: int) -> tuple[str, ...]:
    """What the data cannot show, in words."""
    notes = []
    survivorship = str(training_data.panel.provenance.get("survivorship") or "")
    if survivorship:
        notes.append(f"{survivorship[:1].upper()}{survivorship[1:]}.")
    one = "One agent from one seed was" if agents < 2 else f"{agents} agents from {agents} seeds were"
    luck = "luck of the seed or of the period" if agents < 2 else "luck of the period"
    notes += [
        f"{one} judged on one test window: the interval covers luck within that window, not the {luck}.",
        "Prices are daily and adjusted; orders fill whole, at the configured price, and "
        + (
            "what they move is a cost of the trade alone: later prices stay as they were."
            if costs_of(training_data.config.env).needs_market
            else "with the configured costs, and move no market."
        ),
    ]
    index = runs[-1]
    if training_data.panel.benchmark is not None and index.name == training_data.panel.benchmark_name:
        notes.append(f"{index.name} is an index bought once at the same costs; it cannot be held by the agent.")
    return tuple(notes)
