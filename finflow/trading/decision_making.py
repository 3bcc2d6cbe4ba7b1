"""One decision for an account: the agent's target by the code of the backtest, the limits, the orders, the reasons."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from finflow.env.market_growth import share_prices
from finflow.env.portfolio_state import PortfolioState, join_states
from finflow.errors import FinflowError
from finflow.evaluation.backtest import History, targets_of
from finflow.ledger.accounting import Settlement, before_dividends, orders, settle
from finflow.ledger.constraints import turnover
from finflow.ledger.costs import MarketState
from finflow.ledger.halts import settle_around_halts
from finflow.trading.account_state import AccountState
from finflow.trading.decision_reasons import Reasoning
from finflow.trading.decision_results import AssetDecision, Check, Decision, Drift, Order, OrderReductions, TargetSpread
from finflow.trading.live_market import Agents, LiveMarket
from finflow.trading.order_rounding import Account, LotRules, Plan, price_plan, round_orders

FloatArray = NDArray[np.float64]

OVERDRAFT = 0.05
"""Share of the account that prices which moved until the fill may have left cash short of; orders make it up."""
_DUST = 1e-9
"""Shares, or weight, that are rounding."""


class DecisionMaking:
    """One decision of some agents for an account.

    The portfolio is observed at the prices at which the last decision filled, as in the backtest, and the target is
    stated at them; both drift to the newest close, at which orders are planned.
    """

    def __init__(self, agents: Agents, market: LiveMarket, account: AccountState) -> None:
        self.agents, self.market, self.account, self.process = agents, market, account, market.process
        self.config, panel = agents.config, market.panel
        self.prices = panel.share_closes[-1]
        at_fill = np.nan_to_num(share_prices(panel, self.config.env.fill)[-1])
        money = np.append(account.shares * at_fill, max(account.cash, 0.0))
        self.observed = np.asarray(money / max(money.sum(), 1e-300), dtype=np.float64)
        self.plan_account = Account(account.shares, self.prices, account.cash)
        self.value = self.plan_account.wealth
        if not self.value > 0.0:
            raise FinflowError(
                f"the value of the account is {self.value:,.2f}: name what is held with --holdings or --cash"
            )
        if account.cash < -OVERDRAFT * self.value:
            raise FinflowError(
                f"the account would have {account.cash:,.2f} in cash: enter what was filled with --fills, or what is "
                "held with --holdings"
            )
        self.moved = np.append(
            np.where(at_fill > 0.0, np.nan_to_num(self.prices) / np.maximum(at_fill, 1e-300), 1.0), 1
        )
        self.state = self._portfolio()
        strategies = agents.strategies()
        states = join_states([self.state] * len(strategies))
        targets = targets_of(self.process, states, strategies, 0, market.next_fill, History(np.asarray(panel.close)))
        self.target, self.alone = targets[0], targets[1:]
        portfolio = self.process.observe(self.state)["portfolio"][0]
        self.reasoning = Reasoning(agents, market, portfolio)

    def _portfolio(self) -> PortfolioState:
        """State before the decision, such that what is observed is what is held."""
        bar, weights = self.market.next_fill, self.observed[None]
        if self.process.lag == 0:  # the process drifts it to the bar itself
            if self.process.dividends is not None:
                weights = before_dividends(weights, self.process.dividends[[bar]])
            weights = weights / self.process.growth[bar]
            weights = weights / weights.sum(axis=1, keepdims=True)
        state = self.account.reward_state
        if state is None:
            state = self.process.objective.initial(weights)
        return PortfolioState(np.array([bar]), weights, np.array([self.value]), state, state)

    def _settlement(self) -> tuple[FloatArray, FloatArray, Settlement]:
        """Weights before and after the trades that the target asks for, at the newest prices."""
        listed = np.isfinite(self.prices)[None]
        before, allowed = orders(
            self.observed[None], self.target[None], self.moved[None], listed, self.process.limits, lag=1
        )
        costs, value = self.process.costs, np.array([self.value])
        halted = self.process.halted[self.market.next_fill][None] if self.process.lag == 0 else None
        if halted is None or not bool(halted.any()):
            return before[0], allowed[0], settle(before, allowed, costs, value, self._liquidity())
        settled = settle_around_halts(before, allowed, halted, costs, value, self._liquidity())
        return before[0], settled.weights[0], settled

    def _liquidity(self) -> MarketState | None:
        bar = self.market.next_fill
        return self.process.market_known(range(bar, bar + 1))

    def decision(self, verdict: Any, checks: list[Check], drift: list[Drift]) -> Decision:
        """The decision with its orders, reasons and checks."""
        before, allowed, settled = self._settlement()
        plan = self._plan(before, allowed, settled)
        panel, assets = self.market.panel, (*self.market.panel.assets, "cash")
        after = np.append((self.account.shares + plan.trades) * np.nan_to_num(self.prices), plan.cash)
        planned = after / after.sum()
        when = "the next session after " if self.process.lag else ""
        figures = np.append(self.prices, 1.0), np.append(self.account.shares, self.account.cash)
        return Decision(
            date=str(panel.dates[-1]),
            known=str(panel.dates[self.market.known]),
            fills=f"at the {self.config.env.fill} of {when}{panel.dates[-1]}",
            agents=list(self.agents.names),
            agent_sha256=self.agents.identity,
            panel_sha256=panel.sha256,
            verdict=verdict,
            value=self.value,
            cash=self.account.cash,
            cash_after=plan.cash,
            turnover=float(turnover(before[None], planned[None])[0]),
            cost=plan.cost,
            distance=plan.distance,
            lot=self.config.trading.lot,
            assets={
                name: AssetDecision(
                    price=float(figures[0][n]),
                    shares=float(figures[1][n]),
                    held=float(before[n]),
                    aim=float(self.reasoning.aim[n]),
                    target=float(self.target[n]),
                    allowed=float(allowed[n]),
                    planned=float(planned[n]),
                    spread=self._spread(n),
                )
                for n, name in enumerate(assets)
            },
            orders=self._orders(plan),
            held_back=self._held_back(before, allowed, settled),
            reasons=self.reasoning.reasons(),
            checks=checks,
            drift=drift,
            follow_up=self.account.follow_up,
        )

    def _plan(self, before: FloatArray, allowed: FloatArray, settled: Settlement) -> Plan:
        wanted = allowed[:-1] * float(settled.wealth_factor[0]) * self.value
        if self.account.cash >= 0.0 and (_refused(settled) or np.array_equal(before, allowed)):
            wanted = self.account.shares * np.nan_to_num(self.prices)
            return price_plan(self.plan_account, np.zeros(len(wanted)), wanted, self.process.costs, self._liquidity())
        settings = self.config.trading
        rules = LotRules(settings.lot, settings.cash_reserve * self.value)
        return round_orders(self.plan_account, wanted, rules, self.process.costs, self._liquidity())

    def _orders(self, plan: Plan) -> list[Order]:
        orders = [
            Order(
                name,
                "buy" if shares > 0.0 else "sell",
                abs(shares),
                float(self.prices[n]),
                abs(shares) * float(self.prices[n]),
                float(plan.costs[n]),
            )
            for n, (name, shares) in enumerate(zip(self.market.panel.assets, plan.trades.tolist(), strict=True))
            if abs(shares) > _DUST
        ]
        return sorted(orders, key=lambda one: (one.side == "buy", -one.value, one.ticker))

    def _held_back(self, before: FloatArray, allowed: FloatArray, settled: Settlement) -> OrderReductions:
        aim, limits = self.reasoning.aim.numpy(), self.process.limits
        stated = self.target * self.moved
        stated = stated / stated.sum()
        change = float(np.abs(stated - before).max())
        return OrderReductions(
            to_aim=_half_sum(self.observed, aim),
            trade_rate=self.reasoning.trade_rate,
            to_target=_half_sum(self.observed, self.target),
            to_allowed=_half_sum(before, allowed),
            largest_change=change,
            no_trade_band=limits.no_trade_band,
            in_band=change > 0.0 and bool(np.array_equal(before, allowed)) and limits.no_trade_band > 0.0,
            limited=bool(
                (stated[:-1] > limits.max_weight + _DUST).any()
                or _half_sum(before, stated) > limits.max_turnover + _DUST
            ),
            refused=_refused(settled),
        )

    def _spread(self, asset: int) -> TargetSpread | None:
        if not len(self.alone):
            return None
        weights = self.alone[:, asset]
        return TargetSpread(float(weights.min()), float(weights.max()))


def _refused(settled: Settlement) -> bool:
    """True where the account cannot pay for the trade."""
    return settled.refused is not None and bool(settled.refused[0])


def _half_sum(first: FloatArray, second: FloatArray) -> float:
    """Half-sum of the absolute changes of weight."""
    return 0.5 * float(np.abs(first - second).sum())
