"""Separators of a file and the marks in its numbers, as the numbers show them; ambiguous ones are refused."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from finflow.errors import MarketError

_SEPARATORS = (",", ";", "\t", "|")
_SAMPLE = 200  # lines that show the decimal mark of a file in which no number may have marks between thousands
_MAY_BE_GROUPED = re.compile(r"(?<![\d.,])[1-9]\d{0,2}[.,]\d{3}(?!\d)")
_NUMBER = re.compile(r"[+-]?(?=[.,]?\d)[\d.,]+")
_THREE = re.compile(r"[+-]?[1-9]\d{0,2}[.,]\d{3}")  # 1.000 is a thousand, or one with three decimals


class NumberMarks(NamedTuple):
    separator: str = ","
    decimal: str = "."
    thousands: str = ""

    def in_words(self) -> str:
        between = f", {self.thousands!r} between thousands" if self.thousands else ""
        return f"separated by {self.separator!r}, decimal mark {self.decimal!r}{between}"

    def fits(self, text: str) -> bool:
        grouped = rf"|[1-9]\d{{0,2}}(?:{re.escape(self.thousands)}\d{{3}})+" if self.thousands else ""
        return re.fullmatch(rf"[+-]?(?:\d*{grouped})(?:{re.escape(self.decimal)}\d*)?", text) is not None

    def plain(self, text: str) -> str:
        """A number that fits, with a decimal point and nothing between thousands; any other text as it is."""
        return text.replace(self.thousands or " ", "").replace(self.decimal, ".") if self.fits(text) else text


COMMAS = NumberMarks()


def separator_of(header: str) -> str:
    """The separator that the first line of a file has most often outside quotes; commas where it has none."""
    return max(_SEPARATORS, key=re.sub(r'"[^"]*"', "", header).count)


def marks_shown(texts: Sequence[str], separator: str) -> NumberMarks:
    """Marks of the numbers among texts: one with both marks, or one of them twice, shows that between thousands.

    In a file that is not separated by commas, a comma alone is a decimal mark.
    """
    numbers = [text for text in texts if _NUMBER.fullmatch(text)]
    for text in numbers:
        if "." in text and "," in text:
            return NumberMarks(separator, max(".,", key=text.rfind), min(".,", key=text.rfind))
        if (twice := next((mark for mark in ".," if text.count(mark) > 1), None)) is not None:
            return NumberMarks(separator, "." if twice == "," else ",", twice)
    return NumberMarks(separator, "," if separator != "," and any("," in text for text in numbers) else ".")


def ambiguity(texts: Sequence[str]) -> tuple[int, str] | None:
    """The first number such as 1.000, by its place and in words, unless another shows that its mark is decimal."""
    open_marks = [mark for mark in ".," if all(mark not in text or _THREE.fullmatch(text) for text in texts)]
    for place, text in enumerate(texts):
        if any(mark in text for mark in open_marks):
            whole, decimals = re.split("[.,]", text)
            one = f"{decimals}0" if decimals[-1] != "0" else decimals.rstrip("0") or "0"
            both = f"{whole}{decimals} or {float(f'{whole}.{decimals}'):g}"
            return place, f"{text} could be {both}; write {whole}{decimals} or {whole}.{one}"
    return None


def marks_of(path: Path, separator: str, skipped: int, numeric: Sequence[int]) -> NumberMarks:
    """Find the marks of the columns ``numeric`` of a file of prices.

    `MarketError` for a column whose every mark is followed by three digits, and for numbers that contradict the marks.
    """
    grouped = _MAY_BE_GROUPED.search(path.read_text("utf-8-sig")) is not None
    numbers = _numbers(path, separator, skipped, numeric)
    sample = list(numbers if grouped else islice(numbers, _SAMPLE * max(len(numeric), 1)))
    marks = marks_shown([text for _, _, text in sample], separator)
    if marks.thousands:
        for line, _, text in sample:
            if not marks.fits(text):
                says = (
                    f"other numbers of the file have {marks.thousands!r} between thousands, and {text!r} does not fit"
                )
                raise MarketError(f"{path}, line {line}: {says}; write numbers without marks between thousands")
        return marks
    by_column: dict[int, list[tuple[int, str]]] = {column: [] for column in numeric}
    for line, column, text in sample if grouped else ():
        by_column[column].append((line, text))
    for column, own in by_column.items():
        if (found := ambiguity([text for _, text in own])) is not None:
            raise MarketError(
                f"{path}, line {own[found[0]][0]}: {found[1]}, as with every value of column {column + 1}"
            )
    return marks


def _numbers(path: Path, separator: str, skipped: int, numeric: Sequence[int]) -> Iterator[tuple[int, int, str]]:
    """Line, column and text of every cell of the columns ``numeric`` that is a number."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        lines = csv.reader(file, delimiter=separator)
        for line in islice(lines, skipped, None):
            for column in numeric:
                text = line[column].strip() if column < len(line) else ""
                if _NUMBER.fullmatch(text):
                    yield lines.line_num, column, text
