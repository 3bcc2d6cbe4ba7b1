"""Evidence about every kind of file that finflow reads: changed at random, opened, and watched.

A file is opened in a process of its own, which a second one watches: a case ends when it is taken, or refused with one
line of a FinflowError. Any other exception is a crash, and so is the end of the process; a case that takes longer than
`PATIENCE` is a hang, and its process is ended. An audit hook of the interpreter, and the folders around it, show
whether anything is written outside the folder of the file.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import resource
import shutil
import sys
import time
import traceback
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.random import Generator

from finflow.errors import FinflowError
from finflow.files import write_atomically
from finflow.provenance import code_hash
from scripts.evidence.fuzz_checkpoints import _peak
from scripts.evidence.fuzz_mutations import BYTES, many_rows, parquet_changed
from scripts.evidence.fuzz_readers import READERS, Reader
from scripts.evidence.fuzz_stores import STORES
from scripts.evidence.tables import markdown_table

KINDS: dict[str, Callable[[Path], Reader]] = {**READERS, **STORES}
CASES = 10_000
PATIENCE = 10.0  # seconds of one case
MEMORY = 4 << 30  # bytes that a case may ask for
WRITING = ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.chmod", "os.truncate")
LONGEST_LINE = 1000
AT_ONCE = 2000  # cases between two writes of the result; setting up takes up to eight seconds


@dataclass
class Outcome:
    """Cases of one kind so far.

    Attributes
    ----------
    cases : int
    said : Counter
        ``taken``, ``refused``, ``crash``, ``hang``, ``written outside``, with their numbers.
    wrong : list of str
        Those that are neither taken nor refused.
    longest : float
        Seconds of the longest case.
    memory : int
        MB that a process grew by at most.
    seconds : float
        Of all cases.
    """

    cases: int = 0
    said: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    longest: float = 0.0
    memory: int = 0
    seconds: float = 0.0

    def add(self, number: int, said: str, seconds: float) -> None:
        """Count a case."""
        self.cases += 1
        self.seconds += seconds
        self.longest = max(self.longest, seconds)
        word = said.partition(":")[0]
        self.said[word] += 1
        if word not in ("taken", "refused"):
            self.wrong.append(f"case {number}, {said}")


def fuzz_missing(
    kept: Path, runs: Path, cases: int = CASES, seconds: float = float("inf"), kinds: Sequence[str] = tuple(KINDS)
) -> list[dict[str, Any]]:
    """Results of all kinds; cases that the same code has not been given yet are made, round and round.

    Parameters
    ----------
    kept : Path
        Folder of the results, one file a kind.
    runs : Path
        Folder that files are made in.
    cases : int
        Of each kind.
    seconds : float
        After which no further round begins.
    kinds : sequence of str
    """
    until = time.monotonic() + seconds
    found = {kind: _stored(kept / file_name(kind)) for kind in kinds}
    while time.monotonic() < until and any(one.cases < cases for one in found.values()):
        for kind, outcome in found.items():
            stop = min(outcome.cases + AT_ONCE, cases)
            if outcome.cases < stop and time.monotonic() < until:
                fuzz_kind(kind, runs / zlib.crc32(kind.encode()).__format__("08x"), outcome, stop)
                write_atomically(kept / file_name(kind), _as_json(kind, outcome))
    return [json.loads(_as_json(kind, outcome)) for kind, outcome in found.items()]


def file_name(kind: str) -> str:
    """Name of the result of a kind."""
    return "fuzzing-" + "-".join("".join(one if one.isalnum() else " " for one in kind).lower().split()) + ".json"


def fuzz_kind(kind: str, folder: Path, outcome: Outcome, stop: int) -> None:
    """Give a kind its cases up to a number; a process that dies or hangs is followed by another."""
    context = multiprocessing.get_context("fork")
    while outcome.cases < stop:
        shutil.rmtree(folder, ignore_errors=True)
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(kind, folder, outcome.cases, stop, theirs), daemon=True)
        process.start()
        theirs.close()
        try:
            _watch(ours, outcome)
        finally:
            process.kill()
            process.join()
            ours.close()
    shutil.rmtree(folder, ignore_errors=True)


def _watch(ours: Connection, outcome: Outcome) -> None:
    """Count what a process says, until it is done, ends by itself, or says nothing for too long."""
    before = outcome.memory
    ready = False
    while True:
        number = outcome.cases
        try:
            if not ours.poll(PATIENCE if ready else 600.0):
                outcome.add(number, f"hang: no end after {PATIENCE:g} s", PATIENCE)
                return
            message = ours.recv()
        except EOFError:
            if not ready:
                raise RuntimeError("the process ended before its first case") from None
            outcome.add(number, "crash: the process ended", 0.0)
            return
        if message is None:
            return
        if isinstance(message, str):
            raise RuntimeError(message)
        if isinstance(message, int):
            outcome.memory, ready = max(before, message), True
        else:
            outcome.add(number, *message)


def _work(kind: str, folder: Path, start: int, stop: int, tell: Connection) -> None:
    """Make a reader, and open changed files, one after the other, and send every outcome."""
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    try:
        reader = made(kind, folder)
        _limit_memory()
    except BaseException:
        tell.send(traceback.format_exc())
        return
    watch = Watch(folder)
    before = _peak(afresh=True)
    tell.send(0)
    for number in range(start, stop):
        try:
            content = mutated(reader, np.random.default_rng([zlib.crc32(kind.encode()), number]))
        except Exception:  # a fault of the change, and none of what is tested
            tell.send(traceback.format_exc())
            return
        began = time.monotonic()
        said = opened(reader, content, watch)
        tell.send((said, time.monotonic() - began))
        if number % 50 == 49 or number == stop - 1:
            tell.send(round((_peak() - before) / 1024))
    tell.send(None)


def made(kind: str, folder: Path) -> Reader:
    """The reader of a kind, whose own files are taken.

    Raises
    ------
    RuntimeError
        If one is not: every case would be refused for another reason than its change.
    """
    own = folder / "run"
    own.mkdir(parents=True)
    reader = KINDS[kind](own)
    if parquet_changed in reader.changes:
        many_rows()  # made now, and not within a case
    for content in reader.originals:
        reader.path.write_bytes(content)
        try:
            reader.read(reader.path)
        except FinflowError as error:
            if kind != "JSON: note of a job":  # whose agents are not there
                raise RuntimeError(f"{kind}: the unchanged file is refused: {error}") from error
    return reader


def mutated(reader: Reader, rng: Generator) -> bytes:
    """A changed file: one in three in its bytes alone, the others by the rules of its format, some of them in both."""
    content = reader.originals[int(rng.integers(len(reader.originals)))]
    kind = rng.random()
    if kind > 1 / 3:
        content = reader.changes[int(rng.integers(len(reader.changes)))](rng, content)
    if (kind < 1 / 3 or kind > 0.95) and content:
        content = BYTES[int(rng.integers(len(BYTES)))](rng, content)
    return content


def opened(reader: Reader, content: bytes, watch: Watch) -> str:
    """Outcome of a case."""
    if reader.path.is_dir():
        shutil.rmtree(reader.path)
    reader.path.write_bytes(content)
    watch.begin()
    try:
        reader.read(reader.path)
        said = "taken"
    except FinflowError as error:
        text = str(error)
        lines = len(text.splitlines())
        said = "refused" if lines == 1 and len(text) < LONGEST_LINE else f"crash: {lines} lines, {len(text)} characters"
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)
        ours = [one for one in place if "finflow" in one.filename and "evidence" not in one.filename] or place
        where = f"{Path(ours[-1].filename).name}:{ours[-1].lineno}"
        said = f"crash: {type(error).__name__} at {where}: {' '.join(str(error).split())[:150]}"
    finally:
        elsewhere = watch.end()
    return f"written outside: {elsewhere}" if elsewhere else said


class Watch:
    """Watch over what is written outside a folder while a file is opened.

    Parameters
    ----------
    folder : Path
        Its folder ``run`` is the one that may be written to.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.own = folder, str((folder / "run").absolute())
        self.elsewhere = folder / "elsewhere"
        self.elsewhere.mkdir()
        os.chdir(self.elsewhere)  # relative names of a file lead here
        os.environ["TMPDIR"] = str(self.elsewhere)
        self.found: list[str] = []
        self.watching = False
        sys.addaudithook(self._heard)

    def begin(self) -> None:
        """Watch from now on."""
        self.found.clear()
        self.watching = True

    def end(self) -> str:
        """The first thing that was written outside; empty where nothing was."""
        self.watching = False
        around = [*os.listdir(self.elsewhere), *(name for name in os.listdir(self.folder) if name not in _OWN)]
        return (self.found or around or [""])[0]

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.watching:
            return
        if event == "open":
            path, mode, flags = arguments
            writes = any(letter in str(mode or "") for letter in "wax+") or (
                isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            )
            if writes and isinstance(path, str | bytes | os.PathLike):
                self._check(event, path)
        elif event in WRITING:
            for path in arguments[:2]:
                if isinstance(path, str | bytes | os.PathLike):
                    self._check(event, path)
        elif event in ("os.system", "subprocess.Popen", "os.exec", "socket.connect"):
            self.found.append(event)

    def _check(self, event: str, path: Any) -> None:
        name = os.path.abspath(os.fsdecode(path))
        if not name.startswith((self.own, "/dev/null", "/proc/self")):
            self.found.append(f"{event} {name}"[:200])


_OWN = ("run", "elsewhere")


def _limit_memory() -> None:
    """Have a case that asks for too much fail, rather than the machine."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _stored(path: Path) -> Outcome:
    """Cases that the same code was given before."""
    found: Mapping[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    if found.get("code") != code_hash():
        return Outcome()
    names = ("cases", "wrong", "longest", "memory", "seconds")
    return Outcome(said=Counter(found["said"]), **{name: found[name] for name in names})


def _as_json(kind: str, outcome: Outcome) -> str:
    content = {
        **{"kind": kind, "code": code_hash(), "goal": CASES, "cases": outcome.cases, "said": dict(outcome.said)},
        **{"wrong": outcome.wrong, "longest": round(outcome.longest, 2), "memory": outcome.memory},
        "seconds": round(outcome.seconds, 1),
    }
    return json.dumps(content, indent=1, sort_keys=True) + "\n"


def fuzz_table(results: Sequence[Mapping[str, Any]]) -> str:
    """Outcomes by kind of file, the cases that were wrong, and by which code; as Markdown."""
    made = [result for result in results if result["cases"]]
    rows: list[tuple[object, ...]] = []
    for result in results:
        outcomes = [result["said"].get(name, 0) for name in ("refused", "taken", "crash", "hang", "written outside")]
        counts = [f"{result['cases']:,} of {result['goal']:,}", *(f"{count:,}" for count in outcomes)]
        rows.append((result["kind"], *counts, f"{result['longest']:.1f} s", f"{result['memory']:,} MB"))
    heads = ("file", "cases", "refused", "taken", "crashes", "hangs", "written outside", "longest", "memory")
    wrong = [f"    {result['kind']}, {line}\n" for result in made for line in result["wrong"][:5]]
    total, seconds = sum(result["cases"] for result in made), sum(result["seconds"] for result in made)
    missing = sum(result["goal"] - result["cases"] for result in results)
    left = f"**{missing:,} of the cases are still to be made.** The command above goes on where it stopped.\n\n"
    codes = ", ".join(sorted({result["code"] for result in made}))
    return (
        f"{left if missing else ''}{markdown_table(heads, rows)}\n"
        + ("Cases that ended otherwise, five of a kind at most:\n\n" + "".join(wrong) + "\n" if wrong else "")
        + f"Code {codes}; {total:,} cases in {seconds:,.0f} s.\n"
    )
