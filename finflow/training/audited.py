"""What an audit asks about: every part between prices and decisions, as a function of a panel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finflow.config import Config
from finflow.env.coverage import draw_coverage
from finflow.env.decision import DecisionProcess, equal_weight_moments
from finflow.env.vector_env import PortfolioVectorEnv
from finflow.evaluation.audit import Answer, Component, Rows, by_bar
from finflow.evaluation.backtest import index_backtest, run_backtests
from finflow.evaluation.shocks import CUT, REPEAT
from finflow.market.extra import own_feature
from finflow.market.features import Features, compute_features
from finflow.market.panel import MarketPanel
from finflow.market.splits import Split
from finflow.offline.collection import collect
from finflow.strategies.base import Information, Strategy
from finflow.strategies.behaviour import FAMILIES, family_tables
from finflow.strategies.classical import NAMED
from finflow.training.audited_source import through_the_source
from finflow.training.materials import prepare_from

FloatArray = NDArray[np.float64]

_FEW = ("replaced", "relisted", CUT, REPEAT)
"""Probes of what takes long: the wildest, the listings, and none at all."""
_RUNS = (60, 84, 110)
"""Decisions before the one that is probed: many rhythms of rebalancing divide one of them."""
_EPISODES, _LENGTH = 24, 60


class Subjects:
    """The parts of a configuration, sharing what several of them are made from.

    Everything fitted is fitted on the bars before the end of training, and before the end of what a probe leaves
    alone: for a probe inside the training window, training is taken to end there.

    Parameters
    ----------
    panel : MarketPanel
        The configured market, up to the end of the test window.
    config : Config
    split : Split
    """

    def __init__(self, panel: MarketPanel, config: Config, split: Split) -> None:
        self.panel = panel
        self.config = config
        self.split = split
        self.features = lru_cache(maxsize=3)(self._features)
        self.process = lru_cache(maxsize=6)(self._process)

    def _features(self, panel: MarketPanel, fit: int) -> Features:
        return compute_features(panel, fit, self.config.features.extra)

    def _process(self, panel: MarketPanel, fit: int, lag: int) -> DecisionProcess:
        features = self.features(panel, fit)
        env = self.config.env.model_copy(update={"execution_lag": lag})
        moments = equal_weight_moments(panel, env.fill, range(features.first_bar, fit))
        return DecisionProcess(panel, features, env, self.config.objectives, moments)

    def fit(self, last: int) -> int:
        """Where training ends for a probe at `last`."""
        return min(self.split.train_end, last + 1)

    def of_market(self) -> Iterator[Component]:
        """Source, features, behaviour tables, and what a training is given."""
        yield Component("source", self._source, lambda last, kind: kind in _FEW)
        for path in self.config.features.extra:
            yield Component(f"feature {path.partition('@')[0]}", self._own_feature(path))
        yield Component("features", self._all_features)
        for family in FAMILIES:
            yield Component(f"family {family}", self._family(family), self._suits_family)
        ends = (self.split.train_end - 1, self.split.validation_end - 1)
        yield Component("training", self._training, lambda last, kind: last in ends and kind != CUT)
        yield Component("evaluation", self._evaluation, self._in_test)

    def of_decisions(self, strategies: Mapping[str, Callable[[], Strategy]]) -> Iterator[Component]:
        """Environments, what the backtest hands out, the index, strategies, behaviour data."""
        for lag in (0, 1, 2):
            if lag or self.config.env.fill == "close":
                yield Component(f"environment, lag {lag}", self._environment(lag))
        named = Played(
            self,
            {
                "backtest": lambda: _Digger(self.config.env.execution_lag < 2),
                **{name: make for name, make in strategies.items() if name in NAMED},
            },
        )
        yield Component("backtest", named.of("backtest"), self._late)
        if self.panel.benchmark is not None:
            yield Component("index", self._index)
        for name, make in strategies.items():
            played = named if name in NAMED else Played(self, {name: make})
            yield Component(f"strategy {name}", played.of(name), self._late)
        yield Component("behaviour data", self._behaviour, self._suits_behaviour)

    def of_agent(self, make: Callable[[], Strategy]) -> list[Component]:
        """A trained agent, where features are scaled as it knows them: from the end of training on."""
        return [Component("agent", Played(self, {"agent": make}).of("agent"), self._late)]

    def _source(self, panel: MarketPanel, last: int) -> Answer:
        """The market as the configured source would have given it, written down and loaded through the source."""
        loaded = through_the_source(panel, self.config.market)
        bars = np.searchsorted(panel.dates, loaded.dates)
        places = [panel.assets.index(name) for name in loaded.assets]
        answer = {"dates": Rows(loaded.dates, bars), "cash": Rows(loaded.cash_returns, bars)}
        for field in ("close", "open", "high", "low", "volume"):
            values = getattr(loaded, field)
            if values is not None:
                table = np.full((loaded.n_bars, panel.n_assets), np.nan)
                table[:, places] = values
                answer[field] = Rows(table, bars)
        return answer if loaded.benchmark is None else {**answer, "benchmark": Rows(loaded.benchmark, bars)}

    def _own_feature(self, path: str) -> Callable[[MarketPanel, int], Answer]:
        feature = own_feature(path)
        return lambda panel, last: {feature.name: by_bar(feature.compute(panel))}

    def _all_features(self, panel: MarketPanel, last: int) -> Answer:
        features = self.features(panel, self.fit(last))
        assets = {name: by_bar(features.assets[:, :, i]) for i, name in enumerate(features.asset_names)}
        market = {name: by_bar(features.market[:, i]) for i, name in enumerate(features.market_names)}
        return {**assets, **market, "first bar": Rows(np.array([features.first_bar]), np.array([last]))}

    def _family(self, family: str) -> Callable[[MarketPanel, int], Answer]:
        return lambda panel, last: {"targets": by_bar(np.swapaxes(family_tables(panel, family), 0, 1))}

    def _suits_family(self, last: int, kind: str) -> bool:
        """Families are asked about the training window, the only one that behaviour data come from."""
        return kind in _FEW and last < self.split.train_end

    def _late(self, last: int, kind: str) -> bool:
        """From the end of training on, where strategies and agents are judged."""
        return last >= self.split.train_end - 1

    def _training(self, panel: MarketPanel, last: int) -> Answer:
        """All that a training is given: its scaling, its moments and its bars may not know what comes after training.

        Nothing at all may know what comes after validation: for that probe every row belongs to its last bar.
        """
        materials = prepare_from(panel, self.config)
        process, moments = materials.process, materials.moments
        tables = {
            "assets": process.asset_features,
            "market": process.market_features,
            "growth": process.growth,
            "listed": process.listed,
            "close": process.panel.close,
        }
        end = self.split.validation_end - 1
        whole = {name: Rows(table[None], np.array([end])) for name, table in tables.items()}
        fitted = np.array([[moments.first, moments.second, process.first_bar]])
        return {
            "fitted": Rows(fitted, np.array([self.split.train_end - 1])),
            **(whole if last >= end else {name: by_bar(table) for name, table in tables.items()}),
        }

    def _evaluation(self, panel: MarketPanel, last: int) -> Answer:
        """What the held-out evaluation gives an agent to see, over all bars."""
        process = prepare_from(panel, self.config).held_out_process()
        return {"assets": by_bar(process.asset_features), "market": by_bar(process.market_features)}

    def _in_test(self, last: int, kind: str) -> bool:
        return last > self.split.validation_end and kind in _FEW

    def _environment(self, lag: int) -> Callable[[MarketPanel, int], Answer]:
        def answer(panel: MarketPanel, last: int) -> Answer:
            return _episode(self.process(panel, self.fit(last), lag), last, self.config.train.seed)

        return answer

    def _index(self, panel: MarketPanel, last: int) -> Answer:
        process = self.process(panel, self.fit(last), self.config.env.execution_lag)
        played = index_backtest(process, range(max(last - 60, 0), panel.n_bars))
        if played is None:
            return {}
        bars = np.searchsorted(panel.dates, played.dates)
        return {"returns": Rows(played.returns, bars), "costs": Rows(played.costs, bars)}

    def _suits_behaviour(self, last: int, kind: str) -> bool:
        """Behaviour data are of the training window; cut inside it, their episodes would start elsewhere."""
        return kind in _FEW and last < self.split.train_end and (kind != CUT or last == self.split.train_end - 1)

    def _behaviour(self, panel: MarketPanel, last: int) -> Answer:
        short = min(_LENGTH, self.config.env.episode_length)
        train = self.config.train.model_copy(update={"offline_episodes": _EPISODES})
        env = self.config.env.model_copy(update={"episode_length": short})
        # A user's own decisions are the same on every panel; what they were worth is the ledger's and audited there.
        offline = self.config.offline.model_copy(update={"decisions": ()})
        config = self.config.model_copy(update={"train": train, "env": env, "offline": offline})
        lag = self.config.env.execution_lag
        process = self.process(panel, self.fit(last), lag)
        # Episodes around the probe: of those all over the window, few would decide just after it.
        first = max(last + 1 - 2 * short, process.first_bar)
        window = range(first, min(last + 1 + short, self.split.train_end))
        data = collect(config, process, window)
        seen, bar = min(lag, 1), data.bar.astype(np.int64)
        columns = {
            "portfolio": Rows(data.portfolio, bar, seen),
            "action": Rows(data.action, bar, seen),
            "family": Rows(data.family, bar, seen),
            "reward": Rows(data.reward, bar + 1),
            "next_portfolio": Rows(data.next_portfolio, bar + 1, seen),
            "next_action": Rows(data.next_action, bar + 1, seen),
        }
        scale = Rows(np.array([data.reward_scale]), np.array([window.stop - 1]))
        return {**columns, "reward scale": scale}


class Played:
    """Strategies' answers in the backtest, in runs that end with the last decision that may not know of a shock.

    They play side by side, as in a report, and each alone where one of them fails.

    At lags over 1 the observed portfolio is newer than the prices, by design: it is the account's own. There a shock
    moves the account, so the account as it was without the shock is handed in: what is asked is what is decided with
    the same account and another future.

    Parameters
    ----------
    subjects : Subjects
    makers : mapping
        Name -> makes the strategy, anew for every run.
    """

    def __init__(self, subjects: Subjects, makers: Mapping[str, Callable[[], Strategy]]) -> None:
        self.subjects = subjects
        self.makers = makers
        self.accounts: dict[tuple[str, int, int], list[FloatArray]] = {}
        self.together = lru_cache(maxsize=2)(self._together)

    def of(self, name: str) -> Callable[[MarketPanel, int], Answer]:
        """The answers of one of them."""

        def answer(panel: MarketPanel, last: int) -> Answer:
            played = self.together(panel, last)
            return self._play(panel, last, [name])[name] if played is None else played[name]

        return answer

    def _together(self, panel: MarketPanel, last: int) -> dict[str, dict[str, Rows]] | None:
        try:
            return self._play(panel, last, list(self.makers))
        except Exception:  # whose it is, each of them will show alone
            return None

    def _play(self, panel: MarketPanel, last: int, names: Sequence[str]) -> dict[str, dict[str, Rows]]:
        subjects, is_base = self.subjects, panel is self.subjects.panel
        lag = subjects.config.env.execution_lag
        process = subjects.process(panel, subjects.fit(last), lag)
        rhythms = (subjects.config.evaluation.rebalance_every, *_RUNS)
        chosen = rhythms[int(np.random.default_rng(last).integers(len(rhythms)))]
        parts: dict[str, dict[str, Rows]] = {name: {} for name in names}
        for length in (0, chosen):
            window = range(last + lag - length, last + lag + 3)
            bars = process.decision_bars(window)
            if window.start < process.first_bar or len(bars) < 2:  # features begin later, or the cut leaves no decision
                continue
            accounts = [None if is_base or lag < 2 else self.accounts[name, last, length] for name in names]
            notes = [_Notes(self.makers[name](), account) for name, account in zip(names, accounts, strict=True)]
            run_backtests(process, window, notes)
            rows = np.asarray(bars, dtype=np.int64)
            for name, note in zip(names, notes, strict=True):
                if is_base:
                    self.accounts[name, last, length] = note.accounts
                for part, values in note.answers.items():
                    parts[name][f"{part} (decision {length + 1} of a run)"] = Rows(np.stack(values), rows, lag)
        return parts


class _Notes:
    """A strategy that passes every question on to another, and notes the answers."""

    def __init__(self, inner: Strategy, account: list[FloatArray] | None) -> None:
        self.inner = inner
        self.name = inner.name
        self.account = account
        self.accounts: list[FloatArray] = []
        self.answers: dict[str, list[NDArray[Any]]] = {"weights": []}

    def decide(self, information: Information) -> FloatArray:
        observation = dict(information.observation or {})
        if self.account is not None:
            observation["portfolio"] = self.account[information.step]
            own = self.account[information.step][: len(information.portfolio)]
            information = replace(information, portfolio=own, observation=observation)
        self.accounts.append(np.array(observation["portfolio"]))
        target = np.asarray(self.inner.decide(information), dtype=np.float64)
        self.answers["weights"].append(target)
        for name, value in getattr(self.inner, "notes", {}).items():
            self.answers.setdefault(name, []).append(value)
        return target


class _Digger:
    """Holds what it has, and notes all it was told, with the memory behind every array that it was handed.

    Parameters
    ----------
    accounts : bool
        Whether the account it is told of is the backtest's own, whose memory counts too.
    """

    name = "digger"

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
    """The array whose memory another one looks into."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def _digest(array: NDArray[Any]) -> FloatArray:
    """Numbers that change when the size of an array or any value in it does, but by a rare chance."""
    values = np.nan_to_num(np.asarray(array, dtype=np.float64).ravel(), nan=-1.0)
    return np.array([values.size, values.sum(), values @ np.arange(1.0, values.size + 1.0)])


def _episode(process: DecisionProcess, last: int, seed: int) -> Answer:
    """What the vector environment shows and pays, in its array version and in its compiled one."""
    arrays, compiled = (_played_episode(process, last, seed, compiled=way) for way in (False, True))
    return {**arrays, **{f"{name}, compiled": rows for name, rows in compiled.items()}}


def _played_episode(process: DecisionProcess, last: int, seed: int, compiled: bool) -> dict[str, Rows]:
    """What is shown and paid to portfolios that trade at random around a bar."""
    lag = process.lag
    decisions = process.decision_bars(range(max(last - 20, 0), last + lag + 2))
    portfolios = 4
    env = PortfolioVectorEnv(process, range(process.panel.n_bars), portfolios, compiled=compiled)
    rng = np.random.default_rng([seed, last])
    drawn, _ = draw_coverage(rng, portfolios * (23 + lag), process.n_weights)  # one set more than there are decisions
    weights, *actions = drawn.reshape(-1, portfolios, process.n_weights)
    observation, _ = env.reset(seed=seed, options={"bars": np.full(portfolios, decisions.start), "weights": weights})
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
