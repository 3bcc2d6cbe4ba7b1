"""Evidence about what each part of the agent is worth, where something is planted and on the embedded market.

Each configuration is trained with the same seeds in one reduced size, and judged on the validation window by its last
policy: nothing was chosen by the window that it is shown on. Soft actor-critic, the control, has as many episodes as
take about as long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from finflow.config import Config
from finflow.training.data.training_data import prepare
from scripts.evidence.optimality import judge_of
from scripts.evidence.rollouts import LOG_RETURN, OWN, SHORT_OFFLINE, learn_and_judge
from scripts.evidence.tables import markdown_table, mean_interval, shown_mean
from scripts.evidence.variants import Variant

__all__ = ["MARKETS", "PARTS", "ablation_table", "ablation_variants"]

PREFIX = "ablation-"
FIRST_SAMPLE = 70  # of the planted market: none of which was looked at before
SIZE: dict[str, object] = {**SHORT_OFFLINE, "train.online_episodes": 250}
SAC: dict[str, object] = {"online.algorithm": "sac", "train.online_episodes": 64}
DAY_REWARD = 15.0  # deviation of a day's reward in sigma_A, the embedded data's: .06 of it
MARKETS: dict[str, dict[str, object]] = {
    "regime": {**LOG_RETURN, **OWN["regime"], "market.source": "synthetic", "market.synthetic.kind": "regime"},
    "embedded": {},
}
PARTS: dict[str, dict[str, object]] = {
    "whole": {},
    "one bar ahead": {"bcell.rollouts.horizon": 1},
    "two actions": {"bcell.rollouts.actions": 2},
    "no mirrored bars": {"bcell.rollouts.mirrored": 0.0},
    "no evidence from folds": {"bcell.rollouts.blocks": 1},
    "no exponential averages": {"features.filters": "none"},
    "one head": {"bcell.one_head": True},
    "from scratch": {"train.offline_training_epochs": 0, "bcell.rollouts.pretraining_epochs": 0},
    "sac": SAC,
    "sac, no CQL": {**SAC, "bcell.cql_alpha": 0.0},
    "sac, units of a day": {
        **SAC,
        "bcell.alpha_init": 0.75 * DAY_REWARD,
        "bcell.cql_alpha": 5.0 * DAY_REWARD,
        "bcell.gate_balance": 0.3 * DAY_REWARD,
        "bcell.anchor.weight": 1.0 * DAY_REWARD,
    },
}
#: Figure of a result -> its heading, shown as a mean.
MEANS = {
    "out_of_fold_t": "t out of fold",
    "confidence": "confidence",
    "training_advantage_slope": "critics' slope, training",
    "validation_advantage_slope": "validation",
    "turnover": "turnover",
}


def ablation_variants(seeds: int, size: Mapping[str, object] = SIZE) -> list[Variant]:
    """Each part on each market with each seed; a planted market has another sample for each.

    Parameters
    ----------
    seeds : int
    size : mapping
        Keys that all have in common.
    """
    return [
        Variant(
            _name(market, part),
            (seed,),
            {**size, **keys, **_sample(market, seed), **own},
            measure=learn_and_measure,
        )
        for seed in range(seeds)
        for market, keys in MARKETS.items()
        for part, own in PARTS.items()
    ]


def _sample(market: str, seed: int) -> dict[str, object]:
    return {} if market == "embedded" else {"market.synthetic.seed": FIRST_SAMPLE + seed}


def learn_and_measure(config: Config) -> dict[str, Any]:
    """Train once; the score of a planted market or the Sharpe ratio at the hand-over and at the end."""
    training_data = prepare(config)
    if config.market.source == "synthetic":
        return learn_and_judge(training_data, config.market.synthetic.kind, judge_of(training_data))
    return learn_and_judge(training_data, "embedded")


def ablation_table(results: Sequence[Mapping[str, Any]]) -> str:
    """Markdown tables, one a market: mean over seeds with half the width of its 95 % interval.

    Parameters
    ----------
    results : sequence of mapping
    """
    return "\n".join(_market_table(results, market) for market in MARKETS)


def _market_table(results: Sequence[Mapping[str, Any]], market: str) -> str:
    """Rows of the parts that are there, on the seeds that the whole has too."""
    whole = _of(results, market, "whole")
    rows: list[list[object]] = []
    for part in PARTS:
        pairs = [(one, whole[seed]) for seed, one in _of(results, market, part).items() if seed in whole]
        if pairs:
            own = [one for one, _ in pairs]
            less = "" if part == "whole" else mean_interval([one["end"] - other["end"] for one, other in pairs])
            learned = mean_interval([one["end"] - one["start"] for one in own])
            shown = [shown_mean([float(one.get(name, np.nan)) for one in own]) for name in MEANS]
            seconds = f"{np.mean([one['seconds']['online'] for one in own]):.0f}"
            rows.append([part, len(own), mean_interval([one["end"] for one in own]), less, learned, *shown, seconds])
    heads = (market, "seeds", "end", "less the whole", "less hand-over", *MEANS.values(), "seconds online")
    return markdown_table(heads, rows)


def _name(market: str, part: str) -> str:
    return f"{PREFIX}{market}-{part.replace(', ', '-').replace(' ', '-')}"


def _of(results: Sequence[Mapping[str, Any]], market: str, part: str) -> dict[int, Mapping[str, Any]]:
    """Results of a part by seed."""
    return {int(one["seed"]): one for one in results if one["variant"] == _name(market, part)}
