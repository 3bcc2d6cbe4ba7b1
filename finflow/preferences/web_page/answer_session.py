"""Questions to a person, and the answers: what is asked next, and what is kept in the file."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from finflow.config.preferences_section import JudgeConfig
from finflow.errors import FinflowError
from finflow.line_file import append_line, drop_last_line
from finflow.preferences.judged_pairs import PAIRS, DrawnPair, draw_pairs, pair_generator
from finflow.preferences.pairs import Better, Pair, Segment, json_line, read_pairs
from finflow.preferences.segment_paths import PortfolioPath, SegmentMarket

PURPOSE = 94  # of the generator that draws sides
Choice = Literal["left", "tie", "right"]


class Question(NamedTuple):
    """A pair of segments to be compared.

    Attributes
    ----------
    segments : tuple of Segment
        First and second, as in the file.
    paths : tuple of PortfolioPath
        Of the first and the second.
    turned : bool
        True where the second is shown on the left.
    """

    segments: tuple[Segment, Segment]
    paths: tuple[PortfolioPath, PortfolioPath]
    turned: bool

    @property
    def shown(self) -> tuple[PortfolioPath, PortfolioPath]:
        """Paths on the left and on the right."""
        first, second = self.paths
        return (second, first) if self.turned else (first, second)

    def answered(self, choice: Choice) -> Pair:
        """The pair with an answer."""
        if choice == "tie":
            better: Better = "tie"
        else:
            better = "second" if (choice == "left") == self.turned else "first"
        return Pair(first=self.segments[0], second=self.segments[1], better=better, chance=None)


def make_questions(market: SegmentMarket, count: int, config: JudgeConfig, seed: int) -> tuple[Question, ...]:
    """Draw questions: the first of the pairs that a judge is given by the same seed, none of them twice.

    At least `PAIRS` pairs are drawn, so that a larger number of questions goes on after those of a smaller one. There
    are fewer than ``count`` where the market has not as many pairs. Errors as of `draw_pairs`.
    """
    different: dict[frozenset[Segment], DrawnPair] = {}
    for pair in draw_pairs(market, max(count, PAIRS), config, pair_generator(seed)):
        different.setdefault(frozenset(pair.segments), pair)
    kept = list(different.values())[:count]
    turned = np.random.default_rng(np.random.SeedSequence([PURPOSE, seed])).random(len(kept)) < 0.5
    return tuple(Question(pair.segments, pair.paths, bool(side)) for pair, side in zip(kept, turned, strict=True))


class StaleQuestionError(FinflowError):
    """An answer to a question that is not the one asked: of another tab, or of a key that was pressed twice."""


class AnswerSession:
    """Questions, and the file that their answers are added to at once.

    A question is answered when the file has its pair, so that a session goes on where the file ends. Skipped questions
    are not in the file, and are asked again in the next session. Threads may share a session.

    Parameters
    ----------
    file : Path
        Lines of JSON; made by the first answer.
    before : sequence of Pair
        Answers that the file has, from `answers_so_far`.
    """

    def __init__(self, file: Path, questions: Sequence[Question], before: Sequence[Pair]) -> None:
        self.file, self.questions = file, questions
        self._lock = threading.Lock()
        told = {frozenset((pair.first, pair.second)) for pair in before}
        self._before = {number for number, one in enumerate(questions) if frozenset(one.segments) in told}
        #: Question -> its answer, None where it was skipped, of this session; the latest last.
        self._dealt: dict[int, Pair | None] = {}

    @property
    def current(self) -> int | None:
        """Number of the question to ask; None when all are answered or skipped."""
        done = self._before | self._dealt.keys()
        return next((number for number in range(len(self.questions)) if number not in done), None)

    @property
    def skipped(self) -> int:
        """Questions that were skipped."""
        return sum(pair is None for pair in self._dealt.values())

    @property
    def answered(self) -> int:
        """Questions of the list that are answered, those of earlier sessions too."""
        return len(self._before) + len(self._dealt) - self.skipped

    @property
    def can_undo(self) -> bool:
        """True where there is an answer or a skip of this session to take back."""
        return bool(self._dealt)

    def line(self) -> str:
        """The session at its beginning, in a line."""
        answered = f", {len(self._before):,} of them answered before" if self._before else ""
        return f"{len(self.questions):,} pairs{answered}; answers are added to {self.file}"

    def act(self, number: int | None, act: Choice | Literal["skip", "undo"]) -> None:
        """Answer a question in the file, skip it until the next session, or take back what was done last.

        Parameters
        ----------
        number : int or None
            The question that the person saw.

        Raises
        ------
        StaleQuestionError
            If another question is asked now.
        OutputError
            If the file cannot be written; nothing has changed then.
        """
        with self._lock:
            if number != self.current:
                raise StaleQuestionError("the page is out of date: another question is shown now")
            if act == "undo":
                if self._dealt:
                    last, pair = next(reversed(self._dealt.items()))
                    if pair:
                        drop_last_line(self.file, json_line(pair))
                    del self._dealt[last]
            elif number is not None:
                pair = None if act == "skip" else self.questions[number].answered(act)
                if pair:
                    append_line(self.file, json_line(pair))
                self._dealt[number] = pair

    def close(self) -> str:
        """Take no more answers, and tell the session in a line."""
        self._lock.acquire()  # for good: an answer that is being written is finished first
        added, count = self.answered - len(self._before), len(self.questions)
        return f"{added:,} answers added to {self.file}; {count - self.answered:,} of {count:,} pairs are not answered"


def answers_so_far(file: Path) -> tuple[Pair, ...]:
    """Answers in a file that a session goes on with; none where it does not exist or is empty.

    Raises
    ------
    FinflowError
        If it is named as a CSV file, or a line of it is no pair.
    """
    if file.suffix.lower() == ".csv":
        raise FinflowError(f"answers are added to files of JSON lines, not to {file}: name one that ends with .jsonl")
    if not file.exists() or (file.is_file() and not file.stat().st_size):
        return ()
    return read_pairs([file]).pairs
