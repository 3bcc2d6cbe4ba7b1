"""Error rate and power of paper trading's sequential test, made every day, and of tests that are not sequential.

A path is a backtest and an account after it, drawn from one law, so that the account behaves like its backtest. What is
tested is `Expectation`, as paper trading calls it, and for comparison:

- Welch's t test of the account's mean against the backtest's at 5 %, made again every day from the 21st on;
- that t test made once, on the last day.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy import signal, stats

from finflow.arrays import BoolArray, FloatArray
from finflow.config import Config, SyntheticConfig, config_hash, load_config
from finflow.evaluation.backtest import run_backtests
from finflow.market.bar_frequency import BARS_PER_YEAR
from finflow.market.panel import MarketPanel
from finflow.market.sources.panel_loader import load_panel
from finflow.market.sources.synthetic_market import process_of
from finflow.provenance import code_hash
from finflow.strategies.classical import EqualWeight, named_strategy
from finflow.trading.paper_page import ALPHA, Expectation
from scripts.evidence.null_markets import WARM_UP, process_after
from scripts.evidence.results import kept_result
from scripts.evidence.tables import markdown_table, share_interval

Draw = Callable[[np.random.Generator, int], FloatArray]

FIRST_LOOK = 21
"""Returns of the account at the first of the repeated t tests."""
RULES = ("momentum", "inverse-volatility")
BLOCKS = (21, 63, 252)
POWER_ON = ("normal", "equal weight, blocks of 63 days", "momentum less equal weight, blocks of 63 days")
TESTS = ("sequential", "repeated", "fixed")


@dataclass(frozen=True)
class AnytimeStudy:
    """Settings of the calibration."""

    paths: int = 2000  # accounts of each kind
    backtest: int = 1759  # returns, seven years
    account: int = 1260  # returns, five years
    shifts: tuple[float, ...] = (0.5, 1.0, 1.5, 2.0, 3.0)  # annual Sharpe ratio that an account falls short by

    @property
    def bars(self) -> int:
        """Returns of a path."""
        return self.backtest + self.account


def null_draws(panel: MarketPanel, rules: Mapping[str, FloatArray], study: AnytimeStudy) -> dict[str, Draw]:
    """Laws of paths: name -> draws simple returns (paths, bars).

    Parameters
    ----------
    panel : MarketPanel
        Real prices, whose labels are permuted; every asset listed throughout.
    rules : mapping
        Name -> returns of real days, resampled in blocks.
    """
    returns = panel.close[1:] / panel.close[:-1] - 1.0
    draws: dict[str, Draw] = {
        "normal": lambda rng, paths: _daily(rng.standard_normal((paths, study.bars))),
        "Student's t, 3 degrees of freedom": lambda rng, paths: _daily(
            rng.standard_t(3, (paths, study.bars)) / math.sqrt(3.0)
        ),
        "skewed to losses (exponential)": lambda rng, paths: _daily(1.0 - rng.exponential(size=(paths, study.bars))),
        "GARCH(1, 1), 0.10 and 0.89": lambda rng, paths: _daily(garch(rng, paths, study.bars)),
        "autocorrelation of 0.2": lambda rng, paths: _daily(
            signal.lfilter([1.0], [1.0, -0.2], rng.standard_normal((paths, study.bars)), axis=1)
        ),
        "exchangeable market, a random portfolio": lambda rng, paths: exchangeable(rng, paths, study.bars),
        "permuted labels, a random portfolio less equal weight": lambda rng, paths: permuted(
            rng, paths, study.bars, returns
        ),
    }
    for name, days in rules.items():
        for block in BLOCKS:
            draws[f"{name}, blocks of {block} days"] = partial(in_blocks, bars=study.bars, days=days, block=block)
    return draws


def _daily(noise: FloatArray) -> FloatArray:
    """Simple returns of which the logarithms deviate by about 1 % a day."""
    return np.expm1(0.01 * noise)


def garch(rng: np.random.Generator, paths: int, bars: int) -> FloatArray:
    """Innovations of GARCH(1, 1) with coefficients 0.10 and 0.89 and a long-run variance of one, (paths, bars)."""
    variance, found = np.ones(paths), np.empty((paths, bars + 500))
    for bar in range(bars + 500):
        found[:, bar] = np.sqrt(variance) * rng.standard_normal(paths)
        variance = 0.01 + 0.10 * found[:, bar] ** 2 + 0.89 * variance
    return found[:, 500:]


def exchangeable(rng: np.random.Generator, paths: int, bars: int) -> FloatArray:
    """Returns of portfolios drawn at random in the synthetic market of exchangeable assets, (paths, bars)."""
    process = process_of(SyntheticConfig(kind="exchangeable"))
    found = np.empty((paths, bars))
    for path in range(paths):
        growth = np.diff(process.draw(rng, bars + 1), axis=0)
        found[path] = np.expm1(growth) @ rng.dirichlet(np.ones(process.n_assets))
    return found


def permuted(rng: np.random.Generator, paths: int, bars: int, returns: FloatArray) -> FloatArray:
    """Returns over equal weight of portfolios drawn at random where labels are permuted each day, (paths, bars).

    Parameters
    ----------
    returns : float64 (days, assets)
        Of real days; each path has the days in a row from one drawn at random.
    """
    found = np.empty((paths, bars))
    for path in range(paths):
        first = int(rng.integers(len(returns) - bars + 1))
        days = rng.permuted(returns[first : first + bars], axis=1)
        found[path] = days @ rng.dirichlet(np.ones(returns.shape[1])) - days.mean(axis=1)
    return found


def in_blocks(rng: np.random.Generator, paths: int, bars: int, days: FloatArray, block: int) -> FloatArray:
    """Stationary bootstrap of days, less their mean, in blocks of mean length ``block``, (paths, bars)."""
    begins = rng.random((paths, bars)) < 1.0 / block
    begins[:, 0] = True
    since = np.maximum.accumulate(np.where(begins, np.arange(bars), 0), axis=1)
    starts = np.take_along_axis(rng.integers(len(days), size=(paths, bars)), since, axis=1)
    return np.asarray((days - days.mean())[(starts + np.arange(bars) - since) % len(days)])


def real_days(panel: MarketPanel) -> dict[str, FloatArray]:
    """Net returns of equal weight, and of rules less equal weight's, on real prices after the first `WARM_UP` bars."""
    config = load_config(None, {}, environ={})
    process = process_after(panel, WARM_UP, config)
    strategies = [EqualWeight(), *(named_strategy(name, config.evaluation) for name in RULES)]
    equal, *others = run_backtests(process, range(WARM_UP, panel.n_bars), strategies)
    found = {"equal weight": equal.returns}
    return found | {f"{run.name.replace('-', ' ')} less equal weight": run.returns - equal.returns for run in others}


def first_answers(paths: FloatArray, study: AnytimeStudy, shift: float = 0.0) -> dict[str, FloatArray]:
    """Day of each path's first answer by each test, infinite where there is none: test -> (paths,).

    Parameters
    ----------
    paths : float64 (paths, bars)
        Simple returns of backtest and account.
    shift : float
        Annual Sharpe ratio that the account falls short by.
    """
    loss = shift * float(np.log1p(paths).std()) / math.sqrt(BARS_PER_YEAR)
    days: dict[str, list[float]] = {name: [] for name in TESTS}
    for path in paths:
        account = np.expm1(np.log1p(path[study.backtest :]) - loss)
        expected = Expectation.of(path[: study.backtest], BARS_PER_YEAR)
        if expected is None:
            raise ValueError(f"a backtest of {study.backtest} returns gives no expectation")
        left = expected.left_on(account)
        days["sequential"].append(math.inf if left is None else left + 1.0)
        distant = _distant(expected, account)
        days["repeated"].append(_first(distant & (np.arange(len(account)) >= FIRST_LOOK - 1)))
        days["fixed"].append(float(len(account)) if distant[-1] else math.inf)
    return {name: np.array(found) for name, found in days.items()}


def _first(hits: BoolArray) -> float:
    return float(hits.argmax()) + 1.0 if hits.any() else math.inf


def _distant(expected: Expectation, account: FloatArray) -> BoolArray:
    """Two-sided Welch t test at `ALPHA` of the account's mean after each day against the backtest's, (n,)."""
    logs, count = np.log1p(account), np.arange(1.0, len(account) + 1.0)
    mean = np.cumsum(logs) / count
    deviation = np.sqrt(np.maximum(np.cumsum(logs**2) - count * mean**2, 0.0) / np.maximum(count - 1.0, 1.0))
    backtest = (expected.mean, expected.deviation, expected.count)
    found = stats.ttest_ind_from_stats(mean, deviation, np.maximum(count, 2.0), *backtest, equal_var=False)
    return np.asarray(found.pvalue < ALPHA)


def measure(study: AnytimeStudy, panel: MarketPanel, rules: Mapping[str, FloatArray]) -> dict[str, Any]:
    """Counts of paths on which each test ever rejected that the account behaves like its backtest, and when."""
    nulls, power = [], []
    for number, (name, draw) in enumerate(null_draws(panel, rules, study).items()):
        paths = draw(np.random.default_rng([number, 0]), study.paths)
        nulls.append({"law": name, **_counted(first_answers(paths, study))})
        if name in POWER_ON:
            shifts = [{"law": name, "shift": one, **_counted(first_answers(paths, study, one))} for one in study.shifts]
            power += shifts
    return {"nulls": nulls, "power": power}


def _counted(days: Mapping[str, FloatArray]) -> dict[str, Any]:
    """Number of answers by test, and the median day over all paths; None where less than half had an answer."""
    medians = {name: float(np.median(found)) for name, found in days.items()}
    return {
        "answers": {name: int(np.isfinite(found).sum()) for name, found in days.items()},
        "median_day": {name: day if math.isfinite(day) else None for name, day in medians.items()},
    }


def anytime_page(kept: Path, study: AnytimeStudy | None = None) -> str:
    """Tables of the page; measured anew where other code or another study made what is kept."""
    study = study or AnytimeStudy()
    stamp = {
        "code": code_hash(),
        "configuration": config_hash(Config()),
        "study": json.loads(json.dumps(asdict(study))),
    }

    def measured() -> dict[str, Any]:
        panel = load_panel(load_config(None, {}, environ={}).market)
        return measure(study, panel, real_days(panel))

    return anytime_table(kept_result(kept, "anytime", stamp, measured))


def anytime_table(result: Mapping[str, Any]) -> str:
    """Markdown tables: shares on null markets with exact 95 % intervals (Clopper and Pearson), and the power."""
    count = result["study"]["paths"]
    heads = ("sequential", "t test every day", "t test at the end")
    nulls = [[one["law"], *(share_interval(one["answers"][name], count) for name in TESTS)] for one in result["nulls"]]
    power = [
        [
            one["law"],
            f"{one['shift']:g}",
            f"{one['answers']['sequential'] / count:.1%}",
            _day(one["median_day"]["sequential"]),
            f"{one['answers']['fixed'] / count:.1%}",
            f"{one['answers']['repeated'] / count:.1%}",
            _day(one["median_day"]["repeated"]),
        ]
        for one in result["power"]
    ]
    titles = ("sequential", "median day", "t test at the end", "t test every day", "its median day")
    worst = max(result["nulls"], key=lambda one: one["answers"]["sequential"])
    highest = share_interval(worst["answers"]["sequential"], count)
    return (
        "### Accounts like their backtest\n\n"
        + markdown_table(("returns", *heads), nulls)
        + f"\nHighest share of the sequential test: {highest}, {worst['law']}.\n"
        + "\n### Accounts that fall short of it\n\n"
        + markdown_table(("returns", "annual Sharpe ratio lost", *titles), power)
        + f"\nCode {result['code']}; {count:,} paths a row.\n"
    )


def _day(day: float | None) -> str:
    return "never" if day is None else f"{day:.0f}"
