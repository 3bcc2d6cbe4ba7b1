"""One decision for an account: the agent's target by the code of the backtest, the limits, the orders, the reasons."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from finflow.env.market_growth import share_prices
from finflow.env.portfolio_state import PortfolioState, join_states
from finflow.errors import FinflowError
from finflow.evaluation.backtest import History, targets_of
from finflow.ledger.accounting import Settlement, before_dividends, orders, settle
from finflow.ledger.constraints import turnover
from finflow.trading.account_state import AccountState
from finflow.trading.decision_page import AssetDecision, Check, DailyDecision, Order, OrderReductions, TargetSpread
from finflow.trading.decision_reasons import Reasoning
from finflow.trading.live_market import LiveMarket, run_verdict
from finflow.trading.order_rounding import Account, Plan, price_plan, round_orders
from finflow.training.judging.agent_strategy import Agents

FloatArray = NDArray[np.float64]

OVERDRAFT = 0.05  # share of the account that prices which moved until the fill may have left cash short of
_DUST = 1e-9  # shares, or weight, that are rounding


class DecisionMaking:
    """One decision of some agents for an account.

    The portfolio is observed at the prices at which the last decision filled, as in the backtest, and the target is
    stated at them; both drift to the newest close, at which orders are planned.
    """

    def __init__(self, agents: Agents, market: LiveMarket, account: AccountState) -> None:
        self.agents, self.market, self.account, self.process = agents, market, account, market.process
        self.config, panel = agents.config, market.panel
        self.prices = panel.share_closes[-1]
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
        at_fill = np.nan_to_num(share_prices(panel, self.config.env.fill)[-1])
        money = np.append(account.shares * at_fill, max(account.cash, 0.0))
        self.observed = money / max(money.sum(), 1e-300)
        self.moved = np.append(
            np.where(at_fill > 0.0, np.nan_to_num(self.prices) / np.maximum(at_fill, 1e-300), 1.0), 1
        )
        self.liquidity = self.process.market_known(range(market.next_fill, market.next_fill + 1))
        self.state = self._portfolio()
        strategies = agents.strategies()
        states = join_states([self.state] * len(strategies))
        targets = targets_of(self.process, states, strategies, 0, market.next_fill, History(np.asarray(panel.close)))
        self.target, self.alone = targets[0], targets[1:]
        self.reasoning = Reasoning(agents, market, self.process.observe(self.state)["portfolio"][0])

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

    def decision(self, checks: list[Check]) -> DailyDecision:
        panel, limits, aim = self.market.panel, self.process.limits, self.reasoning.aim.numpy()
        listed = np.isfinite(self.prices)[None]
        before, allowed = orders(self.observed[None], self.target[None], self.moved[None], listed, limits, lag=1)
        halted = self.process.halted[[-1]] & (self.process.lag == 0)
        settled = settle(before, allowed, self.process.costs, np.array([self.value]), self.liquidity, halted)
        before, allowed = before[0], settled.weights[0] if halted.any() else allowed[0]
        kept, refused = bool(np.array_equal(before, allowed)), bool(settled.refused is not None and settled.refused[0])
        plan = self._plan(allowed, settled, kept or refused)
        after = np.append((self.account.shares + plan.trades) * np.nan_to_num(self.prices), plan.cash)
        planned = after / after.sum()
        stated = self.target * self.moved
        stated = stated / stated.sum()
        change = float(np.abs(stated - before).max())
        filled_after = "" if self.process.lag == 0 else "the next session after "
        figures = {
            "price": np.append(self.prices, 1.0),
            "shares": np.append(self.account.shares, self.account.cash),
            **{"held": before, "aim": aim, "target": self.target, "allowed": allowed, "planned": planned},
        }
        spreads = [TargetSpread(min(each), max(each)) if each else None for each in self.alone.T.tolist()]
        return DailyDecision(
            date=str(panel.dates[-1]),
            known=str(panel.dates[self.market.known]),
            fills=f"at the {self.config.env.fill} of {filled_after}{panel.dates[-1]}",
            agents=list(self.agents.names),
            agent_sha256=self.agents.identity,
            panel_sha256=panel.sha256,
            verdict=run_verdict(self.agents),
            value=self.value,
            cash=self.account.cash,
            cash_after=plan.cash,
            turnover=float(turnover(before[None], planned[None])[0]),
            cost=plan.cost,
            distance=plan.distance,
            lot=self.config.trading.lot,
            assets={
                name: AssetDecision(**{key: float(column[n]) for key, column in figures.items()}, spread=spreads[n])
                for n, name in enumerate((*panel.assets, "cash"))
            },
            orders=self._orders(plan),
            held_back=OrderReductions(
                to_aim=_half_sum(self.observed, aim),
                trade_rate=self.reasoning.trade_rate,
                to_target=_half_sum(self.observed, self.target),
                to_allowed=_half_sum(before, allowed),
                largest_change=change,
                no_trade_band=limits.no_trade_band,
                in_band=change > 0.0 and kept and limits.no_trade_band > 0.0,
                limited=bool(
                    (stated[:-1] > limits.max_weight + _DUST).any()
                    or _half_sum(before, stated) > limits.max_turnover + _DUST
                ),
                refused=refused,
            ),
            reasons=self.reasoning.reasons(),
            checks=checks,
            follow_up=self.account.follow_up,
        )

    def _plan(self, allowed: FloatArray, settled: Settlement, keeps: bool) -> Plan:
        costs, settings = self.process.costs, self.config.trading
        if keeps and self.account.cash >= 0.0:
            wanted = self.account.shares * np.nan_to_num(self.prices)
            return price_plan(self.plan_account, np.zeros(len(wanted)), wanted, costs, self.liquidity)
        wanted = allowed[:-1] * float(settled.wealth_factor[0]) * self.value
        reserve = settings.cash_reserve * self.value
        return round_orders(self.plan_account, wanted, settings.lot, reserve, costs, self.liquidity)

    def _orders(self, plan: Plan) -> list[Order]:
        made = []
        for n, name in enumerate(self.market.panel.assets):
            shares, price = float(plan.trades[n]), float(self.prices[n])
            if abs(shares) > _DUST:
                side: Literal["buy", "sell"] = "buy" if shares > 0.0 else "sell"
                made.append(Order(name, side, abs(shares), price, abs(shares) * price, float(plan.costs[n])))
        return sorted(made, key=lambda one: (one.side == "buy", -one.value, one.ticker))


def _half_sum(first: FloatArray, second: FloatArray) -> float:
    return 0.5 * float(np.abs(first - second).sum())
