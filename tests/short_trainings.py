"""Trainings of a second: the keys that make them short, and random walks to train on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from finflow.config import Config, load_config

#: Few episodes of few steps, and small networks.
SHORT: dict[str, object] = {
    "env.episode_length": 20,
    "online.algorithm": "sac",
    "features.filters": "none",
    "train.offline_episodes": 6,
    "train.offline_training_epochs": 1,
    "train.online_episodes": 4,
    "train.warmup_episodes": 4,
    "train.critic_only_updates": 2,
    "train.n_envs": 4,
    "train.offline_batch_size": 16,
    "train.online_batch_size": 8,
    "offline.evaluation_updates": 0,
    "bcell.hidden_dim": 8,
    "bcell.n_quantiles": 4,
    "bcell.cql_samples": 1,
    "evaluation.bootstrap_samples": 100,
    "evaluation.lookback": 60,
}


def write_prices(
    path: Path, bars: int = 700, deviation: float | NDArray[np.float64] = 0.01, changed: NDArray[np.int64] | None = None
) -> Path:
    """Write prices of three assets as CSV, from June 2009 on; those of the bars ``changed`` are others."""
    rng = np.random.default_rng(1)
    close = 100.0 * np.exp(np.cumsum(rng.normal(3e-4, deviation, (bars, 3)), axis=0))
    if changed is not None:
        close[changed] *= rng.uniform(0.3, 3.0, (len(changed), 3))
    pd.DataFrame(close, pd.bdate_range("2009-06-01", periods=bars, name="Date"), list("ABC")).to_csv(path)
    return path


def config_in(folder: Path, keys: dict[str, object], **changes: object) -> Config:
    """A configuration whose files lie in a folder; ``changes`` are keys in keyword form, ``bcell__dropout=0.1``."""
    places: dict[str, object] = {"output.logs_dir": str(folder / "logs"), "output.offline_dir": str(folder / "offline")}
    given = {name.replace("__", "."): value for name, value in changes.items()}
    return load_config(None, {**keys, **places, **given}, environ={})
