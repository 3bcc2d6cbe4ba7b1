"""The schema that ships with the package: it says what every number is, and metrics.json obeys it."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from finflow.evaluation.factors import section as factors_section
from finflow.evaluation.field import Field
from finflow.evaluation.ranking import section as ranking_section
from finflow.evaluation.results import ReportData, as_json, judge
from finflow.evaluation.sweeps import section as sweeps_section

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "finflow" / "evaluation" / "metrics.schema.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def content(
    report_data: Callable[..., ReportData], process_of: Callable[..., Any], field_of: Callable[..., Field]
) -> Any:
    """metrics.json of a report with most of its sections; tests of the evaluation have the others."""
    process = process_of()
    field = field_of(process, range(300, 700), "risk-parity", "equal-weight")
    bars = process.decision_bars(field.window)
    ends = range(bars.start + 1, bars.stop + 1)
    sections = (
        sweeps_section(field),
        factors_section(process.panel, ends, field.runs, None, by_close=True),
        ranking_section(field.runs[0], process.growth, process.listed, bars, 2),
    )
    data = report_data(sections=tuple(section for section in sections if section is not None))
    return json.loads(as_json(data, judge(data)))


def described(part: Any, place: str = "") -> Iterator[str]:
    """Named parts of the schema that say nothing of themselves."""
    for key in ("properties", "$defs"):
        for name, inner in part.get(key, {}).items():
            if not inner.get("description"):
                yield f"{place}/{name}"
            yield from described(inner, f"{place}/{name}")
    if isinstance(part.get("additionalProperties"), dict):
        yield from described(part["additionalProperties"], f"{place}/*")


def test_the_schema_is_one_describes_everything_and_is_installed() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert list(described(SCHEMA)) == []
    shipped = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["finflow"]
    assert "evaluation/metrics.schema.json" in shipped


def test_metrics_json_obeys_the_schema(content: Any, fits_schema: Callable[[Any], list[str]]) -> None:
    assert {"sweeps", "factors", "ranking"} <= set(content)
    assert fits_schema(content) == []
    unknown = set(content) - set(SCHEMA["properties"])
    assert unknown == set(), "a section without a description"


@pytest.mark.parametrize(
    "spoil",
    [
        lambda content: content.pop("verdict"),
        lambda content: content["strategies"]["agent"].pop("sharpe"),
        lambda content: content["strategies"]["agent"].update(sharpe="1.0"),
        lambda content: content["strategies"]["agent"].update(sharp=1.0),
        lambda content: content["strategies"]["agent"].update(max_drawdown=0.1),
        lambda content: content["strategies"]["agent"]["intervals"].update(sharpe=[1.0]),
        lambda content: content["verdict"].update(beats_equal_weight="perhaps"),
        lambda content: content["sweeps"]["costs_bps"]["0"]["equal-weight"].pop("refused"),
        lambda content: content.update(mine=3),
    ],
)
def test_what_does_not_belong_is_refused(
    content: Any, fits_schema: Callable[[Any], list[str]], spoil: Callable[[Any], object]
) -> None:
    spoiled = json.loads(json.dumps(content))
    spoil(spoiled)
    assert fits_schema(spoiled)
