"""An agent on assets and features of other markets: judged and trained on there, or refused by name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from finflow.agent.learners.bcell import BCell
from finflow.config import AveragingConfig, Config, FeaturesConfig, RewardNormalizationConfig
from finflow.errors import CheckpointError
from finflow.market.features.asset_features import HALF_LIVES
from finflow.market.features.feature_set import compute_features
from finflow.market.panel import MarketPanel
from finflow.market.sources.panel_loader import load_panel
from finflow.tensor_file import read_tensors
from finflow.training.audit.audit_subjects import AuditSubjects
from finflow.training.checkpoints.checkpoint_reader import (
    Checkpoint,
    check_same_features,
    configuration_of,
    feature_names,
    read_checkpoint,
    stored_config,
)
from finflow.training.data import training_data
from finflow.training.data.training_data import prepare
from finflow.training.judging.agent_strategy import load_agents
from finflow.training.judging.evaluations import distance_sections, evaluate_agents
from finflow.training.trainer import FinFlowTrainer
from tests.short_trainings import write_market
from tests.training.whole_trainings import Make, checkpoint_of, tiny_in, train_through

pytestmark = pytest.mark.usefixtures("quick_reports")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[FinFlowTrainer, Path]:
    """An agent that learned on twenty assets, with filters of their returns, and the prices of thirty others."""
    folder = tmp_path_factory.mktemp("assets")
    twenty = write_market(folder / "twenty.csv", seed=1, assets=[f"A{n}" for n in range(20)])
    thirty = write_market(folder / "thirty.csv", seed=2, assets=[f"B{n}" for n in range(30)])
    config = tiny_in(folder)(market__path=str(twenty), features__filters="momentum", train__online_episodes=6)
    return train_through(config), thirty


def elsewhere(trainer: FinFlowTrainer, prices: Path, **changes: object) -> Config:
    """The agent's own configuration, on another market."""
    config = configuration_of(checkpoint_of(trainer, "latest"))
    market = config.market.model_copy(update={"path": prices})
    return config.model_copy(update={"market": market, "train": config.train.model_copy(update=changes)})


def test_it_is_judged_on_thirty_others(trained: tuple[FinFlowTrainer, Path], tmp_path: Path) -> None:
    trainer, thirty = trained
    best = checkpoint_of(trainer, "best")
    outcome = evaluate_agents(load_agents([best], {"market.path": str(thirty)}), tmp_path / "others")
    content = json.loads((outcome.report.parent / "metrics.json").read_text())
    assets = content["attribution"]["finflow"]["assets"]
    assert set(assets) == {f"B{number}" for number in range(30)}
    assert np.isfinite(outcome.summary["finflow"]["sharpe"])
    distance = content["feature_distance"]
    assert 0.0 < distance["outside"] < 0.2
    assert distance["largest"] == max(abs(one["shift"]) for one in distance["features"].values()) > 0.0
    assert {f"relative_average_{half_life:g}" for half_life in HALF_LIVES} <= set(distance["features"])
    assert any("deviations" in line for line in outcome.page.text("feature_distance"))
    own = evaluate_agents(load_agents([best], {}), tmp_path / "own").report.parent
    assert "feature_distance" not in json.loads((own / "metrics.json").read_text())


def test_prices_of_the_training_that_are_gone_are_told(trained: tuple[FinFlowTrainer, Path], tmp_path: Path) -> None:
    trainer, thirty = trained
    agents = load_agents([checkpoint_of(trainer, "best")], {"market.path": str(thirty)})
    checkpoint, data = agents.alone, prepare(agents.config)
    own = stored_config(checkpoint).market.path
    assert own is not None
    moved = own.rename(tmp_path / "moved.csv")
    try:
        (gone,) = distance_sections(checkpoint, data)
        own.write_text(thirty.read_text())
        (changed,) = distance_sections(checkpoint, data)
    finally:
        moved.rename(own)
    assert str(gone.numbers["unknown"]).startswith("The prices of the agent's training cannot be read: ")
    assert changed.numbers["unknown"] == "The prices of the agent's training have changed since"


@pytest.mark.parametrize("name", ["latest", "pretrained"])
def test_it_goes_on_learning_on_thirty_others(
    name: str, trained: tuple[FinFlowTrainer, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Of either phase, the networks are carried over bit for bit, and then they move."""
    trainer, thirty = trained
    path = checkpoint_of(trainer, name)
    at_once = FinFlowTrainer(elsewhere(trainer, thirty, online_episodes=0, warmup_episodes=0), pretrained=path)
    assert "was trained on other prices" in capsys.readouterr().out
    at_once.finetune()
    tensors, _ = read_tensors(path)
    learner = "bcell" if name == "latest" else "learner"
    carried = {"policy": "policy", "critic": "critic", "target_critic": "target_critic"}
    carried["behaviour_value"] = "behaviour_value" if name == "latest" else "value"
    for own, theirs in carried.items():
        for part, tensor in getattr(at_once.agent, own).state_dict().items():
            assert torch.equal(tensor, tensors[f"{learner}/{theirs}/{part}"]), (own, part)
    for part, tensor in at_once.agent.prior.state_dict().items():
        assert torch.equal(tensor, at_once.agent.policy.state_dict()[part]), part  # what an anchor would hold it to
    moved = FinFlowTrainer(elsewhere(trainer, thirty), pretrained=path)
    result = moved.finetune()
    assert np.isfinite(result["value"])
    weight = moved.agent.policy.score.weight
    assert not torch.equal(weight, at_once.agent.policy.score.weight)
    observation = moved.training_data.process.observe(moved.training_data.process.start(np.arange(400, 403)))
    assert moved.agent.act(observation).shape == (3, 31)


def test_of_an_average_it_is_the_average_that_is_carried_over(trained: tuple[FinFlowTrainer, Path]) -> None:
    trainer, _ = trained
    checkpoint = read_checkpoint(checkpoint_of(trainer, "latest"))
    averaged = {
        name.replace("bcell/policy/", "bcell/average/"): tensor + 0.25
        for name, tensor in checkpoint.tensors.items()
        if name.startswith("bcell/policy/")
    }
    bcell_config = trainer.config.bcell.model_copy(update={"averaging": AveragingConfig(kind="ema")})
    bcell = BCell(trainer.training_data.shape, bcell_config, torch.Generator(), torch.device("cpu"))
    checkpoint._replace(tensors={**checkpoint.tensors, **averaged}).agent.carry_over(bcell)
    for policy in (bcell.policy, bcell.prior, bcell.deployed):
        for part, tensor in policy.state_dict().items():
            assert torch.equal(tensor, averaged[f"bcell/average/{part}"]), part


def test_elsewhere_too_the_window_of_rewards_begins_with_the_behaviour_s(trained: tuple[FinFlowTrainer, Path]) -> None:
    trainer, thirty = trained
    keys = RewardNormalizationConfig(enabled=True, window_size=50)
    config = elsewhere(trainer, thirty, online_episodes=0, warmup_episodes=0, reward_normalization=keys)
    moved = FinFlowTrainer(config, pretrained=checkpoint_of(trainer, "pretrained"))
    moved.finetune()
    normalizer = moved._begin().state.reward_normalizer
    assert normalizer is not None
    assert normalizer.get_statistics()["count"] == 50
    assert 0.1 < normalizer.get_statistics()["std"] < 10.0


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
    return Checkpoint(Path("agent.safetensors"), {}, facts, None)


def test_an_agent_of_volumes_refuses_a_market_of_closes(
    tiny: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, real = tiny(), load_panel
    with monkeypatch.context() as patched:
        patched.setattr(training_data, "load_panel", lambda market: with_fields(real(market)))
        trainer = FinFlowTrainer(config)
        trainer.train_iql()
        assert {"money_flow_21", "parkinson_21"} <= set(trainer.training_data.features.asset_names)
    with pytest.raises(CheckpointError, match=r"this market lacks parkinson_21, .*use prices with the same fields"):
        evaluate_agents(load_agents([checkpoint_of(trainer, "latest")], {}), tmp_path / "refused")
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


def test_the_audit_asks_the_filters_before_and_after_scaling(tiny: Make) -> None:
    config = tiny(features__filters="all")
    data = prepare(config)
    subjects = AuditSubjects(data.panel, config, data.split, near=True)
    component = next(one for one in subjects.of_market() if one.name == "features")
    names = {f"relative_average_{half_life:g}" for half_life in HALF_LIVES}
    assert {*names, *(f"raw {name}" for name in names)} <= set(component.answer(data.panel, 600))
