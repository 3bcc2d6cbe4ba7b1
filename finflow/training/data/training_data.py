"""Data of one training: prices up to the end of validation, features fitted on the training window, behaviour data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, overload

import numpy as np
import torch

from finflow.agent.networks.critic import NetworkShape
from finflow.config import Config, as_config
from finflow.env.decision_process import DecisionProcess
from finflow.env.market_growth import equal_weight_moments
from finflow.env.objective import Moments
from finflow.env.vector_env import PortfolioEnv, PortfolioVectorEnv
from finflow.errors import ConfigError, MarketError, refuse
from finflow.files import check_writable, missing_folders, remove_empty
from finflow.market.features.feature_set import Features, apply_features, compute_features
from finflow.market.panel import MarketPanel, Split, split_panel
from finflow.market.plausibility.price_notes import opening_lines, price_notes
from finflow.market.sources.panel_loader import load_panel
from finflow.offline.collection import STILL, collect, made_by
from finflow.offline.dataset import OfflineDataset, card_lines, load_dataset, save_dataset
from finflow.training.data.rewards import choose_reward

GAPS_SHOWN = 5  # assets with gaps that are named
CARD = "dataset.json"
"""The data card's name in a run folder."""
VOLATILITY = "volatility_"  # and the bars of its window


@dataclass(frozen=True)
class TrainingData:
    """The market of one training."""

    config: Config
    panel: MarketPanel  # up to the end of the test window; only ``held_out_process`` reads beyond validation
    split: Split
    process: DecisionProcess  # ends with validation: training cannot see further
    features: Features
    moments: Moments
    segments: tuple[range, ...] = ()  # parts of the training window that episodes stay within; none where it is whole

    @property
    def train(self) -> range | tuple[range, ...]:
        """Bars that episodes stay within; with several ranges, each episode within one."""
        return self.segments or self.split.train

    @property
    def train_segments(self) -> tuple[range, ...]:
        return self.segments or (self.split.train,)

    @cached_property
    def learning(self) -> DecisionProcess:
        """The training market with the configured reward; `process` itself with the default one."""
        return choose_reward(self.config, self.process, self.train_segments)

    @property
    def shape(self) -> NetworkShape:
        return NetworkShape(
            n_asset_features=self.process.asset_features.shape[2],
            n_market_features=self.process.market_features.shape[1],
            hidden=self.config.bcell.hidden_dim,
            lenses=tuple(self.features.lenses.values()),
        )

    @property
    def log_volatility(self) -> tuple[int, float]:
        """Column of the longest log volatility among the assets' features, and the deviation that it was scaled by."""
        features = self.features
        windows = [name.removeprefix(VOLATILITY) for name in features.asset_names]
        column = max((int(bars), column) for column, bars in enumerate(windows) if bars.isdigit())[1]
        return column, 1.0 if features.fitted is None else float(features.fitted.assets[column, 1])

    def opening_lines(self, alone: bool) -> list[str]:
        """Lines to begin a training with: the whole market where no job has shown it, and remarks."""
        shown = opening_lines(self.panel, self.split) if alone else price_notes(self.panel)
        return [*shown, *filter(None, [self.gap_note()])]

    def gap_note(self) -> str | None:
        """A note that names assets that are not listed at every bar that is learned from; None where there is none."""
        windows = [self.process.decision_bars(window) for window in self.train_segments]
        bars = [bar for window in windows for bar in range(window.start, window.stop + 1)]  # with the last one's growth
        listed = np.asarray(self.process.panel.listed[bars].all(axis=0))
        unlisted = [asset for asset, whole in zip(self.process.panel.assets, listed, strict=True) if not whole]
        if not unlisted:
            return None
        shown = ", ".join(unlisted[:GAPS_SHOWN]) + (", ..." if len(unlisted) > GAPS_SHOWN else "")
        count = "1 asset is" if len(unlisted) == 1 else f"{len(unlisted)} assets are"
        return (
            f"{count} not listed throughout the training window ({shown}); decisions are learned over the assets that "
            "are listed at the time"
        )

    def held_out_process(self) -> DecisionProcess:
        """A process over the test window as well: for the final evaluation alone."""
        if not self.split.test:
            raise ValueError("the market of a fold has no test window")
        features = compute_features(self.panel, self.split.train_end, self.config.features)
        return DecisionProcess(self.panel, features, self.config.env, self.config.objectives, self.moments)


def prepare(config: Config) -> TrainingData:
    """Load prices, split them, compute features.

    Raises MarketError if prices are missing, wrong or too few for the windows and the episodes.
    """
    return prepare_from(load_panel(config.market), config)


def prepare_pieces(
    panel: MarketPanel, config: Config, pieces: Sequence[range], validation: int, features: Features | None = None
) -> TrainingData:
    """The market of a training that may not see some of the bars: the pieces that are left, joined.

    Held-out bars are not in the panel at all, so that no feature, fit or reward can depend on them. After each join
    nothing is learned until every window of a feature lies after it.

    ``panel``: cut before the test window. ``pieces``: its bars that may be seen, one after another, with gaps between.
    ``validation``: how many of the last bars are for choosing a checkpoint. ``features``: of the same pieces and keys,
    where they are known.

    Raises MarketError if what is left is too short to learn in.
    """
    joined = panel.spliced(pieces)
    train_end = joined.n_bars - validation
    process, features, moments = _fitted(joined, config, train_end, features)
    listed = int(np.flatnonzero(joined.listed.sum(axis=1) >= 2)[0])
    segments, first = [], 0
    for number, piece in enumerate(pieces):
        stop = min(first + len(piece), train_end)
        segment = range(first + (process.first_bar - listed if number else 0), stop)
        if len(process.decision_bars(segment)) >= config.env.episode_length:
            segments.append(segment)
        first += len(piece)
    if not segments:
        raise MarketError(
            f"no segment of the {train_end} bars to learn from has room for an episode of {config.env.episode_length} "
            "decisions (env.episode_length) after the longest feature; use more data, shorter episodes or fewer folds"
        )
    split = Split(train_end, joined.n_bars, joined.n_bars)
    return TrainingData(config, joined, split, process, features, moments, tuple(segments))


def process_on(training_data: TrainingData, panel: MarketPanel, features: Features | None = None) -> DecisionProcess:
    """The decision process of a trained agent on other bars: everything that is fitted comes from its training."""
    config = training_data.config
    features = features or features_on(training_data, panel)
    return DecisionProcess(panel, features, config.env, config.objectives, training_data.moments)


def features_on(training_data: TrainingData, panel: MarketPanel) -> Features:
    """Features of other bars, by what was fitted on the training window."""
    if training_data.features.fitted is None:
        raise ValueError("nothing was fitted with these features")
    return apply_features(panel, training_data.features.fitted, training_data.config.features)


def _fitted(
    panel: MarketPanel, config: Config, train_end: int, features: Features | None = None
) -> tuple[DecisionProcess, Features, Moments]:
    """The process of bars that a training may see, and what is fitted on those before the end of its window."""
    features = features or compute_features(panel, train_end, config.features)
    moments = equal_weight_moments(panel, config.env.fill, range(features.first_bar, train_end))
    refuse(not moments.second > 0.0, STILL, MarketError)
    return DecisionProcess(panel, features, config.env, config.objectives, moments), features, moments


def visible(panel: MarketPanel, split: Split) -> MarketPanel:
    """The part of the market that training may see: nothing after the validation window."""
    return panel.until(split.validation_end)


def prepare_from(panel: MarketPanel, config: Config) -> TrainingData:
    split = split_panel(panel, config.market)
    panel = panel.until(split.test_end)
    process, features, moments = _fitted(visible(panel, split), config, split.train_end)
    if (decisions := len(process.decision_bars(split.train))) < config.env.episode_length:
        raise MarketError(
            f"the training window has {decisions} bars to decide at after the longest feature, fewer than "
            f"env.episode_length ({config.env.episode_length}); use more data, a later market.train_end or shorter "
            "episodes"
        )
    for name, window in (("validation", split.validation), ("test", split.test)):
        if len(window) < 3:  # two decisions, and a bar of growth after them
            raise MarketError(
                f"the {name} window holds too few bars ({len(window)}): a backtest needs three at least; move "
                f"market.{name}_end or use more data"
            )
    return TrainingData(config, panel, split, process, features, moments)


def choose_device(name: str) -> torch.device:
    """The device of a configuration; ``auto`` takes CUDA, then MPS, then the CPU.

    Raises ConfigError if the one asked for is not there.
    """
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        name = next(candidate for candidate in ("cuda", "mps", "cpu") if available[candidate])
    if not available[name]:
        raise ConfigError(f"train.device = {name}, but this machine has no such device; use auto or cpu")
    return torch.device(name)


def device_here(name: str) -> torch.device:
    """The device of a configuration; the CPU where agents were trained on one that this machine lacks."""
    try:
        return choose_device(name)
    except ConfigError:
        return torch.device("cpu")


class OfflineData(NamedTuple):
    """A dataset and where it lies. ``reused``: whether the file was there before."""

    dataset: OfflineDataset
    path: Path
    reused: bool

    def lines(self) -> list[str]:
        """Lines for the user: the source of the data, and the table of the data card."""
        card = self.dataset.meta["card"]
        how = "reused" if self.reused else "collected"
        size = f"{card['transitions']:,} decisions in {card['episodes']:,} episodes"
        return [f"behaviour data: {size}, {how}: {self.path}", *card_lines(card)]


def offline_data(
    config: Config, training_data: TrainingData, path: Path | None = None, recollect: bool = False
) -> OfflineData:
    """Collect the behaviour data, or reuse what was collected by the same code from the same market.

    ``path``: the npz file; one named after what made it, under ``output.offline_dir``, when left out. ``recollect``:
    collect even where the file is there, and write over it.

    Raises FinflowError if the file was made by something else; it is never overwritten then.
    """
    process, window = training_data.learning, training_data.train
    expected = made_by(config, process, window)
    given = path
    if path is None:
        name = hashlib.sha256(json.dumps(expected, sort_keys=True).encode()).hexdigest()[:16]
        path = config.output.offline_dir / f"dataset-{name}.npz"
    if path.exists() and not recollect:
        return OfflineData(load_dataset(path, expected), path, reused=True)
    made = missing_folders(path.parent)
    check_writable(path.parent, "output.offline_dir" if given is None else "folder")
    try:
        dataset = collect(config, process, window)
        save_dataset(path, dataset)
    except BaseException:
        remove_empty(made)
        raise
    return OfflineData(dataset, path, reused=False)


@overload
def make_env(
    config: Config | Path | str | None = ...,
    split: str = ...,
    num_envs: None = ...,
    *,
    whole_window: bool | None = ...,
    random_portfolios: bool = ...,
    final_evaluation: bool = ...,
) -> PortfolioEnv: ...


@overload
def make_env(
    config: Config | Path | str | None = ...,
    split: str = ...,
    *,
    num_envs: int,
    whole_window: bool | None = ...,
    random_portfolios: bool = ...,
    final_evaluation: bool = ...,
) -> PortfolioVectorEnv: ...


def make_env(
    config: Config | Path | str | None = None,
    split: str = "train",
    num_envs: int | None = None,
    *,
    whole_window: bool | None = None,
    random_portfolios: bool = False,
    final_evaluation: bool = False,
) -> PortfolioEnv | PortfolioVectorEnv:
    """Make the environment of a configuration: its prices, features, costs, limits and reward.

    Parameters
    ----------
    split : str
        ``train``, ``validation`` or ``test``: the window that episodes stay within.
    num_envs : int, optional
        Portfolios of a ``PortfolioVectorEnv``; one ``PortfolioEnv`` when left out.
    whole_window : bool, optional
        Whether an episode is the whole window; otherwise it is ``env.episode_length`` decisions from a random start.
        When left out: random starts for ``train``, the whole window for the others.
    random_portfolios : bool
        Start from random portfolios, not from cash.
    final_evaluation : bool
        Needed for ``test``, and for nothing else: that this is the last look, after everything has been chosen.

    Raises
    ------
    ConfigError
        If the split is not one of the three, or ``test`` is asked for without ``final_evaluation``.
    MarketError
        If prices are missing, wrong or too few.

    Examples
    --------
    >>> import finflow
    >>> env = finflow.make_env(split="validation")
    >>> observation, info = env.reset(seed=0)
    >>> len(env.action_space.low)  # 20 stocks and cash
    21
    """
    if split not in ("train", "validation", "test"):
        raise ConfigError(f"split = {split!r}: must be one of train, validation, test")
    if split == "test" and not final_evaluation:
        raise ConfigError(
            "the test window is for the final evaluation alone: choose by split='validation', and pass "
            "final_evaluation=True when nothing is left to be chosen"
        )
    training_data = prepare(as_config(config))
    if split == "train":
        process, window = training_data.learning, training_data.train
    else:
        process = training_data.held_out_process() if split == "test" else training_data.process
        window = getattr(training_data.split, split)
    whole = split != "train" if whole_window is None else whole_window
    length = None if whole else training_data.config.env.episode_length
    if num_envs is None:
        return PortfolioEnv(process, window, length, random_portfolios)
    return PortfolioVectorEnv(process, window, num_envs, length, random_portfolios)
