"""The offline dataset: what was decided before, what came of it, and exactly what made it."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finflow.config import Config
from finflow.env.decision import DecisionProcess
from finflow.errors import FinflowError
from finflow.files import write_atomically
from finflow.strategies.behaviour import FAMILIES

VERSION = 1
SOURCES = (*FAMILIES, "coverage")
ROOMS_THAT_DECIDE = ("ledger", "market", "strategies", "env", "offline")
META = "meta"


@dataclass(frozen=True, eq=False)
class OfflineDataset:
    """Transitions of behaviour episodes, in order: rows of one episode follow one another.

    Attributes
    ----------
    bar : int32 (n,)
        Bar at which the decision fills; the next state's is one later.
    portfolio, next_portfolio : float32 (n, K + 3)
        Observed weights and state of the reward, before and after.
    action : float32 (n, K)
    reward : float32 (n,)
        In units of a daily log return.
    next_action : float32 (n, K)
        The behaviour's own next decision, at an episode's end too.
    terminated, truncated : bool (n,)
    episode : int32 (n,)
    family : int8 (n,)
        Index into ``SOURCES``.
    meta : dict
        ``reward_scale`` (the rewards' deviation, by which learners divide) and ``made_by``, the hashes of all that
        decides the data.
    """

    bar: NDArray[np.int32]
    portfolio: NDArray[np.float32]
    action: NDArray[np.float32]
    reward: NDArray[np.float32]
    next_portfolio: NDArray[np.float32]
    next_action: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    episode: NDArray[np.int32]
    family: NDArray[np.int8]
    meta: dict[str, Any]

    def __len__(self) -> int:
        return len(self.bar)

    @property
    def reward_scale(self) -> float:
        """The fixed scale of rewards."""
        return float(self.meta["reward_scale"])

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Columns by name."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != META}


def made_by(config: Config, process: DecisionProcess, window: range) -> dict[str, str]:
    """Hashes of all that decides a dataset, by name: a mismatch can then say what differs."""
    panel = process.panel.until(window.stop)
    train = config.train
    return {
        "version": str(VERSION),
        "prices": panel.sha256,
        "training window": f"{panel.dates[window.start]} to {panel.dates[-1]}",
        "features": _hash(
            process.asset_features[: window.stop].tobytes() + process.market_features[: window.stop].tobytes()
        ),
        "costs and execution": _hash(config.env.model_dump_json().encode()),
        "objectives": _hash(config.objectives.model_dump_json().encode()),
        "episodes": str(train.offline_episodes),
        "seed": str(train.seed),
        "code": code_hash(),
    }


@cache
def code_hash() -> str:
    """Hash of the source of every room that decides what the data are."""
    package = Path(__file__).resolve().parent.parent
    paths = sorted(path for room in ROOMS_THAT_DECIDE for path in (package / room).glob("*.py"))
    return _hash(b"".join(path.relative_to(package).as_posix().encode() + path.read_bytes() for path in paths))


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def save_dataset(path: Path, dataset: OfflineDataset) -> None:
    """Write a dataset as npz, and what it holds as JSON beside it.

    Raises
    ------
    OutputError
        If a file cannot be written.
    """
    stream = io.BytesIO()
    meta = np.frombuffer(json.dumps(dataset.meta, sort_keys=True).encode(), dtype=np.uint8)
    np.savez(stream, allow_pickle=False, **{**dataset.arrays(), META: meta})
    write_atomically(path, stream.getvalue())
    write_atomically(path.with_suffix(".json"), json.dumps(data_card(dataset), indent=2, sort_keys=True) + "\n")


def load_dataset(path: Path, expected: Mapping[str, str]) -> OfflineDataset:
    """Read a dataset, if it is what would be collected now.

    Parameters
    ----------
    path : Path
    expected : mapping
        What ``made_by`` says today.

    Raises
    ------
    FinflowError
        If the file is missing, damaged, or was made by something else; the line says by what.
    """
    try:
        with np.load(path, allow_pickle=False) as stored:
            columns = {name: stored[name] for name in stored.files}
        meta = json.loads(columns.pop(META).tobytes())
        dataset = OfflineDataset(**columns, meta=meta)
        found = dict(meta["made_by"])
        lengths = {len(column) for column in columns.values()}
    except FileNotFoundError:
        raise FinflowError(f"there is no dataset {path}") from None
    except Exception as error:  # damaged bytes make NumPy and zipfile fail in more ways than can be listed
        raise FinflowError(f"{path} is not a whole finflow dataset ({error}); delete it to collect it anew") from error
    different = [name for name in expected if found.get(name) != expected[name]]
    if different:
        raise FinflowError(
            f"{path} was collected with other {', '.join(different)}; delete it, or use another file, to collect anew"
        )
    if len(lengths) != 1:
        raise FinflowError(f"{path} has columns of different lengths; delete it to collect it anew")
    return dataset


def data_card(dataset: OfflineDataset) -> dict[str, Any]:
    """What a dataset holds: counts, rewards and kinds of portfolios by family, and what made it."""
    families = {}
    for index, name in enumerate(SOURCES):
        rows = dataset.family == index
        if not rows.any():
            continue
        weights = dataset.action[rows]
        families[name] = {
            "transitions": int(rows.sum()),
            "episodes": int(np.unique(dataset.episode[rows]).size),
            "mean_reward": float(dataset.reward[rows].mean()),
            "mean_largest_weight": float(weights[:, :-1].max(axis=1).mean()),
            "mean_cash": float(weights[:, -1].mean()),
        }
    return {"transitions": len(dataset), "families": families, **dataset.meta}
