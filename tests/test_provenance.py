"""The hash that says which code made a result: every changed statement counts; prose, formatting and moves do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from finflow.provenance import code_hash

FILES = {
    "env/process.py": "from finflow.market.panel import MarketPanel\n\n\ndef step(x: int) -> int:\n    return x + 1\n",
    "agent/loss.py": "import torch\n\nSCALE = 2.0\n",
    "cli/options.py": "OPTION = 1\n",
    "config/section.py": (
        'a: int = key(2, "epochs", ge=0)\nb: str = key(\n    "awr", "words"\n)\nc: Part = key(Part(), "d")\n'
    ),
}


def written(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.fixture
def before(tmp_path: Path) -> str:
    return code_hash(package=written(tmp_path / "before", FILES))


def test_a_moved_file_with_moved_imports_keeps_its_hash(before: str, tmp_path: Path) -> None:
    moved = dict(FILES)
    text = moved.pop("env/process.py").replace(
        "finflow.market.panel import MarketPanel", "finflow.a.b import (\n  C,\n)"
    )
    assert code_hash(package=written(tmp_path / "after", {**moved, "env/inner/renamed.py": text})) == before


def test_a_statement_that_moves_to_another_file_keeps_the_hash(before: str, tmp_path: Path) -> None:
    moved = {**FILES, "agent/loss.py": "", "agent/scale.py": "from typing import Any\n\nSCALE = 2.0\n"}
    assert code_hash(package=written(tmp_path / "after", moved)) == before


PROSE = {
    "docstrings": '"""A module."""\n\n\ndef step(x: int) -> int:\n    """One step."""\n    return x + 1\n',
    "comments": "def step(x: int) -> int:\n    # the next\n    return x + 1  # of integers\n",
    "line breaks": "def step(\n    x: int,\n) -> int:\n    return (\n        x + 1\n    )\n",
    "import inside": "def step(x: int) -> int:\n    import math\n\n    return x + 1\n",
}


@pytest.mark.parametrize("text", PROSE.values(), ids=PROSE)
def test_prose_and_formatting_are_no_code(text: str, before: str, tmp_path: Path) -> None:
    assert code_hash(package=written(tmp_path / "after", {**FILES, "env/process.py": text})) == before


OTHER = {
    "operator": "def step(x: int) -> int:\n    return x - 1\n",
    "name": "def step(y: int) -> int:\n    return y + 1\n",
    "text that is used": "def step(x: int) -> int:\n    print('x')\n    return x + 1\n",
    "decorator": "@cache\ndef step(x: int) -> int:\n    return x + 1\n",
    "indentation": "def step(x: int) -> int:\n    if x:\n        x\n    return x + 1\n",
}


@pytest.mark.parametrize("text", OTHER.values(), ids=OTHER)
def test_any_other_syntax_is_code(text: str, before: str, tmp_path: Path) -> None:
    assert code_hash(package=written(tmp_path / "after", {**FILES, "env/process.py": text})) != before


def test_the_order_of_unpacked_and_named_entries_counts(tmp_path: Path) -> None:
    first, second = (
        code_hash(package=written(tmp_path / str(number), {"env/a.py": text}))
        for number, text in enumerate(('A = {**a, "b": c}\n', 'A = {"b": a, **c}\n'))
    )
    assert first != second


def test_a_block_that_a_statement_leaves_is_other_code(tmp_path: Path) -> None:
    first, second = (
        code_hash(package=written(tmp_path / name, {"env/a.py": f"def f(x):\n    if x:\n        g()\n{indent}h()\n"}))
        for name, indent in (("in", " " * 8), ("out", " " * 4))
    )
    assert first != second


def test_the_hash_is_kept_with_the_package_and_follows_its_files(before: str, tmp_path: Path) -> None:
    package = written(tmp_path / "after", FILES)
    assert code_hash(package=package) == before
    (kept,) = (package / "__pycache__").glob("*.hash")
    assert kept.read_text() == before
    code_hash.cache_clear()
    written(package, {"agent/loss.py": "SCALE = 3.0\n"})
    assert code_hash(package=package) != before


@pytest.mark.parametrize("name", ["env/process.py", "env/inner/new.py", "agent/loss.py"])
def test_a_changed_or_added_line_in_any_folder_is_other_code(before: str, tmp_path: Path, name: str) -> None:
    changed = FILES.get(name, "") + "NEW = 1\n"
    assert code_hash(package=written(tmp_path / "after", {**FILES, name: changed})) != before


def test_the_command_line_decides_no_result(before: str, tmp_path: Path) -> None:
    after = written(tmp_path / "after", {**FILES, "cli/options.py": "OPTION = 2\n"})
    assert code_hash(package=after) == before


def test_rooms_are_hashed_with_their_subfolders_and_without_others(tmp_path: Path) -> None:
    first = written(tmp_path / "first", {**FILES, "env/inner/deep.py": "A = 1\n"})
    other_room = written(tmp_path / "second", {**FILES, "env/inner/deep.py": "A = 1\n", "agent/loss.py": "SCALE = 3\n"})
    deeper = written(tmp_path / "third", {**FILES, "env/inner/deep.py": "A = 2\n"})
    assert code_hash(("env",), first) == code_hash(("env",), other_room)
    assert code_hash(("env",), first) != code_hash(("env",), deeper)


@pytest.mark.parametrize(("old", "new"), [("key(2,", "key(\n    -3e-4,"), ('"awr", "words"', '"gradient", "text"')])
def test_a_default_and_a_description_are_no_code(old: str, new: str, before: str, tmp_path: Path) -> None:
    """The hash of a configuration has every value, given or default, so a result is not taken for one of another."""
    changed = {**FILES, "config/section.py": FILES["config/section.py"].replace(old, new)}
    assert changed != FILES
    assert code_hash(package=written(tmp_path / "after", changed)) == before


@pytest.mark.parametrize(("old", "new"), [("ge=0", "ge=1"), ("Part()", "Other()"), ("a: int", "z: int")])
def test_a_bound_a_name_and_a_section_are_code(old: str, new: str, before: str, tmp_path: Path) -> None:
    changed = {**FILES, "config/section.py": FILES["config/section.py"].replace(old, new)}
    assert code_hash(package=written(tmp_path / "after", changed)) != before


def test_a_value_outside_the_configuration_is_code(tmp_path: Path) -> None:
    first, second = (
        code_hash(package=written(tmp_path / name, {"agent/loss.py": f"SCALE = key({name}, 1)\n"})) for name in "12"
    )
    assert first != second
