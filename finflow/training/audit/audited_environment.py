"""What an audit asks of the decision process: what it shows and pays, what its fills earn, what is learned from it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from finflow.env.coverage import draw_coverage
from finflow.env.decision_process import DecisionProcess
from finflow.env.vector_env import PortfolioVectorEnv
from finflow.evaluation.audit.look_ahead import Answer, Rows
from finflow.training.data.replay import MarketTensors, Transitions, make_batch
from finflow.training.data.rewards import RewardUnits

__all__ = ["episode", "fills", "replayed"]

_ROUNDING = 1e-12  # costs are divided out of what was earned
_PORTFOLIOS = 4
_TRADES = 8


def episode(process: DecisionProcess, last: int, seed: int, before: int) -> Answer:
    """What the vector environment shows and pays to portfolios that trade at random around a bar.

    Parameters
    ----------
    process : DecisionProcess
    last : int
        The bar after which the future is another one.
    seed : int
        Draws the portfolios and their trades.
    before : int
        Decisions asked for before that bar.
    """
    lag = process.lag
    decisions = process.decision_bars(range(max(last - before, 0), last + lag + 2))
    env = PortfolioVectorEnv(process, range(process.panel.n_bars), _PORTFOLIOS)
    rng = np.random.default_rng([seed, last])
    drawn, _ = draw_coverage(rng, _PORTFOLIOS * (23 + lag), process.n_weights)  # one set more than there are decisions
    weights, *actions = drawn.reshape(-1, _PORTFOLIOS, process.n_weights)
    observation, _ = env.reset(seed=seed, options={"bars": np.full(_PORTFOLIOS, decisions.start), "weights": weights})
    seen: dict[str, list[NDArray[Any]]] = {name: [] for name in (*observation, "reward", "wealth", "cost")}
    for step in range(len(decisions)):
        for name, value in observation.items():
            seen[name].append(np.array(value))
        observation, reward, _, truncated, info = env.step(actions[step])
        seen["reward"].append(np.array(reward))
        seen["wealth"].append(np.array(info["wealth"]))
        seen["cost"].append(np.array(info["cost"]))
        if truncated.any() and step + 1 < len(decisions):
            break
    bars = np.arange(decisions.start, decisions.start + len(seen["reward"]), dtype=np.int64)
    paid = {name: Rows(np.stack(seen[name]), bars + 1) for name in ("reward", "wealth")}
    # The portfolio is the account's own and known when it was filled: at lags over 1 only the market is older.
    lags = {"assets": lag, "market": lag, "portfolio": min(lag, 1)}
    observed = {name: Rows(np.stack(seen[name]), bars, lags.get(name, lag)) for name in observation}
    return {**observed, **paid, "cost": Rows(np.stack(seen["cost"]), bars)}


def fills(process: DecisionProcess, last: int, seed: int) -> Answer:
    """What a fill earns is what comes after it.

    The level of all prices jumps on the way to the bar of the fill, and then they move as they did. Portfolios
    without cash are the same at the fill, and earn the same: what they earn is as if known before the jump. Who
    is paid for the way to the fill was filled too early.
    """
    panel, bar = process.panel, last + 1
    whole = panel.listed[last : last + 3].all(axis=0)
    if bar not in process.decision_bars(range(bar, panel.n_bars)) or not whole.any():
        return {}
    rng = np.random.default_rng([seed, last])
    weights, actions = rng.dirichlet(np.ones(int(whole.sum())), size=(2, _TRADES))
    env = PortfolioVectorEnv(process, range(panel.n_bars), len(weights))
    start, target = np.zeros((2, len(weights), process.n_weights))
    start[:, np.flatnonzero(whole)], target[:, np.flatnonzero(whole)] = weights, actions
    env.reset(seed=0, options={"bars": np.full(len(weights), bar), "weights": start})
    *_, info = env.step(target)
    # Costs may depend on volumes, which jump too.
    earned = info["wealth"] / process.env.initial_capital / (1.0 - info["cost"])
    return {"return": Rows(earned[None], np.array([last]), tolerance=_ROUNDING)}


def replayed(process: DecisionProcess, last: int, before: int) -> Answer:
    """What is learned from: the features of both states of a transition, for decisions around the bar `last`."""
    lag = process.lag
    bars = np.asarray(process.decision_bars(range(max(last - before, 0), last + lag + 2)), dtype=np.int64)
    market = MarketTensors.of(process, torch.device("cpu"))
    units = RewardUnits.of(process, 1.0, "none", torch.device("cpu"))
    empty = Transitions(len(bars), process.n_weights, process.portfolio_size, torch.device("cpu"))
    batch = make_batch({**empty.columns, "bar": torch.from_numpy(bars)}, market, units)
    parts: dict[str, Rows] = {}
    for name, states in (("assets", batch.both.assets), ("market", batch.both.market)):
        now, following = states.numpy()[: len(bars)], states.numpy()[len(bars) :]
        parts |= {name: Rows(now, bars, lag), f"next {name}": Rows(following, bars + 1, lag)}
    return parts
