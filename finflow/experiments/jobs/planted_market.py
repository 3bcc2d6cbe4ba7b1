"""A training in a market with a planted signal, and one beside it in a market without any.

Each has a process and a folder of its own; both count their readings in one ledger. What is said of them is read from
the numbers of their reports.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from finflow.config import Config, replace_values
from finflow.evaluation.page.drawing import draw_wealth, render
from finflow.experiments.task_progress import task_progress
from finflow.experiments.tasks import ComputeResources, Result, Task, run_tasks
from finflow.files import write_atomically
from finflow.json_text import parse_json
from finflow.market.bar_frequency import BARS_PER_YEAR
from finflow.training.judging.held_out import ledger_of
from finflow.training.trainer import FinFlowTrainer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PICTURE = "demo.png"
_LEAST_GAIN = 0.01
"""Growth a year by which the best policy must lead for a score: restoring equal weight rarely gains less."""
_DRAWN = ("finflow", "equal-weight", "optimal")


def train_markets(configs: Mapping[str, Config], folder: Path) -> list[str]:
    """Train in each market at the same time, draw what came of it, and say it in lines; by name of the market."""
    first = next(iter(configs.values()))
    tasks = []
    for name, config in configs.items():
        places = {"output.logs_dir": folder / name, "output.readings": ledger_of(config)}
        tasks.append(Task(f"{name} market", _train, {"config": replace_values(config, places)}))
    resources = ComputeResources(len(tasks), None, first.train.threads, first.train.device)
    results = run_tasks(tasks, resources, kind="trainings")
    reports = {task.name: Path(result["report"]) for task, result in zip(tasks, results, strict=True)}
    numbers = {name: parse_json(path.with_name("metrics.json").read_text("utf-8")) for name, path in reports.items()}
    found = {name: _finding(of_market) for name, of_market in numbers.items()}
    titles = {f"{name}: {short}": reports[name] for name, (short, _) in found.items()}
    write_atomically(folder / PICTURE, _picture(titles))
    lines = [f"{name}: {short}: {why}" for name, (short, why) in found.items()]
    return [*lines, *(f"report of the {name}: {path}" for name, path in reports.items())]


def _train(config: Config) -> Result:
    trainer = FinFlowTrainer(config, progress=task_progress())
    try:
        return {"report": str(trainer.train().report)}
    finally:
        trainer.discard_if_unused()


def _finding(numbers: Mapping[str, Any]) -> tuple[str, str]:
    """Result of a training in a few words, and what they rest on."""
    optimum, evidence = numbers["optimum"], numbers.get("out_of_fold")
    window, score = optimum["window"], optimum["scores"][numbers["agent"]]["score"]
    gain, baseline = (window["optimum"] - window["baseline"]) * BARS_PER_YEAR, window["baseline_name"].replace("-", " ")
    best = f"the best policy gains {gain:.1%} of log growth a year over {baseline}"
    if evidence is None:
        short, found = "not tested", "it trades its own policy, untested out of sample"
    elif evidence["confidence"]:
        short, found = (
            "something was found",
            f"it trades its own policy at a confidence of {evidence['confidence']:.0%}",
        )
    else:
        short = "nothing was found"
        found = f"nothing was found that holds out of sample; it holds {evidence['reference'].replace('-', ' ')}"
    if score is not None and gain >= _LEAST_GAIN:
        return f"score {score:.2f} of 1", f"{found}; {best}: that is 1, and {baseline} 0"
    return short, f"{found}; {best}"


def _picture(reports: Mapping[str, Path]) -> bytes:
    """Growth of 1 on the test window in each market, side by side: the agent, equal weight and the best policy."""
    tables = [pd.read_csv(path.with_name("returns.csv"), index_col="date") for path in reports.values()]

    def draw(figure: Figure) -> None:
        for axes, name, table in zip(figure.subplots(1, len(tables)), reports, tables, strict=True):
            wealth = (1.0 + table[list(_DRAWN)]).cumprod()
            dates = table.index.to_numpy().astype("datetime64[D]")
            draw_wealth(axes, dates, {label: wealth[label].to_numpy() for label in _DRAWN}, _DRAWN[0])
            axes.set_title(name)
            axes.legend(loc="upper left")

    return render(draw, 3.4)
