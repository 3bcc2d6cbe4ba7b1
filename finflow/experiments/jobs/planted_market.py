"""A training in a market with a planted signal, and one beside it in a market without any: the demo's first proof."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from finflow.config import Config, replace_values
from finflow.evaluation.backtest import BASELINE
from finflow.evaluation.page.drawing import plot_wealth, render
from finflow.experiments.task_progress import task_progress
from finflow.experiments.tasks import ComputeResources, Result, Task, run_tasks
from finflow.files import remove_empty, write_atomically
from finflow.json_text import parse_json
from finflow.market.bar_frequency import BARS_PER_YEAR
from finflow.strategies.optimal_policy import OPTIMAL
from finflow.training.judging.agent_strategy import AGENT
from finflow.training.judging.held_out import ledger_of
from finflow.training.trainer import FinFlowTrainer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PICTURE = "demo.png"
_LEAST_GAIN = 0.01
"""Growth a year by which the best policy must lead for a score: restoring equal weight rarely gains less."""


def train_markets(configs: Mapping[str, Config], folder: Path) -> tuple[list[str], list[Path]]:
    """Train in each market in a process and a folder of its own, and draw them; lines on each, and their reports."""
    first, tasks = next(iter(configs.values())), []
    for name, own in configs.items():
        places = {"output.logs_dir": folder / name, "output.readings": ledger_of(first)}
        tasks.append(Task(f"{name} market", _train, {"config": replace_values(own, places)}))
    try:
        resources = ComputeResources(len(tasks), None, first.train.threads, first.train.device)
        results = run_tasks(tasks, resources, kind="trainings")
    finally:
        remove_empty([folder])
    reports = [Path(result["report"]) for result in results]
    titles = [f"{task.name}: {_score(report)}" for task, report in zip(tasks, reports, strict=True)]
    write_atomically(folder / PICTURE, _picture(titles, reports))
    lines = [f"{title}. {result['said']}" for title, result in zip(titles, results, strict=True)]
    return [*lines, f"picture: {folder / PICTURE}"], reports


def _train(config: Config) -> Result:
    trainer = FinFlowTrainer(config, progress=task_progress())
    try:
        outcome = trainer.train()
        said, *_ = outcome.page.finding.text(outcome.page.document)
        return {"report": str(outcome.report), "said": said}
    finally:
        trainer.discard_if_unused()


def _score(report: Path) -> str:
    """Score of the agent on the test window, where the best policy leads by enough; else the evidence out of fold."""
    numbers: dict[str, Any] = parse_json(report.with_name("metrics.json").read_text("utf-8"))
    window, score = numbers["optimum"]["window"], numbers["optimum"]["scores"][numbers["agent"]]["score"]
    if score is not None and (window["optimum"] - window["baseline"]) * BARS_PER_YEAR >= _LEAST_GAIN:
        return f"score {score:.2f} of 1"
    evidence = numbers.get("out_of_fold")
    return "not tested" if evidence is None else f"{'something' if evidence['confidence'] else 'nothing'} was found"


def _picture(titles: Sequence[str], reports: Sequence[Path]) -> bytes:
    """Growth of 1 on the test window in each market, side by side: the agent, equal weight and the best policy."""

    def draw(figure: Figure) -> None:
        for axes, title, report in zip(figure.subplots(1, len(reports)), titles, reports, strict=True):
            table = pd.read_csv(report.with_name("returns.csv"), index_col="date")
            wealth = {name: (1.0 + table[name].to_numpy()).cumprod() for name in (AGENT, BASELINE, OPTIMAL)}
            plot_wealth(axes, table.index.to_numpy().astype("datetime64[D]"), wealth, AGENT)
            axes.set_title(title)
            axes.legend(loc="upper left")

    return render(draw, 3.4)
