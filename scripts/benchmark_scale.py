"""Time and memory by assets and bars: `python scripts/benchmark.py scale [--row NAME]`, docs/reference/scale.md."""

from __future__ import annotations

import argparse
import math
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
from benchmark_tools import machine
from benchmark_training import PAGE as SPEED, TEXT as SPEED_TEXT, Spent, parts_timed

from finflow.config import Config, load_config
from finflow.cores import available_cores
from finflow.errors import ConfigError, FinflowError
from finflow.files import write_atomically
from finflow.training.off_policy.learners import online_updates, vector_steps
from finflow.training.phases.pretrain import Epochs
from finflow.training.trainer import FinFlowTrainer
from scripts.evidence.results import kept_results, places_in, write_result
from scripts.evidence.tables import markdown_table

ROOT, PAGE = SPEED.parents[2], SPEED.with_name("scale.md")
RESULTS, TEXT = ROOT / "docs/evidence/results/scale.json", SPEED_TEXT.with_name("scale.md")
UPDATES, WARM_UP = 8, 20_000  # updates of a learner and phase; decisions before those online, which fill the replays
SAMPLED = 2.0  # seconds between two looks at memory
DAILY = ((20, 10), (100, 10), (500, 10), (20, 60), (500, 30))
#: Name -> assets, years, bars a year, their spacing, and the file of keys.
ROWS = {f"{assets} x {years}": (assets, years, 252, "B", "default") for assets, years in DAILY}
ROWS |= {"weekly": (20, 60, 52, "W-FRI", "weekly"), "monthly": (20, 60, 12, "BME", "monthly")}
ROWS |= {"quarterly": (20, 60, 4, "BQE", "monthly")}
GROWTH = (("20 x 10", "100 x 10"), ("100 x 10", "500 x 10"), ("20 x 10", "20 x 60"), ("500 x 10", "500 x 30"))
OFFLINE, RETURNS, FITTED_Q = "OfflineLearning.update", "behaviour_returns", "fitted_q_value"
STEP, UPDATE = "_OnlinePhase._step", "_OnlinePhase._update"
CHECK, SAVE, JUDGE = "TrainingRun.validate", "TrainingRun.checkpoint", "judge_agents"
PARTS = {name: f"finflow.training.trainer:{name}" for name in ("prepare", JUDGE)}
PARTS |= {name: f"finflow.training.phases.pretrain:{name}" for name in (OFFLINE, RETURNS, FITTED_Q)}
PARTS |= {name: f"finflow.training.phases.finetune:{name}" for name in (STEP, UPDATE)}
PARTS |= {name: f"finflow.training.phases.training_run:{name}" for name in (CHECK, SAVE)}
FIGURES = {"prepare": "prices and features, s", OFFLINE: "offline update, s", "online": "online update, s"}
FIGURES |= {JUDGE: "evaluation, s", "training": "training, min", "memory": "memory, GB"}


def configuration(folder: Path, assets: int, years: int, per_year: int, spacing: str, keys: str) -> Config:
    """Keys of a training on geometric random walks, written to a file: volatility 0.16 a year in common, 0.25 alone."""
    rng, bars, path = np.random.default_rng(assets), years * per_year, folder / "prices.csv"
    dates = pd.date_range(end="2022-12-30", periods=bars, freq=spacing, name="Date")
    common = rng.normal(0.06 / per_year, 0.16 / math.sqrt(per_year), (bars, 1))
    moves = common + rng.normal(0.0, 0.25 / math.sqrt(per_year), (bars, assets))
    prices = pd.DataFrame(100.0 * np.exp(moves.cumsum(axis=0)), dates, [f"A{number}" for number in range(assets)])
    prices.to_csv(path, float_format="%.6g")
    changes: dict[str, object] = {"market.source": "csv", "market.path": str(path), **places_in(folder)}
    changes |= {"market.train_end": str(dates[bars * 2 // 3].date())}
    changes |= {"market.validation_end": str(dates[bars * 4 // 5].date())}
    return load_config(ROOT / "configs" / f"{keys}.yaml", changes, environ={})


def whole_calls(config: Config) -> dict[str, float]:
    """Calls of each part in the first process of a training whose offline phase ends as early as it can."""
    train, updates, cores = config.train, online_updates(config), min(available_cores(), 2)
    own = train.validation_updates + config.offline.patience
    epoch = train.offline_episodes * config.env.episode_length / train.offline_batch_size
    blocks = config.fold_epochs * (config.out_of_fold.blocks - 1)  # epochs, as if of all training years
    calls = {OFFLINE: (own + blocks * epoch) / cores, RETURNS: (own / epoch + blocks) / cores}
    steps = vector_steps(config, train.warmup_episodes) + vector_steps(config, train.online_episodes)
    calls |= {STEP: steps, UPDATE: updates}
    calls |= {CHECK: 2 + (own + updates) // train.validation_updates}
    calls |= {SAVE: 2 + train.online_episodes // train.checkpoint_interval}
    return {**calls, FITTED_Q: config.offline.evaluation_updates / UPDATES}


def held() -> float:
    """GB that this process and those that it began hold, pages that they share once."""
    total, left = 0, [os.getpid()]
    while left:
        place = Path(f"/proc/{left.pop()}")
        with suppress(OSError):  # it has ended
            total += sum(map(int, re.findall(r"^Pss: +(\d+)", (place / "smaps_rollup").read_text(), re.MULTILINE)))
            left += [int(one) for thread in place.glob("task/*/children") for one in thread.read_text().split()]
    return total * 1024 / 1e9


@contextmanager
def most_held() -> Iterator[list[float]]:
    """The most that is held, in a list of one, while the block runs."""
    found, ended = [held()], threading.Event()

    def watch() -> None:
        while not ended.wait(SAMPLED):
            found[0] = max(found[0], held())

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield found
    finally:
        ended.set()
        watching.join()


def measured(config: Config) -> dict[str, Any]:
    """Seconds of parts, minutes of a whole training, projected from a short one, and its GB; or why there is none."""
    spent, began, length = Spent(), time.process_time(), config.env.episode_length
    online = UPDATES * config.train.n_envs * config.bcell.expansion
    short: dict[str, object] = {"train.online_episodes": online // length, "train.warmup_episodes": WARM_UP // length}
    short |= {"offline.evaluation_updates": UPDATES, "evaluation.sweeps": False}
    few = patch.object(Epochs, "total", property(lambda _: UPDATES, lambda *_: None), create=True)
    now = patch("benchmark_training._now", lambda: (time.perf_counter(), time.process_time()))
    try:
        with parts_timed(spent, PARTS), few, now, most_held() as memory:
            FinFlowTrainer(load_config(None, short, {}, base=config)).train()
    except FinflowError as error:
        return {"machine": machine(), "refused": str(error)}
    whole, one = time.process_time() - began, {name: spent.processor[name] / spent.calls[name] for name in PARTS}
    whole += spent.clock[JUDGE] - one[JUDGE]  # which waits for a process that fits the classical portfolios
    one[JUDGE] = spent.clock[JUDGE]
    whole += sum((calls - spent.calls[name]) * one[name] for name, calls in whole_calls(config).items())
    one |= {"online": one[STEP] + one[UPDATE], "training": whole / 60.0, "memory": memory[0]}
    return {"machine": machine(), **{name: float(f"{value:.2g}") for name, value in one.items()}}


def page(results: Mapping[str, Mapping[str, Any]]) -> str:
    """The page of results of rows, as Markdown."""
    rows, powers = [], []
    sizes = {name: (assets, years * per_year) for name, (assets, years, per_year, *_) in ROWS.items()}
    for name, (assets, bars) in sizes.items():
        found = results.get(name, {"refused": "not measured"})
        figures = [found.get(key, "-") for key in FIGURES]
        rows.append((name, assets, f"{bars:,}", *figures, found.get("refused", "-")))
    for first, second in [pair for pair in GROWTH if results.keys() >= set(pair)]:
        size = math.log(math.prod(sizes[second]) / math.prod(sizes[first]))
        grown = [math.log(results[second][key] / results[first][key]) / size for key in FIGURES]
        powers.append((f"{first} to {second}", *(f"{power:.1f}" for power in grown)))
    tables = {"sizes": markdown_table(("market", "assets", "bars", *FIGURES.values(), "refused"), rows)}
    tables |= {"powers": markdown_table(("growth", *FIGURES.values()), powers)}
    measured_on = "; ".join(sorted({one["machine"] for one in results.values()}))
    return TEXT.read_text("utf-8").format(machine=measured_on, updates=UPDATES, **tables).rstrip() + "\n"


def benchmark_scale(given: argparse.Namespace) -> None:
    """Measure a row in this process, or each in one of its own, and write the page."""
    if given.row not in {None, *ROWS}:
        raise ConfigError(f"--row {given.row}: there is no such row; take one of {', '.join(ROWS)}")
    if not held():
        raise ConfigError("memory is read in /proc/PID/smaps_rollup, which this system lacks: measure on Linux")
    for name in ROWS if given.row is None else ():
        subprocess.run([sys.executable, *sys.argv, "--row", name], check=True)
    if given.row is not None:
        with tempfile.TemporaryDirectory(prefix="finflow-scale-") as folder:
            write_result(RESULTS, given.row, measured(configuration(Path(folder), *ROWS[given.row])))
        write_atomically(PAGE, page(kept_results(RESULTS)))
