"""Any optimiser of skfolio as a strategy of finflow, on the same ledger as an agent.

    python portfolios_of_skfolio.py

An optimiser is fitted on the returns of the last year, once a month; in between the portfolio drifts. What it earns is
net of finflow's costs, and its decisions fill one bar after the prices that they know.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from skfolio import RiskMeasure
from skfolio.optimization import HierarchicalRiskParity, MeanRisk

import finflow
from finflow.evaluation.backtest import run_backtests
from finflow.evaluation.statistics.metrics import summarise
from finflow.strategies.classical import named_strategy
from finflow.strategies.strategy import Information, with_cash
from finflow.training.data.training_data import prepare

SMALL = {"market.start": "2006-01-01", "features.filters": "none"}
LOOKBACK = 252  # returns that an optimiser is fitted on
EVERY = 21  # decisions between two fits


class Optimised:
    """Weights of an optimiser of skfolio, fitted again every month."""

    def __init__(self, name: str, optimiser: Any) -> None:
        self.name = name
        self.optimiser = optimiser

    def decide(self, information: Information) -> NDArray[np.float64]:
        """Fit at every `EVERY`th decision; otherwise hold what is there, which trades nothing."""
        if information.step % EVERY:
            return information.portfolio
        prices = information.prices[-LOOKBACK - 1 :, information.listed]
        weights = np.zeros(len(information.listed))
        weights[information.listed] = self.optimiser.fit(prices[1:] / prices[:-1] - 1.0).weights_
        return with_cash(weights)


def main(arguments: Sequence[str]) -> int:
    """Backtest two optimisers beside equal weight on the validation window, and print a line for each."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args(
        arguments
    )
    config = finflow.load_config(None, SMALL)
    data = prepare(config)
    strategies = [
        Optimised("minimum-cvar", MeanRisk(risk_measure=RiskMeasure.CVAR)),
        Optimised("hrp", HierarchicalRiskParity()),
        named_strategy("equal-weight", config.evaluation),
    ]
    for run in run_backtests(data.process, data.split.validation, strategies):
        found = summarise(run, config.objectives.cvar_alpha)
        print(
            f"{run.name:13} Sharpe {found['sharpe']:5.2f}, volatility {found['annual_volatility']:6.1%}, "
            f"CVaR {found['cvar']:6.2%}, turnover {found['annual_turnover']:5.2f} a year"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
