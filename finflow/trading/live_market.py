"""Agents of a run with the market up to a day, as their backtest sees it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from finflow.config import Config
from finflow.env.decision_process import DecisionProcess
from finflow.env.market_growth import equal_weight_moments
from finflow.errors import ConfigError, MarketError, refuse
from finflow.evaluation.page.page_numbers import Answer
from finflow.json_text import read_object
from finflow.market.features.asset_features import ASSET_FEATURES
from finflow.market.features.feature_set import FeatureRanges, Features, compute_features_and_ranges
from finflow.market.features.rolling_windows import windows_of
from finflow.market.panel import MarketPanel
from finflow.market.sources.panel_loader import load_panel
from finflow.training.checkpoints.checkpoint_reader import check_same_features
from finflow.training.checkpoints.packaged_agents import METRICS, is_packaged
from finflow.training.checkpoints.run_folder import MANIFEST
from finflow.training.data.training_data import device_here
from finflow.training.judging import agent_strategy
from finflow.training.judging.agent_strategy import Agents

TRADING = "trading"


def load_trading_agents(paths: Sequence[Path], overrides: Mapping[str, object]) -> Agents:
    """Read the agents that decide; ``output.logs_dir`` among the overrides moves their folder.

    Raises ConfigError or CheckpointError if an agent cannot be used, or does not see what the others see.
    """
    agents, elsewhere = agent_strategy.load_agents(paths, overrides, device_here), overrides.get("output.logs_dir")
    return agents if elsewhere is None else replace(agents, folder=Path(str(elsewhere)) / agents.folder.name)


def run_data(agents: Agents) -> Mapping[str, Any]:
    """Facts about the data of the agents' run, as far as its manifest is still there."""
    return read_part(agents.checkpoints[0].run_folder / MANIFEST, "data")


def run_verdict(agents: Agents) -> Answer | None:
    """Answer of the run's own evaluation: it beats equal weight, or does not; None where there is none."""
    folders = [agents.folder, *(one.run_folder for one in agents.checkpoints[:1] if is_packaged(one.path))]
    return next(filter(None, (read_part(one / METRICS, "verdict").get("beats_equal_weight") for one in folders)), None)


class LiveMarket(NamedTuple):
    """Market up to the newest bar that a decision may use.

    ``train_end`` is the number of bars in training; ``ranges`` has the features of the bar that the next decision
    knows, and their ranges in training.
    """

    panel: MarketPanel
    train_end: int
    process: DecisionProcess
    features: Features
    ranges: FeatureRanges

    @property
    def known(self) -> int:
        """Bar whose features the next decision reads."""
        return self.next_fill - self.process.lag

    @property
    def next_fill(self) -> int:
        """Bar at which the next decision fills: the newest at an execution lag of 0, else the one to come."""
        return self.panel.n_bars if self.process.lag else self.panel.n_bars - 1


def load_prices(config: Config, until: dt.date | None = None, fresh: bool = False) -> MarketPanel:
    """All prices that the configured source has, up to a date, beyond the test window too.

    With ``fresh`` it is asked for what is newer than the stored prices, where they are downloaded.

    Raises ConfigError if the date lies before all prices.
    """
    changes = {"test_end": None, "extend_cache": fresh or config.market.extend_cache}
    panel = load_panel(config.market.model_copy(update=changes))
    if until is None:
        return panel
    count = panel.bars_until(until)
    refuse(count < 2, f"--date {until} lies before the prices, which begin on {panel.dates[0]}", ConfigError)
    return panel.until(count)


def market_until(panel: MarketPanel, agents: Agents) -> LiveMarket:
    """Features and decision process up to the last bar of a panel, fitted on the training window of the agents.

    Raises MarketError if the last bar lies in the years that the agents learned from, or the windows do not fit.
    """
    config, panel = agents.config, _fields_read(panel, agents)
    last = panel.dates[-1].astype(dt.date)
    refuse(
        last <= config.market.validation_end,
        f"{last} lies in the years that the agent learned from and was chosen by, up to "
        f"{config.market.validation_end} (market.validation_end): name a later --date",
        MarketError,
    )
    train_end = panel.bars_until(config.market.train_end)
    known = panel.n_bars - (config.env.execution_lag or 1)
    features, ranges = compute_features_and_ranges(panel, train_end, config.features, known)
    for checkpoint in agents.checkpoints:
        check_same_features(checkpoint, features)
    moments = equal_weight_moments(panel, config.env.fill, range(features.first_bar, train_end))
    process = DecisionProcess(panel, features, config.env, config.objectives, moments)
    return LiveMarket(panel, train_end, process, features, ranges)


def _fields_read(panel: MarketPanel, agents: Agents) -> MarketPanel:
    """The panel without the fields, such as volume, that no feature of the agents needs."""
    trained = [name for one in agents.checkpoints for name in (one.facts.get("features") or {}).get("assets", ())]
    windows = windows_of(panel.bars_per_year)
    read = {field for one in ASSET_FEATURES if windows.named(one.name) in trained for field in one.needs}
    left: dict[str, Any] = dict.fromkeys({field for one in ASSET_FEATURES for field in one.needs if trained} - read)
    return replace(panel, **left)


def read_part(path: Path, key: str) -> dict[str, Any]:
    """Part of a JSON file that a run left; empty where it is not there, or not readable."""
    part = (read_object(path) or {}).get(key)
    return part if isinstance(part, dict) else {}
