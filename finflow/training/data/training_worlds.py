"""Market of the training episodes: the real training window, and histories resampled from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from finflow.config import Config
from finflow.env.decision_process import DecisionProcess
from finflow.env.episode_worlds import PURPOSE, EpisodeWorlds
from finflow.env.objective import Moments
from finflow.env.process_variants import concatenate_markets, with_universes
from finflow.errors import MarketError
from finflow.market.features.feature_set import Features, apply_features
from finflow.market.synthetic.block_bootstrap import draw_days, resampled_panel


class LearningMarket(NamedTuple):
    """Market of the training episodes.

    Attributes
    ----------
    process : DecisionProcess
        Bars of the real panel keep their numbers; those of resampled ones follow.
    resampled : tuple of range
        Windows of the resampled histories.
    """

    process: DecisionProcess
    resampled: tuple[range, ...]


def make_learning_market(
    config: Config,
    process: DecisionProcess,
    features: Features,
    moments: Moments,
    windows: Sequence[range],
) -> LearningMarket:
    """Join resampled histories to the training window, if the configuration asks for any.

    Nothing after the training window is in the result: neither its days, nor what was fitted, comes from later bars.

    Parameters
    ----------
    config : Config
    process : DecisionProcess
        Of the real market, up to the end of validation.
    features : Features
        Of ``process``.
    moments : Moments
    windows : sequence of range
        Bars that may be learned from; days are drawn from these alone.

    Raises
    ------
    MarketError
        If an episode does not fit into a resampled history.
    """
    if not config.worlds.bootstraps:
        return LearningMarket(with_universes(process, draw_universes(config, process)), ())
    stop = max(window.stop for window in windows)
    panel = process.panel.until(stop)
    seen = Features(
        features.assets[:stop],
        features.market[:stop],
        features.asset_names,
        features.market_names,
        features.lenses,
        features.first_bar,
        features.fitted,
    )
    if features.fitted is None:
        raise ValueError("nothing was fitted with these features")
    eligible = np.zeros(stop, dtype=np.bool_)
    for window in windows:
        eligible[window.start + 1 : window.stop] = True  # the first bar of a window has no return that lies within
    real = DecisionProcess(panel, seen, config.env, config.objectives, moments)
    others, ranges = [], []
    for number in range(config.worlds.bootstraps):
        words = config.train.seed, PURPOSE, 1 + number  # not 0: [seed, 70, 0] equals [seed, 70], of the sub-universes
        rng = np.random.default_rng(np.random.SeedSequence(words))
        source = draw_days(panel.listed, eligible, config.worlds.block_length, rng)
        other = resampled_panel(panel, source)
        made = apply_features(other, features.fitted, config.features)
        others.append(DecisionProcess(other, made, config.env, config.objectives, moments))
        first = stop * (number + 1)
        ranges.append(range(first + others[-1].first_bar, first + stop))
    episode = config.env.episode_length
    if any(len(window) - 1 < episode for window in ranges):
        raise MarketError(
            f"a resampled history (worlds.bootstraps) has {min(map(len, ranges)) - 1} bars to decide at, fewer than "
            f"env.episode_length ({episode}); use more data or shorter episodes"
        )
    stacked = concatenate_markets(real, others)
    return LearningMarket(with_universes(stacked, draw_universes(config, process)), tuple(ranges))


def draw_universes(config: Config, process: DecisionProcess) -> NDArray[np.int64] | None:
    """The pool of sub-universes of a configuration; None where episodes have all assets."""
    worlds = EpisodeWorlds.of(config.worlds, process.n_weights - 1, config.train.seed)
    return None if worlds is None else worlds.members


def episode_worlds(config: Config, process: DecisionProcess, phase: str) -> EpisodeWorlds | None:
    """Distribution that the episodes of a phase draw their worlds from; None where all are alike."""
    return EpisodeWorlds.of(config.worlds, process.n_weights - 1, config.train.seed, uses_worlds(config, phase))


def uses_worlds(config: Config, phase: str) -> bool:
    """True if a phase has resampled histories and other costs."""
    return config.worlds.phases in ("both", phase)
