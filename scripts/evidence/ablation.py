"""Contribution of single parts of the default agent: where a signal is planted, and on real prices.

Each part is left out alone, with the same seeds: samples of a market of hidden regimes that the default was not chosen
by, and seeds of trainings on the embedded prices. Validation is read once a training, the test window never.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finflow.config import Config
from finflow.training.data.training_data import prepare
from scripts.evidence.optimality import judge_of
from scripts.evidence.results import by_seed
from scripts.evidence.rollout_controls import stopped_words
from scripts.evidence.rollouts import (
    FIRST_SAMPLE,
    LOG_RETURN,
    OWN,
    REDUCED,
    SHORT_OFFLINE,
    learn_and_judge,
)
from scripts.evidence.tables import markdown_table, mean_interval
from scripts.evidence.variants import Variant

WHOLE = "whole"
SAME_UPDATES = 16  # episodes online in which portfolios that step by one decision have as many updates
#: Part -> heading of its row, and the keys that leave it out.
PARTS: dict[str, tuple[str, dict[str, object]]] = {
    WHOLE: ("the default", {}),
    "expansion": (
        "critics alone in place of 16 exact decisions",
        {"bcell.expansion": 0, "train.online_episodes": SAME_UPDATES},
    ),
    "later-bars": (
        "1 exact decision in place of 16",
        {"bcell.expansion": 1, "train.online_episodes": SAME_UPDATES},
    ),
    "mirrored": ("without mirrored bars", {"bcell.mirrored.weight": 0.0}),
    "switch": ("without the evidence of held-out years", {"out_of_fold.blocks": 1}),
    "filters": ("without filters of returns", {"features.filters": "none"}),
    "regime": ("without the probability of regimes", {"features.regimes": False}),
    "families": ("without holding experts to their families", {"bcell.expert_cloning": 0.0}),
    "seeding": ("blocks' learners from random weights, without IQL's", {"out_of_fold.pretraining_epochs": 0}),
    "actions": ("critics taught by stored transitions, without other actions", {"bcell.counterfactual": False}),
}
#: Market -> keys, and most seeds: where no evidence is found, all parts end at the reference.
MARKETS: dict[str, tuple[dict[str, object], int]] = {
    "regime": (
        {"market.source": "synthetic", "market.synthetic.kind": "regime", **LOG_RETURN, **OWN["regime"]},
        5,
    ),
    "embedded": ({}, 3),
}
SIZE: dict[str, object] = {**SHORT_OFFLINE, **REDUCED}
PREFIX = "ablation-"


def ablation_variants(seeds: int, size: Mapping[str, object] = SIZE) -> list[Variant]:
    """Each part left out in each market.

    Parameters
    ----------
    seeds : int
        At most; a market has no more than `MARKETS` says.
    """
    return [
        Variant(
            f"{PREFIX}{market}-{part}", (seed,), {**size, **keys, **_sample(market, seed), **without}, measure=measure
        )
        for market, (keys, most) in MARKETS.items()
        for part, (_, without) in PARTS.items()
        for seed in range(min(seeds, most))
    ]


def _sample(market: str, seed: int) -> dict[str, object]:
    """Key of a sample of a synthetic market."""
    return {"market.synthetic.seed": FIRST_SAMPLE + seed} if market == "regime" else {}


def measure(config: Config) -> dict[str, Any]:
    """Train; the score of the known optimum, or the Sharpe ratio where there is none."""
    data = prepare(config)
    if config.market.source == "synthetic":
        return learn_and_judge(data, "regime", judge_of(data))
    return learn_and_judge(data, "embedded")


def ablation_table(results: Sequence[Mapping[str, Any]]) -> str:
    """Markdown table: mean over seeds with half the width of its 95 % interval, and differences seed by seed."""
    heads = ["finflow"]
    for market in MARKETS:
        measure_of = "score" if market == "regime" else "Sharpe"
        heads += [f"{market}: {measure_of}", "less the default's", "confidence", "turnover a year"]
    rows = []
    for part, (heading, _) in PARTS.items():
        row: list[object] = [heading]
        for market in MARKETS:
            row += _cells(results, market, part)
        rows.append([*row, _slopes(results, part)])
    return markdown_table([*heads, "critics' slope on exact advantages, regime"], rows)


def _cells(results: Sequence[Mapping[str, Any]], market: str, part: str) -> list[str]:
    """Performance of a training without a part in a market; empty where it was not trained."""
    own, whole = (by_seed(results, variant=f"{PREFIX}{market}-{name}") for name in (part, WHOLE))
    if not own:
        return ["", "", "", ""]
    ends = [one["end"] for one in own.values()]
    differences = [own[seed]["end"] - whole[seed]["end"] for seed in own if seed in whole]
    less = "" if part == WHOLE or not differences else mean_interval(differences, 3)
    confidence = _of(results, market, part, "confidence")
    shown = f"{np.nanmean(confidence):.2f}" if np.isfinite(confidence).any() else "-"
    return [
        mean_interval(ends, 3) + stopped_words(list(own.values())),
        less,
        shown,
        f"{_of(results, market, part, 'turnover').mean():.1f}",
    ]


def _slopes(results: Sequence[Mapping[str, Any]], part: str) -> str:
    """Of the critics' advantages on exact ones, in training and in validation."""
    windows = [_of(results, "regime", part, f"{window}_advantage_slope") for window in ("training", "validation")]
    return (
        " / ".join(f"{np.mean(one):.2f}" for one in windows) if np.isfinite(windows).all() and len(windows[0]) else "-"
    )


def _of(results: Sequence[Mapping[str, Any]], market: str, part: str, name: str) -> NDArray[np.float64]:
    """A figure of each seed, in their order; NaN where a training has none."""
    return np.array([one.get(name, np.nan) for one in by_seed(results, variant=f"{PREFIX}{market}-{part}").values()])
