"""Schemas generated from the types of the results: they describe every number, and metrics.json obeys them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest

from finflow.evaluation.report.json_schemas import json_schema
from finflow.evaluation.report.results import as_json, compute_results
from tests.evaluation.made_up import report_data


@pytest.fixture(scope="module")
def content() -> Any:
    """metrics.json of a report; tests of training have the sections."""
    data = report_data()
    return json.loads(as_json(data, compute_results(data)))


def test_the_schema_is_one_and_describes_everything() -> None:
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    for name, part in {**schema["$defs"], "": schema}.items():
        assert part["description"], name
        assert part["additionalProperties"] is False, f"a misspelt key of {name} would pass"
        for key, inner in part["properties"].items():
            assert inner.get("description") or "$ref" in inner, f"{key} of {name}"


def test_metrics_json_obeys_the_schema(content: Any, fits_schema: Callable[[Any], list[str]]) -> None:
    assert fits_schema(content) == []


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
        lambda content: content.update(mine=3),
    ],
)
def test_what_does_not_belong_is_refused(
    content: Any, fits_schema: Callable[[Any], list[str]], spoil: Callable[[Any], object]
) -> None:
    spoiled = json.loads(json.dumps(content))
    spoil(spoiled)
    assert fits_schema(spoiled)
