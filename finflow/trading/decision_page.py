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
    numbers = plain(made)
    parts = (_orders, _weights, _held_back, _features, _alternatives, _follow_up, _checks)
    sections = [part(made, numbers) for part in parts]
    by = made.agents[0] if len(made.agents) == 1 else f"the mean of {len(made.agents)} agents"
    return render_page(
        f"Decision of {made.date}",
        f"{by}; with what was known on {made.known}; orders fill {made.fills}",
        _finding(made, numbers),
        [section for section in sections if section is not None],
    )


def _share(*path: str, decimals: int = 2) -> Cell:
    return Cell(path, "%", decimals)


def _money(*path: str, plus: bool = False) -> Cell:
    return Cell(path, ",", 2, plus=plus)


def _section(key: str, title: str, numbers: object, **parts: object) -> Section:
    return Section(key, title, numbers, within=(), **parts)  # type: ignore[arg-type]


def _finding(made: Decision, numbers: dict[str, object]) -> Headline:
    count = len(made.orders)
    heading = "Nothing to trade" if not count else f"{count} order{'s' if count > 1 else ''}"
    words: list[Sentence] = [f"The agent {made.reasons.holds}."]
    if count:
        of, by = " of the account and are expected to cost ", " in money, by the prices of the day."
        words.append(("The orders move ", _share("turnover"), of, _money("cost"), by))
    verdicts = {
        "yes": "The evaluation of this agent found it better than equal weight.",
        "no": "The evaluation of this agent found it worse than equal weight.",
        "not shown": "The evaluation of this agent did not show that it beats equal weight.",
    }
    words.append(verdicts.get(str(made.verdict), "This agent was never evaluated on its test window."))
    cash = ("assets", "cash")
    tiles = (
        Tile("Account", _money("value")),
        Tile("Cash", _share(*cash, "planned", decimals=1), ("before ", _share(*cash, "held", decimals=1))),
        Tile("Turnover", _share("turnover")),
        Tile("Expected cost", _money("cost")),
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
        *((key, _money("orders", ROW, key)) for key in ("price", "value", "cost")),
    ]
    table = make_table("Orders", "Ticker", rows, columns, heading=False)
    lots = {0.0: "any fraction of a share", 1.0: "whole shares"}.get(made.lot, f"lots of {made.lot:g}")
    nearest = f"In {lots}; of all plans that the account can pay for, this one comes nearest to the target in money: "
    notes = ((nearest, _money("distance"), " is left between them."),)
    return _section("orders", "Orders", numbers, tables=(table,), notes=notes, links=("orders.csv", "decision.json"))


def _weights(made: Decision, numbers: object) -> Section:
    names = sorted(made.assets, key=lambda name: (name == "cash", -made.assets[name].planned, name))
    columns = [(key, _share("assets", ROW, key)) for key in ("held", "aim", "target", "allowed", "planned")]
    if len(made.agents) > 1:
        spread = ("assets", ROW, "spread")
        columns += [("least of the agents", _share(*spread, "low")), ("greatest", _share(*spread, "high"))]
    caption = (
        "Held: before the orders. Aim: where the agent moves to. Target: part of the way there. Allowed: after the "
        "limits of the account. Planned: after the orders. On this page percentages are shares of the account."
    )
    table = make_table("Weights", "Asset", names, columns, caption, heading=False)
    return _section("weights", "Weights", numbers, tables=(table,))


def _held_back(made: Decision, numbers: object) -> Section:
    held_back = made.held_back
    at_once, way = _share("held_back", "to_aim"), _share("held_back", "trade_rate", decimals=1)
    reach, goes = "To reach its aim at once, the agent would replace ", " of the account. It goes "
    words: list[Sentence] = [(reach, at_once, goes, way, " of the way: ", _share("held_back", "to_target"), ".")]
    if held_back.in_band:
        change, band = (_share("held_back", key, decimals=3) for key in ("largest_change", "no_trade_band"))
        beyond = ", does not exceed the no-trade band of "
        words.append(("The largest change of a weight, ", change, beyond, band, ": nothing is traded."))
    if held_back.limited:
        words.append("The maximum weight or the maximum turnover of the account changed the target.")
    if held_back.refused:
        words.append("The account cannot pay for the trade: nothing is traded.")
    return _section("held-back", "What was held back", numbers, words=tuple(words))


def _features(made: Decision, numbers: object) -> Section:
    shares = [("share in the aim", _share("reasons", "gate", ROW, decimals=1))]
    tables = [make_table("Gate", "Expert", list(made.reasons.gate), shares)]
    if made.reasons.features:
        of = ("reasons", "features", ROW)
        part = ("part", Cell((*of, "part"), "%", 3, plus=True))
        columns = [("the bar before", Cell((*of, "before"))), ("now", Cell((*of, "now"))), part]
        title = "Features that moved the aim most since the bar before"
        caption = (
            "Values in training deviations from the training mean; parts are integrated gradients, and sum to the "
            "change."
        )
        tables.append(make_table(title, "Feature", list(made.reasons.largest(FEATURES)), columns, caption))
    words: Sentence = ("Since the bar before the aim has moved by ", _share("reasons", "aim_change"), ".")
    return _section("reasons", "Why", numbers, tables=tuple(tables), words=(words,))


def _alternatives(made: Decision, numbers: object) -> Section:
    alternatives = made.reasons.alternatives
    title = "What would change the decision"
    question = f"The largest change of a weight: {made.reasons.question}."
    if not alternatives:
        none = "No single feature, anywhere within its range in training, makes it another decision."
        return _section("alternatives", title, numbers, words=(question, none), short="Alternatives")
    rows = [((str(n),), one.feature) for n, one in enumerate(alternatives)]
    headings = (("now", "now"), ("at", "changed"), ("change", "change"))
    columns: list[Column] = [(heading, Cell(("reasons", "alternatives", ROW, key))) for heading, key in headings]
    columns.append(("then", {one.feature: one.outcome for one in alternatives}))
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
        words.append(("Cash is ", _money("follow_up", "cash", plus=True), " against what was expected."))
    if not before.differences:
        words.append("No order differs from its plan.")
        return _section("follow-up", title, numbers, words=tuple(words), short="Before")
    of = ("follow_up", "differences", ROW)
    columns = [(key, _money(*of, key, plus=True)) for key in ("planned", "done")]
    columns.append(("lost to the price", _money(*of, "shortfall")))
    table = make_table("Orders", "Ticker", list(before.differences), columns, heading=False)
    return _section("follow-up", title, numbers, tables=(table,), words=tuple(words), short="Before")


def _checks(made: Decision, numbers: object) -> Section:
    facts = {check.name: ("" if check.passed else "warning: ") + check.said for check in made.checks}
    facts |= {"agent": made.agent_sha256[:16], "prices": made.panel_sha256[:16]}
    return _section("checks", "Checks of the prices", numbers, facts=facts)
