"""Evaluations of trained agents and named strategies on the test window: from a checkpoint, several, or a name."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from finflow.config import ActingConfig, Config
from finflow.errors import CheckpointError, ConfigError, MarketError
from finflow.evaluation.analysis.feature_distance import Values, measure_distance, section
from finflow.evaluation.comparison_context import Make, with_memos
from finflow.evaluation.page.section import Section
from finflow.json_text import parse_json
from finflow.market.features.feature_set import Features
from finflow.training.checkpoints.checkpoint_reader import (
    PREFERENCES,
    Checkpoint,
    check_free,
    check_same_features,
    load_agent,
    policy_of,
    read_best,
    stored_config,
)
from finflow.training.checkpoints.run_folder import write_manifest
from finflow.training.data.training_data import CARD, TrainingData, choose_device, prepare
from finflow.training.judging.agent_strategy import AgentStrategy, EnsembleStrategy
from finflow.training.judging.held_out import AGENT, EvaluationOutcome, Subject, judge_held_out, maker_of
from finflow.training.judging.reading_count import policy_identity, strategy_identity
from finflow.training.logs.run_log import EVENTS, METRICS

SHARED_SECTIONS = ("market", "features", "env", "objectives")
"""Sections that agents acting as one must have in common: they decide what is observed."""


def evaluate_agent(
    training_data: TrainingData, checkpoint: Checkpoint, device: torch.device, folder: Path, with_backtest: bool = False
) -> EvaluationOutcome:
    """Judge the policy in a checkpoint on the test window, against the classical strategies, and write the report."""
    policy, counters, acting = policy_of(checkpoint, device), checkpoint.counters, training_data.config.acting
    lines, events = _logged(checkpoint, folder, METRICS), _logged(checkpoint, folder, EVENTS)
    subject = Subject(
        {AGENT: lambda: AgentStrategy(policy, device, AGENT, acting=acting)},
        policy_identity(policy, acting),
        {
            "checkpoint": f"update {counters['update']}, {counters['phase']} phase",
            **_acting_fact(acting),
            **_behaviour(checkpoint),
            **_preferences(checkpoint),
        },
        policy=policy,
        training=pd.read_json(io.StringIO("\n".join(lines)), lines=True) if lines else pd.DataFrame(),
        events=None if events is None else tuple(json.loads(line) for line in events),
        sections=distance_sections(checkpoint, training_data),
    )
    sweeps = with_backtest or training_data.config.evaluation.sweeps
    return judge_held_out(training_data, subject, folder, sweeps)


def evaluate_checkpoint(
    path: Path, overrides: Mapping[str, object], output: Path | None = None, with_backtest: bool = False
) -> EvaluationOutcome:
    """Evaluate a trained agent from its checkpoint, or a run folder; ``output`` is where ``reports`` goes."""
    checkpoint, training_data, device = load_agent(path, overrides)
    outcome = evaluate_agent(training_data, checkpoint, device, output or checkpoint.run_folder, with_backtest)
    if output is not None:
        write_manifest(output, training_data, device, checkpoint_update=checkpoint.counters["update"])
    return outcome


def backtest_strategies(config: Config, names: Sequence[str]) -> EvaluationOutcome:
    """Backtest named strategies over the test window; the first is the one reported on, in a folder of its name.

    ``names``: of ``strategies.classical.NAMED``, import paths, or ``optimal`` in a synthetic market whose optimum is
    known.
    """
    makers: dict[str, Make] = {}
    for path in names:
        make = maker_of(path, config)
        name = make().name
        if name in makers:
            raise ConfigError(f"--strategy names {name} twice; leave one of them out")
        makers[name] = make
    folder = config.output.logs_dir / f"backtest_{next(iter(makers))}"
    training_data = prepare(config)
    subject = Subject(makers, strategy_identity(next(iter(makers.values()))()))
    outcome = judge_held_out(training_data, subject, folder, sweeps=True)
    write_manifest(folder, training_data, torch.device("cpu"), strategies=list(names))
    return outcome


def evaluate_ensemble(
    paths: Sequence[Path],
    overrides: Mapping[str, object],
    output: Path,
    part: Path | None = None,
    with_backtest: bool = False,
    *,
    own_folder: bool = False,
) -> EvaluationOutcome:
    """Evaluate agents that act as one on the test window, with each alone for comparison.

    Raises FinflowError if an agent cannot be used, or was not trained to see what the others see.
    """
    check_free(overrides)
    checkpoints = [read_best(path) for path in paths]
    config = stored_config(checkpoints[0], overrides)
    torch.set_num_threads(config.train.threads)
    training_data = prepare(config)
    device = choose_device(config.train.device)
    identities = identities_of(checkpoints, device, config.acting)
    folder = (output / mark_of(identities) if own_folder else output) / (part or "")
    outcome = judge_ensemble(training_data, checkpoints, device, folder, with_backtest)
    updates = [checkpoint.counters["update"] for checkpoint in checkpoints]
    write_manifest(folder, training_data, device, checkpoint_updates=updates)
    return outcome


def judge_ensemble(
    training_data: TrainingData,
    checkpoints: Sequence[Checkpoint],
    device: torch.device,
    folder: Path,
    with_backtest: bool = False,
) -> EvaluationOutcome:
    """Judge agents as one on the test window, with each alone for comparison, and write the report.

    The test window is read once, by all of them: one line in the ledger of readings.
    """
    check_alike(checkpoints)
    for checkpoint in checkpoints:
        check_same_features(checkpoint, training_data.features)
    acting = training_data.config.acting
    identities = identities_of(checkpoints, device, acting)
    policies = [policy_of(checkpoint, device) for checkpoint in checkpoints]
    names = names_of(checkpoints)
    agents = {
        name: partial(AgentStrategy, policy, device, name, acting=acting)
        for policy, name in zip(policies, names, strict=True)
    }
    makers = list(with_memos(agents).values())  # alone and together, an agent reads the market once
    found = [f"{name}: update {one.counters['update']}" for name, one in zip(names, checkpoints, strict=True)]
    together = EnsembleStrategy([make() for make in makers]).name
    subject = Subject(
        {together: lambda: EnsembleStrategy([make() for make in makers])},
        identities[0] if len(identities) == 1 else mark_of(identities, whole=True),
        {"agents": found, "decision": "the mean of the agents' portfolios", **_acting_fact(acting)},
        members=[make() for make in makers],
        sections=distance_sections(checkpoints[0], training_data),
    )
    return judge_held_out(training_data, subject, folder, with_backtest or training_data.config.evaluation.sweeps)


def check_alike(checkpoints: Sequence[Checkpoint]) -> None:
    """Agents that act as one see the same market in the same way.

    Raises CheckpointError: naming the two that do not.
    """
    first, *others = checkpoints
    base = stored_config(first)
    for other in others:
        config = stored_config(other)
        for name in SHARED_SECTIONS:
            if _deciding(config, name) != _deciding(base, name):
                raise CheckpointError(
                    f"{other.path} was trained with another {name} section than {first.path}: agents that act as "
                    "one must see the same; leave one of them out"
                )
        if other.facts["market"] != first.facts["market"]:
            raise CheckpointError(f"{other.path} was trained on other prices than {first.path}; leave one of them out")


def _deciding(config: Config, section: str) -> dict[str, Any]:
    """A section without the number of processes that compute its rewards, which decides nothing."""
    found: dict[str, Any] = getattr(config, section).model_dump(exclude={"workers"})
    return found


def names_of(checkpoints: Sequence[Checkpoint]) -> list[str]:
    """Name of each agent: its seed where seeds differ, its number otherwise."""
    seeds = [f"seed {stored_config(checkpoint).train.seed}" for checkpoint in checkpoints]
    alike = len(set(seeds)) < len(seeds)
    return [f"agent {number}" for number in range(1, len(seeds) + 1)] if alike else seeds


def identities_of(
    checkpoints: Sequence[Checkpoint], device: torch.device, acting: ActingConfig | None = None
) -> list[str]:
    """Identity of each agent, acting as configured, in the ledger of readings.

    Raises CheckpointError if one is there twice: it would count twice in the mean.
    """
    known: dict[str, Path] = {}
    for checkpoint in checkpoints:
        identity = policy_identity(policy_of(checkpoint, device), acting)
        if identity in known:
            raise CheckpointError(f"{checkpoint.path} is the same agent as {known[identity]}; leave one of them out")
        known[identity] = checkpoint.path
    return list(known)


def mark_of(identities: Sequence[str], whole: bool = False) -> str:
    digest = hashlib.sha256("\n".join(["ensemble", *sorted(identities)]).encode()).hexdigest()
    return digest if whole else digest[:8]


def _acting_fact(acting: ActingConfig) -> dict[str, str]:
    return {} if acting.takes_centre else {"acting": acting.describe()}


def _logged(checkpoint: Checkpoint, folder: Path, name: str) -> list[str] | None:
    """The whole lines of a log of the training, where it is still beside the checkpoint; None where it is not."""
    for candidate in (folder, checkpoint.run_folder):
        path = candidate / name
        if path.is_file():
            return [line for line in path.read_text("utf-8", errors="replace").splitlines() if _is_row(line)]
    return None


def _behaviour(checkpoint: Checkpoint) -> dict[str, str]:
    try:
        card = parse_json((checkpoint.run_folder / CARD).read_text("utf-8"))
        episodes = {name: f"{family['episodes']:,} episodes" for name, family in card["families"].items()}
        for name, family in card["families"].items():
            sharpe, turnover = (family["returns"][key]["median"] for key in ("sharpe", "annual_turnover"))
            if sharpe is not None and turnover is not None:
                episodes[name] += f" (Sharpe {sharpe:.2f}, turnover {turnover:.1f})"
        told = ", ".join(f"{name} {words}" for name, words in episodes.items())
        return {"behaviour data": f"{card['transitions']:,} decisions in the training window, medians a year: {told}"}
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError):
        return {}


def _preferences(checkpoint: Checkpoint) -> dict[str, str]:
    found = checkpoint.facts.get(PREFERENCES)
    if not isinstance(found, dict):
        return {}
    try:
        told = f"{found['method']} on {found['counts']['fitted']:,} pairs, seed {found['seed']}"
        return {"preferences": f"{told}; KL to the agent before {found['divergence']:.3g} nats per free dimension"}
    except (KeyError, TypeError, ValueError):
        raise CheckpointError(f"{checkpoint.path} does not say how it learned from preferences") from None


def _is_row(line: str) -> bool:
    try:
        return isinstance(parse_json(line), dict)
    except ValueError:
        return False


def distance_sections(checkpoint: Checkpoint, training_data: TrainingData) -> tuple[Section, ...]:
    """The section about the features of another market; none where the agent is judged on its own."""
    if checkpoint.facts["market"] == training_data.process.panel.sha256:
        return ()
    return (section(_distance(checkpoint, training_data)),)


def _distance(checkpoint: Checkpoint, training_data: TrainingData) -> dict[str, Any]:
    try:
        own = prepare(stored_config(checkpoint))
    except (ConfigError, MarketError) as error:
        return {"unknown": f"The prices of the agent's training cannot be read: {error}"}
    if own.process.panel.sha256 != checkpoint.facts["market"]:
        return {"unknown": "The prices of the agent's training have changed since"}
    features = own.features
    fitted_on = slice(features.first_bar, own.split.train_end)
    trained = _values(features, features.assets[fitted_on], features.market[fitted_on], own.panel.listed[fitted_on])
    process = training_data.held_out_process()
    bars, lag = process.decision_bars(training_data.split.test), training_data.config.env.execution_lag
    known = slice(bars.start - lag, bars.stop - lag)
    assets = process.asset_features[known, :, : len(features.asset_names)]
    judged = _values(features, assets, process.market_features[known], process.panel.listed[known])
    return measure_distance(trained, judged)


def _values(
    named: Features, assets: NDArray[np.float32], market: NDArray[np.float32], listed: NDArray[np.bool_]
) -> Values:
    there = listed & (assets != 0.0).any(axis=-1)  # a row of zeros: too little history
    of_assets, of_market = assets[there].astype(np.float64), market.astype(np.float64)
    columns = {name: of_assets[:, place] for place, name in enumerate(named.asset_names)}
    return columns | {name: of_market[:, place] for place, name in enumerate(named.market_names)}
