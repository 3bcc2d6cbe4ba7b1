"""Why the agent traded: the same decision as in the evaluation, parts that are known and sum, questions answered."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Generator, Tensor, nn

from finflow.agent.batch import States
from finflow.agent.networks.critic import NetworkShape
from finflow.agent.networks.distributions import LogisticNormal, log_ratios
from finflow.agent.networks.policy import EXPERTS, ExpertPolicy
from finflow.agent.networks.policy_ensemble import PolicyEnsemble
from finflow.cli import main
from finflow.config import load_config
from finflow.env.decision_process import with_trading
from finflow.evaluation.analysis.attribution import decisions_section, largest_trades
from finflow.evaluation.backtest import run_backtests, with_memos
from finflow.training.data.training_data import TrainingData, prepare
from finflow.training.judging.agent_strategy import AgentStrategy, experts_alone, gate_on, traits_on
from finflow.training.judging.explainer import Explainer, in_double, integrated_gradients, states_in_double
from finflow.training.trainer import FinFlowTrainer
from tests.commands import refusal
from tests.evaluation.made_up import section_html
from tests.training.whole_trainings import Make

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def training_data(shared: Make) -> TrainingData:
    return prepare(shared())


@pytest.fixture(scope="module")
def explainer(training_data: TrainingData) -> Explainer:
    """Of an agent that has learned nothing, but trades."""
    policy = ExpertPolicy(training_data.shape, torch.Generator().manual_seed(5))
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(3.0)
    process, window = training_data.held_out_process(), training_data.split.test
    (run,) = run_backtests(process, window, [AgentStrategy(policy, CPU)])
    return Explainer(policy, process, training_data.features, window, run)


def test_an_agent_and_its_experts_read_the_market_once_for_all_their_backtests(
    training_data: TrainingData, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At other costs, and by its experts alone, they decide as those that read the market again."""
    policy, process = ExpertPolicy(training_data.shape, torch.Generator().manual_seed(5)), training_data.process
    dear = with_trading(process, commission_bps=50.0)
    make = with_memos({"finflow": lambda: AgentStrategy(policy, CPU)})["finflow"]
    window = training_data.split.validation
    (alone,) = run_backtests(dear, window, [AgentStrategy(policy, CPU)])
    apart = [run_backtests(process, window, [AgentStrategy(policy, CPU, expert=one)])[0] for one in range(5)]
    read: list[States] = []
    read_market = policy.read_market
    monkeypatch.setattr(policy, "read_market", lambda states: (read.append(states), read_market(states))[1])
    agent = make()
    assert isinstance(agent, AgentStrategy)
    cheap, *experts = run_backtests(process, window, [agent, *experts_alone(agent)])
    (again,) = run_backtests(dear, window, [make()])
    assert len(read) == len(cheap.dates)
    np.testing.assert_array_equal(again.weights, alone.weights)
    assert not np.array_equal(cheap.weights, again.weights)
    for number, (one, same) in enumerate(zip(apart, experts, strict=True)):
        assert one.explanation is not None
        np.testing.assert_array_equal(one.explanation["gate"], np.eye(5)[[number] * len(one.dates)])
        np.testing.assert_array_equal(one.explanation["experts"], same.explanation["experts"])
        np.testing.assert_allclose(one.weights, same.weights, atol=1e-12)


def test_what_is_explained_is_what_was_decided(explainer: Explainer) -> None:
    """Taken apart again from the tensors, in double precision, the decision is that of the backtest."""
    run, recorded = explainer.run, explainer.run.explanation
    assert recorded is not None
    for step in (0, 17, len(run.dates) - 1):
        date, one = explainer.explain(step)
        weights = list(one.weights.values())
        experts = {name: np.array([own.experts[name] for own in weights]) for name in EXPERTS}
        np.testing.assert_allclose(list(one.gate.values()), recorded["gate"][step], atol=1e-5)
        np.testing.assert_allclose(list(experts.values()), recorded["experts"][step], atol=1e-5)
        assert one.trade_rate == pytest.approx(float(recorded["trade_rate"][step]), abs=1e-5)
        mixed = sum(experts[name] * one.gate[name] for name in EXPERTS)
        np.testing.assert_allclose([own.aim for own in weights], mixed, atol=1e-12)
        way = (1.0 - one.trade_rate) * np.array([own.held for own in weights]) + one.trade_rate * mixed
        np.testing.assert_allclose(
            [own.target for own in weights], way, atol=1e-5
        )  # weights of nothing are a millionth
        assert one.turnover == float(run.turnover[step])
        assert sum(one.earned.values()) == pytest.approx(one.next_return, abs=1e-12)
        assert date > one.known, "the agent knew nothing of the bar it filled at"


def test_the_parts_of_the_features_sum_to_the_trade_and_are_told(explainer: Explainer) -> None:
    date, one = explainer.explain(30)
    parts = one.integrated_gradients
    features = parts.features.values()
    whole = one.traded - parts.baseline + parts.completeness_error
    assert sum(found.part for found in features) == pytest.approx(whole, abs=1e-12)
    assert abs(parts.completeness_error) <= 1e-4
    sizes = [abs(found.part) for found in features]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > 1e-4
    for found in features:
        if found.by_asset:
            assert sum(found.by_asset.values()) == pytest.approx(found.part, abs=1e-12)
    moved = sorted(
        one.weights, key=lambda asset: abs(one.weights[asset].target - one.weights[asset].held), reverse=True
    )
    assert list(parts.by_trade) == moved[:3]
    made = decisions_section([(date, one)])
    text = "\n".join(made.text({made.key: made.numbers}))
    assert f" {one.traded:.1%} " in text
    assert "completeness error" in text
    assert all(feature in text for feature in list(parts.features)[:8])


def test_the_report_takes_the_largest_trades_apart(
    explainer: Explainer, fits_schema: Callable[[Any], list[str]]
) -> None:
    turnover = explainer.run.turnover
    steps = largest_trades(explainer.run, 2)
    later = np.sort(turnover[63:])[-2:] if len(turnover) > 126 else np.sort(turnover)[-2:]
    assert sorted(turnover[steps]) == sorted(later)
    found = explainer.largest(2)
    made = decisions_section(found)
    assert list(made.numbers) == [date for date, _ in found]
    date, _ = found[0]
    text = section_html(made)
    assert f'data-path="decisions/{date}/integrated_gradients/completeness_error"' in text
    content = json.loads(json.dumps({"decisions": made.numbers}, allow_nan=False))
    assert not [error for error in fits_schema(content) if "decisions" in error]
    content["decisions"][date]["traded"] = "much"
    assert [error for error in fits_schema(content) if "decisions" in error]


@pytest.mark.usefixtures("quick_reports")
def test_the_command_line_explains_a_date(tmp_path: Path, tiny: Make, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = FinFlowTrainer(tiny(train__offline_training_epochs=1, evaluation__rebalance_every=60))
    trainer.train_offline()
    output, readings = tmp_path / "why.json", tmp_path / "logs" / "readings.jsonl"
    before = readings.read_text().count("\n") if readings.exists() else 0
    capsys.readouterr()
    call = ["--mode", "explain", "--resume", str(trainer.run_folder)]
    assert main([*call, "--date", "2011-12-24", "--output", str(output)]) == 0
    content = json.loads(output.read_text())
    assert list(content) == ["2011-12-26"], "a Saturday stands for the Monday after it"
    assert "completeness error" in capsys.readouterr().out
    assert main([*call, "--date", "2011-12-27", "2011-12-28"]) == 0
    assert readings.read_text().count("\n") == max(before, 1), "one agent's reading is counted once"
    capsys.readouterr()
    for arguments, words in (
        (["--date", "2031-01-01"], "2031-01-01 is not a date of the evaluation, which decides from 2011-11-01 to"),
        (["--date", "16.3.2020"], "'16.3.2020' is not a date: write it as 2020-03-16"),
    ):
        said = refusal(capsys, *call, *arguments)
        assert words in said


SHAPE = NetworkShape(n_asset_features=5, n_market_features=3, hidden=32, lenses=((0,), (1,), (2,), (3,), (0, 3)))


def made_policy(seed: int = 0) -> ExpertPolicy:
    policy = ExpertPolicy(SHAPE, Generator().manual_seed(seed))
    with torch.no_grad():  # a trained one is no longer near its beginnings
        for parameter in policy.parameters():
            parameter.mul_(2.0)
    return policy


def made_states(assets: int = 6, seed: int = 1, unlisted: tuple[int, ...] = ()) -> States:
    generator = Generator().manual_seed(seed)
    features = torch.randn((1, assets, 5), generator=generator)
    features[:, :, -1] = 1.0
    for asset in unlisted:
        features[:, asset] = 0.0
    weights = torch.softmax(torch.randn((1, assets + 1), generator=generator), dim=-1)
    portfolio = torch.cat([weights, torch.randn((1, 3), generator=generator)], dim=-1)
    return States(features, torch.randn((1, 3), generator=generator), portfolio, complete=not unlisted)


class Linear(nn.Module):
    """Its centre is linear in two features of each asset and one of the market: the parts are known."""

    def forward(self, states: States) -> object:
        moved = 0.01 * states.assets[:, :, 0] - 0.02 * states.assets[:, :, 2] + 0.005 * states.market[:, 1:2]
        moved = moved + 0.0 * states.reward_state.sum()
        centre = torch.cat([0.1 + moved, 1.0 - (0.1 + moved).sum(-1, keepdim=True)], dim=-1)

        class DecisionViews:
            distribution = LogisticNormal(log_ratios(centre), torch.zeros_like(log_ratios(centre)))

        return DecisionViews


def test_of_a_linear_decision_each_feature_has_its_own_term() -> None:
    states = states_in_double(made_states(4))
    direction = torch.tensor([[1.0, 0.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    found = integrated_gradients(Linear(), states, direction)  # type: ignore[arg-type]
    expected = torch.zeros_like(found.assets)
    expected[0, 0, 0] = 0.01 * states.assets[0, 0, 0]
    expected[0, 0, 2] = -0.02 * states.assets[0, 0, 2]
    torch.testing.assert_close(found.assets, expected, atol=1e-9, rtol=0.0)
    torch.testing.assert_close(found.market, torch.tensor([[0.0, 0.005, 0.0]]).double() * states.market)
    assert float(found.reward_state.abs().max()) == 0.0
    assert float(found.baseline) == pytest.approx(0.1)


@pytest.mark.parametrize("unlisted", [(), (1, 4)])
def test_the_parts_sum_to_the_difference_from_the_baseline(unlisted: tuple[int, ...]) -> None:
    policy, states = in_double(made_policy()), states_in_double(made_states(unlisted=unlisted))
    directions = torch.eye(7, dtype=torch.float64)[:3]
    found = integrated_gradients(policy, states, directions)
    whole = found.assets.sum((1, 2)) + found.market.sum(1) + found.reward_state.sum(1)
    torch.testing.assert_close(whole - (found.value - found.baseline), found.error)
    assert float(found.error.abs().max()) <= 1e-4
    assert float((found.value - found.baseline).abs().max()) > 1e-3, "there is something to explain"
    torch.testing.assert_close(found.value, policy(states).distribution.centre()[0, :3])
    for asset in unlisted:
        assert float(found.assets[:, asset].abs().max()) == 0.0


def test_the_policy_itself_is_left_as_it_is() -> None:
    policy, states = made_policy(), made_states()
    before = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    integrated_gradients(in_double(policy), states_in_double(states), torch.eye(7, dtype=torch.float64)[:1])
    for name, tensor in policy.state_dict().items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, before[name])
    parameters: list[Tensor] = list(policy.parameters())
    assert all(parameter.grad is None for parameter in parameters)


def test_an_agent_of_several_policies_has_traits_and_gates_as_one_policy_has() -> None:
    """Such as every agent that found something, and those of its blocks; of equal members, those of one."""
    config = load_config(None, {"market.source": "synthetic", "market.synthetic.bars": 4000}, {})
    data = prepare(config)
    policy, other = (ExpertPolicy(data.shape, Generator().manual_seed(seed)) for seed in range(2))
    process, validation = data.process, data.split.validation
    crisis = data.features.fitted.crisis if data.features.fitted is not None else None
    assert crisis is not None
    for decider in (PolicyEnsemble([policy, policy]), PolicyEnsemble([policy, other])):
        found, alone = traits_on(decider, process, validation), traits_on(policy, process, validation)
        mixed, single = (gate_on(one, process, range(validation.stop), crisis) for one in (decider, policy))
        assert found is not None
        assert alone is not None
        assert mixed is not None
        assert single is not None
        same = decider.policies()[1] is policy
        assert (found.cash == pytest.approx(alone.cash, rel=1e-5)) == same
        gates = [of["calm"]["gate"]["growth"] for of in (mixed, single)]
        assert (gates[0] == pytest.approx(gates[1], rel=1e-5)) == same
