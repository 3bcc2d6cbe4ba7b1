"""A random sample of small faults in the rooms that money goes through, and whether their tests notice them.

Each mutant is one changed place of a source file. The tests of its room run on it, those of its module first, until one
fails. A mutant that all of them pass has survived: it is listed, and judged by hand in equivalent_mutants.yaml where no
test could tell it from the original.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from finflow.errors import EvidenceError
from finflow.provenance import code_hash
from scripts.evidence.mutant_trials import SURVIVED, TIMED_OUT, Trial, load_libraries, run_tests
from scripts.evidence.mutants import Mutant, candidates, mutated
from scripts.evidence.results import grouped, write_result
from scripts.evidence.tables import markdown_table, share_interval

__all__ = ["MUTANTS", "ROOMS", "judgements", "mutation_page", "mutation_tables", "sample_mutants", "try_mutants"]

MUTANTS = 500
SEED = 0
#: Room -> folders of its tests; of the second kind those count that import from the room.
ROOMS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "ledger": (("tests/ledger",), ("tests/env",)),
    "env": (("tests/env",), ()),
    "evaluation/statistics": ((), ("tests/evaluation",)),
    "guard": (("tests/guard",), ()),
}
#: Their processes are slow to start; and a file that is tested by processes alone.
LEFT_OUT = ("test_browser.py", "test_reward_queue.py", "reward_queue.py")
JUDGED = Path(__file__).parent / "equivalent_mutants.yaml"
Run = Callable[..., Trial]
Result = dict[str, Any]


def mutation_page(root: Path, path: Path, count: int) -> str:
    """Try what has no result yet, and return the tables.

    Parameters
    ----------
    root : Path
        Of the repository.
    path : Path
        Of the JSON file of results; rewritten after each mutant, so that an interrupted run goes on there.
    count : int
        Of the sample.
    """
    stored: Result = (
        json.loads(path.read_text("utf-8")) if path.is_file() else {"seconds": {"clock": 0.0}, "mutants": []}
    )
    began = time.monotonic()

    def save(results: list[Result]) -> None:
        seconds = {"clock": round(stored["seconds"]["clock"] + time.monotonic() - began)}
        write_result(path, {"code": code_hash(), "seconds": seconds, "mutants": results})

    results = try_mutants(root, count, stored["mutants"], save)
    kept = json.loads(path.read_text("utf-8"))
    found = {room: candidates for room, (candidates, _) in sample_mutants(root, count).items()}
    made = f"\nCode {kept['code']}; {kept['seconds']['clock']:,} s.\n"
    return mutation_tables(results, found, judgements()) + made


def sample_mutants(root: Path, count: int) -> dict[str, tuple[int, list[Mutant]]]:
    """Room -> number of its candidates, and those drawn; the same for the same source.

    Parameters
    ----------
    root : Path
        Of the repository.
    count : int
        Drawn without replacement from the candidates of all rooms together.
    """
    by_room = {room: _candidates_of(root, room) for room in ROOMS}
    everything = [(room, one) for room, some in by_room.items() for one in some]
    rng = np.random.default_rng(SEED)
    drawn = sorted(rng.choice(len(everything), size=min(count, len(everything)), replace=False))
    chosen = grouped([{"room": everything[k][0], "mutant": everything[k][1]} for k in drawn], "room")
    return {room: (len(some), [one["mutant"] for one in chosen.get(room, [])]) for room, some in by_room.items()}


def _candidates_of(root: Path, room: str) -> list[Mutant]:
    paths = [path for path in sorted((root / "finflow" / room).rglob("*.py")) if path.name not in LEFT_OUT]
    return [one for path in paths for one in candidates(path, root)]


def try_mutants(
    root: Path, count: int, kept: Sequence[Result], save: Callable[[list[Result]], None], run: Run = run_tests
) -> list[Result]:
    """Run the tests on every mutant of the sample that has no result yet.

    A mutant that was killed stays so while its file is the same; a survivor is tried again when the tests changed.

    Parameters
    ----------
    root : Path
    count : int
        Of the sample.
    kept : sequence of mapping
        Earlier results.
    save : callable
        Called with all results after each mutant.
    run : callable
        `run_tests`.

    Raises
    ------
    EvidenceError
        If the tests fail on the original.
    """
    load_libraries()
    known = {_key(one): one for one in kept}
    results: list[Result] = []
    for room, (_, mutants) in sample_mutants(root, count).items():
        tests = room_tests(root, room)
        state = _hash(*(root / test for test in tests))
        clean: Trial | None = None
        for one in mutants:
            source = _hash(root / one.path)
            result = known.get(_key({**one.describe(), "source": source}))
            if result is None or (result["status"] == SURVIVED and result["tests"] != state):
                clean = clean or _clean(root, room, tests, run)
                trial = _try(root, one, tests, clean, run)
                found = {"status": trial.status, "by": trial.by, "seconds": trial.seconds}
                result = {"room": room, **one.describe(), "source": source, "tests": state, **found}
            results.append(result)
            save([*results, *_later(kept, results)])
    save(results)
    return results


def _later(kept: Sequence[Result], results: Sequence[Result]) -> list[Result]:
    """Earlier results of mutants that were not come to yet."""
    done = {_key(one) for one in results}
    return [one for one in kept if _key(one) not in done]


def _clean(root: Path, room: str, tests: Sequence[str], run: Run) -> Trial:
    """The tests on the original, which they have to pass."""
    clean = run(root, tests)
    if clean.status != SURVIVED:
        raise EvidenceError(f"the tests of {room} fail without a mutant: {clean.by or clean.status}")
    return clean


def _try(root: Path, one: Mutant, tests: Sequence[str], clean: Trial, run: Run) -> Trial:
    module = re.compile(re.escape(".".join(Path(one.path).with_suffix("").parts)).replace(r"\.__init__", ""))
    nearest = [test for test in tests if module.search((root / test).read_text("utf-8"))]
    ordered = [*nearest, *(test for test in tests if test not in nearest)]
    return run(root, ordered, one.path, mutated(one, (root / one.path).read_bytes()), 3.0 * clean.seconds + 30.0)


def room_tests(root: Path, room: str) -> list[str]:
    """Files of tests of a room, from the root."""
    own, shared = ROOMS[room]
    imported = f"finflow.{room.replace('/', '.')}"
    paths = [path for folder in (*own, *shared) for path in sorted((root / folder).rglob("test_*.py"))]
    names = [path.relative_to(root).as_posix() for path in paths if path.name not in LEFT_OUT]
    return [name for name in names if name.startswith(own) or imported in (root / name).read_text("utf-8")]


def _key(one: Mapping[str, Any]) -> tuple[object, ...]:
    return tuple(one[name] for name in ("path", "start", "stop", "after", "source"))


def _hash(*paths: Path) -> str:
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()[:16]


def judgements(path: Path = JUDGED) -> dict[tuple[str, str, str], str]:
    """(file, text before, text after) -> why no test can tell the mutant from the original."""
    entries = yaml.safe_load(path.read_text("utf-8")) or []
    return {(one["path"], one["before"], one["after"]): one["reason"] for one in entries}


def mutation_tables(
    results: Sequence[Result], found: Mapping[str, int], judged: Mapping[tuple[str, str, str], str]
) -> str:
    """Markdown tables: mutants killed by room, and those that survived.

    Parameters
    ----------
    results : sequence of mapping
        Of `try_mutants`.
    found : mapping
        Room -> number of candidates.
    judged : mapping
        Of `judgements`.
    """
    rooms = [(room, [one for one in results if one["room"] == room]) for room in found]
    rows = [_row(room, found[room], own, judged) for room, own in rooms if own]
    rows.append(_row("all", sum(found.values()), results, judged))
    heads = ("room", "candidates", "tried", "killed", "of these by time", "survived", "equivalent", "share killed")
    table = markdown_table((*heads, "without the equivalent"), rows)
    survivors = [one for one in results if one["status"] == SURVIVED]
    listed = [
        [
            f"{one['path']}:{one['line']}",
            one["kind"],
            _code(one["before"]),
            _code(one["after"]),
            judged.get(_text(one), ""),
        ]
        for one in survivors
    ]
    return table + "\n" + markdown_table(("survivor", "kind", "before", "after", "why it is equivalent"), listed)


def _row(room: str, found: int, own: Sequence[Result], judged: Mapping[tuple[str, str, str], str]) -> list[object]:
    survived = [one for one in own if one["status"] == SURVIVED]
    equivalent = sum(_text(one) in judged for one in survived)
    killed, late = len(own) - len(survived), sum(one["status"] == TIMED_OUT for one in own)
    shares = [share_interval(killed, count) if count else "-" for count in (len(own), len(own) - equivalent)]
    return [room, found, len(own), killed, late, len(survived), equivalent, *shares]


def _text(one: Mapping[str, Any]) -> tuple[str, str, str]:
    return one["path"], one["before"], one["after"]


def _code(text: str) -> str:
    """Source in one cell of a table."""
    short = " ".join(text.split()).replace("|", "\\|")
    return f"`{short if len(short) <= 90 else short[:87] + '...'}`"
