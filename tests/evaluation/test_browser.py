"""The report as a browser shows it: nothing fails, nothing is missing, nothing runs off the side, every number holds.

Chromium is driven over its debugging pipe, so that the page is measured as it is, with no script of a test in it. Where
there is no Chromium these tests skip; what can be checked without one is in test_report.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from finflow.evaluation.analysis.sweeps import sweep_section
from finflow.evaluation.multi_run.comparison_page import Seeds, comparison_page, run_numbers
from finflow.evaluation.report.report import write_report
from finflow.evaluation.statistics.backtest_overfitting import DailyReturns, choice_section, judge_best
from finflow.evaluation.statistics.bootstrap import Estimate, Interval, Resampling
from finflow.strategies.classical import COMPARED
from tests.browser import DESK, PAPER, PHONE, Browser, open_browser
from tests.conftest import Page, check_numbers
from tests.evaluation.made_up import backtest_of, context_of, process_of, report_data

pytestmark = pytest.mark.usefixtures("images")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    opened = open_browser(tmp_path_factory.mktemp("browser"))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def page(browser: Browser, tmp_path_factory: pytest.TempPathFactory, images: None) -> Browser:
    """A report with figures, tables that are wider than a phone, and a section of its own."""
    context = context_of(process_of(), range(300, 420), "risk-parity", "equal-weight", "buy-and-hold")
    folder = tmp_path_factory.mktemp("opened") / "reports"
    write_report(folder, report_data(sections=(sweep_section(context),)))
    browser.open((folder / "report.html").as_uri())
    return browser


def test_the_console_stays_silent_and_every_figure_is_seen(page: Browser) -> None:
    widths = dict(page.measured(DESK)["images"])
    assert page.complaints == []
    assert {"equity", "weights", "experts", "training"} <= set(widths)
    assert min(widths.values()) > 600


@pytest.mark.parametrize(
    ("width", "scheme", "media"),
    [
        *((width, scheme, "screen") for width in (PHONE, DESK) for scheme in ("light", "dark")),
        (PAPER, "light", "print"),
    ],
)
def test_nothing_runs_off_the_side_and_ink_stands_out(page: Browser, width: int, scheme: str, media: str) -> None:
    """Wide tables and figures scroll in a frame of their own on a phone, and have to fit elsewhere."""
    found = page.measured(width, scheme, media=media)
    assert found["over"] == 0
    assert bool(found["wide"]) == (width == PHONE)
    # mean of red, green and blue, 0 to 1
    ground, ink = (sum(map(int, found[of].strip("rgb()").split(","))) / 765.0 for of in ("ground", "ink"))
    dark, bright = (ground, ink) if scheme == "dark" else (ink, ground)
    assert dark < 0.2 < 0.8 < bright


def test_a_report_is_one_page_before_anything_is_unfolded(page: Browser, tmp_path: Path) -> None:
    """At most 6,000 pixels and 1,500 words with as many strategies as a report has; links, and paper, unfold."""
    strategies = tuple(backtest_of(name, seed=place) for place, name in enumerate(COMPARED))
    context = context_of(process_of(), range(300, 420), "risk-parity", "equal-weight", "buy-and-hold")
    write_report(tmp_path, report_data(strategies=strategies, sections=(sweep_section(context),)))
    page.open((tmp_path / "report.html").as_uri())
    assert page.measured(1400)["over"] == 0
    assert page.evaluate("document.documentElement.scrollHeight") <= 6000
    words = "document.body.innerText.split(/\\s+/).length"
    folded = page.evaluate(words)
    assert folded <= 1500
    shown = "document.querySelector('#intervals table').checkVisibility()"
    assert not page.evaluate(shown)
    page.evaluate("document.querySelector('nav a[href=\"#intervals\"]').click() || true")
    assert page.evaluate(f"new Promise(done => setTimeout(() => done({shown}), 100))")
    assert page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate(words) > 2 * folded


def test_a_figure_is_dark_on_a_dark_page(page: Browser) -> None:
    styles = "getComputedStyle(document.querySelector('.finding img')).filter"
    page.measured(DESK, "light")
    assert page.evaluate(styles) == "none"
    page.measured(DESK, "dark")
    assert page.evaluate(styles) == "invert(1) hue-rotate(180deg)"


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
    answer = page.evaluate(SORT.replace("PLACE", str(place)))
    for order, (told, *values) in zip(orders, answer, strict=True):
        assert told == order
        assert len(values) > 2
        assert values == sorted(values, reverse=order == "descending")
    assert page.complaints == []


#: Run names as `--mode train` gives them, with the folder above, and as people give them.
NAMES = (
    "20261129_165705",
    "momentum-of-the-north-american-universe-with-costs-of-20-bps-and-a-long-name",
    "experiments/20261129_165706_2",
    "a_name_with_underscores_alone_that_no_line_can_be_broken_at",
    "seed3",
    "logs/20261129_165708",
)
#: Intervals about as wide as those of real runs become.
BOUNDS = {
    "sharpe": (-1.24, -0.07),
    "annual_return": (-0.251, -0.12),
    "annual_volatility": (0.155, 0.173),
    "max_drawdown": (-0.296, -0.186),
    "cvar": (-0.0346, -0.0288),
    "annual_turnover": (120.2, 181.7),
    "annual_cost": (0.0006, 0.0228),
}


@pytest.mark.parametrize("count", [2, 3, 6])
def test_runs_side_by_side_fit(browser: Browser, tmp_path: Path, count: int) -> None:
    """Long names and long values of keys are broken into lines, and no number or name is missing for it."""
    days, labels = 300, NAMES[:count]
    returns = np.random.default_rng(0).normal(4e-4, 0.01, (count + 1, days))
    figures = {**{key: sum(ends) / 2.0 for key, ends in BOUNDS.items()}, "intervals": BOUNDS}
    metrics = {
        "agent": "finflow",
        "strategies": {"finflow": figures},
        "against_equal_weight": {"sharpe_difference": 0.1, "interval": (-0.12, 0.31)},
        "verdict": {"beats_equal_weight": "no", "dsr": 0.5, "spa": {"p_consistent": 0.3}},
    }
    dates = np.busday_offset("2016-01-02", np.arange(days), roll="forward")
    means = {key: Estimate(figures[key], Interval(*ends)) for key, ends in BOUNDS.items()}
    means["sharpe_difference"] = Estimate(0.1, Interval(-0.12, 0.31))
    likely = {name: Estimate(0.75, Interval(0.25, 1.0)) for name in ("equal weight", "group 1", "group 2")}
    groups = {f"group {n}": Seeds(labels, tuple(map(str, range(count))), means, likely) for n in (1, 2)}
    daily = {label: DailyReturns(returns[n], np.zeros(days), *returns[[-1, -1]]) for n, label in enumerate(labels)}
    best = judge_best(daily, 5, Resampling(99, 21, 0))
    page = comparison_page(
        {label: run_numbers(metrics, n) for n, label in enumerate(labels)},
        {**{label: one.returns for label, one in daily.items()}, "equal-weight": returns[-1]},
        groups,
        {key: dict.fromkeys(labels, f'"/a/long/path/to/the/prices/of/some/{key}.csv"') for key in ("a", "market.path")},
        choice_section(returns[:-1].T, tuple(daily), "the test window", best, "runs"),
        dates,
        {"window": {"start": "2016-01-02", "end": "2016-10-27", "days": days}, "panel": "a" * 64},
    )
    (tmp_path / "report.html").write_text(page.html())
    browser.open((tmp_path / "report.html").as_uri())
    for width, media in ((PHONE, "screen"), (DESK, "screen"), (1400, "screen"), (PAPER, "print")):
        found = browser.measured(width, media=media)
        assert found["over"] == 0
        assert bool(found["wide"]) == (width == PHONE), found["wide"]
    assert browser.complaints == []
    shown = Page(page.html())
    shown.bare.clear()  # configuration values are text
    assert check_numbers(shown, page.document) >= count * 10 * 3
    words = " ".join(shown.words)
    assert "finflow" in words
    assert f"Group 2, seeds {', '.join(map(str, range(count)))}: {', '.join(labels)}." in words
