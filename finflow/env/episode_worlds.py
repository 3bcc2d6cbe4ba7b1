"""Worlds of episodes: a sub-universe of one market's assets, and a multiple of its trading costs.

A sub-universe is some of the assets, by number; all others count as not listed. An episode keeps the one that it was
drawn with. The environment shows all assets, those outside with no features and no listing. Learners read the same
states with the assets inside gathered, cash last.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from finflow.config import WorldsConfig
from finflow.errors import ConfigError

FloatArray = NDArray[np.float64]

POOL = 1024  # sub-universes that episodes draw from
PURPOSE = 70  # of the generators that make worlds


class Draws(NamedTuple):
    """The worlds of N episodes.

    Attributes
    ----------
    universe : int array, (N,)
        Rows of the pool of sub-universes; zeros where there is none.
    cost_scale : array, (N,)
        Multiples of all costs.
    """

    universe: NDArray[np.int64]
    cost_scale: FloatArray


class EpisodeWorlds(NamedTuple):
    """Distribution of the worlds that episodes draw.

    Attributes
    ----------
    members : int array, (pool, n), or None
        Assets of each sub-universe, ascending; None where every episode has all assets.
    cost_range : tuple of float
        Least and greatest multiple of all costs.
    """

    members: NDArray[np.int64] | None
    cost_range: tuple[float, float]

    @classmethod
    def of(cls, config: WorldsConfig, n_assets: int, seed: int, costs: bool = True) -> EpisodeWorlds | None:
        """The worlds of a configuration; None where every episode has the same one.

        Parameters
        ----------
        config : WorldsConfig
        n_assets : int
        seed : int
        costs : bool
            Whether costs differ here.

        Raises
        ------
        ConfigError
            If an episode is to have more assets than there are.
        """
        span = (config.cost_low, config.cost_high) if costs else (1.0, 1.0)
        count = episode_assets(config, n_assets)
        if count is None and span == (1.0, 1.0):
            return None
        members = None
        if count is not None:
            if count > n_assets:
                raise ConfigError(f"worlds.assets = {count}: the market has {n_assets} assets; use fewer, or null")
            rng = np.random.default_rng(np.random.SeedSequence([seed, PURPOSE]))
            members = np.sort(rng.permuted(np.tile(np.arange(n_assets), (POOL, 1)), axis=1)[:, :count], axis=1)
        return cls(members, span)

    def draw(self, rng: np.random.Generator, count: int) -> Draws:
        """Worlds for so many episodes."""
        universe = np.zeros(count, dtype=np.int64)
        if self.members is not None:
            universe = rng.integers(len(self.members), size=count)
        low, high = self.cost_range
        scale = np.full(count, low)
        if high > low:
            scale = np.exp(rng.uniform(np.log(low), np.log(high), size=count))
        return Draws(universe, scale)


def episode_assets(config: WorldsConfig, n_assets: int) -> int | None:
    """Number of assets of an episode; None where it has all, as in a market of two."""
    if config.assets != "half":
        return config.assets
    return max(n_assets // 2, 2) if n_assets > 2 else None


def is_single_world(config: WorldsConfig, n_assets: int) -> bool:
    """Test that every episode has all assets, the market's own history and the configured costs."""
    all_assets = episode_assets(config, n_assets) is None
    return all_assets and config.bootstraps == 0 and config.cost_low == config.cost_high == 1.0


def weight_columns(members: NDArray[np.int64], n_weights: int) -> NDArray[np.int64]:
    """Columns, among all K weights, of the assets of sub-universes (N, n) and of cash; (N, n + 1)."""
    cash = np.full((*members.shape[:-1], 1), n_weights - 1)
    return np.concatenate([members, cash], axis=-1)


def gather_assets(weights: FloatArray, members: NDArray[np.int64]) -> FloatArray:
    """Portfolios (N, K) of which nothing lies outside, as portfolios of their sub-universes, (N, n + 1)."""
    found: FloatArray = np.take_along_axis(weights, weight_columns(members, weights.shape[-1]), axis=-1)
    return found


def scatter_assets(weights: FloatArray, members: NDArray[np.int64], n_weights: int) -> FloatArray:
    """Portfolios of sub-universes (N, n + 1) among all K weights, with nothing outside."""
    wide = np.zeros((len(weights), n_weights), dtype=weights.dtype)
    np.put_along_axis(wide, weight_columns(members, n_weights), weights, axis=-1)
    return wide


def restrict_to_assets(
    weights: FloatArray, members: NDArray[np.int64], listed: NDArray[np.bool_] | None = None
) -> FloatArray:
    """Restrict portfolios (N, K) to sub-universes, (N, n + 1).

    The share of cash stays; weights of the assets inside are scaled to sum to the rest, equal where all are zero: over
    those that are listed, (N, n), where that is given, and all cash where none is.
    """
    inside = gather_assets(weights, members)
    cash = inside[..., -1:]
    risky = inside[..., :-1]
    total = risky.sum(axis=-1, keepdims=True)
    shares = np.where(total > 1e-12, risky / np.maximum(total, 1e-12), 1.0 / risky.shape[-1])
    if listed is not None:
        count = listed.sum(axis=-1, keepdims=True)
        shares = np.where(total > 1e-12, shares, listed / np.maximum(count, 1))
        cash = np.where((total > 1e-12) | (count > 0), cash, 1.0)
    return np.concatenate([(1.0 - cash) * shares, cash], axis=-1)
