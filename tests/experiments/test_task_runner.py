"""Tasks are done once each, wherever they are done; a killed one is done again, and a stop loses nothing that ended."""

from __future__ import annotations

import importlib
import io
import os
import signal
import socket
import sys
import threading
import time
import traceback
from contextlib import closing, redirect_stdout
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from finflow.errors import ConfigError, MarketError, OutputError, TrainingError
from finflow.experiments import task_progress
from finflow.experiments.task_progress import TaskDisplay
from finflow.experiments.tasks import ComputeResources, Task, run_tasks
from finflow.worker_pool import RayWorkers
from tests.commands import ctrl_c_as, refusal

pytestmark = pytest.mark.usefixtures("ready_workers")
HERE, TWO = ComputeResources(), ComputeResources(workers=2, grace=2.0)


def note(folder: Path, name: str) -> int:
    """Leave a mark of this try; how many there were before."""
    before = len(list(folder.glob(f"{name}-*")))
    (folder / f"{name}-{before}-{os.getpid()}").touch()
    return before


def square(factor: int, number: int, seconds: float = 0.0) -> dict[str, Any]:
    time.sleep(seconds)
    return {"value": factor * number**2, "process": os.getpid(), "threads": os.environ.get("OMP_NUM_THREADS")}


def die_first(folder: Path, name: str, times: int) -> dict[str, Any]:
    if note(folder, name) < times:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"name": name}


def fail(said: str) -> dict[str, Any]:
    raise MarketError(said)


def read(path: str) -> dict[str, Any]:
    return {"text": Path(path).read_text()}


def divide() -> dict[str, Any]:
    return {"value": 1 // 0}


def wait_or_end(folder: Path, name: str, seconds: float) -> dict[str, Any]:
    note(folder, name)
    time.sleep(seconds)
    (folder / f"ended-{name}").touch()
    return {"name": name}


def squares(numbers: list[int]) -> list[Task]:
    """The first takes longest, so that it ends last."""
    return [Task(f"task {n}", square, {"number": n, "seconds": 0.4 if i == 0 else 0.0}) for i, n in enumerate(numbers)]


def run(tasks: list[Task], resources: ComputeResources, **named: Any) -> tuple[list[dict[str, Any]], str]:
    with redirect_stdout(io.StringIO()) as stream:
        return run_tasks(tasks, resources, **named), stream.getvalue()


def test_results_are_in_the_order_of_the_tasks_not_of_their_ends() -> None:
    ended: list[str] = []
    found, said = run(squares([3, 4, 5]), TWO, shared={"factor": 2}, on_done=lambda task, _: ended.append(task.name))
    alone, _ = run(squares([3, 4, 5]), HERE, shared={"factor": 2})
    assert [one["value"] for one in found] == [one["value"] for one in alone] == [18, 32, 50]
    assert ended[0] == "task 4"
    assert {one["process"] for one in alone} == {os.getpid()}
    assert os.getpid() not in {one["process"] for one in found}
    assert {one["threads"] for one in found} == {"1"}
    assert "task 5: done" in said


def test_a_killed_worker_loses_no_other_task_and_its_own_is_done_again(tmp_path: Path) -> None:
    tasks = [Task(f"t{n}", die_first, {"folder": tmp_path, "name": f"t{n}", "times": n == 1}) for n in range(4)]
    found, said = run(tasks, TWO)
    assert [one["name"] for one in found] == ["t0", "t1", "t2", "t3"]
    tries = sorted(path.name.rpartition("-")[0] for path in tmp_path.iterdir())
    assert tries == ["t0-0", "t1-0", "t1-1", "t2-0", "t3-0"]
    assert "t1: its process was killed (SIGKILL); it is done again" in said


def test_a_task_that_kills_every_worker_is_given_up(tmp_path: Path) -> None:
    tasks = [Task("bad", die_first, {"folder": tmp_path, "name": "bad", "times": 9})]
    with pytest.raises(TrainingError, match=r"^bad: its process was killed \(SIGKILL\), and it was tried 3 times"):
        run(tasks, TWO)
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize("resources", [HERE, TWO], ids=["here", "processes"])
def test_an_error_says_which_task_it_is_of(resources: ComputeResources) -> None:
    with pytest.raises(MarketError, match=r"^seed 7: no prices$"):
        run([Task("seed 7", fail, {"said": "no prices"})], resources)


def test_what_a_workers_machine_lacks_is_no_fault_in_finflow() -> None:
    with pytest.raises(OutputError, match=r"^t: mine\.csv: No such file or directory$"):
        run([Task("t", read, {"path": "mine.csv"})], TWO)
    with pytest.raises(OutputError, match=r"^t: the package nobody_has_it is not installed for .* on "):
        run([Task("t", importlib.import_module, {"name": "nobody_has_it"})], TWO)


def test_a_fault_in_a_worker_comes_with_its_traceback() -> None:
    with pytest.raises(RuntimeError, match="broken: ZeroDivisionError") as caught:
        run([Task("broken", divide, {})], TWO)
    assert "in divide" in "".join(traceback.format_exception(caught.value))


def test_ctrl_c_keeps_what_ended_and_leaves_no_process(tmp_path: Path) -> None:
    def press() -> None:
        while not (ended and list(tmp_path.glob("slow-*"))):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    ended: list[str] = []
    seconds = {"quick": 0.0, "slow": 60.0, "later": 60.0}
    tasks = [Task(name, wait_or_end, {"folder": tmp_path, "name": name, "seconds": s}) for name, s in seconds.items()]
    began = time.monotonic()
    threading.Thread(target=press, daemon=True).start()
    with ctrl_c_as(signal.default_int_handler), pytest.raises(KeyboardInterrupt):
        run(tasks, TWO, on_done=lambda task, _: ended.append(task.name))
    assert ended == ["quick"]
    assert time.monotonic() - began < 30.0
    workers = {int(path.name.rpartition("-")[2]) for path in tmp_path.glob("slow-*")}
    assert workers
    assert not any(Path(f"/proc/{process}").exists() for process in workers)


def test_more_workers_than_cores_are_warned_of() -> None:
    (remark,) = ComputeResources(workers=500).warnings()
    assert remark.startswith("500 workers on ")


def test_without_ray_one_line_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"--cluster needs Ray, which is not installed: pip install 'finflow\[ray\]'"):
        run_tasks([], ComputeResources(cluster="auto"))


def test_a_cluster_that_is_not_there_is_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        port = taken.getsockname()[1]
        for command in (["--mode", "train", "--seeds", "2", "--dry-run"], ["--mode", "tune"]):
            assert f"no Ray cluster answers at 127.0.0.1:{port}" in refusal(
                capsys, *command, "--cluster", f"127.0.0.1:{port}"
            )
    assert not (tmp_path / "logs").exists()
    with pytest.raises(ConfigError, match="--cluster is 'nowhere', and must be auto or an address"):
        run_tasks([], ComputeResources(cluster="nowhere"))


class StoppingRay:
    """Cancels tasks as Ray does; those named ``quick`` have stopped when they are waited for."""

    def __init__(self) -> None:
        self.forced: list[str] = []

    def cancel(self, task: str, force: bool) -> None:
        self.forced += [task] * force

    def put(self, content: object) -> str:
        return "stored"

    def remote(self, **options: object) -> Any:
        return lambda function: function

    def wait(self, tasks: list[str], num_returns: int, timeout: float) -> tuple[list[str], list[str]]:
        if "interrupted" in tasks:
            raise KeyboardInterrupt
        return [one for one in tasks if one == "quick"], [one for one in tasks if one != "quick"]


def test_a_task_on_ray_that_has_stopped_is_not_ended_by_force() -> None:
    """Ray ends the process that asks for it where it takes in the result at that moment."""
    ray = StoppingRay()
    assert RayWorkers(ray, square, {}, 1).stop(["quick", "slow"], grace=1.0) == ["quick"]
    assert ray.forced == ["slow"]
    hurried = StoppingRay()
    with pytest.raises(KeyboardInterrupt):
        RayWorkers(hurried, square, {}, 1).stop(["slow", "interrupted"], grace=1.0)
    assert hurried.forced == ["slow", "interrupted"]


HALF = {"phase": "offline", "done": 50, "total": 100, "facts": {"sharpe": 0.41}}


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_elsewhere_lines_say_what_begins_and_ends_and_now_and_then_how_far_the_others_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    monkeypatch.setattr(task_progress, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with closing(TaskDisplay("trainings", 2)) as overview:
        overview.begin("seed 0")
        overview.begin("seed 1", "a node")
        overview.update("seed 0", "progress", HALF)
        now[0] = 11.0
        overview.update("seed 1", "progress", {**HALF, "done": 10})
        overview.update("seed 1", "line", "the learning rate is halved")
        overview.update("seed 0", "lost", "its process was killed (SIGKILL)")
        now[0] = 42.0
        overview.end("seed 1")
    assert capsys.readouterr().out.splitlines() == [
        "seed 0: begun",
        "seed 1: begun on a node",
        "trainings 0 of 2; seed 0: offline 50 %; seed 1: offline 10 %",
        "seed 1: the learning rate is halved",
        "seed 0: its process was killed (SIGKILL); it is done again",
        "seed 1: done in 42 s (1 of 2)",
    ]


def test_a_terminal_has_a_bar_for_all_and_a_line_for_each_that_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    stream = Terminal()
    monkeypatch.setattr("sys.stdout", stream)
    with closing(TaskDisplay("trainings", 2)) as overview:
        overview.begin("seed 0")
        overview.update("seed 0", "progress", HALF)
        overview.begin("seed 1")
        shown = [(task.description, task.completed, task.total) for task in overview._bar.tasks]
        overview.end("seed 0")
        left = [task.description for task in overview._bar.tasks]
    assert shown == [("trainings", 0, 2), ("seed 0", 50, 100), ("seed 1", 0, None)]
    assert left == ["trainings", "seed 1"]
    assert "validation Sharpe 0.41" in stream.getvalue()
    assert "seed 0: begun" not in stream.getvalue()
