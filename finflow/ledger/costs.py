"""What a trade costs, as a share of wealth. Models are small and add up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from array_api_compat import array_namespace

BASIS_POINT = 1e-4


class CostModel(Protocol):
    """A cost of trading."""

    def share(self, trades: Any, wealth: Any) -> Any:
        """Cost of ``trades`` as a share of wealth before the trade.

        Parameters
        ----------
        trades : array, (..., assets)
            Signed trades in risky assets, as shares of wealth before the trade.
        wealth : array, (...,)
            Wealth before the trade, in money.

        Returns
        -------
        array, (...,)
            Non-negative; zero where nothing is traded.
        """
        ...


@dataclass(frozen=True)
class Proportional:
    """A fixed share of every trade's value: a commission, or half a constant spread.

    Parameters
    ----------
    rate : float
        Share of the value traded, e.g. ``0.001`` for 10 basis points.
    """

    rate: float

    def share(self, trades: Any, wealth: Any) -> Any:
        """``rate * sum_i |trade_i|``; wealth plays no part."""
        xp = array_namespace(trades)
        return self.rate * xp.sum(xp.abs(trades), axis=-1)


@dataclass(frozen=True)
class Summed:
    """Several costs at once: a commission and a spread, say."""

    models: Sequence[CostModel]

    def share(self, trades: Any, wealth: Any) -> Any:
        """Sum of the models' costs."""
        total = 0.0 * wealth
        for model in self.models:
            total = total + model.share(trades, wealth)
        return total
