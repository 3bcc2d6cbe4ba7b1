"""A random sample of small faults in the rooms that money goes through, and whether their tests notice them.

Each mutant is one changed place of a source file. The tests of its room that execute the place run on it, quick ones
and those of its module first, until one fails. A mutant that all of them pass has survived: it is listed, and judged
by hand in equivalent_mutants.yaml where no test could tell it from the original.
"""

from __future__ import annotations

import hashlib
import json
import resource
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from finflow.errors import EvidenceError
from finflow.provenance import code_hash
from scripts.evidence.mutant_tests import ROOMS, TracedTest, chosen_tests, mutated_paths, room_tests, runs_compiled
from scripts.evidence.mutant_trials import SURVIVED, TIMED_OUT, Trial, load_libraries, run_tests, trace_tests
from scripts.evidence.mutants import Mutant, candidates, essence, mutated
from scripts.evidence.results import write_result
from scripts.evidence.tables import markdown_table, share_interval

__all__ = ["MUTANTS", "Trials", "judgements", "mutation_page", "mutation_tables", "sample_mutants"]

MUTANTS = 650
FRESH = 150  # drawn after these; tests were written for survivors among the first alone
SEED = 0
JUDGED = Path(__file__).parent / "equivalent_mutants.yaml"
Run = Callable[..., Trial]
Trace = Callable[..., list[TracedTest]]
Result = dict[str, Any]


def mutation_page(root: Path, path: Path, folder: Path, count: int) -> str:
    """Try what has no result yet, and return the tables.

    Parameters
    ----------
    root : Path
        Of the repository.
    path : Path
        Of the JSON file of results; rewritten after each mutant, so that an interrupted run goes on there.
    folder : Path
        Keeps which lines each test executes.
    count : int
        Of the sample.
    """
    kept: list[Result] = json.loads(path.read_text("utf-8"))["mutants"] if path.is_file() else []

    def save(results: list[Result]) -> None:
        write_result(path, {"code": code_hash(), "mutants": results})

    load_libraries()
    results = Trials(root, folder).try_missing(count + FRESH, kept, save)
    sample = sample_mutants(root, count)
    found = {room: candidates for room, (candidates, _) in sample.items()}
    first = {(one.path, one.start, one.stop, one.after) for _, drawn in sample.values() for one in drawn}
    parts: tuple[list[Result], list[Result]] = [], []
    for one in results:
        parts[(one["path"], one["start"], one["stop"], one["after"]) not in first].append(one)
    tables = (mutation_tables(part, found, judgements()) for part in parts)
    code = json.loads(path.read_text("utf-8"))["code"]
    return f"\n## The next {FRESH}, for which no test was written\n\n".join(tables) + f"\nCode {code}.\n"


def sample_mutants(root: Path, count: int) -> dict[str, tuple[int, list[Mutant]]]:
    """Room -> number of its candidates, and those drawn.

    The candidates of all rooms together are drawn in the order of a hash of seed and place: at random and without
    replacement, and a change of the source leaves the others in the sample.

    Parameters
    ----------
    root : Path
        Of the repository.
    count : int
    """
    by_room = {room: _candidates_of(root, room) for room in ROOMS}
    ranks = sorted(_rank(one) for some in by_room.values() for one in some)
    last = ranks[min(count, len(ranks)) - 1]
    return {room: (len(some), [one for one in some if _rank(one) <= last]) for room, some in by_room.items()}


def _rank(one: Mutant) -> str:
    return hashlib.sha256(f"{SEED} {one.path} {one.place} {one.after} {one.twin}".encode()).hexdigest()


def _candidates_of(root: Path, room: str) -> list[Mutant]:
    return [one for path in mutated_paths(root, room) for one in candidates(path, root)]


class Trials:
    """Runs the tests of each room on its mutants.

    Parameters
    ----------
    root : Path
        Of the repository.
    folder : Path
        Keeps which lines each test executes.
    run, trace : callable
        `run_tests` and `trace_tests`.
    """

    def __init__(self, root: Path, folder: Path, run: Run = run_tests, trace: Trace = trace_tests) -> None:
        self.root, self.folder = root, folder
        self._run, self._trace = run, trace
        self._known: dict[str, list[TracedTest]] = {}

    def try_missing(self, count: int, kept: Sequence[Result], save: Callable[[list[Result]], None]) -> list[Result]:
        """Try every mutant of the sample that has no result yet.

        A mutant that was killed stays so while the code of its file is the same; a survivor is tried again when the
        tests changed.

        Parameters
        ----------
        count : int
            Of the sample.
        kept : sequence of mapping
            Earlier results.
        save : callable
            Called with all results after each mutant.
        """
        known = {_key(one): one for one in kept}
        results: list[Result] = []
        for room, (_, mutants) in sample_mutants(self.root, count).items():
            state = _hash((self.root / test).read_bytes() for test in room_tests(self.root, room))
            for one in mutants:
                source = _hash([essence((self.root / one.path).read_bytes()).encode()])
                result = known.get(_key({**one.describe(), "source": source}))
                if result is None or (result["status"] == SURVIVED and result["tests"] != state):
                    result = {"room": room, **one.describe(), "source": source, "tests": state, **self._try(room, one)}
                    save([*results, result, *_later(kept, [*results, result])])
                results.append({**result, **one.describe()})
        save(results)
        return results

    def _try(self, room: str, one: Mutant) -> Result:
        compiled = not runs_compiled(self.root, one.path)
        tests = chosen_tests(self.root, one, self._traced(room, compiled))
        timeout = 2.0 * sum(test.seconds for test in tests) + 15.0
        source = mutated(one, (self.root / one.path).read_bytes())
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        trial = self._run(self.root, [test.name for test in tests], one.path, source, timeout, compiled)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return {"status": trial.status, "by": trial.by, "seconds": round(used, 2), "chosen": len(tests)}

    def _traced(self, room: str, compiled: bool) -> list[TracedTest]:
        """The tests of a room on the original, with the lines that each executes; files that changed are run again.

        Raises
        ------
        EvidenceError
            If one fails, compiled; those that fail when functions run as plain Python are left out later.
        """
        name = f"{room.replace('/', '-')}{'' if compiled else '-not-compiled'}.json"
        if name not in self._known:
            files, sources = room_tests(self.root, room), mutated_paths(self.root, room)
            code = [path.read_bytes() for path in sources]
            stamps = {file: _hash([(self.root / file).read_bytes(), *code]) for file in files}
            path = self.folder / name
            stored: Result = json.loads(path.read_text("utf-8")) if path.is_file() else {}
            stale = [file for file in files if stored.get(file, {}).get("stamp") != stamps[file]]
            if stale:
                stored |= {file: {"stamp": stamps[file], "tests": []} for file in stale}
                for test in self._trace(self.root, stale, sources, compiled):
                    stored[test.name.partition("::")[0]]["tests"].append(asdict(test))
            tests = [TracedTest(**test) for file in files for test in stored[file]["tests"]]
            failed = [test.name for test in tests if not test.passed]
            if failed and compiled:
                raise EvidenceError(f"tests of {room} fail without a mutant: {', '.join(failed)}")
            write_result(path, stored)
            self._known[name] = tests
        return self._known[name]


def _later(kept: Sequence[Result], results: Sequence[Result]) -> list[Result]:
    """Earlier results of mutants that were not come to yet."""
    done = {_key(one) for one in results}
    return [one for one in kept if _key(one) not in done]


def _key(one: Mapping[str, Any]) -> tuple[object, ...]:
    return tuple(one[name] for name in ("path", "place", "after", "twin", "source"))


def _hash(contents: Iterable[bytes]) -> str:
    return hashlib.sha256(b"".join(contents)).hexdigest()[:16]


def judgements(path: Path = JUDGED) -> dict[tuple[str, str, str], str]:
    """(file, place, text after) -> why no test can tell the mutant from the original."""
    entries = yaml.safe_load(path.read_text("utf-8")) or []
    return {(one["path"], one["place"], one["after"]): one["reason"] for one in entries}


def mutation_tables(
    results: Sequence[Result], found: Mapping[str, int], judged: Mapping[tuple[str, str, str], str]
) -> str:
    """Markdown tables: mutants killed by room, and those that survived.

    Parameters
    ----------
    results : sequence of mapping
        Of `Trials.try_missing`.
    found : mapping
        Room -> number of candidates.
    judged : mapping
        Of `judgements`.
    """
    rooms = [(room, [one for one in results if one["room"] == room]) for room in found]
    rows = [_row(room, found[room], own, judged) for room, own in rooms if own]
    rows.append(_row("all", sum(found.values()), results, judged))
    heads = ("room", "candidates", "tried", "killed", "of these by time", "survived", "equivalent", "share killed")
    table = markdown_table((*heads, "without the equivalent", "seconds a mutant", "seconds"), rows)
    survivors = [one for one in results if one["status"] == SURVIVED]
    listed = [
        [f"{one['path']}:{one['line']}", _code(one["place"]), _code(one["after"]), judged.get(_text(one), "")]
        for one in survivors
    ]
    return table + "\n" + markdown_table(("survivor", "place", "replaced by", "why it is equivalent"), listed)


def _row(room: str, found: int, own: Sequence[Result], judged: Mapping[tuple[str, str, str], str]) -> list[object]:
    survived = [one for one in own if one["status"] == SURVIVED]
    equivalent = sum(_text(one) in judged for one in survived)
    killed, late = len(own) - len(survived), sum(one["status"] == TIMED_OUT for one in own)
    shares = [share_interval(killed, count) if count else "-" for count in (len(own), len(own) - equivalent)]
    seconds = sum(one["seconds"] for one in own)
    times = [f"{seconds / len(own):.1f}", f"{seconds:,.0f}"]
    return [room, found, len(own), killed, late, len(survived), equivalent, *shares, *times]


def _text(one: Mapping[str, Any]) -> tuple[str, str, str]:
    return one["path"], one["place"], one["after"]


def _code(text: str) -> str:
    """Source in one cell of a table."""
    short = " ".join(text.split()).replace("|", "\\|")
    return f"`{short if len(short) <= 90 else short[:87] + '...'}`"
