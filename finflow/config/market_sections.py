"""Sections of the market and the decision process: `market`, `features`, `env` and `objectives`."""

from __future__ import annotations

import datetime as dt
import re
from itertools import pairwise
from pathlib import Path
from typing import Literal, Self

from pydantic import model_validator

from finflow.config.section_types import (
    ConfigSection,
    Date,
    FilePath,
    Flag,
    Fraction,
    Int,
    Names,
    NonNegativeInt,
    NonNegativeNumber,
    Number,
    PositiveInt,
    PositiveNumber,
    PositiveShare,
    Rate,
    RateFile,
    first_repeated,
    key,
)

LENSES = ("volatility", "correlation", "momentum", "defensive", "growth")
"""Names of the five experts, each of which reads the features of its lens."""
LONGEST_GAP = 260
"""Bars, a year, beyond which no price is held."""


_COMMON_PARAMETERS = ("drift", "volatility", "correlation")
#: Parameters that a kind of synthetic market has beyond those.
_PARAMETERS_OF_KIND = {
    "lognormal": ("edge",),
    "constant-drift": ("edge",),
    "mean-reverting": ("persistence",),
    "regime": ("edge", "persistence", "defensive_ratio"),
    "exchangeable": (),
}


class SyntheticConfig(ConfigSection):
    """A synthetic market whose best portfolio is known; rates are per bar."""

    kind: Literal["lognormal", "constant-drift", "mean-reverting", "regime", "exchangeable"] = key(
        "lognormal", "price process; exchangeable assets have identical distributions"
    )
    assets: Int = key(2, "number of assets", ge=2, le=4)
    bars: Int = key(20_000, "business days, the last of them 2022-12-30", ge=400, le=40_000)
    seed: NonNegativeInt = key(0, "seed of the prices; each seed is another sample of the process")
    drift: Number | None = key(None, "expected return of the best asset; left out: the kind's own", ge=-0.05, le=0.05)
    edge: Number | None = key(None, "expected return of the best asset less the worst's; likewise", ge=0, le=0.05)
    volatility: Number | None = key(None, "standard deviation of an asset's log return; likewise", gt=0, le=0.5)
    correlation: Number | None = key(None, "correlation of log returns (mean-reverting: of first and last)", ge=0, lt=1)
    persistence: Fraction | None = key(None, "autocorrelation of the spread, or chance that a regime stays; likewise")
    defensive_ratio: Number | None = key(None, "volatility of the last asset over that of the first", gt=0, le=10)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        known = (*_COMMON_PARAMETERS, *_PARAMETERS_OF_KIND[self.kind])
        for name in sorted({name for names in _PARAMETERS_OF_KIND.values() for name in names}):
            if name not in known and getattr(self, name) is not None:
                raise ValueError(
                    f"market.synthetic.{name} = {getattr(self, name)} means nothing where "
                    f"market.synthetic.kind = {self.kind}, which has {', '.join(known)}"
                )
        return self


CashUnit = Literal["fraction", "percent"]


def as_fraction(rate: float, unit: CashUnit | None, place: str) -> float:
    """An annual rate as a fraction; ValueError, with the place, if it is impossible, or over 25 % without a unit."""
    fraction = rate / 100.0 if unit == "percent" else rate
    if unit is None and abs(rate) > 0.25:
        other = f", or market.cash_unit=fraction for {100.0 * rate:g} %" if -1.0 < rate <= 1.0 else ""
        units = f"set market.cash_unit=percent for {rate:g} % a year{other}"
        raise ValueError(f"{place} {rate:g} needs a unit, since it is beyond 0.25 in size: {units}")
    if not -1.0 < fraction <= 1.0:
        raise ValueError(f"{place} {rate:g} is {100.0 * fraction:g} % a year: rates are above -100 % and at most 100 %")
    return fraction


class MarketConfig(ConfigSection):
    """Source of prices and their split by date."""

    source: Literal["embedded", "yfinance", "csv", "parquet", "synthetic", "french"] = key(
        "embedded", "where prices come from; embedded: 20 stocks of the S&P 500, 1990 to 2022"
    )
    synthetic: SyntheticConfig = key(SyntheticConfig(), "the market of the source synthetic")
    path: FilePath | None = key(None, "file of prices, or folder of such files, for the sources csv and parquet")
    tickers: Names | None = key(None, "assets to use; all of the source when left out")
    benchmark: str | None = key(None, "column or ticker used as the index, never held")
    start: Date | None = key(None, "first date used; the source's first when left out")
    train_end: Date = key(dt.date(2011, 12, 31), "last date of the training window")
    validation_end: Date = key(dt.date(2015, 12, 31), "last date of the validation window")
    test_end: Date | None = key(None, "last date of the test window; the last bar when left out")
    align: str = key("union", "dates that are bars: union or intersection of the assets' dates, or those of a ticker")
    bars_per_year: Literal[365, 252, 52, 26, 12, 6, 4, 2, 1] | None = key(
        None, "bars that make a year; by the spacing of the dates when left out"
    )
    cash_rate: Rate | Literal["treasury-bills"] | RateFile = key(
        0.0, "annual rate that cash earns, treasury-bills, or a file of dates and rates"
    )
    cash_unit: CashUnit | None = key(None, "unit of the rates of cash; left out: fractions, of at most 0.25 each")
    auto_adjust: Flag = key(True, "adjust prices of yfinance, and of files with an Adj Close, for splits and dividends")
    dividends: Literal["reinvested", "cash"] = key("reinvested", "reinvested, or paid in cash at their ex-dates")
    cache_dir: FilePath = key(Path("data/market"), "folder of stored prices, and of fits of classical portfolios")
    max_gap: NonNegativeInt = key(0, "bars without a price over which an asset is held and not traded", le=LONGEST_GAP)
    use_cache: Flag = key(True, "read prices and fits from the store when it has them")
    extend_cache: Flag = key(False, "extend stored prices of Yahoo by the newer bars; only those are fetched")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        ends = [("start", self.start), ("train_end", self.train_end), ("validation_end", self.validation_end)]
        given = [(name, date) for name, date in [*ends, ("test_end", self.test_end)] if date is not None]
        for (before, earlier), (name, date) in pairwise(given):
            if date <= earlier:
                raise ValueError(f"market.{name} = {date} must come after market.{before} = {earlier}")
        _ = self.cash_fraction  # which refuses impossible rates
        if self.source in ("csv", "parquet") and self.path is None:
            raise ValueError(f"market.path = null: market.source = {self.source} needs the path of the prices")
        if self.dividends == "cash" and self.source not in ("csv", "parquet"):
            raise ValueError(
                f"market.dividends = cash needs dividends beside prices, which market.source = {self.source} does not "
                "have: use csv or parquet with a column Dividends"
            )
        if self.source == "yfinance" and self.tickers is None:
            raise ValueError("market.tickers = null: market.source = yfinance needs at least one ticker")
        for name in ("tickers", "benchmark"):
            if self.source == "synthetic" and getattr(self, name) is not None:
                raise ValueError(
                    f"market.{name} is set, but the assets of a synthetic market are set by market.synthetic.assets"
                )
        if self.tickers is not None:
            if not self.tickers:
                raise ValueError("market.tickers = []: at least one asset is needed")
            if (twice := first_repeated(self.tickers)) is not None:
                raise ValueError(f"market.tickers names {twice} more than once")
            if any(not name.strip() for name in self.tickers):
                raise ValueError("market.tickers holds an empty name")
        return self

    @property
    def cash_fraction(self) -> float | None:
        """Annual rate of cash as a fraction, whatever its unit; None for a series of rates."""
        rate, place = self.cash_rate, "market.cash_rate ="
        return as_fraction(rate, self.cash_unit, place) if isinstance(rate, int | float) else None


class FeaturesConfig(ConfigSection):
    """Features beside those that every market has: a bank of filters, the regime, and those of a user."""

    filters: Literal["none", "momentum", "all"] = key(
        "all", "experts that read exponential averages of market-relative returns"
    )
    regimes: Flag = key(True, "the probability of the second of two regimes of returns, as a feature")
    extra: Names = key((), "features of your own, package.module:function, or function@expert for one expert")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for path in self.extra:
            place, _, lens = path.partition("@")
            module, _, name = place.partition(":")
            if not module or not name:
                raise ValueError(f"features.extra names {path!r}: package.module:function is needed")
            if "@" in path and lens not in LENSES:
                raise ValueError(f"features.extra names {path!r}: the expert must be one of {', '.join(LENSES)}")
        if len(set(self.names)) < len(self.extra):
            raise ValueError("features.extra names two functions of one name; features are known by their names")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the functions, by which the features are known."""
        return tuple(path.partition("@")[0].rpartition(":")[2] for path in self.extra)


REWARDS = ("builtin", "ranking", "turnover", "variance", "preference")
"""Rewards that have a name."""


class CostsConfig(ConfigSection):
    """Costs beside the flat commission and slippage; zero by default."""

    minimum: NonNegativeNumber = key(0.0, "minimum commission of each asset traded in a decision, in money")
    slippage_linear_bps: Number = key(0.0, "slippage by participation, basis points at a day's volume", ge=0, le=10_000)
    slippage_sqrt_bps: Number = key(0.0, "the same, growing with the square root of participation", ge=0, le=10_000)
    impact: Number = key(0.0, "square-root market impact, in daily volatilities at a day's volume", ge=0, le=10)


class EnvConfig(ConfigSection):
    """Information set of a decision, its fill, and the costs and limits of trading."""

    execution_lag: Int = key(1, "bars between the newest bar known and the fill", ge=0, le=2)
    fill: Literal["close", "open"] = key("close", "price at which orders fill")
    episode_length: Int = key(252, "decisions in an episode of one portfolio", ge=2)
    initial_capital: PositiveNumber = key(1_000_000.0, "starting wealth, in the currency of the prices")
    commission_bps: Number = key(10.0, "commission, basis points of the traded value", ge=0, le=1000)
    slippage_bps: Number = key(5.0, "slippage, basis points of the traded value", ge=0, le=1000)
    max_weight: PositiveShare = key(1.0, "largest weight of a risky asset")
    max_turnover: PositiveShare = key(1.0, "largest half-sum of absolute trades in a decision; 1 is no limit")
    no_trade_band: Number = key(0.0, "trade only where the largest change of a weight exceeds this", ge=0, lt=1)
    costs: CostsConfig = key(CostsConfig(), "minimum commission, slippage by size, impact")


class RankingConfig(ConfigSection):
    """Reward of how well a portfolio ranks the assets by what they return afterwards."""

    type: Literal["ndcg", "hit", "mrr", "mixed"] = key("ndcg", "NDCG@K, Hit@K, MRR@K, or NDCG and Hit weighted")
    k: PositiveInt = key(10, "assets at the top of the ranking that count")
    horizon: PositiveInt = key(5, "bars after the fill over which assets are ranked by their return")
    ndcg_weight: NonNegativeNumber = key(0.7, "weight of NDCG@K in mixed")
    hit_weight: NonNegativeNumber = key(0.3, "weight of Hit@K in mixed")
    grades: Int = key(5, "quantile grades of returns; the gain of grade g is 2^g - 1", ge=2, le=16)


class PreferenceConfig(ConfigSection):
    """Reward of a model that was learned from preferences."""

    model: FilePath | None = key(None, "file of the reward model that --mode prefer --learn wrote")
    paid: Literal["decision", "segment"] = key(
        "decision", "score of each decision, or on-policy their sum at the end of a segment"
    )
    segment: Int = key(21, "holding periods of a segment: of an episode, and of the pairs of a judge", ge=2)


class RewardTermConfig(ConfigSection):
    """One reward of a weighted sum."""

    name: str = key("builtin", "builtin, ranking, turnover, variance, or package.module:Name")
    weight: Number = key(1.0, "its weight, in units of what decisions change of it")


class ObjectivesConfig(ConfigSection):
    """The reward: its name or those of a weighted sum, and the settings of each."""

    reward: str = key("builtin", "builtin, ranking, turnover, variance, preference, or package.module:Name")
    rewards: tuple[RewardTermConfig, ...] = key((), "weighted sum in place of it, [{name, weight}, ...]")
    ranking: RankingConfig = key(RankingConfig(), "the reward ranking")
    preference: PreferenceConfig = key(PreferenceConfig(), "the reward preference")
    workers: Int = key(0, "processes that compute rewards of one's own; 0: none", ge=0, le=256)
    sharpe_beta: NonNegativeNumber = key(1.0, "weight of the differential Sharpe ratio")
    sharpe_eta: Fraction = key(1 / 252, "adaptation rate of its moments, per decision")
    lambda_turn: NonNegativeNumber = key(0.1, "weight of the turnover penalty")
    lambda_cvar: NonNegativeNumber = key(5.0, "weight of the penalty on losses beyond cvar_target")
    cvar_alpha: Fraction = key(0.05, "tail share of the conditional value at risk")
    cvar_target: Number = key(-0.02, "daily return below which the CVaR penalty sets in", gt=-1, le=0)
    lambda_dd: NonNegativeNumber = key(0.0, "weight of the penalty on increases in drawdown")

    @property
    def terms(self) -> tuple[RewardTermConfig, ...]:
        """Rewards that are summed, one where there is no sum."""
        return self.rewards or (RewardTermConfig(name=self.reward, weight=1.0),)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        names = [term.name for term in self.terms]
        where = "objectives.rewards" if self.rewards else "objectives.reward"
        for name in names:
            if name not in REWARDS and not re.fullmatch(r"[\w.]+:\w+", name):
                others = f"which is none of {', '.join(REWARDS)} and no package.module:Name"
                raise ValueError(f"{where} names {name!r}, {others}")
        if self.rewards and self.reward != "builtin":
            raise ValueError(
                f"objectives.reward = {self.reward} and objectives.rewards are both set: name it in objectives.rewards"
            )
        repeated = first_repeated(names)
        if repeated is not None:
            raise ValueError(f"objectives.rewards names {repeated} twice: one weight for each")
        if "preference" in names and self.preference.model is None:
            raise ValueError(
                "the reward preference needs objectives.preference.model: the file that --mode prefer --learn wrote"
            )
        if self.rewards and not any(term.weight for term in self.rewards):
            raise ValueError("objectives.rewards has no weight but zero: there is nothing to learn")
        return self
