"""A decision: the types of `decision.json`, its JSON schema, and the page that shows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from finflow.evaluation.page.page_numbers import Answer, Gate, Number, Numbers, Shown, about, schema_of
from finflow.evaluation.page.section import ROW, Cell, Section, Sentence, columns_of, make_table
from finflow.evaluation.page.whole_page import Headline, Page, Tile

_FEATURES = 8  # that are shown
_LEAST_PART = 1e-6  # of a feature, as a share of the account, that is shown at least
_VERDICTS = {
    "yes": "The evaluation of this agent found it better than equal weight.",
    "no": "The evaluation of this agent found it worse than equal weight.",
    "not shown": "The evaluation of this agent did not show that it beats equal weight.",
    None: "This agent was never evaluated on its test window.",
}
_SOURCES = {
    "plan": "Nothing was entered: its orders are taken to have filled as planned, but for halted tickers.",
    "fills": "By the fills that were entered.",
    "holdings": "By the holdings that were entered.",
}


@dataclass(frozen=True)
class Check:
    """Outcome of a check of the prices."""

    name: Annotated[str, about("Name of the check.")]
    passed: Annotated[bool, about("False where something is pointed out.")]
    said: Annotated[str, about("The finding in words.")]


@dataclass(frozen=True)
class TargetSpread:
    """Spread of the agents' targets in one asset."""

    low: Annotated[float, about("Least target weight of an agent."), Shown("least of the agents", "%")]
    high: Annotated[float, about("Greatest target weight of an agent."), Shown("greatest", "%")]


@dataclass(frozen=True)
class AssetDecision:
    """One asset, or cash, from what is held to what the orders lead to; weights are shares of the account."""

    price: Annotated[Number, about("Newest close, in money; 1 for cash; null where there is none.")]
    shares: Annotated[float, about("Held before the orders; money, for cash.")]
    held: Annotated[float, about("Weight before the orders."), Shown("held", "%")]
    aim: Annotated[
        float, about("Portfolio that the agent moves towards: its experts, mixed by the gate."), Shown("aim", "%")
    ]
    target: Annotated[float, about("Target weight of the agent: part of the way to the aim."), Shown("target", "%")]
    allowed: Annotated[float, about("Target after the limits of the account."), Shown("allowed", "%")]
    planned: Annotated[
        float, about("Weight after the orders and their costs, at the newest prices."), Shown("planned", "%")
    ]
    spread: Annotated[TargetSpread | None, about("Of the agents' targets; null for one agent.")]


@dataclass(frozen=True)
class Order:
    """One order."""

    ticker: Annotated[str, about("Asset.")]
    side: Annotated[Literal["buy", "sell"], about("Direction."), Shown("side")]
    shares: Annotated[float, about("Number of shares, above zero."), Shown("shares", "g", 10)]
    price: Annotated[float, about("Newest close, which the plan assumes, in money."), Shown("price", ",")]
    value: Annotated[float, about("Shares times price."), Shown("value", ",")]
    cost: Annotated[float, about("Expected cost by the cost model of the run, in money."), Shown("cost", ",")]


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

    before: Annotated[
        float,
        about("At the bar before, in training deviations; the mean over assets for theirs."),
        Shown("the bar before"),
    ]
    now: Annotated[float, about("At the newest bar."), Shown("now")]
    part: Annotated[
        float,
        about("Part of aim_change, by integrated gradients; the parts sum to it."),
        Shown("part", "%", 3, plus=True),
    ]


@dataclass(frozen=True)
class Alternative:
    """Smallest change of one feature, within its range in training, that makes it another decision."""

    feature: Annotated[str, about("ASSET:FEATURE, or a feature of the market.")]
    now: Annotated[
        float, about("Value that the agent read, in training deviations from the training mean."), Shown("now")
    ]
    changed: Annotated[float, about("Value at which the decision changes."), Shown("at")]
    change: Annotated[float, about("Absolute difference of the two."), Shown("change")]
    outcome: Annotated[str, about("The decision then."), Shown("then")]


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


@dataclass(frozen=True)
class PlanDifference:
    """Difference between an order of the decision before and what was done."""

    planned: Annotated[float, about("Shares ordered, negative to sell."), Shown("planned", ",", plus=True)]
    done: Annotated[float, about("Shares filled, or by which the holdings changed."), Shown("done", ",", plus=True)]
    shortfall: Annotated[
        Number,
        about("Money lost to a fill at another price than the decision's, below zero gained; null without a price."),
        Shown("lost to the price", ",", plus=True),
    ]


@dataclass(frozen=True)
class FollowUp:
    """Outcome of the decision before."""

    date: Annotated[str, about("Its date.")]
    source: Annotated[Literal["plan", "fills", "holdings"], about("Source of the present holdings.")]
    differences: Annotated[dict[str, PlanDifference], about("By ticker, where it was not done as planned.")]
    cash: Annotated[
        float, about("Cash less what the orders would have left at the decision's prices and cost; 0 without an entry.")
    ]
    shortfall: Annotated[Number, about("Sum of the shortfalls, before costs; null without fills.")]


@dataclass(frozen=True)
class DailyDecision:
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
    return schema_of(DailyDecision, "decision.json of finflow")


def decision_page(made: DailyDecision) -> Page:
    sections = [_orders(made), _weights(made), _held_back(made.held_back), _features(made), _alternatives(made.reasons)]
    if made.follow_up is not None:
        sections.append(_follow_up(made.follow_up))
    facts = {check.name: ("" if check.passed else "warning: ") + check.said for check in made.checks}
    facts |= {"agent": made.agent_sha256[:16], "hash of the prices": made.panel_sha256[:16]}
    sections.append(Section("checks", "Checks of the prices", facts=facts))
    by = made.agents[0] if len(made.agents) == 1 else f"the mean of {len(made.agents)} agents"
    known = f"{by}; with what was known on {made.known}; orders fill {made.fills}"
    return Page(f"Decision of {made.date}", known, _finding(made), sections, made)


def _finding(made: DailyDecision) -> Headline:
    count, turnover, cost = len(made.orders), Cell(("turnover",), "%"), Cell(("cost",), ",")
    words: list[Sentence] = [f"The agent {made.reasons.holds}.", _VERDICTS[made.verdict]]
    if count:
        moved = "The orders move ", turnover, " of the account and are expected to cost ", cost
        words.insert(1, (*moved, " in money, by the prices of the day."))
    cash_before = "before ", Cell(("assets", "cash", "held"), "%", 1)
    warnings = tuple(f"{check.name}: {check.said}" for check in made.checks if not check.passed)
    return Headline(
        "",
        f"{count} order{'s' if count > 1 else ''}" if count else "Nothing to trade",
        words=tuple(words),
        kind="ahead" if not warnings and made.verdict == "yes" else "not-shown" if not warnings else "behind",
        label="Decision",
        reasons=warnings,
        tiles=(
            Tile("Account", Cell(("value",), ",")),
            Tile("Cash", Cell(("assets", "cash", "planned"), "%", 1), cash_before),
            Tile("Turnover", turnover),
            Tile("Expected cost", cost),
        ),
    )


def _orders(made: DailyDecision) -> Section:
    if not made.orders:
        return Section("orders", "Orders", words=("No order: the account stays as it is.",))
    rows = [((str(n),), order.ticker) for n, order in enumerate(made.orders)]
    table = make_table("Orders", "Ticker", rows, columns_of(Order, "orders", ROW), heading=False)
    lots = {0.0: "any fraction of a share", 1.0: "whole shares"}.get(made.lot, f"lots of {made.lot:g}")
    nearest = f"In {lots}; of all plans that the account can pay for, this one comes nearest to the target in money: "
    notes = ((nearest, Cell(("distance",), ","), " is left between them."),)
    return Section("orders", "Orders", tables=(table,), notes=notes, links=("orders.csv", "decision.json"))


def _weights(made: DailyDecision) -> Section:
    names = sorted(made.assets, key=lambda name: (name == "cash", -made.assets[name].planned, name))
    columns = columns_of(AssetDecision, "assets", ROW)
    if len(made.agents) > 1:
        columns += columns_of(TargetSpread, "assets", ROW, "spread")
    caption = (
        "Held: before the orders. Aim: where the agent moves to. Target: part of the way there. Allowed: after the "
        "limits of the account. Planned: after the orders. On this page percentages are shares of the account."
    )
    table = make_table("Weights", "Asset", names, columns, caption, heading=False)
    return Section("weights", "Weights", tables=(table,))


def _held_back(held_back: OrderReductions) -> Section:
    def cell(name: str, decimals: int = 2) -> Cell:
        return Cell(("held_back", name), "%", decimals)

    way = " of the account. It goes ", cell("trade_rate", 1), " of the way: ", cell("to_target"), "."
    words: list[Sentence] = [("To reach its aim at once, the agent would replace ", cell("to_aim"), *way)]
    if held_back.in_band:
        band = ", does not exceed the no-trade band of ", cell("no_trade_band", 3), ": nothing is traded."
        words.append(("The largest change of a weight, ", cell("largest_change", 3), *band))
    if held_back.limited:
        words.append("The maximum weight or the maximum turnover of the account changed the target.")
    if held_back.refused:
        words.append("The account cannot pay for the trade: nothing is traded.")
    return Section("held-back", "What was held back", words=tuple(words))


def _features(made: DailyDecision) -> Section:
    shares = [("share in the aim", Cell(("reasons", "gate", ROW), "%", 1))]
    tables = [make_table("Gate", "Expert", list(made.reasons.gate), shares)]
    if made.reasons.features:
        names = [name for name, one in list(made.reasons.features.items())[:_FEATURES] if abs(one.part) > _LEAST_PART]
        caption = (
            "Values in training deviations from the training mean; parts are integrated gradients, and sum to the "
            "change."
        )
        columns = columns_of(FeatureMove, "reasons", "features", ROW)
        title = "Features that moved the aim most since the bar before"
        tables.append(make_table(title, "Feature", names, columns, caption))
    words: Sentence = ("Since the bar before the aim has moved by ", Cell(("reasons", "aim_change"), "%"), ".")
    return Section("reasons", "Why", tables=tuple(tables), words=(words,))


def _alternatives(reasons: Reasons) -> Section:
    key, title, short = "alternatives", "What would change the decision", "Alternatives"
    words: tuple[str, ...] = (f"The largest change of a weight: {reasons.question}.",)
    if not reasons.alternatives:
        words = (*words, "No single feature, anywhere within its range in training, makes it another decision.")
        return Section(key, title, words=words, short=short)
    rows = [((str(n),), one.feature) for n, one in enumerate(reasons.alternatives)]
    columns = columns_of(Alternative, "reasons", "alternatives", ROW)
    caption = "In training deviations, each feature alone and within its range in training; the smallest changes first."
    table = make_table(title, "Feature", rows, columns, caption, heading=False)
    return Section(key, title, tables=(table,), words=words, short=short)


def _follow_up(before: FollowUp) -> Section:
    title = f"Execution of the decision of {before.date}"
    words: list[Sentence] = [_SOURCES[before.source]]
    if before.source != "plan":
        plan = " against the plan: the shares ordered, at the prices of the decision, with the cost expected then."
        words.append(("Cash is ", Cell(("follow_up", "cash"), ",", plus=True), plan))
    if before.source == "fills":
        sign = " in all, before costs. Above zero the fills were worse than the decision's prices, below zero better."
        words.append(("Lost to the price: ", Cell(("follow_up", "shortfall"), ",", plus=True), sign))
    if not before.differences:
        words.append("No order differs from its plan.")
        return Section("follow-up", title, words=tuple(words), short="Before")
    columns = columns_of(PlanDifference, "follow_up", "differences", ROW)
    table = make_table("Orders", "Ticker", list(before.differences), columns, heading=False)
    return Section("follow-up", title, tables=(table,), words=tuple(words), short="Before")
