"""The programs on the page on policy optimisation run as they are written, but for fewer rollouts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "policy-optimisation.md"
PROGRAMS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
SHORTER = {"n_iterations=50": "n_iterations=2", "range(10)": "range(1)"}


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_the_programs_of_the_page_run(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    program = PROGRAMS[number]
    for written, shorter in SHORTER.items():
        program = program.replace(written, shorter)
    names: dict[str, Any] = {}
    exec(compile(program, str(PAGE), "exec"), names)
    if "manager" in names:
        assert names["manager"].get_statistics()["num_checkpoints"] >= 3
    else:
        assert names["trainer"].get_full_statistics()["training_step"] >= 1
    assert list(tmp_path.iterdir()) == []
