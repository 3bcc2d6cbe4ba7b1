"""`decision.html`: one page that shows a decision."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from finflow.evaluation.page.page_numbers import plain
from finflow.evaluation.page.section import ROW, Cell, Headline, Section, Sentence, Tile, make_table, render_page
from finflow.trading.decision_results import Decision, FollowUp

FEATURES = 8  # that are shown
Column = tuple[str, Cell | Mapping[str, Cell | str]]
_Section = partial(Section, within=())
_VERDICTS = {
    "yes": "The evaluation of this agent found it better than equal weight.",
    "no": "The evaluation of this agent found it worse than equal weight.",
    "not shown": "The evaluation of this agent did not show that it beats equal weight.",
    None: "This agent was never evaluated on its test window.",
}
_SOURCES = {
    "plan": "Nothing was entered: its orders are taken to have filled as planned.",
    "fills": "By the fills that were entered.",
    "holdings": "By the holdings that were entered.",
}


def decision_page(made: Decision) -> str:
    numbers = plain(made)
    sections = [part(made, numbers) for part in (_orders, _weights, _held_back, _features, _alternatives)]
    if made.follow_up is not None:
        sections.append(_follow_up(made.follow_up, numbers))
    facts = {check.name: ("" if check.passed else "warning: ") + check.said for check in made.checks}
    facts |= {"agent": made.agent_sha256[:16], "prices": made.panel_sha256[:16]}
    sections.append(_Section("checks", "Checks of the prices", numbers, facts=facts))
    by = made.agents[0] if len(made.agents) == 1 else f"the mean of {len(made.agents)} agents"
    return render_page(
        f"Decision of {made.date}",
        f"{by}; with what was known on {made.known}; orders fill {made.fills}",
        _finding(made, numbers),
        sections,
    )


def _finding(made: Decision, numbers: dict[str, object]) -> Headline:
    count, turnover, cost = len(made.orders), Cell(("turnover",), "%", 2), Cell(("cost",), ",", 2)
    words: list[Sentence] = [f"The agent {made.reasons.holds}.", _VERDICTS[made.verdict]]
    if count:
        moved = "The orders move ", turnover, " of the account and are expected to cost ", cost
        words.insert(1, (*moved, " in money, by the prices of the day."))
    cash_before = "before ", Cell(("assets", "cash", "held"), "%", 1)
    warnings = tuple(f"{check.name}: {check.said}" for check in made.checks if not check.passed)
    return Headline(
        "",
        f"{count} order{'s' if count > 1 else ''}" if count else "Nothing to trade",
        numbers,
        words=tuple(words),
        within=(),
        kind="ahead" if not warnings and made.verdict == "yes" else "not-shown" if not warnings else "behind",
        label="Decision",
        reasons=warnings,
        tiles=(
            Tile("Account", Cell(("value",), ",", 2)),
            Tile("Cash", Cell(("assets", "cash", "planned"), "%", 1), cash_before),
            Tile("Turnover", turnover),
            Tile("Expected cost", cost),
        ),
    )


def _orders(made: Decision, numbers: dict[str, object]) -> Section:
    if not made.orders:
        return _Section("orders", "Orders", numbers, words=("No order: the account stays as it is.",))
    rows = [((str(n),), order.ticker) for n, order in enumerate(made.orders)]
    shares: dict[str, Cell | str] = {
        order.ticker: Cell(("orders", str(n), "shares"), ",", 0 if order.shares.is_integer() else 4)
        for n, order in enumerate(made.orders)
    }
    columns: list[Column] = [
        ("side", {order.ticker: order.side for order in made.orders}),
        ("shares", shares),
        *((key, Cell(("orders", ROW, key), ",", 2)) for key in ("price", "value", "cost")),
    ]
    table = make_table("Orders", "Ticker", rows, columns, heading=False)
    lots = {0.0: "any fraction of a share", 1.0: "whole shares"}.get(made.lot, f"lots of {made.lot:g}")
    nearest = f"In {lots}; of all plans that the account can pay for, this one comes nearest to the target in money: "
    notes = ((nearest, Cell(("distance",), ",", 2), " is left between them."),)
    return _Section("orders", "Orders", numbers, tables=(table,), notes=notes, links=("orders.csv", "decision.json"))


def _weights(made: Decision, numbers: dict[str, object]) -> Section:
    names = sorted(made.assets, key=lambda name: (name == "cash", -made.assets[name].planned, name))
    columns = [(key, Cell(("assets", ROW, key), "%", 2)) for key in ("held", "aim", "target", "allowed", "planned")]
    if len(made.agents) > 1:
        extremes = {"least of the agents": "low", "greatest": "high"}
        columns += [(name, Cell(("assets", ROW, "spread", key), "%", 2)) for name, key in extremes.items()]
    caption = (
        "Held: before the orders. Aim: where the agent moves to. Target: part of the way there. Allowed: after the "
        "limits of the account. Planned: after the orders. On this page percentages are shares of the account."
    )
    table = make_table("Weights", "Asset", names, columns, caption, heading=False)
    return _Section("weights", "Weights", numbers, tables=(table,))


def _held_back(made: Decision, numbers: dict[str, object]) -> Section:
    def cell(name: str, decimals: int = 2) -> Cell:
        return Cell(("held_back", name), "%", decimals)

    way = " of the account. It goes ", cell("trade_rate", 1), " of the way: ", cell("to_target"), "."
    words: list[Sentence] = [("To reach its aim at once, the agent would replace ", cell("to_aim"), *way)]
    if made.held_back.in_band:
        band = ", does not exceed the no-trade band of ", cell("no_trade_band", 3), ": nothing is traded."
        words.append(("The largest change of a weight, ", cell("largest_change", 3), *band))
    if made.held_back.limited:
        words.append("The maximum weight or the maximum turnover of the account changed the target.")
    if made.held_back.refused:
        words.append("The account cannot pay for the trade: nothing is traded.")
    return _Section("held-back", "What was held back", numbers, words=tuple(words))


def _features(made: Decision, numbers: dict[str, object]) -> Section:
    share = [("share in the aim", Cell(("reasons", "gate", ROW), "%", 1))]
    tables = [make_table("Gate", "Expert", list(made.reasons.gate), share)]
    if made.reasons.features:
        columns = [
            ("the bar before", Cell(("reasons", "features", ROW, "before"))),
            ("now", Cell(("reasons", "features", ROW, "now"))),
            ("part", Cell(("reasons", "features", ROW, "part"), "%", 3, plus=True)),
        ]
        caption = (
            "Values in training deviations from the training mean; parts are integrated gradients, and sum to the "
            "change."
        )
        title, names = "Features that moved the aim most since the bar before", list(made.reasons.largest(FEATURES))
        tables.append(make_table(title, "Feature", names, columns, caption))
    words: Sentence = ("Since the bar before the aim has moved by ", Cell(("reasons", "aim_change"), "%", 2), ".")
    return _Section("reasons", "Why", numbers, tables=tuple(tables), words=(words,))


def _alternatives(made: Decision, numbers: dict[str, object]) -> Section:
    alternatives, title = made.reasons.alternatives, "What would change the decision"
    words: tuple[str, ...] = (f"The largest change of a weight: {made.reasons.question}.",)
    if not alternatives:
        words = (*words, "No single feature, anywhere within its range in training, makes it another decision.")
        return _Section("alternatives", title, numbers, words=words, short="Alternatives")
    rows = [((str(n),), one.feature) for n, one in enumerate(alternatives)]
    keys = {"now": "now", "at": "changed", "change": "change"}
    columns: list[Column] = [
        *((name, Cell(("reasons", "alternatives", ROW, key))) for name, key in keys.items()),
        ("then", {one.feature: one.outcome for one in alternatives}),
    ]
    caption = "In training deviations, each feature alone and within its range in training; the smallest changes first."
    table = make_table(title, "Feature", rows, columns, caption, heading=False)
    return _Section("alternatives", title, numbers, tables=(table,), words=words, short="Alternatives")


def _follow_up(before: FollowUp, numbers: dict[str, object]) -> Section:
    title = f"Execution of the decision of {before.date}"
    words: list[Sentence] = [_SOURCES[before.source]]
    if before.source != "plan":
        words.append(("Cash is ", Cell(("follow_up", "cash"), ",", 2, plus=True), " against what was expected."))
    if not before.differences:
        words.append("No order differs from its plan.")
        return _Section("follow-up", title, numbers, words=tuple(words), short="Before")
    columns = [
        ("planned", Cell(("follow_up", "differences", ROW, "planned"), ",", 2, plus=True)),
        ("done", Cell(("follow_up", "differences", ROW, "done"), ",", 2, plus=True)),
        ("lost to the price", Cell(("follow_up", "differences", ROW, "shortfall"), ",", 2)),
    ]
    table = make_table("Orders", "Ticker", list(before.differences), columns, heading=False)
    return _Section("follow-up", title, numbers, tables=(table,), words=tuple(words), short="Before")
