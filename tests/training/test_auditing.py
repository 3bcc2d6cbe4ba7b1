"""The audit of a whole configuration: clean as shipped, and what a user adds is audited with it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from finflow.cli import main
from finflow.cli.output import show_audit
from finflow.config import FeaturesConfig, dump_config, load_config
from finflow.errors import FinflowError, MarketError
from finflow.market.features.feature_set import compute_features
from finflow.market.sources.panel_loader import load_panel
from finflow.strategies.classical import NAMED, EqualWeight
from finflow.training.audit import configuration_audit as auditing
from finflow.training.audit.audit_subjects import AuditSubjects
from finflow.training.audit.configuration_audit import audit_configuration
from finflow.training.audit.look_ahead import FOREKNOWLEDGE, LEAK, NOTED, Finding, Probe, verdict_of
from finflow.training.audit.shocked_panels import CUT, SHOCKS, UNPRIMED
from finflow.training.data.training_data import prepare
from tests.commands import refusal
from tests.short_trainings import FEW_EPISODES, write_market
from tests.training.whole_trainings import Make

pytestmark = pytest.mark.usefixtures("smaller_audit")
REWARDS = "tests.env.rewards.own_rewards"
BARS_OF, PROBES_OF, UNPRIMED_OF = auditing.single_bars, auditing.probes_of, auditing.unprimed

OWN = '''
import sys

import numpy as np

from finflow.strategies.classical import EqualWeight


def range_of(panel):
    """Causal: the range of the last bar, in units of the close."""
    result = np.full(panel.close.shape, np.nan)
    result[1:] = np.abs(panel.close[1:] / panel.close[:-1] - 1.0)
    return result


def label(panel):
    """Tomorrow's return."""
    result = np.zeros(panel.close.shape)
    result[:-1] = np.nan_to_num(panel.close[1:] / panel.close[:-1] - 1.0)
    return result


def narrow(panel):
    return panel.close[:, :1]


def best(prices, n):
    weights = np.zeros(n + 1)
    weights[int(np.argmax(prices))] = 1.0
    return weights


class Base:
    """Reads on in the memory behind the prices."""

    name = "base"

    def decide(self, information):
        prices = information.prices
        behind = prices if prices.base is None else prices.base
        ahead = behind[len(prices) : len(prices) + 1]
        if len(ahead) == 0 or not np.isfinite(ahead).all():
            return information.portfolio
        return best(ahead[0] / prices[-1], prices.shape[1])


def mid_month(panel):
    """Yesterday's return, and tomorrow's on a few days in the middle of each month."""
    result = np.zeros(panel.close.shape)
    result[1:] = np.nan_to_num(panel.close[1:] / panel.close[:-1] - 1.0)
    days = (panel.dates - panel.dates.astype("datetime64[M]")).astype(int)
    chosen = np.flatnonzero((days >= 12) & (days <= 14))
    chosen = chosen[chosen < len(days) - 1]
    honest = result.copy()
    result[chosen] = honest[chosen + 1]
    return result


def wild(panel):
    """Whether something large happens tomorrow, as it does on few days."""
    result = np.zeros(panel.close.shape)
    moves = np.abs(np.nan_to_num(panel.close[1:] / panel.close[:-1] - 1.0))
    result[:-1] = moves > 0.09
    return result + panel.close / 1e3


KEPT = {}


def remembered(panel):
    """Full-sample ranks of the first market that it ever saw from this date on."""
    if panel.dates[0] not in KEPT:
        level = np.log(panel.close)
        KEPT[panel.dates[0]] = level / level.std()
    return KEPT[panel.dates[0]][: len(panel.close)]


def weekday(panel):
    """Causal: of the date alone."""
    days = panel.dates.astype(int) % 7
    return np.repeat(days[:, None], panel.close.shape[1], axis=1)


def swing(panel):
    """Causal, and of the market: mean size of the bar's moves."""
    result = np.full(panel.n_bars, np.nan)
    result[1:] = np.abs(panel.close[1:] / panel.close[:-1] - 1.0).mean(axis=1)
    return result


def ahead(panel):
    """Tomorrow's swing."""
    return np.append(swing(panel)[1:], 0.0)


def breadth(panel):
    return swing(panel)


class Frames:
    """Finds the market in the frame of whoever asked."""

    name = "frames"

    def decide(self, information):
        frame = sys._getframe()
        while "process" not in frame.f_locals:
            frame = frame.f_back
        close, bar = frame.f_locals["process"].panel.close, len(information.prices)
        return best(close[min(bar, len(close) - 1)] / information.prices[-1], close.shape[1])


class Trend:
    """Honest: yesterday's winner."""

    name = "trend"

    def decide(self, information):
        prices = information.prices
        return best(prices[-1] / prices[-2], prices.shape[1])
'''


@pytest.fixture
def tiny(tiny: Make, tmp_path: Path) -> Make:
    """Makes tiny configurations with few bars and episodes."""
    write_market(tmp_path / "prices.csv", bars=520)
    ends = {"market__train_end": "2010-12-31", "market__validation_end": "2011-02-28"}
    return lambda **changes: tiny(**{**FEW_EPISODES, **ends, **changes})


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A user's module in the working folder."""
    (tmp_path / "mine.py").write_text(OWN, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("mine", None)


@pytest.fixture
def whole_audit() -> None:
    """Asks for every named strategy and probe."""


def one_of_each_kind(*given: Any) -> tuple[Probe, ...]:
    """The first probe of each kind; two of those that find most."""
    probes = PROBES_OF(*given)
    chosen = {kind: [one for one in probes if one.kind == kind] for kind in SHOCKS}
    return tuple(one for one in probes if one in chosen[one.kind][: 2 if one.kind in (CUT, "replaced") else 1])


def bad(found: Sequence[Finding]) -> list[str]:
    """Components that are not clean, in order."""
    return list(dict.fromkeys(finding.component for finding in found if finding.verdict != "clean"))


@pytest.mark.parametrize(("lag", "market"), [(0, "ragged"), (2, "synthetic")])  # the whole audit below has a lag of 1
def test_the_configuration_is_clean_at_every_lag(
    tiny: Make, lag: int, market: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auditing, "unprimed", UNPRIMED_OF)
    prices = pd.read_csv(tmp_path / "prices.csv", index_col=0)
    prices.iloc[:370, 1] = np.nan
    prices.iloc[480:, 2] = np.nan
    prices.to_csv(tmp_path / "ragged.csv")
    keys: dict[str, object] = {"market__path": str(tmp_path / "ragged.csv"), "market__benchmark": "A"}
    if market == "synthetic":
        keys = {"market__source": "synthetic", "market__synthetic__bars": 700}
        keys |= {"market__train_end": "2021-09-30", "market__validation_end": "2022-03-31"}
    found = audit_configuration(tiny(env__execution_lag=lag, **keys))
    assert (verdict_of(found), bad(found)) == (None, [])
    assert ("index" in {finding.component for finding in found}) == (market == "ragged")


def test_a_cut_market_has_the_decisions_before_the_cut_whatever_the_rhythm(tiny: Make) -> None:
    """A run of a single decision could not be played there, and its absence was taken for a leak."""
    data = prepare(tiny(env__execution_lag=0, evaluation__rebalance_every=1))
    subjects = AuditSubjects(data.panel, data.config, data.split)
    ask = next(one.answer for one in subjects.of_decisions({"equal": EqualWeight}) if one.name == "equal")
    for last in range(data.split.train_end, data.split.train_end + 12):  # the rhythm is drawn for each
        whole, cut = ask(data.panel, last), ask(data.panel.until(last + 1), last)
        for name, rows in whole.items():
            known = rows.bars[rows.bars < last]
            assert not len(known) or set(known) <= set(cut[name].bars), name


@pytest.mark.usefixtures("whole_audit")
def test_the_whole_audit_is_clean_and_reaches_every_part(tiny: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auditing, "_MONTH", 2)  # shorter ones and fewer days, for the time of the tests
    monkeypatch.setattr(auditing, "single_bars", lambda *given: BARS_OF(*given)[:5])
    monkeypatch.setattr(auditing, "probes_of", one_of_each_kind)
    found = audit_configuration(tiny())
    assert (verdict_of(found), bad(found)) == (None, [])
    assert {finding.probe for finding in found} == {*SHOCKS, UNPRIMED, FOREKNOWLEDGE}
    assert {f"strategy {name}" for name in NAMED} <= {finding.component for finding in found}
    audited_parts = {finding.component for finding in found}
    assert {"source", "features", "family momentum", "training", "evaluation", "environment, lag 2"} <= audited_parts
    assert {"backtest", "strategy momentum", "strategy buy-and-hold", "behaviour data"} <= audited_parts
    assert all(finding.rows > 0 for finding in found)


@pytest.mark.usefixtures("own")
def test_features_and_strategies_of_ones_own_are_audited_and_clean_where_they_are_causal(tiny: Make) -> None:
    """Of the features one is of the date alone, one of the market; a strategy reads the memory behind the prices."""
    features = ["mine:range_of@growth", "mine:weekday", "mine:swing"]
    found = audit_configuration(tiny(features__extra=features), ["mine:Trend", "mine:Base"])
    assert verdict_of(found) is None
    own = {*(f"feature {path.partition('@')[0]}" for path in features), "strategy mine:Trend", "strategy mine:Base"}
    assert own <= {finding.component for finding in found}


@pytest.mark.usefixtures("own")
def test_features_of_ones_own_that_look_ahead_are_named(tiny: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """On every day, of assets and of the market, on few days, and before large moves alone."""
    monkeypatch.setattr(auditing, "single_bars", lambda *given: BARS_OF(*given)[2:3])  # a month of the test window
    features = ["mine:label", "mine:ahead", "mine:mid_month", "mine:wild"]
    found = audit_configuration(tiny(features__extra=features))
    assert str(verdict_of(found)).startswith("feature mine:label looks ahead")
    named = set(bad(found))
    assert {f"feature {name}" for name in features} <= named
    assert {"features", "evaluation", "environment, lag 1"} <= named  # a feature is in all that rests on it
    wild = [one.probe for one in found if one.component == "feature mine:wild" and one.verdict != "clean"]
    assert "replaced" in wild  # there is no large move to come in the market itself


@pytest.mark.skipif(sys.platform in ("darwin", "win32"), reason="processes cannot be copied there")
@pytest.mark.usefixtures("own")
def test_a_feature_that_remembers_the_first_market_it_saw_is_caught(
    tiny: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auditing, "unprimed", UNPRIMED_OF)
    found = audit_configuration(tiny(features__extra=["mine:remembered"]))
    assert str(verdict_of(found)).startswith("feature mine:remembered looks ahead: with the future unprimed")


@pytest.mark.usefixtures("own")
def test_it_would_be_caught_if_there_were_anything(tiny: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("finflow.evaluation.backtest.History.until", lambda self, count: self._source[:count])
    found = audit_configuration(tiny(), ["mine:Base"])
    assert bad(found) == ["backtest", "strategy mine:Base"]
    assert "memory behind prices" in str(verdict_of(found))


def test_a_test_window_that_ends_inside_the_data_is_clean(tiny: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prices that a probe cuts end long before the configured end of the test window."""
    monkeypatch.setattr(auditing, "probes_of", lambda split, *_: (Probe(split.validation_end + 3, CUT),))
    found = audit_configuration(tiny(market__test_end="2011-05-13"))
    assert (verdict_of(found), bad(found)) == (None, [])
    assert "evaluation" in {finding.component for finding in found}


def test_a_reward_that_declares_too_short_a_horizon_is_caught(tiny: Make) -> None:
    """Its table holds the return over five bars; it says that it needs one."""
    found = audit_configuration(tiny(objectives__reward=f"{REWARDS}:Forecast"))
    assert f"reward {REWARDS}:Forecast" in str(verdict_of(found))


def test_rewards_that_say_how_far_they_look_are_clean(tiny: Make) -> None:
    names = ["builtin", "ranking", f"{REWARDS}:HonestForecast", f"{REWARDS}:ReturnOverThree"]
    rewards = [{"name": name} for name in names]
    found = audit_configuration(tiny(objectives__ranking__k=2, objectives__rewards=rewards))
    assert verdict_of(found) is None
    rows = {finding.component: finding.rows for finding in found}
    assert all(rows[f"reward {name}"] > 0 for name in names[1:])


# --- the mode


def test_single_bars_cover_a_month_of_every_window_and_notable_days(tiny: Make, tmp_path: Path) -> None:
    write_market(tmp_path / "prices.csv")  # each window has more than a month
    ready = prepare(tiny(market__train_end="2011-06-30", market__validation_end="2011-10-31"))
    split, panel = ready.split, ready.panel
    bars = BARS_OF(panel, split, 340, 1, 0)
    runs = [run for run in bars if len(run) > 1]
    assert [len(run) for run in runs] == [23, 23, 23]
    for run, window in zip(runs, (split.train, split.validation, split.test), strict=True):
        assert run.start in window
        assert run.stop - 1 in window
    market = np.diff(np.log(panel.close), axis=0).mean(axis=1)  # row t is the move from t to t + 1
    inside = market[340 : split.train_end]
    assert any(340 + int(inside.argmax()) in run for run in bars)
    assert any(340 + int(inside.argmin()) in run for run in bars)


def test_one_leak_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    days = [np.datetime64("2011-01-03") + number for number in range(9)]
    leaks = [Finding("features", kind, tuple(days[at:]), 9, LEAK, 1.0, f"at {at}") for at, kind in enumerate(SHOCKS)]
    show_audit([*leaks[::-1], Finding("features", "opened", (days[0],), 0, NOTED, where="reads a file")])
    first, *others = SHOCKS
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("    ")]
    leak = f"    {first}: LEAK: at 0; and with {', '.join(others)}: 9 dates from 2011-01-03"
    assert said == [leak, "    opened: note: reads a file"]


@pytest.mark.usefixtures("own")
def test_the_mode_prints_a_table_and_ends_with_0_when_clean(tiny: Make, capsys: pytest.CaptureFixture[str]) -> None:
    Path("tiny.yaml").write_text(dump_config(tiny()), "utf-8")
    assert main(["--mode", "audit", "--config", "tiny.yaml"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert shown.out.splitlines()[0].split()[:3] == ["component", "probes", "dates"]
    assert shown.out.rstrip().endswith("nothing looks ahead")


@pytest.mark.usefixtures("own")
def test_the_mode_ends_with_2_and_one_line_that_names_the_leak(tiny: Make, capsys: pytest.CaptureFixture[str]) -> None:
    Path("tiny.yaml").write_text(dump_config(tiny(features__extra=["mine:label"])), "utf-8")
    said = refusal(capsys, "--mode", "audit", "--config", "tiny.yaml", "--strategy", "mine:Frames")
    assert said.startswith("error: feature mine:label looks ahead: with the future ")
    assert "strategy mine:Frames" in said


# --- features of one's own


@pytest.mark.usefixtures("own")
def test_features_of_ones_own_join_their_lens_or_the_market_and_leave_the_others_alone(tiny: Make) -> None:
    extra = [[], ["mine:range_of@growth", "mine:swing"], ["mine:range_of"]]
    plain, own, of_all = (prepare(tiny(features__extra=one)) for one in extra)
    size, first, fit = plain.features.assets.shape[2], own.features.first_bar, own.split.train_end
    assert own.features.asset_names[size:] == ("range_of",)
    assert own.features.market_names == (*plain.features.market_names, "swing")
    assert own.shape.n_asset_features == plain.shape.n_asset_features + 1
    assert own.shape.n_market_features == plain.shape.n_market_features + 1
    assert {lens for lens, columns in own.features.lenses.items() if size in columns} == {"growth"}
    assert all(size in columns for columns in of_all.features.lenses.values())
    for trained in (own.features.assets[first:fit, :, size], own.features.market[first:fit, -1]):
        assert abs(float(trained.mean())) < 0.1
        assert 0.5 < float(trained.std()) < 1.1
    np.testing.assert_array_equal(own.features.assets[:, :, :size], plain.features.assets)
    np.testing.assert_array_equal(own.features.market[:, :-1], plain.features.market)
    assert own.held_out_process().asset_features.shape[2] == own.process.asset_features.shape[2]


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("mine:narrow", "the feature 'mine:narrow' has the shape (520, 1), not (520, 4)"),
        ("mine:absent", "the feature 'mine:absent' cannot be imported: AttributeError"),
        ("nowhere:label", "the feature 'nowhere:label' cannot be imported: ModuleNotFoundError"),
        ("mine:OWN_NAME", "cannot be imported"),
        ("mine:best", "the feature 'mine:best' failed: TypeError"),
        ("mine:swing@growth", "is of the market, which every expert reads; leave @growth out"),
        ("mine:breadth", "features.extra has a feature 'breadth', and so has finflow"),
    ],
)
@pytest.mark.usefixtures("own")
def test_a_feature_that_cannot_be_used_is_refused(path: str, words: str, tiny: Make) -> None:
    config = tiny()
    with pytest.raises(MarketError) as caught:
        compute_features(load_panel(config.market), 500, FeaturesConfig(extra=(path,)))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ("label", "package.module:function is needed"),
        ("mine:label@speed", "the expert must be one of volatility, correlation, momentum, defensive, growth"),
        ("mine:label yours:label", "two functions of one name"),
    ],
)
def test_a_wrong_path_is_refused_with_the_configuration(extra: str, words: str) -> None:
    with pytest.raises(FinflowError) as caught:
        load_config(None, {"features.extra": extra}, {})
    assert words in str(caught.value)


@pytest.mark.usefixtures("whole_audit")
def test_probes_spread_over_every_window(tiny: Make) -> None:
    ready = prepare(tiny())
    probes = auditing.probes_of(ready.split, ready.features.first_bar, 1, seed=0)
    bars = {probe.last for probe in probes}
    assert {ready.split.train_end - 1, ready.split.validation_end - 1, ready.split.test_end - 4} <= bars
    assert any(bar < ready.split.train_end - 1 for bar in bars)
    assert any(ready.split.validation_end <= bar < ready.split.test_end - 4 for bar in bars)
    assert auditing.probes_of(ready.split, ready.features.first_bar, 1, seed=1) != probes
