"""Evidence about durability: trainings that are killed, run out of disk or lose power, and files made to mislead.

A small training on a synthetic market is run once undisturbed. Then the same training is disturbed, in a forked
process, at a step that was drawn: an update, or a step of a write (half of the bytes written, the flush, the rename,
the second name). The final checkpoint is compared byte for byte.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from finflow import files
from finflow.config import Config, load_config
from finflow.errors import FinflowError
from finflow.guard.checkpoint_folder import BEST, LATEST, MODELS, CheckpointFolder
from finflow.training.checkpoints.checkpoint_reader import read_checkpoint, read_newest
from finflow.training.phases.training_run import TrainingRun
from finflow.training.trainer import FinFlowTrainer
from scripts.evidence.results import places_in, train_both

#: A training of a few seconds with everything in it.
SMALL: dict[str, object] = {
    **{"market.source": "synthetic", "market.synthetic.bars": 1500, "market.synthetic.assets": 3},
    **{"market.train_end": "2020-12-31", "market.validation_end": "2021-12-31"},
    **{"env.episode_length": 20, "train.offline_episodes": 12, "train.offline_training_epochs": 2},
    **{"train.online_episodes": 12, "train.offline_batch_size": 32, "train.online_batch_size": 16, "train.n_envs": 4},
    **{"train.updates_per_vector_step": 4, "bcell.expansion": 4},
    **{"out_of_fold.blocks": 2, "out_of_fold.pretraining_epochs": 1, "out_of_fold.looks": 2},
    **{"train.warmup_episodes": 4, "train.critic_only_updates": 5, "train.checkpoint_interval": 3},
    **{"train.checkpoint_updates": 7, "train.validation_updates": 11, "train.reward_normalization.enabled": True},
    **{"train.target_entropy_schedule.enabled": True, "offline.evaluation_updates": 0},
    **{"bcell.hidden_dim": 8, "bcell.n_quantiles": 4, "bcell.cql_samples": 2, "bcell.memory_capacity": 150},
}
UPDATE, WRITES = "update", ("half", "fsync", "replace", "link")
KILLS, OF_EACH_FAULT, CUTS, RESUMES = 25, 3, 1000, 6
FAULTS = {"full disk": errno.ENOSPC, "failing fsync": errno.EIO, "read-only folder": errno.EROFS}


class Whole(NamedTuple):
    """The undisturbed training.

    Attributes
    ----------
    first : int
        The step at which its first checkpoint was on the disk.
    """

    latest: bytes
    best: bytes
    log: bytes
    steps: list[str]
    first: int
    seconds: float


def small_config(folder: Path, changes: dict[str, object] | None = None) -> Config:
    """The configuration of all runs here, which go below a folder."""
    return load_config(None, {**SMALL, **(changes or {}), **places_in(folder)}, environ={})


def train(config: Config, resume: Path | None = None) -> Path:
    """Both phases, without the report; returns the run folder."""
    return train_both(config, resume=resume).run_folder


def undisturbed(config: Config) -> Whole:
    """Train once, and note the steps."""
    steps: list[str] = []
    first = FinFlowTrainer(config)  # the data are collected beforehand, so that no later run has that to do
    first.collect_offline_data()
    first.discard_if_unused()
    began = time.monotonic()
    with stepping(steps.append):
        run = train(config)
    seconds = time.monotonic() - began
    latest, best, log = outcome(run)
    shutil.rmtree(config.output.logs_dir)
    return Whole(latest, best, log, steps, steps.index("link") + 1, seconds)


def outcome(run: Path) -> tuple[bytes, bytes, bytes]:
    """The final checkpoints of a run, and its rows."""
    folder = CheckpointFolder(run / MODELS)
    return folder.path(LATEST).read_bytes(), folder.path(BEST).read_bytes(), (run / "metrics.jsonl").read_bytes()


@contextmanager
def stepping(step: Callable[[str], None]) -> Iterator[None]:
    """Call ``step`` with the name of each step that a disturbance can come at; what it raises is the disturbance."""
    real: dict[str, Callable[..., Any]] = {"fsync": os.fsync, "replace": os.replace, "link": os.link}
    write, count = files._write, TrainingRun.count_update

    def halves(path: Path, content: bytes, mode: int) -> None:
        with path.open("xb") as stream:
            stream.write(content[: len(content) // 2])
            stream.flush()
            step("half")
            stream.write(content[len(content) // 2 :])
            stream.flush()
            os.fsync(stream.fileno())

    def stepped(name: str) -> Callable[..., Any]:
        def call(*values: Any, **named: Any) -> Any:
            step(name)
            return real[name](*values, **named)

        return call

    def counted(run: TrainingRun, *values: Any, **named: Any) -> None:
        step(UPDATE)
        count(run, *values, **named)

    try:
        files._write = halves
        TrainingRun.count_update = counted  # type: ignore[method-assign,assignment]
        for name in real:
            setattr(os, name, stepped(name))
        yield
    finally:
        files._write = write
        TrainingRun.count_update = count  # type: ignore[method-assign]
        for name, function in real.items():
            setattr(os, name, function)


def in_child(work: Callable[[], object]) -> tuple[int, str]:
    """Do something in a forked process.

    Returns
    -------
    status : int
        0; 2 for a FinflowError; 1 for another; minus the signal that killed it.
    said : str
        The error's line, and before it what was printed.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reader)
            sys.stdout = os.fdopen(os.dup(writer), "w", buffering=1)
            try:
                work()
                status = 0
            except FinflowError as error:
                status = 2
                print(f"error: {error}")
            except BaseException:
                print(traceback.format_exc())
            sys.stdout.flush()
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader) as stream:
        said = stream.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said


def newest_run(config: Config) -> Path:
    """The run folder that was made last."""
    return max(config.output.logs_dir.iterdir(), key=lambda path: path.stat().st_mtime_ns)


def killed(config: Config, whole: Whole, number: int, seed: int = 0) -> dict[str, Any]:
    """Kill a training with SIGKILL at a drawn moment, resume it, and compare.

    Every third is killed in an update, every third within a write, and every third by the clock.

    Returns
    -------
    dict
        ``moment`` in words, and whether final checkpoints and log are ``identical``, byte for byte.
    """
    rng = np.random.default_rng([seed, number])
    kinds: tuple[str, ...] = ((UPDATE,), WRITES, ())[number % 3]
    places = [place for place, name in enumerate(whole.steps) if name in kinds and place >= whole.first]
    at = int(rng.choice(places)) if places else -1
    delay = float(rng.uniform(0.0, 0.6 * whole.seconds))
    done = [0]

    def step(name: str) -> None:
        if done[0] == at:
            os.kill(os.getpid(), signal.SIGKILL)
        if at < 0 and done[0] == whole.first:
            clock = threading.Timer(delay, os.kill, (os.getpid(), signal.SIGKILL))
            clock.daemon = True
            clock.start()
        done[0] += 1

    def disturbed() -> None:
        with stepping(step):
            train(config)

    shutil.rmtree(config.output.logs_dir, ignore_errors=True)
    status, said = in_child(disturbed)
    run = newest_run(config)
    at_update = read_checkpoint(run).counters if status else {}
    again, later = in_child(lambda: train(config, resume=run)) if status else (0, "")
    left = list((run / MODELS).glob(".*"))
    end = outcome(run) if again == 0 else (b"", b"", b"")
    shown = f"step {at} of {len(whole.steps)}, {whole.steps[at]}" if at >= 0 else f"{delay:.2f} s after the first"
    return {
        "number": number,
        "moment": shown,
        "kind": ("update", "write", "clock")[number % 3],
        "killed": status == -signal.SIGKILL,
        "phase": at_update.get("phase", "over"),
        "half-written files left": len(left),
        "identical": end == (whole.latest, whole.best, whole.log),
        "said": said.splitlines()[-1:] + later.splitlines()[-1:] if again else [],
    }


def faulty(config: Config, whole: Whole, fault: str, passing: bool, number: int, seed: int = 0) -> dict[str, Any]:
    """Let the disk fail from a drawn step on, for two intervals or for good; mend it, resume, and compare.

    Returns
    -------
    dict
        ``announced`` and ``ended`` are what was said, ``lost`` the updates between the newest checkpoint on the disk
        and the step of the fault, ``identical`` whether the final checkpoints and the log are.
    """
    rng = np.random.default_rng([seed, 100 + number, *fault.encode()])
    last = len(whole.steps) * 2 // 3
    begin = int(rng.integers(whole.first, last))
    names = {"failing fsync": ("fsync",)}.get(fault, ("half", "fsync", "link"))
    made: list[int] = []
    done, updates, end = [0], [0], [0]

    def step(name: str) -> None:
        done[0] += 1
        updates[0] += name == UPDATE
        if done[0] == begin:
            made.append(updates[0])
            end[0] = updates[0] + 15
        if done[0] >= begin and name in names and not (passing and updates[0] >= end[0]):
            raise OSError(FAULTS[fault], os.strerror(FAULTS[fault]))

    def disturbed() -> None:
        with stepping(step):
            try:
                train(config)
            finally:
                print(f"begun at update {made[0]}")

    shutil.rmtree(config.output.logs_dir, ignore_errors=True)
    status, said = in_child(disturbed)
    run = newest_run(config)
    lines = [line for line in said.splitlines() if "cannot write" in line]
    at = int(said.rsplit("begun at update ", 1)[1].split()[0])
    before = read_checkpoint(run).counters["update"]
    whole_files = all(_is_whole(path) for path in (run / MODELS).glob("*.safetensors"))
    if status:
        again, _ = in_child(lambda: train(config, resume=run))
    return {
        "fault": fault,
        "lasts": "15 updates" if passing else "to the end",
        "number": number,
        "status": status,
        "at update": at,
        "on the disk then": before,
        "every file whole": whole_files,
        "half-written files left": len(list((run / MODELS).glob(".*"))),
        "announced": next((line.replace(f"{run}/", "") for line in lines if "training goes on" in line), ""),
        "ended": next((line.replace(f"{run}/", "") for line in lines if "the end of this run" in line), ""),
        "identical": (status == 0 or again == 0) and outcome(run) == (whole.latest, whole.best, whole.log),
    }


def _is_whole(path: Path) -> bool:
    try:
        read_checkpoint(path)
    except FinflowError:
        return False
    return True


def power_lost(config: Config, whole: Whole, cuts: int, resumes: int, seed: int = 0) -> dict[str, Any]:
    """Cut files of the newest checkpoint short at drawn bytes; read each, and resume some of them to the end.

    The latest alone is cut, or both of its names, of which one run can only have the one before it; in a resume the
    best is cut now and then too.
    """
    rng = np.random.default_rng([seed, 7])
    shutil.rmtree(config.output.logs_dir, ignore_errors=True)
    run = train(config)
    folder = CheckpointFolder(run / MODELS)
    newest, before = (read_checkpoint(path).counters["update"] for path in folder.numbered()[:2])
    content = folder.path(LATEST).read_bytes()
    expected = {1: newest, 2: before}
    found: Counter[str] = Counter()
    for _ in range(cuts):
        both = int(rng.integers(1, 3))
        cut_short(folder, content, int(rng.integers(len(content))), both)
        path, _, facts, warning = read_newest(run)
        right = facts["training"]["counters"]["update"] == expected[both]
        said = warning is not None and folder.path(LATEST).name in warning and path.stem in warning
        found["right and said" if right and said else "wrong"] += 1
    identical = 0
    for _ in range(resumes):
        cut_short(folder, content, int(rng.integers(len(content))), 2)
        status, said_last = in_child(lambda: train(config, resume=run))
        identical += status == 0 and "using the newest intact one" in said_last and outcome(run) == whole[:3]
    return {"cuts": cuts, "found": dict(found), "resumes": resumes, "identical": identical}


def cut_short(folder: CheckpointFolder, content: bytes, size: int, names: int) -> None:
    """Put the latest, or also its number, back and cut it short; each is a file of its own then."""
    for place, path in enumerate((folder.path(LATEST), folder.numbered()[0])):
        path.unlink()
        path.write_bytes(content[:size] if place < names else content)


def measure(folder: Path) -> dict[str, Any]:
    """All of it, which takes a few minutes; faults are of each kind, passing and lasting."""
    began = time.monotonic()
    config = small_config(folder)
    whole = undisturbed(config)
    return {
        "steps": dict(Counter(whole.steps)),
        "kills": [killed(config, whole, number) for number in range(KILLS)],
        "faults": [
            faulty(config, whole, fault, passing, number)
            for fault in FAULTS
            for passing in (True, False)
            for number in range(OF_EACH_FAULT)
        ],
        "power": power_lost(config, whole, CUTS, RESUMES),
        "seconds": {"durability": round(time.monotonic() - began, 1)},
    }
