"""Synthetic markets whose best portfolio is known.

Five kinds, all with daily business-day dates that end on 2022-12-30, so that the default windows work:

==================  ================================================================================================
``lognormal``       independent log-normal returns (Merton 1969): part of the best asset, none of the worse, the rest
                    in cash. Equal weight holds too much of the worse assets, buy-and-hold ends up with too
                    much risk
``constant-drift``  the same with an edge so large that the best asset alone is best
``mean-reverting``  the spread between the assets reverts; trading on it costs (Garleanu and Pedersen 2013)
``regime``          two hidden regimes, each of which favours the other end of the assets (Hamilton 1989)
``exchangeable``    assets with one joint distribution: nothing beats equal weight but by luck
==================  ================================================================================================

The parameters are larger than those of stocks: estimation from a sample of n bars costs about 1 / (2 n) of log growth a
bar for every weight that lies inside its bounds, whatever the volatility. Only where the optimum gains a hundred times
that over equal weight can an estimate from the sample come within a hundredth of it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from finflow.config import SyntheticConfig
from finflow.errors import MarketError
from finflow.market.sources.price_files import PriceTables
from finflow.market.synthetic.price_processes import (
    IndependentReturns,
    MeanReversion,
    PriceProcess,
    Regimes,
    correlated,
)

LAST_DATE = "2022-12-30"
_FIRST_PRICE = 100.0
_LARGEST_LOG_PRICE = 690.0
_VOLATILITY_RATIO = 2.0
"""Volatility of the second regime over that of the first."""
_NAMES = ("A", "B", "C", "D")

_PARAMETERS: dict[str, dict[str, float]] = {
    "lognormal": {"drift": 0.03125, "edge": 0.025, "volatility": 0.25, "correlation": 0.9},
    "constant-drift": {"drift": 0.004, "edge": 0.004, "volatility": 0.01, "correlation": 0.3},
    "mean-reverting": {"drift": 0.0008, "volatility": 0.015, "correlation": 0.3, "persistence": 0.9},
    "regime": {
        **{"drift": 0.006, "edge": 0.006, "volatility": 0.01, "correlation": 0.3},
        **{"persistence": 0.97, "defensive_ratio": 1.0},
    },
    "exchangeable": {"drift": 0.0005, "volatility": 0.01, "correlation": 0.3},
}


def parameters_of(config: SyntheticConfig) -> dict[str, float]:
    """Return the parameters of a process, per bar: those configured, and the defaults of the kind for the others."""
    defaults = _PARAMETERS[config.kind]
    configured = {name: getattr(config, name) for name in defaults}
    return {name: defaults[name] if value is None else float(value) for name, value in configured.items()}


def process_of(config: SyntheticConfig) -> PriceProcess:
    """Make the process that the configured market is drawn from."""
    values = parameters_of(config)
    drift, volatility, correlation = values["drift"], values["volatility"], values["correlation"]
    falling = drift - values.get("edge", 0.0) * np.linspace(0.0, 1.0, config.assets)
    covariance = correlated(config.assets, volatility, correlation)
    if config.kind == "mean-reverting":
        return MeanReversion(
            mean=drift - 0.5 * volatility**2,
            common=volatility * float(np.sqrt((1.0 + correlation) / 2.0)),
            innovation=volatility * float(np.sqrt(2.0 * (1.0 - correlation))),
            persistence=values["persistence"],
            assets=config.assets,
        )
    if config.kind == "regime":
        calmer = np.linspace(1.0, values["defensive_ratio"], config.assets)
        calm = covariance * np.outer(calmer, calmer)
        covariances = np.stack([calm, calm * _VOLATILITY_RATIO**2])
        return Regimes(
            means=np.stack([falling, falling[::-1]]) - 0.5 * np.diagonal(covariances, axis1=1, axis2=2),
            covariances=covariances,
            stay=np.full(2, values["persistence"]),
        )
    return IndependentReturns(falling - 0.5 * volatility**2, covariance)


def synthetic_tables(config: SyntheticConfig) -> tuple[PriceTables, dict[str, Any]]:
    """Draw the prices of the configured market from its seed; return them with facts for the provenance."""
    rng = np.random.default_rng(config.seed)
    log_prices = process_of(config).draw(rng, config.bars)
    if np.abs(log_prices).max() > _LARGEST_LOG_PRICE:
        raise MarketError(
            f"prices of the {config.kind} market leave the range of numbers within {config.bars} bars; set fewer "
            "market.synthetic.bars or a smaller drift, edge or volatility"
        )
    dates = pd.bdate_range(end=LAST_DATE, periods=config.bars)
    close = pd.DataFrame(_FIRST_PRICE * np.exp(log_prices), index=dates, columns=list(_NAMES[: config.assets]))
    facts = {
        "source": "synthetic",
        "kind": config.kind,
        "seed": config.seed,
        "parameters": parameters_of(config),
        "parameters_note": "per bar; the market is synthetic, and its optimal portfolio is known",
        "adjusted": "no dividends, no splits",
        "survivorship": "none: no asset was chosen with hindsight",
    }
    return {"close": close}, facts
