"""Evidence about online learning: what it finds where something is planted, and where nothing is.

One configuration for every market. Each sample is a market of its own. Planted markets are judged on the test window;
of the others validation is read once a training, and the test window never.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from finflow.agent.networks.decision import REFERENCES, Blend
from finflow.agent.networks.policy_ensemble import deployed_policy, load_like
from finflow.config import Config, flatten
from finflow.evaluation.backtest import run_backtests
from finflow.evaluation.statistics.backtest_overfitting import choose
from finflow.evaluation.statistics.metrics import sharpe_of, summarise
from finflow.guard.checkpoint_folder import MODELS, PRETRAINED
from finflow.market.sources.panel_loader import load_panel
from finflow.strategies.classical import named_strategy
from finflow.training.checkpoints.checkpoint_reader import read_checkpoint
from finflow.training.data.training_data import TrainingData, prepare, prepare_from
from finflow.training.judging.agent_strategy import AgentStrategy
from finflow.training.logs.run_log import METRICS
from finflow.training.trainer import FinFlowTrainer
from scripts.evidence.belief_ceiling import ceiling_of
from scripts.evidence.null_markets import permuted_panel
from scripts.evidence.optimality import HIDDEN, Judge, judge_of, window_of
from scripts.evidence.planted_signals import GROWTH, OWN as PLANTED_OWN
from scripts.evidence.results import Variant, grouped, train_and_validate
from scripts.evidence.tables import mean_interval, share_interval, table_of

ROOT = Path(__file__).parents[2]
FIRST_SAMPLE = 101  # earlier ones were used to choose values; this one's figures were seen while some were chosen
#: Planted market -> keys beside those of its kind; a signal that lasts is less each day.
PLANTED: dict[str, dict[str, object]] = {
    "constant-drift": {},
    "lognormal": {},
    "regime": {},
    "mean-reverting": {},
    "mean-reverting-.97": {"market.synthetic.persistence": 0.97},
    "mean-reverting-.99": {"market.synthetic.persistence": 0.99},
}
FIRST_NULL = 60
#: Null market -> samples, 100 in all: those of months take less than half as long.
NULLS = {"exchangeable": 20, "permuted": 20, "permuted-monthly": 60}
REAL = ("embedded", "monthly", "monthly-growth", "nyse", "nyse-random", "nyse-lag-1")
NYSE_SEEDS = 3
PREFIX = "rollouts-"
USED = 0.25  # confidence beyond which a null market counts as a false find
#: The offline phase is shortened: what is measured begins at the hand-over.
SHORT_OFFLINE: dict[str, object] = {
    "train.offline_episodes": 50,
    "train.offline_training_epochs": 2,
    "offline.patience": 0,
    "offline.evaluation_updates": 0,
}
#: Validation's Sharpe ratio after 5 epochs was that after 50 (1.15 and 1.13).
SHORTER_OFFLINE = {**SHORT_OFFLINE, "train.offline_episodes": 500, "train.offline_training_epochs": 5}
RANDOM: dict[str, object] = {"offline.method": "none"}  # of the policy; critics are fitted to the behaviour
#: What is optimal is known for log return alone.
LOG_RETURN: dict[str, object] = {**GROWTH, "market.train_end": "2010-12-31", "market.validation_end": "2014-12-31"}
#: A spread that reverts fast and assets that differ, so that features can show the signal.
OWN = {kind: PLANTED_OWN[kind] for kind in ("mean-reverting", "regime")}
REDUCED: dict[str, object] = {"train.online_episodes": 250}


def rollout_variants(samples: int) -> list[Variant]:
    """Each planted market with ``samples`` samples, null markets, and real ones with as many seeds."""
    variants = planted_variants(samples)
    variants += [
        Variant(
            f"{PREFIX}{kind}",
            range(FIRST_NULL, FIRST_NULL + NULLS[kind]),
            {**SHORT_OFFLINE, **REDUCED, **keys},
            measure=partial(learn_null, kind),
            first_sample=0 if keys.get("market.source") == "synthetic" else None,
        )
        for kind, keys in keys_of_nulls().items()
    ]
    return variants + real_variants(samples)


def planted_variants(samples: int) -> list[Variant]:
    """Each planted market with ``samples`` samples, none of which was used before."""
    return [
        Variant(
            f"{PREFIX}{kind}",
            range(FIRST_SAMPLE, FIRST_SAMPLE + samples),
            {
                **SHORTER_OFFLINE,
                **LOG_RETURN,
                **OWN.get(law, {}),
                "market.source": "synthetic",
                "market.synthetic.kind": law,
                **keys,
            },
            measure=partial(learn_planted, kind),
            first_sample=0,
        )
        for kind, keys in PLANTED.items()
        for law in [kind.partition("-.")[0]]
    ]


def keys_of_nulls() -> dict[str, dict[str, object]]:
    """Keys of the markets without an edge."""
    exchangeable = {"market.synthetic.kind": "exchangeable", "market.synthetic.assets": 4}
    return {
        "exchangeable": {"market.source": "synthetic", **exchangeable},
        "permuted": {},
        "permuted-monthly": monthly(),
    }


def monthly() -> dict[str, object]:
    """Keys of configs/monthly.yaml."""
    return flatten(yaml.safe_load((ROOT / "configs" / "monthly.yaml").read_text("utf-8")))


def real_variants(seeds: int) -> list[Variant]:
    """Real prices: embedded daily stocks and monthly portfolios, with as many seeds of trainings.

    The monthly portfolios with the objectives of their configuration and with growth alone, which is what the edge that
    was published for them is an edge in.
    """
    markets: dict[str, dict[str, object]] = {
        "embedded": {},
        "monthly": monthly(),
        "monthly-growth": {**monthly(), **GROWTH},
    }
    return _trained_on(markets, seeds)


def nyse_variants(prices: Path) -> list[Variant]:
    """NYSE(O), decided and filled at one close, as in its literature, from IQL's and random weights, and a day later.

    Parameters
    ----------
    prices : Path
        What ``scripts/convert_relatives.py`` made of the relatives of Cover (1991).
    """
    ends = {"market.train_end": "1975-12-31", "market.validation_end": "1979-12-31"}
    keys: dict[str, object] = {"market.source": "csv", "market.path": str(prices.resolve()), **ends}
    close = {**keys, "env.execution_lag": 0}
    return _trained_on({"nyse": close, "nyse-random": {**close, **RANDOM}, "nyse-lag-1": keys}, NYSE_SEEDS)


def _trained_on(markets: Mapping[str, Mapping[str, object]], seeds: int) -> list[Variant]:
    return [
        Variant(f"{PREFIX}{kind}", range(seeds), {**SHORTER_OFFLINE, **keys}, measure=partial(learn_real, kind))
        for kind, keys in markets.items()
    ]


def learn_null(kind: str, config: Config) -> dict[str, Any]:
    """Train in a market without an edge: a synthetic one, or real prices with their labels permuted at every date."""
    if config.market.source == "synthetic":
        return _learned(prepare(config), kind)[1]
    panel = load_panel(config.market)
    permuted = permuted_panel(panel, range(panel.n_bars), config.train.seed)
    return _learned(prepare_from(permuted, config), kind)[1]


def learn_planted(kind: str, config: Config) -> dict[str, Any]:
    """Train in a market whose optimum is known; scores of the test window, of the learner's own policy too."""
    training_data = prepare(config)
    hidden = config.market.synthetic.kind in HIDDEN
    ceiling = {"ceiling": ceiling_of(training_data, config.train.seed, test=True)} if hidden else {}
    return _learned(training_data, kind, judge_of(training_data, test=True), test=True)[1] | ceiling


def learn_real(kind: str, config: Config) -> dict[str, Any]:
    """Train on real prices; the Sharpe ratio of equal weight, too."""
    training_data = prepare(config)
    equal = named_strategy("equal-weight", config.evaluation)
    (run,) = run_backtests(training_data.process, training_data.split.validation, [equal])
    trainer, found = _learned(training_data, kind)
    return found | {"equal_weight": sharpe_of(run)} | against_buy_and_hold(trainer)


def _learned(
    training_data: TrainingData, kind: str, judge: Judge = sharpe_of, test: bool = False
) -> tuple[FinFlowTrainer, dict[str, Any]]:
    """The training; its value at the hand-over and at the end, and its evidence out of fold.

    With ``test`` values are of the test window, and that of the policy alone that was learned is among them.
    """
    training = train_and_validate(training_data.config, keep_stopped=True, training_data=training_data)
    trainer, backtests, seconds, stopped = training
    if test:
        agent, device = trainer.agent, trainer.device
        pretrained = read_checkpoint(trainer.run_folder / MODELS / f"{PRETRAINED}.safetensors").agent.policy(device)
        policies = [AgentStrategy(one, device) for one in (pretrained, agent.policy, agent.deployed)]
        backtests = [run_backtests(*window_of(training_data, test), [one])[0] for one in policies]
    rows = [json.loads(line) for line in (trainer.run_folder / METRICS).read_text().splitlines()]
    windows = ("training", "validation")
    slopes = [f"{window}_advantage_{what}" for window in windows for what in ("slope", "slope_error")]
    names = ("confidence", "out_of_fold_t", "reference", "look", *slopes)
    return trainer, {
        "kind": kind,
        "seconds": seconds,
        "start": judge(backtests[0]),
        "end": judge(backtests[-1]),
        "turnover": float(summarise(backtests[-1], 0.05)["annual_turnover"]),
        **{name: float(rows[-1][name]) for name in names if name in rows[-1]},
        **({"own": judge(backtests[1])} if test else {}),
        **({"stopped": True} if stopped else {}),
    }


def against_buy_and_hold(trainer: FinFlowTrainer) -> dict[str, float]:
    """Growth of the blocks' agents, in the chosen blend, over buy and hold in the blocks; their turnover a year.

    None where no blend was decided on. The t statistic is that of the mean gain of a bar, by the stationary bootstrap.
    """
    agent, evidence = trainer.agent, trainer._begin().state.out_of_fold
    blend = Blend.from_tensor(agent.blend)
    if blend is None or agent.members is None or evidence is None:
        return {}
    gains, turnover, number = [], [], []
    for place, (block, member) in enumerate(zip(evidence.blocks, agent.members, strict=True)):
        learned = load_like(agent.policy, dict(member.state_dict()))
        policy = deployed_policy(learned, (), blend)
        strategies = [AgentStrategy(policy, trainer.device), named_strategy("buy-and-hold", trainer.config.evaluation)]
        own, held = run_backtests(trainer.training_data.process, block.held_out, strategies)
        gains.append(np.log1p(own.returns) - np.log1p(held.returns))
        turnover.append(float(summarise(own, 0.05)["annual_turnover"]))
        number.append(np.full(len(own.returns), place))
    found = choose(np.concatenate(gains)[None], np.concatenate(number), trainer.config.train.seed)
    return {"buy_and_hold_t": found.t_statistic, "out_of_fold_turnover": float(np.mean(turnover))}


def rollout_table(results: Sequence[Mapping[str, Any]]) -> str:
    """Markdown tables: scores on planted markets, then confidence on null markets, then real prices."""
    by_kind = grouped(results, "kind")
    rows = [
        {
            "market": kind,
            "hand-over": mean_interval([one["start"] for one in own]),
            "end": mean_interval([one["end"] for one in own]),
            "each sample": ", ".join(f"{one['end']:.3f}" for one in own),
            "own policy": ", ".join(f"{one.get('own', math.nan):.3f}" for one in own),
            "ceiling": ", ".join(f"{one['ceiling']:.2f}" for one in own if "ceiling" in one) or "-",
            "t out of fold": _found(own, "out_of_fold_t"),
            "confidence": ", ".join(f"{one['confidence']:.2f}" for one in own),
            "critics' slope": " / ".join(_slope(own, window) for window in ("training", "validation")),
            "turnover": f"{np.mean([one['turnover'] for one in own]):.1f}",
            "code": codes_of(own),
        }
        for kind in PLANTED
        if (own := by_kind.get(kind))
    ]
    nulls, real = (
        [row_of(kind, by_kind[kind]) for kind in kinds if kind in by_kind]
        for kinds, row_of in ((NULLS, _null_row), (REAL, _real_row))
    )
    return "\n".join(table_of(table) for table in (rows, nulls, real) if table)


def codes_of(own: Sequence[Mapping[str, Any]]) -> str:
    """Code that made the results of a row: a market whose prices are not shipped is not trained anew by every code."""
    return ", ".join(sorted({str(one.get("code", "-")) for one in own})) or "-"


def _found(own: Sequence[Mapping[str, Any]], name: str) -> str:
    """A figure of each result that has it."""
    return ", ".join(f"{one[name]:.1f}" for one in own if name in one) or "-"


def _slope(own: Sequence[Mapping[str, Any]], window: str) -> str:
    """Mean slope of exact advantages on the critics' over samples, with its standard error."""
    slopes, errors = ([one[f"{window}_advantage_slope{name}"] for one in own] for name in ("", "_error"))
    return f"{np.mean(slopes):.2f} ± {np.linalg.norm(errors) / len(own):.2f}"


def _real_row(kind: str, own: Sequence[Mapping[str, Any]]) -> dict[str, object]:
    return {
        "real prices": kind,
        "seeds": len(own),
        "equal weight": f"{own[0]['equal_weight']:.2f}",
        "hand-over": mean_interval([one["start"] for one in own]),
        "end": mean_interval([one["end"] for one in own]),
        "end less hand-over": mean_interval([one["end"] - one["start"] for one in own], 3),
        "t": _found(own, "out_of_fold_t"),
        "t over buy and hold": _found(own, "buy_and_hold_t"),
        "turnover out of fold": _found(own, "out_of_fold_turnover"),
        "confidence": ", ".join(f"{one['confidence']:.2f}" for one in own),
        "over": ", ".join(sorted({REFERENCES[int(one["reference"])] for one in own})),
        "code": codes_of(own),
    }


def _null_row(kind: str, own: Sequence[Mapping[str, Any]]) -> dict[str, object]:
    moved = [one["end"] - one["start"] for one in own]
    return {
        "null market": kind,
        "samples": len(own),
        f"confidence over {USED:g}": share_interval(sum(one["confidence"] > USED for one in own), len(own), 0),
        "largest": f"{max(one['confidence'] for one in own):.2f}",
        "Sharpe, end less hand-over": mean_interval(moved, 3),
        "code": codes_of(own),
    }
