"""Costs of trades as shares of wealth. Models are small and add up.

In the formulas ``v_i`` is the value traded in asset i as a share of wealth, ``W`` wealth in money, ``V_i`` the money
that changes hands in the asset on a day, ``s_i`` its daily volatility and ``p_i = v_i W / V_i`` the participation: the
share of a day's trading that this trade would be.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

from finflow.config import EnvConfig
from finflow.errors import ConfigError

BASIS_POINT = 1e-4
NO_TRADE = 1e-12  # as a share of wealth: rounding
TINY = 1e-30  # keeps the root's slope finite at no trade, also in single precision
STEEPNESS = 5.0  # of the configured exponential slippage
LARGEST_EXPONENT = 50.0  # far beyond what any account can pay, and well inside single precision


class MarketState(NamedTuple):
    """Liquidity and volatility of assets as known at the decision.

    Attributes
    ----------
    volume : array, (..., assets)
        Value traded in a day, in money.
    volatility : array, (..., assets)
        Standard deviation of a day's log return.
    """

    volume: Any
    volatility: Any


class CostModel(Protocol):
    """A cost of trading."""

    @property
    def needs_market(self) -> bool:
        """True where the cost depends on volume or volatility."""
        ...

    def by_asset(self, trades: Any, wealth: Any, market: MarketState | None = None) -> Any:
        """Cost of the trade in each asset, (..., assets), with the parameters of ``share``, which sums it."""
        ...

    def share(self, trades: Any, wealth: Any, market: MarketState | None = None) -> Any:
        """Cost of ``trades`` as a share of wealth before the trade.

        Parameters
        ----------
        trades : array, (..., assets)
            Signed trades in risky assets, as shares of wealth before the trade.
        wealth : array, (...,)
            Wealth before the trade, in money.
        market : MarketState, optional
            Needed by the models that say so.

        Returns
        -------
        array, (...,)
            Non-negative; zero where nothing is traded.
        """
        ...


class _SummedOverAssets(ABC):
    """A cost that is the sum of the costs of the trades in single assets."""

    @abstractmethod
    def by_asset(self, trades: Any, wealth: Any, market: MarketState | None = None) -> Any:
        """Cost of the trade in each asset."""

    def share(self, trades: Any, wealth: Any, market: MarketState | None = None) -> Any:
        """Sum of the costs of the trades in all assets."""
        return array_namespace(trades).sum(self.by_asset(trades, wealth, market), axis=-1)


@dataclass(frozen=True)
class Proportional:
    """A fixed share of every trade's value: a commission, or half a constant spread.

    Parameters
    ----------
    rate : float
        Share of the value traded, e.g. ``0.001`` for 10 basis points.
    """

    rate: float
    needs_market = False

    def by_asset(self, trades: Any, wealth: Any, market: MarketState | None = None) -> Any:
        """``rate * v_i``; wealth does not matter."""
        return self.rate * array_namespace(trades).abs(trades)

    def share(self, trades: Any, wealth: Any, market: MarketState | None = None) -> Any:
        """``rate * sum_i v_i``, in the order of operations of the compiled ledger."""
        xp = array_namespace(trades)
        return self.rate * xp.sum(xp.abs(trades), axis=-1)


@dataclass(frozen=True)
class FixedMinimum(_SummedOverAssets):
    """A proportional commission that is never below a fixed amount for each asset traded.

    Parameters
    ----------
    rate : float
        Share of the value traded.
    minimum : float
        Least commission of one asset's trade, in money. Trades of up to 1e-12 of wealth are rounding, and free; the
        sliver of an asset that is sold to pay for the others' trades is not.
    """

    rate: float
    minimum: float
    needs_market = False

    def by_asset(self, trades: Any, wealth: Any, market: MarketState | None = None) -> Any:
        """``max(rate * v_i, minimum / W)`` in the assets that are traded."""
        xp = array_namespace(trades)
        size = xp.abs(trades)
        least = xp.broadcast_to(self.minimum / wealth[..., None], size.shape)
        return xp.where(size > NO_TRADE, xp.maximum(self.rate * size, least), xp.zeros_like(size))


@dataclass(frozen=True)
class Slippage(_SummedOverAssets):
    """Slippage that grows with participation.

    Parameters
    ----------
    rate : float
        Share of the value traded that is lost when the trade is as large as a day's volume.
    """

    rate: float
    needs_market = True

    @abstractmethod
    def growth(self, participation: Any) -> Any:
        """``f(p)``, 1 at ``p = 1``."""

    def by_asset(self, trades: Any, wealth: Any, market: MarketState | None = None) -> Any:
        """``rate * v_i f(p_i)``."""
        size = array_namespace(trades).abs(trades)
        return self.rate * size * self.growth(participation(trades, wealth, market))


class LinearSlippage(Slippage):
    """Slippage in proportion to participation: ``f(p) = p``."""

    def growth(self, participation: Any) -> Any:
        return participation


class SquareRootSlippage(Slippage):
    """Slippage in the square root of participation: ``f(p) = sqrt(p)``."""

    def growth(self, participation: Any) -> Any:
        return _root(participation)


@dataclass(frozen=True)
class ExponentialSlippage(Slippage):
    """Slippage that is small in small trades and soars in large ones: ``f(p) = (exp(k p) - 1) / (exp(k) - 1)``.

    Parameters
    ----------
    steepness : float
        ``k``, positive; towards zero the cost becomes linear in participation.
    """

    steepness: float

    def growth(self, participation: Any) -> Any:
        """``(exp(k p) - 1) / (exp(k) - 1)``."""
        xp = array_namespace(participation)
        at_one = xp.expm1(xp.asarray(self.steepness, dtype=participation.dtype))
        return xp.expm1(xp.clip(self.steepness * participation, None, LARGEST_EXPONENT)) / at_one


@dataclass(frozen=True)
class SquareRootImpact(_SummedOverAssets):
    """Market impact by the square-root law: the price moves against a trade, more where prices move much.

    Parameters
    ----------
    coefficient : float
        Of order one; the price moves by so many daily volatilities when a whole day's volume is traded.

    References
    ----------
    Almgren, Thum, Hauptmann and Li (2005), Direct Estimation of Equity Market Impact; with the exponent of one half
    of Toth et al. (2011), Anomalous Price Impact and the Critical Nature of Liquidity in Financial Markets.
    """

    coefficient: float
    needs_market = True

    def by_asset(self, trades: Any, wealth: Any, market: MarketState | None = None) -> Any:
        """``coefficient * v_i s_i sqrt(p_i)``."""
        size = array_namespace(trades).abs(trades)
        return self.coefficient * size * _known(market).volatility * _root(participation(trades, wealth, market))


@dataclass(frozen=True)
class SumOfCosts:
    """Several costs at once: a commission and a spread, say."""

    models: Sequence[CostModel]

    @property
    def needs_market(self) -> bool:
        """True where any of the costs depends on volume or volatility."""
        return any(model.needs_market for model in self.models)

    def by_asset(self, trades: Any, wealth: Any, market: MarketState | None = None) -> Any:
        """Sum of the models' costs in each asset."""
        total = 0.0 * trades
        for model in self.models:
            total = total + model.by_asset(trades, wealth, market)
        return total

    def share(self, trades: Any, wealth: Any, market: MarketState | None = None) -> Any:
        """Sum of the models' costs."""
        total = 0.0 * wealth
        for model in self.models:
            total = total + model.share(trades, wealth, market)
        return total


def proportional_rates(costs: CostModel) -> NDArray[np.float64] | None:
    """Rates (models,) of costs that are all proportional; None where others are among them."""
    models = costs.models if isinstance(costs, SumOfCosts) else [costs]
    rates = [model.rate for model in models if isinstance(model, Proportional)]
    return np.array(rates, dtype=np.float64) if len(rates) == len(models) else None


def participation(trades: Any, wealth: Any, market: MarketState | None) -> Any:
    """Trades as shares of a day's trading in their assets, (..., assets), not negative."""
    xp = array_namespace(trades)
    return xp.abs(trades) * wealth[..., None] / xp.clip(_known(market).volume, TINY)


def _root(values: Any) -> Any:
    """Square root, with a finite slope at zero."""
    xp = array_namespace(values)
    return xp.sqrt(xp.clip(values, TINY))


def _known(market: MarketState | None) -> MarketState:
    if market is None:
        raise ConfigError("a cost under env.costs depends on the volume traded, and this market has none")
    return market


def costs_of(env: EnvConfig) -> SumOfCosts:
    """The costs of the configuration: commission and slippage always, of the others those that are not zero."""
    extra, commission = env.costs, env.commission_bps * BASIS_POINT
    models: list[CostModel] = [
        FixedMinimum(commission, extra.minimum) if extra.minimum > 0.0 else Proportional(commission),
        Proportional(env.slippage_bps * BASIS_POINT),
    ]
    if extra.slippage_linear_bps > 0.0:
        models.append(LinearSlippage(extra.slippage_linear_bps * BASIS_POINT))
    if extra.slippage_sqrt_bps > 0.0:
        models.append(SquareRootSlippage(extra.slippage_sqrt_bps * BASIS_POINT))
    if extra.slippage_exponential_bps > 0.0:
        models.append(ExponentialSlippage(extra.slippage_exponential_bps * BASIS_POINT, STEEPNESS))
    if extra.impact > 0.0:
        models.append(SquareRootImpact(extra.impact))
    return SumOfCosts(models)


def without_market(costs: SumOfCosts) -> SumOfCosts:
    """Those of the costs that depend on neither volume nor volatility."""
    return SumOfCosts([model for model in costs.models if not model.needs_market])
