"""Evidence about the hand-over from the offline to the online phase: does the policy dip, and where does it end?

Each seed is pretrained once. From that checkpoint it is fine-tuned in full, and again for the first fifth alone with
one device of the hand-over left out: Cal-QL's calibration, the warm-up (collected transitions, then critics alone),
or the anchor with the slow rise of the policy's rate. On synthetic markets a policy is
judged by its score (docs/reference/synthetic.md), each seed on a sample of its own; on the embedded one by its Sharpe
ratio. All on the validation window.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from finflow.config import Config, changed_config
from finflow.evaluation.statistics.metrics import sharpe
from finflow.guard.checkpoint_folder import LATEST, MODELS, CheckpointFolder
from finflow.training.checkpoints.checkpoint_reader import ONLINE
from finflow.training.data.training_data import TrainingData, prepare
from finflow.training.off_policy.learners import online_updates
from finflow.training.phases.training_run import Validation
from finflow.training.trainer import FinFlowTrainer
from scripts.evidence.generalisation import REDUCED
from scripts.evidence.optimality import FIRST_SAMPLE, ONLINE_LEARNING, SHOWN, Judge, judge_of
from scripts.evidence.planted_signals import LEARNING, OWN
from scripts.evidence.results import Variant, grouped
from scripts.evidence.tables import markdown_table, mean_interval

FIRST = 0.2  # share of the fine-tuning that is evaluated often
LOOKS = 21  # evaluations in it
DEVICES: dict[str, dict[str, object]] = {
    "all devices": {},
    "without calibration": {"bcell.calibration": "none"},
    "without warm-up": {"train.warmup_episodes": 0, "train.critic_only_updates": 0},
    "without anchor": {"bcell.anchor.weight": 0.0, "bcell.anchor.final": None, "train.actor_ramp_updates": 0},
}
EMBEDDED: dict[str, object] = {**REDUCED, "train.online_episodes": 100, "train.validation_updates": 1}
MARKETS: dict[str, dict[str, object]] = {
    "embedded": EMBEDDED,
    **{
        kind: {
            **LEARNING,
            **OWN.get(kind, {}),
            **ONLINE_LEARNING,
            **SHOWN,
            "market.source": "synthetic",
            "market.synthetic.kind": kind,
        }
        for kind in ("lognormal", "regime")
    },
}


def hand_over_variants(seeds: int, markets: Sequence[str] = tuple(MARKETS)) -> list[Variant]:
    """Each market with each seed; a synthetic market has another sample for each."""
    return [
        Variant(
            f"hand-over-{market}",
            seeds=(seed,),
            overrides={
                **MARKETS[market],
                **({} if market == "embedded" else {"market.synthetic.seed": FIRST_SAMPLE + seed}),
            },
            measure=pretrain_and_branch,
        )
        for market in markets
        for seed in range(seeds)
    ]


def pretrain_and_branch(config: Config) -> dict[str, Any]:
    """Pretrain, and fine-tune from there in every way of `DEVICES`; the policy's value at each evaluation."""
    began = time.process_time()
    training_data = prepare(config)
    judge, unit = _judge(training_data)
    trainer = FinFlowTrainer(config, training_data=training_data)
    trainer.train_iql()
    start = CheckpointFolder(trainer.run_folder / MODELS).path(LATEST)
    curves: dict[str, list[list[float]]] = {}
    for name, overrides in DEVICES.items():
        curves[name] = _fine_tuned(changed_config(config, overrides), start, training_data, judge, whole=not overrides)
    return {
        "market": config.market.source if config.market.source == "embedded" else config.market.synthetic.kind,
        "unit": unit,
        "seconds": {"processor": round(time.process_time() - began, 1)},
        "curves": curves,
    }


class _Enough(Exception):
    """The first part of a fine-tuning is over."""


def _fine_tuned(
    config: Config, start: Path, training_data: TrainingData, judge: Judge, whole: bool
) -> list[list[float]]:
    """Updates and value at each evaluation of a fine-tuning from a pretrained checkpoint."""
    total = online_updates(config)
    curve: list[list[float]] = []

    def look(found: Validation) -> None:
        if found.phase != ONLINE:
            return
        first = found.phase_update <= FIRST * total
        if first or not curve or found.phase_update - curve[-1][0] >= 0.05 * total or found.phase_update == total:
            curve.append([found.phase_update, round(judge(found.backtest), 5)])
        if not first and not whole:
            raise _Enough

    trainer = FinFlowTrainer(config, pretrained=start, training_data=training_data, on_validation=look)
    try:
        trainer.finetune()
    except _Enough:
        return curve[: 1 + sum(update <= FIRST * total for update, _ in curve[1:])]
    return curve


def _judge(training_data: TrainingData) -> tuple[Judge, str]:
    """Measure of a backtest of the validation window, and its name."""
    if training_data.config.market.source == "embedded":
        return lambda run: sharpe(run.returns, run.cash_returns), "Sharpe ratio"
    return judge_of(training_data), "score"


def deepest_fall(curve: Sequence[Sequence[float]], last: float) -> float:
    """Largest fall of the measure below its first value up to an update; zero or more."""
    first = curve[0][1]
    return max(0.0, *(first - value for update, value in curve if update <= last))


def hand_over_table(results: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown table: a row for each market and device, over seeds."""
    heads = ("pretrained", "deepest fall in the first fifth", "within the limit", "to the end", "end", "gap closed")
    rows = []
    for market, own in grouped(results, "market").items():
        whole = own[0]["curves"]["all devices"][-1][0]
        for name in own[0]["curves"]:
            if name not in DEVICES:
                continue
            curves = [found["curves"][name] for found in own]
            begun = np.array([curve[0][1] for curve in curves])
            falls = np.array([deepest_fall(curve, FIRST * whole) for curve in curves])
            limits = np.full(len(own), 0.1) if own[0]["unit"] == "Sharpe ratio" else 0.1 * np.abs(1.0 - begun)
            cells = [mean_interval(begun), f"{falls.mean():.3f} (at most {falls.max():.3f})"]
            cells.append(f"{int((falls <= limits).sum())} of {len(own)}")
            ends = np.array([curve[-1][1] for curve in curves])
            ended = name == "all devices"
            later = np.array([deepest_fall(curve, whole) for curve in curves])
            cells.append(f"{later.mean():.3f} (at most {later.max():.3f})" if ended else "")
            cells.append(mean_interval(ends) if ended else "")
            closed = (ends - begun) / np.where(begun < 1.0, 1.0 - begun, np.nan)
            cells.append(mean_interval(closed) if ended and own[0]["unit"] == "score" else "")
            rows.append([market, name, own[0]["unit"], *cells])
    return markdown_table(("market", "fine-tuning", "unit", *heads), rows)
