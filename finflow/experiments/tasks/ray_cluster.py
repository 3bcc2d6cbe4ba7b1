"""Tasks on a cluster of Ray's, whose scheduler gives them out and does again what died with a node.

What all tasks share is put into Ray's object store once. Arguments and results travel with the task: a node need not
see this machine's files.
"""

from __future__ import annotations

import importlib
import os
import signal
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from finflow.cores import share_cores
from finflow.errors import ConfigError
from finflow.experiments.tasks.task_runner import Ledger, Where
from finflow.experiments.tasks.worker import Reply, perform
from finflow.provenance import code_hash
from finflow.training.phases.stopping import stopping_at_once

__all__ = ["connected", "machines", "run_on_ray", "slots"]

POLL = 0.5  # seconds
REACH = 5.0  # seconds in which an address has to answer
BOARD = 60.0  # seconds in which the board has to stand: a process of its own, on a machine that may be busy


def run_on_ray(ledger: Ledger, where: Where, shared: Mapping[str, Any]) -> None:
    """Do all tasks of a ledger on the cluster ``where.cluster``."""
    with connected(where) as ray, stopping_at_once():
        here = ray.get_runtime_context().get_node_id()
        affinity = importlib.import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy
        near = affinity(here, soft=False)  # lest it be lost with a node of the tasks: soft=True puts it on any
        board = ray.remote(num_cpus=0, scheduling_strategy=near)(_Board).remote()
        news = _News(ray, board, ledger)
        news.show(BOARD)
        gpus = 1 if where.device == "cuda" or (where.device == "auto" and ray.cluster_resources().get("GPU")) else 0
        remote = ray.remote(num_cpus=where.threads, num_gpus=gpus, max_retries=where.retries)(_on_node)
        stored = [ray.put(value) for value in shared.values()]
        under_way: dict[Any, int] = {}
        if not _room(ray, where):
            ledger.overview.line(f"no node of the cluster offers processors ({where.threads} a task): waiting for one")
        try:
            while True:
                while len(under_way) < slots(ray, where) and (found := ledger.next()) is not None:
                    number, task = found
                    given = (board, number, code_hash(), task.function, dict(task.arguments), list(shared))
                    under_way[remote.options(name=task.name).remote(*given, *stored)] = number
                if not under_way:
                    news.show(REACH)
                    return
                ended, _ = ray.wait(list(under_way), timeout=POLL)
                news.show()
                for reference in ended:
                    _take(ray, reference, under_way.pop(reference), ledger)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                ledger.overview.line("stopping; once more to stop at once")
            _stop(ray, list(under_way), where.grace)
            raise
        finally:
            with suppress(Exception):
                ray.kill(board)


def slots(ray: Any, where: Where) -> int:
    """How many tasks the cluster has room for at once."""
    room = _room(ray, where)
    return max(1, room if where.workers is None else min(room, where.workers))


def _room(ray: Any, where: Where) -> int:
    return int(ray.cluster_resources().get("CPU", 0)) // where.threads


def machines(ray: Any) -> set[str]:
    """Names of the machines that belong to the cluster."""
    return {str(node["NodeManagerHostname"]) for node in ray.nodes() if node["Alive"]}


@contextmanager
def connected(where: Where) -> Iterator[Any]:
    """Ray, connected to the cluster; a connection that was there before stays.

    Raises
    ------
    ConfigError
        If Ray is not installed, or no cluster answers.
    """
    try:
        ray: Any = importlib.import_module("ray")
    except ImportError:
        raise ConfigError("--cluster needs Ray, which is not installed: pip install 'finflow[ray]'") from None
    if ray.is_initialized():
        yield ray
        return
    address = str(where.cluster)
    _check_reachable(address)
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # or Ray speaks of GPUs that nobody has
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        said = " ".join(str(error).split())[:200]
        raise ConfigError(
            f"no Ray cluster can be joined at {address} ({said}); start one with: ray start --head, and see that this "
            "machine belongs to it"
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _check_reachable(address: str) -> None:
    """Answer at once what Ray would try for minutes."""
    if address == "auto":
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError(f"--cluster is {address!r}, and must be auto or an address such as 10.0.0.1:6379")
    try:
        socket.create_connection((host, int(port)), timeout=REACH).close()
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or str(error) or "no answer"
        raise ConfigError(
            f"no Ray cluster answers at {address} ({why}); start one there with: ray start --head --port {port}"
        ) from None


def _stop(ray: Any, tasks: list[Any], grace: float) -> None:
    """Ask for a stop, and end those that have not stopped in time; a second Ctrl-C does at once."""
    try:
        _cancel(ray, tasks, force=False)
        with suppress(Exception):
            ray.wait(tasks, num_returns=len(tasks), timeout=grace)
    finally:
        _cancel(ray, tasks, force=True)


def _cancel(ray: Any, tasks: list[Any], force: bool) -> None:
    for task in tasks:
        with suppress(Exception):
            ray.cancel(task, force=force)


def _take(ray: Any, reference: Any, number: int, ledger: Ledger) -> None:
    """Take what came of a task; Ray did it again itself as often as it may."""
    try:
        reply: Reply = ray.get(reference)
    except (ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError, ray.exceptions.ObjectLostError) as error:
        ledger.gone(number, f"its process or node died ({type(error).__name__})", ledger.retries + 1)
    except ray.exceptions.OutOfMemoryError:
        ledger.gone(number, "its node ran out of memory", ledger.retries + 1)
    else:
        ledger.settle(number, reply)


class _News:
    """What tasks pin to the board, shown; the display is no reason to fail, nor to wait for long.

    A board that is slow to answer is not asked again meanwhile: what it took down for an answer that nobody waits for
    would be lost.
    """

    def __init__(self, ray: Any, board: Any, ledger: Ledger) -> None:
        self._ray, self._board, self._ledger = ray, board, ledger
        self._asked: Any = None

    def show(self, wait: float = POLL) -> None:
        """Show what is known by now, or within ``wait`` seconds."""
        with suppress(self._ray.exceptions.RayError):
            self._asked = self._asked or self._board.take.remote()
            if not self._ray.wait([self._asked], timeout=wait)[0]:
                return
            asked, self._asked = self._asked, None
            for number, kind, content in self._ray.get(asked):
                self._show(number, kind, content)

    def _show(self, number: int, kind: str, content: Any) -> None:
        overview, name = self._ledger.overview, self._ledger.given[number].name
        ended = number in self._ledger.results
        if kind == "begin" and not ended:
            overview.begin(name, f" on {content}")
        elif kind == "again":
            overview.again(name, f"its process or node died; it is on {content} now")
            if not ended:
                overview.begin(name)
        elif kind != "begin":
            overview.news(name, kind, content)


class _Board:
    """An actor beside the one who waits: tasks pin their news to it."""

    def __init__(self) -> None:
        self._news: dict[tuple[int, str], Any] = {}
        self._lines: list[tuple[int, str, Any]] = []
        self._begun: set[int] = set()

    def pin(self, number: int, kind: str, content: Any) -> None:
        """Note news of a task; of its progress, the newest alone."""
        if kind == "progress":
            self._news[number, kind] = content
        else:
            again = kind == "begin" and number in self._begun
            self._begun.add(number)
            self._lines.append((number, "again" if again else kind, content))

    def take(self) -> list[tuple[int, str, Any]]:
        """All news since the last time."""
        news = [*self._lines, *((number, kind, content) for (number, kind), content in self._news.items())]
        self._lines, self._news = [], {}
        return news


def _on_node(
    board: Any,
    number: int,
    code: str,
    function: Callable[..., Any],
    arguments: Mapping[str, Any],
    names: Sequence[str],
    *shared: Any,
) -> Reply:
    """Do a task on a node, with what is shared as Ray fetched it."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # Ray was started in the background, and cannot interrupt us
        signal.signal(signal.SIGINT, signal.default_int_handler)
    share_cores()
    host = socket.gethostname()

    def send(kind: str, content: Any) -> None:
        with suppress(Exception):  # where nobody listens any more, the task itself matters
            board.pin.remote(number, kind, content)

    send("begin", host)
    if code_hash() != code:
        said = f"the node {host} has other code of finflow than this machine; install the same there"
        return {"kind": "error", "class": "ConfigError", "said": said}
    return perform(function, {**dict(zip(names, shared, strict=True)), **arguments}, send)
