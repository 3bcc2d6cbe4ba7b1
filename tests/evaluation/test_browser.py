"""The report as a browser shows it: nothing fails, nothing is missing, nothing runs off the side, every number holds.

Chromium is driven over its debugging pipe, so that the page is measured as it is, with no script of a test in it. Where
there is no Chromium these tests skip; what can be checked without one is in test_report.py.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib import image

from finflow.evaluation.analysis.sweeps import section as sweeps_section
from finflow.evaluation.comparison_context import ComparisonContext
from finflow.evaluation.multi_run.comparison_page import METRICS, Compared, Seeds, make
from finflow.evaluation.report.figures import equity
from finflow.evaluation.report.page import figure_section
from finflow.evaluation.report.report import ReportData, write_report
from finflow.evaluation.report.section import section_html
from finflow.evaluation.statistics.bootstrap import Interval
from finflow.evaluation.statistics.configuration_choice import DailyReturns, choice_section, judge_best, judge_choice
from finflow.evaluation.statistics.run_statistics import Estimate
from finflow.evaluation.statistics.significance_tests import Resampling
from tests.browser import DESK, PAPER, PHONE, Browser, open_browser

pytestmark = pytest.mark.usefixtures("images")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    opened = open_browser(tmp_path_factory.mktemp("browser"))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def folder(
    tmp_path_factory: pytest.TempPathFactory,
    report_data: Callable[..., ReportData],
    process_of: Callable[..., Any],
    context_of: Callable[..., ComparisonContext],
    images: None,
) -> Path:
    """A report with figures, tables that are wider than a phone, and a section of its own."""
    context = context_of(process_of(), range(300, 700), "risk-parity", "equal-weight", "buy-and-hold")
    folder = tmp_path_factory.mktemp("opened") / "reports"
    write_report(folder, report_data(sections=(sweeps_section(context),)))
    return folder


@pytest.fixture(scope="module")
def page(browser: Browser, folder: Path) -> Browser:
    browser.open((folder / "report.html").as_uri())
    return browser


def test_the_console_stays_silent_and_every_figure_is_seen(page: Browser, folder: Path) -> None:
    found = page.measured(DESK)
    assert page.complaints == []
    widths = dict(found["images"])
    assert set(widths) == {path.stem for path in folder.glob("*.png")}
    assert min(widths.values()) > 600


def test_every_number_that_the_browser_shows_is_in_metrics_json(
    page: Browser, folder: Path, read_page: Callable[[str], Any], numbers_hold: Callable[[Any, Any], int]
) -> None:
    content = json.loads((folder / "metrics.json").read_text("utf-8"))
    shown = read_page(page.measured(DESK)["html"])
    assert numbers_hold(shown, content) == len(read_page((folder / "report.html").read_text("utf-8")).numbers) > 150


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [PHONE, DESK])
def test_nothing_runs_off_the_side_of_a_screen(page: Browser, width: int, scheme: str) -> None:
    """Wide tables and figures scroll in a frame of their own; the page itself never does."""
    found = page.measured(width, scheme)
    assert found["over"] == 0
    assert bool(found["wide"]) == (width == PHONE), "on a desk nothing has to be scrolled sideways"


SORT = """(() => {
  const table = [...document.querySelectorAll('table.sortable')].find(t => t.tBodies[0].rows.length > 2);
  const head = table.tHead.rows[0].cells[PLACE];
  const read = () => [head.getAttribute('aria-sort'), ...[...table.tBodies[0].rows].map(row => PLACE
    ? Number(row.cells[PLACE].dataset.value) : row.cells[0].textContent)];
  head.click();
  const first = read();
  head.dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter'}));
  return [first, read()];
})()"""


@pytest.mark.parametrize(("place", "orders"), [(0, ["ascending", "descending"]), (1, ["descending", "ascending"])])
def test_a_table_is_sorted_by_its_head(page: Browser, place: int, orders: list[str]) -> None:
    """By a click and by the keyboard: names from A on, numbers from the largest on, and then the other way."""
    expression = SORT.replace("PLACE", str(place))
    answer = page.evaluate(expression)
    for order, (told, *values) in zip(orders, answer, strict=True):
        assert told == order
        assert len(values) > 2
        assert values == sorted(values, reverse=order == "descending")
    assert page.complaints == []


CLICK = """(() => {
  const overlay = document.querySelector('#equity svg.curves');
  const [first, second] = overlay.querySelectorAll('.entry');
  const read = () => [
    getComputedStyle(overlay.querySelector('.veil')).opacity > 0.5,
    [...overlay.querySelectorAll('path')].map(path => getComputedStyle(path).display !== 'none'),
  ];
  const press = (entry, key) => entry.dispatchEvent(new KeyboardEvent('keydown', {key}));
  const click = (entry) => {  // at the place where the reader sees it
    const box = entry.getBoundingClientRect();
    document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2).dispatchEvent(new MouseEvent('click'));
  };
  overlay.scrollIntoView();
  const told = [read()];
  const acts = [() => click(first), () => press(second, 'Enter'), () => click(first), () => press(second, 'Escape')];
  for (const act of acts) {
    act();
    told.push(read());
  }
  return told;
})()"""


def test_curves_that_are_not_asked_for_are_greyed_out(page: Browser) -> None:
    """By a click on legend entries and by the keyboard; several at once, and all again by Escape."""
    page.measured(DESK)
    told = page.evaluate(CLICK)
    count = len(told[0][1])
    assert count >= 3
    expected: list[set[int]] = [set(), {0}, {0, 1}, {1}, set()]
    assert [{place for place, shown in enumerate(curves) if shown} for _, curves in told] == expected
    assert [veiled for veiled, _ in told] == [bool(shown) for shown in expected]
    assert page.complaints == []


def test_the_overlay_lies_on_the_drawn_curves(report_data: Callable[..., ReportData]) -> None:
    """Each path lies on pixels of its colour in the PNG, and each legend entry on a handle of it."""
    data = report_data()
    drawn = equity(data.agent, data.compared)
    html = section_html(figure_section(drawn))
    overlay = html[html.index('<svg class="curves"') : html.index("</svg>")]
    pixels = (image.imread(io.BytesIO(drawn.png))[..., :3] * 255).round()
    width, height = (float(number) for number in re.findall(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', overlay)[0])
    assert (height, width) == pixels.shape[:2]
    paths = re.findall(r'<path d="([^"]+)" stroke="(#\w+)"', overlay)
    entries = re.findall(r'class="entry".*? x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)"', overlay)
    assert len(paths) == len(entries) >= 3
    for (steps, colour), entry in zip(paths, entries, strict=True):
        ink = [int(colour[place : place + 2], 16) for place in (1, 3, 5)]
        spots = [[float(number) for number in step.split()] for step in re.split("[ML]", steps)[1:]]
        seen = [_nearest(pixels, x, y, ink) for x, y in spots[5:-5:10]]
        assert np.median(seen) < 30.0, colour  # others may lie over it in places
        x, y, wide, high = (float(number) for number in entry)
        handle = pixels[int(y) : int(y + high) + 1, int(x) : int(x + 0.3 * wide)].reshape(-1, 3)
        assert np.abs(handle - ink).max(axis=1).min() < 30.0, colour


def _nearest(pixels: Any, x: float, y: float, ink: list[int]) -> float:
    """Distance of the colour nearest to an ink within two pixels of a place."""
    around = pixels[max(int(y) - 2, 0) : int(y) + 3, max(int(x) - 2, 0) : int(x) + 3].reshape(-1, 3)
    return float(np.abs(around - ink).max(axis=1).min())


def test_nothing_runs_off_the_side_of_a_sheet(page: Browser) -> None:
    """Paper does not scroll: every table has to fit."""
    found = page.measured(PAPER, media="print")
    assert (found["over"], found["wide"]) == (0, [])
    assert found["ground"] == "rgb(255, 255, 255)"


def test_light_and_dark_are_two_looks_that_can_be_read(page: Browser) -> None:
    light, dark = page.measured(DESK), page.measured(DESK, "dark")
    assert brightness(light["ground"]) > 0.9 > 0.2 > brightness(light["ink"])
    assert brightness(dark["ground"]) < 0.2 < 0.8 < brightness(dark["ink"])


def test_runs_side_by_side_fit_too(browser: Browser, tmp_path: Path) -> None:
    days = 300
    returns = np.random.default_rng(0).normal(4e-4, 0.01, (4, days))
    figures = {**dict.fromkeys(METRICS, 0.123), "intervals": {key: (-0.1234, 0.4321) for key in METRICS}}
    metrics = {
        "agent": "finflow",
        "strategies": {"finflow": figures},
        "against_equal_weight": {"sharpe_difference": 0.1, "interval": (-0.1, 0.3)},
        "verdict": {"beats_equal_weight": "no", "dsr": 0.5, "spa": {"p_consistent": 0.3}},
    }
    runs = [Compared.of(f"run {n}", metrics, n, returns[n], returns[3]) for n in range(3)]
    dates = np.datetime64("2016-01-02") + np.arange(days)
    likely = {"equal weight": Estimate(0.75, Interval(0.25, 1.0))}
    estimates = {"sharpe": Estimate(0.5, Interval(0.1, 0.9))}
    group = Seeds(tuple(run.label for run in runs), ("0", "1", "2"), estimates, likely)
    daily = {run.label: DailyReturns(run.returns, np.zeros(days), returns[3], returns[3]) for run in runs}
    choice = choice_section(
        judge_choice(returns[:3].T, tuple(daily), "runs"),
        "the test window",
        judge_best(daily, 5, Resampling(99, 21, 0)),
    )
    differences = {"train.seed": {run.label: str(run.numbers["seed"]) for run in runs}}
    window = {"start": "2016-01-02", "end": "2016-10-27", "days": days}
    for name, content in make(runs, [group], differences, window, "a" * 64, dates, choice).files.items():
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    browser.open((tmp_path / "report.html").as_uri())
    for width, media in ((PHONE, "screen"), (DESK, "screen"), (PAPER, "print")):
        found = browser.measured(width, media=media)
        assert found["over"] == 0
        assert bool(found["wide"]) == (width == PHONE)
    assert browser.complaints == []


def test_what_is_wrong_with_a_page_is_seen(browser: Browser, tmp_path: Path) -> None:
    """The eyes of these tests: an error of a script, an image that is missing, and a table that is too wide."""
    wrong = tmp_path / "wrong.html"
    wrong.write_text(
        '<body><figure id="lost"><img src="none.png"></figure><p style="width:3000px">x</p>'
        '<script>console.error("oh")</script></body>'
    )
    browser.open(wrong.as_uri())
    found = browser.measured(DESK)
    assert found["over"] > 1000
    assert not dict(found["images"])["lost"]
    assert any("oh" in complaint for complaint in browser.complaints)
    assert any("ERR_FILE_NOT_FOUND" in complaint for complaint in browser.complaints)


def brightness(colour: str) -> float:
    """Mean of red, green and blue, 0 to 1, of a colour as a browser computes it."""
    return sum(int(part) for part in colour.strip("rgb()").split(",")) / 765.0
