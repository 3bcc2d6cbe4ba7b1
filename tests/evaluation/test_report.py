"""The report: complete, self-contained, escaped, honest, and equal to its numbers."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import logging
import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import matplotlib
import numpy as np
import pandas as pd
import pytest

from finflow.errors import OutputError
from finflow.evaluation.analysis import expert_traits, training_sections
from finflow.evaluation.page.page_numbers import agreeing_decimals
from finflow.evaluation.report import figures, report
from finflow.evaluation.report.report import tear_sheet_obstacle, write_report
from finflow.evaluation.report.report_page import build_page
from finflow.evaluation.report.results import compute_results, json_schema
from finflow.evaluation.statistics import metrics
from finflow.evaluation.statistics.bootstrap import Interval, Resampling, SharpeDifference
from finflow.evaluation.statistics.significance_tests import Tries, track_of
from finflow.evaluation.statistics.verdict import Reason
from tests.evaluation.made_up import DAYS, backtest_of, make_training, report_data

pytestmark = pytest.mark.usefixtures("tear_sheets")

FIGURES = ["weights", "equity", "gate", "experts", "overfitting", "training"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tear_sheets: None) -> Path:
    """A report with everything in it, written once."""
    folder = tmp_path_factory.mktemp("report") / "reports"
    settings, level = dict(matplotlib.rcParams), logging.getLogger("matplotlib.font_manager").level
    write_report(folder, report_data())
    assert dict(matplotlib.rcParams) == settings, "matplotlib's settings leak"
    assert logging.getLogger("matplotlib.font_manager").level == level
    return folder


@pytest.fixture(scope="module")
def html(folder: Path, read_page: Callable[[str], Any]) -> Any:
    return read_page((folder / "report.html").read_text("utf-8"))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the tear sheet, which takes seconds and has a test of its own."""
    monkeypatch.setattr(report, "tear_sheet", lambda agent, baseline: "<p>tear sheet</p>")


def test_every_file_is_there_and_every_figure_is_embedded_and_described(folder: Path, html: Any) -> None:
    drawn = ["answer", *FIGURES]
    expected = {"report.html", "metrics.json", "returns.csv", "tearsheet.html", *(f"{name}.png" for name in drawn)}
    assert set(os.listdir(folder)) == expected
    for name in drawn:
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    images = html.all("img")
    assert len(images) == len(drawn)
    for image in images:
        assert str(image["src"]).startswith("data:image/png;base64,")
        assert len(str(image["alt"])) > 40
    anchors = [str(found.get("id")) for found in html.all("section")]
    assert [anchor for anchor in anchors if anchor in FIGURES] == FIGURES


@pytest.mark.parametrize("name", ["report.html", "tearsheet.html"])
def test_a_page_loads_nothing_from_anywhere(folder: Path, name: str) -> None:
    text = (folder / name).read_text("utf-8")
    if name == "report.html":  # but for its one script, whose hash the page's policy allows, and which loads nothing
        (script,) = re.findall(r'<script id="sorting">(.*?)</script>', text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"script-src 'sha256-{digest}'\">" in text
        assert not re.search(r"fetch|XMLHttpRequest|import|https?:|eval|innerHTML", script)
        text = text.replace(script, "").replace('<script id="sorting"></script>', "")
    for tag, attributes in re.findall(r"<([a-z]\w*)\b([^>]*)>", text):
        assert tag not in ("script", "iframe", "object", "embed", "base")
        assert not re.search(r"\bon\w+=", attributes)
        links = re.findall(r'\b(?:src|srcset|data|poster)="([^"]*)"', attributes)
        links += re.findall(r'\bhref="([^#][^"]*)"', attributes) if tag != "a" else []
        assert all(link.startswith("data:") for link in links), tag
    assert "@import" not in text
    assert "url(http" not in text


def test_what_came_from_outside_is_escaped(folder: Path, html: Any) -> None:
    text = (folder / "report.html").read_text("utf-8")
    for raw in ("<script>", "<CCC>", "<made up>", "<survivors>"):
        assert raw not in text
    words = " ".join(html.words)
    for shown in ("Agent & <script>alert(1)</script>", "<made up>", "Survivorship: only <survivors> are here."):
        assert shown in words


def test_every_number_of_the_page_is_in_metrics_json(
    folder: Path, html: Any, numbers_hold: Callable[[Any, Any], int]
) -> None:
    content = json.loads((folder / "metrics.json").read_text("utf-8"))
    count = numbers_hold(html, content)
    shown = {found.path for found in html.numbers}
    for strategy, table in content["strategies"].items():
        for key in metrics.Metrics.__annotations__:
            assert f"strategies/{strategy}/{key}" in shown
            if key in table["intervals"]:
                assert {f"strategies/{strategy}/intervals/{key}/{end}" for end in (0, 1)} <= shown
    assert {"verdict/dsr", "verdict/spa/p_consistent", "overfitting/pbo", "against_equal_weight/interval/1"} <= shown
    assert count > 100


def test_metrics_json_has_the_metrics_and_no_times_or_paths(
    folder: Path, fits_schema: Callable[[Any], list[str]]
) -> None:
    text = (folder / "metrics.json").read_text("utf-8")
    content, data = json.loads(text), report_data()
    assert fits_schema(content) == []
    for run in (data.agent, *data.strategies):
        summary = metrics.summarise(run, 0.05)
        assert {key: content["strategies"][run.name][key] for key in summary} == summary
        low, high = content["strategies"][run.name]["intervals"]["sharpe"]
        assert low < summary["sharpe"] < high
    assert content["window"] == {"start": "2016-01-04", "end": str(data.agent.dates[-1]), "days": 400}
    assert text == json.dumps(content, indent=2, sort_keys=True) + "\n"
    assert "/" not in text


def test_the_same_data_and_seed_give_the_same_bytes(folder: Path) -> None:
    data, other = report_data(), report_data(resampling=Resampling(200, 21, 8))
    results = compute_results(data)
    assert build_page(results).json() == (folder / "metrics.json").read_text("utf-8")
    drawn = report.draw_figures(results)
    assert {figure.name for figure in drawn} == {"answer", *FIGURES}
    assert all(figure.png == (folder / f"{figure.name}.png").read_bytes() for figure in drawn)
    assert build_page(compute_results(other)).json() != build_page(results).json()


def test_returns_csv_gives_back_every_return(folder: Path) -> None:
    table, data = pd.read_csv(folder / "returns.csv", dtype=str), report_data()
    assert list(table.columns) == ["date", "agent", *(run.name for run in data.strategies), "cash"]
    np.testing.assert_array_equal([float(value) for value in table["cash"]], data.agent.cash_returns)
    assert table["date"].iloc[0] == "2016-01-04"
    for run in (data.agent, *data.strategies):
        np.testing.assert_array_equal([float(value) for value in table[run.name]], run.returns)


def test_the_verdict_comes_first_with_its_reasons() -> None:
    results = compute_results(report_data(tries=Tries(configurations=3, others=2)))

    def said(answer: str, *enough: bool) -> str:
        reasons = tuple(Reason(f"test {number} said -0.5", passed) for number, passed in enumerate(enough))
        verdict = dataclasses.replace(results.verdict, beats_equal_weight=answer, reasons=reasons)
        text = build_page(dataclasses.replace(results, verdict=verdict)).html()
        return text[text.index("<h2>") : text.index("</section>")]

    unclear = said("not shown", True, False)
    assert "<h2>Beats equal weight: not shown</h2>" in unclear
    assert "<li>✓ test 0 said −0.5</li><li>✗ test 1 said −0.5</li>" in unclear
    first, last = results.data.agent.dates[[0, -1]]
    window = f"read the test window ({first} to {last}) before: 2."
    assert f"{window} Configurations that this one was chosen among: 3. Tries counted: 5." in unclear
    assert "Beats equal weight: yes" in said("yes", True, True)
    assert "promises nothing about the future" in said("yes", True, True)
    assert "Beats equal weight: no<" in said("no", False)


def first_box(**changes: Any) -> str:
    text = build_page(compute_results(report_data(**changes))).html()
    box = text[text.index('<section class="finding') : text.index("</section>")]
    assert "<details" not in box, "the condition that decided is never folded"
    return re.sub(r"<[^>]+>", "", box)


@pytest.mark.parametrize(
    ("confidence", "said"),
    [
        (0.0, "Found nothing that holds out of sample; holds inverse volatility. Its largest holdings on average: "),
        (0.8, "Trades its own policy at 80\N{NARROW NO-BREAK SPACE}%, and inverse volatility for the rest."),
        (None, "Trades its own policy. Its largest holdings"),
    ],
)
def test_the_page_begins_with_what_the_agent_is_and_holds(confidence: float | None, said: str) -> None:
    columns = [column for column, *_ in training_sections.BLOCKS_SHOWN.values()]
    evidence = {**dict.fromkeys(columns, 1.0), "confidence": confidence, "reference": 1}
    training = make_training() if confidence is None else pd.DataFrame([{"phase": "online", "update": 900, **evidence}])
    sections = training_sections.sections_of_training(training)
    assert said in first_box(training=training, sections=tuple(sections))


def test_only_what_is_held_is_a_holding_and_only_an_index_is_one() -> None:
    agent = report_data().agent
    alone = dataclasses.replace(agent, name="AAA", weights=np.eye(4)[np.zeros(DAYS, dtype=int)])
    assert "Its largest holdings on average: AAA." in first_box(agent=alone)
    assert not alone.is_index, "a strategy may have the name of an asset"
    assert dataclasses.replace(alone, assets=("AAA", "cash")).is_index


def test_the_condition_that_decided_is_named_in_words() -> None:
    results = compute_results(report_data())

    def decided(answer: str, *enough: bool, bounds: list[float] | None = None) -> str:
        reasons = tuple(Reason("a test", passed) for passed in enough)
        changes = {"beats_equal_weight": answer, "reasons": reasons, "sharpe_difference_interval": bounds}
        verdict = dataclasses.replace(results.verdict, **changes)
        return build_page(dataclasses.replace(results, verdict=verdict)).finding.words[0]

    assert "the true difference of Sharpe ratios may be zero or less" in decided(
        "not shown", False, True, False, bounds=[-0.1, 0.2]
    )
    assert "without any skill such a lead would not be rare" in decided(
        "not shown", False, False, True, bounds=[0.1, 0.2]
    )
    assert "may be luck" in decided("not shown", False, True, True, bounds=[0.1, 0.2])
    assert "restored once a month" in decided("not shown", True, True, True, False)
    assert "The window cannot decide." in decided("not shown", False)
    assert "has no interval" in decided("not shown", False, True, False)
    assert "the Sharpe ratio was not defined" in decided("no", False)
    assert "the whole interval of the difference lies below zero" in decided("no", False, bounds=[-0.5, -0.1])
    assert "the return: it was lower" in decided("no", False, bounds=[-0.5, 0.1])


def test_a_section_of_nothing_is_left_out() -> None:
    """A gate that gives everything to the reference, and a training without events."""
    shares = np.eye(6)[np.full(DAYS, 5)]
    portfolios = np.full((DAYS, 6, 4), 0.25)
    explained = {"gate": shares, "experts": portfolios, "trade_rate": np.ones(DAYS)}
    agent = dataclasses.replace(report_data().agent, explanation=explained)
    results = compute_results(report_data(agent=agent, events=()))
    assert "gate" not in [figure.name for figure in report.draw_figures(results)]
    assert "Guard events" not in build_page(results).html()
    assert str(build_page(results).finding.lead).startswith("Holds a reference alone.")
    states = {"calm": {"decisions": 5, "gate": dict.fromkeys("ab", 0.0) | {"reference": 1.0}, "cash": 0.0}}
    silent = expert_traits.gate_section(states, ("a", "b", "reference"), "here")
    page = build_page(compute_results(report_data(sections=(silent,))))
    assert "gate_states" not in page.html()
    assert page.document["gate_states"] == states, "no figure is lost"


def test_the_interval_of_the_difference_is_shown_where_there_is_one() -> None:
    results = compute_results(report_data())
    shown = build_page(results).html()
    bounds = results.difference.interval
    ratios = [results.numbers["strategies"][name]["sharpe"] for name in ("agent", "equal-weight")]
    said = f">{bounds.low:+.{agreeing_decimals(*ratios)}f}</span> to ".replace(">-", ">−")
    assert "with a 95\N{NARROW NO-BREAK SPACE}% interval from <span" in shown
    assert said in shown
    nothing = SharpeDifference(0.3, Interval(math.nan, math.nan), math.nan)
    assert "without an interval" in build_page(dataclasses.replace(results, difference=nothing)).html()
    assert results.verdict.sharpe_difference_interval == bounds.bounds


def test_metrics_json_has_the_evidence_under_its_keys(folder: Path) -> None:
    content, data = json.loads((folder / "metrics.json").read_text("utf-8")), report_data()
    verdict, baseline = content["verdict"], data.baseline.returns
    assert verdict["dsr"] == verdict["psr"] == track_of(data.agent.returns - baseline).psr()
    assert verdict["active_sharpe"] == pytest.approx(metrics.sharpe(data.agent.returns, baseline))
    least = verdict["least_sharpe_difference"]
    assert least["of_yes"] >= least["of_interval"] > 2.0 * least["standard_error"] > 0.0
    text = (folder / "report.html").read_text("utf-8")
    assert text.count('data-path="verdict/least_sharpe_difference/of_yes"') == 2, "beside the answer and in its table"
    assert content["strategies"]["risk-parity"]["psr"] == pytest.approx(
        track_of(data.strategies[2].returns - data.strategies[2].cash_returns).psr()
    )
    assert set(content["stepm"]["superior"]) <= set(content["strategies"]) == set(content["overfitting"]["among"])


def test_patient_equal_weight_is_asked_before_a_yes() -> None:
    baseline = report_data().baseline
    better = dataclasses.replace(baseline, name="agent", returns=baseline.returns + 1e-3 + 1e-5 * baseline.turnover)
    yes = compute_results(report_data(agent=better)).verdict
    assert yes.beats_equal_weight == "yes"
    patient = dataclasses.replace(better, name="patient", returns=better.returns + 1e-5)
    held = compute_results(report_data(agent=better, patient=patient)).verdict
    assert held.beats_equal_weight == "not shown"
    assert not held.reasons[-1].enough


@pytest.mark.usefixtures("quick")
def test_a_fixed_strategy_has_no_gate_experts_or_training(tmp_path: Path) -> None:
    others, judged = report_data().strategies[:2], report_data().strategies[2]
    data = report_data(agent=judged, strategies=others, training=pd.DataFrame(), notes=(), facts={})
    text = write_report(tmp_path, data).html()
    assert {name.stem for name in tmp_path.glob("*.png")} == {"answer", *FIGURES} - {"gate", "experts", "training"}
    assert text.count("<img ") == len(FIGURES) - 2
    assert "The strategy risk-parity. Its largest holdings on average: " in text
    compared = json.loads((tmp_path / "metrics.json").read_text())["strategies"]
    assert list(compared) == ["buy-and-hold", "equal-weight", "risk-parity"]


def test_equal_weight_is_not_compared_with_itself(tmp_path: Path) -> None:
    first, judged, last = report_data().strategies
    data = report_data(agent=judged, strategies=(first, last), training=pd.DataFrame())
    text = write_report(tmp_path, data).html()
    assert "Equal weight itself" in text
    assert "There is no quantstats tear sheet: there is no equal weight to compare with" in text
    assert not (tmp_path / "tearsheet.html").exists()
    against = json.loads((tmp_path / "metrics.json").read_text())["against_equal_weight"]
    assert against == {"finding": "not compared", "interval": None, "sharpe_difference": None, "share_ahead": None}


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("days", [1, 60])
def test_a_short_window_has_a_report_without_intervals(tmp_path: Path, days: int) -> None:
    data = report_data(
        agent=backtest_of("agent", steps=days, explained=True),
        strategies=(backtest_of("equal-weight", steps=days, seed=3),),
    )
    text = write_report(tmp_path, data).html()
    assert f"The window has {days} days; intervals need 105" in text
    assert "Beats equal weight: not shown" in text
    assert f"returns, and the test needs {4 if days < 4 else 105}; judge a longer window" in text
    content = json.loads((tmp_path / "metrics.json").read_text())
    assert content["strategies"]["agent"]["intervals"]["sharpe"] is None
    assert content["against_equal_weight"]["interval"] is None
    if days == 1:
        assert content["strategies"]["agent"]["sharpe"] is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda r: np.zeros_like(r), "are all the same"),
        (lambda r: np.where(np.arange(len(r)) == 5, np.nan, r), "have gaps"),
        (lambda r: np.abs(r) + 1.0, "for prices"),
        (lambda r: r[:1], "only 1 return"),
    ],
    ids=["all cash", "gap", "doubling", "one day"],
)
def test_returns_that_quantstats_cannot_judge_are_told(change: Callable[[np.ndarray], np.ndarray], reason: str) -> None:
    agent, baseline = backtest_of("agent"), backtest_of("equal-weight")
    assert tear_sheet_obstacle(agent, baseline) is None
    told = tear_sheet_obstacle(dataclasses.replace(agent, returns=change(agent.returns)), baseline)
    assert reason in str(told)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("returned", "figures"), [(np.nan, {"sharpe": None}), (-1.0, {"annual_return": -1.0, "max_drawdown": -1.0})]
)
def test_a_gap_and_ruin_are_drawn_and_told(tmp_path: Path, returned: float, figures: dict[str, float | None]) -> None:
    agent = report_data().agent
    agent.returns[200] = returned
    text = write_report(tmp_path, report_data(agent=agent)).html()
    assert ("There is no quantstats tear sheet: the returns of agent have gaps." in text) == np.isnan(returned)
    assert (tmp_path / "tearsheet.html").exists() == (not np.isnan(returned))
    content = json.loads((tmp_path / "metrics.json").read_text(), parse_constant=pytest.fail)
    assert {key: content["strategies"]["agent"][key] for key in figures} == figures


def test_the_tear_sheet_agrees_with_the_report(folder: Path) -> None:
    text = (folder / "tearsheet.html").read_text("utf-8")
    table = json.loads((folder / "metrics.json").read_text())["strategies"]["agent"]
    assert f"<td>{round(table['sharpe'], 2)}" in text
    assert f"{table['max_drawdown']:.2%}" in text
    assert "qtpylib" not in text
    assert "<dc:date>" not in text


@pytest.mark.usefixtures("no_pictures")
def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "reports").write_text("a file, no folder")
    with pytest.raises(OutputError, match="reports"):
        write_report(tmp_path / "reports", report_data(resampling=Resampling(100, 21, 7)))


def test_the_schema_is_one_and_describes_everything() -> None:
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    for name, part in {**schema["$defs"], "": schema}.items():
        assert part["description"], name
        assert part["additionalProperties"] is False, f"a misspelt key of {name} would pass"
        for key, inner in part["properties"].items():
            assert inner.get("description") or "$ref" in inner, f"{key} of {name}"


@pytest.mark.parametrize(
    "spoil",
    [
        lambda content: content.pop("verdict"),
        lambda content: content["strategies"]["agent"].update(sharpe="1.0"),
        lambda content: content["strategies"]["agent"].update(max_drawdown=0.1),
        lambda content: content["verdict"].update(beats_equal_weight="perhaps"),
        lambda content: content.update(mine=3),
    ],
)
def test_what_does_not_belong_in_metrics_json_is_refused(
    folder: Path, fits_schema: Callable[[Any], list[str]], spoil: Callable[[Any], object]
) -> None:
    content = json.loads((folder / "metrics.json").read_text("utf-8"))
    spoil(content)
    assert fits_schema(content)


def test_the_best_validation_is_told_and_a_record_without_curves_has_no_figure() -> None:
    record = {
        "phase": "online",
        "update": [0, 10, 20],
        "validation_sharpe": [0.1, 0.9, None],
        "q_loss": [1, math.inf, 0],
    }
    frame = pd.DataFrame(record)
    figure = figures.training(frame)
    assert figure is not None
    assert "0.90, after 10 updates" in figure.alt
    assert "q loss" in figure.alt
    assert figures.training(frame.assign(q_loss=math.nan, validation_sharpe=None)) is None
