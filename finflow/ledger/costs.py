"""Costs of trades as shares of wealth. Models are small and add up.

In the formulas ``v_i`` is the value traded in asset i as a share of wealth, ``W`` wealth in money, ``V_i`` the money
that changes hands in the asset on a day, ``s_i`` its daily volatility and ``p_i = v_i W / V_i`` the participation: the
share of a day's trading that this trade would be.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import array_namespace

from finflow.arrays import FloatArray
from finflow.config import EnvConfig
from finflow.errors import ConfigError

BASIS_POINT = 1e-4
NO_TRADE = 1e-12  # as a share of wealth: rounding
TINY = 1e-30  # keeps the root's slope finite at no trade, also in single precision


class MarketState(NamedTuple):
    """Money traded in a day and deviation of a day's log return, (..., assets), as known at the decision."""

    volume: Any
    volatility: Any


class CostModel(ABC):
    """A cost of trading; ``needs_market`` is True where it depends on volume or volatility."""

    needs_market = False

    @abstractmethod
    def by_asset(self, trades: Any, wealth: Any, market: MarketState | None = None) -> Any:
        """Cost of the trade in each asset, (..., assets), with the parameters of ``share``, which sums it."""

    def share(self, trades: Any, wealth: Any, market: MarketState | None = None) -> Any:
        """Cost of ``trades`` as a share of wealth before the trade, (...,), zero where nothing is traded.

        Parameters
        ----------
        trades : array, (..., assets)
            Signed trades in risky assets, as shares of wealth before the trade.
        wealth : array, (...,)
            In money, before the trade.
        market : MarketState, optional
            Needed by the models that say so.
        """
        return self.by_asset(trades, wealth, market).sum(axis=-1)


@dataclass(frozen=True)
class Proportional(CostModel):
    """A fixed share of every trade's value: a commission, or half a constant spread."""

    rate: float

    def by_asset(self, trades: Any, wealth: Any, market: MarketState | None = None) -> Any:
        """``rate * v_i``; wealth does not matter."""
        return self.rate * abs(trades)

    def share(self, trades: Any, wealth: Any, market: MarketState | None = None) -> Any:
        """``rate * sum_i v_i``, multiplied once."""
        return self.rate * abs(trades).sum(axis=-1)


@dataclass(frozen=True)
class FixedMinimum(CostModel):
    """A proportional commission that is never below ``minimum`` in money for each asset traded.

    Trades of up to 1e-12 of wealth are rounding, and free; the sliver of an asset that is sold to pay for the others'
    trades is not.
    """

    rate: float
    minimum: float

    def by_asset(self, trades: Any, wealth: Any, market: MarketState | None = None) -> Any:
        """``max(rate * v_i, minimum / W)`` in the assets that are traded."""
        xp = array_namespace(trades)
        size = abs(trades)
        least = xp.broadcast_to(self.minimum / wealth[..., None], size.shape)
        return xp.where(size > NO_TRADE, xp.maximum(self.rate * size, least), xp.zeros_like(size))


@dataclass(frozen=True)
class VolumeCost(CostModel):
    """A cost that grows with participation, in proportion to it or to its root; ``rate`` is that of a day's volume.

    Times the volatility it is market impact by the square-root law: the price moves against a trade, more where prices
    move much, by ``rate`` daily volatilities, about one, when a whole day's volume is traded.

    References
    ----------
    Almgren, Thum, Hauptmann and Li (2005), Direct Estimation of Equity Market Impact; with the exponent of one half
    of Toth et al. (2011), Anomalous Price Impact and the Critical Nature of Liquidity in Financial Markets.
    """

    rate: float
    linear: bool = False
    times_volatility: bool = False
    needs_market = True

    def by_asset(self, trades: Any, wealth: Any, market: MarketState | None = None) -> Any:
        """``rate * v_i p_i``, ``rate * v_i sqrt(p_i)``, or the latter times ``s_i``."""
        if market is None:
            raise ConfigError("a cost under env.costs depends on the volume traded, and this market has none")
        xp, cost = array_namespace(trades), self.rate * abs(trades)
        if self.times_volatility:
            cost = cost * market.volatility
        share = abs(trades) * wealth[..., None] / market.volume.clip(TINY)
        return cost * (share if self.linear else xp.sqrt(share.clip(TINY)))


class SumOfCosts(CostModel):
    """Several costs at once: a commission and a spread, say."""

    def __init__(self, models: Sequence[CostModel]) -> None:
        self.models = models
        self.needs_market = any(model.needs_market for model in models)

    def by_asset(self, trades: Any, wealth: Any, market: MarketState | None = None) -> Any:
        return sum((model.by_asset(trades, wealth, market) for model in self.models), 0.0 * trades)

    def share(self, trades: Any, wealth: Any, market: MarketState | None = None) -> Any:
        return sum((model.share(trades, wealth, market) for model in self.models), 0.0 * wealth)


def proportional_rates(costs: CostModel) -> FloatArray | None:
    """Rates (models,) of costs that are all proportional; None where others are among them."""
    models = costs.models if isinstance(costs, SumOfCosts) else [costs]
    rates = [model.rate for model in models if isinstance(model, Proportional)]
    return np.array(rates, dtype=np.float64) if len(rates) == len(models) else None


def costs_of(env: EnvConfig) -> SumOfCosts:
    """The costs of the configuration: commission and slippage always, of the others those that are not zero."""
    extra, commission = env.costs, env.commission_bps * BASIS_POINT
    models: list[CostModel] = [
        FixedMinimum(commission, extra.minimum) if extra.minimum > 0.0 else Proportional(commission),
        Proportional(env.slippage_bps * BASIS_POINT),
    ]
    if extra.slippage_linear_bps > 0.0:
        models.append(VolumeCost(extra.slippage_linear_bps * BASIS_POINT, linear=True))
    if extra.slippage_sqrt_bps > 0.0:
        models.append(VolumeCost(extra.slippage_sqrt_bps * BASIS_POINT))
    if extra.impact > 0.0:
        models.append(VolumeCost(extra.impact, times_volatility=True))
    return SumOfCosts(models)


def without_market(costs: SumOfCosts) -> SumOfCosts:
    """Those of the costs that depend on neither volume nor volatility."""
    return SumOfCosts([model for model in costs.models if not model.needs_market])
