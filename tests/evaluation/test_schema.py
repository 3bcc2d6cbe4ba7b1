"""Schemas generated from the types of the results: they describe every number, and metrics.json obeys them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import jsonschema
import numpy as np
import pytest

from finflow.config import EvaluationConfig, TaxConfig
from finflow.evaluation.analysis import account, attribution, factors, ranking, stress, sweeps
from finflow.evaluation.backtest import Backtest
from finflow.evaluation.comparison_context import ComparisonContext
from finflow.evaluation.multi_run.joined_verdict import joined_section
from finflow.evaluation.multi_run.repeated_trainings import ProtocolPaths, WindowResult, protocol_section
from finflow.evaluation.report.json_schemas import json_schema
from finflow.evaluation.report.results import ReportData, as_json, compute_results
from finflow.evaluation.report.section import Section
from finflow.evaluation.statistics.configuration_choice import DailyReturns, choice_section, judge_best, judge_choice
from finflow.evaluation.statistics.readings_ledger import Tries
from finflow.evaluation.statistics.significance_tests import Resampling
from finflow.market.splits import Split

SCHEMA = json_schema("report")


def protocol(backtest: Callable[..., Backtest]) -> tuple[Section, Section]:
    """Two seeds in two windows: their spread, and their verdict together."""

    def run(name: str, seed: int, window: int) -> Backtest:
        one = backtest(name, steps=200, seed=seed)
        return dataclasses.replace(one, dates=one.dates + np.timedelta64(400 * window, "D"))

    judged = tuple(
        WindowResult(window + 1, seed, window, 0, run("agent", seed, window)) for seed in (0, 1) for window in (0, 1)
    )
    others = tuple((run("equal-weight", 7, window), run("momentum", 8, window)) for window in (0, 1))
    settings = {**EvaluationConfig().protocol.model_dump(), "purge": 252}
    paths = ProtocolPaths("walk-forward", judged, others, settings)
    together = joined_section(paths, paths.compared[0], Tries(), Resampling(99, 21, 0))
    return protocol_section(paths, 0.95, 0), together


def choice() -> Section:
    """Three trials."""
    rng = np.random.default_rng(0)
    market = rng.normal(4e-4, 0.01, 300)
    names = ("one", "two", "three")
    daily = {name: DailyReturns(market + rng.normal(0.0, 0.003, 300), 0.0 * market, market, market) for name in names}
    matrix = np.column_stack([one.returns for one in daily.values()])
    return choice_section(judge_choice(matrix, names), "these days", judge_best(daily, 0, Resampling(99, 21, 0)))


@pytest.fixture(scope="module")
def content(
    report_data: Callable[..., ReportData],
    process_of: Callable[..., Any],
    context_of: Callable[..., ComparisonContext],
    backtest: Callable[..., Backtest],
) -> Any:
    """metrics.json of a report with nearly all sections; tests of training have the others."""
    process = process_of(bars=500)
    context = context_of(process, range(300, 500), "risk-parity", "equal-weight")
    bars = process.decision_bars(context.window)
    ends = range(bars.start + 1, bars.stop + 1)
    split = Split(200, 300, 500)
    sections = (
        attribution.section(context, ()),
        account.tax_section(process, context.window, context.runs, TaxConfig(enabled=True)),
        sweeps.section(context),
        stress.section(context, split),
        factors.section(process.panel, ends, context.runs, None),
        ranking.section(process, context.window, context.runs[0], 2),
        *protocol(backtest),
        choice(),
    )
    data = report_data(sections=tuple(section for section in sections if section is not None))
    return json.loads(as_json(data, compute_results(data)))


@pytest.mark.parametrize("kind", ["report", "comparison"])
def test_the_schemas_are_such_describe_everything_and_leave_nothing_open(kind: Any) -> None:
    schema = json_schema(kind)
    jsonschema.Draft202012Validator.check_schema(schema)
    for name, part in {**schema["$defs"], "": schema}.items():
        assert part["description"], name
        assert part["additionalProperties"] is False, f"a misspelt key of {name} would pass"
        for key, inner in part["properties"].items():
            assert inner.get("description") or "$ref" in inner, f"{key} of {name}"


def test_metrics_json_obeys_the_schema(content: Any, fits_schema: Callable[[Any], list[str]]) -> None:
    assert {"attribution", "tax", "sweeps", "stress", "factors", "ranking", "protocol", "choice", "walk_forward"} < set(
        content
    )
    assert fits_schema(content) == []


def test_settings_are_described_key_by_key() -> None:
    parts = SCHEMA["$defs"]
    assert set(parts["ProtocolConfig"]["required"]) == set(type(EvaluationConfig().protocol).model_fields)
    assert set(parts["TaxSettings"]["properties"]) == set(TaxConfig.model_fields) - {"enabled"}


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
        lambda content: content["protocol"]["of_windows"].update(sharp=content["protocol"]["of_windows"]["sharpe"]),
        lambda content: content["factors"]["panel"]["risk-parity"].update(betas={}),
        lambda content: content.update(mine=3),
    ],
)
def test_what_does_not_belong_is_refused(
    content: Any, fits_schema: Callable[[Any], list[str]], spoil: Callable[[Any], object]
) -> None:
    spoiled = json.loads(json.dumps(content))
    spoil(spoiled)
    assert fits_schema(spoiled)
