"""Independent tasks, the resources that run them, and the queue that they wait in."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from finflow.cores import available_cores
from finflow.errors import ConfigError, TrainingError
from finflow.experiments.tasks.task_progress import TaskDisplay

Result = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """One independent piece of work.

    Attributes
    ----------
    name : str
        Unique among the tasks: ``seed 3``.
    function : callable
        Of the top level of a module, so that another process finds it by name. It returns a dict of plain values, and
        shows its progress by `task_progress`. It runs again from the start where its process was killed, and must cope
        with the files of the first attempt.
    """

    name: str
    function: Callable[..., Result]
    arguments: Mapping[str, Any]


OnDone = Callable[[Task, Result], None]


@dataclass(frozen=True)
class ComputeResources:
    """Processes and devices that run the tasks.

    With one worker and no cluster, tasks run one after another in this process. A cluster takes as many tasks at once
    as it has room for where no number of workers is given. With the device ``cuda`` (``train.device``), a task on a
    cluster asks for a GPU, and local workers share them out.
    """

    workers: int | None = None
    cluster: str | None = None  # of Ray: auto for the one that this machine belongs to, or an address
    threads: int = 1  # of a task
    device: str = "cpu"
    retries: int = 2  # of a task whose process was killed
    grace: float = 60.0  # seconds that a task has to stop in, before its process is killed

    @property
    def in_process(self) -> bool:
        return self.cluster is None and (self.workers or 1) == 1

    def warnings(self) -> list[str]:
        """Warnings to print before the tasks begin.

        Raises
        ------
        ConfigError
            If there are no workers.
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


@dataclass
class TaskQueue:
    """Waiting tasks, started tasks, and the results of those that ended."""

    tasks: Iterable[Task]
    retries: int
    on_done: OnDone | None
    display: TaskDisplay
    started: list[Task] = field(default_factory=list)
    results: dict[int, Result] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._source = iter(self.tasks)
        self._requeued: deque[int] = deque()
        self._losses: dict[int, int] = {}

    def next(self) -> tuple[int, Task] | None:
        """Number and task of the next one to run; None where none waits."""
        if self._requeued:
            number = self._requeued.popleft()
            return number, self.started[number]
        task = next(self._source, None)
        if task is None:
            return None
        self.started.append(task)
        return len(self.started) - 1, task

    def done(self, number: int, result: Result) -> None:
        self.results[number] = result
        if self.on_done is not None:
            self.on_done(self.started[number], result)

    def fail(self, number: int, error: BaseException, source: BaseException | None = None) -> NoReturn:
        """Raise a task's error with the task's name before it, caused by ``source`` or by the error itself."""
        raise type(error)(f"{self.started[number].name}: {error}") from (source or error)

    def requeue(self, number: int, why: str) -> None:
        """Have a task that lost its process wait again.

        Raises
        ------
        TrainingError
            If it has no retries left.
        """
        self._losses[number] = times = self._losses.get(number, 0) + 1
        if times > self.retries:
            self.give_up(number, why)
        self.display.restarted(self.started[number].name, why)
        self._requeued.append(number)

    def give_up(self, number: int, why: str) -> NoReturn:
        """Raise the error of a task whose process was lost after every retry."""
        raise TrainingError(
            f"{self.started[number].name}: {why}, and it was tried {self.retries + 1} times; if memory is short, use "
            "fewer workers or smaller batches (--batch-size)"
        )
