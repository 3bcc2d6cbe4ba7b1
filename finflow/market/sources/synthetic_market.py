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

A process is Markov in one number, its *belief*, a sufficient statistic of prices up to a bar for later bars. It
draws log prices (bars, assets), the first row zero (up to the spread of a mean reversion), filters the belief after
every bar, (bars,), has ascending nodes over the belief's range (one where returns are independent), and lists the
outcomes of the next bar as weighted scenarios (Gauss-Hermite nodes), each with the belief that follows. Optimal
policies are computed from those scenarios.

Returns are log returns per bar. An expected return mu means E[exp(r)] = exp(mu) to the order of the Ito term: the mean
of r is mu less half the variance. The parameters are larger than those of stocks: estimation from a sample of n bars
costs about 1 / (2 n) of log growth a bar for every weight that lies inside its bounds, whatever the volatility. Only
where the optimum gains a hundred times that over equal weight can an estimate come within a hundredth of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import ClassVar, NamedTuple

import numpy as np
import pandas as pd
import scipy

from finflow.arrays import FloatArray
from finflow.config import SyntheticConfig
from finflow.errors import MarketError
from finflow.market.price_adjustments import SourcePrices

_LAST_DATE = "2022-12-30"
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
MEMORY = 300
"""Returns that a filter is run over for the newest belief; earlier ones change it by less than rounding."""
_DEGREE_OF_FILTER = 7
_BELIEFS = 61
_WIDEST_BELIEF = 4.5


class Scenarios(NamedTuple):
    """Outcomes of one bar: probabilities (n,), log returns (n, assets), and the belief after the bar (n,)."""

    probability: FloatArray
    returns: FloatArray
    belief: FloatArray


@lru_cache
def _normal_nodes(dimensions: int, degree: int = 5) -> tuple[FloatArray, FloatArray]:
    """Product Gauss-Hermite rule of a standard normal: probabilities (n,) and points (n, dimensions)."""
    points, weights = np.polynomial.hermite_e.hermegauss(degree if dimensions <= 2 else 3)
    weights = weights / weights.sum()
    grids = np.meshgrid(*[points] * dimensions, indexing="ij")
    shares = np.meshgrid(*[weights] * dimensions, indexing="ij")
    return np.prod([share.ravel() for share in shares], axis=0), np.stack([grid.ravel() for grid in grids], axis=1)


@dataclass(frozen=True, eq=False)
class IndependentReturns:
    """Log-normal returns, independent from bar to bar (Merton 1969)."""

    mean: FloatArray  # (assets,), of the log return
    covariance: FloatArray  # (assets, assets)

    belief_name: ClassVar[str] = "nothing to know"

    @property
    def n_assets(self) -> int:
        return len(self.mean)

    @property
    def beliefs(self) -> FloatArray:
        return np.zeros(1)

    def draw(self, rng: np.random.Generator, bars: int) -> FloatArray:
        returns = self.mean + rng.standard_normal((bars, self.n_assets)) @ np.linalg.cholesky(self.covariance).T
        returns[0] = 0.0
        return np.cumsum(returns, axis=0)

    def filtered(self, log_prices: FloatArray) -> FloatArray:
        return np.zeros(len(log_prices))

    def scenarios(self, belief: float) -> Scenarios:
        probability, points = _normal_nodes(self.n_assets)
        returns = self.mean + points @ np.linalg.cholesky(self.covariance).T
        return Scenarios(probability, returns, np.zeros(len(probability)))


@dataclass(frozen=True, eq=False)
class MeanRevertingReturns:
    """Prices around a common walk, with a spread z that is an autoregression: z' = persistence * z + innovation.

    Asset i has the log return mean + common + loading_i * (z' - z); loadings fall evenly from 1/2 to -1/2, so z is the
    log price of the first asset over that of the last: observed in prices without error. At lag 1 a decision knows z
    one bar late and earns the bar after: its expected change is -persistence (1 - persistence) z.

    Among the agent's features the differences between assets of macd_12_26, relative_strength_126, return_63 and
    drawdown_252 depend on z. A linear regression on all features explains three quarters of its variance at the default
    parameters.
    """

    mean: float  # log return common to all assets
    common: float  # standard deviation of the common part
    innovation: float  # standard deviation of the spread's innovation
    persistence: float  # in (0, 1)
    n_assets: int

    belief_name: ClassVar[str] = "spread"

    @cached_property
    def loadings(self) -> FloatArray:
        """Share of the spread's move in each asset's return, (assets,)."""
        return np.linspace(0.5, -0.5, self.n_assets)

    @property
    def deviation(self) -> float:
        return self.innovation / math.sqrt(1.0 - self.persistence**2)

    @property
    def beliefs(self) -> FloatArray:
        return np.linspace(-_WIDEST_BELIEF, _WIDEST_BELIEF, _BELIEFS) * self.deviation

    def draw(self, rng: np.random.Generator, bars: int) -> FloatArray:
        shocks = self.innovation * rng.standard_normal(bars)
        shocks[0] *= self.deviation / self.innovation
        spread = scipy.signal.lfilter([1.0], [1.0, -self.persistence], shocks)
        walk = self.mean + self.common * rng.standard_normal(bars)
        walk[0] = 0.0
        return np.asarray(np.cumsum(walk)[:, None] + self.loadings * spread[:, None])

    def filtered(self, log_prices: FloatArray) -> FloatArray:
        return log_prices[:, 0] - log_prices[:, -1]

    def scenarios(self, belief: float) -> Scenarios:
        probability, points = _normal_nodes(2)
        after = self.persistence * belief + self.innovation * points[:, 1]
        common = self.mean + self.common * points[:, 0]
        return Scenarios(probability, common[:, None] + self.loadings * (after - belief)[:, None], after)


@dataclass(frozen=True, eq=False)
class Regimes:
    """Two hidden regimes, normal log returns in each; the belief is the probability of the second (Hamilton 1989).

    At lag 1 a decision knows the filter one bar late. Among the agent's features turbulence, market_volatility and
    dispersion depend on the regime's volatility, and the differences between assets of rsi_14, bollinger_20 and
    return_5 on the assets that it favours.
    """

    means: FloatArray  # (2, assets), of the log return in each regime
    covariances: FloatArray  # (2, assets, assets)
    stay: FloatArray  # (2,): chance that a regime lasts another bar

    belief_name: ClassVar[str] = "chance of the second regime"

    @property
    def n_assets(self) -> int:
        return int(self.means.shape[1])

    @property
    def beliefs(self) -> FloatArray:
        """Nodes, dense near 0 and 1, where the filter mostly is."""
        return 0.5 - 0.5 * np.cos(np.linspace(0.0, math.pi, _BELIEFS))

    @property
    def _share(self) -> float:
        """Long-run share of bars in the second regime."""
        leave = 1.0 - self.stay
        return float(leave[0] / (leave[0] + leave[1]))

    def draw(self, rng: np.random.Generator, bars: int) -> FloatArray:
        uniform = rng.random(bars).tolist()
        stay = self.stay.tolist()
        regime = int(uniform[0] < self._share)
        path = np.empty(bars, dtype=np.int64)
        for bar, chance in enumerate(uniform):
            if bar > 0 and chance >= stay[regime]:
                regime = 1 - regime
            path[bar] = regime
        noise = rng.standard_normal((bars, self.n_assets))
        returns = self.means[path] + np.einsum("tij,tj->ti", np.linalg.cholesky(self.covariances)[path], noise)
        returns[0] = 0.0
        return np.cumsum(returns, axis=0)

    def _odds(self, returns: FloatArray) -> FloatArray:
        """Density of returns (n, assets) in the second regime over that in the first, (n,)."""
        columns = []
        for mean, covariance in zip(self.means, self.covariances, strict=True):
            root = np.linalg.cholesky(covariance)
            standard = np.linalg.solve(root, (returns - mean).T)
            columns.append(-0.5 * (standard**2).sum(axis=0) - np.log(np.diag(root)).sum())
        # clipped so that exp cannot overflow; beyond it the belief is 0 or 1 to the last bit
        return np.asarray(np.exp(np.clip(columns[1] - columns[0], -60.0, 60.0)))

    def filtered(self, log_prices: FloatArray) -> FloatArray:
        belief, result = self._share, [self._share]
        stay, enter = float(self.stay[1]), 1.0 - float(self.stay[0])
        for ratio in self._odds(np.diff(log_prices, axis=0)).tolist():
            ahead = belief * stay + (1.0 - belief) * enter
            belief = ahead * ratio / (ahead * ratio + 1.0 - ahead)
            result.append(belief)
        return np.array(result)

    def scenarios(self, belief: float) -> Scenarios:
        ahead = float(belief * self.stay[1] + (1.0 - belief) * (1.0 - self.stay[0]))
        shares, points = _normal_nodes(self.n_assets, _DEGREE_OF_FILTER)  # Bayes' rule is far from a polynomial
        roots = np.linalg.cholesky(self.covariances)
        returns = np.concatenate([mean + points @ root.T for mean, root in zip(self.means, roots, strict=True)])
        probability = np.concatenate([(1.0 - ahead) * shares, ahead * shares])
        odds = self._odds(returns)
        return Scenarios(probability, returns, ahead * odds / (ahead * odds + 1.0 - ahead))


PriceProcess = IndependentReturns | MeanRevertingReturns | Regimes


def _parameters_of(config: SyntheticConfig) -> dict[str, float]:
    """Return the parameters of a process, per bar: those configured, and the defaults of the kind for the others."""
    defaults = _PARAMETERS[config.kind]
    configured = {name: getattr(config, name) for name in defaults}
    return {name: defaults[name] if value is None else float(value) for name, value in configured.items()}


def process_of(config: SyntheticConfig) -> PriceProcess:
    values = _parameters_of(config)
    drift, volatility, correlation = values["drift"], values["volatility"], values["correlation"]
    falling = drift - values.get("edge", 0.0) * np.linspace(0.0, 1.0, config.assets)
    covariance: FloatArray = np.full((config.assets, config.assets), correlation * volatility**2)
    np.fill_diagonal(covariance, volatility**2)
    if config.kind == "mean-reverting":
        return MeanRevertingReturns(
            mean=drift - 0.5 * volatility**2,
            common=volatility * float(np.sqrt((1.0 + correlation) / 2.0)),
            innovation=volatility * float(np.sqrt(2.0 * (1.0 - correlation))),
            persistence=values["persistence"],
            n_assets=config.assets,
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


def synthetic_prices(config: SyntheticConfig) -> SourcePrices:
    """Draw the prices of the configured market from its seed."""
    log_prices = process_of(config).draw(np.random.default_rng(config.seed), config.bars)
    if np.abs(log_prices).max() > _LARGEST_LOG_PRICE:
        raise MarketError(
            f"prices of the {config.kind} market leave the range of numbers within {config.bars} bars; set fewer "
            "market.synthetic.bars or a smaller drift, edge or volatility"
        )
    dates = pd.bdate_range(end=_LAST_DATE, periods=config.bars)
    close = pd.DataFrame(_FIRST_PRICE * np.exp(log_prices), index=dates, columns=list(_NAMES[: config.assets]))
    facts = {
        "source": "synthetic",
        "kind": config.kind,
        "seed": config.seed,
        "parameters": _parameters_of(config),
        "parameters_note": "per bar; the market is synthetic, and its optimal portfolio is known",
        "adjusted": "no dividends, no splits",
        "survivorship": "none: no asset was chosen with hindsight",
    }
    return SourcePrices({"close": close}, facts)
