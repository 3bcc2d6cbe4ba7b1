"""The hash that says which code made a result: every changed statement counts; prose, formatting and moves do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from finflow.provenance import code_hash

STEP = "def step(x: int) -> int:\n    return x + 1\n"
SECTION = 'a: int = key(2, "epochs", ge=0)\nb: str = key(\n    "awr", "words"\n)\nc: Part = key(Part(), "d")\n'
FILES = {
    "env/process.py": f"from finflow.market.panel import MarketPanel\n\n\n{STEP}",
    "agent/loss.py": "import torch\n\nSCALE = 2.0\n",
    "cli/options.py": "OPTION = 1\n",
    "config/section.py": SECTION,
}


def hash_of(folder: Path, files: dict[str, str], rooms: tuple[str, ...] = ()) -> str:
    """Hash of a package that has these files."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return code_hash(rooms, folder)


@pytest.fixture
def before(tmp_path: Path) -> str:
    return hash_of(tmp_path / "before", FILES)


SAME = {
    "a moved file with moved imports": {
        "env/process.py": "",
        "env/inner/renamed.py": f"from finflow.a.b import (\n  C,\n)\n\n\n{STEP}",
    },
    "a statement in another file": {"agent/loss.py": "", "agent/scale.py": "from typing import Any\n\nSCALE = 2.0\n"},
    "docstrings": {"env/process.py": '"""A module."""\n\n' + STEP.replace("    r", '    """One step."""\n    r')},
    "comments": {"env/process.py": "def step(x: int) -> int:\n    # the next\n    return x + 1  # of integers\n"},
    "line breaks": {"env/process.py": "def step(\n    x: int,\n) -> int:\n    return (\n        x + 1\n    )\n"},
    "an import inside": {"env/process.py": STEP.replace("    r", "    import math\n\n    r")},
    "the command line": {"cli/options.py": "OPTION = 2\n"},
    # the hash of a configuration has every value, given or default, so a result is not taken for one of another
    "a default": {"config/section.py": SECTION.replace("key(2,", "key(\n    -3e-4,")},
    "a description": {"config/section.py": SECTION.replace('"awr", "words"', '"gradient", "text"')},
}
OTHER = {
    "operator": {"env/process.py": STEP.replace("+", "-")},
    "name": {"env/process.py": STEP.replace("x", "y")},
    "text that is used": {"env/process.py": STEP.replace("    r", "    print('x')\n    r")},
    "decorator": {"env/process.py": f"@cache\n{STEP}"},
    "indentation": {"env/process.py": STEP.replace("    r", "    if x:\n        x\n    r")},
    "an added line": {"agent/loss.py": FILES["agent/loss.py"] + "NEW = 1\n"},
    "an added file": {"env/inner/new.py": "NEW = 1\n"},
    "a bound": {"config/section.py": SECTION.replace("ge=0", "ge=1")},
    "a section": {"config/section.py": SECTION.replace("Part()", "Other()")},
    "a key": {"config/section.py": SECTION.replace("a: int", "z: int")},
}


@pytest.mark.parametrize("change", [*SAME, *OTHER])
def test_prose_formatting_and_moves_are_no_code_and_any_other_change_is(
    change: str, before: str, tmp_path: Path
) -> None:
    after = hash_of(tmp_path / "after", {**FILES, **(SAME | OTHER)[change]})
    assert (after == before) is (change in SAME)


@pytest.mark.parametrize(
    "texts",
    [
        ('A = {**a, "b": c}\n', 'A = {"b": a, **c}\n'),
        ("def f(x):\n    if x:\n        g()\n        h()\n", "def f(x):\n    if x:\n        g()\n    h()\n"),
        ("SCALE = key(1, 1)\n", "SCALE = key(2, 1)\n"),  # outside the configuration a value is code
    ],
    ids=["order of entries", "end of a block", "value"],
)
def test_code_that_looks_alike_is_told_apart(texts: tuple[str, str], tmp_path: Path) -> None:
    first, second = (hash_of(tmp_path / str(number), {"env/a.py": text}) for number, text in enumerate(texts))
    assert first != second


def test_the_hash_is_kept_with_the_package_and_follows_its_files(before: str, tmp_path: Path) -> None:
    (kept,) = (tmp_path / "before" / "__pycache__").glob("*.hash")
    assert kept.read_text() == before
    code_hash.cache_clear()
    assert hash_of(tmp_path / "before", {"agent/loss.py": "SCALE = 3.0\n"}) != before


def test_rooms_are_hashed_with_their_subfolders_and_without_others(tmp_path: Path) -> None:
    files = {**FILES, "env/inner/deep.py": "A = 1\n"}
    first = hash_of(tmp_path / "first", files, ("env",))
    assert hash_of(tmp_path / "second", {**files, "agent/loss.py": "SCALE = 3\n"}, ("env",)) == first
    assert hash_of(tmp_path / "third", {**files, "env/inner/deep.py": "A = 2\n"}, ("env",)) != first
