"""What experts learn to rank by: returns after decisions of the training window, and none that were not known in it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from finflow.config import Config
from finflow.errors import ConfigError
from finflow.training.data.replay import MarketTensors
from finflow.training.data.return_rankings import horizon_returns, in_deviations, return_rankings
from finflow.training.data.training_data import prepare
from finflow.training.out_of_fold.blocks import training_blocks
from finflow.training.trainer import FinFlowTrainer
from tests.short_trainings import write_market

CPU = torch.device("cpu")
MakeTiny = Callable[..., Config]
HORIZON = 5
NDCG = {"bcell__expert_ranking": "ndcg", "objectives__ranking__k": 2}


def test_returns_are_those_after_the_fill_and_end_in_the_window(tiny: MakeTiny) -> None:
    training_data = prepare(tiny())
    process, window = training_data.process, training_data.split.train
    returns, candidates = horizon_returns(process, (window,), HORIZON)
    bars = np.flatnonzero(candidates.any(axis=1))
    assert (bars[0], bars[-1]) == (process.first_bar, window.stop - HORIZON - 1)
    close, bar = process.panel.close, int(bars[7])
    np.testing.assert_allclose(returns[bar], close[bar + HORIZON] / close[bar] - 1.0, rtol=0, atol=1e-12)
    deviations = in_deviations(returns, candidates)
    np.testing.assert_allclose(deviations[bars].mean(axis=1), 0.0, atol=1e-12)
    np.testing.assert_allclose(deviations[bars].std(axis=1), 1.0, atol=1e-12)


@pytest.mark.parametrize("loss", ["softmax", "ndcg"])
def test_prices_after_the_training_window_change_nothing(tiny: MakeTiny, tmp_path: Path, loss: str) -> None:
    keys = NDCG | {"bcell__expert_ranking": loss}
    config = tiny(**keys)
    other = write_market(tmp_path / "other.csv", changed_after=str(config.market.train_end))
    tables = [return_rankings(one, prepare(one), CPU) for one in (config, tiny(**keys, market__path=str(other)))]
    assert tables[0] is not None
    assert tables[1] is not None
    assert torch.equal(tables[0].relevance, tables[1].relevance)
    assert torch.equal(tables[0].candidates, tables[1].candidates)
    assert float(tables[0].relevance.abs().sum()) > 0.0


def test_blocks_are_purged_by_the_horizon(tiny: MakeTiny) -> None:
    gaps = []
    for keys in ({}, NDCG | {"objectives__ranking__horizon": 9}):
        training_data = prepare(tiny(out_of_fold__blocks=2, **keys))
        block = training_blocks(training_data.config, training_data)[1]
        gaps.append(block.held_out.start - block.learned[0].stop)
    assert gaps[1] - gaps[0] == 8  # a reward reaches one bar ahead


def test_an_asset_that_does_not_reach_the_horizon_is_no_candidate(tiny: MakeTiny) -> None:
    training_data = prepare(tiny())
    process = training_data.process
    listed, gone = process.listed.copy(), process.first_bar + 60
    listed[gone:, 1] = False
    process.listed = listed
    _, candidates = horizon_returns(process, (training_data.split.train,), HORIZON)
    assert candidates[gone - HORIZON - 1, 1]
    assert not candidates[gone - HORIZON :, 1].any()
    assert candidates[gone:, 0].any()


def test_more_places_than_assets_are_refused_in_one_line(tiny: MakeTiny) -> None:
    config = tiny(**NDCG | {"objectives__ranking__k": 9})
    with pytest.raises(ConfigError, match=r"objectives.ranking.k = 9: the market has 4 assets"):
        return_rankings(config, prepare(config), CPU)


@pytest.mark.parametrize("loss", ["softmax", "ndcg"])
def test_experts_learn_to_rank_by_what_is_planted(tiny: MakeTiny, tmp_path: Path, loss: str) -> None:
    """One asset grows far faster than another: after 56 updates the loss is less than without it in what is learned."""
    prices = write_market(tmp_path / "prices.csv")
    text = np.genfromtxt(prices, delimiter=",", dtype=str)
    drift = np.exp(np.outer(np.arange(len(text) - 1), [0.004, 0.0, 0.0, -0.004]))
    text[1:, 1:] = np.char.mod("%.8f", text[1:, 1:].astype(float) * drift)
    np.savetxt(prices, text, fmt="%s", delimiter=",")
    penalties = {}
    for kind in ("none", loss):
        keys = NDCG | {
            "bcell__expert_ranking": kind,
            "bcell__expert_ranking_weight": 10.0,
            "bcell__actor_lr": 1e-2,
            "bcell__critic_lr": 3e-4,
            "bcell__tau": 0.005,
            "bcell__iql_extraction": "awr",  # by the gradient experts learn from returns as well
            "offline__counterfactual": False,
            "bcell__expert_cloning": 1.0,
            "train__offline_training_epochs": 8,
        }
        trainer = FinFlowTrainer(tiny(**keys, market__path=str(prices)))
        metrics = trainer.train_iql()
        assert ("ranking_loss" in metrics) == (kind != "none")
        learner = trainer._begin().state.learner
        assert learner is not None
        training_data = trainer.training_data
        bars = torch.arange(training_data.split.train.start + 70, training_data.split.train.stop - 1)
        market = MarketTensors.of(training_data.process, CPU)
        states = market.states(bars, torch.zeros(len(bars), training_data.process.portfolio_size))
        experts = learner.policy.read_market(states).experts
        rankings = return_rankings(tiny(**NDCG | {"bcell__expert_ranking": loss}), training_data, CPU)
        assert rankings is not None
        penalties[kind] = float(rankings.rows(bars).penalty(experts).detach())
    assert penalties[loss] < 0.92 * penalties["none"]  # .66 to .85 with three seeds
