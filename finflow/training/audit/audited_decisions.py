"""Components of an audit that decide: the decision process, what is learned from it, and strategies in the backtest."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from finflow.config import Config
from finflow.env.coverage import draw_coverage
from finflow.env.decision_process import DecisionProcess
from finflow.env.market_growth import equal_weight_moments
from finflow.env.vector_env import PortfolioVectorEnv
from finflow.evaluation.backtest import run_backtests
from finflow.market.features.feature_set import Features, compute_features
from finflow.market.panel import MarketPanel
from finflow.market.splits import Split
from finflow.strategies.strategy import Information, Strategy
from finflow.training.audit.look_ahead import Answer, Ask, Rows
from finflow.training.data.replay import MarketTensors, Transitions, make_batch
from finflow.training.data.rewards import RewardUnits

FloatArray = NDArray[np.float64]
Watched = Callable[..., FloatArray]
"""``(function, *arguments) -> target``: calls a strategy."""

BEFORE = 20
"""Decisions asked for before a probe."""
_RUNS = (60, 84, 110)
"""Decisions before the one that is probed: many rhythms of rebalancing divide one of them."""


class AuditedMarket:
    """The market of a configuration and what several components are made from.

    Everything fitted is fitted on the bars before the end of training, and before the end of what a probe leaves
    alone: for a probe inside the training window, training is taken to end there.

    ``panel``: the configured market, up to the end of the test window. ``near``: whether only the decisions right
    before a probe are asked for, as suits probes of many bars in a row.
    """

    def __init__(self, panel: MarketPanel, config: Config, split: Split, near: bool = False) -> None:
        self.panel = panel
        self.config = config
        self.split = split
        self.before = 1 if near else BEFORE
        self.features = lru_cache(maxsize=3)(self._features)
        self.process = lru_cache(maxsize=6)(self._process)

    def _features(self, panel: MarketPanel, fit: int) -> Features:
        return compute_features(panel, fit, self.config.features)

    def _process(self, panel: MarketPanel, fit: int, lag: int) -> DecisionProcess:
        features = self.features(panel, fit)
        env = self.config.env.model_copy(update={"execution_lag": lag})
        moments = equal_weight_moments(panel, env.fill, range(features.first_bar, fit))
        return DecisionProcess(panel, features, env, self.config.objectives, moments)

    def of_process(self, answer: Callable[[DecisionProcess, int], Answer], lag: int | None = None) -> Ask:
        """Answers from the process of a panel at a lag, the configured one unless it is given."""
        chosen = self.config.env.execution_lag if lag is None else lag
        return lambda panel, last: answer(self.process(panel, self.fit(last), chosen), last)

    def fit(self, last: int) -> int:
        """End of training for a probe at `last`."""
        return min(self.split.train_end, last + 1)


class RecordedStrategies:
    """Strategies' answers in the backtest, in runs that end with the last decision that may not know of a shock.

    They run side by side, as in a report, and each alone where one of them fails.

    At lags over 1 the observed portfolio is newer than the prices, by design: it is the account's own. There a shock
    moves the account, so the account as it was without the shock is handed in: what is asked is what is decided with
    the same account and another future.
    """

    def __init__(self, market: AuditedMarket, makers: Mapping[str, Callable[[], Strategy]]) -> None:
        self.market = market
        self.makers = makers
        self.accounts: dict[tuple[str, int, int], list[FloatArray]] = {}
        self.together = lru_cache(maxsize=2)(self._together)

    def of(self, name: str) -> Callable[[MarketPanel, int], Answer]:
        def answer(panel: MarketPanel, last: int) -> Answer:
            answers = self.together(panel, last)
            return answers[name] if name in answers else self._play(panel, last, [name])[name]

        return answer

    def _together(self, panel: MarketPanel, last: int) -> dict[str, dict[str, Rows]]:
        try:
            return self._play(panel, last, list(self.makers))
        except Exception:  # each strategy is then run alone, which shows the one that failed
            return {}

    def _play(self, panel: MarketPanel, last: int, names: Sequence[str]) -> dict[str, dict[str, Rows]]:
        config, is_base = self.market.config, panel is self.market.panel
        lag = config.env.execution_lag
        process = self.market.process(panel, self.market.fit(last), lag)
        # A run of one decision alone has none where the market is cut, and would be missed there.
        rhythms = (max(config.evaluation.rebalance_every, 2), *_RUNS)
        chosen = rhythms[int(np.random.default_rng(last).integers(len(rhythms)))]
        parts: dict[str, dict[str, Rows]] = {name: {} for name in names}
        for length in (0,) if self.market.before == 1 else (0, chosen):
            window = range(last + lag - length, last + lag + 3)
            bars = process.decision_bars(window)
            if window.start < process.first_bar or len(bars) < 2:  # features begin later, or the cut leaves no decision
                continue
            accounts = [None if is_base or lag < 2 else self.accounts[name, last, length] for name in names]
            recorders = [
                AnswerRecorder(self.makers[name](), account) for name, account in zip(names, accounts, strict=True)
            ]
            run_backtests(process, window, recorders)
            rows = np.asarray(bars, dtype=np.int64)
            for name, one in zip(names, recorders, strict=True):
                if is_base:
                    self.accounts[name, last, length] = one.accounts
                for part, values in one.answers.items():
                    parts[name][f"{part} (decision {length + 1} of a run)"] = Rows(np.stack(values), rows, lag)
        return parts


class AnswerRecorder:
    """A strategy that asks another, and records its answers and the accounts that it saw.

    It hands in ``account``, observed portfolios by decision, in place of its own, and has ``watched`` call the other.
    """

    def __init__(
        self, inner: Strategy, account: list[FloatArray] | None = None, watched: Watched | None = None
    ) -> None:
        self.inner = inner
        self.name = inner.name
        self.account = account
        self.ask = inner.decide if watched is None else partial(watched, inner.decide)
        self.accounts: list[FloatArray] = []
        self.answers: dict[str, list[NDArray[Any]]] = {"weights": []}

    def decide(self, information: Information) -> FloatArray:
        observation = dict(information.observation or {})
        if self.account is not None:
            observation["portfolio"] = self.account[information.step]
            own = self.account[information.step][: len(information.portfolio)]
            information = replace(information, portfolio=own, observation=observation)
        self.accounts.append(np.array(observation["portfolio"]))
        target = np.array(self.ask(information), dtype=np.float64)
        self.answers["weights"].append(target)
        for name, value in getattr(self.inner, "notes", {}).items():
            self.answers.setdefault(name, []).append(value)
        return target


class InputRecorder:
    """Holds its portfolio and records every input of a decision, with the memory behind each array.

    ``accounts``: whether the portfolio handed in is the backtest's own, so that the memory behind it counts too.
    """

    name = "input recorder"

    def __init__(self, accounts: bool) -> None:
        self.accounts = accounts
        self.notes: dict[str, NDArray[Any]] = {}

    def decide(self, information: Information) -> FloatArray:
        observation = information.observation or {}
        handed = {
            "prices": information.prices,
            "listed": information.listed,
            "portfolio": information.portfolio,
            **{f"observed {name}": value for name, value in observation.items()},
        }
        self.notes = {"prices known": np.array([len(information.prices)]), "newest prices": information.prices[-1]}
        for name, array in handed.items():
            if name != "prices":
                self.notes[name] = np.array(array)
            if self.accounts or "portfolio" not in name:
                self.notes[f"memory behind {name}"] = _digest(_root(array))
        return information.portfolio


def _root(array: NDArray[Any]) -> NDArray[Any]:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def _digest(array: NDArray[Any]) -> NDArray[np.uint8]:
    """Size and checksum of an array's memory, bit by bit."""
    return np.unpackbits(np.array([array.size, zlib.crc32(array.tobytes())], dtype=np.uint64).view(np.uint8))


_ROUNDING = 1e-12  # costs are divided out of what was earned
_PORTFOLIOS = 4
_TRADES = 8


def episode(process: DecisionProcess, last: int, seed: int, before: int) -> Answer:
    """Observations and rewards of the vector environment, for portfolios that trade at random around a bar."""
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
        for name, value in (("reward", reward), ("wealth", info["wealth"]), ("cost", info["cost"])):
            seen[name].append(np.array(value))
        if truncated.any() and step + 1 < len(decisions):
            break
    bars = np.arange(decisions.start, decisions.start + len(seen["reward"]), dtype=np.int64)
    paid = {name: Rows(np.stack(seen[name]), bars + 1) for name in ("reward", "wealth")}
    # The portfolio is the account's own and known when it was filled: at lags over 1 only the market is older.
    lags = {"assets": lag, "market": lag, "portfolio": min(lag, 1)}
    observed = {name: Rows(np.stack(seen[name]), bars, lags.get(name, lag)) for name in observation}
    return {**observed, **paid, "cost": Rows(np.stack(seen["cost"]), bars)}


def fills(process: DecisionProcess, last: int, seed: int) -> Answer:
    """Returns earned by fills, which begin after the fill.

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


def replay_states(process: DecisionProcess, last: int, before: int) -> Answer:
    """Inputs of learning: the features of both states of a transition, for decisions around the bar `last`."""
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
