"""Rewards in the audit: one over h bars may use bars up to h after the fill, and none later."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from finflow.env.rewards.chosen_reward import RewardSum, RewardTerm, named_constraint, named_rewards, with_reward
from finflow.evaluation.audit.look_ahead import Answer, Component, Rows
from finflow.market.panel import MarketPanel
from finflow.training.audit.audited_decisions import AuditedMarket

BEFORE = 40  # bars before the last one known at which decisions are rewarded
PURPOSE = 91  # of the generator that draws them


def audited_rewards(market: AuditedMarket) -> Iterator[Component]:
    """Every chosen reward on its own, one with a limit too; not the built-in one, which the environment's audit covers.

    Raises
    ------
    ConfigError
        If a reward cannot be used at all.
    """
    chosen = [of(market.config.objectives, market.panel.n_assets) for of in (named_rewards, named_constraint)]
    terms = {term.name: term for rewards in chosen if rewards is not None for term in rewards.terms}
    for term in terms.values():
        if term.reward is not None:
            yield Component(f"reward {term.name}", _answers(market, term))


def _answers(market: AuditedMarket, term: RewardTerm) -> Callable[[MarketPanel, int], Answer]:
    """Rewards of drawn decisions near a bar, each row at the last bar that the reward says it needs."""

    def answer(panel: MarketPanel, last: int) -> Answer:
        process = market.configured(panel, last)
        alone = RewardSum([replace(term, weight=1.0, unit=1.0)]).with_tables(process.of_panels)
        rewarded = with_reward(process, alone)
        first = max(last - term.horizon - BEFORE, 0)
        bars = np.asarray(rewarded.decision_bars(range(first, last + term.horizon + 2)), dtype=np.int64)
        if not len(bars):
            return {}
        rng = np.random.default_rng(np.random.SeedSequence([market.config.train.seed, PURPOSE, last]))
        held, targets = rng.dirichlet(np.ones(process.n_weights), (len(bars), 2)).swapaxes(0, 1)
        return {"reward": Rows(rewarded.step(rewarded.start(bars, held), targets).reward, bars + term.horizon)}

    return answer
