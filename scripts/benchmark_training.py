"""Seconds of a default training, by phase and by operation: `python scripts/benchmark.py training`.

One training with the default configuration on the embedded market is timed, each part without what it calls of the
others; then a few updates of each phase are profiled, on one thread. The page docs/reference/speed.md is written anew.
"""

from __future__ import annotations

import argparse
import functools
import pkgutil
import resource
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmark_learners import online_phase, our_iql
from benchmark_tools import machine, operations_of, product_rate, rate_of, use_one_thread
from torch.profiler import ProfilerActivity, profile

from finflow.config import Config, load_config
from finflow.files import write_atomically
from finflow.training.data.training_data import prepare
from finflow.training.trainer import FinFlowTrainer
from scripts.evidence.results import places_in
from scripts.evidence.tables import markdown_table

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "speed.md"
TEXT = Path(__file__).parent / "evidence" / "pages" / "speed.md"
UPDATES = 5  # that are profiled
WARM = 3  # before those
SHOWN = 12  # operations with the most time
#: Name -> function that it is timed at; what a part calls of the others counts as theirs.
PARTS = {
    "market and features": "finflow.training.trainer:prepare",
    "behaviour data": "finflow.training.trainer:offline_data",
    "offline phase": "finflow.training.trainer:pretrain",
    "fitted Q evaluation": "finflow.training.phases.pretrain:fitted_q_value",
    "online phase, the rest": "finflow.training.trainer:finetune",
    "pretraining for the evidence": "finflow.training.phases.pretrain:_pretrain_block",
    "predictions of mirrored bars": "finflow.training.phases.finetune:with_mirrors",
    "steps of portfolios": "finflow.training.phases.finetune:step_portfolios",
    "online updates": "finflow.training.phases.finetune:update_group",
    "backtests in the blocks": "finflow.training.off_policy.evidence:backtest_blends",
    "exact returns": "finflow.training.phases.finetune:critics_facts",
    "evaluation and report": "finflow.training.trainer:judge_agents",
    "validation": "finflow.training.phases.training_run:TrainingRun.validate",
    "checkpoints": "finflow.training.phases.training_run:TrainingRun.checkpoint",
    "guard": "finflow.training.phases.run_guard:RunGuard.after_update",
}


@dataclass
class Spent:
    """Time of the parts of a program, each without the parts that it calls.

    Attributes
    ----------
    clock, processor : dict
        Part -> seconds by the clock, and of the processor's time, those of finished child processes included.
    """

    clock: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    processor: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    calls: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    _open: list[tuple[str, float, float]] = field(default_factory=list)

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, timed."""

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            self._switch()
            self._open.append((name, *_now()))
            self.calls[name] += 1
            try:
                return function(*args, **kwargs)
            finally:
                self._switch()
                self._open.pop()
                if self._open:
                    self._open[-1] = (self._open[-1][0], *_now())

        return run

    def _switch(self) -> None:
        """Count what has passed for the innermost open part."""
        if self._open:
            name, clock, processor = self._open[-1]
            now, used = _now()
            self.clock[name] += now - clock
            self.processor[name] += used - processor
            self._open[-1] = (name, now, used)


def _now() -> tuple[float, float]:
    """Seconds by the clock, and of the processor."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.perf_counter(), time.process_time() + children.ru_utime + children.ru_stime


@contextmanager
def parts_timed(spent: Spent, parts: Mapping[str, str] = PARTS) -> Iterator[None]:
    """Time parts of a training while the block runs."""
    with ExitStack() as timed:
        for name, place in parts.items():
            target, function = place.replace(":", "."), pkgutil.resolve_name(place)
            timed.enter_context(patch(target, spent.timed(name, function)))
        yield


def operation_table(update: Callable[[], object]) -> str:
    """Markdown table of an update's operations with the most time, and of all: calls, and milliseconds; its bound."""
    for _ in range(WARM):
        update()
    with profile(activities=[ProfilerActivity.CPU]) as trace:
        for _ in range(UPDATES):
            update()
    events = sorted(trace.key_averages(), key=lambda event: event.self_cpu_time_total, reverse=True)
    found = [(f"`{one.key}`", one.count / UPDATES, one.self_cpu_time_total / 1e3 / UPDATES) for one in events]
    calls, whole = (sum(column) for column in list(zip(*found, strict=True))[1:])
    others = [sum(column) for column in list(zip(*found[SHOWN:], strict=True))[1:]] or [0.0, 0.0]
    rows = [*found[:SHOWN], ("others", *others), ("all", calls, whole)]
    cells = ((name, f"{count:.0f}", f"{spent:.2f}", f"{spent / whole:.0%}") for name, count, spent in rows)
    return markdown_table(("operation", "calls", "ms", "share"), cells) + "\n" + bound_of(update)


def bound_of(update: Callable[[], object]) -> str:
    """The time that an update's products of matrices would take alone, and its share of an unprofiled update."""
    bound, took = operations_of(update) / product_rate(), 1.0 / rate_of(lambda _: update())
    return f"Bound by its products of matrices: {1e3 * bound:.1f} of {1e3 * took:.1f} ms, {bound / took:.0%}.\n"


def phase_table(spent: Spent, total: float) -> str:
    """Markdown table of the parts."""
    rows = [
        (name, f"{spent.calls[name]:,}", f"{seconds:.1f}", f"{seconds / total:.0%}", f"{spent.processor[name]:.1f}")
        for name, seconds in sorted(spent.clock.items(), key=lambda one: one[1], reverse=True)
    ]
    return markdown_table(("part", "calls", "seconds", "share", "processor time"), rows)


def benchmark_training(_: argparse.Namespace) -> None:
    """Time a default training, profile its updates, and write the page."""
    spent = Spent()
    with tempfile.TemporaryDirectory(prefix="finflow-speed-") as name:
        folder = Path(name)
        began = time.perf_counter()
        with parts_timed(spent):
            FinFlowTrainer(load_config(None, places_in(folder), environ={})).train()
        total = time.perf_counter() - began
        use_one_thread()
        ours = our_iql(prepare(Config()))
        tables = {
            "offline": operation_table(lambda: ours.update(ours.draw())),
            "online": operation_table(online_phase(folder)._update),
        }
    shown = {"machine": machine(), "total": total, "phases": phase_table(spent, total), **tables}
    page = TEXT.read_text("utf-8").format(**shown).rstrip() + "\n"
    write_atomically(PAGE, page)
    print(page)
