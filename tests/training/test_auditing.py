"""The audit of a whole configuration: clean as shipped, and each fault planted in its parts is caught and named."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from finflow.cli import main
from finflow.config import Config, load_config
from finflow.env.decision_process import DecisionProcess
from finflow.errors import FinflowError, MarketError
from finflow.evaluation.audit.look_ahead import UNPRIMED, Probe
from finflow.evaluation.audit.shocked_panels import SHOCKS
from finflow.market.features import market_features as crisis
from finflow.market.features.feature_set import compute_features
from finflow.market.panel import MarketPanel
from finflow.market.sources import panel_loader as sources
from finflow.market.sources.panel_loader import load_panel
from finflow.market.splits import Split, split_panel
from finflow.strategies.classical import NAMED
from finflow.training.audit import audit_subjects as audited
from finflow.training.audit import configuration_audit as auditing
from finflow.training.audit import single_bar_audit as close_ups
from finflow.training.audit.configuration_audit import Audit, audit_configuration
from finflow.training.data import training_data
from finflow.training.data.replay import MarketTensors
from finflow.training.data.training_data import TrainingData, prepare
from finflow.training.trainer import FinFlowTrainer

BARS_OF, FIRST_PROBES = close_ups.bars_of, auditing.first_probes

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
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A user's module in the working folder."""
    (tmp_path / "mine.py").write_text(OWN, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("mine", None)


@pytest.fixture(autouse=True)
def _a_smaller_audit(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """An audit of seconds: strategies that need no solver, few probes; what needs the whole one asks for it."""
    if "whole_audit" in request.fixturenames:
        return
    few = {name: NAMED[name] for name in ("equal-weight", "buy-and-hold", "momentum")}
    for module in (auditing, audited):
        monkeypatch.setattr(module, "NAMED", few)
    real = auditing.probes_of

    def fewer(split: Split, first_bar: int, lag: int, seed: int) -> tuple[Probe, ...]:
        """Once in training and at the ends of the windows: the same again, the cut and the wildest shock."""
        bars = {split.train_end - 1, split.validation_end - 1, split.test_end - lag - 3}
        kinds, probes = ("repeat", "cut", "replaced"), real(split, first_bar, lag, seed)
        bars.add(min(probe.last for probe in probes))
        return tuple(probe for probe in probes if probe.last in bars and probe.kind in kinds)

    def near(panel: MarketPanel, split: Split, first: int, lag: int, seed: int) -> list[range]:
        """A day in the test window."""
        return [range(split.validation_end + 30, split.validation_end + 31)]

    monkeypatch.setattr(auditing, "probes_of", fewer)
    monkeypatch.setattr(close_ups, "bars_of", near)
    monkeypatch.setattr(auditing, "first_probes", lambda split, lag: ())
    monkeypatch.setattr(audited, "_BEFORE", 5)
    # What the states are fitted on is audited, not how well.
    monkeypatch.setattr(crisis, "_ROUNDS", 10)


@pytest.fixture
def whole_audit() -> None:
    """Asks for every named strategy and probe."""


def bad(found: Audit) -> list[str]:
    """Components that are not clean, in order."""
    return list(dict.fromkeys(finding.component for finding in found.findings if finding.verdict != "clean"))


@pytest.mark.parametrize("lag", [0, 1, 2])
def test_the_configuration_is_clean_at_every_lag(
    tiny: Callable[..., Config], lag: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auditing, "first_probes", FIRST_PROBES)
    found = audit_configuration(tiny(env__execution_lag=lag))
    assert (found.complaint, bad(found)) == (None, [])


@pytest.mark.usefixtures("whole_audit")
def test_the_whole_audit_is_clean_and_reaches_every_part(
    tiny: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(close_ups, "_MONTH", 4)  # a shorter one, for the time of the tests
    found = audit_configuration(tiny())
    assert (found.complaint, bad(found)) == (None, [])
    assert {finding.probe for finding in found.findings} == {*SHOCKS, UNPRIMED}
    assert {f"strategy {name}" for name in NAMED} <= {finding.component for finding in found.findings}
    audited_parts = {finding.component for finding in found.findings}
    assert {"source", "features", "family momentum", "training", "evaluation", "environment, lag 2"} <= audited_parts
    assert {"backtest", "strategy momentum", "strategy buy-and-hold", "behaviour data"} <= audited_parts
    assert all(finding.rows > 0 for finding in found.findings)


def test_ragged_listings_are_clean(tiny: Callable[..., Config], tmp_path: Path) -> None:
    prices = pd.read_csv(tmp_path / "prices.csv", index_col=0)
    prices.iloc[:400, 1] = np.nan
    prices.iloc[600:, 2] = np.nan
    prices.to_csv(tmp_path / "ragged.csv")
    found = audit_configuration(tiny(market__path=str(tmp_path / "ragged.csv"), market__benchmark="A"))
    assert (found.complaint, bad(found)) == (None, [])
    assert "index" in {finding.component for finding in found.findings}


@pytest.mark.usefixtures("own")
def test_a_feature_and_a_strategy_of_ones_own_are_audited(tiny: Callable[..., Config]) -> None:
    found = audit_configuration(tiny(features__extra=["mine:range_of@growth"]), ["mine:Trend"])
    assert found.complaint is None
    assert {"feature mine:range_of", "strategy mine:Trend"} <= {finding.component for finding in found.findings}


@pytest.mark.usefixtures("own")
def test_a_feature_of_ones_own_that_knows_tomorrow_is_named(tiny: Callable[..., Config]) -> None:
    found = audit_configuration(tiny(features__extra=["mine:label"]))
    assert str(found.complaint).startswith("feature mine:label looks ahead")
    assert {"features", "evaluation", "environment, lag 1"} <= set(bad(found))  # it is in all that rests on it


@pytest.mark.usefixtures("own")
def test_a_feature_that_looks_ahead_on_few_days_is_caught_on_one_of_them(
    tiny: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(close_ups, "bars_of", lambda *given: BARS_OF(*given)[2:3])  # a month of the test window
    found = audit_configuration(tiny(features__extra=["mine:mid_month"]))
    assert str(found.complaint).startswith("feature mine:mid_month looks ahead")


@pytest.mark.usefixtures("own")
def test_a_feature_that_knows_of_large_moves_alone_is_caught_without_one(tiny: Callable[..., Config]) -> None:
    found = audit_configuration(tiny(features__extra=["mine:wild"]))
    assert str(found.complaint).startswith("feature mine:wild looks ahead: with the future replaced")


@pytest.mark.skipif(sys.platform in ("darwin", "win32"), reason="processes cannot be copied there")
@pytest.mark.usefixtures("own")
def test_a_feature_that_remembers_the_first_market_it_saw_is_caught(
    tiny: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny(features__extra=["mine:remembered"])
    assert audit_configuration(config).complaint is None
    sys.modules.pop("mine")
    monkeypatch.setattr(auditing, "first_probes", lambda split, lag: (split.train_end - 1,))
    found = audit_configuration(config)
    assert str(found.complaint).startswith("feature mine:remembered looks ahead: with the future unprimed")


@pytest.mark.usefixtures("own")
def test_a_feature_of_the_date_alone_is_clean(tiny: Callable[..., Config]) -> None:
    assert audit_configuration(tiny(features__extra=["mine:weekday"])).complaint is None


@pytest.mark.usefixtures("own")
def test_a_strategy_that_looks_into_the_frames_is_named(tiny: Callable[..., Config]) -> None:
    found = audit_configuration(tiny(), ["mine:Frames", "mine:Trend"])
    assert bad(found) == ["strategy mine:Frames"]


@pytest.mark.usefixtures("own")
def test_a_strategy_that_reads_on_behind_the_prices_finds_nothing(tiny: Callable[..., Config]) -> None:
    assert audit_configuration(tiny(), ["mine:Base"]).complaint is None


@pytest.mark.usefixtures("own")
def test_it_would_be_caught_if_there_were_anything(
    tiny: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("finflow.evaluation.backtest.History.until", lambda self, count: self._source[:count])
    found = audit_configuration(tiny(), ["mine:Base"])
    assert bad(found) == ["backtest", "strategy mine:Base"]
    assert "memory behind prices" in str(found.complaint)


# --- faults planted in finflow's own parts


def _full_sample_scaling(monkeypatch: pytest.MonkeyPatch) -> None:
    from finflow.market.features import feature_set as features

    real = features._fits
    monkeypatch.setattr(features, "_fits", lambda raw, known, first, fit: real(raw, known, first, len(known)))


def _turbulence_of_all_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    from finflow.market.features import feature_set as features

    real = features.turbulence
    monkeypatch.setattr(features, "turbulence", lambda view, fit: real(view, len(view.returns)))


def _fitted_on_validation(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(panel: Any, fit: int, extra: Any = ()) -> Any:
        return compute_features(panel, panel.n_bars, extra)

    monkeypatch.setattr(training_data, "compute_features", late)


def _moments_of_validation(monkeypatch: pytest.MonkeyPatch) -> None:
    real = training_data.equal_weight_moments
    monkeypatch.setattr(
        training_data,
        "equal_weight_moments",
        lambda panel, fill, bars: real(panel, fill, range(bars.start, panel.n_bars)),
    )


def _nothing_is_hidden_from_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_data, "visible", lambda panel, split: panel)


def _prices_back_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    real = sources._assemble

    def filled(tables: Any, facts: Any, config: Any) -> Any:
        smooth = {name: frame.rolling(3, center=True, min_periods=1).mean() for name, frame in tables.items()}
        return real(smooth, facts, config)

    monkeypatch.setattr(sources, "_assemble", filled)


def _family_shifted(monkeypatch: pytest.MonkeyPatch) -> None:
    real = audited.family_tables
    moved = {"momentum": -1}
    for module in ("finflow.training.audit.audit_subjects", "finflow.offline.collection"):
        monkeypatch.setattr(
            f"{module}.family_tables", lambda panel, name: np.roll(real(panel, name), moved.get(name, 0), axis=1)
        )


def _observation_of_the_fill_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    from finflow.env.decision_process import DecisionProcess

    real = DecisionProcess.observe

    def late(self: DecisionProcess, state: Any) -> Any:
        return {**real(self, state), "market": self.market_features[state.bar]}

    monkeypatch.setattr(DecisionProcess, "observe", late)


def _portfolio_of_the_fill_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    from finflow.env.decision_process import DecisionProcess
    from finflow.ledger.accounting import drift

    real = DecisionProcess.observed_portfolio

    def late(self: DecisionProcess, state: Any) -> Any:
        seen = real(self, state).copy()
        seen[:, : self.n_weights] = drift(state.weights, self.growth[state.bar])
        return seen

    monkeypatch.setattr(DecisionProcess, "observed_portfolio", late)


def _prices_of_the_fill_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "finflow.evaluation.backtest.History.until", lambda self, count: self._source[: count + 1].copy()
    )


def _behaviour_without_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    from finflow.offline.collection import Behaviour

    real = Behaviour._aims

    def late(self: Behaviour, state: Any, inside: Any) -> Any:
        aims = real(self, state, inside)
        rule = self.settings.source < 5
        aims[rule] = self.tables[self.settings.source[rule], self.settings.variant[rule], state.bar[rule]]
        return aims

    monkeypatch.setattr(Behaviour, "_aims", late)


def _growth_of_the_next_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    from finflow.env import decision_process as decision

    real = decision.growth_of
    monkeypatch.setattr(decision, "growth_of", lambda panel, fill: np.roll(real(panel, fill), -1, axis=0))


def _paid_for_the_way_to_the_fill(monkeypatch: pytest.MonkeyPatch) -> None:
    """The return that ends at the fill is paid, not the one that begins there: a fill at the bar before."""
    from finflow.env.decision_process import DecisionProcess

    real = DecisionProcess._rows

    def early(self: DecisionProcess, table: Any, state: Any) -> Any:
        if table is self.growth:
            state = dataclasses.replace(state, bar=state.bar - 1)
        return real(self, table, state)

    monkeypatch.setattr(DecisionProcess, "_rows", early)


def _observation_of_the_fill_bar_at_lag_2(monkeypatch: pytest.MonkeyPatch) -> None:
    from finflow.env.decision_process import DecisionProcess

    real = DecisionProcess.observe

    def late(self: DecisionProcess, state: Any) -> Any:
        seen = real(self, state)
        return {**seen, "market": self.market_features[state.bar]} if self.lag == 2 else seen

    monkeypatch.setattr(DecisionProcess, "observe", late)


def _through_the_door(change: Callable[[pd.DataFrame], pd.DataFrame]) -> Callable[[pytest.MonkeyPatch], None]:
    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        real = sources._assemble

        def changed(tables: Any, facts: Any, config: Any) -> Any:
            return real({name: change(frame) for name, frame in tables.items()}, facts, config)

        monkeypatch.setattr(sources, "_assemble", changed)

    return plant


_back_filled = _through_the_door(lambda frame: frame.bfill(limit=3))
_interpolated = _through_the_door(lambda frame: frame.interpolate(limit_area="inside"))
_over_the_last_price = _through_the_door(lambda frame: frame / frame.ffill().iloc[-1])
_winsorised = _through_the_door(lambda frame: frame.clip(frame.quantile(0.01), frame.quantile(0.99), axis=1))


def _winsorised_in_the_panel(monkeypatch: pytest.MonkeyPatch) -> None:
    real = MarketPanel.__post_init__

    def clipped(self: MarketPanel) -> None:
        real(self)
        self._fix("close", np.clip(self.close, *np.nanquantile(self.close, [0.01, 0.99])))

    monkeypatch.setattr(MarketPanel, "__post_init__", clipped)


def _a_bar_too_many_in_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(panel: Any, config: Any) -> Split:
        split = split_panel(panel, config)
        return dataclasses.replace(split, train_end=split.train_end + 1)

    for module in (training_data, auditing):
        monkeypatch.setattr(module, "split_panel", late)


def _held_out_scaled_on_the_test_window(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(self: TrainingData) -> DecisionProcess:
        features = compute_features(self.panel, self.split.test_end, self.config.features.extra)
        return DecisionProcess(self.panel, features, self.config.env, self.config.objectives, self.moments)

    monkeypatch.setattr(TrainingData, "held_out_process", late)


def _learning_without_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    real = MarketTensors.states
    monkeypatch.setattr(MarketTensors, "states", lambda self, bars, *more: real(self, bars + self.lag, *more))


def _rewards_of_the_next_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    real = audited.collect

    def late(*given: Any) -> Any:
        data = real(*given)
        return dataclasses.replace(data, reward=np.roll(data.reward, -1))

    monkeypatch.setattr(audited, "collect", late)


def _index_with_hindsight(monkeypatch: pytest.MonkeyPatch) -> None:
    real = audited.index_backtest

    def late(process: Any, window: Any) -> Any:
        played = real(process, window)
        return None if played is None else dataclasses.replace(played, returns=np.roll(played.returns, -1))

    monkeypatch.setattr(audited, "index_backtest", late)


@pytest.mark.parametrize(
    ("plant", "named"),
    [
        (_full_sample_scaling, "features"),
        (_turbulence_of_all_bars, "features"),
        (_fitted_on_validation, "training"),
        (_moments_of_validation, "training"),
        (_nothing_is_hidden_from_training, "training"),
        (_prices_back_filled, "source"),
        (_family_shifted, "family momentum"),
        (_observation_of_the_fill_bar, "environment, lag 1"),
        (_portfolio_of_the_fill_bar, "environment, lag 1"),
        (_prices_of_the_fill_bar, "backtest"),
        (_behaviour_without_lag, "behaviour data"),
        (_index_with_hindsight, "index"),
        (_growth_of_the_next_bar, "growth"),
        (_paid_for_the_way_to_the_fill, "fill, lag 0"),
        (_observation_of_the_fill_bar_at_lag_2, "environment, lag 2"),
        (_back_filled, "source, listings"),
        (_interpolated, "source, gaps"),
        (_over_the_last_price, "source"),
        (_winsorised, "source"),
        (_winsorised_in_the_panel, "panel"),
        (_a_bar_too_many_in_training, "training"),
        (_held_out_scaled_on_the_test_window, "evaluation"),
        (_learning_without_lag, "replay"),
        (_rewards_of_the_next_decision, "behaviour data"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_fault_in_a_part_is_caught_and_named(
    plant: Callable[[pytest.MonkeyPatch], None],
    named: str,
    tiny: Callable[..., Config],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = tiny(market__benchmark="A")
    plant(monkeypatch)
    found = audit_configuration(config)
    assert bad(found)[0] == named
    # A panel that changes what it is given changes it again when it is copied.
    assert str(found.complaint).startswith((f"{named} looks ahead", f"{named} cannot be audited: asked twice"))


def test_an_agent_is_audited_with_its_checkpoint(tiny: Callable[..., Config], monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny(train__offline_episodes=6, train__offline_training_epochs=1)
    outcome = FinFlowTrainer(config).train_offline()
    clean = audit_configuration(config, agent=outcome.run_folder)
    assert clean.complaint is None
    assert sum(finding.rows for finding in clean.findings if finding.component == "agent") > 100
    _observation_of_the_fill_bar(monkeypatch)
    assert "agent" in bad(audit_configuration(config, agent=outcome.run_folder))


def test_an_agent_from_the_online_phase_is_clean(tiny: Callable[..., Config]) -> None:
    config = tiny(train__offline_episodes=6, train__offline_training_epochs=1)
    trainer = FinFlowTrainer(config)
    trainer.train_iql()
    trainer.finetune()
    found = audit_configuration(config, agent=trainer.run_folder)
    assert (found.complaint, bad(found)) == (None, [])
    assert sum(finding.rows for finding in found.findings if finding.component == "agent") > 100


def test_a_synthetic_market_is_clean(tiny: Callable[..., Config]) -> None:
    windows = {"market__train_end": "2021-09-30", "market__validation_end": "2022-03-31"}
    found = audit_configuration(tiny(market__source="synthetic", market__synthetic__bars=700, **windows))
    assert (found.complaint, bad(found)) == (None, [])


# --- the mode


def test_close_ups_cover_a_month_of_every_window_and_telling_days(tiny: Callable[..., Config]) -> None:
    ready = prepare(tiny())
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


def _arguments(config: Config) -> list[str]:
    market = config.market
    keys = {"market.source": "csv", "market.path": market.path, "market.train_end": market.train_end}
    keys |= {"market.validation_end": market.validation_end, "env.episode_length": 20}
    return [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]


@pytest.mark.usefixtures("own")
def test_the_mode_prints_a_table_and_ends_with_0_when_clean(
    tiny: Callable[..., Config], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--mode", "audit", *_arguments(tiny())]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert shown.out.splitlines()[0].split()[:3] == ["component", "probes", "dates"]
    assert shown.out.rstrip().endswith("nothing looks ahead")


@pytest.mark.usefixtures("own")
def test_the_mode_ends_with_2_and_one_line_that_names_the_leak(
    tiny: Callable[..., Config], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [*_arguments(tiny()), "--strategy", "mine:Frames", "--set", "features.extra=mine:label"]
    assert main(["--mode", "audit", *arguments]) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith("error: feature mine:label looks ahead: with the future ")
    assert "strategy mine:Frames" in shown.err
    assert shown.err.count("\n") == 1
    assert "nothing looks ahead" not in shown.out


# --- features of one's own


@pytest.mark.usefixtures("own")
def test_a_feature_of_ones_own_joins_its_lens(tiny: Callable[..., Config]) -> None:
    plain, one, all_of_them = (
        prepare(tiny(features__extra=extra)) for extra in ([], ["mine:range_of@growth"], ["mine:range_of"])
    )
    size = plain.features.assets.shape[2]
    assert one.features.asset_names[size:] == ("range_of",)
    assert one.shape.n_asset_features == plain.shape.n_asset_features + 1
    assert {lens for lens, columns in one.features.lenses.items() if size in columns} == {"growth"}
    assert all(size in columns for columns in all_of_them.features.lenses.values())
    first, fit = one.features.first_bar, one.split.train_end
    trained = one.features.assets[first:fit, :, size]
    assert abs(float(trained.mean())) < 0.1
    assert 0.5 < float(trained.std()) < 1.1
    np.testing.assert_array_equal(one.features.assets[:, :, :size], plain.features.assets)
    assert one.held_out_process().asset_features.shape[2] == one.process.asset_features.shape[2]


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("mine:narrow", "the feature 'mine:narrow' has the shape (700, 1), not (700, 4)"),
        ("mine:absent", "the feature 'mine:absent' cannot be imported: AttributeError"),
        ("nowhere:label", "the feature 'nowhere:label' cannot be imported: ModuleNotFoundError"),
        ("mine:OWN_NAME", "cannot be imported"),
        ("mine:best", "the feature 'mine:best' failed: TypeError"),
    ],
)
@pytest.mark.usefixtures("own")
def test_a_feature_that_cannot_be_used_is_refused(path: str, words: str, tiny: Callable[..., Config]) -> None:
    config = tiny()
    with pytest.raises(MarketError) as caught:
        compute_features(load_panel(config.market), 500, [path])
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ("label", "package.module:function is needed"),
        ("mine:label@speed", "the lens must be one of volatility, correlation, momentum, defensive, growth"),
        ("mine:label yours:label", "two functions of one name"),
    ],
)
def test_a_wrong_path_is_refused_with_the_configuration(extra: str, words: str) -> None:
    with pytest.raises(FinflowError) as caught:
        load_config(None, {"features.extra": extra}, {})
    assert words in str(caught.value)


@pytest.mark.usefixtures("whole_audit")
def test_probes_spread_over_every_window(tiny: Callable[..., Config]) -> None:
    ready = prepare(tiny())
    probes = auditing.probes_of(ready.split, ready.features.first_bar, 1, seed=0)
    bars = {probe.last for probe in probes}
    assert {ready.split.train_end - 1, ready.split.validation_end - 1, ready.split.test_end - 4} <= bars
    assert any(bar < ready.split.train_end - 1 for bar in bars)
    assert any(ready.split.validation_end <= bar < ready.split.test_end - 4 for bar in bars)
    assert auditing.probes_of(ready.split, ready.features.first_bar, 1, seed=1) != probes
