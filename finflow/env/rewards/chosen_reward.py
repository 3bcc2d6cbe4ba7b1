"""The chosen reward of a decision process: one by name, one of a user, or a weighted sum of several.

In a sum each reward is divided by its unit, the deviation of it between decisions on the same bar, so that weights mean
the same on every market. A single reward needs none: learners divide by the deviation of the whole.
"""

from __future__ import annotations

import copy
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

from finflow.config import ObjectivesConfig
from finflow.env.decision_process import DecisionProcess, rows_at
from finflow.env.objective import COMPONENTS
from finflow.env.reward_context import ChosenReward, Reward, RewardContext
from finflow.env.rewards.ranking_reward import RankingReward
from finflow.errors import ConfigError, FinflowError, TrainingError, typed_line
from finflow.imports import import_path
from finflow.market.panel import MarketPanel

Table = NDArray[Any]
Made = Mapping[str, Callable[[], Reward]]
BUILTIN, RANKING = "builtin", "ranking"


class Turnover:
    """Minus the turnover of the decision, half the sum of all absolute trades as a share of wealth."""

    horizon = 1
    differentiable = True

    def __call__(self, context: RewardContext) -> Any:
        return -context.turnover


class Variance:
    """Minus the squared net log return: its mean is minus the variance of a bar, but for the mean return squared."""

    horizon = 1
    differentiable = True

    def __call__(self, context: RewardContext) -> Any:
        return -(context.log_return**2)


OF_THE_STEP: Mapping[str, Callable[[], Reward]] = {"turnover": Turnover, "variance": Variance}


@dataclass(frozen=True, eq=False)
class RewardTerm:
    """One reward of a sum; None is the built-in one.

    It is divided by ``unit``; ``table`` (bars, ...) has the rows of ``reward.table`` for all bars of the process.
    """

    name: str
    reward: Reward | None
    weight: float = 1.0
    unit: float = 1.0
    table: Table | None = None

    @property
    def horizon(self) -> int:
        return 1 if self.reward is None else self.reward.horizon

    @property
    def differentiable(self) -> bool:
        """True where gradients pass through it."""
        return self.reward is None or bool(getattr(self.reward, "differentiable", False))

    @property
    def names(self) -> tuple[str, ...]:
        return COMPONENTS if self.reward is None else (self.name.rpartition(":")[2],)

    @property
    def slow(self) -> bool:
        """True where it may take long, and workers compute it if there are any: one of a user."""
        return ":" in self.name or bool(getattr(self.reward, "slow", False))

    def components(self, context: RewardContext) -> Any:
        """Weighted components, (batch, components)."""
        if self.reward is None:
            return self.weight / self.unit * context.builtin
        return self.weighted(computed(self.name, self.reward, self.visible_context(context)), context)

    def visible_context(self, context: RewardContext) -> RewardContext:
        """Facts that this reward may see: bars up to its horizon, and its table."""
        return replace(
            context,
            growth=context.growth[:, : self.horizon],
            listed=context.listed[:, : self.horizon + 1],
            # bars of further tables of growth have the rows of the market's own
            table=None if self.table is None else rows_at(self.table, context.bar % len(self.table), context.weights),
        )

    def weighted(self, values: Any, context: RewardContext) -> Any:
        """Weighted component, (batch, 1), of what the reward returned; `TrainingError` where that cannot be used."""
        return self.weight / self.unit * checked(self.name, values, context)[..., None]


class RewardSum:
    """Weighted sum of rewards, with the longest of their horizons and the names of all components."""

    def __init__(self, terms: Sequence[RewardTerm]) -> None:
        self.terms = tuple(terms)
        self.horizon = max(term.horizon for term in self.terms)
        self.names = tuple(name for term in self.terms for name in term.names)

    def components(self, context: RewardContext) -> Any:
        """Weighted components of every term, (batch, components)."""
        xp = array_namespace(context.weights)
        return xp.concat([term.components(context) for term in self.terms], axis=-1)

    @property
    def log_return_weight(self) -> float:
        """Factor of the log return in the reward: that of the built-in term, 0 without one."""
        return sum(term.weight / term.unit for term in self.terms if term.reward is None)

    @property
    def not_differentiable(self) -> str | None:
        """Name of the first term that gradients do not pass through; None where all do."""
        return next((term.name for term in self.terms if not term.differentiable), None)

    def with_units(self, units: Sequence[float]) -> RewardSum:
        return RewardSum([replace(term, unit=unit) for term, unit in zip(self.terms, units, strict=True)])

    def with_tables(self, panel: MarketPanel) -> RewardSum:
        return RewardSum([replace(term, table=_table_of(term, panel)) for term in self.terms])


def with_reward(process: DecisionProcess, reward: ChosenReward) -> DecisionProcess:
    """The same market with another reward; bars of a window whose reward reaches beyond it decide nothing."""
    other = copy.copy(process)
    other.reward, other.reward_names = reward, reward.names
    other.reward_horizon = reward.horizon
    return other


def named_rewards(objectives: ObjectivesConfig, n_assets: int, made: Made | None = None) -> RewardSum | None:
    """Rewards of a configuration, without units and tables; None for the built-in one alone.

    ``made`` makes rewards of a higher room by their names. `ConfigError` if a user's reward cannot be imported or
    declares no horizon, or K is over the number of assets.
    """
    chosen = objectives.terms
    if [term.name for term in chosen] == [BUILTIN] and chosen[0].weight > 0.0:
        return None
    makers = made or {}
    terms = [RewardTerm(term.name, _reward_of(term.name, objectives, n_assets, makers), term.weight) for term in chosen]
    return RewardSum(terms)


def user_reward(path: str) -> Reward:
    """Import a reward of a user, ``package.module:Name``, and make one.

    `ConfigError` if it cannot be imported or made, cannot be called, or declares no horizon.
    """
    try:
        found = import_path(path)
        reward = found() if isinstance(found, type) else found
    except Exception as error:
        raise ConfigError(f"the reward {path!r} cannot be imported: {typed_line(error)}") from error
    horizon = getattr(reward, "horizon", None)
    if not callable(reward):
        raise ConfigError(f"the reward {path!r} cannot be called: it needs __call__(context) -> (batch,)")
    if type(horizon) is not int or horizon < 1:
        raise ConfigError(
            f"the reward {path!r} declares horizon = {horizon!r}: the bars after the fill that it needs, 1 or more"
        )
    return reward  # type: ignore[no-any-return]


def computed(name: str, reward: Reward, context: RewardContext) -> Any:
    """Call a reward; `TrainingError` names it and the place if it raises."""
    try:
        return reward(context)
    except (FinflowError, MemoryError):
        raise
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        bars = np.asarray(context.bar)
        where = f"{Path(place.filename).name}, line {place.lineno}"
        raise TrainingError(
            f"the reward {name!r} failed at the bars {bars.min()} to {bars.max()}: {typed_line(error)} ({where})"
        ) from error


def checked(name: str, values: Any, context: RewardContext) -> Any:
    """A reward's answer in the precision of the context; `TrainingError` for another shape or what is not finite."""
    xp, batch = context.xp, len(context.bar)
    shape = tuple(getattr(values, "shape", ()))
    if shape != (batch,):
        raise TrainingError(f"the reward {name!r} returned the shape {shape}, not {(batch,)}: one number a portfolio")
    if array_namespace(values) is not xp:
        raise TrainingError(
            f"the reward {name!r} returned {type(values).__name__} for {type(context.weights).__name__}: use context.xp"
        )
    if not bool(xp.all(xp.isfinite(values))):
        known = np.asarray(xp.isfinite(values).tolist())
        bar = int(np.asarray(context.bar)[~known][0])
        raise TrainingError(f"the reward {name!r} returned what is no finite number, first at bar {bar}")
    return xp.astype(values, context.log_return.dtype)


def _reward_of(name: str, objectives: ObjectivesConfig, n_assets: int, made: Made) -> Reward | None:
    if name == BUILTIN:
        return None
    for makers in (OF_THE_STEP, made):
        if name in makers:
            return makers[name]()
    if name != RANKING:
        return user_reward(name)
    if objectives.ranking.k > n_assets:
        raise ConfigError(
            f"objectives.ranking.k = {objectives.ranking.k}: the market has {n_assets} assets; use {n_assets} at most"
        )
    return RankingReward(objectives.ranking)


def _table_of(term: RewardTerm, panel: MarketPanel) -> Table | None:
    """The rows that a reward computes once for every bar; None where it has none."""
    make = getattr(term.reward, "table", None)
    if not callable(make):
        return None
    try:
        rows = np.asarray(make(panel), dtype=np.float64)
    except Exception as error:
        raise ConfigError(f"table() of the reward {term.name!r} failed: {typed_line(error)}") from error
    if rows.ndim == 0 or len(rows) != panel.n_bars:
        raise ConfigError(f"table() of the reward {term.name!r} has the shape {rows.shape}: one row a bar is needed")
    return rows
