"""The offline dataset: transitions of behaviour episodes, the hashes of all that decides them, and their data card.

The card has the decisions of each source, their places on the simplex, and their performance after costs.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from finflow.arrays import BoolArray, FloatArray
from finflow.env.decision_process import DecisionProcess
from finflow.env.portfolio_state import PortfolioState
from finflow.errors import FinflowError, one_line, refuse
from finflow.evaluation.page.section import table_lines
from finflow.evaluation.statistics import metrics
from finflow.files import write_together
from finflow.json_text import parse_json
from finflow.market.panel import MarketPanel
from finflow.strategies.behaviour import FAMILIES

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
WIDE = ("portfolio", "action", "next_portfolio", "next_action")
"""Those with a number for each asset: nearly all of a dataset's memory."""


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
            kind = COLUMNS[name] if name in WIDE else None  # returns and costs of the data card are in double precision
            self._steps.setdefault(name, []).append(np.asarray(value, dtype=kind))

    def replace(self, name: str, values: Sequence[NDArray[Any]]) -> None:
        """Replace a column by the values of each step, (N, ...), that were computed later."""
        self._steps[name] = [np.asarray(value) for value in values]

    def rows(self) -> Rows:
        """All steps, those of the first portfolio first; the recorder is empty after it."""
        stacked = {name: np.stack(self._steps.pop(name), axis=1) for name in list(self._steps)}
        return {name: column.reshape(-1, *column.shape[2:]) for name, column in stacked.items()}


def join_recordings(parts: list[Rows]) -> Rows:
    """Rows of several recordings, one after the other; episodes are numbered on."""
    if len(parts) == 1:
        return parts[0]
    first = np.cumsum([0, *(part["episode"].max() + 1 for part in parts)])
    numbered = [{**part, "episode": part["episode"] + count} for part, count in zip(parts, first[:-1], strict=True)]
    return {name: np.concatenate([part[name] for part in numbered]) for name in parts[0]}


def lambda_returns(
    rewards: FloatArray, next_values: FloatArray, terminated: BoolArray, last: BoolArray, gamma: float, trace: float
) -> FloatArray:
    """``G_t = r_t + gamma (1 - d_t) ((1 - lambda) V(s_{t+1}) + lambda G_{t+1})``, within each episode, (n,).

    ``next_values`` are V of the state after each transition. Nothing follows where d, ``terminated``, is true; at rows
    that are ``last`` an episode ends otherwise, and G bootstraps from V alone. ``gamma`` is the discount, ``trace``
    lambda. See Sutton and Barto (2018), Reinforcement Learning, equation 12.2 in its recursive form.
    """
    returns = np.empty(len(rewards))
    following = 0.0
    for t in range(len(rewards) - 1, -1, -1):
        ahead = next_values[t] if last[t] else (1.0 - trace) * next_values[t] + trace * following
        following = rewards[t] + (0.0 if terminated[t] else gamma * ahead)
        returns[t] = following
    return returns


def episode_ends(episode: NDArray[np.int32], terminated: BoolArray) -> BoolArray:
    """Rows after which another episode begins, (n,)."""
    ends = np.ones(len(episode), dtype=np.bool_)
    ends[:-1] = episode[1:] != episode[:-1]
    return ends | terminated


VERSION = 4
META = "meta"
ANEW = "delete it, or collect it anew with --recollect"


@dataclass(frozen=True, eq=False)
class OfflineDataset:
    """Transitions of behaviour episodes, in order: rows of one episode follow one another."""

    bar: NDArray[np.int32]  # (n,), at which the decision fills; the next state's is one later
    portfolio: NDArray[np.float32]  # (n, K + 3), observed weights and state of the reward
    action: NDArray[np.float32]  # (n, K)
    reward: NDArray[np.float32]  # in units of a daily log return
    next_portfolio: NDArray[np.float32]
    next_action: NDArray[np.float32]  # the behaviour's own, at an episode's end too
    terminated: BoolArray
    truncated: BoolArray
    episode: NDArray[np.int32]
    family: NDArray[np.int8]  # index into `SOURCES`
    meta: dict[str, Any]
    """``reward_scale`` (the rewards' deviation, by which learners divide), ``made_by``, the hashes of all that decides
    the data, ``sources``, and ``card``, what is inside for people to read."""
    wide_rows: NDArray[np.int64] | None = None
    """Of a part: its rows of the `WIDE` columns, which are those of the whole, for all parts."""

    def __len__(self) -> int:
        return len(self.bar)

    @property
    def reward_scale(self) -> float:
        return float(self.meta["reward_scale"])

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All columns; those of a part are copied."""
        rows = slice(None) if self.wide_rows is None else self.wide_rows
        return {name: getattr(self, name)[rows if name in WIDE else slice(None)] for name in COLUMNS}

    def part(self, kept: BoolArray) -> OfflineDataset:
        """The transitions that are ``kept``, (n,)."""
        narrow: dict[str, Any] = {name: getattr(self, name)[kept] for name in COLUMNS if name not in WIDE}
        rows = np.arange(len(self)) if self.wide_rows is None else self.wide_rows
        return replace(self, **narrow, wide_rows=rows[kept])


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

    Raises FinflowError if the file is missing, damaged, or was made by something else, which the line names.
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
    refuse(
        different,
        f"{path} was collected with other {', '.join(different)}; collect it anew with --recollect, or use another "
        "file",
    )
    return dataset


QUANTILES = {"5%": 0.05, "median": 0.5, "95%": 0.95}
TRADES = ("mean_turnover", *(f"turnover_{label}" for label in QUANTILES))
TRADED = 1e-6  # turnover under this is rounding: the portfolio was held
#: Figure of an episode -> its heading in the table, and its format.
FIGURES = {
    "annual_log_return": ("return", "{:.1%}"),
    "annual_volatility": ("volatility", "{:.1%}"),
    "sharpe": ("Sharpe", "{:.2f}"),
    "max_drawdown": ("drawdown", "{:.1%}"),
    "annual_turnover": ("turnover", "{:.1f}"),
    "annual_cost": ("costs", "{:.2%}"),
}

#: Edges of the regions of the simplex; the effective number of assets goes on to K.
REGIONS = {
    "largest_weight": (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0),
    "effective_assets": (1.0, 1.5, 2.0, 3.0, 5.0, 8.0, 12.0, 16.0, 20.0),
    "cash_share": (0.0, 0.02, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0),
    "distance_from_equal_weight": (0.0, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0),
}


def data_card(rows: Rows, panel: MarketPanel, files: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """Describe what was collected: JSON-able, the same for the same data; six digits; None for what is undefined.

    Counts, coverage and trades of a family are those of the transitions it decided. Returns are of whole episodes,
    which belong to the family of their source: the costs of its jumps to coverage draws are in its figures. ``files``
    tell what became of each file of a user's own decisions.
    """
    starts = np.flatnonzero(np.diff(rows["episode"], prepend=-1))
    owners = np.minimum.reduceat(rows["family"], starts)
    edges = pairwise([*starts.tolist(), len(rows["bar"])])
    figures = pd.DataFrame([_episode_figures(rows, slice(*edge), panel.bars_per_year) for edge in edges])
    families = {}
    for index, name in enumerate(SOURCES):
        decided = rows["family"] == index
        if not decided.any():
            continue
        own = figures[owners == index]
        turnover = rows["turnover"][decided]
        traded = turnover[turnover > TRADED]
        trades = _spread(traded).values()
        families[name] = {
            "transitions": int(decided.sum()),
            "episodes": len(own),
            "mean_reward": float(rows["reward"][decided].mean()),
            "returns": {name: _spread(own[name].to_numpy()) for name in FIGURES},
            "trades": {"share_that_trade": len(traded) / len(turnover), **dict(zip(TRADES, trades, strict=True))},
            "coverage": regions(rows["action"][decided], panel.assets),
        }
    days = panel.dates[rows["bar"]]
    card = {
        "transitions": len(days),
        "episodes": len(starts),
        "first_fill": str(days.min()),
        "last_fill": str(days.max()),
        "ruined_episodes": int(rows["terminated"].sum()),
        "coverage": regions(rows["action"], panel.assets),
        "families": families,
        "decision_files": [dict(file) for file in files],
    }
    # six digits to each number, and None for what is not finite
    whole = json.dumps(card)
    return dict(json.loads(whole, parse_float=lambda text: float(f"{float(text):.6g}"), parse_constant=lambda _: None))


def regions(actions: FloatArray, assets: Sequence[str]) -> dict[str, Any]:
    """Shares of decisions (n, K) in each region of the simplex, by interval.

    Of the largest weight of a risky asset, the effective number of assets 1 / sum w^2 (cash counts as one), the share
    of cash, and the distance from equal weight (half the sum of absolute differences). ``largest_holding``: by asset,
    cash last, share of the decisions that hold most of it; ``over_half``: that hold more than half in it;
    ``mean_weight``.
    """
    count = actions.shape[1]
    names = (*assets, "cash")
    places = {
        "largest_weight": actions[:, :-1].max(axis=1),
        "effective_assets": 1.0 / np.square(actions).sum(axis=1),
        "cash_share": actions[:, -1],
        "distance_from_equal_weight": np.abs(actions - 1.0 / count).sum(axis=1) / 2.0,
    }
    shares: dict[str, Any] = {}
    for name, values in places.items():
        edges = list(REGIONS[name])
        if name == "effective_assets":
            edges = [edge for edge in edges if edge < count] + [float(count)]
        inner = np.searchsorted(edges[1:-1], values, side="right")
        held = np.bincount(inner, minlength=len(edges) - 1) / len(actions)
        intervals = (f"{low:g} to {high:g}" for low, high in pairwise(edges))
        shares[name] = dict(zip(intervals, held.tolist(), strict=True))
    per_asset = {
        "largest_holding": np.bincount(actions.argmax(axis=1), minlength=count) / len(actions),
        "over_half": (actions > 0.5).mean(axis=0),
        "mean_weight": actions.mean(axis=0, dtype=np.float64),
    }
    return shares | {name: dict(zip(names, values.tolist(), strict=True)) for name, values in per_asset.items()}


def card_lines(card: Mapping[str, Any]) -> list[str]:
    """A short table of a data card: a line a family, and what became of a user's files."""
    table = [("", "decisions", "episodes", *(head for head, _ in FIGURES.values()), "cash")]
    for name, family in card["families"].items():
        counts = (f"{family[count]:,}" for count in ("transitions", "episodes"))
        medians = (_shown(family["returns"][key]["median"], form) for key, (_, form) in FIGURES.items())
        table.append((name, *counts, *medians, _shown(family["coverage"]["mean_weight"]["cash"], "{:.0%}")))
    lines = table_lines(table)
    lines.append("median episode of each source, a year, net of costs; the share of cash is that of its decisions")
    for file in card["decision_files"]:
        places = ("after the training window", "before the first bar")
        unused = ((file[f"rows_{place.replace(' ', '_')}"], place) for place in places)
        ignored = [f"{count} {place}" for count, place in unused if count]
        left_out = f"; left out: {', '.join(ignored)}" if ignored else ""
        lines.append(f"{file['file']}: {file['rows_used']} rows, {file['transitions']:,} decisions{left_out}")
    return lines


def _episode_figures(rows: Rows, part: slice, year: int) -> dict[str, float]:
    returns = rows["net_return"][part]
    return {
        "annual_log_return": float(np.log(np.maximum(1.0 + returns, 1e-12)).mean() * year),
        "annual_volatility": metrics.annual_volatility(returns, year),
        "sharpe": metrics.sharpe(returns, rows["cash_return"][part], year),
        "max_drawdown": metrics.max_drawdown(returns),
        "annual_turnover": metrics.annual_turnover(rows["turnover"][part], year),
        "annual_cost": metrics.annual_cost(rows["cost"][part], year),
    }


def _spread(values: FloatArray) -> dict[str, float]:
    """Mean and quantiles; undefined values, as of a portfolio all in cash, are left out, and NaN where all are."""
    values = values[np.isfinite(values)]
    quantiles = np.quantile(values, list(QUANTILES.values())) if values.size else [math.nan] * len(QUANTILES)
    mean = float(values.mean()) if values.size else math.nan
    return {"mean": mean, **dict(zip(QUANTILES, map(float, quantiles), strict=True))}


def _shown(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
