"""What every test can count on: no settings from outside, and the same hypothesis examples every time."""

from __future__ import annotations

import base64
import collections
import gc
import io
import json
import math
import multiprocessing
import os
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from html.parser import HTMLParser
from multiprocessing import forkserver
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

# Before torch is loaded: on two cores, two threads are far slower than one whenever the other core is busy.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import hypothesis
import jsonschema
import pytest

#: File of tests, from this folder -> seconds that it took. Those that take longest are begun first, so that all
#: processes of a run end together. ``make test ARGS=--record-durations`` writes it.
DURATIONS = Path(__file__).parent / "durations.json"

#: A PNG of one white pixel.
PIXEL = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGP4DwABAQEAsTj2FAAAAABJRU5ErkJggg==")

# Looking for cycles of references every 700 objects is a fifth of a short training.
gc.set_threshold(50_000)

# A slow or busy machine must not fail a property, and a failure must come back on the next run.
hypothesis.settings.register_profile("finflow", deadline=None, derandomize=True, max_examples=50)
hypothesis.settings.load_profile("finflow")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record-durations", action="store_true", help="write tests/durations.json after a whole run")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--record-durations") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(DurationRecorder())


class DurationRecorder:
    """Seconds of each file of tests, written at the end of a run."""

    def __init__(self) -> None:
        self.seconds: collections.Counter[str] = collections.Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid.partition("::")[0].removeprefix("tests/")] += report.duration

    def pytest_sessionfinish(self) -> None:
        shown = {name: round(seconds, 1) for name, seconds in self.seconds.most_common() if seconds >= 1.0}
        DURATIONS.write_text(json.dumps(shown, indent=0) + "\n")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order files for ``--dist loadfile --no-loadscope-reorder``: those that take longest come first."""
    seconds = json.loads(DURATIONS.read_text())
    items.sort(key=lambda item: seconds.get(str(item.path.relative_to(DURATIONS.parent)), 0.0), reverse=True)


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("FINFLOW_"):
            monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def _no_fits_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one test fits, or pretends to fit, is not known to the next."""
    monkeypatch.setattr("finflow.strategies.kept_fits.KeptFits", lambda path, read: {})


class Shown(NamedTuple):
    """A number on a page: where `metrics.json` has it, its value in full, by what it is scaled, and how it reads."""

    path: str
    value: str
    scale: float
    text: str


class Page(HTMLParser):
    """What a reader of a page meets: tags with their attributes, words, and numbers with where they come from."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.numbers: list[Shown] = []
        self.bare: list[str] = []  # digits in a table that do not say where they come from
        self._open: list[tuple[str, dict[str, str | None], list[str]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.append((tag, found))
        if tag not in ("meta", "link", "img", "br"):
            self._open.append((tag, found, []))

    def handle_data(self, data: str) -> None:
        self.words.append(data)
        if self._open:
            self._open[-1][2].append(data)

    def handle_endtag(self, tag: str) -> None:
        name, found, texts = self._open.pop()
        assert name == tag, f"<{name}> is closed by </{tag}>"
        text = "".join(texts)
        if "data-path" in found:
            scale = float(found.get("data-scale") or 1.0)
            self.numbers.append(Shown(str(found["data-path"]), str(found["data-value"]), scale, text))
        elif re.search(r"\d", re.sub(r"\d{4}-\d\d-\d\d", "a date", text)) and "td" in (tag, *self._around):
            self.bare.append(text)

    @property
    def _around(self) -> list[str]:
        return [name for name, _, _ in self._open]

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [found for name, found in self.tags if name == tag]


def look_up(content: Any, path: str) -> Any:
    """What a JSON pointer (without its first slash) points at."""
    for part in path.split("/"):
        key = part.replace("~1", "/").replace("~0", "~")
        content = content[int(key)] if isinstance(content, list) else content[key]
    return content


def check_numbers(page: Page, content: Any) -> int:
    """Hold every number of a page to `metrics.json`, in full and as it reads; how many there were."""
    assert page.bare == []
    for shown in page.numbers:
        value = look_up(content, shown.path)
        if value is None:
            assert (shown.value, shown.text) == ("null", "\N{EN DASH}"), shown
            continue
        assert float(shown.value) == value, shown
        text = shown.text.replace("\N{MINUS SIGN}", "-").replace(",", "")
        text = re.sub(r"[\N{NARROW NO-BREAK SPACE}\N{MULTIPLICATION SIGN}%]|bp$", "", text).strip()
        decimals = len(text.partition(".")[2])
        assert math.isclose(float(text), value * shown.scale, rel_tol=1e-12, abs_tol=0.5000001 * 10.0**-decimals), shown
    return len(page.numbers)


@pytest.fixture(scope="session", autouse=True)
def _one_core() -> Iterator[None]:
    """One processor core, unless a test asks for two: other tests are on the other, and forking for it costs more."""
    from finflow import cores

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cores, "available_cores", lambda: 1)
        yield


@pytest.fixture(scope="module")
def few_epochs() -> Iterator[None]:
    """Few passes over pairs, where something is learned from them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("finflow.preferences.model_training.EPOCHS", 15)
        yield


@pytest.fixture(scope="session")
def _forking_server() -> None:
    """A server whose processes begin with everything loaded; it ends with this process."""
    multiprocessing.get_context("forkserver").set_forkserver_preload(["finflow.training.trainer"])
    forkserver.ensure_running()


@pytest.fixture
def ready_workers(_forking_server: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Local workers from the server, with the environment that spawned ones would have."""
    from finflow.cores import WorkerProcess
    from finflow.worker_pool import LocalWorkers, _call

    def start(workers: LocalWorkers, place: int) -> WorkerProcess:
        environment = {**os.environ, **workers._environment(place)}
        return WorkerProcess(partial(_in_environment, environment, _call, *workers._initial), "forkserver")

    monkeypatch.setattr(LocalWorkers, "_start", start)


def _in_environment(environment: Mapping[str, str], function: Callable[..., Any], *arguments: Any) -> Any:
    os.environ.clear()
    os.environ.update(environment)
    return function(*arguments)


class Drawing(NamedTuple):
    """What draws the pages of finflow: two ways to make an image with matplotlib, and the tear sheet of quantstats."""

    save: Callable[..., None]
    encode: Callable[..., bytes]
    tear_sheet: Callable[..., str]


@pytest.fixture(scope="session", autouse=True)
def _drawing() -> Iterator[Drawing]:
    """Images of one pixel and no tear sheet, unless a test asks: they are most of a short training with its report."""
    from matplotlib.figure import Figure

    from finflow.evaluation.page import drawing
    from finflow.evaluation.report import report

    real = Drawing(Figure.savefig, drawing._as_png, report.tear_sheet)

    def save(figure: Figure, target: Any, **options: Any) -> None:
        if options.get("format") == "png" and isinstance(target, io.BytesIO):
            target.write(PIXEL)
        else:
            real.save(figure, target, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", save)
        patch.setattr(drawing, "_as_png", lambda figure: PIXEL)
        patch.setattr(report, "tear_sheet", lambda agent, baseline: "<p>tear sheet</p>")
        yield real


@pytest.fixture(scope="module")
def images(_drawing: Drawing) -> Iterator[None]:
    """Images as finflow draws them, from here to the end of a test file."""
    from matplotlib.figure import Figure

    from finflow.evaluation.page import drawing

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", _drawing.save)
        patch.setattr(drawing, "_as_png", _drawing.encode)
        yield


@pytest.fixture(scope="module")
def tear_sheets(_drawing: Drawing, images: None) -> Iterator[None]:
    """Tear sheets as quantstats makes them, and images, from here to the end of a test file."""
    from finflow.evaluation.report import report

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "tear_sheet", _drawing.tear_sheet)
        yield


@pytest.fixture(scope="module")
def quick_reports() -> Iterator[None]:
    """Reports with all their numbers, but few compared strategies and no pictures: those have tests of their own."""
    from finflow.training.judging import held_out

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(held_out, "COMPARED", ("equal-weight", "buy-and-hold", "momentum"))
        draw_nothing(patch)
        yield


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports with all their numbers and compared strategies, but no pictures, which take seconds."""
    draw_nothing(monkeypatch)


def draw_nothing(patch: pytest.MonkeyPatch) -> None:
    """Have reports go without figures and tear sheet."""
    from finflow.evaluation.analysis import training_sections
    from finflow.evaluation.report import report

    patch.setattr(report, "draw_figures", lambda results: [])
    patch.setattr(training_sections, "render", lambda draw, height: b"")
    patch.setattr(report, "tear_sheet_obstacle", lambda run, baseline: "a test goes without")


@pytest.fixture(scope="module", autouse=True)
def quick_phases() -> Iterator[None]:
    """Shorten what would be most of a tiny training: few random features predict the mirrored bars, regimes are
    fitted in few rounds, the critics are judged in few states, over few decisions, and how a policy generalises on
    pieces of five decisions. Files that test these define a fixture of this name."""
    from finflow.market.features import regimes
    from finflow.training.data import mirrored_growth
    from finflow.training.off_policy import exact_decisions
    from finflow.training.phases import training_run

    real, brief = training_run.generalisation_figures, SimpleNamespace(env=SimpleNamespace(episode_length=5))

    def quick(data: Any, *given: Any) -> dict[str, float]:
        own = {name: getattr(data, name) for name in ("process", "train_segments", "split")}
        return real(SimpleNamespace(config=brief, **own), *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training_run, "generalisation_figures", quick)
        patch.setattr(mirrored_growth, "RANDOM_FEATURES", 20)
        patch.setattr(regimes, "ITERATIONS", 5)
        for name, value in (("JUDGED", 64), ("FOLLOWED", 16), ("SETTLED", 4), ("DECISION_STATES", 256)):
            patch.setattr(exact_decisions, name, value)
        yield


@pytest.fixture(scope="session")
def read_page() -> Callable[[str], Page]:
    return Page


@pytest.fixture(scope="session")
def numbers_hold() -> Callable[[Page, Any], int]:
    return check_numbers


@pytest.fixture(scope="session")
def fits_schema() -> Callable[..., list[str]]:
    """What is wrong with the `metrics.json` of a report, by its schema."""

    from finflow.evaluation.report.results import json_schema

    validator = jsonschema.Draft202012Validator(json_schema())

    def wrong(content: Any) -> list[str]:
        return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(content)]

    return wrong
