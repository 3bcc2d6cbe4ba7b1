"""Distance between the market that an agent is judged on and the one that it was trained on."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from finflow.errors import ConfigError, MarketError
from finflow.evaluation.analysis.feature_distance import Values, measure_distance, section
from finflow.evaluation.report.section import Section
from finflow.market.features.feature_set import Features
from finflow.training.checkpoints.checkpoint_reader import Checkpoint, stored_config
from finflow.training.data.training_data import TrainingData, prepare


def distance_sections(checkpoint: Checkpoint, training_data: TrainingData) -> tuple[Section, ...]:
    """The section about the features of another market; none where the agent is judged on its own.

    Parameters
    ----------
    checkpoint : Checkpoint
        Of the agent.
    training_data : TrainingData
        The market that it is judged on.
    """
    if checkpoint.facts["market"] == training_data.process.panel.sha256:
        return ()
    return (section(_distance(checkpoint, training_data)),)


def _distance(checkpoint: Checkpoint, training_data: TrainingData) -> dict[str, Any]:
    """Distance of the test window from the agent's training window, whose prices are read again."""
    try:
        own = prepare(stored_config(checkpoint))
    except (ConfigError, MarketError) as error:
        return {"unknown": f"The prices of the agent's training cannot be read: {error}"}
    if own.process.panel.sha256 != checkpoint.facts["market"]:
        return {"unknown": "The prices of the agent's training have changed since"}
    features = own.features
    fitted_on = slice(features.first_bar, own.split.train_end)
    trained = _values(features, features.assets[fitted_on], features.market[fitted_on], own.panel.listed[fitted_on])
    process = training_data.held_out_process()
    bars, lag = process.decision_bars(training_data.split.test), training_data.config.env.execution_lag
    known = slice(bars.start - lag, bars.stop - lag)
    assets = process.asset_features[known, :, : len(features.asset_names)]
    judged = _values(features, assets, process.market_features[known], process.panel.listed[known])
    return measure_distance(trained, judged)


def _values(
    named: Features, assets: NDArray[np.float32], market: NDArray[np.float32], listed: NDArray[np.bool_]
) -> Values:
    """Values of every feature at some bars: of an asset over the assets that are listed and have them."""
    there = listed & (assets != 0.0).any(axis=-1)  # a row of zeros: too little history
    of_assets, of_market = assets[there].astype(np.float64), market.astype(np.float64)
    columns = {name: of_assets[:, place] for place, name in enumerate(named.asset_names)}
    return columns | {name: of_market[:, place] for place, name in enumerate(named.market_names)}
