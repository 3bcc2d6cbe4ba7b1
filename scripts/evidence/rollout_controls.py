"""Controls of the evidence on online learning: other settings of it, and later years."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scripts.evidence.generalisation import CLASSICAL, standard_error, walk_forward_variants
from scripts.evidence.optimality import SHOWN
from scripts.evidence.results import OFFLINE_ALONE, Variant, by_seed
from scripts.evidence.rollouts import PLANTED, PREFIX, RANDOM, SHORTER_OFFLINE, codes_of, planted_variants
from scripts.evidence.tables import markdown_table, mean_interval

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
REFERENCES = ("equal-weight", "inverse-volatility")
FOLDS = 3
DEFAULT, OFFLINE = "default", "offline"
LATER_YEARS: dict[str, dict[str, object]] = {DEFAULT: {}, OFFLINE: {**OFFLINE_ALONE, "train.online_episodes": 0}}


def control_variants(samples: int) -> list[Variant]:
    """Two planted markets, one with fast and one with slow signals, with the keys of each control.

    From IQL's and from random weights all planted markets are learned in.
    """
    return [
        Variant(f"{one.name}-{_file_name(name)}", one.seeds, {**one.overrides, **ALONE, **keys}, measure=one.measure)
        for name, keys in {**CONTROLS, **SEEDING}.items()
        for one in planted_variants(samples)
        if one.name.removeprefix(PREFIX) in MARKETS[name]
    ]


def _file_name(control: str) -> str:
    """A control as part of a file's name."""
    return control.replace(" ", "-").lower()


def control_table(results: Sequence[Mapping[str, Any]], default: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown table: scores of the policies that were learned, by the default and each control, sample by sample."""
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
    """A Markdown table: own policies that began from IQL's weights and from random ones, sample by sample."""
    rows = []
    for kind in PLANTED:
        by_sample = [by_seed(results, variant=f"{PREFIX}{kind}-{_file_name(name)}") for name in SEEDING]
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


def later_years_variants(seeds: int) -> list[Variant]:
    """The default, and its offline phase alone, trained for each fold of a walk-forward; the classical strategies."""
    size = {**SHORTER_OFFLINE, "evaluation.protocol.folds": FOLDS}
    return walk_forward_variants(seeds, LATER_YEARS, size, "later-years")


def later_years_table(results: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown table: Sharpe ratios on each fold's later years, and those less the best of the others.

    They are those of the default, and of the policy that it learned, alone.
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
    own = by_seed(results, configuration_name=name, fold=fold)
    return {seed: float(one[judged]["sharpe"]) for seed, one in own.items()}
