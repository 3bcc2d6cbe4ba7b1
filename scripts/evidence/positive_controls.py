"""Positive controls on real prices: rules with a published edge, by the same out-of-fold test as agents.

Momentum (Jegadeesh and Titman 1993) on the monthly portfolios, and OLMAR (Li and Hoi 2012) on NYSE(O). A rule fits
nothing, so that it is the same in all blocks. A test that finds no edge of these rules would find none of an agent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from finflow.config import config_hash, load_config
from finflow.provenance import code_hash
from finflow.strategies.classical import named_strategy
from finflow.training.data.training_data import TrainingData, prepare
from finflow.training.off_policy.evidence import training_blocks
from scripts.evidence.results import Result, grouped, kept_result, kept_results
from scripts.evidence.rollouts import GROWTH, PREFIX, RULES, codes_of, gains_in_blocks, nyse_variants, preset_keys
from scripts.evidence.tables import markdown_table

FREE: dict[str, object] = {"env.commission_bps": 0.0, "env.slippage_bps": 0.0}
ENTRY = "rule-"
KEYS = tuple(name.replace("-", "_") for name in RULES)


@dataclass(frozen=True)
class Control:
    """A rule on a market, and the trainings of `rollouts` on the same blocks whose gain is set beside its own."""

    name: str
    rule: str
    keys: Mapping[str, object]
    agents: tuple[str, ...] = ()

    def measured(self, training_data: TrainingData | None = None) -> dict[str, float]:
        """Gains of the rule over the blocks of the training window, on other prices where they are given."""
        training_data = training_data or prepare(load_config(None, dict(self.keys), environ={}))
        config = training_data.config
        blocks = training_blocks(config, training_data)
        rules = [named_strategy(self.rule, config.evaluation) for _ in blocks]
        return gains_in_blocks(training_data, blocks, rules)


def controls(nyse: Path | None = None) -> list[Control]:
    """Momentum on the monthly portfolios; OLMAR where a file of the prices of NYSE(O) is named."""
    found = [
        Control("momentum, monthly portfolios", "momentum", {**preset_keys("monthly"), **GROWTH}, ("monthly-growth",))
    ]
    for variant in nyse_variants(nyse) if nyse is not None else ():
        kind = variant.name.removeprefix(PREFIX)
        name = f"OLMAR, NYSE(O), {'a day later' if 'lag-1' in kind else 'one close'}"
        found += [
            Control(name, "olmar", variant.overrides, (kind,)),
            Control(f"{name}, no costs", "olmar", {**variant.overrides, **FREE}),
        ]
    return found


def measure_missing(chosen: Sequence[Control], path: Path) -> Mapping[str, Result]:
    """Measure the controls that the page's file does not have by the present code and configuration; all of it."""
    for one in chosen:
        configuration = config_hash(load_config(None, dict(one.keys), environ={}))
        stamp = {"configuration": configuration, "code": code_hash(), "rule": one.rule, "agents": list(one.agents)}
        kept_result(path, f"{ENTRY}{one.name}", stamp, partial(one.measured))
    return kept_results(path)


def rule_table(kept: Mapping[str, Result]) -> str:
    """A Markdown table: gain and t of every rule on file over each reference, and of the agents beside."""
    trained = grouped([one for one in kept.values() if "variant" in one], "variant")
    rows: list[list[object]] = []
    for name, rule in kept.items():
        if name.startswith(ENTRY):
            rows.append(_row(name.removeprefix(ENTRY), [rule]))
            beside = [PREFIX + kind for kind in rule["agents"]]
            rows += [_row(f"agents of {one}", trained[one], rule) for one in beside if one in trained]
    heads = [f"{what} over {rule}" for rule in RULES for what in ("log growth a year", "t")]
    return markdown_table(["rule, or agents", *heads, "share of the rule's", "t out of fold", "turnover", "code"], rows)


def _row(name: str, own: Sequence[Result], rule: Result | None = None) -> list[object]:
    """Figures of a rule, or of agents with their share of a rule's growth."""
    over = [] if rule is None else [_share(own, rule, key) for key in KEYS]
    gains = [_each(own, f"{key}_{what}", style) for key in KEYS for what, style in (("growth", "+.2%"), ("t", ".1f"))]
    found, turnover = _each(own, "out_of_fold_t", ".1f"), _each(own, "out_of_fold_turnover", ".1f")
    return [name, *gains, " / ".join(over) or "-", found, turnover, codes_of(own)]


def _each(own: Sequence[Result], name: str, style: str) -> str:
    return ", ".join(format(one[name], style) for one in own if name in one) or "-"


def _share(own: Sequence[Result], rule: Result, key: str) -> str:
    """Mean growth of agents over a reference as a share of the rule's; a dash where there is none to share in."""
    gains, whole = [one.get(f"{key}_growth", math.nan) for one in own], rule[f"{key}_growth"]
    share = float(np.mean(gains)) / whole if whole > 0.0 else math.nan
    return f"{share:.0%}" if math.isfinite(share) else "-"
