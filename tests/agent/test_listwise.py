"""Experts that learn to rank: the losses are those of the papers, and what is not known teaches nothing."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import ndcg_score

from finflow.agent.losses.listwise import ListwiseTargets


def targets(
    loss: str, relevance: list[list[float]], known: list[list[bool]] | None = None, k: int = 2
) -> ListwiseTargets:
    values = torch.tensor(relevance)
    candidates = torch.ones_like(values, dtype=torch.bool) if known is None else torch.tensor(known)
    return ListwiseTargets(loss, 1.0, k, 1e-4, values, candidates)  # type: ignore[arg-type]


def portfolios(*assets: list[float], cash: float = 0.4) -> torch.Tensor:
    """One state's experts, (1, experts, K): shares of the assets beside cash."""
    shares = torch.tensor(assets)
    shares = (1.0 - cash) * shares / shares.sum(dim=1, keepdim=True)
    return torch.cat([shares, torch.full((len(assets), 1), cash)], dim=1).unsqueeze(0)


def test_softmax_is_the_cross_entropy_of_the_shares_among_the_assets() -> None:
    experts = portfolios([1.0, 2.0, 5.0], [1.0, 1.0, 1.0])
    wanted = np.exp([0.0, 1.0, -1.0]) / np.exp([0.0, 1.0, -1.0]).sum()
    said = np.log([[1 / 8, 2 / 8, 5 / 8], [1 / 3, 1 / 3, 1 / 3]])
    found = targets("softmax", [[0.0, 1.0, -1.0]]).penalty(experts)
    assert float(found) == pytest.approx(-(wanted * said).sum(axis=1).mean(), rel=1e-6)
    more_cash = targets("softmax", [[0.0, 1.0, -1.0]]).penalty(portfolios([1.0, 2.0, 5.0], [1.0] * 3, cash=0.9))
    assert float(more_cash) == pytest.approx(float(found), rel=1e-6)


def test_ndcg_is_one_less_the_measure_where_places_are_nearly_sharp() -> None:
    gains = [[15.0, 0.0, 3.0, 1.0]]
    experts = portfolios([0.1, 0.2, 0.3, 0.4], [0.4, 0.1, 0.3, 0.2])
    scores = experts[0, :, :-1].numpy()
    exact = [ndcg_score(gains, scores[None, one], k=2) for one in range(2)]
    # a smooth cut gives the K-th place exp(-2) less than its share, and the next one as much
    assert float(targets("ndcg", gains).penalty(experts)) == pytest.approx(1.0 - np.mean(exact), abs=0.06)
    best = portfolios([0.4, 0.1, 0.3, 0.2])
    assert float(targets("ndcg", gains).penalty(best)) < float(
        targets("ndcg", gains).penalty(portfolios([0.1, 0.4, 0.2, 0.3]))
    )


@pytest.mark.parametrize("loss", ["softmax", "ndcg"])
def test_assets_without_a_known_return_teach_nothing(loss: str) -> None:
    logits = torch.tensor([[[0.3, -0.2, 0.1, 0.5, 0.0]]], requires_grad=True)
    known = [[True, True, False, False]]
    whole = ListwiseTargets(loss, 1.0, 1, 0.5, torch.tensor([[3.0, 0.0, 9.0, -9.0]]), torch.tensor(known))  # type: ignore[arg-type]
    whole.penalty(torch.softmax(logits, dim=-1)).backward()
    assert logits.grad is not None
    moved = logits.grad[0, 0, :2].abs()
    other = whole._replace(relevance=torch.tensor([[3.0, 0.0, 1.0, 2.0]]))
    portfolio = torch.softmax(logits, dim=-1).detach()
    assert float(other.penalty(portfolio)) == float(whole.penalty(portfolio))
    assert bool((moved > 1e-4).all())
    alone = whole._replace(candidates=torch.tensor([[True, False, False, False]]))
    nothing = alone.penalty(torch.softmax(logits, dim=-1))
    assert math.isfinite(nothing.item())
    (gradient,) = torch.autograd.grad(nothing, logits)
    assert bool((gradient == 0.0).all())


def test_rows_are_those_of_the_bars() -> None:
    table = targets("softmax", [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]], [[True, True, True], [True, False, True]])
    some = table.rows(torch.tensor([1, 0]))
    assert some.relevance.tolist() == [[3.0, 4.0, 5.0], [0.0, 1.0, 2.0]]
    assert some.candidates.tolist() == [[True, False, True], [True, True, True]]
