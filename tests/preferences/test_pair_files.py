"""Files of pairs: what is read, what is refused and at which line, and answers that are added."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from finflow.errors import FinflowError
from finflow.preferences.pairs import Segment, read_pairs, write_pairs

FIRST = {"strategy": "momentum", "start": "2001-01-02", "end": "2001-01-31"}
SECOND = {"strategy": "equal-weight", "start": "2001-02-01", "end": "2001-03-02"}

HEADER = "first_strategy, first_start,first_end,second_strategy,second_start,second_end,better"


def pair(better: str = "first", **changes: Any) -> dict[str, Any]:
    return {"first": FIRST, "second": SECOND, "better": better, **changes}


def lines(path: Path, *rows: Any) -> Path:
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows), "utf-8")
    return path


def test_csv_and_json_lines_hold_the_same_pairs(tmp_path: Path) -> None:
    found = read_pairs([lines(tmp_path / "a.jsonl", pair(), pair("tie", chance=0.5), pair("second"))])
    assert [one.target for one in found.pairs] == [1.0, 0.5, 0.0]
    assert found.pairs[0].second == Segment(**SECOND)
    write_pairs(tmp_path / "b.csv", found.pairs)
    write_pairs(tmp_path / "c.jsonl", found.pairs)
    assert read_pairs([tmp_path / "b.csv"]).pairs == found.pairs
    assert read_pairs([tmp_path / "c.jsonl"]).pairs == found.pairs
    assert read_pairs([tmp_path / "b.csv", tmp_path / "c.jsonl"]).places[-1] == f"{tmp_path / 'c.jsonl'}, line 3"


def test_a_csv_of_ones_own_may_have_blanks_after_commas(tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text(f"{HEADER}\nmomentum, 2001-01-02,2001-01-31,olmar,2001-01-02,2001-01-31,second\n", "utf-8")
    assert read_pairs([path]).pairs[0].first == Segment(**FIRST)


def test_contradictory_answers_are_counted_and_kept(tmp_path: Path) -> None:
    turned = {"first": SECOND, "second": FIRST, "better": "second"}
    assert "contradictory" not in read_pairs([lines(tmp_path / "a.jsonl", pair(), turned)]).line()
    found = read_pairs([lines(tmp_path / "b.jsonl", pair(), turned, pair("tie"))])
    assert found.line() == "3 pairs, 1 ties; 1 pairs of segments have contradictory answers, all of which count"


BAD_LINES = {
    "is empty": (),
    "line 2: this is not JSON": (pair(), "{"),
    "line 1: better: Input should be 'first', 'second' or 'tie'": (pair(better="best"),),
    "line 1: both segments are the same, momentum from 2001-01-02 to 2001-01-31": (pair(second=FIRST),),
    "ends on 2000-01-02, before it starts": (pair(first={**FIRST, "end": "2000-01-02"}),),
    "line 1: first.start": (pair(first={**FIRST, "start": "soon"}),),
    "line 1: weight: Extra inputs are not permitted": (pair(weight=1),),
    "line 1: chance": (pair(chance=2.0),),
    "line 1: Input should be": ("[]",),
}
ROW = "a,2001-01-02,2001-01-03"
BAD_CSV = {
    "is empty": "",
    "line 2: first.start: Field required": "first_strategy,better\na,first\n",
    "line 2: colour: Extra inputs": f"{HEADER},colour\n{ROW},b,2001-01-02,2001-01-03,first,red\n",
    "line 2: second.strategy: Field required": f"{HEADER}\n{ROW}\n",
    "line 2: both segments are the same": f"{HEADER}\n{ROW},{ROW},first\n",
    "line 2: a cell without a column": f"{HEADER}\n{ROW},b,2001-01-02,2001-01-03,tie,,1\n",
    "this is not CSV": f'{HEADER}\n"a',
}


@pytest.mark.parametrize(("said", "content"), [*BAD_LINES.items(), *BAD_CSV.items()])
def test_a_bad_line_is_named(tmp_path: Path, said: str, content: tuple[Any, ...] | str) -> None:
    path = tmp_path / ("pairs.csv" if isinstance(content, str) else "pairs.jsonl")
    path.write_text(content) if isinstance(content, str) else lines(path, *content)
    with pytest.raises(FinflowError, match=path.name) as caught:
        read_pairs([path])
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FinflowError, match="does not exist"):
        read_pairs([tmp_path / "none.jsonl"])
