"""A user's own features of the market, (bars,), and rewards of a user's own: scaled and audited like the others."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from finflow.config import FeaturesConfig
from finflow.errors import MarketError
from finflow.market.features.feature_set import compute_features
from finflow.market.sources.panel_loader import load_panel
from finflow.market.splits import split_panel
from finflow.training.audit.audit_subjects import AuditSubjects
from finflow.training.audit.configuration_audit import audit_configuration
from finflow.training.audit.look_ahead import Probe, audit, verdict_of
from finflow.training.data.training_data import prepare
from tests.short_trainings import FEW_EPISODES
from tests.training.whole_trainings import Make

OWN = '''
import numpy as np


def swing(panel):
    """Causal: mean size of the bar's moves."""
    result = np.full(panel.n_bars, np.nan)
    result[1:] = np.abs(panel.close[1:] / panel.close[:-1] - 1.0).mean(axis=1)
    return result


def ahead(panel):
    """Tomorrow's swing."""
    return np.append(swing(panel)[1:], 0.0)


def breadth(panel):
    return swing(panel)
'''


REWARDS = "tests.env.rewards.own_rewards"


@pytest.fixture(autouse=True)
def _own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "wide.py").write_text(OWN, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("wide", None)


def test_it_joins_the_market_and_leaves_the_assets_alone(tiny: Make) -> None:
    plain, own = prepare(tiny()), prepare(tiny(features__extra=["wide:swing"]))
    assert own.features.market_names == (*plain.features.market_names, "swing")
    assert own.shape.n_market_features == plain.shape.n_market_features + 1
    assert own.shape.n_asset_features == plain.shape.n_asset_features
    np.testing.assert_array_equal(own.features.market[:, :-1], plain.features.market)
    np.testing.assert_array_equal(own.features.assets, plain.features.assets)
    trained = own.features.market[own.features.first_bar : own.split.train_end, -1]
    assert abs(float(trained.mean())) < 0.1
    assert 0.5 < float(trained.std()) < 1.1


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("wide:swing@growth", "is of the market, which every expert reads; leave @growth out"),
        ("wide:breadth", "features.extra has a feature 'breadth', and so has finflow"),
    ],
)
def test_one_that_cannot_be_used_is_refused(path: str, words: str, tiny: Make) -> None:
    with pytest.raises(MarketError, match=words):
        compute_features(load_panel(tiny().market), 500, FeaturesConfig(extra=(path,)))


@pytest.mark.parametrize(("name", "clean"), [("swing", True), ("ahead", False)])
def test_it_is_audited(name: str, clean: bool, tiny: Make) -> None:
    config = tiny(features__extra=[f"wide:{name}"])
    panel = load_panel(config.market)
    subjects = AuditSubjects(panel, config, split_panel(panel, config.market))
    parts = [part for part in subjects.of_market() if part.name in (f"feature wide:{name}", "features")]
    assert len(parts) == 2
    probes = [Probe(last, kind) for last in (500, 640) for kind in ("cut", "replaced", "relisted")]
    complaint = verdict_of(audit(panel, parts, probes))
    if clean:
        assert complaint is None
    else:
        assert str(complaint).startswith("feature wide:ahead looks ahead")


@pytest.mark.usefixtures("smaller_audit")
def test_a_reward_that_declares_too_short_a_horizon_is_caught(tiny: Make) -> None:
    """Its table holds the return over five bars; it says that it needs one."""
    found = audit_configuration(tiny(**FEW_EPISODES, objectives__reward=f"{REWARDS}:Forecast"))
    assert found.complaint is not None
    assert f"reward {REWARDS}:Forecast" in found.complaint


@pytest.mark.usefixtures("smaller_audit")
def test_rewards_that_say_how_far_they_look_are_clean(tiny: Make) -> None:
    names = ["builtin", "ranking", f"{REWARDS}:HonestForecast", f"{REWARDS}:ReturnOverThree"]
    rewards = [{"name": name} for name in names]
    found = audit_configuration(tiny(**FEW_EPISODES, objectives__ranking__k=2, objectives__rewards=rewards))
    assert found.complaint is None
    rows = {finding.component: finding.rows for finding in found.findings}
    assert all(rows[f"reward {name}"] > 0 for name in names[1:])
