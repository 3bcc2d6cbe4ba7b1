"""Controls of the evidence on online learning: other settings of it, a published rule, and later years."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from finflow.config import Config
from finflow.evaluation.backtest import run_backtests
from finflow.evaluation.statistics.out_of_fold import choose, least_gain
from finflow.strategies.classical import named_strategy
from finflow.training.data.training_data import prepare
from finflow.training.out_of_fold.evidence import training_blocks
from scripts.evidence.generalisation import CLASSICAL, standard_error, walk_forward_variants
from scripts.evidence.optimality import SHOWN
from scripts.evidence.planted_signals import GROWTH
from scripts.evidence.rollouts import PLANTED, PREFIX, RANDOM, SHORTER_OFFLINE, codes_of, monthly, planted_variants
from scripts.evidence.tables import markdown_table, mean_interval
from scripts.evidence.variants import OFFLINE_ALONE, Variant

#: Name -> keys added to those of the planted markets.
CONTROLS: dict[str, dict[str, object]] = {
    "state shown": SHOWN,
    "H 0": {"bcell.expansion": 0, "train.online_episodes": 63},  # as many updates
    "no counterfactuals": {"bcell.counterfactual": False},
    "no CQL": {"bcell.cql_alpha": 0.0},
    "no entropy": {"bcell.alpha_mode": "fixed", "bcell.alpha_init": 1e-6},
}
CONTROLLED = ("regime", "mean-reverting-.97")
SEEDED, UNSEEDED = "without blocks", "random weights"
SEEDING: dict[str, dict[str, object]] = {SEEDED: {}, UNSEEDED: RANDOM}
#: Control -> planted markets that it is trained on.
MARKETS = dict.fromkeys(CONTROLS, CONTROLLED) | dict.fromkeys(SEEDING, tuple(PLANTED))
#: What is compared is the policy that was learned: evidence out of fold would take most of the time.
ALONE: dict[str, object] = {"out_of_fold.blocks": 1}
RULE = PREFIX + "momentum-rule"
REFERENCES = ("equal-weight", "inverse-volatility")
FOLDS = 3
DEFAULT, OFFLINE = "default", "offline"
LATER_YEARS: dict[str, dict[str, object]] = {DEFAULT: {}, OFFLINE: {**OFFLINE_ALONE, "train.online_episodes": 0}}


def control_variants(samples: int) -> list[Variant]:
    """Two planted markets, one with fast and one with slow signals, with the keys of each control; the momentum rule.

    From IQL's and from random weights all planted markets are learned in.

    Parameters
    ----------
    samples : int
        Of each planted market, those of `scripts.evidence.rollouts`.
    """
    variants = [
        Variant(f"{one.name}-{_file_name(name)}", one.seeds, {**one.overrides, **ALONE, **keys}, measure=one.measure)
        for name, keys in {**CONTROLS, **SEEDING}.items()
        for one in planted_variants(samples)
        if one.name.removeprefix(PREFIX) in MARKETS[name]
    ]
    return [*variants, Variant(RULE, (0,), {**monthly(), **GROWTH}, measure=judge_momentum)]


def _file_name(control: str) -> str:
    """A control as part of a file's name."""
    return control.replace(" ", "-").lower()


def judge_momentum(config: Config) -> dict[str, Any]:
    """The 12-1 rule in the training years, by the test that the policies of the blocks have to pass."""
    began = time.process_time()
    training_data = prepare(config)
    process, blocks = training_data.process, training_blocks(config, training_data)
    bars = range(blocks[0].held_out.start, blocks[-1].held_out.stop)
    strategies = [named_strategy(name, config.evaluation) for name in ("momentum", *REFERENCES)]
    growth = np.log1p([run.returns for run in run_backtests(process, bars, strategies)])
    number = np.repeat(np.arange(len(blocks)), [len(block.held_out) for block in blocks])
    number = number[: growth.shape[1]]  # no return follows a backtest's last decision
    own = int(np.argmax(least_gain(growth[1:], number)))
    choice = choose(growth[:1] - growth[1 + own], number, config.train.seed)
    window = run_backtests(process, training_data.split.validation, strategies)
    return {
        "kind": "momentum-rule",
        "seconds": {"processor": round(time.process_time() - began, 1)},
        "reference": REFERENCES[own],
        "out_of_fold_t": choice.t_statistic,
        "confidence": choice.confidence,
        "gain": choice.gain,
        "validation_gain": float(np.log1p(window[0].returns).mean() - np.log1p(window[1 + own].returns).mean()),
    }


def control_table(results: Sequence[Mapping[str, Any]], default: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown table: scores of the policies that were learned, by the default and each control, sample by sample.

    Parameters
    ----------
    results : sequence of mapping
        Of `control_variants`.
    default : sequence of mapping
        Of the default on the same samples.
    """
    rows = []
    for kind in CONTROLLED:
        row = [kind, _each([one for one in default if one["variant"] == PREFIX + kind])]
        for name in CONTROLS:
            own = [one for one in results if one["variant"] == f"{PREFIX}{kind}-{_file_name(name)}"]
            row += [_each(own) + stopped_words(own), _online_seconds(own)]
        rows.append(row)
    heads = ["market", "default, by features"]
    for name in CONTROLS:
        heads += [name, "seconds online"]
    return markdown_table(heads, rows)


def seeding_table(results: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown table: own policies that began from IQL's weights and from random ones, sample by sample.

    Parameters
    ----------
    results : sequence of mapping
        Of `control_variants`.
    """
    rows = []
    for kind in PLANTED:
        by_sample = [
            {one["seed"]: one for one in results if one["variant"] == f"{PREFIX}{kind}-{_file_name(name)}"}
            for name in SEEDING
        ]
        seeded, unseeded = by_sample
        gaps = [seeded[seed]["own"] - unseeded[seed]["own"] for seed in sorted(seeded.keys() & unseeded.keys())]
        rows.append(
            [
                kind,
                ", ".join(f"{one['start']:.3f}" for one in seeded.values()) or "none",
                *(_each([*own.values()]) for own in by_sample),
                ", ".join(f"{gap:+.3f}" for gap in gaps) or "-",
                *(_online_seconds([*own.values()]) for own in by_sample),
                codes_of([*seeded.values(), *unseeded.values()]),
            ]
        )
    heads = ("market", "hand-over", "from IQL's weights", "from random weights", "difference")
    return markdown_table((*heads, "seconds online", "seconds online, random", "code"), rows)


def _each(own: Sequence[Mapping[str, Any]]) -> str:
    """Score of each sample's own policy."""
    return ", ".join(f"{one['own']:.3f}" for one in own) or "none"


def stopped_words(own: Sequence[Mapping[str, Any]]) -> str:
    """Number of trainings that the guard ended, in brackets; empty where there are none."""
    stopped = sum(one.get("stopped", False) for one in own)
    return f" ({stopped} of {len(own)} stopped)" if stopped else ""


def _online_seconds(own: Sequence[Mapping[str, Any]]) -> str:
    return f"{np.mean([one['seconds']['online'] for one in own]):.0f}" if own else "-"


def momentum_table(results: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown table: the evidence of the momentum rule; empty where it is not there."""
    rows = [
        [
            "12-1 momentum",
            one["reference"],
            f"{one['out_of_fold_t']:.1f}",
            f"{one['confidence']:.2f}",
            f"{1e4 * one['gain']:.1f}",
            f"{1e4 * one['validation_gain']:.1f}",
        ]
        for one in results
        if one["variant"] == RULE
    ]
    heads = ("monthly portfolios", "over", "t", "confidence", "gain a month, bp", "in validation")
    return markdown_table(heads, rows) if rows else ""


def later_years_variants(seeds: int) -> list[Variant]:
    """The default, and its offline phase alone, trained for each fold of a walk-forward; the classical strategies.

    Parameters
    ----------
    seeds : int
        Of each fold.
    """
    size = {**SHORTER_OFFLINE, "evaluation.protocol.folds": FOLDS}
    return walk_forward_variants(seeds, LATER_YEARS, size, "later-years")


def later_years_table(results: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown table: Sharpe ratios on each fold's later years, and those less the best of the others.

    They are those of the default, and of the policy that it learned, alone.

    Parameters
    ----------
    results : sequence of mapping
        Of `later_years_variants`.
    """
    rules = {one["fold"]: one["strategies"] for one in results if one["configuration_name"] == CLASSICAL}
    rows: list[list[object]] = []
    gaps, folds = [], []  # default less each of the others, less the best of them, own policy less it
    for fold, strategies in sorted(rules.items()):
        own = {name: _by_seed(results, name, fold) for name in LATER_YEARS}
        if not own[DEFAULT] or not own[OFFLINE]:
            continue
        others = [float(strategies[name]["sharpe"]) for name in REFERENCES]
        others.append(float(np.mean(list(own[OFFLINE].values()))))
        alone, best = _by_seed(results, DEFAULT, fold, "own"), max(others)
        gaps += [
            [*(value - one for one in (*others, best)), alone[seed] - best] for seed, value in own[DEFAULT].items()
        ]
        folds += [fold] * len(alone)
        rows.append([fold, len(alone), *(f"{one:.2f}" for one in others)])
        for values in (own[DEFAULT], alone):
            found = list(values.values())
            rows[-1] += [mean_interval(found), mean_interval([value - best for value in found], 3)]
    if len(gaps) > 1:
        *each, best_of_all, alone_of_all = [_with_error(gap, folds) for gap in zip(*gaps, strict=True)]
        rows.append(["default less each", len(gaps), *each, "", best_of_all, "", alone_of_all])
    heads = ("fold", "seeds", *REFERENCES, "IQL", "default", "less the best", "own policy", "less the best")
    return markdown_table(heads, rows)


def _with_error(gaps: Sequence[float], folds: Sequence[int]) -> str:
    """Mean of differences with its standard error, that of the folds' means."""
    error = standard_error(np.array(gaps), np.array(folds))
    return f"{np.mean(gaps):.3f}" + (f", standard error {error:.3f}" if math.isfinite(error) else "")


def _by_seed(results: Sequence[Mapping[str, Any]], name: str, fold: int, judged: str = "judged") -> dict[int, float]:
    own = [one for one in results if one["configuration_name"] == name and one["fold"] == fold]
    return {int(one["seed"]): float(one[judged]["sharpe"]) for one in own}
