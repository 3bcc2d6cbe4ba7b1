"""Explanation of an agent's decisions: from its networks to the plain tables of an evaluation."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from finflow.agent.batch import States, states_of
from finflow.agent.networks.decision import describe_holding
from finflow.agent.networks.policy import ExpertPolicy
from finflow.env.decision_process import DecisionProcess
from finflow.errors import ConfigError
from finflow.evaluation.analysis.attribution import attribute
from finflow.evaluation.analysis.decision_explanation import (
    Dated,
    Explanation,
    Influence,
    IntegratedGradients,
    Weights,
    largest_trades,
)
from finflow.evaluation.backtest import BASELINE, Backtest, run_backtests
from finflow.evaluation.statistics.readings_ledger import readings_of
from finflow.market.features.feature_set import Features
from finflow.strategies.classical import named_strategy
from finflow.training.checkpoints.checkpoint_reader import check_same_features
from finflow.training.data.training_data import prepare
from finflow.training.judging.agent_strategy import load_agents
from finflow.training.judging.feature_attribution import decide, in_double, integrated_gradients, states_in_double
from finflow.training.judging.reading_count import count_reading, ledger_of

REWARD_STATE = ("recent return", "recent squared return", "drawdown so far")
TRADES = 3  # whose targets are divided among the features, each


class Explainer:
    def __init__(
        self, policy: ExpertPolicy, process: DecisionProcess, features: Features, window: range, run: Backtest
    ) -> None:
        if run.explanation is None:
            raise ValueError("only an agent's backtest can be explained")
        self.policy = in_double(policy)
        self.process, self.run = process, run
        self.reasons = run.explanation
        self.bars = process.decision_bars(window)
        self.asset_features, self.market_features = features.asset_names, features.market_names
        growth = process.growth[self.bars.start + 1 : self.bars.stop + 1]
        self.contributions = attribute(run, growth)

    @property
    def dates(self) -> NDArray[np.datetime64]:
        return self.process.panel.dates[self.bars.start : self.bars.stop]

    def explain(self, step: int) -> Dated:
        bar, run, names = self.bars[step], self.run, self.run.assets
        known = bar - self.process.lag
        observation = {
            "assets": self.process.asset_features[known].copy(),
            "market": self.process.market_features[known].copy(),
            "portfolio": np.concatenate([self.reasons["held"][step], self.reasons["reward_state"][step]]),
        }
        states = states_in_double(states_of(observation, torch.device("cpu")))
        decision = decide(self.policy, states)
        held, centre = states.weights[0], decision.distribution.centre()[0]
        move = centre - held
        largest = torch.argsort(-move.abs(), stable=True)[:TRADES]
        directions = torch.cat([0.5 * move.sign().unsqueeze(0), torch.eye(len(names), dtype=torch.float64)[largest]])
        gradients = integrated_gradients(self.policy, states, directions)
        still = float(directions[0] @ held)

        def influences(row: int) -> dict[str, Influence]:
            return self._influences(states, gradients.assets[row], gradients.market[row], gradients.reward_state[row])

        dates, day = self.process.panel.dates, self.contributions
        experts, aim = decision.experts[0].tolist(), decision.aim[0].tolist()
        weights = {
            name: Weights(
                held=float(held[asset]),
                experts={expert: experts[number][asset] for number, expert in enumerate(self.policy.sources)},
                aim=aim[asset],
                target=float(centre[asset]),
                filled=float(run.weights[step, asset]),
            )
            for asset, name in enumerate(names)
        }
        earned = dict(zip(names, np.append(day.assets[step], day.cash[step]).tolist(), strict=True))
        return str(dates[bar]), Explanation(
            gate=dict(zip(self.policy.sources, decision.gate[0].tolist(), strict=True)),
            trade_rate=float(decision.trade_rate),
            traded=0.5 * float(move.abs().sum()),
            holds=describe_holding(self.policy.blend),
            known=str(dates[known]),
            turnover=float(run.turnover[step]),
            cost=float(run.costs[step]),
            next_return=float(run.returns[step]),
            earned=earned | {"costs": float(day.costs[step])},
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


def explain_dates(path: Path, overrides: Mapping[str, object], dates: Sequence[str]) -> list[Dated]:
    """Explain decisions of a trained agent in its test window.

    The window is read for that, and the reading is counted where this agent has none on file.
    """
    wanted = [_date(text) for text in dates]
    agents = load_agents([path], overrides)
    config, training_data = agents.config, prepare(agents.config)
    check_same_features(agents.alone, training_data.features)
    process, window = training_data.held_out_process(), training_data.split.test
    steps = _steps(process, window, wanted)
    runs = run_backtests(process, window, [*agents.strategies(), named_strategy(BASELINE, config.evaluation)])
    panel = training_data.panel.sha256
    if not any(reading.judged == agents.identity for reading in readings_of(ledger_of(config), panel)):
        count_reading(config, panel, agents.identity, runs, path)
    explainer = Explainer(agents.policies[0], process, training_data.features, window, runs[0])
    return [explainer.explain(step) for step in steps]


def _steps(process: DecisionProcess, window: range, wanted: Sequence[np.datetime64]) -> list[int]:
    bars = process.decision_bars(window)
    dates = process.panel.dates[bars.start : bars.stop]
    for date in wanted:
        if not dates[0] <= date <= dates[-1]:
            raise ConfigError(f"{date} is not a date of the evaluation, which decides from {dates[0]} to {dates[-1]}")
    return [int(np.searchsorted(dates, date)) for date in wanted]


def _date(text: str) -> np.datetime64:
    try:
        return np.datetime64(dt.date.fromisoformat(text), "D")
    except ValueError:
        raise ConfigError(f"{text!r} is not a date: write it as 2020-03-16") from None
