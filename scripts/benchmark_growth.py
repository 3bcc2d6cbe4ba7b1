"""Growth of a training's cost with assets, years and portfolios: `python scripts/benchmark.py growth`.

Random walks of 20, 100 and 500 assets over 10 and 30 years, with the default configuration; and 1 to 16 portfolios
that learn together online. Every market is measured in a process of its own, so that its peak memory is its own.
Seconds are of one processor's time. The page docs/reference/growth.md is written anew, with the power of the assets by
which each grows.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from benchmark_tools import cached_copy_rate, gemm_rate, processor_name, random_walks, seconds_of, use_one_thread

from finflow.files import write_atomically

ASSETS, YEARS, PORTFOLIOS = (20, 100, 500), (10, 30), (1, 4, 16)
DEFAULT_PORTFOLIOS = PORTFOLIOS[-1]
BARS_PER_YEAR = 252
WINDOWS = {"train": 0.65, "validation": 0.8}  # ends, as shares of the years
WARM, TIMED = 2, 5  # updates
EPISODES = 12  # of behaviour data that are collected
PAGE = Path(__file__).parents[1] / "docs" / "reference" / "growth.md"


class Case(NamedTuple):
    """A market, and how many portfolios each learner has online."""

    assets: int
    years: int
    portfolios: int


#: Figure -> its heading.
FIGURES = {
    "features": "prices and features, s",
    "behaviour": "an episode of behaviour data, s",
    "offline": "offline update, ms",
    "mirrors": "predictions of mirrored bars, s",
    "online": "online update, ms",
    "step": "step of the portfolios, ms",
    "memory": "peak memory, MiB",
}
MILLISECONDS = ("offline", "online", "step")


def cases() -> list[Case]:
    """Markets with the default's portfolios, then other numbers of portfolios in one of them."""
    markets = [Case(assets, years, DEFAULT_PORTFOLIOS) for years in YEARS for assets in ASSETS]
    return [*markets, *(Case(ASSETS[0], YEARS[-1], count) for count in PORTFOLIOS[:-1])]


def write_walks(case: Case, path: Path) -> dict[str, object]:
    """Write closes of random walks as a Parquet file, and return the keys of configuration that read it."""
    close = random_walks(np.random.default_rng(0), case.years * BARS_PER_YEAR, case.assets)
    dates = pd.bdate_range("1990-01-02", periods=len(close), name="date")
    pd.DataFrame(close, index=dates, columns=[f"A{column}" for column in range(case.assets)]).to_parquet(path)
    ends = {f"market.{name}_end": str(dates[int(share * len(dates))].date()) for name, share in WINDOWS.items()}
    return {"market.source": "parquet", "market.path": str(path), **ends}


def update_seconds(update: Callable[[], object]) -> float:
    """Median seconds of an update, after a few that warm up."""
    for _ in range(WARM):
        update()
    return statistics.median(seconds_of(update).processor for _ in range(TIMED))


def measure_case(case: Case) -> dict[str, float]:
    """Figures of one case, measured in this process."""
    from benchmark_learners import our_iql
    from benchmark_training import online_phase

    from finflow.config import load_config
    from finflow.training.data.training_data import prepare
    from finflow.training.off_policy import learners

    use_one_thread()  # what would run on another core is counted too
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="finflow-growth-") as name:
        folder = Path(name)
        keys = {
            **write_walks(case, folder / "walks.parquet"),
            "train.offline_episodes": EPISODES,
            "train.n_envs": case.portfolios,
        }
        config = load_config(None, keys, environ={})
        began = time.process_time()
        training_data = prepare(config)
        found["features"] = time.process_time() - began
        began = time.process_time()
        ours = our_iql(training_data)
        found["behaviour"] = (time.process_time() - began) / EPISODES
        found["offline"] = update_seconds(lambda: ours.update(ours.draw()))
        module: Any = learners
        original = module.predicted_returns

        def timed(*arguments: object) -> object:
            began = time.process_time()
            try:
                return original(*arguments)
            finally:
                found["mirrors"] = found.get("mirrors", 0.0) + time.process_time() - began

        module.predicted_returns = timed
        phase = online_phase(config, folder, keys)
        found["online"], found["step"] = update_seconds(phase._update), update_seconds(phase.work.step)
    unit = 2**20 if sys.platform == "darwin" else 2**10
    found["memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
    return found


def measure_in_process(case: Case) -> dict[str, float]:
    """Figures of one case, measured in a new process."""
    command = [sys.executable, str(Path(__file__)), *(str(number) for number in case)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise RuntimeError(f"{case} failed: {ended.stderr.strip().splitlines()[-1]}")
    found: dict[str, float] = json.loads(ended.stdout.splitlines()[-1])
    return found


def growth_power(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """Power of the size that a cost grows by from the second largest size to the largest: 1 is in proportion."""
    return math.log(costs[-1] / costs[-2]) / math.log(sizes[-1] / sizes[-2])


def growth_table(found: Mapping[Case, Mapping[str, float]]) -> str:
    """Markdown: a row a case, and the powers of the assets that costs grow by over the years that were measured."""
    lines = ["| assets | years | portfolios | " + " | ".join(FIGURES.values()) + " |"]
    lines.append("|" + "---|" * (3 + len(FIGURES)))
    for case, figures in found.items():
        shown = [_shown(name, figures[name]) for name in FIGURES]
        lines.append(f"| {case.assets} | {case.years} | {case.portfolios} | " + " | ".join(shown) + " |")
    for years in sorted({case.years for case in found}):
        own = [case for case in found if case.years == years and case.portfolios == DEFAULT_PORTFOLIOS]
        if len(own) > 1:
            sizes = [float(case.assets) for case in own]
            powers = [f"{growth_power(sizes, [found[case][name] for case in own]):.2f}" for name in FIGURES]
            lines.append(f"| power of assets | {years} | {DEFAULT_PORTFOLIOS} | " + " | ".join(powers) + " |")
    return "\n".join(lines) + "\n"


def _shown(name: str, value: float) -> str:
    if name == "memory":
        return f"{value:,.0f}"
    return f"{1e3 * value:.0f}" if name in MILLISECONDS else f"{value:.2f}"


def benchmark_growth(_: argparse.Namespace) -> None:
    """Measure every case, and write the page."""
    found: dict[Case, dict[str, float]] = {}
    for case in cases():
        found[case] = measure_in_process(case)
        print(growth_table({case: found[case]}).splitlines()[2], flush=True)
    machine = (
        f"{processor_name()}, one thread: matrix products {gemm_rate() / 1e9:.0f} GFLOP/s, copies in the caches "
        f"{cached_copy_rate() / 1e9:.0f} GB/s"
    )
    write_atomically(PAGE, _page(machine, growth_table(found)))


def _page(machine: str, table: str) -> str:
    """The page, as Markdown."""
    return f"""# How the cost of a training grows

<!-- Generated by `python scripts/benchmark.py growth`: do not edit. -->

Random walks with the default configuration, every market in a process of its own; {machine}.
Seconds of processor time, on one core. A training makes some thousand offline updates and about a thousand online ones,
each of them for the agent's learner and those of the four blocks of years; predictions are made once. The last rows are
the power of the
number of assets by which a cost grows from {ASSETS[-2]} to {ASSETS[-1]} of them: 1 is in proportion.

{table}
Where a cost grows, and why:

- **Features** are computed per asset; their ranks, market-wide means and correlations read all assets of a bar once.
- **Updates** read every asset of every state: encoders in proportion to the assets, and heads that do not depend on
  their number. With hundreds of assets the intermediate results no longer fit into the caches, so that an update grows
  faster than in proportion, and more where other programs share the memory. Batches have a fixed number of decisions:
  years cost nothing but caches.
- **Predictions of mirrored bars** read every bar of every asset once for the fit and once for the prediction, for the
  agent's learner and for each block's: in proportion to assets times years.
- **Memory** is mostly intermediate results of an update, kept for its gradient: decisions of a batch times assets times
  widths; beside them torch itself, and the features, four bytes for each bar, asset and feature.
- **Portfolios** are read in a step of 16 decisions: one more costs its own. Updates do not depend on their number.
"""


if __name__ == "__main__":
    print(json.dumps(measure_case(Case(*(int(one) for one in sys.argv[1:4])))))
