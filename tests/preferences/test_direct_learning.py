"""DPO and SimPO of a policy: toward what the judge prefers, as far as beta lets it, and the same bits by seed."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
import torch

from finflow.agent.learners.offline_learner import make_policy
from finflow.agent.networks.frozen_policy import FrozenPolicy
from finflow.agent.networks.policy import ExpertPolicy
from finflow.config import load_config
from finflow.errors import FinflowError
from finflow.preferences.judges import synthetic_judge
from finflow.preferences.pair_tensors import PairTensors
from finflow.preferences.policy_training import DirectObjective, LearnedPolicy, Method, learn_policy
from finflow.preferences.reward_model import states_holding
from finflow.preferences.segment_density import all_densities, segment_density
from finflow.preferences.segment_paths import SegmentMarket
from finflow.training.data.training_data import TrainingData, prepare
from tests.preferences.conftest import judged_pairs

Learn = Callable[..., tuple[ExpertPolicy, LearnedPolicy]]
QUICK = {"learning_rate": 1e-2, "epochs": 15}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> TrainingData:
    """Four assets, of which the first is told from the others by its low volatility."""
    returns = np.random.default_rng(0).normal(0.0003, [0.002, 0.02, 0.025, 0.03], size=(800, 4))
    dates = pd.bdate_range("2009-06-01", periods=800, name="Date")
    path = tmp_path_factory.mktemp("market") / "prices.csv"
    pd.DataFrame(100.0 * np.exp(np.cumsum(returns, axis=0)), index=dates, columns=list("ABCD")).to_csv(path)
    keys = {
        "market.source": "csv",
        "market.path": str(path),
        "market.train_end": "2011-12-30",
        "market.validation_end": "2012-03-30",
        "features.filters": "none",
        "features.regimes": False,
        "bcell.hidden_dim": 16,
        "evaluation.lookback": 60,
        "preferences.judge.strategies": ["equal-weight"],
        "preferences.judge.random": 12,
        "preferences.judge.length": 10,
    }
    return prepare(load_config(None, keys, environ={}))


@pytest.fixture(scope="module")
def pairs(data: TrainingData) -> PairTensors:
    """Answers of a judge who prefers what holds more of the first asset."""
    market = SegmentMarket(data.process, data.split.train, data.config.evaluation)
    judge = synthetic_judge(lambda path: float(path.filled[:, 0].mean()))
    return judged_pairs(market, judge, 300, data.config.preferences.judge)


@pytest.fixture(scope="module")
def learn(data: TrainingData, pairs: PairTensors) -> Learn:
    """Learns by a method, with keys of ``preferences.policy`` changed."""

    def learned(method: Method, **keys: float) -> tuple[ExpertPolicy, LearnedPolicy]:
        policy = fresh(data)
        own = data.config.preferences.policy.model_copy(update={**QUICK, **keys})
        reference = FrozenPolicy.of(policy, data.log_volatility)
        return policy, learn_policy(policy, reference, pairs, method, own, seed=0)

    return learned


def fresh(data: TrainingData) -> ExpertPolicy:
    return make_policy(data.shape, data.config.bcell, torch.Generator().manual_seed(0))


@torch.no_grad()
def held_of_first(policy: ExpertPolicy, pairs: PairTensors) -> float:
    """Mean weight of the first asset that a policy decides on, from equal weight."""
    bars = torch.arange(200, 400)
    states = states_holding(pairs.assets[bars], pairs.market[bars], torch.full((200, 5), 0.2))
    return float(policy(states).distribution.centre()[:, 0].mean())


@pytest.mark.parametrize("method", ["dpo", "simpo"])
def test_a_policy_moves_toward_what_is_preferred(
    learn: Learn, data: TrainingData, pairs: PairTensors, method: Method
) -> None:
    policy, found = learn(method, dpo_beta=0.03)
    assert held_of_first(policy, pairs) > 1.5 * held_of_first(fresh(data), pairs)
    assert found.before.accuracy is not None
    assert found.held_out.accuracy is not None
    assert found.held_out.accuracy > found.before.accuracy + 0.15
    assert found.divergence > 0.0


def test_a_larger_beta_stays_nearer_to_the_reference(learn: Learn) -> None:
    divergences = [learn("dpo", dpo_beta=beta)[1].divergence for beta in (0.03, 0.1, 0.3)]
    assert divergences[0] > divergences[1] > divergences[2] > 0.0


def test_the_same_seed_learns_the_same_bits(learn: Learn) -> None:
    (one, first), (other, second) = (learn("simpo", epochs=2) for _ in range(2))
    assert all(bool((one.state_dict()[name] == tensor).all()) for name, tensor in other.state_dict().items())
    assert first == second


def test_a_segment_is_as_likely_as_its_decisions_together(data: TrainingData, pairs: PairTensors) -> None:
    policy, chosen = fresh(data), np.array([7, 2])
    with torch.no_grad():
        total = segment_density(policy, pairs, chosen).total
        rows = slice(int(pairs.offsets[1, 2]), int(pairs.offsets[1, 2] + pairs.lengths[2]))
        bars = pairs.bars[rows]
        states = states_holding(pairs.assets[bars], pairs.market[bars], pairs.decisions.held[rows])
        smoothed = 0.9 * pairs.decisions.filled[rows].double() + 0.1 / 5.0
        each = policy(states).distribution.log_density(smoothed) / 4.0
    torch.testing.assert_close(total[1, 1], each.sum(), rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(all_densities(policy, pairs, chosen).total, total)


def test_ties_count_half_and_the_reference_implies_nothing(data: TrainingData, pairs: PairTensors) -> None:
    reference, rows = fresh(data), np.arange(20)
    config = data.config.preferences.policy
    dpo, simpo = (DirectObjective.of(method, config, pairs, reference) for method in ("dpo", "simpo"))  # type: ignore[arg-type]
    known = dpo.reference[:, rows]
    assert bool((dpo.leads(known, rows) == 0.0).all())
    torch.testing.assert_close(dpo.losses(known, rows), torch.full((20,), float(np.log(2.0)), dtype=torch.float64))
    assert float(simpo.leads(known, rows).abs().min()) > 0.0
    moved = known + torch.linspace(-30.0, 30.0, 40, dtype=torch.float64).view(2, 20)
    for one in (dpo, simpo):
        answers = [one._replace(targets=torch.full_like(one.targets, value)) for value in (1.0, 0.0, 0.5)]
        first, second, tie = (answer.losses(moved, rows) for answer in answers)
        torch.testing.assert_close(tie, 0.5 * (first + second))
        assert bool(((first < second) == (one.leads(moved, rows) > 0.0)).all())


def test_a_policy_that_learns_nothing_is_refused(data: TrainingData, pairs: PairTensors) -> None:
    policy = fresh(data)
    before = copy.deepcopy(policy.state_dict())
    drawn = torch.from_numpy(np.random.default_rng(1).permutation(pairs.targets.numpy()))
    shuffled = PairTensors(**{**pairs._asdict(), "targets": drawn})
    own = data.config.preferences.policy.model_copy(update={"dpo_beta": 5.0, "learning_rate": 0.05})
    with pytest.raises(FinflowError, match=r"lower preferences\.policy\.dpo_beta"):
        learn_policy(policy, FrozenPolicy.of(policy, data.log_volatility), shuffled, "dpo", own, seed=0)
    assert all(bool((policy.state_dict()[name] == tensor).all()) for name, tensor in before.items())
