"""Price processes simple enough that the best portfolio can be computed.

A process is Markov in one number, its *belief*, a sufficient statistic of prices up to a bar for later bars. It
draws log prices (bars, assets), the first row zero (up to the spread of a mean reversion), filters the belief after
every bar, (bars,), has ascending nodes over the belief's range (one where returns are independent), and lists the
outcomes of the next bar as weighted scenarios (Gauss-Hermite nodes), each with the belief that follows. Optimal
policies are computed from those scenarios.

Returns are log returns per bar. An expected return mu means E[exp(r)] = exp(mu) to the order of the Ito term: the mean
of r is mu less half the variance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import ClassVar, NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

_MEMORY = 300
"""Returns that a filter is run over for the newest belief; earlier ones change it by less than rounding."""
_DEGREE_OF_FILTER = 7
_BELIEFS = 61
_WIDEST_BELIEF = 4.5


class Scenarios(NamedTuple):
    """Outcomes of one bar: probabilities (n,), log returns (n, assets), and the belief after the bar (n,)."""

    probability: FloatArray
    returns: FloatArray
    belief: FloatArray


def correlated(n_assets: int, volatility: float, correlation: float) -> FloatArray:
    """Make a covariance of equal volatilities and equal correlations, (assets, assets)."""
    covariance: FloatArray = np.full((n_assets, n_assets), correlation * volatility**2)
    np.fill_diagonal(covariance, volatility**2)
    return covariance


@lru_cache
def _normal_nodes(dimensions: int, degree: int = 5) -> tuple[FloatArray, FloatArray]:
    """Product Gauss-Hermite rule of a standard normal: probabilities (n,) and points (n, dimensions)."""
    points, weights = np.polynomial.hermite_e.hermegauss(degree if dimensions <= 2 else 3)
    weights = weights / weights.sum()
    grids = np.meshgrid(*[points] * dimensions, indexing="ij")
    shares = np.meshgrid(*[weights] * dimensions, indexing="ij")
    nodes: FloatArray = np.stack([grid.ravel() for grid in grids], axis=1)
    return np.prod([share.ravel() for share in shares], axis=0), nodes


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

    def belief(self, log_prices: FloatArray) -> float:
        return 0.0

    def scenarios(self, belief: float) -> Scenarios:
        probability, points = _normal_nodes(self.n_assets)
        returns = self.mean + points @ np.linalg.cholesky(self.covariance).T
        return Scenarios(probability, returns, np.zeros(len(probability)))


@dataclass(frozen=True, eq=False)
class MeanReversion:
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
    assets: int
    level: float = 0.0  # mean of the log price ratio

    belief_name: ClassVar[str] = "spread"

    @property
    def n_assets(self) -> int:
        return self.assets

    @cached_property
    def loadings(self) -> FloatArray:
        """Share of the spread's move in each asset's return, (assets,)."""
        return np.linspace(0.5, -0.5, self.assets)

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
        log_prices: FloatArray = np.cumsum(walk)[:, None] + self.loadings * (spread + self.level)[:, None]
        return log_prices

    def filtered(self, log_prices: FloatArray) -> FloatArray:
        spread: FloatArray = log_prices[:, 0] - log_prices[:, -1] - self.level
        return spread

    def belief(self, log_prices: FloatArray) -> float:
        return float(self.filtered(log_prices[-1:])[0])

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
    def share(self) -> float:
        """Long-run share of bars in the second regime."""
        leave = 1.0 - self.stay
        return float(leave[0] / (leave[0] + leave[1]))

    def draw(self, rng: np.random.Generator, bars: int) -> FloatArray:
        uniform = rng.random(bars).tolist()
        stay = self.stay.tolist()
        regime = int(uniform[0] < self.share)
        path = np.empty(bars, dtype=np.int64)
        for bar, chance in enumerate(uniform):
            if bar > 0 and chance >= stay[regime]:
                regime = 1 - regime
            path[bar] = regime
        noise = rng.standard_normal((bars, self.n_assets))
        returns = self.means[path] + np.einsum("tij,tj->ti", np.linalg.cholesky(self.covariances)[path], noise)
        returns[0] = 0.0
        return np.cumsum(returns, axis=0)

    def log_likelihood(self, returns: FloatArray) -> FloatArray:
        """Log density of returns (n, assets) in each regime, less a common constant, (n, 2)."""
        columns = []
        for mean, covariance in zip(self.means, self.covariances, strict=True):
            root = np.linalg.cholesky(covariance)
            standard = np.linalg.solve(root, (returns - mean).T)
            columns.append(-0.5 * (standard**2).sum(axis=0) - np.log(np.diag(root)).sum())
        return np.stack(columns, axis=1)

    def predicted(self, belief: FloatArray) -> FloatArray:
        """Probability of the second regime one bar on."""
        ahead: FloatArray = belief * self.stay[1] + (1.0 - belief) * (1.0 - self.stay[0])
        return ahead

    def filtered(self, log_prices: FloatArray) -> FloatArray:
        likelihood = self.log_likelihood(np.diff(log_prices, axis=0))
        # clipped so that exp cannot overflow; beyond it the belief is 0 or 1 to the last bit
        odds = np.exp(np.clip(likelihood[:, 1] - likelihood[:, 0], -60.0, 60.0)).tolist()
        belief, result = self.share, [self.share]
        stay, enter = float(self.stay[1]), 1.0 - float(self.stay[0])
        for ratio in odds:
            ahead = belief * stay + (1.0 - belief) * enter
            belief = ahead * ratio / (ahead * ratio + 1.0 - ahead)
            result.append(belief)
        return np.array(result)

    def belief(self, log_prices: FloatArray) -> float:
        return float(self.filtered(log_prices[-_MEMORY - 1 :])[-1])

    def scenarios(self, belief: float) -> Scenarios:
        ahead = float(self.predicted(np.array(belief)))
        shares, points = _normal_nodes(self.n_assets, _DEGREE_OF_FILTER)  # Bayes' rule is far from a polynomial
        roots = np.linalg.cholesky(self.covariances)
        returns = np.concatenate([mean + points @ root.T for mean, root in zip(self.means, roots, strict=True)])
        probability = np.concatenate([(1.0 - ahead) * shares, ahead * shares])
        likelihood = self.log_likelihood(returns)
        odds = np.exp(np.clip(likelihood[:, 1] - likelihood[:, 0], -60.0, 60.0))
        return Scenarios(probability, returns, ahead * odds / (ahead * odds + 1.0 - ahead))


PriceProcess = IndependentReturns | MeanReversion | Regimes
