"""Data card: decisions of each source, their places on the simplex, and their performance after costs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from finflow.evaluation.page.section import table_lines
from finflow.evaluation.statistics import metrics
from finflow.market.panel import MarketPanel
from finflow.offline.dataset import SOURCES, Rows

Weights = NDArray[np.float64]

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
    return dict(
        json.loads(
            json.dumps(card), parse_float=lambda text: float(f"{float(text):.6g}"), parse_constant=lambda _: None
        )
    )


def regions(actions: Weights, assets: Sequence[str]) -> dict[str, Any]:
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
        shares[name] = {
            f"{low:g} to {high:g}": float(share) for (low, high), share in zip(pairwise(edges), held, strict=True)
        }
    first = np.bincount(actions.argmax(axis=1), minlength=count) / len(actions)
    per_asset = {
        "largest_holding": first,
        "over_half": (actions > 0.5).mean(axis=0),
        "mean_weight": actions.mean(axis=0),
    }
    for name, values in per_asset.items():
        shares[name] = dict(zip(names, values.tolist(), strict=True))
    return shares


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


def _spread(values: NDArray[np.float64]) -> dict[str, float]:
    """Mean and quantiles; undefined values, as of a portfolio all in cash, are left out, and NaN where all are."""
    values = values[np.isfinite(values)]
    quantiles = np.quantile(values, list(QUANTILES.values())) if values.size else [math.nan] * len(QUANTILES)
    mean = float(values.mean()) if values.size else math.nan
    return {"mean": mean, **dict(zip(QUANTILES, map(float, quantiles), strict=True))}


def _shown(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
