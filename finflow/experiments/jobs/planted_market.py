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
from finflow.training.judging.held_out import ledger_of
from finflow.training.trainer import FinFlowTrainer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PICTURE = "demo.png"
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
    write_atomically(folder / PICTURE, _picture(reports))
    found = [f"{name}: {_finding(parse_json(_beside(path, 'metrics.json')))}" for name, path in reports.items()]
    return [*found, *(f"report of the {name}: {path}" for name, path in reports.items())]


def _train(config: Config) -> Result:
    trainer = FinFlowTrainer(config, progress=task_progress())
    try:
        return {"report": str(trainer.train().report)}
    finally:
        trainer.discard_if_unused()


def _beside(report: Path, name: str) -> str:
    return report.with_name(name).read_text("utf-8")


def _finding(numbers: Mapping[str, Any]) -> str:
    """Score of an agent and what it trades, in words."""
    score, evidence = numbers["optimum"]["scores"][numbers["agent"]]["score"], numbers.get("out_of_fold")
    baseline = numbers["optimum"]["window"]["baseline_name"].replace("-", " ")
    scored = f"score {score:.2f} of 1 (1 is the best policy, 0 {baseline})" if score is not None else ""
    if evidence is None:
        acts = "it trades its own policy, without evidence out of sample"
    elif evidence["confidence"] == 0.0:
        acts = f"nothing was found that holds out of sample; it holds {evidence['reference'].replace('-', ' ')}"
    else:
        acts = f"a signal was found; it trades its own policy at a confidence of {evidence['confidence']:.0%}"
    return f"{scored}; {acts}" if scored else f"{acts} (no score: no policy is better than {baseline})"


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
