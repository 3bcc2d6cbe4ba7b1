"""The statistic of foreknowledge: one for an oracle, nothing for a tilt or luck, and honest optima under the limit."""

from __future__ import annotations

import numpy as np
import pytest
import scipy
from numpy.typing import NDArray

from finflow.config import load_config
from finflow.strategies.classical import EqualWeight
from finflow.strategies.optimal_policy import optimum_of
from finflow.training.audit.audited_foreknowledge import decided_views
from finflow.training.audit.foreknowledge import FLOOR, Foreknowledge, UnknownReturns, View, ranks_of, scores_of
from finflow.training.data.training_data import prepare

FloatArray = NDArray[np.float64]


def returns(seed: int = 0, rows: int = 800, assets: int = 6) -> FloatArray:
    return 0.01 * np.random.default_rng(seed).standard_normal((rows, assets))


def one_hot(places: NDArray[np.int64], assets: int = 6) -> FloatArray:
    return np.eye(assets)[places]


def test_the_score_of_one_asset_is_its_rank_whatever_the_ties_of_the_others() -> None:
    moves = returns()
    best, worst = one_hot(moves.argmax(axis=1)), one_hot(moves.argmin(axis=1))
    for sizes, value in ((best, 1.0), (worst, -1.0)):
        whole, *blocks = scores_of(View("picks", sizes), UnknownReturns.of("returns", moves), 0, FLOOR)
        assert whole.value == pytest.approx(value, abs=0.05)  # less the placebos' mean, which is luck alone
        assert len(blocks) == 8
        assert [row for block in blocks for row in block.rows] == list(whole.rows) == list(range(800))


def test_of_ranks_it_is_spearmans_correlation_less_that_of_other_dates() -> None:
    moves = returns()
    signal = moves + 2.0 * returns(1)
    whole = scores_of(View("signal", ranks_of(signal)), UnknownReturns.of("returns", moves), 0, FLOOR)[0]
    pairs = zip(signal, moves, strict=True)
    mean = np.mean([scipy.stats.spearmanr(left, right).statistic for left, right in pairs])
    tilt = np.mean(np.sum(ranks_of(signal) * ranks_of(moves).mean(axis=0), axis=1)) / np.sum(ranks_of(moves)[0] ** 2)
    assert whole.value == pytest.approx(mean - tilt, abs=1e-9)


def test_a_lasting_tilt_to_what_rises_foretells_no_date() -> None:
    moves = returns() + np.linspace(-0.01, 0.01, 6)
    held = np.tile(np.eye(6)[5], (800, 1))
    assert abs(scores_of(View("held", held), UnknownReturns.of("returns", moves), 0, FLOOR)[0].value) < 1e-12


def test_the_spread_of_the_placebos_is_that_of_luck() -> None:
    """A hundred pickers without knowledge: their scores vary as the placebos of one of them."""
    moves, rng = returns(), np.random.default_rng(5)
    outcome = UnknownReturns.of("returns", moves)
    lucky = [scores_of(View("luck", one_hot(rng.integers(0, 6, 800))), outcome, 0, FLOOR)[0] for _ in range(100)]
    deviation = float(np.std([score.value for score in lucky]))
    assert np.mean([score.spread for score in lucky]) == pytest.approx(deviation, rel=0.25)  # of 100: 7 % each
    assert all(score.share == 0.0 for score in lucky)


def test_few_trades_that_outweigh_all_others_prove_nothing() -> None:
    """Two large trades against a lasting drift, on the rare days when it pauses, were taken for foreknowledge."""
    moves = returns() + np.linspace(-0.03, 0.03, 6)
    sizes = 1e-3 * one_hot(np.zeros(800, dtype=np.int64))
    sizes[[150, 350]] = one_hot(moves[[150, 350]].argmax(axis=1))
    found = scores_of(View("trades", sizes), UnknownReturns.of("returns", moves), 0, FLOOR)
    assert len(found) == 6  # the two blocks with those trades are left out, and so are all decisions together
    assert not any(row in score.rows for score in found for row in (150, 350))


@pytest.mark.parametrize("kind", ["lognormal", "mean-reverting"])
def test_the_optimal_policy_of_a_planted_market_is_not_flagged(kind: str) -> None:
    keys = {"market.source": "synthetic", "market.synthetic.kind": kind, "market.synthetic.bars": 2000}
    windows = {"market.train_end": "2018-12-31", "market.validation_end": "2020-12-31"}
    quick = {"features.filters": "none", "features.regimes": False}
    config = load_config(None, {**keys, **windows, **quick}, environ={})
    data, optimum = prepare(config), optimum_of(config.market, config.env)
    window, test = range(data.split.train_end, data.split.test_end), Foreknowledge(data.panel.close)
    assert list(test.scores(*decided_views(data.held_out_process(), window, optimum.policy))) == []
    assert list(test.scores(*decided_views(data.held_out_process(), window, EqualWeight()))) == []
    limits = [test.limit(0, 1, False), test.limit(0, 5, False)]
    # What can be foretold of a market from its past raises the limit, and only there.
    assert all(limit >= FLOOR for limit in limits)
    if kind == "mean-reverting":
        assert limits[0] > 1.5 * FLOOR
