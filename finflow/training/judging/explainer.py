"""Explanation of an agent's decisions: from its networks to the plain tables of an evaluation.

A decision is attributed to the features by integrated gradients (Sundararajan, Taly and Yan 2017; by captum), from a
baseline: docs/reference/report.md, Why it traded. All runs in double precision on the CPU, on a copy of the policy.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from finflow.agent.batch import States, states_of
from finflow.agent.networks.decision import Decision, describe_holding
from finflow.agent.networks.policy import ExpertPolicy
from finflow.arrays import FloatArray
from finflow.env.decision_process import DecisionProcess
from finflow.evaluation.analysis.attribution import (
    Dated,
    Explanation,
    Influence,
    IntegratedGradients,
    Weights,
    attribute,
    largest_trades,
)
from finflow.evaluation.backtest import Backtest
from finflow.market.features.feature_set import Features

CPU = torch.device("cpu")
FIRST_STEPS, MOST_STEPS = 64, 1024
TOLERANCE = 1e-4  # of wealth: a hundredth of a percent of the portfolio
ROWS_AT_ONCE = 512


REWARD_STATE = ("recent return", "recent squared return", "drawdown so far")
TRADES = 3  # whose targets are divided among the features, each


class Shares(NamedTuple):
    """Parts that features have in some scalars of a decision."""

    assets: Tensor  # (targets, assets, F)
    market: Tensor  # (targets, M)
    reward_state: Tensor  # (targets, 3)
    value: Tensor  # (targets,): the scalars at the state
    baseline: Tensor  # (targets,): at the baseline
    error: Tensor  # (targets,): sum of the parts less (value - baseline)
    steps: int  # of the quadrature


def in_double(policy: ExpertPolicy) -> ExpertPolicy:
    """A copy on the CPU in double precision, whose parameters need no gradients."""
    exact = copy.deepcopy(policy).cpu().double().requires_grad_(False)
    for part in exact.modules():
        if isinstance(part, ExpertPolicy):
            part.keeps_slope = True
    return exact


def states_at(process: DecisionProcess, bar: int, portfolio: FloatArray) -> States:
    """State with the features of a bar and what is observed of a portfolio, (K + 3,), in double precision."""
    observation = {"assets": process.asset_features[bar].copy(), "market": process.market_features[bar].copy()}
    return states_in_double(states_of(observation | {"portfolio": portfolio}, CPU))


def states_in_double(states: States) -> States:
    assets, market, portfolio = (tensor.cpu().double() for tensor in states[:3])
    return States(assets, market, portfolio, states.complete)


def centre_of(decision: Decision) -> Tensor:
    """Portfolio that a decision names, (batch, K)."""
    return decision.distribution.centre()


def integrated_gradients(
    policy: ExpertPolicy,
    states: States,
    directions: Tensor,
    *,
    since: States | None = None,
    read: Callable[[Decision], Tensor] = centre_of,
) -> Shares:
    """Divide ``directions @ centre`` of one decision, less that at a baseline, among the features.

    Parameters
    ----------
    policy, states
        From `in_double`, and one state from `states_in_double`; weights held and listing are the same along the path.
    directions : Tensor, (targets, K)
        Each names a scalar, the centre's product with it.
    since : States, optional
        The baseline, of which the features alone are taken; features at their training mean when left out.
    read : callable
        Portfolio of a decision that stands in for the centre.
    """
    from captum.attr import IntegratedGradients

    targets, weights = len(directions), states.weights
    listed, complete = states.assets[:, :, -1:], states.complete

    def scalars(assets: Tensor, market: Tensor, reward_state: Tensor, direction: Tensor) -> Tensor:
        rows = len(market)
        flagged = torch.cat([assets, listed.expand(rows, -1, -1)], dim=-1)
        portfolio = torch.cat([weights.expand(rows, -1), reward_state], dim=-1)
        decision = policy(States(flagged, market, portfolio, complete))
        unused = 0.0 * reward_state.sum(-1)  # the aim does not depend on it, and captum asks for its gradient
        return (read(decision) * direction).sum(-1) + unused

    def features_of(state: States) -> tuple[Tensor, ...]:
        parts = (state.assets[:, :, :-1], state.market, state.reward_state)
        return tuple(part.expand(targets, *part.shape[1:]).contiguous() for part in parts)

    inputs = features_of(states)
    baseline_inputs = tuple(map(torch.zeros_like, inputs)) if since is None else features_of(since)
    value, baseline = (scalars(*(*given, directions)) for given in (inputs, baseline_inputs))
    method, steps = IntegratedGradients(scalars), FIRST_STEPS
    while True:
        of_assets, of_market, of_reward = method.attribute(
            inputs,
            baseline_inputs,
            additional_forward_args=(directions,),
            n_steps=steps,
            method="gausslegendre",
            internal_batch_size=max(ROWS_AT_ONCE, targets),
        )
        whole = of_assets.sum((1, 2)) + of_market.sum(1) + of_reward.sum(1)
        error = (whole - (value - baseline)).detach()
        if steps >= MOST_STEPS or float(error.abs().max()) <= TOLERANCE:
            return Shares(of_assets.detach(), of_market.detach(), of_reward.detach(), value, baseline, error, steps)
        steps *= 2


class ExactDecision:
    """One decision of some agents, by the mean of their portfolios, taken again in double precision.

    ``policies`` are from `in_double`, the state is from `states_at`. An agent without a reference has no share in it.
    """

    def __init__(self, policies: Sequence[ExpertPolicy], states: States) -> None:
        self.policies, self.states = policies, states
        self.decisions = [policy(states) for policy in policies]
        self.held = states.weights[0]
        self.aim = mean_of(one.aim[0] for one in self.decisions)
        self.trade_rate = float(mean_of(one.trade_rate[0, 0] for one in self.decisions))
        self.holds = "; ".join(dict.fromkeys(describe_holding(policy.blend) for policy in policies))
        names = max((policy.sources for policy in policies), key=len)
        gates = [one.gate[0] for one in self.decisions]
        gate = mean_of(torch.cat([one, one.new_zeros(len(names) - len(one))]) for one in gates)
        self.gate = dict(zip(names, gate.tolist(), strict=True))
        self.experts = {
            name: mean_of(one.experts[0, number] for one in self.decisions if number < one.experts.shape[1]).tolist()
            for number, name in enumerate(names)
        }


def mean_of(values: Iterable[Tensor]) -> Tensor:
    return torch.stack(list(values)).mean(dim=0)


class Explainer:
    def __init__(
        self, policy: ExpertPolicy, process: DecisionProcess, features: Features, window: range, run: Backtest
    ) -> None:
        self.policy = in_double(policy)
        self.process, self.run = process, run
        self.reasons = run.explanation or {}
        self.bars = process.decision_bars(window)
        self.asset_features, self.market_features = features.asset_names, features.market_names
        growth = process.growth[self.bars.start + 1 : self.bars.stop + 1]
        self.earned, self.costs = attribute(run, growth)

    def explain(self, step: int) -> Dated:
        bar, run, names = self.bars[step], self.run, self.run.assets
        known = bar - self.process.lag
        observed = np.concatenate([self.reasons["held"][step], self.reasons["reward_state"][step]])
        states = states_at(self.process, known, observed)
        decision = ExactDecision([self.policy], states)
        held, centre = decision.held, centre_of(decision.decisions[0])[0]
        move = centre - held
        largest = torch.argsort(-move.abs(), stable=True)[:TRADES]
        directions = torch.cat([0.5 * move.sign().unsqueeze(0), torch.eye(len(names), dtype=torch.float64)[largest]])
        gradients = integrated_gradients(self.policy, states, directions)
        still = float(directions[0] @ held)

        def influences(row: int) -> dict[str, Influence]:
            return self._influences(states, gradients.assets[row], gradients.market[row], gradients.reward_state[row])

        dates = self.process.panel.dates
        aim = decision.aim.tolist()
        weights = {
            name: Weights(
                held=float(held[asset]),
                experts={expert: portfolio[asset] for expert, portfolio in decision.experts.items()},
                aim=aim[asset],
                target=float(centre[asset]),
                filled=float(run.weights[step, asset]),
            )
            for asset, name in enumerate(names)
        }
        earned = dict(zip(names, self.earned[step].tolist(), strict=True))
        return str(dates[bar]), Explanation(
            gate=decision.gate,
            trade_rate=decision.trade_rate,
            traded=0.5 * float(move.abs().sum()),
            holds=decision.holds,
            known=str(dates[known]),
            turnover=float(run.turnover[step]),
            cost=float(run.costs[step]),
            next_return=float(run.returns[step]),
            earned=earned | {"costs": float(self.costs[step])},
            weights=weights,
            integrated_gradients=IntegratedGradients(
                baseline=float(gradients.baseline[0]) - still,
                completeness_error=float(gradients.error[0]),
                steps=gradients.steps,
                features=influences(0),
                by_trade={
                    names[int(asset)]: {feature: one.part for feature, one in influences(row).items()}
                    for row, asset in enumerate(largest, start=1)
                },
            ),
        )

    def largest(self, count: int) -> list[Dated]:
        return [self.explain(step) for step in largest_trades(self.run, count)]

    def _influences(self, states: States, assets: Tensor, market: Tensor, reward_state: Tensor) -> dict[str, Influence]:
        """Parts by feature, by falling size."""
        listed, names = states.listed[0], self.run.assets[:-1]
        count = max(int(listed.sum()), 1)
        found = {
            name: Influence(
                float((states.assets[0, :, column] * listed).sum()) / count,
                float(assets[:, column].sum()),
                dict(zip(names, assets[:, column].tolist(), strict=True)),
            )
            for column, name in enumerate(self.asset_features)
        }
        for labels, values, parts in (
            (self.market_features, states.market[0], market),
            (REWARD_STATE, states.reward_state[0], reward_state),
        ):
            found |= {
                name: Influence(value, part, {})
                for name, value, part in zip(labels, values.tolist(), parts.tolist(), strict=True)
            }
        return dict(sorted(found.items(), key=lambda one: -abs(one[1].part)))
