"""What is learned from pairs: a reward model of a known utility, its file and use; policies by DPO and SimPO.

Losses are those of independent references, by hand.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from finflow.agent.learners.offline_learner import make_policy
from finflow.agent.networks.policy import ExpertPolicy
from finflow.agent.networks.policy_ensemble import FrozenPolicy
from finflow.cli import main
from finflow.config.evaluation_sections import JudgeConfig, PolicyLearningConfig
from finflow.env.decision_process import DecisionProcess
from finflow.env.rewards.chosen_reward import RewardSum, RewardTerm, with_reward
from finflow.errors import CheckpointError, FinflowError
from finflow.preferences.judged_pairs import make_judge, synthetic_judge
from finflow.preferences.model_training import (
    LearningReport,
    ModelFigures,
    fit_model,
    fitted_link,
    judge_model,
    learn_model,
    model_figures,
    negative_log_likelihood,
    preference_loss,
    probability,
    split_pairs,
)
from finflow.preferences.pairs import Pair, PairFile, SegmentMarket
from finflow.preferences.policy_training import DirectObjective, Method, all_densities, learn_policy, segment_density
from finflow.preferences.preference_reward import (
    PairTensors,
    PreferenceReward,
    RewardModel,
    load_model,
    pair_tensors,
    save_model,
    states_holding,
)
from finflow.tensor_file import read_tensors, write_tensors
from finflow.training.data.training_data import TrainingData
from tests.commands import refusal
from tests.preferences.conftest import judged_pairs, small_options

Learned = tuple[RewardModel, LearningReport]


def tensors(market: SegmentMarket, count: int, seed: int) -> PairTensors:
    settings = JudgeConfig(mistakes=0.1)
    return judged_pairs(market, make_judge("mean-variance", settings, 252), count, seed)


@pytest.fixture(scope="module")
def pairs(small_market: SegmentMarket) -> PairTensors:
    return tensors(small_market, 600, seed=0)


@pytest.fixture(scope="module")
def learned(pairs: PairTensors, small_data: TrainingData) -> Learned:
    return learn_model(pairs, small_data.shape, seed=0)


@pytest.fixture(scope="module")
def reward(learned: Learned, tmp_path_factory: pytest.TempPathFactory) -> PreferenceReward:
    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    save_model(path, learned[0], learned[1].report(), ("a",))
    return PreferenceReward(path)


@pytest.fixture(scope="module")
def rewarded(reward: PreferenceReward, small_data: TrainingData) -> DecisionProcess:
    return with_reward(small_data.process, RewardSum([RewardTerm("desk:Desk", reward)]))


def test_a_known_utility_is_learned(learned: Learned, small_market: SegmentMarket) -> None:
    fresh = tensors(small_market, 1000, seed=77)
    found = judge_model(fresh, learned[0], np.arange(1000))
    assert found.attainable == pytest.approx(0.9)
    assert found.accuracy is not None
    assert found.accuracy > 0.82  # 0.897 was reached, and 0.777 without the linear fit


def test_a_segment_scores_the_sum_of_its_decisions(pairs: PairTensors, learned: Learned) -> None:
    scores = pairs.all_scores(learned[0], np.array([5, 3]))
    for side in range(2):
        rows = slice(int(pairs.offsets[side, 3]), int(pairs.offsets[side, 3] + pairs.lengths[3]))
        bars = pairs.bars[rows]
        decisions = type(pairs.decisions)(*(column[rows] for column in pairs.decisions))
        with torch.no_grad():
            each = learned[0](pairs.assets[bars], pairs.market[bars], decisions)
        total = each.sum(dim=1) * learned[0].temperature
        torch.testing.assert_close(scores[side, :, 1], total, atol=1e-4, rtol=1e-4)


def test_a_decision_is_scored_with_what_was_known(pairs: PairTensors, small_data: TrainingData) -> None:
    bar = int(pairs.bars[7])
    known = small_data.process.asset_features[bar - small_data.process.lag]
    np.testing.assert_array_equal(pairs.assets[bar].numpy(), known)


def test_the_same_seed_learns_the_same_model_and_makes_the_same_file(
    pairs: PairTensors, small_data: TrainingData, tmp_path: Path
) -> None:
    first, second = (learn_model(pairs, small_data.shape, seed=4) for _ in range(2))
    for name, (model, report) in (("one", first), ("two", second)):
        save_model(tmp_path / name, model, report.report(), ("a", "b"))
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    found = load_model(tmp_path / "one")
    scores = [pairs.all_scores(model, np.arange(9)) for model in (found, second[0])]
    assert torch.equal(*scores)
    (tmp_path / "two").write_bytes(b"nothing")
    for name, said in (("two", "damaged"), ("none", "there is no checkpoint")):
        with pytest.raises(CheckpointError, match=said):
            PreferenceReward(tmp_path / name)
    tensors, state = read_tensors(tmp_path / "one")
    assert (state["features"], state["report"]) == (["a", "b"], first[1].report())
    for size in (0, 10**400, -1, "many"):  # under a hash that is right again
        write_tensors(tmp_path / "three", tensors, state | {"shape": state["shape"] | {"n_asset_features": size}})
        with pytest.raises(CheckpointError, match="holds a reward model of another finflow"):
            load_model(tmp_path / "three")


def test_later_segments_are_kept_apart(pairs: PairTensors) -> None:
    split = split_pairs(pairs, seed=1)
    others = np.concatenate(split[:3])
    assert len(np.unique(np.concatenate(split))) == sum(len(rows) for rows in split)
    assert pairs.days[1][others].max() < pairs.days[0][split.later].min()


def test_figures_by_hand(pairs: PairTensors) -> None:
    lead = torch.tensor([2.0, 2.0, -1.0, 0.0, 5.0], dtype=torch.float64)
    told = {"targets": torch.tensor([1.0, 0.0, 0.0, 1.0, 0.5]), "chances": torch.tensor([0.9, 0.9, 0.1, 0.9, 0.5])}
    few = PairTensors(**{**pairs._asdict(), **told})
    found = model_figures(few, np.arange(5), lead)
    assert (found.pairs, found.accuracy) == (4, (1 + 0 + 1 + 0.5) / 4)
    assert found.attainable == pytest.approx(0.9)
    assert found.share == pytest.approx((0.625 - 0.5) / 0.4)
    high, low = 1 / (1 + np.exp(-2.0)), 1 / (1 + np.exp(1.0))
    assert found.ece == pytest.approx((2 * abs(high - 0.5) + low + 0.5) / 4)
    assert model_figures(few, np.array([4]), lead[4:]).accuracy is None


def test_temperature_and_mistakes_are_told_apart() -> None:
    """Answers as often as leads at a temperature of 2 say, a tenth of them turned round."""
    lead = torch.linspace(-12.0, 12.0, 400, dtype=torch.float64)
    targets = 0.1 + 0.8 * torch.sigmoid(lead / 2.0)
    assert fitted_link(lead, targets) == pytest.approx((2.0, 0.1), abs=1e-3)
    assert fitted_link(lead, torch.sigmoid(lead / 2.0)) == pytest.approx((2.0, 0.0), abs=1e-3)
    np.testing.assert_allclose(probability(np.array([-900.0, 0.0, 900.0]), 0.1), [0.1, 0.5, 0.9], atol=1e-12)


def test_the_final_calibration_is_by_every_pair_that_was_not_learned_from(
    learned: Learned, pairs: PairTensors, small_data: TrainingData
) -> None:
    """The reported figures are of the calibration before."""
    split = split_pairs(pairs, 0)
    rows = np.concatenate([split.calibration, split.held_out, split.later])
    reached = negative_log_likelihood(pairs, learned[0], rows)
    for factor in (0.9, 1.1):
        other = copy.deepcopy(learned[0])
        other.temperature.mul_(factor)
        assert negative_log_likelihood(pairs, other, rows) > reached
    reported = fit_model(pairs, split.fitted, split.calibration, small_data.shape, 0)
    assert float(reported.temperature) != float(learned[0].temperature)
    assert judge_model(pairs, reported, split.held_out) == learned[1].figures["held_out"]


def test_segments_of_different_lengths_and_few_pairs_are_refused(
    small_market: SegmentMarket, small_data: TrainingData
) -> None:
    first = {"strategy": "equal-weight", "start": "2020-03-02", "end": "2020-03-13"}
    second = {**first, "strategy": "random-1"}
    shorter, alike = (
        PairFile((Pair.model_validate({"first": first, "second": other, "better": "first"}),), ("mine.jsonl, line 1",))
        for other in ({**second, "end": "2020-03-12"}, second)
    )
    with pytest.raises(FinflowError, match=r"mine\.jsonl, line 1: the segments have 10 and 9 holding periods"):
        pair_tensors(small_market, shorter)
    few = pair_tensors(small_market, alike)
    with pytest.raises(FinflowError, match="1 pairs are too few to learn from"):
        learn_model(few, small_data.shape, seed=0)


def test_the_command_writes_pairs_and_learns_a_model_from_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs, model = tmp_path / "pairs.jsonl", tmp_path / "model.safetensors"
    options = [*small_options(), "--set", "preferences.judge.mistakes=0.1"]
    command = ["--mode", "prefer", "--judge", "log-growth", "--pairs", "60", "--output", str(pairs), *options]
    assert main(command) == 0
    assert "60 pairs, 0 ties; attainable accuracy 0.900" in capsys.readouterr().out
    command = ["--mode", "prefer", "--learn", str(pairs), "--output", str(model), *options]
    assert main(command) == 0
    assert "held out: accuracy" in capsys.readouterr().out
    assert load_model(model).members == 3
    written = model.read_bytes()
    assert "exists already: name another file after --output" in refusal(capsys, *command)
    assert model.read_bytes() == written
    model.unlink()
    pairs.write_text("", "utf-8")
    assert "is empty" in refusal(capsys, *command)
    assert "one of --ask, --judge and --learn" in refusal(capsys, *command, "--judge", "calmar")


def test_rewards_of_a_segment_sum_to_its_score(
    pairs: PairTensors, reward: PreferenceReward, rewarded: DecisionProcess
) -> None:
    rows = slice(int(pairs.offsets[0, 4]), int(pairs.offsets[0, 4] + pairs.lengths[4]))
    held, filled = (one[rows].double().numpy() for one in (pairs.decisions.held, pairs.decisions.filled))
    state = rewarded.start(pairs.bars[rows].numpy(), held)
    # a target is stated at the prices of the held weights: drifted to the fill it is what was filled
    growth = rewarded.growth[pairs.bars[rows].numpy()]
    target = filled / growth
    step = rewarded.step(state, target / target.sum(axis=1, keepdims=True))
    np.testing.assert_allclose(step.filled, filled, atol=1e-5)
    score = pairs.all_scores(reward._model, np.array([4]))[0].mean() / reward._model.temperature
    assert float(step.reward.sum()) == pytest.approx(float(score), abs=5e-3)


def test_a_model_that_may_have_guessed_is_doubted() -> None:
    for right, said in ((0.25, "2 of 8"), (0.75, "6 of 8"), (None, "0 of 0")):
        kept = ModelFigures(0 if right is None else 4, right, ece=0.0)
        found = LearningReport({}, {"before": ModelFigures(50, 1.0, ece=0.0), "held_out": kept, "later": kept}, {})
        assert found.lines()[-1].startswith(f"warning: {said} answers that it did not learn from are predicted")
        assert found.report()["warning"] == found.doubt()
    sure = found._replace(figures={"held_out": ModelFigures(4, 1.0), "later": ModelFigures(4, 0.75)})
    assert sure.doubt() is None  # p = 9 / 2^8 for 7 of 8


def test_random_answers_are_warned_of_and_refused_with_strict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs, model = tmp_path / "pairs.jsonl", tmp_path / "model.safetensors"
    options = [*small_options(), "--set", "preferences.judge.mistakes=0.49"]
    assert main(["--mode", "prefer", "--judge", "log-growth", "--pairs", "30", "--output", str(pairs), *options]) == 0
    assert "exists already" in refusal(capsys, "--mode", "prefer", "--judge", "calmar", "--output", str(pairs))
    command = ["--mode", "prefer", "--learn", str(pairs), "--output", str(model), *options]
    assert "nothing was written (--strict)" in refusal(capsys, *command, "--strict")
    assert not model.exists()
    assert main(command) == 0
    assert "warning: " in capsys.readouterr().out
    assert "guessing" in read_tensors(model)[1]["report"]["warning"]


Learn = Callable[..., tuple[ExpertPolicy, LearningReport]]


@pytest.fixture(scope="module")
def cash_pairs(small_market: SegmentMarket) -> PairTensors:
    """Answers of a judge who prefers what holds more cash."""
    judge = synthetic_judge(lambda path: float(path.filled[:, -1].mean()))
    return judged_pairs(small_market, judge, 300)


@pytest.fixture(scope="module")
def learn(small_data: TrainingData, cash_pairs: PairTensors) -> Learn:
    """Learns by a method, with keys of ``preferences.policy`` changed."""

    def learned(method: Method, **keys: float) -> tuple[ExpertPolicy, LearningReport]:
        policy = fresh(small_data)
        own = small_data.config.preferences.policy.model_copy(update={"learning_rate": 1e-2, **keys})
        reference = FrozenPolicy.of(policy, small_data.log_volatility)
        return policy, learn_policy(policy, reference, cash_pairs, method, own, seed=0)

    return learned


def fresh(small_data: TrainingData) -> ExpertPolicy:
    return make_policy(small_data.shape, small_data.config.bcell, torch.Generator().manual_seed(0))


@torch.no_grad()
def cash_of(policy: ExpertPolicy, cash_pairs: PairTensors) -> float:
    """Mean weight of cash that a policy decides on, from equal weight."""
    bars = torch.arange(400, 600)
    states = states_holding(cash_pairs.assets[bars], cash_pairs.market[bars], torch.full((200, 4), 0.25))
    return float(policy(states).distribution.centre()[:, -1].mean())


@pytest.mark.parametrize("method", ["dpo", "simpo"])
def test_a_policy_moves_toward_what_is_preferred(
    learn: Learn, small_data: TrainingData, cash_pairs: PairTensors, method: Method
) -> None:
    policy, found = learn(method, dpo_beta=0.03)
    assert cash_of(policy, cash_pairs) > 1.5 * cash_of(fresh(small_data), cash_pairs)
    before, after = (found.figures[name].accuracy or 0.0 for name in ("before", "held_out"))
    assert after > before + 0.15
    assert found.numbers["divergence"] > 0.0


def test_a_larger_beta_stays_nearer_to_the_reference(learn: Learn) -> None:
    free, bound = (learn("dpo", dpo_beta=beta, epochs=5)[1].numbers["divergence"] for beta in (0.03, 0.3))
    assert free > bound > 0.0


def test_a_segment_is_as_likely_as_its_decisions_together(small_data: TrainingData, cash_pairs: PairTensors) -> None:
    policy, chosen = fresh(small_data), np.array([7, 2])
    with torch.no_grad():
        total = segment_density(policy, cash_pairs, chosen)[0]
        rows = slice(int(cash_pairs.offsets[1, 2]), int(cash_pairs.offsets[1, 2] + cash_pairs.lengths[2]))
        bars = cash_pairs.bars[rows]
        states = states_holding(cash_pairs.assets[bars], cash_pairs.market[bars], cash_pairs.decisions.held[rows])
        smoothed = 0.9 * cash_pairs.decisions.filled[rows].double() + 0.1 / 4.0
        each = policy(states).distribution.log_density(smoothed) / 3.0
    torch.testing.assert_close(total[1, 1], each.sum(), rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(all_densities(policy, cash_pairs, chosen)[0], total)


def test_dpo_is_relative_to_its_reference_and_simpo_is_not(small_data: TrainingData, cash_pairs: PairTensors) -> None:
    reference, rows = fresh(small_data), np.arange(20)
    config = small_data.config.preferences.policy
    dpo = DirectObjective.of("dpo", config, cash_pairs, reference)
    known = dpo.reference[:, rows]
    assert bool((dpo.leads(known, rows) == 0.0).all())
    torch.testing.assert_close(dpo.losses(known, rows), torch.full((20,), float(np.log(2.0)), dtype=torch.float64))
    assert float(DirectObjective.of("simpo", config, cash_pairs, reference).leads(known, rows).abs().min()) > 0.0


def test_a_policy_that_learns_nothing_is_refused(small_data: TrainingData, cash_pairs: PairTensors) -> None:
    policy = fresh(small_data)
    before = copy.deepcopy(policy.state_dict())
    drawn = torch.from_numpy(np.random.default_rng(1).permutation(cash_pairs.targets.numpy()))
    shuffled = PairTensors(**{**cash_pairs._asdict(), "targets": drawn})
    own = small_data.config.preferences.policy.model_copy(update={"dpo_beta": 5.0, "learning_rate": 0.05})
    with pytest.raises(FinflowError, match=r"lower preferences\.policy\.dpo_beta"):
        learn_policy(policy, FrozenPolicy.of(policy, small_data.log_volatility), shuffled, "dpo", own, seed=0)
    assert all(bool((policy.state_dict()[name] == tensor).all()) for name, tensor in before.items())


def double(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_the_loss_is_that_of_trls_reward_trainer() -> None:
    # RewardTrainer: -logsigmoid(rewards_chosen - rewards_rejected).mean()
    found = preference_loss(double(1.0, -1.0, 0.5), double(1.0, 1.0, 1.0)).mean()
    # log(1 + e^-1) = 0.3132616875, log(1 + e) = 1.3132616875, log(1 + e^-0.5) = 0.4740769842
    assert float(found) == pytest.approx((0.3132616875182228 + 1.3132616875182228 + 0.4740769841801067) / 3, abs=1e-15)
    assert preference_loss(double(1e4, -1e4), double(1.0, 1.0)).tolist() == [0.0, 1e4]


def test_a_tie_is_half_of_each_answer_and_turning_a_pair_round_changes_nothing() -> None:
    lead = double(0.8, -1.6)
    one, other, tie = (preference_loss(lead, double(target, target)) for target in (1.0, 0.0, 0.5))
    torch.testing.assert_close(tie, 0.5 * (one + other), atol=1e-15, rtol=0.0)
    torch.testing.assert_close(preference_loss(-lead, double(0.0, 0.0)), one, atol=1e-15, rtol=0.0)


def test_with_mistakes_no_pair_weighs_more_than_their_share() -> None:
    found = preference_loss(double(0.9, -1e4, 1e4), double(1.0, 1.0, 1.0), mistakes=0.1)
    expected = [-math.log(0.1 + 0.8 / (1.0 + math.exp(-0.9))), -math.log(0.1), -math.log(0.9)]
    torch.testing.assert_close(found, double(*expected), atol=1e-14, rtol=0.0)


def loss_of(method: Method, totals: torch.Tensor, reference: torch.Tensor, length: float) -> torch.Tensor:
    """Losses of pairs of segments of a length whose first one is better, of densities (2, pairs)."""
    count = totals.shape[1]
    config = PolicyLearningConfig(dpo_beta=0.1)
    objective = DirectObjective(method, config, reference, double(*[length] * count), torch.ones(count))
    return objective.losses(totals, np.arange(count))


def test_dpo_and_simpo_in_closed_form() -> None:
    reference = torch.stack([double(1.0, 2.0), double(-1.0, 3.0)])
    ratios = torch.stack([double(1.5, -0.5), double(0.5, 1.0)])
    expected = [math.log1p(math.exp(-0.1 * lead)) for lead in (1.0, -1.5)]
    torch.testing.assert_close(
        loss_of("dpo", reference + ratios, reference, 3.0), double(*expected), atol=1e-15, rtol=0
    )
    # 2 * 8 / 4 - 2 * 2 / 4 - 0.5 = 2.5
    found = loss_of("simpo", double(8.0, 2.0)[:, None], torch.zeros(2, 1), 4.0)
    assert float(found) == pytest.approx(math.log1p(math.exp(-2.5)))
