"""What is shown: the summary, and every key."""

from __future__ import annotations

from typing import Any

from finflow.cli.output import describe_configuration, summary_lines
from finflow.config import describe_schema

FIGURES = ("annual_return", "annual_volatility", "sharpe", "max_drawdown", "annual_turnover")
STRATEGIES = {
    "finflow": (0.186, 0.175, 1.06, -0.289, None),
    "momentum": (0.2, 0.23, 0.91, -0.3, 2.35),
    "cash": (0.0, 0.0, None, 0.0, 0.0),
    "equal-weight": (0.192, 0.191, 1.02, -0.315, 0.4),
}


def numbers_of_a_report() -> dict[str, Any]:
    strategies = {name: dict(zip(FIGURES, values, strict=True)) for name, values in STRATEGIES.items()}
    return {"agent": "finflow", "strategies": strategies}


def test_the_summary_has_the_judged_one_first_and_the_others_by_sharpe() -> None:
    numbers = numbers_of_a_report()
    heading, *rows = summary_lines(numbers)
    assert " ".join(heading.split()) == "Return a year Volatility Sharpe Maximum drawdown Turnover a year"
    assert [row.split()[0] for row in rows] == ["finflow", "equal-weight", "momentum", "cash"]
    assert rows[0].split() == ["finflow", "18.6%", "17.5%", "1.06", "-28.9%", "-"]
    assert rows[3].split()[3] == "-"
    _, *few = summary_lines(numbers, ["equal-weight"])
    assert [row.split()[0] for row in few] == ["finflow", "equal-weight"]
    assert len({len(line) for line in (heading, *rows)}) == 1


def test_help_names_every_key_with_its_default() -> None:
    text = describe_configuration()
    for key, _, _, _ in describe_schema():
        assert f"\n{key} = " in text
    assert "\nmarket.path = null\n" in text
    assert "\nmarket.use_cache = true\n" in text
    assert max(map(len, text.splitlines())) <= 110
