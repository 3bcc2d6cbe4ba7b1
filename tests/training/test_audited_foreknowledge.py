"""Who has the future from outside the panel is found by what the answers are worth; honest rules are not."""

from __future__ import annotations

import contextlib
import importlib
import os
import socket
import sqlite3
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import scipy

from finflow.arrays import FloatArray, IntArray
from finflow.cli import main
from finflow.config import Config, load_config
from finflow.market.sources.panel_loader import load_panel
from finflow.strategies.classical import EqualWeight, named_strategy
from finflow.strategies.optimal_policy import optimum_of
from finflow.training.audit import audited_foreknowledge as opened_files
from finflow.training.audit.audit_subjects import AuditSubjects
from finflow.training.audit.audited_foreknowledge import AuditedForeknowledge, OpenedFiles, decided_views
from finflow.training.audit.foreknowledge import FLOOR, Foreknowledge, UnknownReturns, View, ranks_of, scores_of
from finflow.training.audit.look_ahead import Finding
from finflow.training.data.training_data import TrainingData, prepare
from tests.short_trainings import FEW_EPISODES, write_market
from tests.training.whole_trainings import Make

SOURCE = '''
import sqlite3

import numpy as np
import pandas as pd

WINNERS = {}  # by date; written out below, as a list in the source would be


def table():
    """The return of every asset over the bar after each date."""
    close = pd.read_csv("future.csv", index_col=0)
    return close.pct_change().shift(-1).fillna(0.0)


def one(place, count):
    weights = np.zeros(count)
    weights[place] = 1.0
    return weights


def equal(count):
    return np.append(np.full(count - 1, 1.0 / (count - 1)), 0.0)


class Leak:
    """Tells the place of the winner after a date, and buys it."""

    def __init__(self):
        self.name = type(self).__name__.lower()

    def decide(self, information):
        return one(self.winner(str(information.date)), len(information.portfolio))


class ReadsAFile(Leak):
    def __init__(self):
        super().__init__()
        self.table = table()

    def winner(self, date):
        return int(self.table.loc[date].to_numpy().argmax())


class InItsSource(Leak):
    def winner(self, date):
        return WINNERS[date]


class Database(Leak):
    def winner(self, date):
        with sqlite3.connect("future.db") as database:
            return database.execute("SELECT place FROM winners WHERE date = ?", (date,)).fetchone()[0]


class OneDayInFive(ReadsAFile):
    """Equal weight otherwise."""

    def decide(self, information):
        if information.step % 5:
            return equal(len(information.portfolio))
        return super().decide(information)


class OneQuarter(ReadsAFile):
    """Yesterday's winner at all other times."""

    def decide(self, information):
        if 200 <= information.step < 300:
            return super().decide(information)
        return one(int((information.prices[-1] / information.prices[-2]).argmax()), len(information.portfolio))


class MarketTimer(ReadsAFile):
    """Everything or nothing, by the mean of tomorrow."""

    def decide(self, information):
        count = len(information.portfolio)
        rises = self.table.loc[str(information.date)].mean() > 0.0
        return equal(count) if rises else one(count - 1, count)


class SmallTilt(ReadsAFile):
    """Equal weight, a hundredth of it moved by what comes."""

    def decide(self, information):
        weights = equal(len(information.portfolio))
        coming = self.table.loc[str(information.date)].to_numpy()
        weights[coming.argmax()] += 0.01
        weights[coming.argmin()] -= 0.01
        return weights


class Reversal(Leak):
    """Honest: yesterday's loser."""

    def decide(self, information):
        return one(int((information.prices[-1] / information.prices[-2]).argmin()), len(information.portfolio))


class Weary(Leak):
    """Fails after a hundred decisions."""

    def decide(self, information):
        if information.step > 100:
            raise KeyError("no more")
        return equal(len(information.portfolio))


def of_a_file(panel):
    """Tomorrow's returns of the file under twice their own noise, whatever the panel has."""
    known = table().reindex([str(day) for day in panel.dates]).fillna(0.0).to_numpy()
    noise = np.random.default_rng(0).standard_normal(known.shape) * known.std()
    return known + 2.0 * noise


def market_of_a_file(panel):
    """The sign of tomorrow's mean return."""
    known = table().reindex([str(day) for day in panel.dates]).fillna(0.0).to_numpy()
    return np.sign(known.mean(axis=1)) + 0.0


def yesterday(panel):
    result = np.zeros(panel.close.shape)
    result[1:] = panel.close[1:] / panel.close[:-1] - 1.0
    return result
'''


@pytest.fixture(scope="module")
def config(shared: Make, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Config]:
    """A market of 900 bars, half of it held out; its future in files beside a user's module."""
    folder = tmp_path_factory.mktemp("user")
    prices = write_market(folder / "future.csv", bars=900, assets="ABCDEF")
    config = shared(**{**FEW_EPISODES, "market__path": str(prices)})
    panel = load_panel(config.market)
    winners = np.append((panel.close[1:] / panel.close[:-1]).argmax(axis=1), 0)
    by_date = {str(day): int(place) for day, place in zip(panel.dates, winners, strict=True)}
    (folder / "oracles.py").write_text(f"{SOURCE}\n\nWINNERS.update({by_date!r})\n", encoding="utf-8")
    with sqlite3.connect(folder / "future.db") as database:
        database.execute("CREATE TABLE winners (date TEXT PRIMARY KEY, place INTEGER)")
        database.executemany("INSERT INTO winners VALUES (?, ?)", by_date.items())
    database.close()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(str(folder))
        yield config
    sys.modules.pop("oracles", None)


@pytest.fixture(scope="module")
def prepared(config: Config) -> dict[int, TrainingData]:
    """The market at each lag."""
    environments = [config.env.model_copy(update={"execution_lag": lag}) for lag in (0, 1, 2)]
    return {one.execution_lag: prepare(config.model_copy(update={"env": one})) for one in environments}


def findings_of(data: TrainingData, strategy: str) -> list[Finding]:
    """What the test of foreknowledge says of one strategy, and what it opened."""
    opened = OpenedFiles()
    tested = AuditedForeknowledge(AuditSubjects(data.panel, data.config, data.split), opened)
    make = lambda: opened.watch(strategy, named_strategy, strategy, data.config.evaluation)  # noqa: E731
    return [*tested.of_strategies({strategy: make}), *tested.of_opened()]


@pytest.mark.parametrize(
    ("leak", "opens"),
    [
        ("InItsSource", None),
        ("Database", "opens the database future.db"),
        *(
            (leak, "reads the file future.csv")
            for leak in ("ReadsAFile", "OneDayInFive", "OneQuarter", "MarketTimer", "SmallTilt")
        ),
    ],
)
def test_a_strategy_that_has_the_future_from_elsewhere_is_caught(
    leak: str, opens: str | None, prepared: dict[int, TrainingData]
) -> None:
    found, *notes = findings_of(prepared[1], f"oracles:{leak}")
    assert found.verdict == "BEYOND LIMIT", found
    assert "no honest rule is known to reach" in found.where
    assert [(note.verdict, note.bad) for note in notes] == [("note", False)] * (opens is not None)
    if opens is not None:
        assert notes[0].where.startswith(opens)


@pytest.mark.parametrize(
    ("strategy", "lag"),
    [*(("oracles:Reversal", lag) for lag in (0, 1, 2)), *(("momentum", 1), ("time-series-momentum", 0), ("olmar", 2))],
)
def test_an_honest_strategy_is_clean_at_every_lag(strategy: str, lag: int, prepared: dict[int, TrainingData]) -> None:
    assert [(one.verdict, one.where) for one in findings_of(prepared[lag], strategy)] == [("clean", "")]


def test_a_strategy_that_fails_on_the_way_is_a_finding(prepared: dict[int, TrainingData]) -> None:
    (found,) = findings_of(prepared[1], "oracles:Weary")
    assert (found.verdict, found.bad) == ("FAILED", True)
    assert "no more" in found.where


def test_too_few_decisions_are_said_to_be_too_few(config: Config) -> None:
    market = config.market.model_copy(update={"train_end": "2012-09-30", "validation_end": "2012-10-15"})
    (found,) = findings_of(prepare(config.model_copy(update={"market": market})), "momentum")
    assert (found.verdict, found.bad) == ("note", False)
    assert "too few to test; 30 are needed" in found.where


@pytest.mark.parametrize(
    ("feature", "foretells"), [("of_a_file", True), ("market_of_a_file", True), ("yesterday", False)]
)
def test_a_feature_that_has_the_future_from_elsewhere_is_caught(feature: str, foretells: bool, config: Config) -> None:
    features = config.features.model_copy(update={"extra": (f"oracles:{feature}",)})
    changed = config.model_copy(update={"features": features})
    data, opened = prepare(changed), OpenedFiles()
    found, whole = AuditedForeknowledge(AuditSubjects(data.panel, changed, data.split), opened).of_features()
    assert (found.component, whole.component) == (f"feature oracles:{feature}", "features")
    assert [one.verdict == "BEYOND LIMIT" for one in (found, whole)] == [foretells, foretells]
    assert list(opened.found[found.component]) == ["reads the file future.csv"] * foretells


@pytest.mark.usefixtures("smaller_audit")
def test_the_mode_ends_with_2_for_who_foretells_and_says_what_it_opened(
    config: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = {"source": "csv", "path": "future.csv", "train_end": "2011-09-30", "validation_end": "2011-10-31"}
    settings = [word for key, value in keys.items() for word in ("--set", f"market.{key}={value}")]
    settings += ["--set", "env.episode_length=10", "--set", "features.filters=none", "--set", "features.regimes=false"]
    assert main(["--mode", "audit", *settings, "--strategy", "oracles:ReadsAFile", "oracles:Reversal"]) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith(
        "error: strategy oracles:ReadsAFile has foreknowledge of returns: the rank correlation of its "
    )
    assert "    foreknowledge: BEYOND LIMIT: " in shown.out
    assert "    opened: note: reads the file future.csv" in shown.out
    assert "strategy oracles:Reversal" in shown.out
    assert "Reversal" not in shown.err


# --- what a user's code opens is reported; code, what libraries read while imported, and what others open are not


def seen(function: Callable[[], object]) -> list[str]:
    """What a call opens."""
    opened = OpenedFiles()
    opened.watch("it", function)
    return list(opened.found["it"])


def test_files_are_reported_as_they_were_named_each_once(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    assert seen(lambda: path.write_text("x")) == [f"writes the file {path}"]
    assert seen(lambda: [path.read_text(), path.read_bytes(), os.close(os.open(path, os.O_RDONLY))]) == [
        f"reads the file {path}"
    ]
    np.save(tmp_path / "a.npy", np.zeros(3))
    assert seen(lambda: np.load(tmp_path / "a.npy", mmap_mode="r")) == [f"reads the file {tmp_path / 'a.npy'}"]


def test_what_is_opened_after_a_watched_call_is_nobodys_even_where_it_raised(tmp_path: Path) -> None:
    opened = OpenedFiles()
    opened.watch("it", lambda: None)
    with pytest.raises(ZeroDivisionError):
        opened.watch("it", lambda: 1 / 0)
    (tmp_path / "a.txt").write_text("x")
    assert opened.found == {"it": {}}


def test_what_a_users_module_reads_at_its_import_is_reported_but_not_what_a_library_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Modules themselves are code; a data set that a library ships is reported where it is read later."""
    read, reads = f"open({str(tmp_path / 'data.txt')!r}).read()", [f"reads the file {tmp_path / 'data.txt'}"]
    sources = {"plain": "import json\n", "of_a_user": f"import plain\nDATA = {read}\n"}
    sources["of_a_library"] = f"SETTINGS = {read}\n\n\ndef later():\n    return {read}\n"
    for name, source in {"data.txt": "x", **{f"{name}.py": source for name, source in sources.items()}}.items():
        (tmp_path / name).write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert seen(lambda: importlib.import_module("plain")) == []
    assert seen(lambda: importlib.import_module("of_a_user")) == reads
    monkeypatch.setattr(opened_files, "_LIBRARIES", (str(tmp_path),))
    assert seen(lambda: importlib.import_module("of_a_library")) == []
    assert seen(sys.modules["of_a_library"].later) == reads
    for name in sources:
        sys.modules.pop(name)


def test_connections_and_programs_are_reported() -> None:
    def refused(call: Callable[[], object]) -> None:
        with contextlib.suppress(OSError):
            call()

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        host = f"127.0.0.1:{taken.getsockname()[1]}"
        connects = seen(lambda: refused(lambda: socket.create_connection(taken.getsockname(), timeout=0.1)))
        asks = seen(lambda: refused(lambda: urllib.request.urlopen(f"http://{host}/prices", timeout=0.1)))
    assert connects == [f"connects to {host}"]
    assert asks[0] == f"asks for http://{host}/prices"
    assert f"runs {sys.executable}" in seen(lambda: subprocess.run([sys.executable, "-c", ""], check=True))


def returns(seed: int = 0, rows: int = 800, assets: int = 6) -> FloatArray:
    return 0.01 * np.random.default_rng(seed).standard_normal((rows, assets))


def one_hot(places: IntArray, assets: int = 6) -> FloatArray:
    return np.eye(assets)[places]


def test_the_score_of_one_asset_is_its_rank_whatever_the_ties_of_the_others() -> None:
    moves = returns()
    best, worst = one_hot(moves.argmax(axis=1)), one_hot(moves.argmin(axis=1))
    for sizes, value in ((best, 1.0), (worst, -1.0)):
        whole, *blocks = scores_of(View("picks", sizes), UnknownReturns.of("returns", moves), 0, FLOOR)
        assert whole.value == pytest.approx(value, abs=0.05)  # less the placebos' mean, which is luck alone
        assert len(blocks) == 8
        assert [row for block in blocks for row in block.rows] == list(whole.rows) == list(range(800))


def test_of_ranks_it_is_spearmans_correlation_less_that_of_other_dates() -> None:
    moves = returns()
    signal = moves + 2.0 * returns(1)
    whole = scores_of(View("signal", ranks_of(signal)), UnknownReturns.of("returns", moves), 0, FLOOR)[0]
    pairs = zip(signal, moves, strict=True)
    mean = np.mean([scipy.stats.spearmanr(left, right).statistic for left, right in pairs])
    tilt = np.mean(np.sum(ranks_of(signal) * ranks_of(moves).mean(axis=0), axis=1)) / np.sum(ranks_of(moves)[0] ** 2)
    assert whole.value == pytest.approx(mean - tilt, abs=1e-9)


def test_a_lasting_tilt_to_what_rises_foretells_no_date() -> None:
    moves = returns() + np.linspace(-0.01, 0.01, 6)
    held = np.tile(np.eye(6)[5], (800, 1))
    assert abs(scores_of(View("held", held), UnknownReturns.of("returns", moves), 0, FLOOR)[0].value) < 1e-12


def test_the_spread_of_the_placebos_is_that_of_luck() -> None:
    """A hundred pickers without knowledge: their scores vary as the placebos of one of them."""
    moves, rng = returns(), np.random.default_rng(5)
    outcome = UnknownReturns.of("returns", moves)
    lucky = [scores_of(View("luck", one_hot(rng.integers(0, 6, 800))), outcome, 0, FLOOR)[0] for _ in range(100)]
    deviation = float(np.std([score.value for score in lucky]))
    assert np.mean([score.spread for score in lucky]) == pytest.approx(deviation, rel=0.25)  # of 100: 7 % each
    assert all(score.share == 0.0 for score in lucky)


def test_few_trades_that_outweigh_all_others_prove_nothing() -> None:
    """Two large trades against a lasting drift, on the rare days when it pauses, were taken for foreknowledge."""
    moves = returns() + np.linspace(-0.03, 0.03, 6)
    sizes = 1e-3 * one_hot(np.zeros(800, dtype=np.int64))
    sizes[[150, 350]] = one_hot(moves[[150, 350]].argmax(axis=1))
    found = scores_of(View("trades", sizes), UnknownReturns.of("returns", moves), 0, FLOOR)
    assert len(found) == 6  # the two blocks with those trades are left out, and so are all decisions together
    assert not any(row in score.rows for score in found for row in (150, 350))


@pytest.mark.parametrize("kind", ["lognormal", "mean-reverting"])
def test_the_optimal_policy_of_a_planted_market_is_not_flagged(kind: str) -> None:
    keys = {"market.source": "synthetic", "market.synthetic.kind": kind, "market.synthetic.bars": 2000}
    windows = {"market.train_end": "2018-12-31", "market.validation_end": "2020-12-31"}
    quick = {"features.filters": "none", "features.regimes": False}
    config = load_config(None, {**keys, **windows, **quick}, environ={})
    data, optimum = prepare(config), optimum_of(config.market, config.env)
    window, test = range(data.split.train_end, data.split.test_end), Foreknowledge(data.panel.close)
    assert list(test.scores(*decided_views(data.held_out_process(), window, optimum.policy))) == []
    assert list(test.scores(*decided_views(data.held_out_process(), window, EqualWeight()))) == []
    limits = [test.limit(0, 1, False), test.limit(0, 5, False)]
    # What can be foretold of a market from its past raises the limit, and only there.
    assert all(limit >= FLOOR for limit in limits)
    if kind == "mean-reverting":
        assert limits[0] > 1.5 * FLOOR
