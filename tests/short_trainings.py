"""Trainings of a second: the keys that make them short, and random walks to train on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from finflow.config import Config, load_config

if TYPE_CHECKING:
    from finflow.experiments.jobs.independent_trainings import Training

#: Few episodes of few steps, and small networks.
SHORT: dict[str, object] = {
    "env.episode_length": 20,
    "features.filters": "none",
    "features.regimes": False,
    "train.offline_episodes": 6,
    "train.offline_training_epochs": 1,
    "train.online_episodes": 4,
    "train.warmup_episodes": 4,
    "train.critic_only_updates": 2,
    "train.n_envs": 4,
    "train.updates_per_vector_step": 4,
    "out_of_fold.blocks": 1,
    "bcell.expansion": 4,
    "train.offline_batch_size": 16,
    "train.online_batch_size": 8,
    "offline.evaluation_updates": 0,
    "bcell.hidden_dim": 8,
    "bcell.n_quantiles": 4,
    "bcell.cql_samples": 1,
    "evaluation.bootstrap_samples": 100,
    "evaluation.lookback": 60,
}


#: A synthetic market of less than three years to train on.
SHORT_MARKET: dict[str, object] = {
    "market.source": "synthetic",
    "market.synthetic.bars": 700,
    "market.train_end": "2021-12-31",
    "market.validation_end": "2022-01-14",  # playing the window is much of a training
}

#: Everything in it: rewards in a replay, snapshots, validations, and two epochs of both learners.
TINY: dict[str, object] = {
    "market.source": "csv",
    "market.train_end": "2011-10-14",  # two weeks to validate on: playing the window is much of a training
    "market.validation_end": "2011-10-31",
    "env.episode_length": 20,
    "train.offline_episodes": 12,
    "features.filters": "none",
    "features.regimes": False,
    "train.offline_training_epochs": 2,
    "train.online_episodes": 6,
    "train.offline_batch_size": 32,
    "train.online_batch_size": 16,
    "train.n_envs": 4,
    "train.updates_per_vector_step": 4,
    "train.warmup_episodes": 4,
    "train.critic_only_updates": 5,
    "train.checkpoint_interval": 3,
    "train.checkpoint_updates": 7,
    "train.validation_updates": 20,
    "offline.evaluation_updates": 3,
    "out_of_fold.blocks": 1,
    "bcell.expansion": 4,
    "bcell.hidden_dim": 16,
    "bcell.n_quantiles": 8,
    "bcell.cql_samples": 2,
    "bcell.memory_capacity": 150,
    "evaluation.bootstrap_samples": 100,
    "evaluation.lookback": 60,
    "evaluation.sweeps": False,
}


#: For audits, in keyword form: an episode of each source of behaviour data is enough to see what decided it.
FEW_EPISODES: dict[str, object] = {"train__offline_episodes": 6, "env__episode_length": 10}


def market_prices(
    seed: int = 3, bars: int = 700, changed_after: str | None = None, assets: Sequence[str] = "ABCD"
) -> pd.DataFrame:
    """Prices of assets that move together, from June 2009 on; ``changed_after`` draws other returns after a date."""
    rng = np.random.default_rng(seed)
    dates = pd.bdate_range("2009-06-01", periods=bars, name="Date")
    returns = rng.normal(0.0004, 0.01, size=(bars, len(assets))) + rng.normal(0.0, 0.006, size=(bars, 1))
    if changed_after is not None:
        later = dates > pd.Timestamp(changed_after)
        returns[later] = rng.normal(-0.01, 0.03, size=(int(later.sum()), len(assets)))
    return pd.DataFrame(100.0 * np.exp(np.cumsum(returns, axis=0)), dates, list(assets))


def write_market(path: Path, **changes: Any) -> Path:
    """Write ``market_prices(**changes)`` as CSV."""
    market_prices(**changes).to_csv(path)
    return path


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


def bits_of(trainings: Sequence[Training]) -> list[tuple[bytes, bytes]]:
    """The last checkpoint and the log of each training of a job."""
    runs = [one.folder / json.loads((one.folder / "training.json").read_text())["run"] for one in trainings]
    return [
        ((run / "models" / "checkpoint_latest.safetensors").read_bytes(), (run / "metrics.jsonl").read_bytes())
        for run in runs
    ]
