"""What is known of synthetic markets: expected returns, rankings and beliefs, from the past alone."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from finflow.config import load_config
from finflow.market.panel import MarketPanel
from finflow.market.sources.panel_loader import load_panel
from finflow.training.data.training_data import prepare
from scripts.evidence import rankings
from scripts.evidence.belief_ceiling import ceiling_of
from scripts.evidence.known_state import expected_returns
from scripts.evidence.rankings import horizon_returns, law_of, measure_rankings
from scripts.evidence.rollouts import LOG_RETURN, OWN, PLANTED, rollout_variants

SMALL = {**rankings.PLANTED, "market.train_end": "2012-12-31", "market.validation_end": "2018-12-31"}


def market(kind: str, bars: int = 4000) -> MarketPanel:
    keys = {"market.source": "synthetic", "market.synthetic.kind": kind, "market.synthetic.bars": bars}
    return load_panel(load_config(None, keys, environ={}).market)


@pytest.mark.parametrize("kind", ["lognormal", "constant-drift", "mean-reverting", "regime", "exchangeable"])
def test_returns_are_on_average_what_was_expected(kind: str) -> None:
    """Regressed on what was expected, the next returns have a slope of one, within three standard errors."""
    panel = market(kind, 20_000)
    expected, returns = expected_returns(panel)[:-1], panel.close[1:] / panel.close[:-1] - 1.0
    assert expected.shape == returns.shape
    apart = returns - expected
    assert np.all(np.abs(apart.mean(axis=0)) < 4.0 * apart.std(axis=0) / np.sqrt(len(apart)))
    spread, lead = expected[:, 0] - expected[:, -1], returns[:, 0] - returns[:, -1]
    if kind in ("mean-reverting", "regime"):
        slope = spread @ lead / (spread @ spread)
        error = (lead - slope * spread).std() / np.sqrt(spread @ spread)
        assert abs(slope - 1.0) < 3.0 * error < 0.3
    else:
        assert np.ptp(spread) == pytest.approx(0.0, abs=1e-15)  # the past says nothing
        assert (spread[0] > 1e-4) == (kind != "exchangeable")


@pytest.mark.parametrize("kind", ["mean-reverting", "regime"])
def test_later_prices_change_nothing(kind: str) -> None:
    panel = market(kind)
    close = panel.close.copy()
    close[3000:] *= 1.5
    changed = expected_returns(dataclasses.replace(panel, close=close))
    np.testing.assert_array_equal(changed[:3000], expected_returns(panel)[:3000])
    assert not np.array_equal(changed[3000:], expected_returns(panel)[3000:])


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


def test_every_market_learns_with_the_same_values_on_samples_of_its_own(tmp_path: Path) -> None:
    """Keys of the agent and of its training are alike on all planted markets; only the market's own differ."""
    variants = [one for one in rollout_variants(2) if one.name.removeprefix("rollouts-") in PLANTED]
    assert len(variants) == len(PLANTED)
    learning = [
        {key: value for key, value in one.overrides.items() if key.startswith(("bcell.", "train.", "features."))}
        for one in variants
    ]
    assert all(keys == learning[0] for keys in learning)
    for one in variants:
        assert len({one.config(seed, tmp_path).market.synthetic.seed for seed in one.seeds}) == 2


def test_the_belief_can_be_read_off_the_features(tmp_path: Path) -> None:
    """The optimal rule by a belief that the encoder guesses is far from equal weight; more updates come nearer to 1."""
    market = {"market.source": "synthetic", "market.synthetic.kind": "mean-reverting", "market.synthetic.bars": 6000}
    keys = {**LOG_RETURN, **OWN["mean-reverting"], **market, "market.cache_dir": str(tmp_path)}
    keys |= {"market.train_end": "2014-12-31", "market.validation_end": "2018-12-31"}
    score = ceiling_of(prepare(load_config(None, keys, environ={})), seed=0, updates=200)
    assert 0.6 < score < 1.1
