"""The offline dataset: transitions of behaviour episodes, and the hashes of all that decides them."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finflow.env.decision_process import DecisionProcess
from finflow.env.portfolio_state import PortfolioState
from finflow.errors import FinflowError, one_line
from finflow.files import write_together
from finflow.json_text import parse_json
from finflow.strategies.behaviour import FAMILIES

FloatArray = NDArray[np.float64]
SOURCES = (*FAMILIES, "coverage", "decisions")
"""Sources of decisions: the five families, the coverage mixture, and the user's own files."""
COVERAGE, DECISIONS = SOURCES.index("coverage"), SOURCES.index("decisions")

Rows = dict[str, NDArray[Any]]
"""Columns of transitions, an episode's rows after one another; and ``net_return``, ``cash_return``, ``cost`` and
``turnover`` of each, for the data card alone."""

COLUMNS = {
    "bar": np.int32,
    "portfolio": np.float32,
    "action": np.float32,
    "reward": np.float32,
    "next_portfolio": np.float32,
    "next_action": np.float32,
    "terminated": np.bool_,
    "truncated": np.bool_,
    "episode": np.int32,
    "family": np.int8,
}
"""Columns of a dataset and their types."""


class Recorder:
    """Collects the steps of N portfolios that step together."""

    def __init__(self, process: DecisionProcess) -> None:
        self.process = process
        self._steps: dict[str, list[NDArray[Any]]] = {}

    def add(self, before: PortfolioState, after: PortfolioState, **values: NDArray[Any]) -> None:
        """Add one step of every portfolio: the states around it, and the other columns as they are, (N, ...)."""
        recorded = {
            "bar": before.bar,
            "portfolio": self.process.observed_portfolio(before),
            "next_portfolio": self.process.observed_portfolio(after),
            "net_return": after.wealth / before.wealth - 1.0,
            "cash_return": self.process.growth[before.bar + 1, -1] - 1.0,
            **values,
        }
        for name, value in recorded.items():
            self._steps.setdefault(name, []).append(np.asarray(value))

    def replace(self, name: str, values: Sequence[NDArray[Any]]) -> None:
        """Replace a column by the values of each step, (N, ...), that were computed later."""
        self._steps[name] = [np.asarray(value) for value in values]

    def rows(self) -> Rows:
        """All steps, those of the first portfolio first."""
        stacked = {name: np.stack(steps, axis=1) for name, steps in self._steps.items()}
        return {name: column.reshape(-1, *column.shape[2:]) for name, column in stacked.items()}


def join_rows(parts: list[Rows]) -> Rows:
    """Rows of several recordings, one after the other; episodes are numbered on."""
    first = np.cumsum([0, *(part["episode"].max() + 1 for part in parts)])
    numbered = [{**part, "episode": part["episode"] + count} for part, count in zip(parts, first[:-1], strict=True)]
    return {name: np.concatenate([part[name] for part in numbered]) for name in parts[0]}


def lambda_returns(
    rewards: FloatArray,
    next_values: FloatArray,
    terminated: NDArray[np.bool_],
    last: NDArray[np.bool_],
    gamma: float,
    trace: float,
) -> FloatArray:
    """``G_t = r_t + gamma (1 - d_t) ((1 - lambda) V(s_{t+1}) + lambda G_{t+1})``, within each episode, (n,).

    Parameters
    ----------
    rewards, next_values : array, (n,)
        ``next_values`` are V of the state after each transition.
    terminated, last : bool array, (n,)
        d: nothing follows; and the rows at whose end an episode ends otherwise: there G bootstraps from V alone.
    gamma, trace : float
        Discount and lambda.

    References
    ----------
    Sutton and Barto (2018), Reinforcement Learning, equation 12.2 in its recursive form.
    """
    returns = np.empty(len(rewards))
    following = 0.0
    for t in range(len(rewards) - 1, -1, -1):
        ahead = next_values[t] if last[t] else (1.0 - trace) * next_values[t] + trace * following
        following = rewards[t] + (0.0 if terminated[t] else gamma * ahead)
        returns[t] = following
    return returns


def episode_ends(episode: NDArray[np.int32], terminated: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Rows after which another episode begins, (n,)."""
    ends = np.ones(len(episode), dtype=np.bool_)
    ends[:-1] = episode[1:] != episode[:-1]
    return ends | terminated


VERSION = 4
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
    different = [name for name, value in (expected or {}).items() if found.get(name) != value]
    if different:
        raise FinflowError(
            f"{path} was collected with other {', '.join(different)}; collect it anew with --recollect, or use another "
            "file"
        )
    return dataset
