"""Evidence about agents on assets that they were not trained on, compared with agents trained on those assets.

Only the validation window is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from finflow.config import Config, changed_config
from finflow.evaluation.backtest import run_backtests
from finflow.evaluation.statistics.metrics import sharpe_of
from finflow.strategies.classical import named_strategy
from finflow.training.data.training_data import TrainingData, prepare
from finflow.training.judging.agent_strategy import AgentStrategy
from finflow.training.trainer import FinFlowTrainer
from scripts.evidence.results import Variant, grouped, train_both
from scripts.evidence.rollouts import preset_keys
from scripts.evidence.tables import markdown_table, mean_interval

PREFIX = "transfer-"
MONTHLY, EMBEDDED = "monthly", "embedded"
#: Names that an agent learns from; the others are left for it to run on.
LEARNED = {MONTHLY: 20, EMBEDDED: 10}
OTHERS, ALL = "others", "all"
SEEDS = 3
#: A twentieth of the default's decisions, networks of an eighth of its width, a short offline phase, and no blend.
REDUCED: dict[str, object] = {
    "features.filters": "none",
    "features.regimes": False,
    "offline.evaluation_updates": 0,
    "train.offline_episodes": 6,
    "train.offline_training_epochs": 1,
    "train.online_episodes": 50,
    "train.warmup_episodes": 4,
    "train.n_envs": 16,
    "out_of_fold.blocks": 1,
    "bcell.expansion": 8,
    "bcell.hidden_dim": 32,
}


def transfer_variants(seeds: int = SEEDS, more: Mapping[str, object] | None = None) -> list[Variant]:
    """One drawing of names with each seed, of the monthly portfolios and of the embedded stocks."""
    keys = {MONTHLY: preset_keys("monthly"), EMBEDDED: {}}
    return [
        Variant(f"{PREFIX}{market}", range(seeds), {**REDUCED, **own, **(more or {})}, measure=measure_transfer)
        for market, own in keys.items()
    ]


def measure_transfer(config: Config) -> dict[str, Any]:
    """Train on some of the names, on the others and, where they are more than twice as many, on all; judge each there.

    Returns
    -------
    dict
        By target: its names, and the Sharpe ratios of the agent from elsewhere, the one at home, and equal weight.
    """
    market = MONTHLY if config.market.source == "french" else EMBEDDED
    names = prepare(config).panel.assets
    order = np.random.default_rng([config.train.seed, 91]).permutation(len(names))
    count = LEARNED[market]
    chosen = {place: sorted(names[number] for number in part) for place, part in _parts(order, count).items()}
    known = _trained(config, chosen.pop("known"))
    found = {
        place: _judged(known, _trained(config, assets)) | {"names": len(assets)} for place, assets in chosen.items()
    }
    return {"market": market, "learned": count, "targets": found}


def _parts(order: np.ndarray[Any, Any], count: int) -> dict[str, np.ndarray[Any, Any]]:
    """Numbers of the names learned from, of the others, and of all where others are a minority."""
    parts = {"known": order[:count], OTHERS: order[count:]}
    return parts | {ALL: order} if 2 * count > len(order) else parts


def _trained(config: Config, assets: Sequence[str]) -> FinFlowTrainer:
    return train_both(changed_config(config, {"market.tickers": list(assets)}))


def _judged(visitor: FinFlowTrainer, resident: FinFlowTrainer) -> dict[str, float]:
    """Sharpe ratios of validation on the resident's market, whose features are fitted on its own training window."""
    data: TrainingData = resident.training_data
    agents = [
        AgentStrategy(one.agent.deployed, one.agent.device, name)
        for name, one in (("visitor", visitor), ("resident", resident))
    ]
    equal = named_strategy("equal-weight", data.config.evaluation)
    runs = run_backtests(data.process, data.split.validation, [*agents, equal])
    return {run.name: sharpe_of(run) for run in runs}


def transfer_table(results: Sequence[Mapping[str, Any]]) -> str:
    """Markdown table: agents from elsewhere and at home on each target, and their paired difference."""
    rows = []
    for market, own in grouped(results, "market").items():
        for target in dict.fromkeys(place for one in own for place in one["targets"]):
            found = [one["targets"][target] for one in own]
            columns = {name: [one[name] for one in found] for name in ("visitor", "resident", "equal-weight")}
            lost = np.subtract(columns["resident"], columns["visitor"])
            rows.append(
                [
                    market,
                    own[0]["learned"],
                    f"{target} ({found[0]['names']})",
                    len(found),
                    *(mean_interval(values) for values in columns.values()),
                    mean_interval(lost),
                ]
            )
    heads = (
        *("market", "names learned from", "run on", "seeds", "from elsewhere", "trained there", "equal weight"),
        "lost by the transfer",
    )
    return markdown_table(heads, rows)
