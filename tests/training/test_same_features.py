"""An agent reads the features that it was trained on: a market that gives others is refused by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from finflow.config import FeaturesConfig
from finflow.errors import CheckpointError
from finflow.market.features.asset_features import HALF_LIVES
from finflow.market.features.feature_set import compute_features
from finflow.market.panel import MarketPanel
from finflow.market.sources.panel_loader import load_panel
from finflow.training.audit.audit_subjects import AuditSubjects
from finflow.training.checkpoints.checkpoint_reader import Checkpoint, check_same_features, feature_names
from finflow.training.data import training_data
from finflow.training.data.training_data import prepare
from finflow.training.judging.agent_strategy import load_agents
from finflow.training.judging.evaluations import evaluate_agents
from finflow.training.trainer import FinFlowTrainer
from tests.training.whole_trainings import Make

FIT = 500


def with_fields(panel: MarketPanel) -> MarketPanel:
    """The same closes, with the rest of a day drawn around them."""
    rng = np.random.default_rng(0)

    def drawn(scale: float) -> NDArray[np.float64]:
        return rng.standard_normal(panel.close.shape) * scale

    opens = panel.close * np.exp(drawn(0.004))
    high = np.maximum(opens, panel.close) * np.exp(np.abs(drawn(0.004)))
    low = np.minimum(opens, panel.close) * np.exp(-np.abs(drawn(0.004)))
    return replace(panel, open=opens, high=high, low=low, volume=np.round(np.exp(12.0 + drawn(0.5))))


def checkpoint(**facts: Any) -> Checkpoint:
    return Checkpoint(Path("agent.safetensors"), {}, facts, None, 2)


def test_an_agent_of_volumes_refuses_a_market_of_closes(
    tiny: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, real = tiny(), load_panel
    with monkeypatch.context() as patched:
        patched.setattr(training_data, "load_panel", lambda market: with_fields(real(market)))
        trainer = FinFlowTrainer(config)
        trainer.train_iql()
        saved = trainer.run_folder / "models" / "checkpoint_latest.safetensors"
        assert {"money_flow_21", "parkinson_21"} <= set(trainer.training_data.features.asset_names)
    with pytest.raises(CheckpointError, match=r"this market lacks parkinson_21, .*use prices with the same fields"):
        evaluate_agents(load_agents([saved], {}), tmp_path / "refused")
    assert not (tmp_path / "refused").exists()


def test_names_are_compared_and_not_only_counted(tiny: Make) -> None:
    panel = load_panel(tiny().market)
    plain, full = compute_features(panel, FIT), compute_features(with_fields(panel), FIT)
    names = feature_names(plain)
    check_same_features(checkpoint(features=names), plain)
    with pytest.raises(CheckpointError, match=r"has parkinson_21, .* beside"):
        check_same_features(checkpoint(features=names), full)
    filtered = feature_names(compute_features(panel, FIT, FeaturesConfig(filters="all")))
    with pytest.raises(CheckpointError, match=r"lacks relative_average_0.7, .*and features.filters"):
        check_same_features(checkpoint(features=filtered), plain)
    renamed = {**names, "market": [*names["market"][:-1], "mine"]}
    with pytest.raises(CheckpointError, match=r"this market lacks mine and has crisis beside"):
        check_same_features(checkpoint(features=renamed), plain)
    swapped = {**names, "assets": names["assets"][::-1]}
    with pytest.raises(CheckpointError, match="in another order"):
        check_same_features(checkpoint(features=swapped), plain)
    with pytest.raises(CheckpointError, match="does not say which features"):
        check_same_features(checkpoint(shape={}), plain)


@pytest.mark.usefixtures("quick_reports")
def test_an_agent_is_trained_on_filters_and_judged_on_them(tiny: Make, tmp_path: Path) -> None:
    trainer = FinFlowTrainer(tiny(features__filters="momentum"))
    trainer.train_iql()
    names = trainer.training_data.features.asset_names
    assert [name for name in names if name.startswith("relative_average_")] == list(names[-len(HALF_LIVES) :])
    saved = trainer.run_folder / "models" / "checkpoint_latest.safetensors"
    evaluate_agents(load_agents([saved], {}), tmp_path / "judged")
    assert (tmp_path / "judged").exists()


def test_the_audit_asks_the_filters_before_and_after_scaling(tiny: Make) -> None:
    config = tiny(features__filters="all")
    data = prepare(config)
    subjects = AuditSubjects(data.panel, config, data.split, near=True)
    component = next(one for one in subjects.of_features() if one.name == "features")
    names = {f"relative_average_{half_life:g}" for half_life in HALF_LIVES}
    assert {*names, *(f"raw {name}" for name in names)} <= set(component.answer(data.panel, 600))
