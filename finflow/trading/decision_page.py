"""`decision.html`: one page that shows a decision."""

from __future__ import annotations

from collections.abc import Mapping

from finflow.evaluation.report.report_numbers import plain
from finflow.evaluation.report.section import ROW, Cell, Headline, Section, Sentence, Tile, make_table, render_page
from finflow.trading.decision_results import Decision

FEATURES = 8
"""Features that are shown."""
Texts = Mapping[str, Cell | str]
Column = tuple[str, Cell | Texts]


def decision_page(made: Decision) -> str:
    """The page as HTML: orders, weights, what was held back, reasons, checks."""
    numbers = plain(made)
    sections = [
        _orders(made, numbers),
        _weights(made, numbers),
        _held_back(made, numbers),
        _features(made, numbers),
        _alternatives(made, numbers),
        _follow_up(made, numbers),
        _checks(made, numbers),
    ]
    by = made.agents[0] if len(made.agents) == 1 else f"the mean of {len(made.agents)} agents"
    return render_page(
        f"Decision of {made.date}",
        f"{by}; with what was known on {made.known}; orders fill {made.fills}",
        _finding(made, numbers),
        [section for section in sections if section is not None],
    )


def _section(key: str, title: str, numbers: object, **parts: object) -> Section:
    return Section(key, title, numbers, within=(), **parts)  # type: ignore[arg-type]


def _finding(made: Decision, numbers: dict[str, object]) -> Headline:
    count = len(made.orders)
    heading = "Nothing to trade" if not count else f"{count} order{'s' if count > 1 else ''}"
    words: list[Sentence] = [f"The agent {made.reasons.holds}."]
    if count:
        words.append(
            (
                "The orders move ",
                Cell(("turnover",), "%", 2),
                " of the account and are expected to cost ",
                Cell(("cost",), ",", 2),
                " in money, by the prices of the day.",
            )
        )
    verdicts = {
        "yes": "The evaluation of this agent found it better than equal weight.",
        "no": "The evaluation of this agent found it worse than equal weight.",
        "not shown": "The evaluation of this agent did not show that it beats equal weight.",
    }
    words.append(verdicts.get(str(made.verdict), "This agent was never evaluated on its test window."))
    tiles = (
        Tile("Account", Cell(("value",), ",", 2)),
        Tile(
            "Cash", Cell(("assets", "cash", "planned"), "%", 1), ("before ", Cell(("assets", "cash", "held"), "%", 1))
        ),
        Tile("Turnover", Cell(("turnover",), "%", 2)),
        Tile("Expected cost", Cell(("cost",), ",", 2)),
    )
    warnings = tuple(f"{check.name}: {check.said}" for check in made.checks if not check.passed)
    return Headline(
        "",
        heading,
        numbers,
        words=tuple(words),
        within=(),
        kind="ahead" if not warnings and made.verdict == "yes" else "not-shown" if not warnings else "behind",
        label="Decision",
        reasons=warnings,
        tiles=tiles,
    )


def _orders(made: Decision, numbers: object) -> Section:
    if not made.orders:
        return _section("orders", "Orders", numbers, words=("No order: the account stays as it is.",))
    rows = [((str(n),), order.ticker) for n, order in enumerate(made.orders)]
    shares: Texts = {
        order.ticker: Cell(("orders", str(n), "shares"), ",", 0 if order.shares.is_integer() else 4)
        for n, order in enumerate(made.orders)
    }
    columns: list[Column] = [
        ("side", {order.ticker: order.side for order in made.orders}),
        ("shares", shares),
        *((key, Cell(("orders", ROW, key), ",", 2)) for key in ("price", "value", "cost")),
    ]
    table = make_table("Orders", "Ticker", rows, columns, heading=False)
    lots = (
        "any fraction of a share" if made.lot == 0.0 else f"lots of {made.lot:g}" if made.lot != 1 else "whole shares"
    )
    notes: tuple[Sentence, ...] = (
        (
            f"In {lots}; of all plans that the account can pay for, this one comes nearest to the target in money: ",
            Cell(("distance",), ",", 2),
            " is left between them.",
        ),
    )
    return _section("orders", "Orders", numbers, tables=(table,), notes=notes, links=("orders.csv", "decision.json"))


def _weights(made: Decision, numbers: object) -> Section:
    names = sorted(made.assets, key=lambda name: (name == "cash", -made.assets[name].planned, name))
    columns = [(key, Cell(("assets", ROW, key), "%", 2)) for key in ("held", "aim", "target", "allowed", "planned")]
    if len(made.agents) > 1:
        columns += [
            ("least of the agents", Cell(("assets", ROW, "spread", "low"), "%", 2)),
            ("greatest", Cell(("assets", ROW, "spread", "high"), "%", 2)),
        ]
    caption = (
        "Held: before the orders. Aim: where the agent moves to. Target: part of the way there. Allowed: after the "
        "limits of the account. Planned: after the orders. On this page percentages are shares of the account."
    )
    return _section(
        "weights", "Weights", numbers, tables=(make_table("Weights", "Asset", names, columns, caption, heading=False),)
    )


def _held_back(made: Decision, numbers: object) -> Section:
    held_back = made.held_back
    words: list[Sentence] = [
        (
            "To reach its aim at once, the agent would replace ",
            Cell(("held_back", "to_aim"), "%", 2),
            " of the account. It goes ",
            Cell(("held_back", "trade_rate"), "%", 1),
            " of the way: ",
            Cell(("held_back", "to_target"), "%", 2),
            ".",
        )
    ]
    if held_back.in_band:
        words.append(
            (
                "The largest change of a weight, ",
                Cell(("held_back", "largest_change"), "%", 3),
                ", does not exceed the no-trade band of ",
                Cell(("held_back", "no_trade_band"), "%", 3),
                ": nothing is traded.",
            )
        )
    if held_back.limited:
        words.append("The maximum weight or the maximum turnover of the account changed the target.")
    if held_back.refused:
        words.append("The account cannot pay for the trade: nothing is traded.")
    return _section("held-back", "What was held back", numbers, words=tuple(words))


def _features(made: Decision, numbers: object) -> Section:
    gate = make_table(
        "Gate", "Expert", list(made.reasons.gate), [("share in the aim", Cell(("reasons", "gate", ROW), "%", 1))]
    )
    tables = [gate]
    if made.reasons.features:
        columns = [
            ("the bar before", Cell(("reasons", "features", ROW, "before"))),
            ("now", Cell(("reasons", "features", ROW, "now"))),
            ("part", Cell(("reasons", "features", ROW, "part"), "%", 3, plus=True)),
        ]
        tables.append(
            make_table(
                "Features that moved the aim most since the bar before",
                "Feature",
                list(made.reasons.largest(FEATURES)),
                columns,
                "Values in training deviations from the training mean; parts are integrated gradients, and sum to the "
                "change.",
            )
        )
    words: Sentence = ("Since the bar before the aim has moved by ", Cell(("reasons", "aim_change"), "%", 2), ".")
    return _section("reasons", "Why", numbers, tables=tuple(tables), words=(words,))


def _alternatives(made: Decision, numbers: object) -> Section:
    alternatives = made.reasons.alternatives
    title = "What would change the decision"
    question = f"The largest change of a weight: {made.reasons.question}."
    if not alternatives:
        none = "No single feature, anywhere within its range in training, makes it another decision."
        return _section("alternatives", title, numbers, words=(question, none), short="Alternatives")
    rows = [((str(n),), one.feature) for n, one in enumerate(alternatives)]
    columns: list[Column] = [
        ("now", Cell(("reasons", "alternatives", ROW, "now"))),
        ("at", Cell(("reasons", "alternatives", ROW, "changed"))),
        ("change", Cell(("reasons", "alternatives", ROW, "change"))),
        ("then", {one.feature: one.outcome for one in alternatives}),
    ]
    caption = "In training deviations, each feature alone and within its range in training; the smallest changes first."
    table = make_table(title, "Feature", rows, columns, caption, heading=False)
    return _section("alternatives", title, numbers, tables=(table,), words=(question,), short="Alternatives")


def _follow_up(made: Decision, numbers: object) -> Section | None:
    before = made.follow_up
    if before is None:
        return None
    title = f"Execution of the decision of {before.date}"
    sources = {
        "plan": "Nothing was entered: its orders are taken to have filled as planned.",
        "fills": "By the fills that were entered.",
        "holdings": "By the holdings that were entered.",
    }
    words: list[Sentence] = [sources[before.source]]
    if before.source != "plan":
        words.append(("Cash is ", Cell(("follow_up", "cash"), ",", 2, plus=True), " against what was expected."))
    if not before.differences:
        words.append("No order differs from its plan.")
        return _section("follow-up", title, numbers, words=tuple(words), short="Before")
    columns = [
        ("planned", Cell(("follow_up", "differences", ROW, "planned"), ",", 2, plus=True)),
        ("done", Cell(("follow_up", "differences", ROW, "done"), ",", 2, plus=True)),
        ("lost to the price", Cell(("follow_up", "differences", ROW, "shortfall"), ",", 2)),
    ]
    table = make_table("Orders", "Ticker", list(before.differences), columns, heading=False)
    return _section("follow-up", title, numbers, tables=(table,), words=tuple(words), short="Before")


def _checks(made: Decision, numbers: object) -> Section:
    facts = {check.name: ("" if check.passed else "warning: ") + check.said for check in made.checks}
    facts |= {"agent": made.agent_sha256[:16], "prices": made.panel_sha256[:16]}
    return _section("checks", "Checks of the prices", numbers, facts=facts)
