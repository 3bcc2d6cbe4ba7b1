"""Run independent tasks, such as seeds, folds and workers of a search: here, in processes of this machine, or on Ray.

    results = run_tasks([Task("seed 0", train_one, {"seed": 0}), ...], ComputeResources(workers=2), on_done=keep)

Results come in the order of the tasks, whatever the order they ended in. A task whose process was killed runs again;
one that ends in an error stops the others; results of finished tasks have been passed to `on_done` by then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from finflow.errors import FinflowError
from finflow.experiments.tasks.local_pool import run_in_processes
from finflow.experiments.tasks.ray_cluster import connected, run_on_ray
from finflow.experiments.tasks.task_progress import TaskDisplay
from finflow.experiments.tasks.task_queue import ComputeResources, OnDone, Result, Task, TaskQueue

__all__ = ["ComputeResources", "OnDone", "Result", "Task", "ready", "run_tasks"]


@contextmanager
def ready(resources: ComputeResources) -> Iterator[None]:
    """Check that tasks can run there, before anything is written for them; a cluster stays joined meanwhile.

    Raises
    ------
    ConfigError
        If there are no workers, or no cluster answers.
    """
    resources.warnings()
    if resources.cluster is None:
        yield
    else:
        with connected(resources):
            yield


def run_tasks(
    tasks: Iterable[Task],
    resources: ComputeResources,
    on_done: OnDone | None = None,
    shared: Mapping[str, Any] | None = None,
    kind: str = "tasks",
) -> list[Result]:
    """Run tasks, and return their results in the order of the tasks.

    Parameters
    ----------
    tasks : iterable of Task
        Drawn from when there is room for another, and after `on_done` of those that have ended.
    on_done : callable, optional
        Takes each task and its result, in this process, in the order that they end in.
    shared : mapping, optional
        Arguments of all tasks, such as the panel, sent to each process once; put into Ray's object store once.
    kind
        Name of the tasks in the display.

    Raises
    ------
    FinflowError
        A task's own, with its name before it; or where its process was killed too often, or no cluster is there.
    KeyboardInterrupt
        After Ctrl-C, when every task had time to stop. The results of finished tasks were passed to `on_done`.
    """
    total = len(tasks) if isinstance(tasks, list | tuple) else None
    with TaskDisplay(kind, total, live=not resources.in_process) as display:
        for warning in resources.warnings():
            display.line(f"warning: {warning}")
        queue = TaskQueue(tasks, resources.retries, on_done, display)
        if resources.in_process:
            _run_here(queue, shared or {})
        elif resources.cluster is None:
            run_in_processes(queue, resources, shared or {})
        else:
            run_on_ray(queue, resources, shared or {})
        return [queue.results[number] for number in range(len(queue.started))]


def _run_here(queue: TaskQueue, shared: Mapping[str, Any]) -> None:
    while (entry := queue.next()) is not None:
        number, task = entry
        of = "" if queue.display.total is None else f" ({number + 1} of {queue.display.total})"
        queue.display.line(f"{task.name}{of}")
        try:
            result = task.function(**shared, **task.arguments)
        except FinflowError as error:
            queue.fail(number, error)
        queue.done(number, result)
