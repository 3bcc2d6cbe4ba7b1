"""Evaluations of trained agents and named strategies on the test window."""

from __future__ import annotations

import datetime as dt
import hashlib
import inspect
import io
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from finflow.arrays import BoolArray
from finflow.config import Config
from finflow.errors import CheckpointError, ConfigError, MarketError, refuse
from finflow.evaluation.analysis.attribution import Dated
from finflow.evaluation.analysis.training_sections import Values, distance_section, measure_distance
from finflow.evaluation.backtest import BASELINE, Make, run_backtests, with_memos
from finflow.evaluation.page.section import Section
from finflow.evaluation.statistics.significance_tests import readings_of
from finflow.json_text import parse_json
from finflow.market.features.feature_set import Features
from finflow.market.plausibility.price_notes import opening_lines
from finflow.strategies.classical import OPTIMISERS, Optimised, named_strategy
from finflow.strategies.strategy import Strategy
from finflow.training.checkpoints.checkpoint_reader import PREFERENCES, Checkpoint, check_same_features, stored_config
from finflow.training.checkpoints.run_folder import write_manifest
from finflow.training.data.training_data import CARD, TrainingData, prepare
from finflow.training.judging.agent_strategy import Agents, EnsembleStrategy, load_agents
from finflow.training.judging.explainer import Explainer
from finflow.training.judging.held_out import EvaluationOutcome, counted_reading, judge_held_out, ledger_of, maker_of
from finflow.training.logs.run_log import EVENTS, METRICS

_FAMILIES = {
    "classical": ("EqualWeight", "BuyAndHold", "SixtyForty"),
    "signals": ("Momentum", "TimeSeriesMomentum", "LowVolatility"),
    "online": ("ConstantRebalanced", "ExponentiatedGradient", "PassiveAggressiveMeanReversion", "MeanReversion"),
    "patient": ("PatientEqualWeight",),
    "optimal": ("OptimalPolicy",),
}
_NAMESPACE = {kind: f"finflow.strategies.{family}" for family, kinds in _FAMILIES.items() for kind in kinds}
"""Class of finflow's own -> the name that ledgers have on file with it, wherever the class lies now."""
_OPTIMISED = {name: name.title().replace("-", "").replace("Cvar", "CVaR") for name in OPTIMISERS}
"""Rule of an optimiser -> the class that ledgers have on file for it."""


def evaluate_agents(agents: Agents, folder: Path | None = None, with_backtest: bool = False) -> EvaluationOutcome:
    """Evaluate trained agents on the test window of their configuration; their own folder takes the report."""
    training_data, place = _opened(agents.config), folder or agents.folder
    outcome = judge_agents(training_data, agents, place, with_backtest)
    if place != agents.checkpoints[0].run_folder:
        updates = [checkpoint.counters["update"] for checkpoint in agents.checkpoints]
        write_manifest(place, training_data, agents.device, checkpoint_updates=updates)
    return outcome


def judge_agents(
    training_data: TrainingData, agents: Agents, folder: Path, with_backtest: bool = False
) -> EvaluationOutcome:
    """Judge agents as one on the test window, several also each alone, against the classical strategies.

    The test window is read once, by all of them: one line in the ledger of readings.
    """
    checkpoint, acting = agents.checkpoints[0], agents.config.acting
    for one in agents.checkpoints:
        check_same_features(one, training_data.features)
    updates = [f"update {one.counters['update']}" for one in agents.checkpoints]
    details: dict[str, Any] = {"sections": distance_sections(checkpoint, training_data)}
    acted = {} if acting.takes_centre else {"acting": acting.describe()}
    makers: Mapping[str, Make] = agents.makers()
    if len(updates) == 1:
        rows, events = _logged(checkpoint, folder, METRICS), _logged(checkpoint, folder, EVENTS)
        lines = io.StringIO("\n".join(map(json.dumps, rows or ())))
        found = {"checkpoint": f"{updates[0]}, {checkpoint.counters['phase']} phase"}
        facts: dict[str, object] = {**found, **acted, **_behaviour(checkpoint), **_preferences(checkpoint)}
        details |= {
            "policy": agents.policies[0],
            "training": pd.read_json(lines, lines=True) if rows else pd.DataFrame(),
            "events": None if events is None else tuple(events),
        }
    else:
        alone = list(with_memos(makers).values())  # alone and together, an agent reads the market once
        named = [f"{name}: {update}" for name, update in zip(agents.names, updates, strict=True)]
        facts = {"agents": named, "decision": "the mean of the agents' portfolios", **acted}
        together = EnsembleStrategy([make() for make in alone]).name
        makers = {together: lambda: EnsembleStrategy([make() for make in alone])}
        details["members"] = [make() for make in alone]
    sweeps = with_backtest or training_data.config.evaluation.sweeps
    return judge_held_out(training_data, makers, agents.identity, folder, sweeps, facts, **details)


def backtest_strategies(config: Config, names: Sequence[str]) -> EvaluationOutcome:
    """Backtest named strategies over the test window; the first is the one reported on, in a folder of its name.

    ``names``: of ``strategies.classical.NAMED``, import paths, or ``optimal`` in a synthetic market whose optimum is
    known.
    """
    makers: dict[str, Make] = {}
    for path in names:
        make = maker_of(path, config)
        name = make().name
        refuse(name in makers, f"--strategy names {name} twice; leave one of them out", ConfigError)
        makers[name] = make
    folder = config.output.logs_dir / f"backtest_{next(iter(makers))}"
    training_data = _opened(config)
    identity = strategy_identity(next(iter(makers.values()))())
    outcome = judge_held_out(training_data, makers, identity, folder, sweeps=True)
    write_manifest(folder, training_data, torch.device("cpu"), strategies=list(names))
    return outcome


def _opened(config: Config) -> TrainingData:
    """The market of a configuration, after lines that say what it is."""
    training_data = prepare(config)
    print("\n".join(opening_lines(training_data.panel, training_data.split)))
    return training_data


def _logged(checkpoint: Checkpoint, folder: Path, name: str) -> list[dict[str, Any]] | None:
    """The whole rows of a log of the training, where it is still beside the checkpoint; None where it is not."""
    path = next((path for place in (folder, checkpoint.run_folder) if (path := place / name).is_file()), None)
    if path is None:
        return None
    rows: list[Any] = []
    for line in path.read_text("utf-8", errors="replace").splitlines():
        with suppress(ValueError):
            rows.append(parse_json(line))
    return [row for row in rows if isinstance(row, dict)]


def _behaviour(checkpoint: Checkpoint) -> dict[str, str]:
    """The main figures of the data card, where it is still beside the checkpoint."""
    try:
        card = parse_json((checkpoint.run_folder / CARD).read_text("utf-8"))
        words = [f"{name} {family['episodes']:,} episodes" for name, family in card["families"].items()]
        for place, family in enumerate(card["families"].values()):
            sharpe, turnover = (family["returns"][key]["median"] for key in ("sharpe", "annual_turnover"))
            if sharpe is not None and turnover is not None:
                words[place] += f" (Sharpe {sharpe:.2f}, turnover {turnover:.1f})"
        made = f"{card['transitions']:,} decisions in the training window, medians a year: {', '.join(words)}"
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError):
        return {}
    return {"behaviour data": made}


def _preferences(checkpoint: Checkpoint) -> dict[str, str]:
    found = checkpoint.facts.get(PREFERENCES)
    if not isinstance(found, dict):
        return {}
    try:
        told = f"{found['method']} on {found['counts']['fitted']:,} pairs, seed {found['seed']}"
        return {"preferences": f"{told}; KL to the agent before {found['divergence']:.3g} nats per free dimension"}
    except (KeyError, TypeError, ValueError):
        raise CheckpointError(f"{checkpoint.path} does not say how it learned from preferences") from None


def distance_sections(checkpoint: Checkpoint, training_data: TrainingData) -> tuple[Section, ...]:
    """The section about the features of another market; none where the agent is judged on its own."""
    if checkpoint.facts["market"] == training_data.process.panel.sha256:
        return ()
    try:
        own = prepare(stored_config(checkpoint))
    except (ConfigError, MarketError) as error:
        return (distance_section({"unknown": f"The prices of the agent's training cannot be read: {error}"}),)
    if own.process.panel.sha256 != checkpoint.facts["market"]:
        return (distance_section({"unknown": "The prices of the agent's training have changed since"}),)
    features = own.features
    fitted_on = slice(features.first_bar, own.split.train_end)
    trained = _values(features, features.assets[fitted_on], features.market[fitted_on], own.panel.listed[fitted_on])
    process = training_data.held_out_process()
    bars, lag = process.decision_bars(training_data.split.test), training_data.config.env.execution_lag
    known = slice(bars.start - lag, bars.stop - lag)
    assets = process.asset_features[known, :, : len(features.asset_names)]
    judged = _values(features, assets, process.market_features[known], process.panel.listed[known])
    return (distance_section(measure_distance(trained, judged)),)


def _values(named: Features, assets: NDArray[np.float32], market: NDArray[np.float32], listed: BoolArray) -> Values:
    there = listed & (assets != 0.0).any(axis=-1)  # a row of zeros: too little history
    of_assets, of_market = assets[there].astype(np.float64), market.astype(np.float64)
    columns = {name: of_assets[:, place] for place, name in enumerate(named.asset_names)}
    return columns | {name: of_market[:, place] for place, name in enumerate(named.market_names)}


def strategy_identity(strategy: Strategy) -> str:
    """SHA-256 of a rule: its name, class and plain settings; of a user's own, its source as well.

    A rule of finflow's own has the same identity in whichever file its class lies: ledgers outlive files.
    """
    kind = type(strategy)
    own_rule = kind.__module__.partition(".")[0] == "finflow"
    namespace = _NAMESPACE.get(kind.__qualname__, "finflow.strategies") if own_rule else kind.__module__
    own, name = dict(getattr(strategy, "__dict__", {})), kind.__qualname__
    if kind is Optimised:
        namespace, name = "finflow.strategies.fitted", _OPTIMISED[own.pop("name")]
    settings = {key: value for key, value in own.items() if isinstance(value, bool | int | float | str | None)}
    digest = hashlib.sha256(b"strategy")
    digest.update(json.dumps([strategy.name, namespace, name, settings], sort_keys=True).encode())
    if not own_rule:
        try:
            digest.update(Path(inspect.getfile(kind)).read_bytes())
        except (OSError, TypeError):
            digest.update(b"source unknown")
    return digest.hexdigest()


def explain_dates(path: Path, overrides: Mapping[str, object], dates: Sequence[str]) -> list[Dated]:
    """Explain decisions of a trained agent in its test window.

    The window is read for that, and the reading is counted where this agent has none on file.
    """
    wanted = [_date(text) for text in dates]
    agents = load_agents([path], overrides)
    config, training_data = agents.config, _opened(agents.config)
    check_same_features(agents.alone, training_data.features)
    process, window, panel = training_data.held_out_process(), training_data.split.test, training_data.panel
    bars = process.decision_bars(window)
    known = panel.dates[bars.start : bars.stop]
    for date in wanted:
        if not known[0] <= date <= known[-1]:
            raise ConfigError(f"{date} is not a date of the evaluation, which decides from {known[0]} to {known[-1]}")
    runs = run_backtests(process, window, [*agents.strategies(), named_strategy(BASELINE, config.evaluation)])
    if not any(reading.judged == agents.identity for reading in readings_of(ledger_of(config), panel.sha256)):
        with counted_reading(config, panel.sha256, agents.identity, runs, path):
            pass
    explainer = Explainer(agents.policies[0], process, training_data.features, window, runs[0])
    return [explainer.explain(int(np.searchsorted(known, date))) for date in wanted]


def _date(text: str) -> np.datetime64:
    try:
        return np.datetime64(dt.date.fromisoformat(text), "D")
    except ValueError:
        raise ConfigError(f"{text!r} is not a date: write it as 2020-03-16") from None
