"""Effects of the coefficients that the presets set, each changed alone, in pairs of short trainings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from scipy import stats

from finflow.agent.batch import states_of
from finflow.config import Config
from finflow.env.coverage import draw_coverage
from finflow.evaluation.backtest import run_backtests
from finflow.evaluation.statistics.metrics import summarise
from finflow.training.data.training_data import TrainingData
from finflow.training.judging.agent_strategy import AgentStrategy
from finflow.training.trainer import FinFlowTrainer
from scripts.evidence.results import Variant, by_seed, train_and_validate
from scripts.evidence.tables import half_width, markdown_table

PREFIX = "coefficients-"
SEEDS = 8
#: Lognormal prices, where policies concentrate, and the embedded stocks, where short trainings stay near equal weight.
MARKETS: dict[str, dict[str, object]] = {
    "lognormal": {"market.source": "synthetic", "market.synthetic.kind": "lognormal"},
    "embedded": {},
}
#: A tenth of the default's episodes without evidence out of fold: 98 updates online.
SHORT: dict[str, object] = {
    "train.offline_episodes": 50,
    "train.offline_training_epochs": 2,
    "train.online_episodes": 100,
    "offline.patience": 0,
    "offline.evaluation_updates": 0,
    "out_of_fold.blocks": 1,
}
DEFAULT = "default"
#: What configs/volatile.yaml and configs/calm.yaml set, and no penalty at all, each alone.
CHANGES: dict[str, dict[str, object]] = {
    DEFAULT: {},
    "alpha_init 1.0": {"bcell.alpha_init": 1.0},
    "alpha_init 0.5": {"bcell.alpha_init": 0.5},
    "cql_alpha 10": {"bcell.cql_alpha": 10.0},
    "cql_alpha 0": {"bcell.cql_alpha": 0.0},
}
#: Figure -> its heading.
SHOWN = {
    "entropy": "H(w) / ln K",
    "coverage_value": "Q of coverage actions, sigma_A",
    "coverage_gap": "less Q of the policy's own",
    "turnover": "turnover a year",
}
STATES, PROPOSALS = 256, 8  # of the coverage actions that are valued


def coefficient_variants() -> list[Variant]:
    """The default and each change on each market, with the same seeds."""
    return [
        Variant(
            variant_name(market, name),
            tuple(range(SEEDS)),
            {**SHORT, **of_market, **keys},
            measure=measure_coefficients,
        )
        for market, of_market in MARKETS.items()
        for name, keys in CHANGES.items()
    ]


def variant_name(market: str, change: str) -> str:
    """Name of the files of a change on a market."""
    return f"{PREFIX}{market}-{change.replace(' ', '-').replace('_', '-')}"


def measure_coefficients(config: Config) -> dict[str, Any]:
    """Train, and measure the learned policy's decisions on validation and the critics' values there."""
    trainer, _, seconds, _ = train_and_validate(config)
    data = trainer.training_data
    (run,) = run_backtests(data.process, data.split.validation, [AgentStrategy(trainer.agent.policy, trainer.device)])
    held = run.weights.clip(1e-12)
    entropy = float(-(held * np.log(held)).sum(axis=1).mean()) / math.log(held.shape[1])
    return {
        "seconds": seconds,
        "entropy": entropy,
        "turnover": float(summarise(run, config.objectives.cvar_alpha)["annual_turnover"]),
        **coverage_values(trainer, data),
    }


@torch.no_grad()
def coverage_values(trainer: FinFlowTrainer, data: TrainingData) -> dict[str, float]:
    """Mean of the least value over critics of actions that cover the simplex, in sigma_A, and less that of the own one.

    The states are those of equal weight at bars of validation; states and actions are the same for every training.
    """
    agent, process = trainer.agent, data.process
    rng = np.random.default_rng(0)
    bars = rng.choice(np.asarray(process.decision_bars(data.split.validation)), STATES)
    states = states_of(process.observe(process.start(bars)), trainer.device)
    drawn, _ = draw_coverage(rng, STATES * PROPOSALS, process.n_weights)
    actions = torch.as_tensor(drawn, dtype=torch.float32, device=trainer.device).view(STATES, PROPOSALS, -1)
    own = agent.policy.deterministic(states).unsqueeze(1)
    values = agent.critic.value(agent.critic.encode(states), states, torch.cat([own, actions], dim=1), 0).mean
    least = values.min(dim=0).values / agent.advantage_scale
    return {"coverage_value": float(least[:, 1:].mean()), "coverage_gap": float((least[:, 1:] - least[:, :1]).mean())}


def coefficient_table(results: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown table: means of the default, and of each change less the default of the same seed, with t."""
    rows: list[list[object]] = []
    for market in MARKETS:
        default = by_seed(results, variant=variant_name(market, DEFAULT))
        for name in CHANGES:
            own = by_seed(results, variant=variant_name(market, name))
            seeds = sorted(own.keys() & default.keys())
            if seeds:
                pairs = [(own[seed], default[seed]) for seed in seeds]
                rows.append([market, name, len(seeds), *_cells(pairs, name == DEFAULT)])
    heads = ["market", "changed alone", "seeds"]
    for heading in SHOWN.values():
        heads += [heading, "t"]
    return markdown_table(heads, rows)


def _cells(pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]], plain: bool) -> list[str]:
    """Two cells a figure: the mean of the first of each pair and nothing, or that of the differences and its t."""
    cells = []
    for figure in SHOWN:
        gap = np.array([own[figure] - (0.0 if plain else default[figure]) for own, default in pairs])
        if plain or len(gap) < 2:
            cells += [f"{gap.mean():.3f}", ""]
        else:
            t = stats.ttest_1samp(gap, 0.0).statistic
            cells += [f"{gap.mean():+.3f} ± {half_width(gap):.3f}", f"{t:.1f}"]
    return cells
