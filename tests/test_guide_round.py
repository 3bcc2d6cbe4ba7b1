"""The round of docs/guide/ragged-prices.md, run as it stands: commands, files and what is printed."""

from __future__ import annotations

import re
import runpy
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from finflow.cli import main

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "guide" / "ragged-prices.md"
RUN = re.compile(r"logs/\d{8}_\d{6}")
NUMBER = re.compile(r"[-+]?\d[\d,]*\.?\d*%?|dataset-[0-9a-f]+")
#: From here on figures depend on what was learned, which differs in its last digits between processors.
LEARNED = "## Train"


def blocks_of(text: str) -> Iterator[tuple[str, str, bool]]:
    """Language and content of each block of code, and True after the heading of the training."""
    for found in re.finditer(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        yield found[1], found[2], found.start() > text.index(LEARNED)


def as_pattern(expected: str, figures: bool) -> re.Pattern[str]:
    """Pattern of what is printed: `...` stands for anything, blanks are one, and figures perhaps any."""
    parts = [_plain(part, figures) for part in expected.split("...")]
    return re.compile(r"\s*" + ".*?".join(re.escape(part).replace(r"\ ", r"\s+") for part in parts) + r"\s*", re.DOTALL)


def _plain(text: str, figures: bool) -> str:
    if not figures:
        text = NUMBER.sub("#", RUN.sub("RUN", text))
    return " ".join(text.split())


def test_the_page_is_a_round_from_a_file_to_a_decision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], no_pictures: None
) -> None:
    monkeypatch.chdir(tmp_path)
    commands = 0
    for language, content, learned in blocks_of(PAGE.read_text("utf-8")):
        if language == "yaml":
            Path("round.yaml").write_text(content, "utf-8")
        elif language == "python":
            exec(compile(content, PAGE.name, "exec"), {})
        elif language == "text":
            assert Path("prices.csv").read_text("utf-8").startswith(content)
        elif language == "console":
            commands += 1
            command, _, expected = content.removeprefix("$ ").partition("\n")
            said = printed_by(command, monkeypatch, capsys)
            found = as_pattern(expected, not learned).fullmatch(_plain(said, not learned))
            assert found, f"{command}\nprinted\n{said}\nand the page has\n{expected}"
    assert commands == 7


def printed_by(command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """Run a command of the page in this process; the run that it names is the one that was made here."""
    _, script, *arguments = shlex.split(command)
    capsys.readouterr()
    if script != "main.py":
        monkeypatch.setattr(sys, "argv", [script, *arguments])
        runpy.run_path(str(ROOT / "examples" / script), run_name="__main__")
    else:
        own = [str(path) for path in Path("logs").glob("2*")]
        status = main([own[0] if RUN.fullmatch(word) else word for word in arguments])
        assert status in (0, 2)
    printed = capsys.readouterr()
    assert "Traceback" not in printed.err
    return printed.out + printed.err


def test_the_comparison_sees_a_changed_line_and_not_a_changed_figure() -> None:
    page = "account: 1.50\n...\nPINE: planned +164\n"
    printed = _plain("account: 7.25\nx\ny\nPINE:  planned +3", False)
    assert as_pattern(page, False).fullmatch(printed)
    assert not as_pattern(page, False).fullmatch(printed.replace("PINE", "OAK"))
    assert not as_pattern(page, True).fullmatch("account: 7.25 x PINE: planned +164")
