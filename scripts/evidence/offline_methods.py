"""Evidence about the offline phase: each method on several seeds, and the behaviour that it learned from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from finflow.arrays import FloatArray
from finflow.config import Config
from finflow.evaluation.backtest import run_backtests
from finflow.evaluation.statistics.metrics import summarise
from finflow.market.panel import MarketPanel
from finflow.offline.collection import TRADE_RATES
from finflow.strategies.behaviour import FAMILIES, family_tables
from finflow.strategies.strategy import Information
from finflow.training.data.training_data import prepare
from finflow.training.trainer import FinFlowTrainer
from scripts.evidence.results import grouped
from scripts.evidence.tables import half_width, markdown_table

SHOWN = ("sharpe", "annual_turnover", "max_drawdown", "value", "fitted_q_value")
METHODS = ("bc", "td3bc", "iql")


class FamilyRule:
    """One variant of a behaviour family as a strategy, at the trade rate that is typical of the behaviour.

    Parameters
    ----------
    targets : array (bars, K)
        Row b from bars <= b.
    """

    rate = math.sqrt(TRADE_RATES[0] * TRADE_RATES[1])  # the middle of a log-uniform draw

    def __init__(self, name: str, targets: FloatArray) -> None:
        self.name = name
        self.targets = targets

    def decide(self, information: Information) -> FloatArray:
        """Part of the way from what is held to what the rule names, (K,)."""
        aim = self.targets[len(information.prices) - 1]
        target: FloatArray = information.portfolio + self.rate * (aim - information.portfolio)
        return target


def family_rules(panel: MarketPanel) -> dict[str, list[FamilyRule]]:
    """Every variant of every family of the behaviour."""
    return {
        family: [FamilyRule(f"{family} {number}", table) for number, table in enumerate(family_tables(panel, family))]
        for family in FAMILIES
    }


def pretrain_and_measure(config: Config) -> dict[str, Any]:
    """Train the offline phase alone; metrics of its last policy on the validation window."""
    result = FinFlowTrainer(config).train_iql()
    return {"validation": {"end": {name: float(result[name]) for name in SHOWN}}}


def family_results(config: Config) -> dict[str, list[dict[str, float]]]:
    """Every variant of every family on the validation window, on the same ledger."""
    training_data = prepare(config)
    found: dict[str, list[dict[str, float]]] = {}
    for family, rules in family_rules(training_data.process.panel).items():
        played = run_backtests(training_data.process, training_data.split.validation, rules)
        found[family] = [
            {**summarise(run, config.objectives.cvar_alpha), "value": _mean_reward(run.rewards)} for run in played
        ]
    return found


def offline_table(results: Sequence[Mapping[str, Any]], families: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    """A Markdown table: families as mean and range over variants, methods as mean and 95 % interval over seeds."""
    heads = ("Sharpe", "turnover a year", "drawdown", "reward a decision, bp", "fitted Q, bp")
    rows = []
    for family, variants in families.items():
        cells = [_cell(key, [run[key] for run in variants if key in run], as_range=True) for key in SHOWN]
        rows.append([f"family {family}", f"{len(variants)} variants", *cells])
    for variant, trainings in grouped(results, "variant").items():
        own = [result["validation"]["end"] for result in trainings]
        cells = [_cell(key, [metrics[key] for metrics in own], as_range=False) for key in SHOWN]
        rows.append([variant, f"{len(own)} seeds", *cells])
    return markdown_table(("", "", *heads), rows)


def _cell(key: str, values: Sequence[float], as_range: bool) -> str:
    """A mean with its range, or with the half-width of its interval (Student's t)."""
    if not values:
        return ""
    scale, unit = {"max_drawdown": (100.0, " %"), "value": (1e4, ""), "fitted_q_value": (1e4, "")}.get(key, (1.0, ""))
    scaled = scale * np.asarray(values)
    mean = f"{scaled.mean():.2f}{unit}"
    if as_range or len(values) < 2:
        return f"{mean} ({scaled.min():.2f} to {scaled.max():.2f})"
    return f"{mean} ± {half_width(scaled):.2f}"


def _mean_reward(rewards: FloatArray | None) -> float:
    """Mean reward of a decision."""
    return math.nan if rewards is None else float(rewards.mean())
