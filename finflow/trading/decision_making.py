"""One decision for an account: the target by the code of the backtest, the limits, the orders, and the reasons."""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter

import numpy as np
import torch
from torch import Tensor

from finflow.agent.batch import States
from finflow.agent.networks.decision import Decision, acted_portfolio
from finflow.arrays import FloatArray, IntArray
from finflow.env.market_growth import share_prices
from finflow.env.portfolio_state import PortfolioState, join_states
from finflow.errors import refuse
from finflow.evaluation.backtest import History, targets_of
from finflow.ledger.accounting import Settlement, before_dividends, orders, settle
from finflow.ledger.constraints import turnover
from finflow.trading.account_state import AccountState
from finflow.trading.decision_page import (
    Alternative,
    AssetDecision,
    Check,
    DailyDecision,
    FeatureMove,
    Order,
    OrderReductions,
    Reasons,
    TargetSpread,
)
from finflow.trading.live_market import LiveMarket, run_verdict
from finflow.trading.order_rounding import Account, Plan, price_plan, round_orders
from finflow.training.judging.agent_strategy import Agents
from finflow.training.judging.explainer import ExactDecision, in_double, integrated_gradients, mean_of, states_at

POINTS = 17  # values of a feature that are tried over its range in training
HALVINGS = 16  # bisections between two of them
SHOWN = 5  # alternatives that are kept
_NOTHING = 1e-9  # change of a weight that is rounding
_CLIP = 5.0


class Reasoning(ExactDecision):
    """Reasons of what some agents decide together, by the mean of their portfolios.

    ``portfolio`` (K + 3,) has the weights held and the state of the reward, as observed.
    """

    def __init__(self, agents: Agents, market: LiveMarket, portfolio: FloatArray) -> None:
        self.acting, self.band = agents.config.acting, agents.config.env.no_trade_band
        self.market, self.portfolio = market, portfolio
        policies = [in_double(policy) for policy in agents.policies]
        super().__init__(policies, states_at(market.process, market.known, portfolio))
        self.assets = (*market.panel.assets, "cash")
        self.target = mean_of(self._acted(decision)[0] for decision in self.decisions)

    def reasons(self) -> Reasons:
        change, moves = self._moves()
        question, alternatives = self._alternatives()
        return Reasons(
            holds=self.holds,
            gate=self.gate,
            experts={name: dict(zip(self.assets, portfolio, strict=True)) for name, portfolio in self.experts.items()},
            aim_change=change,
            features=moves,
            question=question,
            alternatives=alternatives,
        )

    def _moves(self) -> tuple[float, dict[str, FeatureMove]]:
        market, known = self.market, self.market.known
        if known - 1 < market.features.first_bar:
            return float("nan"), {}
        before = states_at(market.process, known - 1, self.portfolio)
        assets = torch.cat([before.assets[:, :, :-1], self.states.assets[:, :, -1:]], dim=-1)
        before = self.states._replace(assets=assets, market=before.market)  # listings and portfolio are those of today
        moved = self.aim - mean_of(policy(before).aim[0] for policy in self.policies)
        direction = 0.5 * moved.sign().unsqueeze(0)
        read = attrgetter("aim")
        shares = [integrated_gradients(one, self.states, direction, since=before, read=read) for one in self.policies]
        parts = mean_of(torch.cat([one.assets[0].sum(dim=0), one.market[0]]) for one in shares)
        listed = self.states.listed[0].unsqueeze(1)
        count = max(int(listed.sum()), 1)
        values = [
            torch.cat([(one.assets[0, :, :-1] * listed).sum(dim=0) / count, one.market[0]]).tolist()
            for one in (before, self.states)
        ]
        names = (*market.features.asset_names, *market.features.market_names)
        moves = {name: FeatureMove(*row) for name, *row in zip(names, *values, parts.tolist(), strict=True)}
        return 0.5 * float(moved.abs().sum()), dict(sorted(moves.items(), key=lambda one: -abs(one[1].part)))

    def _alternatives(self) -> tuple[str, list[Alternative]]:
        move = self.target - self.held
        asset = int(move[:-1].abs().argmax())
        name, size = self.assets[asset], float(move[asset])
        code = int(self._codes(self.target.unsqueeze(0), asset)[0])
        question = _WORDS[code].format(name) if abs(size) > _NOTHING else "nothing is traded"
        names, now, low, high = self._searched(asset)
        every = np.arange(len(names))
        grid = np.linspace(low, high, POINTS, axis=1)
        other = self._outcomes(np.repeat(every, POINTS), grid.reshape(-1), asset).reshape(grid.shape) != code
        distance = np.where(other, np.abs(grid - now[:, None]), np.inf)
        found = every[other.any(axis=1)]
        inner, outer = now[found], grid[found, distance[found].argmin(axis=1)]
        for _ in range(HALVINGS if found.size else 0):
            middle = 0.5 * (inner + outer)
            changed = self._outcomes(found, middle, asset) != code
            outer, inner = np.where(changed, middle, outer), np.where(changed, inner, middle)
        after = self._outcomes(found, outer, asset).tolist() if found.size else []
        rows = zip(found.tolist(), now[found].tolist(), outer.tolist(), after, strict=True)
        alternatives = [
            Alternative(names[n], before, value, abs(value - before), _WORDS[outcome].format(name))
            for n, before, value, outcome in rows
        ]
        return question, sorted(alternatives, key=lambda one: (one.change, one.feature))[:SHOWN]

    def _searched(self, asset: int) -> tuple[list[str], FloatArray, FloatArray, FloatArray]:
        """Features that may change, of the market and of the asset traded most: names, values now, and their ranges."""
        features, ranges = self.market.features, self.market.ranges
        count = self._count(asset)
        names = [f"{self.assets[asset]}:{feature}" for feature in features.asset_names[:count]]
        now = torch.cat([self.states.assets[0, asset, :count], self.states.market[0]]).double().numpy()
        seen = np.clip(np.concatenate([ranges.assets_seen[:count], ranges.market_seen]), -_CLIP, _CLIP)
        return [*names, *features.market_names], now, seen[:, 0], seen[:, 1]

    def _count(self, asset: int) -> int:
        """Features of an asset that may change: none of one that is not listed."""
        return len(self.market.features.asset_names) if bool(self.states.listed[0, asset]) else 0

    def _outcomes(self, chosen: IntArray, values: FloatArray, traded: int) -> IntArray:
        """Decisions on an asset (rows,) with one of the searched features at another value; see `_codes`."""
        assets = self.states.assets.repeat(len(chosen), 1, 1)
        market = self.states.market.repeat(len(chosen), 1)
        count = self._count(traded)
        for row, (feature, value) in enumerate(zip(chosen.tolist(), values.tolist(), strict=True)):
            place = assets[row, traded] if feature < count else market[row]
            place[feature if feature < count else feature - count] = value
        states = States(assets, market, self.states.portfolio.repeat(len(chosen), 1), self.states.complete)
        return self._codes(mean_of(self._acted(policy(states)) for policy in self.policies), traded)

    def _acted(self, decision: Decision) -> Tensor:
        return acted_portfolio(decision.distribution, self.acting, self.market.panel.dates[self.market.known])

    def _codes(self, targets: Tensor, asset: int) -> IntArray:
        """Decisions on an asset: 1 to buy it, -1 to sell it, 0 where the no-trade band stops all orders."""
        moves = targets - self.held
        trades = moves.abs().amax(dim=-1) > max(self.band, _NOTHING)
        return (moves[:, asset].sign() * trades).long().numpy()


_WORDS: Mapping[int, str] = {1: "{} is bought", -1: "{} is sold", 0: "nothing is traded"}


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
        refuse(
            not self.value > 0.0,
            f"the value of the account is {self.value:,.2f}: name what is held with --holdings or --cash",
        )
        refuse(
            account.cash < -OVERDRAFT * self.value,
            f"the account would have {account.cash:,.2f} in cash, and it holds no debt: pay in, sell, or enter "
            "what was filled with --fills, or what is held with --holdings",
        )
        at_fill = np.nan_to_num(share_prices(panel, self.config.env.fill)[-1])
        money = np.append(account.shares * at_fill, max(account.cash, 0.0))
        self.observed = money / max(money.sum(), 1e-300)
        growth = np.where(at_fill > 0.0, np.nan_to_num(self.prices) / np.maximum(at_fill, 1e-300), 1.0)
        self.moved = np.append(growth, 1)
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
        columns = (plan.trades.tolist(), self.prices.tolist(), plan.costs.tolist())
        made = [
            Order(name, "buy" if shares > 0.0 else "sell", abs(shares), price, abs(shares) * price, cost)
            for name, shares, price, cost in zip(self.market.panel.assets, *columns, strict=True)
            if abs(shares) > _DUST
        ]
        return sorted(made, key=lambda one: (one.side == "buy", -one.value, one.ticker))


def _half_sum(first: FloatArray, second: FloatArray) -> float:
    return 0.5 * float(np.abs(first - second).sum())
