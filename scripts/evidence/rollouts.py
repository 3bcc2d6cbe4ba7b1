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
from finflow.strategies.strategy import Strategy
from finflow.training.checkpoints.checkpoint_reader import read_checkpoint
from finflow.training.data.training_data import TrainingData, prepare, prepare_from
from finflow.training.judging.agent_strategy import AgentStrategy
from finflow.training.logs.run_log import METRICS
from finflow.training.off_policy.evidence import Block
from finflow.training.trainer import FinFlowTrainer
from scripts.evidence.belief_ceiling import ceiling_of
from scripts.evidence.null_markets import permuted_panel
from scripts.evidence.optimality import HIDDEN, Judge, judge_of, window_of
from scripts.evidence.results import Variant, grouped, train_and_validate
from scripts.evidence.tables import mean_interval, share_interval, table_of

ROOT = Path(__file__).parents[2]
FIRST_SAMPLE = 101  # earlier ones were used to choose values; this one's figures were seen while some were chosen
#: Planted market -> keys beside those of its kind; a signal that lasts is less each day.
PLANTED: dict[str, dict[str, object]] = {
    "mean-reverting": {},
    "mean-reverting-.97": {"market.synthetic.persistence": 0.97},
    "mean-reverting-.99": {"market.synthetic.persistence": 0.99},
}
DEMO = "demo"  # of README's first proof: configs/planted.yaml, whose market is one and the same for all seeds
FIRST_NULL = 60
NULLS = {"permuted-monthly": 64}  # of the kinds tried, the one that takes least
REAL = ("monthly", "monthly-growth", "nyse", "nyse-lag-1")
PREFIX = "rollouts-"
RULES = ("equal-weight", "buy-and-hold")  # that growth in the blocks is compared with
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
ALONE: dict[str, object] = {"out_of_fold.blocks": 1}  # without evidence out of fold: the agent is what it learned
RANDOM: dict[str, object] = {"offline.method": "none"}  # of the policy; critics are fitted to the behaviour
#: The objective is log return alone, of which the optimum is known.
GROWTH: dict[str, object] = {
    "objectives.sharpe_beta": 0.0,
    "objectives.lambda_turn": 0.0,
    "objectives.lambda_cvar": 0.0,
}
LOG_RETURN: dict[str, object] = {**GROWTH, "market.train_end": "2010-12-31", "market.validation_end": "2014-12-31"}
#: A spread that reverts fast and assets that differ, so that features can show the signal.
OWN: dict[str, dict[str, object]] = {
    "mean-reverting": {"market.synthetic.persistence": 0.8},
    "regime": {"market.synthetic.defensive_ratio": 0.5},
}
REDUCED: dict[str, object] = {"train.online_episodes": 250}


def rollout_variants(samples: int) -> list[Variant]:
    """Each planted market with ``samples`` samples, null markets, and real ones with as many seeds."""
    variants = planted_variants(samples)
    variants += [
        Variant(
            f"{PREFIX}{kind}",
            range(FIRST_NULL, FIRST_NULL + count),
            {**SHORT_OFFLINE, **REDUCED, **preset_keys("monthly")},
            measure=partial(learn_null, kind),
        )
        for kind, count in NULLS.items()
    ]
    return variants + real_variants(samples)


def planted_variants(samples: int) -> list[Variant]:
    """Each market of `PLANTED`, and that of the demo."""
    demo = Variant(f"{PREFIX}{DEMO}", range(samples), preset_keys("planted"), measure=partial(learn_planted, DEMO))
    return [*(planted_variant(kind, samples) for kind in PLANTED), demo]


def planted_variant(kind: str, samples: int) -> Variant:
    """A market whose optimum is known, with ``samples`` samples, none of which was used before."""
    law = kind.partition("-.")[0]
    planted = {"market.source": "synthetic", "market.synthetic.kind": law, **OWN[law], **PLANTED.get(kind, {})}
    return Variant(
        f"{PREFIX}{kind}",
        range(FIRST_SAMPLE, FIRST_SAMPLE + samples),
        {**SHORTER_OFFLINE, **LOG_RETURN, **planted},
        measure=partial(learn_planted, kind),
        first_sample=0,
    )


def preset_keys(name: str) -> dict[str, object]:
    """Keys of a preset of configs, by the name of its file."""
    return flatten(yaml.safe_load((ROOT / "configs" / f"{name}.yaml").read_text("utf-8")))


def real_variants(seeds: int) -> list[Variant]:
    """Monthly portfolios, with as many seeds of trainings.

    With the objectives of their configuration, and with growth alone, which is what the edge that was published for
    them is an edge in.
    """
    keys = preset_keys("monthly")
    return [_trained_on("monthly", keys, seeds), _trained_on("monthly-growth", {**keys, **GROWTH}, seeds)]


def nyse_variants(prices: Path) -> list[Variant]:
    """NYSE(O), decided and filled at one close, as in its literature, and a day later.

    Parameters
    ----------
    prices : Path
        What ``scripts/convert_relatives.py`` made of the relatives of Cover (1991).
    """
    ends = {"market.train_end": "1975-12-31", "market.validation_end": "1979-12-31"}
    keys: dict[str, object] = {"market.source": "csv", "market.path": str(prices.resolve()), **ends}
    return [_trained_on("nyse", {**keys, "env.execution_lag": 0}, 2), _trained_on("nyse-lag-1", keys, 1)]


def _trained_on(kind: str, keys: Mapping[str, object], seeds: int) -> Variant:
    return Variant(f"{PREFIX}{kind}", range(seeds), {**SHORTER_OFFLINE, **keys}, measure=partial(learn_real, kind))


def learn_null(kind: str, config: Config) -> dict[str, Any]:
    """Train in a market without an edge: real prices with their labels permuted at every date."""
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
    return found | {"equal_weight": sharpe_of(run)} | against_rules(trainer)


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


def against_rules(trainer: FinFlowTrainer) -> dict[str, float]:
    """`gains_in_blocks` of the blocks' agents in the chosen blend, and alone; nothing where none was chosen."""
    agent, evidence = trainer.agent, trainer._begin().state.out_of_fold
    blend = Blend.from_tensor(agent.blend)
    if blend is None or agent.members is None or evidence is None:
        return {}
    learned = [load_like(agent.policy, dict(member.state_dict())) for member in agent.members]
    blended = [AgentStrategy(deployed_policy(one, (), blend), trainer.device) for one in learned]
    alone = [AgentStrategy(one, trainer.device) for one in learned]
    found, own = (gains_in_blocks(trainer.training_data, evidence.blocks, each) for each in (blended, alone))
    return found | {f"own_{name}": value for name, value in own.items()}


def gains_in_blocks(
    training_data: TrainingData, blocks: Sequence[Block], strategies: Sequence[Strategy]
) -> dict[str, float]:
    """Log growth a year of strategies, one a block, over each rule of `RULES` in the blocks; their turnover a year.

    Its t statistic is that of the mean gain of a bar, by the stationary bootstrap.
    """
    config, backtests = training_data.config, []
    for block, own in zip(blocks, strategies, strict=True):
        rules = [named_strategy(name, config.evaluation) for name in RULES]
        backtests.append(run_backtests(training_data.process, block.held_out, [own, *rules]))
    number = np.repeat(np.arange(len(backtests)), [len(own.returns) for own, *_ in backtests])
    turnover = [float(summarise(own, 0.05)["annual_turnover"]) for own, *_ in backtests]
    facts = {"out_of_fold_turnover": float(np.mean(turnover))}
    for place, name in enumerate(RULES):
        gains = [np.log1p(one[0].returns) - np.log1p(one[1 + place].returns) for one in backtests]
        found = choose(np.concatenate(gains)[None], number, config.train.seed)
        key, year = name.replace("-", "_"), backtests[0][0].bars_per_year
        facts |= {f"{key}_t": found.t_statistic, f"{key}_growth": found.gain * year}
    return facts


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
        for kind in (*PLANTED, DEMO)
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
        "of the own policy": _found(own, "own_buy_and_hold_t"),
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
