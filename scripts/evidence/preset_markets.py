"""Presets for a volatile and a calm market, each compared with the default on a market of that kind.

Such a market is made of the embedded prices: whole calendar years are drawn with replacement from the third of them in
which equal weight was the most, or the least, volatile. The test window is drawn from years of that third that the
windows before it are not, so that no day of it was learned from.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from finflow.arrays import FloatArray, IntArray
from finflow.config import Config
from finflow.evaluation.backtest import Backtest, run_backtests
from finflow.evaluation.statistics.metrics import summarise
from finflow.market.panel import MarketPanel, split_panel
from finflow.market.sources.panel_loader import load_panel
from finflow.strategies.classical import named_strategy
from finflow.training.data.training_data import prepare_from
from finflow.training.judging.agent_strategy import AgentStrategy
from scripts.evidence.optimality import window_of
from scripts.evidence.results import Result, Variant, by_seed, train_and_validate
from scripts.evidence.rollouts import ALONE, REDUCED, SHORTER_OFFLINE, preset_keys
from scripts.evidence.tables import markdown_table

KINDS = ("volatile", "calm")  # markets, and the presets that are named for them
DEFAULT, PRESET = "default", "preset"
SAMPLES, TEST_YEARS = 2, 3  # the latter of the eight of a third
SIZE = {**SHORTER_OFFLINE, **REDUCED, **ALONE}
#: Figure of the table -> its entry of a result, and its style.
FIGURES = {
    "Sharpe ratio": ("sharpe", ".2f"),
    "volatility a year": ("annual_volatility", ".1%"),
    "drawdown": ("max_drawdown", ".1%"),
    "CVaR of a day": ("cvar", ".2%"),
    "turnover a year": ("annual_turnover", ".2f"),
    "H(w) / ln K": ("spread", ".3f"),
}
#: Preset -> what it promises in words -> the figure that shows it, and the sign of preset less default.
PROMISES = {
    "volatile": {
        "losses are smaller (CVaR of a day)": ("cvar", 1.0),
        "turnover is lower": ("annual_turnover", -1.0),
        "weights are more spread": ("spread", 1.0),
    },
    "calm": {"weights are less spread": ("spread", -1.0)},
}


def equal_weight_years(panel: MarketPanel, kind: str) -> IntArray:
    """Years of the third in which the daily return of equal weight deviated most (volatile) or least (calm).

    Of those before the default test window, which is not read.
    """
    year, returns = daily_returns(panel)
    years = np.unique(year[year <= Config().market.validation_end.year])
    deviation = np.array([returns[year == one].mean(axis=1).std(ddof=1) for one in years])
    ordered = years[np.argsort(-deviation if kind == "volatile" else deviation, kind="stable")]
    return np.sort(ordered[: len(years) // 3])


def daily_returns(panel: MarketPanel) -> tuple[IntArray, FloatArray]:
    """The calendar year of each return, (bars - 1,), and returns of all assets, (bars - 1, assets)."""
    return panel.dates[1:].astype("datetime64[Y]").astype(np.int64) + 1970, panel.close[1:] / panel.close[:-1] - 1.0


def resampled_panel(kind: str, seed: int) -> MarketPanel:
    """Embedded prices whose years are drawn anew from those of a kind, on the original dates, without the index."""
    panel = load_panel(Config().market)
    rng, (year, returns) = np.random.default_rng(seed), daily_returns(panel)
    years = rng.permutation(equal_weight_years(panel, kind))
    before = split_panel(panel, Config().market).validation_end - 1  # returns before the first of the test window
    learned, tested = (rng.choice(own, len(returns)) for own in (years[TEST_YEARS:], years[:TEST_YEARS]))
    rows = np.concatenate([_rows(year, learned, before), _rows(year, tested, len(returns) - before)])
    growth = np.vstack([np.ones(panel.n_assets), np.cumprod(1.0 + returns[rows], axis=0)])
    return MarketPanel(dates=panel.dates, assets=panel.assets, close=100.0 * growth)


def _rows(year: IntArray, years: IntArray, count: int) -> IntArray:
    """So many rows of the years in their order, one whole year after another; the last is cut."""
    return np.concatenate([np.flatnonzero(year == one) for one in years[: 1 + count // 200]])[:count]


def preset_variants() -> list[Variant]:
    """The default and the preset of each kind on the same markets."""
    return [
        Variant(f"{kind}-{name}", range(SAMPLES), {**SIZE, **keys}, measure=partial(learn_resampled, kind, name))
        for kind in KINDS
        for name, keys in ((DEFAULT, {}), (PRESET, preset_keys(kind)))
    ]


def learn_resampled(kind: str, name: str, config: Config) -> dict[str, Any]:
    """Train on a resampled market; figures of the learned policy and of equal weight on its test window."""
    training_data = prepare_from(resampled_panel(kind, config.train.seed), config)
    trainer, _, seconds, _ = train_and_validate(config, training_data=training_data)
    equal = named_strategy("equal-weight", config.evaluation)
    strategies = [AgentStrategy(trainer.agent.policy, trainer.device), equal]
    own, reference = map(figures_of, run_backtests(*window_of(training_data, test=True), strategies))
    return {"market": kind, "keys": name, "seconds": seconds, **own, "equal_weight": reference}


def figures_of(backtest: Backtest) -> dict[str, float]:
    """`FIGURES` of a backtest; the spread is the mean entropy of the weights held, 1 of equal ones, cash included."""
    held = np.clip(backtest.weights, 1e-12, 1.0)
    found = {**summarise(backtest, 0.05), "spread": -(held * np.log(held)).sum(axis=1).mean() / np.log(held.shape[1])}
    return {entry: float(found[entry]) for entry, _ in FIGURES.values()}


def preset_table(results: Sequence[Result]) -> str:
    """Markdown tables: figures on each market, sample by sample, preset less default; then each promise."""
    rows, answers = list[list[object]](), list[list[object]]()
    for kind in KINDS:
        default, preset = (by_seed(results, market=kind, keys=name) for name in (DEFAULT, PRESET))
        equal = [one["equal_weight"] for one in default.values()]
        both = [(preset[seed], one) for seed, one in default.items() if seed in preset]
        gaps = [{entry: one[entry] - other[entry] for entry, _ in FIGURES.values()} for one, other in both]
        named = {"equal weight": equal, DEFAULT: [*default.values()], f"{kind}.yaml": [*preset.values()]}
        rows += [[kind, name, *_each(own)] for name, own in named.items()]
        rows.append([kind, "preset less default", *_each(gaps, "+")])
        kept = {words: sum(sign * gap[entry] > 0.0 for gap in gaps) for words, (entry, sign) in PROMISES[kind].items()}
        answers += [[f"{kind}.yaml", words, f"{count} of {len(gaps)}"] for words, count in kept.items()]
    figures = markdown_table(("market", "held", *FIGURES), rows)
    return f"{figures}\n{markdown_table(('preset', 'promise', 'samples in which it holds'), answers)}"


def _each(own: Sequence[Result], sign: str = "") -> list[str]:
    return [", ".join(format(one[entry], sign + style) for one in own) or "-" for entry, style in FIGURES.values()]
