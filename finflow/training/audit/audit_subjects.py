"""The components of an audit: every part between prices and decisions, as a function of a panel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from finflow.env.decision_process import DecisionProcess
from finflow.env.rewards.chosen_reward import RewardSum, RewardTerm, named_rewards, with_reward
from finflow.evaluation.audit.look_ahead import Answer, Component, Rows, by_bar
from finflow.evaluation.audit.shocked_panels import CUT, REPEAT, UNPRIMED
from finflow.evaluation.backtest import index_backtest
from finflow.ledger.costs import costs_of
from finflow.market.features.asset_features import ASSET_FEATURES, FILTER_FEATURES
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
from finflow.training.data.training_data import prepare_from

FloatArray = NDArray[np.float64]

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
        market = self.config.market
        yield Component("panel", self._fields)
        yield Component("source", lambda panel, _: loaded(panel, market), lambda last, kind: kind in _FEW)
        if self.panel.n_assets > 2:
            listings, gaps = partial(loaded_with_newcomers, market=market), partial(loaded_with_gap, market=market)
            yield Component("source, listings", listings, lambda last, kind: kind in _LISTINGS)
            yield Component("source, gaps", gaps, lambda last, kind: kind in ("replaced", REPEAT))
        yield from self.of_features()
        for family in FAMILIES:
            yield Component(
                f"family {family}",
                self._family(family),
                lambda last, kind: kind in _FEW and last < self.split.train_end,
            )
        yield Component("growth", self._growth)
        ends = (self.split.train_end - 1, self.split.validation_end - 1)
        yield Component("training", self._training, lambda last, kind: last in ends and kind != CUT)
        yield Component(
            "evaluation",
            lambda panel, _: self._prepared(prepare_from(panel, self.config).held_out_process()),
            lambda last, kind: last > self.split.validation_end and kind in _FEW,
        )

    def of_features(self) -> Iterator[Component]:
        """Tables computed from the panel for every bar."""
        for path in self.config.features.extra:
            yield Component(f"feature {path.partition('@')[0]}", self._own_feature(path))
        yield Component("features", self._all_features)
        if costs_of(self.config.env).needs_market:
            yield Component("liquidity", self._liquidity)

    def of_near(self, strategies: Mapping[str, Callable[[], Strategy]]) -> Iterator[Component]:
        """Components quick enough for probes of many bars in a row."""
        yield Component("panel", self._fields)
        yield from self.of_features()
        yield Component("growth", self._growth)
        yield from self.of_environments()
        played = self._recorded(strategies)
        for name in played.makers:
            yield Component(name if name in ("backtest", "agent") else f"strategy {name}", played.of(name))

    def of_environments(self) -> Iterator[Component]:
        """The environment at every lag, what its fills are paid, and what is learned from."""
        for lag in (0, 1, 2):
            if lag or self.config.env.fill == "close":
                yield Component(f"environment, lag {lag}", self._environment(lag))
                yield Component(f"fill, lag {lag}", self._fill(lag), lambda last, kind: kind in _LEVELS)
        yield from _rewards(self)
        replayed = partial(replay_states, before=self.before)
        yield Component("replay", lambda panel, last: replayed(self.configured(panel, last), last))

    def of_decisions(self, strategies: Mapping[str, Callable[[], Strategy]]) -> Iterator[Component]:
        """Environments, what the backtest hands out, the index, strategies, behaviour data."""
        yield from self.of_environments()
        named = self._recorded({name: make for name, make in strategies.items() if name in NAMED})
        yield Component("backtest", named.of("backtest"), self._judged)
        if self.panel.benchmark is not None:
            yield Component("index", self._index)
        for name, make in strategies.items():
            played = named if name in NAMED else RecordedStrategies(self, {name: make})
            yield Component(f"strategy {name}", played.of(name), self._judged)
        # Cut inside the training window, behaviour data's episodes would start elsewhere.
        end = self.split.train_end
        yield Component(
            "behaviour data",
            self._behaviour,
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

    def _fields(self, panel: MarketPanel, last: int) -> Answer:
        fields = ("dates", "close", "open", "high", "low", "volume", "dividends", "quoted", "benchmark", "cash_returns")
        arrays = {name: getattr(panel, name) for name in fields}
        return {name: by_bar(array) for name, array in arrays.items() if array is not None}

    def _growth(self, panel: MarketPanel, last: int) -> Answer:
        process = self.configured(panel, last)
        tables = {"growth": process.growth, "listed": process.listed, "dividends": process.dividends}
        return {name: by_bar(table) for name, table in tables.items() if table is not None}

    def _own_feature(self, path: str) -> Callable[[MarketPanel, int], Answer]:
        feature = user_feature(path)
        return lambda panel, last: {feature.name: by_bar(feature.compute(panel))}

    def _all_features(self, panel: MarketPanel, last: int) -> Answer:
        features = self.features(panel, self.fit(last))
        assets = {name: by_bar(features.assets[:, :, i]) for i, name in enumerate(features.asset_names)}
        market = {name: by_bar(features.market[:, i]) for i, name in enumerate(features.market_names)}
        first = Rows(np.array([features.first_bar]), np.array([last]))
        raw: Answer = {}
        if self.before == 1:  # near a probe unscaled and unrounded, too: a leak too small to survive that would hide
            view = PanelView(panel)
            own = (*ASSET_FEATURES, *FILTER_FEATURES.get(self.config.features.filters, ()))
            raw = {f"raw {one.name}": by_bar(one.compute(view)) for one in own}
            raw |= {f"raw {name}": by_bar(compute(view)) for name, compute in MARKET_FEATURES.items()}
        return {**assets, **market, "first bar": first, **raw}

    def _liquidity(self, panel: MarketPanel, last: int) -> Answer:
        """Inputs of the costs, row t of them from bars up to t."""
        found = self.configured(panel, last).liquidity
        return {} if found is None else {name: by_bar(table) for name, table in found._asdict().items()}

    def _family(self, family: str) -> Callable[[MarketPanel, int], Answer]:
        return lambda panel, last: {"targets": by_bar(np.swapaxes(family_tables(panel, family), 0, 1))}

    def _late(self, last: int, kind: str) -> bool:
        return last >= self.split.train_end - 1

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
        end_of_training = np.array([self.split.train_end - 1])
        return {"fitted": Rows(fitted, end_of_training), **{name: by_bar(table) for name, table in tables.items()}}

    def _environment(self, lag: int) -> Callable[[MarketPanel, int], Answer]:
        seed, before = self.config.train.seed, self.before
        return lambda panel, last: episode(self.process(panel, self.fit(last), lag), last, seed, before)

    def _fill(self, lag: int) -> Callable[[MarketPanel, int], Answer]:
        return lambda panel, last: fills(self.process(panel, self.fit(last), lag), last, self.config.train.seed)

    def _index(self, panel: MarketPanel, last: int) -> Answer:
        process = self.configured(panel, last)
        played = index_backtest(process, range(max(last - 60, 0), panel.n_bars))
        if played is None:
            return {}
        bars = np.searchsorted(panel.dates, played.dates)
        return {"returns": Rows(played.returns, bars), "costs": Rows(played.costs, bars)}

    def _behaviour(self, panel: MarketPanel, last: int) -> Answer:
        short = min(_LENGTH, self.config.env.episode_length)
        train = self.config.train.model_copy(update={"offline_episodes": _EPISODES})
        env = self.config.env.model_copy(update={"episode_length": short})
        # A user's own decisions are the same on every panel; their returns are the ledger's and audited there.
        offline = self.config.offline.model_copy(update={"decisions": ()})
        config = self.config.model_copy(update={"train": train, "env": env, "offline": offline})
        lag, process = self.config.env.execution_lag, self.configured(panel, last)
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


def _rewards(market: AuditedMarket) -> Iterator[Component]:
    """Every chosen reward on its own; not the built-in one, which the environment's audit covers."""
    rewards = named_rewards(market.config.objectives, market.panel.n_assets)
    terms = () if rewards is None else rewards.terms
    for term in {term.name: term for term in terms}.values():
        if term.reward is not None:
            yield Component(f"reward {term.name}", _reward_answers(market, term))


def _reward_answers(market: AuditedMarket, term: RewardTerm) -> Callable[[MarketPanel, int], Answer]:
    """Rewards of drawn decisions near a bar, each row at the last bar that the reward says it needs."""

    def answer(panel: MarketPanel, last: int) -> Answer:
        process = market.configured(panel, last)
        alone = RewardSum([replace(term, weight=1.0, unit=1.0)]).with_tables(process.panel)
        rewarded = with_reward(process, alone)
        first = max(last - term.horizon - _REWARDED, 0)
        bars = np.asarray(rewarded.decision_bars(range(first, last + term.horizon + 2)), dtype=np.int64)
        if not len(bars):
            return {}
        rng = np.random.default_rng(np.random.SeedSequence([market.config.train.seed, _REWARDS, last]))
        held, targets = rng.dirichlet(np.ones(process.n_weights), (len(bars), 2)).swapaxes(0, 1)
        return {"reward": Rows(rewarded.step(rewarded.start(bars, held), targets).reward, bars + term.horizon)}

    return answer
