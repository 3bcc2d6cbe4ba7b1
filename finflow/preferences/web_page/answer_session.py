"""Questions to a person, and the answers: what is asked next, and what is kept in the file."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from finflow.config.preferences_section import JudgeConfig
from finflow.errors import FinflowError, OutputError
from finflow.preferences.pair_making import PAIRS, DrawnPair, draw_pairs, pair_generator
from finflow.preferences.pairs import Better, Pair, Segment, append_answer, check_grows, read_pairs, take_back_answer
from finflow.preferences.segment_paths import PortfolioPath, SegmentMarket

PURPOSE = 94  # of the generator that draws sides
Choice = Literal["left", "tie", "right"]


class Question(NamedTuple):
    """A pair of segments to be compared, first and second as in the file.

    ``turned`` where the second is shown on the left.
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
    are fewer questions where the market has not as many pairs. Errors are those of `draw_pairs`.
    """
    drawn = draw_pairs(market, max(count, PAIRS), config, pair_generator(seed))
    different: dict[frozenset[Segment], DrawnPair] = {}
    for pair in drawn:
        different.setdefault(frozenset(pair.segments), pair)
    kept = list(different.values())[:count]
    turned = np.random.default_rng(np.random.SeedSequence([PURPOSE, seed])).random(len(kept)) < 0.5
    return tuple(Question(pair.segments, pair.paths, bool(side)) for pair, side in zip(kept, turned, strict=True))


class StaleQuestionError(FinflowError):
    """An answer to a question that is not the one asked: of another tab, or of a key that was pressed twice."""


class AnswerProgress(NamedTuple):
    """Progress of a person through this list of questions; answers of earlier sessions count."""

    questions: int
    answered: int
    skipped: int


class AnswerSession:
    """Questions, and the file, lines of JSON, that their answers are added to at once.

    A question is answered when the file has its pair, so that a session goes on where the file ends: ``before`` is from
    `answers_so_far`. Skipped questions are not in the file, and are asked again in the next session. Threads may share
    a session.
    """

    def __init__(self, file: Path, questions: Sequence[Question], before: Sequence[Pair]) -> None:
        self.file, self.questions = file, questions
        self._lock = threading.Lock()
        self._skipped: set[int] = set()
        places = {frozenset(question.segments): number for number, question in enumerate(questions)}
        found = [places.get(frozenset((pair.first, pair.second))) for pair in before]
        self._answers = {number: pair for number, pair in zip(found, before, strict=True) if number is not None}
        own_end = next((n for n, number in enumerate(reversed(found)) if number is None), len(found))
        #: Questions in the order in which they were dealt with, as far as that can be undone.
        self._history = [number for number in found[len(found) - own_end :] if number is not None]
        self._before = len(self._answers)

    @property
    def current(self) -> int | None:
        """Number of the question to ask; None when all are answered or skipped."""
        open_ones = (n for n in range(len(self.questions)) if n not in self._answers and n not in self._skipped)
        return next(open_ones, None)

    @property
    def progress(self) -> AnswerProgress:
        """Progress so far."""
        return AnswerProgress(len(self.questions), len(self._answers), len(self._skipped))

    @property
    def can_undo(self) -> bool:
        """True where there is an answer or a skip to take back."""
        return bool(self._history)

    def line(self) -> str:
        """The session at its beginning, in a line."""
        answered = f", {self._before:,} of them answered before" if self._before else ""
        return f"{len(self.questions):,} pairs{answered}; answers are added to {self.file}"

    def answer(self, number: int | None, choice: Choice) -> None:
        """Add the answer to a question to the file.

        Parameters
        ----------
        number : int or None
            The question that the person saw.
        choice : {"left", "tie", "right"}

        Raises
        ------
        StaleQuestionError
            If another question is asked now.
        OutputError
            If the file cannot be written; the question stays open.
        """
        with self._lock:
            current = self._expect(number)
            if current is not None:
                pair = self.questions[current].answered(choice)
                append_answer(self.file, pair)
                self._answers[current] = pair
                self._history.append(current)

    def skip(self, number: int | None) -> None:
        """Leave a question out until the next session; parameters and errors as of `answer`."""
        with self._lock:
            current = self._expect(number)
            if current is not None:
                self._skipped.add(current)
                self._history.append(current)

    def undo(self, number: int | None) -> None:
        """Take the last answer back, out of the file too, or ask what was skipped last; nothing where there is none.

        Parameters and errors as of `answer`.
        """
        with self._lock:
            self._expect(number)
            if not self._history:
                return
            last = self._history[-1]
            if last in self._skipped:
                self._skipped.remove(last)
            else:
                take_back_answer(self.file, self._answers[last])
                del self._answers[last]
            self._history.pop()

    def close(self) -> str:
        """Take no more answers, and tell the session in a line."""
        self._lock.acquire()  # for good: an answer that is being written is finished first
        progress, added = self.progress, len(self._answers) - self._before
        changed = f"{added:,} answers added to" if added >= 0 else f"{-added:,} answers taken out of"
        left = progress.questions - progress.answered
        return f"{changed} {self.file}; {left:,} of {progress.questions:,} pairs are not answered"

    def _expect(self, number: int | None) -> int | None:
        if number != self.current:
            raise StaleQuestionError("the page is out of date: another question is shown now")
        return self.current


def answers_so_far(file: Path) -> tuple[Pair, ...]:
    """Answers in a file that a session goes on with; none where it does not exist.

    A FinflowError if it cannot be added to.
    """
    check_grows(file)
    if not file.exists():
        return ()
    if not os.access(file, os.W_OK):
        raise OutputError(f"cannot write {file}: it may only be read; choose another file")
    return read_pairs([file]).pairs if file.is_dir() or file.stat().st_size else ()
