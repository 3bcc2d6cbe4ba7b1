"""Distance of whole trainings from the optimum of synthetic markets over time, and that of other libraries.

Each seed has a sample of the market of its own. A training is evaluated on the validation window as it goes, which is
left out of its time, the processor's. Peers (Stable-Baselines3's SAC and sb3-contrib's TQC, in an
environment of their own) learn on the same training window from the same observations and rewards, and are stopped
after a multiple of the time that the whole of ours took.
"""

from __future__ import annotations

import fnmatch
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from finflow.config import Config, dump_config
from finflow.env.decision_process import DecisionProcess
from finflow.evaluation.analysis.decision_quality import score_runs
from finflow.evaluation.backtest import Backtest, run_backtests
from finflow.market.bar_frequency import BARS_PER_YEAR
from finflow.strategies.classical import named_strategy
from finflow.strategies.optimal_policy import optimum_of
from finflow.training.data.training_data import TrainingData, prepare
from finflow.training.phases.training_run import Validation
from scripts.evidence.results import Variant, ask_peer, grouped, kept_result, kept_results, train_both
from scripts.evidence.tables import markdown_table, mean_interval

GOAL = 0.95
TIMES = 2.0  # what a peer may take, in times of the whole of ours
MARKET = "regime"  # of those whose state has to be guessed from prices, the one with the fastest signal
LOOKS_EVERY = 60  # updates
ALGORITHMS = ("sac", "tqc")
MAPPING = "softmax"  # of an action onto the simplex
PREFIX = "optimality-"
HIDDEN = ("mean-reverting", "regime")  # kinds whose state has to be guessed from prices
Judge = Callable[[Backtest], float]


def followed(planted: Variant) -> Variant:
    """The default learner, without evidence out of fold, on a planted market; its validations make a curve."""
    keys = {**planted.overrides, "out_of_fold.blocks": 1, "train.validation_updates": LOOKS_EVERY}
    return replace(planted, name=PREFIX + MARKET, overrides=keys, measure=train_and_follow)


def judge_of(training_data: TrainingData, test: bool = False) -> Judge:
    """Score of a backtest of the validation or the test window; NaN where the optimum is no better than holding.

    Raises
    ------
    ConfigError
        If the market has no known optimum.
    """
    config = training_data.config
    process, window = window_of(training_data, test)
    best = optimum_of(config.market, config.env)
    names = ("equal-weight", "buy-and-hold")
    references = run_backtests(process, window, [best.policy, *(named_strategy(n, config.evaluation) for n in names)])

    def judge(run: Backtest) -> float:
        return float(score_runs(process, window, [run, *references], best).scores[run.name].score)

    return judge


def window_of(training_data: TrainingData, test: bool) -> tuple[DecisionProcess, range]:
    """The validation window, or the test window with the process that reaches it."""
    if test:
        return training_data.held_out_process(), training_data.split.test
    return training_data.process, training_data.split.validation


def traits(run: Backtest) -> dict[str, float]:
    """Turnover a year and the largest mean weight, in the second half of a backtest: what was bought first is over."""
    half = len(run.weights) // 2
    return {
        "turnover": float(run.turnover[half:].mean() * BARS_PER_YEAR),
        "largest_weight": float(run.weights[half:].mean(axis=0).max()),
    }


def train_and_follow(config: Config) -> dict[str, Any]:
    """Train in full: seconds and score at each look, and what the last policy does."""
    training_data = prepare(config)
    judge = judge_of(training_data)
    curve: list[tuple[float, float | None]] = []
    looking, last, began = 0.0, {}, time.process_time()

    def look(found: Validation) -> None:
        nonlocal looking, last
        now = time.process_time()
        value = judge(found.backtest)
        curve.append((round(now - began - looking, 1), None if math.isnan(value) else round(value, 4)))
        last = traits(found.backtest)
        looking += time.process_time() - now

    train_both(config, training_data=training_data, on_validation=look)
    seconds = round(time.process_time() - began - looking, 1)
    return {"market": config.market.synthetic.kind, "seconds": {"processor": seconds}, "curve": curve, **last}


def peers_on(
    own: Mapping[str, Any], config: Config, program: Sequence[str | Path], path: Path, limit: float
) -> list[dict[str, Any]]:
    """Each algorithm on the market of one of our results; kept as JSON, and resumed.

    Parameters
    ----------
    program : sequence of str
        An interpreter that has Stable-Baselines3, sb3-contrib and what finflow needs, and what it runs.
    limit : float
        Seconds of processor time that a peer may take.
    """
    results = []
    for algorithm in ALGORITHMS:
        name = f"{own['variant']}-{algorithm}-{MAPPING}-{own['seed']}"
        stamp = {"configuration": own["configuration"], "limit": limit}
        labels = {"market": own["market"], "algorithm": algorithm, "mapping": MAPPING, "seed": own["seed"]}
        measure = partial(_ask_peer, program, config, labels, limit)
        results.append(labels | kept_result(path, name, stamp, measure))
    return results


def kept_peers(path: Path) -> list[dict[str, Any]]:
    """Results of the peers that were trained before."""
    kept = kept_results(path)
    names = [f"{PREFIX}*-{algorithm}-{MAPPING}-*" for algorithm in ALGORITHMS]
    return [kept[one] for name in names for one in fnmatch.filter(kept, name)]


def _ask_peer(program: Sequence[str | Path], config: Config, labels: Mapping[str, Any], limit: float) -> dict[str, Any]:
    """Train a peer once."""
    with TemporaryDirectory() as folder:
        settings = Path(folder) / "config.yaml"
        settings.write_text(dump_config(config), "utf-8")
        return {**labels, **ask_peer((*program, settings, labels["algorithm"], labels["mapping"], str(limit)))}


def limit_of(own: Mapping[str, Any]) -> float:
    """Seconds that a peer may take: a multiple of the whole of ours."""
    return round(TIMES * float(own["seconds"]["processor"]), 1)


def seconds_to(curve: Sequence[Sequence[float | None]], goal: float) -> float | None:
    """Seconds until a score was first reached; None if it never was."""
    return next((float(seconds or 0.0) for seconds, score in curve if score is not None and score >= goal), None)


def optimality_table(results: Sequence[Mapping[str, Any]], peers: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown table: on each market ours, and each peer; over seeds."""
    heads = ("seeds", "score at the end", "best look", f"seconds to {GOAL}", "seconds", "turnover a year")
    rows = []
    for kind, trainings in grouped(results, "market").items():
        rows.append(_row(kind, "finflow", trainings))
        for algorithm in ALGORITHMS:
            own = [found for found in peers if (found["market"], found["algorithm"]) == (kind, algorithm)]
            if own:
                rows.append(_row(kind, f"{algorithm.upper()}, {MAPPING}", own))
    return markdown_table(("market", "", *heads, "largest weight"), rows)


def _row(kind: str, name: str, own: Sequence[Mapping[str, Any]]) -> list[str]:
    times = [seconds_to(found["curve"], GOAL) for found in own]
    reached = [one for one in times if one is not None]
    best = [max((score for _, score in found["curve"] if score is not None), default=math.nan) for found in own]
    return [
        kind,
        name,
        str(len(own)),
        mean_interval([_end(found) for found in own]),
        mean_interval(best),
        f"{np.mean(reached):.0f} ({len(reached)} of {len(own)})" if reached else f"never ({len(own)} tried)",
        f"{np.mean([found['seconds']['processor'] for found in own]):.0f}",
        f"{np.mean([found['turnover'] for found in own]):.1f}",
        f"{np.mean([found['largest_weight'] for found in own]):.2f}",
    ]


def _end(found: Mapping[str, Any]) -> float:
    score = found["curve"][-1][1]
    return math.nan if score is None else float(score)
