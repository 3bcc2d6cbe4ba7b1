"""Seeds, folds and trials are independent tasks: one call does them, here, in processes of this machine, or on Ray.

    results = run_tasks([Task("seed 0", train_one, {"seed": 0}), ...], Where(workers=2), on_done=keep)

Results come in the order of the tasks, whatever the order they ended in. A task whose process was killed is done
again; one that ends in an error stops the others, whose finished results have been handed out by then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn, TextIO

from finflow import errors
from finflow.cores import available_cores
from finflow.errors import ConfigError, FinflowError, TrainingError
from finflow.experiments.tasks.task_display import Overview
from finflow.experiments.tasks.worker import Reply

__all__ = ["Ledger", "OnDone", "Result", "Task", "Where", "ready", "run_tasks"]

Result = dict[str, Any]
RETRIES = 2


@dataclass(frozen=True)
class Task:
    """One piece of work that needs no other.

    Attributes
    ----------
    name : str
        Unique among the tasks: ``seed 3``.
    function : callable
        Of the top level of a module, so that another process finds it by name. It returns a dict of plain values, and
        shows its progress by `worker.task_progress`. Done again from the start where its process was killed: what it
        finds on the disk it must cope with.
    arguments : mapping
        By name, picklable.
    """

    name: str
    function: Callable[..., Result]
    arguments: Mapping[str, Any]


OnDone = Callable[[Task, Result], None]


@dataclass(frozen=True)
class Where:
    """Who does the tasks.

    Attributes
    ----------
    workers : int, optional
        Processes of this machine; with one, tasks are done one after another in this process. With a cluster: tasks at
        once, as many as it has room for when left out.
    cluster : str, optional
        Of Ray: ``auto`` for the one that this machine belongs to, or an address.
    threads : int
        Processor threads of a task.
    device : str
        As in ``train.device``: with ``cuda``, a task on a cluster asks for a GPU, and local workers share them out.
    retries : int
        How often a task is done again whose process was killed.
    grace : float
        Seconds that a task has to stop in, before its process is killed.
    """

    workers: int | None = None
    cluster: str | None = None
    threads: int = 1
    device: str = "cpu"
    retries: int = RETRIES
    grace: float = 60.0

    @property
    def in_process(self) -> bool:
        """Whether tasks are done right here."""
        return self.cluster is None and (self.workers or 1) == 1

    def remarks(self) -> list[str]:
        """What to say before it begins.

        Raises
        ------
        ConfigError
            If that cannot be.
        """
        if self.workers is not None and self.workers < 1:
            raise ConfigError(f"--workers is {self.workers}, and must be 1 or more")
        cores, workers = available_cores(), self.workers or 1
        if self.cluster is None and workers > 1 and workers * self.threads > cores:
            each, more = f" of {self.threads} threads" if self.threads > 1 else "", "s" if cores > 1 else ""
            best = max(cores // self.threads, 1)
            return [
                f"{workers} workers{each} on {cores} core{more} wait for each other, no faster than {best} would be"
            ]
        return []


@contextmanager
def ready(where: Where) -> Iterator[None]:
    """See that tasks can be done there, before anything is made for them; a cluster stays joined meanwhile.

    Raises
    ------
    ConfigError
        If there are no workers, or no cluster answers.
    """
    where.remarks()
    if where.cluster is None:
        yield
        return
    from finflow.experiments.tasks.ray_cluster import connected

    with connected(where):
        yield


def run_tasks(
    tasks: Iterable[Task],
    where: Where,
    on_done: OnDone | None = None,
    shared: Mapping[str, Any] | None = None,
    *,
    kind: str = "tasks",
    total: int | None = None,
    stream: TextIO | None = None,
) -> list[Result]:
    """Do tasks, and return their results in the order of the tasks.

    Parameters
    ----------
    tasks : iterable of Task
        Drawn from when there is room for another, and after `on_done` of those that have ended.
    where : Where
    on_done : callable, optional
        Takes each task and its result, in this process, in the order that they end in.
    shared : mapping, optional
        Arguments of all tasks, such as the panel, handed to each process once; put into Ray's object store once.
    kind, total
        What tasks are called in the display, and how many there are.
    stream
        Where progress is shown, standard output when left out.

    Raises
    ------
    FinflowError
        A task's own, with its name before it; or where its process was killed too often, or no cluster is there.
    KeyboardInterrupt
        After Ctrl-C, when every task had time to stop. What had ended stays.
    """
    if total is None and isinstance(tasks, list | tuple):
        total = len(tasks)
    with Overview(kind, total, live=not where.in_process, stream=stream) as overview:
        for remark in where.remarks():
            overview.line(f"warning: {remark}")
        ledger = Ledger(tasks, where.retries, on_done, overview)
        if where.in_process:
            _run_here(ledger, shared or {})
        elif where.cluster is None:
            from finflow.experiments.tasks.local_pool import run_in_processes

            run_in_processes(ledger, where, shared or {})
        else:
            from finflow.experiments.tasks.ray_cluster import run_on_ray

            run_on_ray(ledger, where, shared or {})
        return ledger.in_order


def _run_here(ledger: Ledger, shared: Mapping[str, Any]) -> None:
    """One after another; each shows its own progress."""
    for number, task in ledger:
        ledger.overview.line(ledger.named(number))
        try:
            result = task.function(**shared, **task.arguments)
        except FinflowError as error:
            raise type(error)(f"{task.name}: {error}") from error
        ledger.done(number, result)


@dataclass
class Ledger:
    """Which tasks are waiting, which were given out, and what came of them."""

    tasks: Iterable[Task]
    retries: int
    on_done: OnDone | None
    overview: Overview
    given: list[Task] = field(default_factory=list)
    results: dict[int, Result] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._source = iter(self.tasks)
        self._again: deque[int] = deque()
        self._lost: dict[int, int] = {}

    def __iter__(self) -> Iterator[tuple[int, Task]]:
        while (task := self.next()) is not None:
            yield task

    def next(self) -> tuple[int, Task] | None:
        """A task to be done, and its number; None where there is none."""
        if self._again:
            number = self._again.popleft()
            return number, self.given[number]
        task = next(self._source, None)
        if task is None:
            return None
        self.given.append(task)
        return len(self.given) - 1, task

    def named(self, number: int) -> str:
        """The task's name, and which it is of how many."""
        of = "" if self.overview.total is None else f" ({number + 1} of {self.overview.total})"
        return f"{self.given[number].name}{of}"

    def settle(self, number: int, reply: Reply, stopping: bool = False) -> None:
        """Take what came of a task.

        Raises
        ------
        FinflowError
            If that is an error, unless all are being stopped anyway.
        """
        name = self.given[number].name
        if reply["kind"] == "done":
            self.overview.end(name)
            self.done(number, reply["result"])
        elif stopping:
            return
        elif reply["kind"] == "stopped":
            self.lost(number, "its process was told to stop")
        else:
            _raise(name, reply)

    def done(self, number: int, result: Result) -> None:
        """Keep a result, and hand it out."""
        self.results[number] = result
        if self.on_done is not None:
            self.on_done(self.given[number], result)

    def lost(self, number: int, why: str) -> None:
        """A task's process is gone: it waits for another.

        Raises
        ------
        TrainingError
            If that was once too often.
        """
        self._lost[number] = times = self._lost.get(number, 0) + 1
        if times > self.retries:
            self.gone(number, why, times)
        self.overview.again(self.given[number].name, why)
        self._again.append(number)

    def gone(self, number: int, why: str, times: int) -> NoReturn:
        """Give a task up."""
        raise TrainingError(
            f"{self.given[number].name}: {why}, and it was tried {times} times; if memory is short, use fewer workers "
            "or smaller batches (--batch-size)"
        )

    @property
    def in_order(self) -> list[Result]:
        """All results, in the order of the tasks."""
        return [self.results[number] for number in range(len(self.given))]


def _raise(name: str, reply: Reply) -> NoReturn:
    """A task's error, as if it had come up here."""
    if reply["kind"] == "error":
        kind = getattr(errors, reply["class"], FinflowError)
        raise kind(f"{name}: {reply['said']}")
    if "MemoryError" in reply["class"]:
        raise MemoryError(f"{name}: {reply['said']}")
    error = RuntimeError(f"{name}: {reply['said']}")
    error.add_note(reply["traceback"])
    raise error
