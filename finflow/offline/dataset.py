"""The offline dataset: transitions of behaviour episodes, and the hashes of all that decides them."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finflow.config import Config
from finflow.env.decision_process import DecisionProcess
from finflow.errors import FinflowError, one_line
from finflow.files import write_together
from finflow.json_text import parse_json
from finflow.market.panel import MarketPanel
from finflow.offline.imported_decisions import read_decisions
from finflow.provenance import code_hash

VERSION = 4
ROOMS_THAT_DECIDE = ("ledger", "market", "strategies", "env", "offline")
META = "meta"
ANEW = "delete it, or collect it anew with --recollect"


@dataclass(frozen=True, eq=False)
class OfflineDataset:
    """Transitions of behaviour episodes, in order: rows of one episode follow one another.

    Attributes
    ----------
    bar, episode : int32 (n,)
        Bar at which the decision fills; the next state's is one later.
    portfolio, next_portfolio : float32 (n, K + 3)
        Observed weights and state of the reward, before and after.
    action, next_action : float32 (n, K)
        The next one is the behaviour's own, at an episode's end too.
    reward : float32 (n,)
        In units of a daily log return.
    terminated, truncated : bool (n,)
    family : int8 (n,)
        Index into ``SOURCES``.
    meta : dict
        ``reward_scale`` (the rewards' deviation, by which learners divide), ``made_by``, the hashes of all that
        decides the data, ``sources``, and ``card``, what is inside for people to read.
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


def made_by(config: Config, process: DecisionProcess, window: range | Sequence[range]) -> dict[str, str]:
    """Hashes of all that decides a dataset, by name, so that a mismatch can name what differs."""
    windows = [window] if isinstance(window, range) else list(window)
    stop = windows[-1].stop
    panel = process.panel.until(min(stop, process.panel.n_bars))
    return {
        "version": str(VERSION),
        "prices": panel.sha256,
        "training window": ", ".join(f"{panel.dates[one.start]} to {panel.dates[one.stop - 1]}" for one in windows),
        "features": _hash(process.asset_features[:stop].tobytes() + process.market_features[:stop].tobytes()),
        "costs and execution": _hash(config.env.model_dump_json().encode()),
        "objectives": _objectives_hash(config),
        "episodes": str(config.train.offline_episodes),
        "seed": str(config.train.seed),
        "decisions": _decisions_hash(config, panel),
        "ledger": code_hash(("ledger",)),
        "code": code_hash(ROOMS_THAT_DECIDE),
    }


def _objectives_hash(config: Config) -> str:
    """Hash of the reward: of what is read of a reward model, and nothing of where it lies."""
    plain = config.objectives.model_dump_json(exclude={"workers", "preference"}).encode()
    model = config.objectives.preference.model
    return _hash(plain if model is None else plain + model.read_bytes())


def _decisions_hash(config: Config, panel: MarketPanel) -> str:
    """Hash of what is read of the user's files, and nothing of where they lie."""
    files = [read_decisions(path, panel, panel.n_bars) for path in config.offline.decisions]
    return _hash("".join(decisions.sha256 for decisions in files).encode()) if files else "none"


@cache
def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def save_dataset(path: Path, dataset: OfflineDataset) -> None:
    """Write a dataset as npz, and what it holds as JSON beside it."""
    stream = io.BytesIO()
    meta = np.frombuffer(json.dumps(dataset.meta).encode(), dtype=np.uint8)
    np.savez(stream, allow_pickle=False, **{**dataset.arrays(), META: meta})
    write_together({path: stream.getvalue(), path.with_suffix(".json"): card_file(dataset)})


def card_file(dataset: OfflineDataset) -> str:
    """The data card as JSON, with the reward scale and the hashes of what made the data."""
    known = {name: dataset.meta[name] for name in ("card", "reward_scale", "made_by")}
    return json.dumps({**known.pop("card"), **known}, indent=2, allow_nan=False) + "\n"


def load_dataset(path: Path, expected: Mapping[str, str] | None = None) -> OfflineDataset:
    """Read a dataset, if it is what would be collected now: ``expected``, by `made_by`; left out, that is not checked.

    Raises
    ------
    FinflowError
        If the file is missing, damaged, or was made by something else, which the line names.
    """
    try:
        with np.load(path, allow_pickle=False) as stored:
            columns = {name: stored[name] for name in stored.files}
        meta = parse_json(columns.pop(META).tobytes())
        dataset = OfflineDataset(**columns, meta=meta)
        found = dict(meta["made_by"])
    except FileNotFoundError:
        raise FinflowError(f"there is no dataset {path}") from None
    except Exception as error:  # damaged bytes make NumPy and zipfile fail in more ways than can be listed
        raise FinflowError(f"{path} is not a complete finflow dataset ({one_line(error)}); {ANEW}") from error
    different = [name for name in expected or {} if found.get(name) != (expected or {})[name]]
    if different:
        raise FinflowError(
            f"{path} was collected with other {', '.join(different)}; collect it anew with --recollect, or use another "
            "file"
        )
    return dataset
