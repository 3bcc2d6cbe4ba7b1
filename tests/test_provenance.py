"""The hash that says which code made a result: every changed line counts, and no moved file does."""

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


@pytest.mark.parametrize(("old", "new"), [("key(2,", "key(\n    3e-4,"), ('"awr", "words"', '"gradient", "words"')])
def test_a_default_is_of_the_configuration_and_not_of_the_code(old: str, new: str, before: str, tmp_path: Path) -> None:
    """The hash of a configuration has every value, given or default, so a result is not taken for one of another."""
    changed = {**FILES, "config/section.py": FILES["config/section.py"].replace(old, new)}
    assert changed != FILES
    assert code_hash(package=written(tmp_path / "after", changed)) == before


@pytest.mark.parametrize(
    ("old", "new"), [("ge=0", "ge=1"), ('"epochs"', '"rounds"'), ("Part()", "Other()"), ("a: int", "z: int")]
)
def test_a_bound_a_name_and_a_section_are_code(old: str, new: str, before: str, tmp_path: Path) -> None:
    changed = {**FILES, "config/section.py": FILES["config/section.py"].replace(old, new)}
    assert code_hash(package=written(tmp_path / "after", changed)) != before


def test_a_value_outside_the_configuration_is_code(tmp_path: Path) -> None:
    first, second = (
        code_hash(package=written(tmp_path / name, {"agent/loss.py": f"SCALE = key({name}, 1)\n"})) for name in "12"
    )
    assert first != second
