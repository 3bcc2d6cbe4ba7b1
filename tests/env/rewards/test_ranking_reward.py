"""Ranking measures are scikit-learn's and those of tables by hand, ties included; gradients climb toward them."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.metrics import ndcg_score

import finflow
from finflow.arrays import FloatArray
from finflow.env.rewards.ranking_reward import create_reward_function, ranking_measure, relevance_of
from finflow.errors import ConfigError

coarse = st.integers(0, 4).map(float)  # few values: ties everywhere


@given(scores=arrays(np.float64, (6, 7), elements=coarse), grades=arrays(np.float64, (6, 7), elements=coarse))
@pytest.mark.parametrize("k", [1, 3, 7])
def test_ndcg_is_scikit_learns_ties_included(k: int, scores: FloatArray, grades: FloatArray) -> None:
    gains = 2.0**grades - 1.0
    found = ranking_measure("ndcg", scores, np.ones_like(scores, np.bool_), gains, k)
    expected = [ndcg_score(gain[None], score[None], k=k) for gain, score in zip(gains, scores, strict=True)]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_measures_worked_by_hand() -> None:
    """Scores .4 .3 .2 .1, returns 1 % 4 % 3 % 2 %; grades of 4: 0 3 2 1, gains 0 7 3 1.

    DCG@2 = 0 + 7 / log2(3) = 4.416508; the ideal is 7 + 3 / log2(3) = 8.892789. The best is second.
    """
    scores, returns = np.array([[0.4, 0.3, 0.2, 0.1]]), np.array([[0.01, 0.04, 0.03, 0.02]])
    everything = np.ones_like(returns, np.bool_)
    gains = relevance_of("ndcg", returns, everything, 4)
    np.testing.assert_array_equal(gains, [[0.0, 7.0, 3.0, 1.0]])
    found, best = ranking_measure("ndcg", scores, everything, gains, 2), relevance_of("hit", returns, everything, 4)
    discount = 1.0 / np.log2(3.0)
    assert found[0] == pytest.approx(7.0 * discount / (7.0 + 3.0 * discount), abs=1e-12)
    for name, k, value in (("hit", 1, 0.0), ("hit", 2, 1.0), ("mrr", 4, 0.5), ("mrr", 1, 0.0)):
        assert ranking_measure(name, scores, everything, best, k)[0] == value


@pytest.mark.parametrize("name", ["ndcg", "hit", "mrr"])
def test_ties_are_the_mean_over_all_orders(name: str) -> None:
    returns = np.array([0.03, -0.01, 0.02, 0.02, 0.05])
    orders = np.array(list(itertools.permutations(range(5))), dtype=np.float64)
    many = np.tile(returns, (len(orders), 1))
    reward = create_reward_function(name, k=2, grades=3)  # type: ignore[arg-type]
    equal = np.zeros((1, 5))
    assert reward.score(equal, many[:1])[0] == pytest.approx(reward.score(orders, many).mean(), abs=1e-12)


@given(scores=arrays(np.float64, (3, 6), elements=coarse), returns=arrays(np.float64, (3, 6), elements=coarse))
def test_assets_that_do_not_count_are_as_if_they_were_not_there(scores: FloatArray, returns: FloatArray) -> None:
    reward = create_reward_function("mixed", k=2, grades=3)
    candidates = np.ones_like(scores, np.bool_)
    candidates[:, [1, 4]] = False
    kept = [0, 2, 3, 5]
    np.testing.assert_allclose(
        reward.score(scores, returns, candidates), reward.score(scores[:, kept], returns[:, kept]), atol=1e-12
    )
    unknown = returns.copy()
    unknown[:, [1, 4]] = np.nan
    np.testing.assert_allclose(reward.score(scores, unknown), reward.score(scores, returns, candidates), atol=1e-12)


def test_a_row_without_anything_to_rank_earns_nothing() -> None:
    scores = np.array([[0.2, 0.8], [0.2, 0.8], [0.5, 0.5]])
    returns = np.array([[np.nan, 0.1], [np.nan, np.nan], [0.0, 0.0]])
    assert create_reward_function("mrr", k=1).score(scores, returns)[:2].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("name", ["ndcg", "hit", "mrr", "mixed"])
def test_the_gradient_climbs_toward_the_best_ranking(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The value of tensors is the exact one, and following its gradient ranks nearly as well as can be."""
    monkeypatch.setattr("finflow.env.rewards.ranking_reward.TEMPERATURE", 0.5)  # few steps suffice
    rng = np.random.default_rng(1)
    returns = torch.tensor(rng.normal(size=(4, 6)))
    logits = torch.tensor(0.1 * rng.normal(size=(4, 6)), requires_grad=True)
    reward = create_reward_function(name, k=3)  # type: ignore[arg-type]
    optimiser = torch.optim.Adam([logits], lr=0.1)
    begun = reward.score(logits.detach().softmax(-1), returns)
    for _ in range(200):
        value = reward.score(logits.softmax(-1), returns)
        exact = reward.score(logits.detach().softmax(-1).numpy(), returns.numpy())
        np.testing.assert_allclose(value.detach().numpy(), exact, rtol=0, atol=1e-12)
        optimiser.zero_grad()
        (-value.sum()).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    best = reward.score(returns, returns)
    after = reward.score(logits.detach().softmax(-1), returns)
    assert bool((after >= 0.92 * best).all())
    assert bool((after.sum() > begun.sum()).all())


def test_a_reward_function_is_created_by_name() -> None:
    reward = finflow.create_reward_function(reward_type="mixed", k=10, horizon=5, ndcg_weight=0.7, hit_weight=0.3)
    assert (reward.horizon, reward.config.k, reward.config.type) == (5, 10, "mixed")
    rng = np.random.default_rng(2)
    scores, returns = rng.normal(size=(2, 5, 12))
    parts = [finflow.create_reward_function(one, k=10).score(scores, returns) for one in ("ndcg", "hit")]
    np.testing.assert_allclose(reward.score(scores, returns), 0.7 * parts[0] + 0.3 * parts[1], atol=1e-15)


@pytest.mark.parametrize(
    "wrong", [{"reward_type": "map"}, {"k": 0}, {"horizon": 0}, {"ndcg_weight": -1.0}, {"grade": 3}]
)
def test_wrong_options_are_one_line(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"create_reward_function: {next(iter(wrong))}"):
        create_reward_function(**wrong)


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("model_name", "bcell.hidden_dim"),
        ("max_length", "env.episode_length"),
        ("max_new_tokens", "--segment"),
        ("dataset_name", "market.source"),
        ("retrieval_service_name", "features.extra"),
    ],
)
def test_arguments_of_text_models_are_answered_with_what_stands_in_their_place(name: str, instead: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name} belongs to text models.*{instead}"):
        create_reward_function("ndcg", 10, **{name: "x"})


def test_a_call_with_texts_is_one_line() -> None:
    reward = create_reward_function()
    with pytest.raises(ConfigError, match=r"^generated_texts belongs to text models.*RewardContext, or score"):
        reward(generated_texts=["a", "b"])
    for call in (lambda: reward(prompts=["a"]), lambda: reward(["a"]), reward):
        with pytest.raises(ConfigError, match="is called with a RewardContext; score"):
            call()


def test_scores_and_returns_have_one_shape() -> None:
    with pytest.raises(ValueError, match="shape"):
        create_reward_function().score(np.zeros((2, 3)), np.zeros((2, 4)))
