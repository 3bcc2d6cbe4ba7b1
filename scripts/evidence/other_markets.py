"""The chosen configuration on markets that it was not chosen on; each training reads one test window, at its end."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from finflow.config import Config
from finflow.evaluation.analysis.factors import etf_prices
from finflow.evaluation.report.results import BASELINE
from finflow.strategies.classical import COMPARED
from finflow.training.judging.held_out import REPORTS
from finflow.training.trainer import FinFlowTrainer
from scripts.evidence.optimality import ONLINE_LEARNING, SHOWN
from scripts.evidence.planted_signals import LEARNING, OWN
from scripts.evidence.results import Result, grouped
from scripts.evidence.tables import markdown_table, shown_mean
from scripts.evidence.variants import Variant

HALVES = 5
ETF_WINDOWS = {"market.train_end": "2019-06-30", "market.validation_end": "2020-12-31"}
SYNTHETIC = ("constant-drift", "lognormal", "mean-reverting", "regime", "exchangeable")
HELD: dict[str, object] = {"bcell.anchor.final": None, "bcell.anchor.updates": 15_000, "train.validation_updates": 250}
#: From all in one asset, anchor and open gate draw the policy many nats away within a hundred updates: the guard's
#: usual limit takes that for a fault, and stops the training after ten rollbacks.
FAR: dict[str, dict[str, object]] = {"constant-drift": {"guard.rollback.kl_threshold": 100.0}}
SUITED = "-suited"  # learns with the values of docs/evidence/optimality.md, the chosen devices on top


def market_variants(
    overrides: Mapping[str, object], seeds: int, folder: Path, size: Mapping[str, object]
) -> list[Variant]:
    """Markets that the configuration was not chosen on; each training ends with its one reading of a test window.

    Parameters
    ----------
    overrides : mapping
        The chosen configuration.
    seeds : int
    folder : Path
        Where the prices of the factor ETFs are written.
    size : mapping
        What the trainings have in common; without it they are of the default size.
    """
    markets: dict[str, dict[str, object]] = {}
    for number in range(HALVES):
        markets[f"half-{number}"] = {"market.tickers": ",".join(half_of_the_universe(number))}
    prices = etf_prices()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "factor-etfs.csv"
    prices.rename_axis("Date").to_csv(path)
    markets["factor-etfs"] = {"market.source": "csv", "market.path": str(path), **ETF_WINDOWS}
    for kind in SYNTHETIC:
        made = {key: value for key, value in LEARNING.items() if key.startswith(("objectives.", "market."))}
        made |= {"market.source": "synthetic", "market.synthetic.kind": kind}
        markets[kind] = made
        own = {**LEARNING, **OWN.get(kind, {}), **ONLINE_LEARNING, **SHOWN, **HELD, **FAR.get(kind, {})}
        markets[f"{kind}{SUITED}"] = {**own, **made, **overrides}
    return [
        Variant(
            f"generalisation-market-{name}",
            tuple(range(seeds)),
            {**size, **overrides, **market, "evaluation.sweeps": False},
            measure=partial(train_and_read, name=name),
        )
        for name, market in markets.items()
    ]


def reading_variants(overrides: Mapping[str, object]) -> list[Variant]:
    """The chosen configuration in full size on the market that it was chosen on: one training, one reading."""
    return [Variant("generalisation-reading", (0,), dict(overrides), measure=partial(train_and_read, name="embedded"))]


def half_of_the_universe(number: int) -> tuple[str, ...]:
    """Ten of the twenty stocks, drawn by number, in the order of the source."""
    from finflow.market.sources.panel_loader import load_panel

    assets = load_panel(Config().market).assets
    rng = np.random.default_rng(np.random.SeedSequence([9, number]))
    return tuple(assets[place] for place in np.sort(rng.permutation(len(assets))[: len(assets) // 2]))


def train_and_read(config: Config, name: str) -> dict[str, Any]:
    """Train, and judge on the test window, which is counted in the ledger of readings."""
    began = time.process_time()
    outcome = FinFlowTrainer(config).train()
    content = json.loads((outcome.run_folder / REPORTS / "metrics.json").read_text("utf-8"))
    agent = next(iter(outcome.summary))
    best = max(
        (figures["sharpe"], rule) for rule, figures in outcome.summary.items() if rule in COMPARED and rule != agent
    )
    return {
        "configuration_name": name,
        "seconds": {"processor": round(time.process_time() - began, 1)},
        "name": agent,
        "strategies": outcome.summary,
        "agent": outcome.summary[agent],
        "equal_weight": outcome.summary[BASELINE],
        "best_rule": {"name": best[1], "sharpe": best[0]},
        "against_equal_weight": content["against_equal_weight"],
        "verdict": content["verdict"],
    }


def market_table(results: Sequence[Result]) -> str:
    """Markdown: a row a market, means over seeds; the interval is the widest of the seeds' own."""
    heads = (
        "Sharpe",
        "equal weight",
        "difference",
        "widest 95 % interval of a seed",
        "drawdown",
        "equal weight",
        "turnover a year",
        "optimality",
    )
    rows = []
    for name, found in grouped(results, "configuration_name").items():
        intervals = [one["against_equal_weight"]["interval"] for one in found]
        known = [interval for interval in intervals if interval is not None]
        span = f"{min(low for low, _ in known):+.2f} to {max(high for _, high in known):+.2f}" if known else "-"
        cells = [
            shown_mean([one["agent"]["sharpe"] for one in found]),
            shown_mean([one["equal_weight"]["sharpe"] for one in found]),
            shown_mean([one["agent"]["sharpe"] - one["equal_weight"]["sharpe"] for one in found]),
            span,
            shown_mean([100.0 * one["agent"]["max_drawdown"] for one in found], 1) + " %",
            shown_mean([100.0 * one["equal_weight"]["max_drawdown"] for one in found], 1) + " %",
            shown_mean([one["agent"]["annual_turnover"] for one in found], 1),
            shown_mean([one["agent"].get("optimality", math.nan) for one in found]),
        ]
        rows.append([name, len(found), *cells])
    return markdown_table(("market", "seeds", *heads), rows)


def reading_table(found: Result) -> str:
    """Markdown: what the reading says, of the agent and of the others by their Sharpe ratios, and the verdict."""
    shown = {
        "sharpe": ("Sharpe", 1.0),
        "annual_return": ("return a year, %", 100.0),
        "max_drawdown": ("drawdown, %", 100.0),
        "cvar": ("CVaR of a day, %", 100.0),
        "annual_turnover": ("turnover a year", 1.0),
    }
    everyone = found["strategies"]
    rest = sorted((name for name in everyone if name != found["name"]), key=lambda name: -everyone[name]["sharpe"])
    rows = [
        [name, *(f"{scale * everyone[name][key]:.2f}" for key, (_, scale) in shown.items())]
        for name in (found["name"], *rest)
    ]
    return f"{markdown_table(('', *(heading for heading, _ in shown.values())), rows)}\n{_verdict(found)}\n"


def earlier_readings(found: Sequence[Result]) -> str:
    """Markdown: what was read when other configurations were the default, a paragraph; nothing if none was."""
    return "".join(
        f"\nRead before, when it was the default: {one['configuration_name']}, Sharpe {one['agent']['sharpe']:.2f}. "
        f"{_verdict(one)}\n"
        for one in found
    )


def _verdict(found: Result) -> str:
    """Distance of a reading from equal weight, and whether it is significant."""
    against, verdict = found["against_equal_weight"], found["verdict"]
    low, high = against["interval"] if against["interval"] is not None else (math.nan, math.nan)
    dsr = math.nan if verdict["dsr"] is None else verdict["dsr"]
    return (
        f"Sharpe ratio less equal weight's: {against['sharpe_difference']:+.2f}, 95 % interval {low:+.2f} to "
        f"{high:+.2f}. Deflated Sharpe ratio of the return over equal weight, for {verdict['tries']['total']} tries: "
        f"{dsr:.2f}. Beats equal weight: **{verdict['beats_equal_weight']}**."
    )
