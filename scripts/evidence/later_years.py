"""Evidence about later years: a walk-forward on the embedded stocks, each agent judged on years after its own.

All of them lie within the training and validation windows of the default configuration: the test window is not read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from finflow.agent.learners.bcell import BCell
from finflow.arrays import FloatArray, IntArray
from finflow.config import Config
from finflow.evaluation.backtest import run_backtests
from finflow.evaluation.statistics.metrics import sharpe_of
from finflow.experiments.jobs.independent_trainings import train_all
from finflow.experiments.jobs.protocols import make_protocol_job
from finflow.guard.checkpoint_folder import MODELS, PRETRAINED
from finflow.strategies.classical import named_strategy
from finflow.training.checkpoints.checkpoint_reader import read_checkpoint
from finflow.training.checkpoints.run_folder import run_folder_of
from finflow.training.data.training_data import choose_device, process_on
from finflow.training.judging.agent_strategy import AgentStrategy
from finflow.training.logs.run_log import METRICS
from scripts.evidence.results import Result, Variant, grouped
from scripts.evidence.rollouts import REDUCED, SHORTER_OFFLINE
from scripts.evidence.tables import markdown_table, mean_interval

PREFIX = "later-years"
FOLDS = 3
RULES = ("equal-weight", "inverse-volatility")
LEARNED = {"hand-over": "IQL", "own": "own policy", "delivered": "default"}
"""Policies of one training: what IQL learned, what was learned online from there, and that by its confidence."""


def later_years_variants(seeds: int) -> list[Variant]:
    """The default, trained for each fold; the size of null markets' trainings."""
    size = {**SHORTER_OFFLINE, **REDUCED, "evaluation.protocol.folds": FOLDS}
    folds = range(1, FOLDS + 1)
    return [Variant(f"{PREFIX}-fold-{fold}", range(seeds), size, measure=partial(judge_fold, fold)) for fold in folds]


def judge_fold(fold: int, config: Config) -> dict[str, Any]:
    """Train one fold; Sharpe ratios, on its later years, of what was learned and of rules that learn nothing."""
    plan = make_protocol_job(config, "walk-forward", config.output.logs_dir / PREFIX)
    cut, seed = plan.folds[fold - 1], config.train.seed
    training = plan.fold_training(cut, seed)
    (path,) = train_all([training], {training.market: plan.panel})
    folder, device = run_folder_of(path), choose_device(config.train.device)
    process = process_on(training.training_data(plan.panel), plan.panel)
    checkpoints = {"hand-over": folder / MODELS / f"{PRETRAINED}.safetensors", "delivered": path}
    policies = {name: read_checkpoint(one).agent.policy(device) for name, one in checkpoints.items()}
    policies["own"] = BCell.load(path, str(device)).policy
    strategies = [*(named_strategy(name, config.evaluation) for name in RULES)]
    agents = [AgentStrategy(policies[name], device, name) for name in LEARNED]
    runs = run_backtests(process, cut.tests[0], [*strategies, *agents])
    last = pd.read_json(folder / METRICS, lines=True).ffill().iloc[-1]
    return {
        "fold": fold,
        "window": [str(runs[0].dates[0]), str(runs[0].dates[-1])],
        **{name: sharpe_of(run) for name, run in zip((*RULES, *LEARNED), runs, strict=True)},
        **{name: float(last[name]) for name in ("confidence", "out_of_fold_t") if name in last},
    }


def later_years_table(results: Sequence[Result]) -> str:
    """A Markdown table: Sharpe ratios on each fold's later years, and differences to what learns nothing online."""
    if not results:
        return ""
    rows: list[list[object]] = []
    for fold, own in sorted(grouped(results, "fold").items()):
        values = [mean_interval([one[name] for one in own]) for name in (*RULES, *LEARNED)]
        row = [fold, " to ".join(own[0]["window"]), len(own), *values]
        for name, form in (("confidence", "{:.2f}"), ("out_of_fold_t", "{:.1f}")):
            row.append(", ".join(form.format(one[name]) for one in own if name in one) or "-")
        rows.append(row)
    folds = np.array([one["fold"] for one in results])
    for name in ("delivered", "own"):
        gaps = [_less(results, name, other, folds) for other in (*RULES, "hand-over")]
        rows.append([f"{LEARNED[name]} less each", "", len(results), *gaps, "", "", "", ""])
    heads = ("fold", "years", "trainings", *RULES, *LEARNED.values(), "confidence", "t out of fold")
    return markdown_table(heads, rows)


def _less(results: Sequence[Mapping[str, Any]], name: str, other: str, folds: IntArray) -> str:
    """Mean difference of Sharpe ratios with its standard error."""
    gaps = np.array([one[name] - one[other] for one in results])
    return f"{gaps.mean():.3f}, standard error {standard_error(gaps, folds):.3f}"


def standard_error(values: FloatArray, groups: IntArray) -> float:
    """Standard error of a mean whose values come in groups, the larger of that of values and that of groups' means.

    Seeds of a fold share its window, and are no independent evidence about other windows.
    """
    if len(values) < 2:
        return math.nan
    single = float(values.std(ddof=1)) / math.sqrt(len(values))
    means = np.array([values[groups == group].mean() for group in np.unique(groups)])
    return max(single, float(means.std(ddof=1)) / math.sqrt(len(means)) if len(means) > 1 else 0.0)
