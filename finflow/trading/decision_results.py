"""Types of `decision.json`: everything that a decision says, and its JSON schema."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from finflow.evaluation.page.page_numbers import Answer, Gate, Number, Numbers, about, schema_of

LEAST_PART = 1e-6  # of a feature, as a share of the account, that is shown at least


@dataclass(frozen=True)
class Check:
    """Outcome of a check of the prices."""

    name: Annotated[str, about("Name of the check.")]
    passed: Annotated[bool, about("False where something is pointed out.")]
    said: Annotated[str, about("The finding in words.")]


@dataclass(frozen=True)
class TargetSpread:
    """Spread of the agents' targets in one asset."""

    low: Annotated[float, about("Least target weight of an agent.")]
    high: Annotated[float, about("Greatest target weight of an agent.")]


@dataclass(frozen=True)
class AssetDecision:
    """One asset, or cash, from what is held to what the orders lead to; weights are shares of the account."""

    price: Annotated[Number, about("Newest close, in money; 1 for cash; null where there is none.")]
    shares: Annotated[float, about("Held before the orders; money, for cash.")]
    held: Annotated[float, about("Weight before the orders.")]
    aim: Annotated[float, about("Portfolio that the agent moves towards: its experts, mixed by the gate.")]
    target: Annotated[float, about("Target weight of the agent: part of the way to the aim.")]
    allowed: Annotated[float, about("Target after the limits of the account.")]
    planned: Annotated[float, about("Weight after the orders and their costs, at the newest prices.")]
    spread: Annotated[TargetSpread | None, about("Of the agents' targets; null for one agent.")]


@dataclass(frozen=True)
class Order:
    """One order."""

    ticker: Annotated[str, about("Asset.")]
    side: Annotated[Literal["buy", "sell"], about("Direction.")]
    shares: Annotated[float, about("Number of shares, above zero.")]
    price: Annotated[float, about("Newest close, which the plan assumes, in money.")]
    value: Annotated[float, about("Shares times price.")]
    cost: Annotated[float, about("Expected cost by the cost model of the run, in money.")]


@dataclass(frozen=True)
class OrderReductions:
    """Steps between the aim and the orders; each is a half-sum of absolute changes of weight."""

    to_aim: Annotated[float, about("From what is held to the aim.")]
    trade_rate: Annotated[float, about("Share of that way that the agent goes at once.")]
    to_target: Annotated[float, about("From what is held to the agent's target.")]
    to_allowed: Annotated[float, about("From what is held to the target after the limits.")]
    largest_change: Annotated[float, about("Largest change of one weight that the target asks for.")]
    no_trade_band: Annotated[float, about("Changes up to this are not traded (env.no_trade_band).")]
    in_band: Annotated[bool, about("True where the no-trade band stopped all orders.")]
    limited: Annotated[bool, about("True where the maximum weight or turnover changed the target.")]
    refused: Annotated[bool, about("True where the account cannot pay for the trade.")]


@dataclass(frozen=True)
class FeatureMove:
    """Part of one feature in the change of the aim since the bar before."""

    before: Annotated[float, about("At the bar before, in training deviations; the mean over assets for theirs.")]
    now: Annotated[float, about("At the newest bar.")]
    part: Annotated[float, about("Part of aim_change, by integrated gradients; the parts sum to it.")]


@dataclass(frozen=True)
class Alternative:
    """Smallest change of one feature, within its range in training, that makes it another decision."""

    feature: Annotated[str, about("ASSET:FEATURE, or a feature of the market.")]
    now: Annotated[float, about("Value that the agent read, in training deviations from the training mean.")]
    changed: Annotated[float, about("Value at which the decision changes.")]
    change: Annotated[float, about("Absolute difference of the two.")]
    outcome: Annotated[str, about("The decision then.")]


@dataclass(frozen=True)
class Reasons:
    """Grounds of a decision."""

    holds: Annotated[str, about("What the agent holds: its own policy's portfolio, or a blend with a reference.")]
    gate: Gate
    experts: Annotated[
        dict[str, Numbers], about("By expert, by asset: its portfolio; in a blend that of the reference too.")
    ]
    aim_change: Annotated[Number, about("Half-sum of the changes of the aim since the bar before; null at the first.")]
    features: Annotated[dict[str, FeatureMove], about("By feature, by falling size of the part.")]
    question: Annotated[str, about("The decision that the alternatives would change.")]
    alternatives: Annotated[list[Alternative], about("Nearest first; empty where no single feature changes it.")]

    def largest(self, count: int) -> dict[str, FeatureMove]:
        """Features with the largest parts, those that moved nothing left out."""
        return {name: one for name, one in list(self.features.items())[:count] if abs(one.part) > LEAST_PART}


@dataclass(frozen=True)
class PlanDifference:
    """Difference between an order of the decision before and what was done."""

    planned: Annotated[float, about("Shares ordered, negative to sell.")]
    done: Annotated[float, about("Shares filled, or by which the holdings changed.")]
    shortfall: Annotated[Number, about("Money lost to a fill at another price than planned; null without a price.")]


@dataclass(frozen=True)
class FollowUp:
    """Outcome of the decision before."""

    date: Annotated[str, about("Its date.")]
    source: Annotated[Literal["plan", "fills", "holdings"], about("Source of the present holdings.")]
    differences: Annotated[dict[str, PlanDifference], about("By ticker, where it was not done as planned.")]
    cash: Annotated[float, about("Actual less expected cash, in money.")]


@dataclass(frozen=True)
class Decision:
    """One decision: what to hold, the orders that lead there, and why.

    Weights and costs are fractions, not percent; money is in the currency of the prices. No times of day and no paths:
    the same data and account give the same file.
    """

    date: Annotated[str, about("Newest bar.")]
    known: Annotated[str, about("Bar whose features the agent read.")]
    fills: Annotated[str, about("When the orders are to be filled.")]
    agents: Annotated[list[str], about("Names of the agents that decide together.")]
    agent_sha256: Annotated[str, about("Hash of their networks, and of acting where it is not the default.")]
    panel_sha256: Annotated[str, about("Hash of the prices.")]
    verdict: Annotated[Answer | None, about("Beats equal weight, by the run's evaluation; null where it has none.")]
    value: Annotated[float, about("Value of the account at the newest prices.")]
    cash: Annotated[float, about("Cash before the orders.")]
    cash_after: Annotated[float, about("Cash after the orders and their costs.")]
    turnover: Annotated[float, about("Half-sum of the planned changes of weight, cash included.")]
    cost: Annotated[float, about("Expected cost of the orders, in money.")]
    distance: Annotated[float, about("Sum over the assets of what the plan misses of the target, in money.")]
    lot: Annotated[float, about("Shares of a lot; 0 for any fraction.")]
    assets: Annotated[dict[str, AssetDecision], about("By asset, and cash.")]
    orders: Annotated[list[Order], about("Sales first, each by falling value.")]
    held_back: Annotated[OrderReductions, about("What the agent and the limits held back.")]
    reasons: Annotated[Reasons, about("Gate, experts, features, alternatives.")]
    checks: Annotated[list[Check], about("Of the prices.")]
    follow_up: Annotated[FollowUp | None, about("The decision before; null where there is none on file.")]

    @property
    def trades(self) -> dict[str, float]:
        """Shares of the orders by ticker, negative where sold."""
        return {one.ticker: one.shares if one.side == "buy" else -one.shares for one in self.orders}


def decision_schema() -> dict[str, Any]:
    """JSON schema (draft 2020-12) of `decision.json`, with a description of every key."""
    return schema_of(Decision, "decision.json of finflow")
