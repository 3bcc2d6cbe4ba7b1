"""Volume and volatility of each asset, from which costs that grow with trade size are computed."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from finflow.errors import ConfigError
from finflow.ledger.costs import MarketState
from finflow.market.panel import MarketPanel

FloatArray = NDArray[np.float64]


def liquidity_of(panel: MarketPanel, window: int) -> MarketState:
    """Measure volume in money and daily volatility over trailing bars, (bars, assets), row t from bars <= t.

    Volume in money is the mean over ``window`` bars, two or more, of shares traded times the close; volatility the
    standard deviation (ddof 1) of log returns over the same bars. A younger asset has fewer bars. Where nothing was
    traded, or nothing is known yet, the smallest volume and the highest volatility of that day's other assets are used.
    The first ``window`` rows are zero in both: no trade happens on them.
    """
    if panel.volume is None:
        raise ConfigError(
            "a cost under env.costs depends on the volume traded, but this market has no volume; set the slippage and "
            "impact of env.costs to zero, or use a source with a volume for every price"
        )
    money = pd.DataFrame(panel.share_closes * panel.volume).rolling(window, min_periods=1).mean()
    returns = pd.DataFrame(np.log(panel.close)).diff().rolling(window, min_periods=2).std()
    volume = _fill_gaps(np.asarray(money.where(money > 0.0), dtype=np.float64), np.fmin)
    volatility = _fill_gaps(np.asarray(returns, dtype=np.float64), np.fmax)
    volume[:window], volatility[:window] = 0.0, 0.0
    return MarketState(volume, volatility)


def _fill_gaps(values: FloatArray, costliest: np.ufunc) -> FloatArray:
    """Fill gaps with the costliest value of their row; zero where a row has none."""
    filled = np.where(np.isnan(values), costliest.reduce(values, axis=1)[:, None], values)
    return np.nan_to_num(filled, nan=0.0)
