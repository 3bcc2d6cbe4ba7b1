"""One decision, batched: the process behind the environment, the backtest and the behaviour data.

Decision t fills at bar t and may use bars up to ``t - lag``. The portfolio that is observed is the one right after
the last fill, at bar t - 1 (at lag 0: drifted to bar t), and the target is stated at the same prices; both drift to
the fill, and their difference is traded. So a target equal to the observed portfolio trades exactly nothing, at any
lag. What was filled at bar t then grows until bar t + 1, and that is the step's reward.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device
from numpy.typing import NDArray

from finflow.arrays import BoolArray, FloatArray, IntArray
from finflow.config import EnvConfig, ObjectivesConfig
from finflow.env.market_growth import LIQUIDITY_WINDOW, dividends_of, fill_prices, growth_of, liquidity_of
from finflow.env.objective import COMPONENTS, STATE_SIZE, Moments, Objective
from finflow.env.portfolio_state import PortfolioState, Step
from finflow.env.reward_context import ChosenReward, LazyObservation, RewardContext
from finflow.errors import ConfigError
from finflow.ledger.accounting import Settlement, drift, orders, pay_out, settle
from finflow.ledger.constraints import Limits, keep_listed
from finflow.ledger.costs import MarketState, costs_of
from finflow.market.features.feature_set import Features
from finflow.market.panel import MarketPanel

RUIN = 1e-6  # share of the initial capital under which an account is over


class DecisionProcess:
    """Observations of one market, and the transition that a decision causes.

    Raises ConfigError if fills are asked for at prices that the panel lacks or that the information set has already
    passed.

    Parameters
    ----------
    panel : MarketPanel
        Bars that may be traded and observed; none after its end.
    moments : Moments
        Of equal weight on the training window.

    Attributes
    ----------
    halted : bool array, (bars, assets)
        Listed assets that cannot be traded at a bar.
    dividends : float array, (bars, assets), or None
        Share of an asset's value at the end of a bar that is paid in cash; part of its growth.
    reward : ChosenReward or None
        In place of the built-in reward; None for that one. See `with_reward`.
    reward_horizon : int
        Bars after a fill by which its reward is known.
    reward_names : tuple of str
        Components of the reward.
    """

    def __init__(
        self, panel: MarketPanel, features: Features, env: EnvConfig, objectives: ObjectivesConfig, moments: Moments
    ) -> None:
        self.panel = panel
        self.reward: ChosenReward | None = None
        self.reward_horizon = 1
        self.reward_names: tuple[str, ...] = COMPONENTS
        self._first_features = features.first_bar
        self._set_lag(env)
        self.growth = growth_of(panel, env.fill)
        self.dividends = dividends_of(panel, env.fill)
        self.listed = np.isfinite(fill_prices(panel, env.fill))
        self.halted = np.zeros(panel.listed.shape, dtype=np.bool_) if panel.halted is None else panel.halted
        known = panel.listed[:, :, None].astype(np.float32)
        self.asset_features = np.concatenate([features.assets, known], axis=2)
        self.market_features = features.market
        self.objective = Objective(objectives, moments)
        self.limits = Limits(env.max_weight, env.max_turnover, env.no_trade_band)
        self._set_costs(env)

    def _set_lag(self, env: EnvConfig) -> None:
        if env.fill == "open" and env.execution_lag == 0:
            raise ConfigError("env.execution_lag is 0 with env.fill open: the close would be known before the open")
        self.env = env
        self.lag = env.execution_lag
        self.first_bar = self._first_features + max(self.lag, 1)

    def _set_costs(self, env: EnvConfig) -> None:
        """Set the costs of a configuration, and the volumes and volatilities that they depend on."""
        self.costs = costs_of(env)
        self.liquidity: MarketState | None = None
        if self.costs.needs_market:
            self.liquidity = liquidity_of(self.panel)
            self.first_bar = max(self.first_bar, LIQUIDITY_WINDOW + self.lag)

    def market_known(self, bars: range) -> MarketState | None:
        """Volume and volatility (bars, N) as known to decisions that fill at these bars, where a cost needs them."""
        if self.liquidity is None:
            return None
        known = slice(bars.start - self.lag, bars.stop - self.lag)
        return MarketState(*(table[known] for table in self.liquidity))

    def known_listed(self, bar: IntArray) -> BoolArray:
        """Assets that decisions at bars (N,) know to be listed, (N, assets): those listed ``lag`` bars before."""
        return self.asset_features[bar - self.lag, :, -1] > 0.0

    @property
    def n_weights(self) -> int:
        """K: assets and cash."""
        return int(self.growth.shape[1])

    @property
    def portfolio_size(self) -> int:
        """Length of the observed portfolio vector: weights and the state of the reward."""
        return self.n_weights + STATE_SIZE

    def decision_bars(self, window: range) -> range:
        """Bars of ``window`` at which a decision can fill: features before it, the bars of its reward after it."""
        return range(max(window.start, self.first_bar), min(window.stop, self.growth.shape[0]) - self.reward_horizon)

    def start(self, bar: IntArray, weights: FloatArray | None = None) -> PortfolioState:
        """Portfolios about to decide at ``bar``, holding ``weights`` (all cash if not given)."""
        if weights is None:
            weights = np.zeros((len(bar), self.n_weights))
            weights[:, -1] = 1.0
        else:  # an asset without a price cannot be held
            listed = self.listed[np.asarray(bar) - 1]
            if self.lag > 1:  # and none that the coming decision does not know yet
                listed = listed & self.known_listed(np.asarray(bar))
            weights = keep_listed(weights, listed)
        initial = self.objective.initial(weights)
        wealth = np.full(len(bar), float(self.env.initial_capital))
        return PortfolioState(np.asarray(bar), weights, wealth, initial, initial)

    def observed_portfolio(self, state: PortfolioState) -> Any:
        """Observed portfolio (batch, K + 3): weights, then the state of the reward."""
        xp = array_namespace(state.weights)
        if self.lag == 0:
            drifted = drift(state.weights, _rows(self.growth, state), _dividend_rows(self, state))
            weights = pay_out(drifted, _rows(self.listed, state))
            reward_state = state.objective
        else:
            weights, reward_state = state.weights, state.objective_before
        return xp.concat([weights, self.objective.observe(reward_state)], axis=-1)

    def observe(self, state: PortfolioState) -> dict[str, Any]:
        """Observation at the next decision, in the array library of the state.

        ``assets`` (batch, assets, F + 1; the last column is 1 where the asset is listed), ``market`` (batch, M),
        ``portfolio`` (batch, K + 3).
        """
        known = (state.bar - self.lag) % len(self.asset_features)  # further tables of growth share the features
        return {
            "assets": rows_at(self.asset_features, known, state.weights),
            "market": rows_at(self.market_features, known, state.weights),
            "portfolio": self.observed_portfolio(state),
        }

    def step(self, state: PortfolioState, action: Any) -> Step:
        """Fill a decision and hold it for one bar.

        The action (batch, K) is the target, at the prices of the observed portfolio; projected if it is off the
        simplex.
        """
        xp = array_namespace(state.weights)
        fill = fill_at(self, state, action)
        ahead = _rows(self.growth, replace(state, bar=state.bar + 1))
        simple_return = fill.wealth_factor * (fill.weights * ahead).sum(axis=-1) - 1.0
        log_return = xp.log((1.0 + simple_return).clip(1e-12))
        components, objective = self.objective.step(state.objective, log_return, fill.turnover, xp.log(ahead[..., -1]))
        if self.reward is not None:
            context = _reward_context(self, state, action, fill, simple_return, components)
            components = self.reward.components(context)
        wealth = state.wealth * (1.0 + simple_return)
        after = PortfolioState(state.bar + 1, fill.weights, wealth, objective, state.objective)
        ruined = wealth <= RUIN * self.env.initial_capital
        total, traded = components.sum(axis=-1), (fill.cost, fill.turnover, fill.refused)
        return Step(after, total, components, ruined, fill.weights, simple_return, *traded)


def resumed_state(process: DecisionProcess, bar: IntArray, observed: FloatArray) -> PortfolioState:
    """Portfolios about to decide at ``bar`` (batch,) that are observed as ``observed`` (batch, K + 3).

    What is not observed is as it usually is: the initial capital, and a state of the reward that did not change.
    """
    weights = np.clip(observed[:, :-STATE_SIZE], 0.0, None)
    if process.lag == 0:  # before the last bar, by which the observed weights have drifted
        grown = process.growth.take(bar, axis=0)
        weights = np.divide(weights, grown, out=np.zeros_like(weights), where=grown > 0.0)
    state = process.start(bar, weights / weights.sum(axis=-1, keepdims=True))
    reward_state = process.objective.recall(observed[:, -STATE_SIZE:])
    return replace(state, objective=reward_state, objective_before=reward_state)


def _dividend_rows(process: DecisionProcess, state: PortfolioState) -> Any:
    """Shares of the states' bars that are paid in cash, (batch, assets); None where none are."""
    return None if process.dividends is None else _rows(process.dividends, state)


def _reward_context(
    process: DecisionProcess, state: PortfolioState, action: Any, fill: Settlement, simple_return: Any, builtin: Any
) -> RewardContext:
    xp = array_namespace(state.weights)
    later = [replace(state, bar=state.bar + step) for step in range(process.reward_horizon + 1)]
    growth = [_rows(process.growth, one) for one in later[1:]]
    return RewardContext(
        bar=np.asarray(state.bar),
        weights=state.weights,
        action=action,
        filled=fill.weights,
        turnover=fill.turnover,
        cost=fill.cost,
        simple_return=simple_return,
        log_return=builtin[..., 0],
        cash_return=xp.log(growth[0][..., -1]),
        wealth=state.wealth,
        builtin=builtin,
        growth=xp.stack(growth, axis=1),
        listed=xp.stack([_rows(process.listed, one) for one in later], axis=1),
        observe=LazyObservation(process, state),
    )


def fill_at(process: DecisionProcess, state: PortfolioState, action: Any) -> Settlement:
    """Trade to a target (batch, K) at the states' bars: the part of a step that needs no later price."""
    growth, listed = _rows(process.growth, state), _rows(process.listed, state)
    dividends = _dividend_rows(process, state)
    before, target = orders(state.weights, action, growth, listed, process.limits, process.lag, dividends)
    halted = None if process.panel.halted is None else _rows(process.halted, state)
    market = None
    if process.liquidity is not None:  # volume and volatility as known at the decision
        known = replace(state, bar=state.bar - process.lag)
        market = MarketState(*(_rows(table, known) for table in process.liquidity))
    return settle(before, target, process.costs, state.wealth, market, halted)


def _rows(table: NDArray[Any], state: PortfolioState) -> Any:
    """Rows of a market table at the states' bars, in the precision of their weights."""
    rows = rows_at(table, state.bar, state.weights)
    if isinstance(rows, np.ndarray):
        return rows
    xp = array_namespace(rows)
    return rows if rows.dtype == xp.bool else xp.astype(rows, state.weights.dtype)


def rows_at(table: NDArray[Any], bars: Any, like: Any) -> Any:
    """Rows of a market table at bars (batch,), in the array library and on the device of another array."""
    if isinstance(like, np.ndarray):
        return table.take(bars, axis=0)
    return array_namespace(like).asarray(table[np.asarray(bars)], device=device(like))


def with_trading(process: DecisionProcess, **changes: object) -> DecisionProcess:
    """The same market and limits with other costs, another capital or another execution lag: keys of `EnvConfig`."""
    other = copy.copy(process)
    other.env = process.env.model_copy(update=changes)
    if "execution_lag" in changes:
        other._set_lag(other.env)
    other._set_costs(other.env)
    return other


def with_growths(process: DecisionProcess, growths: Sequence[FloatArray]) -> DecisionProcess:
    """Same market with further tables of growth, (bars, K) each, one after the other behind its own.

    A portfolio at bar ``b + n * bars`` meets the growth at bar ``b`` of the n-th of them. The features are the market's
    own alone, so that portfolios in further tables can be stepped but not observed.
    """
    other, count = copy.copy(process), 1 + len(growths)
    other.growth = np.concatenate([process.growth, *growths])
    other.listed = np.tile(process.listed, (count, 1))
    other.halted = np.tile(process.halted, (count, 1))
    if process.dividends is not None:
        other.dividends = np.tile(process.dividends, (count, 1))
    if process.liquidity is not None:
        other.liquidity = MarketState(*(np.tile(table, (count, 1)) for table in process.liquidity))
    return other
