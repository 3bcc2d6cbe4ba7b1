"""Evidence about rankings: the law's ranking knows no later bar, and returns are those after the fill."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from finflow.config import load_config
from finflow.training.data.training_data import prepare
from scripts.evidence.rankings import PLANTED, horizon_returns, law_of, measure_rankings

SMALL = {**PLANTED, "market.train_end": "2012-12-31", "market.validation_end": "2018-12-31"}


def test_the_laws_ranking_is_far_above_chance_and_knows_the_past_alone() -> None:
    data = prepare(load_config(None, dict(SMALL), environ={}))
    law = law_of(data)
    found = measure_rankings(data, {"law": law, "reversed": -law})
    assert found["law"] > 0.7  # the planted edge is far above the noise of five bars
    assert found["reversed"] < found["chance"] < found["law"]
    assert found["chance"] == pytest.approx(0.504, abs=0.001)  # of four assets with gains 0, 1, 3, 7 and two places
    bar = data.split.validation.start + 50
    close = data.panel.close.copy()
    close[bar:] *= np.linspace(1.0, 2.0, close.shape[1])
    changed = law_of(dataclasses.replace(data, panel=dataclasses.replace(data.panel, close=close)))
    np.testing.assert_array_equal(changed[: bar + data.process.lag], law[: bar + data.process.lag])
    assert not np.array_equal(changed[bar + data.process.lag], law[bar + data.process.lag])


def test_returns_are_those_after_the_fill_and_of_assets_that_reach_the_horizon() -> None:
    data = prepare(load_config(None, dict(SMALL), environ={}))
    process, window, horizon = data.process, data.split.train, 5
    process.listed = process.listed.copy()
    gone = process.first_bar + 60
    process.listed[gone:, 1] = False
    returns, candidates = horizon_returns(process, (window,), horizon)
    bars = np.flatnonzero(candidates.any(axis=1))
    assert (bars[0], bars[-1]) == (process.first_bar, window.stop - horizon - 1)
    close, bar = process.panel.close, int(bars[7])
    np.testing.assert_allclose(returns[bar], close[bar + horizon] / close[bar] - 1.0, rtol=0, atol=1e-12)
    assert candidates[gone - horizon - 1, 1]
    assert not candidates[gone - horizon :, 1].any()
    assert candidates[gone:, 0].any()
