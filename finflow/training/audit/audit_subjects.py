"""The components of an audit: every part between prices and decisions, as a function of a panel."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finflow.config import Config
from finflow.env.decision_process import DecisionProcess
from finflow.env.market_growth import equal_weight_moments
from finflow.env.rewards.chosen_reward import RewardSum, RewardTerm, named_rewards, with_reward
from finflow.evaluation.backtest import index_backtest
from finflow.ledger.costs import costs_of
from finflow.market.features.asset_features import features_of
from finflow.market.features.feature_set import Features, compute_features, user_feature
from finflow.market.features.market_features import MARKET_FEATURES
from finflow.market.features.rolling_windows import PanelView
from finflow.market.panel import MarketPanel
from finflow.market.splits import Split
from finflow.offline.collection import collect
from finflow.strategies.behaviour import FAMILIES, family_tables
from finflow.strategies.strategy import Strategy
from finflow.training.audit.audited_parts import (
    InputRecorder,
    decisions,
    episode,
    fills,
    loaded,
    loaded_with_gap,
    loaded_with_newcomers,
    replay_states,
)
from finflow.training.audit.look_ahead import Answer, Ask, Component, Rows, rows_by_bar
from finflow.training.audit.shocked_panels import CUT, REPEAT, SHOCKS, UNPRIMED
from finflow.training.data.training_data import prepare_from

_ALL = (*SHOCKS, UNPRIMED)
_FEW = ("replaced", "relisted", CUT, REPEAT, UNPRIMED)
"""Probes of what takes long: the wildest, the listings, and none at all."""
_LEVELS = ("crash", "boom", REPEAT)
"""Probes that change the level of all prices alike: what comes after the first bar moves as it did."""
_LISTINGS = ("replaced", "crash", CUT, REPEAT, UNPRIMED)
"""Probes of listings in the source: with other listings, no two of three assets may be left."""
_FIELDS = ("dates", "close", "open", "high", "low", "volume", "dividends", "quoted", "benchmark", "cash_returns")
BEFORE = 20
"""Decisions asked for before a probe."""
_RHYTHMS = (60, 84, 110)
"""Decisions before the one that is probed: many rhythms of rebalancing divide one of them."""
_EPISODES, _LENGTH = 24, 60
_REWARDED = 40  # bars before the last one known at which decisions are rewarded
_REWARDS = 91  # purpose of the generator that draws them


class AuditSubjects:
    """The components of a configuration on its market, and what several of them are made from.

    Everything fitted is fitted on the bars before the end of training, and before the end of what a probe leaves
    alone: for a probe inside the training window, training is taken to end there.

    ``panel``: the configured market, up to the end of the test window. ``near``: whether only the decisions right
    before a probe are asked for, as suits probes of many bars in a row.
    """

    def __init__(self, panel: MarketPanel, config: Config, split: Split, near: bool = False) -> None:
        self.panel, self.config, self.split = panel, config, split
        self.before = 1 if near else BEFORE
        self.rhythms = () if near else (config.evaluation.rebalance_every, *_RHYTHMS)
        self.features = lru_cache(maxsize=6)(self._features)
        self.process = lru_cache(maxsize=18)(self._process)

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

    def of_market(self) -> Iterator[Component]:
        """Source, features, behaviour tables, and what a training is given."""
        market, split = self.config.market, self.split
        yield Component(
            "panel", lambda panel, _: rows_by_bar({name: getattr(panel, name) for name in _FIELDS}), quick=True
        )
        yield Component("source", lambda panel, _: loaded(panel, market), _put_to(_FEW))
        if self.panel.n_assets > 2:
            listings, gaps = partial(loaded_with_newcomers, market=market), partial(loaded_with_gap, market=market)
            yield Component("source, listings", listings, _put_to(_LISTINGS))
            yield Component("source, gaps", gaps, _put_to(("replaced", REPEAT)))
        for path in self.config.features.extra:
            yield Component(f"feature {path.partition('@')[0]}", partial(_own_feature, path=path), quick=True)
        yield Component("features", self._all_features, quick=True)
        if costs_of(self.config.env).needs_market:
            yield Component("liquidity", self.of_process(_liquidity), quick=True)
        for family in FAMILIES:
            tables = partial(_family, family=family)
            yield Component(f"family {family}", tables, _put_to(_FEW, range(split.train_end)))
        yield Component("growth", self.of_process(_growth), quick=True)
        ends = (split.train_end - 1, split.validation_end - 1)
        yield Component("training", self._training, _put_to([kind for kind in _ALL if kind != CUT], ends))
        later = range(split.validation_end + 1, self.panel.n_bars)
        yield Component("evaluation", self._evaluation, _put_to(_FEW, later))

    def of_decisions(self, strategies: Mapping[str, Callable[[], Strategy]]) -> Iterator[Component]:
        """The environment at every lag, what its fills are paid, what is learned from, the backtest, and strategies."""
        seed, split = self.config.train.seed, self.split
        for lag in (0, 1, 2):
            if lag or self.config.env.fill == "close":
                observed = partial(episode, seed=seed, before=self.before)
                yield Component(f"environment, lag {lag}", self.of_process(observed, lag), quick=True)
                paid = self.of_process(partial(fills, seed=seed), lag)
                yield Component(f"fill, lag {lag}", paid, _put_to(_LEVELS), quick=True)
        rewards = named_rewards(self.config.objectives, self.panel.n_assets)
        for term in {term.name: term for term in (() if rewards is None else rewards.terms)}.values():
            if term.reward is not None:  # not the built-in one, which the environment's audit covers
                rewarded = partial(_reward, term=term, seed=seed)
                yield Component(f"reward {term.name}", self.of_process(rewarded), quick=True)
        yield Component("replay", self.of_process(partial(replay_states, before=self.before)), quick=True)
        late = range(split.train_end - 1, self.panel.n_bars)
        yield Component("backtest", self._decided(InputRecorder), _put_to(_ALL, late), quick=True)
        if self.panel.benchmark is not None:
            yield Component("index", self.of_process(_index))
        for name, make in strategies.items():
            # A trained agent has been asked before.
            kinds = _ALL[:-1] if name == "agent" else _ALL
            yield Component(name, self._decided(make), _put_to(kinds, late), quick=True)
        # Cut inside the training window, behaviour data's episodes would start elsewhere.
        whole, end = _put_to([kind for kind in _FEW if kind != CUT], range(split.train_end)), split.train_end - 1
        suits = lambda last, kind: whole(last, kind) or (last, kind) == (end, CUT)  # noqa: E731
        yield Component("behaviour data", self.of_process(self._behaviour), suits)

    def _decided(self, make: Callable[[], Strategy]) -> Ask:
        return self.of_process(partial(decisions, make=make, rhythms=self.rhythms))

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

    def _evaluation(self, panel: MarketPanel, last: int) -> Answer:
        return self._prepared(prepare_from(panel, self.config).held_out_process())

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
        # A user's own decisions are the same on every panel; their returns are the ledger's and audited there.
        changes: dict[str, dict[str, Any]] = {
            "train": {"offline_episodes": _EPISODES},
            "env": {"episode_length": short},
            "offline": {"decisions": ()},
        }
        sections = {name: getattr(self.config, name).model_copy(update=keys) for name, keys in changes.items()}
        # Episodes around the probe: of those all over the window, few would decide just after it.
        first = max(last + 1 - 2 * short, process.first_bar)
        window = range(first, min(last + 1 + short, self.split.train_end))
        data = collect(self.config.model_copy(update=sections), process, window)
        seen, bar = min(process.lag, 1), data.bar.astype(np.int64)
        known = {name: Rows(getattr(data, name), bar, seen) for name in ("portfolio", "action", "family")}
        following = {name: Rows(getattr(data, name), bar + 1, seen) for name in ("next_portfolio", "next_action")}
        scale = Rows(np.array([data.reward_scale]), np.array([window.stop - 1]))
        return {**known, "reward": Rows(data.reward, bar + 1), **following, "reward scale": scale}


def _put_to(kinds: Collection[str], lasts: Collection[int] | None = None) -> Callable[[int, str], bool]:
    return lambda last, kind: kind in kinds and (lasts is None or last in lasts)


def _own_feature(panel: MarketPanel, last: int, path: str) -> Answer:
    feature = user_feature(path)
    return rows_by_bar({feature.name: feature.compute(panel)})


def _family(panel: MarketPanel, last: int, family: str) -> Answer:
    return rows_by_bar({"targets": np.swapaxes(family_tables(panel, family), 0, 1)})


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
