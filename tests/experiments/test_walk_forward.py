"""Folds are skfolio's, and nothing that a fold is judged on can be seen by its training."""

from __future__ import annotations

from itertools import combinations
from typing import get_args

import pytest

from finflow.config import ProtocolConfig
from finflow.errors import MarketError
from finflow.experiments.jobs.walk_forward import HISTORY, Fold, Protocol, folds_of

BARS = 6550  # before the test window of the embedded market


def seen(fold: Fold) -> set[int]:
    return {bar for piece in fold.pieces for bar in piece}


@pytest.mark.parametrize("protocol", get_args(Protocol))
@pytest.mark.parametrize("purge", [None, 0, 100])
def test_a_training_sees_no_bar_that_it_is_judged_on(protocol: Protocol, purge: int | None) -> None:
    for fold in folds_of(protocol, BARS, ProtocolConfig(purge=purge)):
        for test in fold.tests:
            assert not seen(fold) & set(test)


def test_walk_forward_judges_the_bars_after_the_first_share_once_and_learns_only_from_the_past() -> None:
    folds = folds_of("walk-forward", BARS, ProtocolConfig())
    judged = [bar for fold in folds for test in fold.tests for bar in test]
    assert judged == list(range(judged[0], BARS))
    assert BARS / 2 - 5 <= judged[0] - HISTORY <= BARS / 2 + 5
    for fold in folds:
        assert fold.pieces == (range(0, fold.tests[0].start - HISTORY),)


def test_the_paths_of_purged_folds_each_judge_every_bar_once() -> None:
    settings = ProtocolConfig()
    folds = folds_of("cpcv", BARS, settings)
    assert len(folds) == len(list(combinations(range(6), 2))) == 15
    paths: dict[int, list[int]] = {}
    for fold in folds:
        for test, path in zip(fold.tests, fold.paths, strict=True):
            paths.setdefault(path, []).extend(test)
    assert len(paths) == 5
    assert all(sorted(bars) == list(range(BARS)) for bars in paths.values())


def test_after_a_judged_window_come_the_embargo_and_then_bars_that_are_history_alone() -> None:
    """Between two judged windows 1091 bars apart: 252 are purged before the second, 21 are held out after the first."""
    fold = next(one for one in folds_of("cpcv", BARS, ProtocolConfig()) if one.tests[0].start == 0 and one.number == 2)
    first, second = fold.tests
    assert fold.pieces[0] == range(first.stop + 21, second.start - HISTORY)
    without = folds_of("cpcv", BARS, ProtocolConfig(purge=0, embargo=0))[1]
    assert without.pieces[0] == range(first.stop, second.start)


def test_a_checkpoint_is_chosen_by_the_last_of_the_bars_that_are_seen() -> None:
    fold = folds_of("walk-forward", BARS, ProtocolConfig(validation_share=0.1))[0]
    assert fold.validation == int(0.1 * len(fold.pieces[0]))


@pytest.mark.parametrize(
    ("protocol", "bars", "groups", "words"),
    [
        ("walk-forward", 500, 6, "500 bars before the test window are too few for 5 folds"),
        ("walk-forward", 520, 6, "520 bars"),
        ("cpcv", 1600, 6, "6 groups of the 1600 bars before the test window have 266 bars each"),
        ("cpcv", 1522, 3, "fold 2 of the cpcv protocol has too few bars"),
    ],
)
def test_too_few_bars_are_told(protocol: Protocol, bars: int, groups: int, words: str) -> None:
    with pytest.raises(MarketError, match=words):
        folds_of(protocol, bars, ProtocolConfig(groups=groups))
