"""Each fault planted in a part of finflow is caught by the audit of a configuration, and the part is named."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from finflow.env import decision_process as decision
from finflow.env.decision_process import DecisionProcess
from finflow.ledger.accounting import drift
from finflow.market.features import feature_set as features
from finflow.market.panel import MarketPanel, Split, split_panel
from finflow.market.sources import panel_loader as sources
from finflow.offline.collection import Behaviour
from finflow.training.audit import audit_subjects as audited, configuration_audit as auditing
from finflow.training.audit.configuration_audit import audit_configuration
from finflow.training.audit.look_ahead import FOREKNOWLEDGE, verdict_of
from finflow.training.data import training_data
from finflow.training.data.replay import MarketTensors
from finflow.training.data.training_data import TrainingData
from tests.short_trainings import FEW_EPISODES, write_market
from tests.training.test_auditing import bad
from tests.training.whole_trainings import Make, checkpoint_of, train_through

pytestmark = pytest.mark.usefixtures("smaller_audit")
#: Of windows for 520 bars.
ENDS = {"market__train_end": "2010-12-31", "market__validation_end": "2011-02-28"}


def _full_sample_scaling(monkeypatch: pytest.MonkeyPatch) -> None:
    real = features.fit_features

    def scaled_by_all_bars(panel: Any, fit_until: int, chosen: Any) -> Any:
        raw, fitted = real(panel, fit_until, chosen)
        return raw, features.Fitted(*fitted[:3], *real(panel, panel.n_bars, chosen)[1][3:])

    monkeypatch.setattr(features, "fit_features", scaled_by_all_bars)


def _moments_of_validation(monkeypatch: pytest.MonkeyPatch) -> None:
    real = training_data.equal_weight_moments
    monkeypatch.setattr(
        training_data,
        "equal_weight_moments",
        lambda panel, fill, bars: real(panel, fill, range(bars.start, panel.n_bars)),
    )


def _nothing_is_hidden_from_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_data, "visible", lambda panel, split: panel)


def _family_shifted(monkeypatch: pytest.MonkeyPatch) -> None:
    real = audited.family_tables
    moved = {"momentum": -1}
    for module in ("finflow.training.audit.audit_subjects", "finflow.offline.collection"):
        monkeypatch.setattr(
            f"{module}.family_tables", lambda panel, name: np.roll(real(panel, name), moved.get(name, 0), axis=1)
        )


def _observation_of_the_fill_bar(monkeypatch: pytest.MonkeyPatch, lags: Container[int] = (0, 1, 2)) -> None:
    real = DecisionProcess.observe

    def late(self: DecisionProcess, state: Any) -> Any:
        seen = real(self, state)
        return {**seen, "market": self.market_features[state.bar]} if self.lag in lags else seen

    monkeypatch.setattr(DecisionProcess, "observe", late)


def _observation_of_the_fill_bar_at_lag_2(monkeypatch: pytest.MonkeyPatch) -> None:
    _observation_of_the_fill_bar(monkeypatch, (2,))


def _portfolio_of_the_fill_bar(monkeypatch: pytest.MonkeyPatch) -> None:
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
    real = Behaviour._aims

    def late(self: Behaviour, *given: Any) -> Any:
        aims, state = real(self, *given), given[0]
        rule = self.source < 5
        aims[rule] = self.tables[self.source[rule], self.variant[rule], state.bar[rule]]
        return aims

    monkeypatch.setattr(Behaviour, "_aims", late)


def _growth_of_the_next_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    real = decision.growth_of
    monkeypatch.setattr(decision, "growth_of", lambda panel, fill: np.roll(real(panel, fill), -1, axis=0))


def _paid_for_the_way_to_the_fill(monkeypatch: pytest.MonkeyPatch) -> None:
    """The return that ends at the fill is paid, not the one that begins there: a fill at the bar before."""
    real = decision._rows

    def early(table: Any, state: Any) -> Any:
        if table.shape[1] == state.weights.shape[-1]:  # growth alone has a column for cash
            state = dataclasses.replace(state, bar=state.bar - 1)
        return real(table, state)

    monkeypatch.setattr(decision, "_rows", early)


def _through_the_door(change: Callable[[pd.DataFrame], pd.DataFrame]) -> Callable[[pytest.MonkeyPatch], None]:
    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        real = sources.assemble

        def changed(prices: Any, config: Any) -> Any:
            tables = {name: change(frame) for name, frame in prices.tables.items()}
            return real(prices._replace(tables=tables), config)

        monkeypatch.setattr(sources, "assemble", changed)

    return plant


_back_filled = _through_the_door(lambda frame: frame.bfill(limit=3))
_interpolated = _through_the_door(lambda frame: frame.interpolate(limit_area="inside"))
_over_the_last_price = _through_the_door(lambda frame: frame / frame.ffill().iloc[-1])


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
        scaled = features.compute_features(self.panel, self.split.test_end, self.config.features)
        return DecisionProcess(self.panel, scaled, self.config.env, self.config.objectives, self.moments)

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


def _ask_no_further_than(named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out of an audit what rests on a part: it comes after the part, and does not change who is named first."""
    real, kept = auditing.audit, list[str]()

    def audit(panel: Any, components: Any, *given: Any) -> Any:
        names = [component.name for component in components]
        kept.extend(() if kept else names[: names.index(named) + 1])
        return real(panel, [component for component in components if component.name in kept], *given)

    monkeypatch.setattr(auditing, "audit", audit)
    monkeypatch.setattr(auditing.AuditedForeknowledge, "of_features", lambda foreknowledge: ())


@pytest.mark.parametrize(
    ("plant", "named"),
    [
        (_full_sample_scaling, "features"),
        (_moments_of_validation, "training"),
        (_nothing_is_hidden_from_training, "training"),
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
        (_winsorised_in_the_panel, "panel"),
        (_a_bar_too_many_in_training, "training"),
        (_held_out_scaled_on_the_test_window, "evaluation"),
        (_learning_without_lag, "replay"),
        (_rewards_of_the_next_decision, "behaviour data"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_fault_in_a_part_is_caught_and_named(
    plant: Callable[[pytest.MonkeyPatch], None], named: str, tiny: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_market(tmp_path / "prices.csv", bars=520)
    config = tiny(**FEW_EPISODES, **ENDS, market__benchmark="A")
    plant(monkeypatch)
    _ask_no_further_than(named, monkeypatch)
    found = audit_configuration(config)
    assert bad(found)[0] == named
    # A panel that changes what it is given changes it again when it is copied.
    assert str(verdict_of(found)).startswith((f"{named} looks ahead", f"{named} cannot be audited: two runs"))


def test_an_agent_is_audited_with_its_checkpoint(tiny: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of either phase; what the agent rests on is audited without it, too."""
    write_market(tmp_path / "prices.csv", bars=520)
    config, real = tiny(train__offline_episodes=6, train__offline_training_epochs=1, **ENDS), auditing.audit
    trainer = train_through(config)

    def alone(panel: Any, asked: Any, *given: Any) -> Any:
        return real(panel, [one for one in asked if one.name == "agent"], *given)

    monkeypatch.setattr(auditing, "audit", alone)
    for path in (checkpoint_of(trainer, "pretrained"), trainer.run_folder):
        clean = audit_configuration(config, agent=path)
        assert (verdict_of(clean), bad(clean)) == (None, [])
        rows = {one.probe: one.rows for one in clean if one.component == "agent"}
        assert sum(rows.values()) > 100
        assert rows[FOREKNOWLEDGE] > 70
    _observation_of_the_fill_bar(monkeypatch)
    assert "agent" in bad(audit_configuration(config, agent=trainer.run_folder))
