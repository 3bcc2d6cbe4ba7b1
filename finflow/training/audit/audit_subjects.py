"""The components of an audit: every part between prices and decisions, as a function of a panel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finflow.env.decision_process import DecisionProcess
from finflow.env.rewards.chosen_reward import RewardSum, RewardTerm, named_rewards, with_reward
from finflow.evaluation.backtest import index_backtest
from finflow.ledger.costs import costs_of
from finflow.market.features.asset_features import features_of
from finflow.market.features.feature_set import user_feature
from finflow.market.features.market_features import MARKET_FEATURES
from finflow.market.features.rolling_windows import PanelView
from finflow.market.panel import MarketPanel
from finflow.offline.collection import collect
from finflow.strategies.behaviour import FAMILIES, family_tables
from finflow.strategies.classical import NAMED
from finflow.strategies.strategy import Strategy
from finflow.training.audit.audited_decisions import (
    AuditedMarket,
    InputRecorder,
    RecordedStrategies,
    episode,
    fills,
    replay_states,
)
from finflow.training.audit.audited_source import loaded, loaded_with_gap, loaded_with_newcomers
from finflow.training.audit.look_ahead import Answer, Ask, Component, Rows, by_bar, rows_by_bar
from finflow.training.audit.shocked_panels import CUT, REPEAT, UNPRIMED
from finflow.training.data.training_data import prepare_from

_FEW = ("replaced", "relisted", CUT, REPEAT, UNPRIMED)
"""Probes of what takes long: the wildest, the listings, and none at all."""
_LEVELS = ("crash", "boom", REPEAT)
"""Probes that change the level of all prices alike: what comes after the first bar moves as it did."""
_LISTINGS = ("replaced", "crash", CUT, REPEAT, UNPRIMED)
"""Probes of listings in the source: with other listings, no two of three assets may be left."""
_EPISODES, _LENGTH = 24, 60
_REWARDED = 40  # bars before the last one known at which decisions are rewarded
_REWARDS = 91  # purpose of the generator that draws them


class AuditSubjects(AuditedMarket):
    """The components of a configuration."""

    def of_market(self) -> Iterator[Component]:
        """Source, features, behaviour tables, and what a training is given."""
        market, few = self.config.market, _put_to(_FEW)
        train_end, validation_end = self.split.train_end, self.split.validation_end
        yield Component("panel", _fields)
        yield Component("source", lambda panel, _: loaded(panel, market), few)
        if self.panel.n_assets > 2:
            listings, gaps = partial(loaded_with_newcomers, market=market), partial(loaded_with_gap, market=market)
            yield Component("source, listings", listings, _put_to(_LISTINGS))
            yield Component("source, gaps", gaps, _put_to(("replaced", REPEAT)))
        yield from self.of_features()
        for family in FAMILIES:
            tables = partial(_family, family=family)
            yield Component(f"family {family}", tables, lambda last, kind: few(last, kind) and last < train_end)
        yield Component("growth", self.of_process(_growth))
        ends = (train_end - 1, validation_end - 1)
        yield Component("training", self._training, lambda last, kind: last in ends and kind != CUT)
        yield Component(
            "evaluation",
            lambda panel, _: self._prepared(prepare_from(panel, self.config).held_out_process()),
            lambda last, kind: last > validation_end and few(last, kind),
        )

    def of_features(self) -> Iterator[Component]:
        """Tables computed from the panel for every bar."""
        for path in self.config.features.extra:
            yield Component(f"feature {path.partition('@')[0]}", _own_feature(path))
        yield Component("features", self._all_features)
        if costs_of(self.config.env).needs_market:
            yield Component("liquidity", self.of_process(_liquidity))

    def of_near(self, strategies: Mapping[str, Callable[[], Strategy]]) -> Iterator[Component]:
        """Components quick enough for probes of many bars in a row."""
        yield Component("panel", _fields)
        yield from self.of_features()
        yield Component("growth", self.of_process(_growth))
        yield from self.of_environments()
        played = self._recorded(strategies)
        for name in played.makers:
            yield Component(name if name in ("backtest", "agent") else f"strategy {name}", played.of(name))

    def of_environments(self) -> Iterator[Component]:
        """The environment at every lag, what its fills are paid, and what is learned from."""
        for lag in (0, 1, 2):
            if lag or self.config.env.fill == "close":
                observed = partial(episode, seed=self.config.train.seed, before=self.before)
                yield Component(f"environment, lag {lag}", self.of_process(observed, lag))
                paid = self.of_process(partial(fills, seed=self.config.train.seed), lag)
                yield Component(f"fill, lag {lag}", paid, _put_to(_LEVELS))
        rewards = named_rewards(self.config.objectives, self.panel.n_assets)
        for term in {term.name: term for term in (() if rewards is None else rewards.terms)}.values():
            if term.reward is not None:  # not the built-in one, which the environment's audit covers
                rewarded = partial(_reward, term=term, seed=self.config.train.seed)
                yield Component(f"reward {term.name}", self.of_process(rewarded))
        yield Component("replay", self.of_process(partial(replay_states, before=self.before)))

    def of_decisions(self, strategies: Mapping[str, Callable[[], Strategy]]) -> Iterator[Component]:
        """Environments, what the backtest hands out, the index, strategies, behaviour data."""
        yield from self.of_environments()
        named = self._recorded({name: make for name, make in strategies.items() if name in NAMED})
        yield Component("backtest", named.of("backtest"), self._judged)
        if self.panel.benchmark is not None:
            yield Component("index", self.of_process(_index))
        for name, make in strategies.items():
            played = named if name in NAMED else RecordedStrategies(self, {name: make})
            yield Component(f"strategy {name}", played.of(name), self._judged)
        # Cut inside the training window, behaviour data's episodes would start elsewhere.
        end = self.split.train_end
        yield Component(
            "behaviour data",
            self.of_process(self._behaviour),
            lambda last, kind: kind in _FEW and last < end and (kind != CUT or last == end - 1),
        )

    def _recorded(self, strategies: Mapping[str, Callable[[], Strategy]]) -> RecordedStrategies:
        own_account = self.config.env.execution_lag < 2
        return RecordedStrategies(self, {"backtest": lambda: InputRecorder(own_account), **strategies})

    def of_agent(self, make: Callable[[], Strategy]) -> list[Component]:
        """A trained agent, where features are scaled as it knows them: from the end of training on."""
        played = RecordedStrategies(self, {"agent": make}).of("agent")
        return [Component("agent", played, lambda last, kind: kind != UNPRIMED and self._late(last, kind))]

    def _judged(self, last: int, kind: str) -> bool:
        """At lags over 1 strategies are asked with the account of the unchanged market, which must come first."""
        return self._late(last, kind) and (kind != UNPRIMED or self.config.env.execution_lag < 2)

    def _late(self, last: int, kind: str) -> bool:
        return last >= self.split.train_end - 1

    def _all_features(self, panel: MarketPanel, last: int) -> Answer:
        features = self.features(panel, self.fit(last))
        tables: dict[str, NDArray[Any]] = {
            name: features.assets[:, :, i] for i, name in enumerate(features.asset_names)
        }
        tables |= {name: features.market[:, i] for i, name in enumerate(features.market_names)}
        if self.before == 1:  # near a probe unscaled and unrounded, too: a leak too small to survive that would hide
            view = PanelView(panel)
            own = features_of(panel, self.config.features.filters)
            tables |= {f"raw {view.windows.named(one.name)}": one.compute(view) for one in own}
            tables |= {f"raw {name}": formula(view, view.windows) for name, formula in MARKET_FEATURES.items()}
        return {**rows_by_bar(tables), "first bar": Rows(np.array([features.first_bar]), np.array([last]))}

    def _training(self, panel: MarketPanel, last: int) -> Answer:
        """Inputs of a training: its scaling, its moments and its bars may not know what comes after training.

        Nothing at all may know what comes after validation: for that probe every row belongs to its last bar.
        """
        answer, end = self._prepared(prepare_from(panel, self.config).process), self.split.validation_end - 1
        if last < end:
            return answer
        whole = {name: Rows(rows.values[None], np.array([end])) for name, rows in answer.items()}
        return {**whole, "fitted": answer["fitted"]}

    def _prepared(self, process: DecisionProcess) -> Answer:
        """Moments of a process, and all tables that it looks its answers up in, a row a bar."""
        moments = process.objective.moments
        tables = {
            "assets": process.asset_features,
            "market": process.market_features,
            "growth": process.growth,
            "listed": process.listed,
            "close": process.panel.close,
        }
        fitted = np.array([[moments.first, moments.second, process.first_bar]])
        return {"fitted": Rows(fitted, np.array([self.split.train_end - 1])), **rows_by_bar(tables)}

    def _behaviour(self, process: DecisionProcess, last: int) -> Answer:
        short = min(_LENGTH, self.config.env.episode_length)
        train = self.config.train.model_copy(update={"offline_episodes": _EPISODES})
        env = self.config.env.model_copy(update={"episode_length": short})
        # A user's own decisions are the same on every panel; their returns are the ledger's and audited there.
        offline = self.config.offline.model_copy(update={"decisions": ()})
        config = self.config.model_copy(update={"train": train, "env": env, "offline": offline})
        # Episodes around the probe: of those all over the window, few would decide just after it.
        first = max(last + 1 - 2 * short, process.first_bar)
        window = range(first, min(last + 1 + short, self.split.train_end))
        data = collect(config, process, window)
        seen, bar = min(process.lag, 1), data.bar.astype(np.int64)
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


def _put_to(kinds: Sequence[str]) -> Callable[[int, str], bool]:
    return lambda last, kind: kind in kinds


def _fields(panel: MarketPanel, last: int) -> Answer:
    fields = ("dates", "close", "open", "high", "low", "volume", "dividends", "quoted", "benchmark", "cash_returns")
    return rows_by_bar({name: getattr(panel, name) for name in fields})


def _own_feature(path: str) -> Ask:
    feature = user_feature(path)
    return lambda panel, last: {feature.name: by_bar(feature.compute(panel))}


def _family(panel: MarketPanel, last: int, family: str) -> Answer:
    return {"targets": by_bar(np.swapaxes(family_tables(panel, family), 0, 1))}


def _growth(process: DecisionProcess, last: int) -> Answer:
    return rows_by_bar({"growth": process.growth, "listed": process.listed, "dividends": process.dividends})


def _liquidity(process: DecisionProcess, last: int) -> Answer:
    """Inputs of the costs, row t of them from bars up to t."""
    return {} if process.liquidity is None else rows_by_bar(process.liquidity._asdict())


def _index(process: DecisionProcess, last: int) -> Answer:
    played = index_backtest(process, range(max(last - 60, 0), process.panel.n_bars))
    if played is None:
        return {}
    bars = np.searchsorted(process.panel.dates, played.dates)
    return {"returns": Rows(played.returns, bars), "costs": Rows(played.costs, bars)}


def _reward(process: DecisionProcess, last: int, term: RewardTerm, seed: int) -> Answer:
    """Rewards of drawn decisions near a bar, each row at the last bar that the reward says it needs."""
    alone = RewardSum([replace(term, weight=1.0, unit=1.0)]).with_tables(process.panel)
    rewarded = with_reward(process, alone)
    first = max(last - term.horizon - _REWARDED, 0)
    bars = np.asarray(rewarded.decision_bars(range(first, last + term.horizon + 2)), dtype=np.int64)
    if not len(bars):
        return {}
    rng = np.random.default_rng(np.random.SeedSequence([seed, _REWARDS, last]))
    held, targets = rng.dirichlet(np.ones(process.n_weights), (len(bars), 2)).swapaxes(0, 1)
    return {"reward": Rows(rewarded.step(rewarded.start(bars, held), targets).reward, bars + term.horizon)}
