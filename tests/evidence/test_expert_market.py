"""The market in which families lead in turn, its rules, and the learner with one head."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from finflow.agent.networks.policy import EXPERTS, ExpertPolicy
from finflow.strategies.behaviour import FAMILIES
from scripts.evidence import expert_heads
from scripts.evidence.expert_heads import FIVE, LEARNERS, ONE, OWN, START, expert_table, expert_variants, gate_lead
from scripts.evidence.expert_market import FOLLOWER, ORACLE, family_panel, states_of
from tests.short_trainings import SHORT, config_in

BARS, SAMPLE = 2000, 3
WINDOWS: dict[str, object] = {"market.train_end": "1992-12-31", "market.validation_end": "1993-03-31"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Both learners after seconds, on one sample; its test window are the last four and a half years of 2,000 bars."""
    keys = {**expert_variants(1)[0].overrides, **SHORT, **WINDOWS}
    found = {}
    for name in LEARNERS:
        config = config_in(tmp_path_factory.mktemp(name), keys, train__seed=SAMPLE)
        found[name] = expert_heads.train(name, config, BARS) | {"seed": SAMPLE}
    return found


def test_a_sample_is_the_same_again_and_its_scores_come_from_past_prices_alone() -> None:
    """Cut short after any bar, also within a month, the bars that are shared are the same to the bit."""
    whole = family_panel(5, 700)
    assert np.array_equal(whole.close, family_panel(5, 700).close)
    for bars in (400, 611):
        assert np.array_equal(family_panel(5, bars).close, whole.close[:bars])
        assert np.array_equal(states_of(5, bars), states_of(5, 700)[:bars])
    assert not np.array_equal(family_panel(6, 400).close, whole.close[:400])


def test_every_state_leads_and_lasts_half_a_year_on_average() -> None:
    states = np.concatenate([states_of(seed) for seed in range(20)])
    assert np.bincount(states) / len(states) == pytest.approx(0.2, abs=0.02)
    changes = np.count_nonzero(np.diff(states))
    assert len(states) / changes == pytest.approx(126 / 0.96, rel=0.05)  # one round in five begins as the last ended


def test_to_know_the_state_beats_equal_weight_and_every_single_family(trained: dict[str, dict[str, Any]]) -> None:
    growth = trained[FIVE]["growth"]
    assert growth[ORACLE] > 0.2
    assert growth[ORACLE] > max(growth[family] for family in FAMILIES) + 0.05
    assert growth[FOLLOWER] > 0.0
    assert trained[FIVE]["turnover"][ORACLE] < 8.0


def test_one_head_is_one_expert_that_learns_and_is_read_back(trained: dict[str, dict[str, Any]]) -> None:
    one = trained[ONE]
    assert one["growth"][START] != one["growth"][OWN]
    assert trained[FIVE]["gate"]
    assert one["growth"][ORACLE] == trained[FIVE]["growth"][ORACLE]  # the same market
    assert 1.0 <= one["parameters"] / trained[FIVE]["parameters"] < 2.5


def test_one_head_reads_every_feature_and_leaves_the_package_as_it_was() -> None:
    from finflow.agent.learners.offline_learner import make_policy
    from finflow.agent.networks.critic import NetworkShape
    from finflow.config import BCellConfig

    shape = NetworkShape(4, 3, 256, ((0,), (1,), (2,), (0, 1), (1, 2)))
    with expert_heads.one_head():
        policy = make_policy(shape, BCellConfig(), torch.Generator().manual_seed(0))
        assert policy.sources == ("all",)
    assert policy.lens.flatten().tolist() == [1.0, 1.0, 1.0, 0.0]
    assert policy.score.weight.shape[-1] == 5 * 16
    assert policy.expert_cloning == 0.0
    again = make_policy(shape, BCellConfig(), torch.Generator().manual_seed(0))
    assert type(again) is ExpertPolicy
    assert again.sources == EXPERTS


def test_the_gates_lead_is_the_mean_where_a_family_leads_less_that_elsewhere() -> None:
    gate = np.array([[0.6, 0.1, 0.1, 0.1, 0.1], [0.2, 0.5, 0.1, 0.1, 0.1], [0.4, 0.3, 0.1, 0.1, 0.1]])
    assert gate_lead(gate, np.array([0, 1, 1])) == pytest.approx({"volatility": 0.3, "correlation": 0.3})


def test_the_table_compares_sample_by_sample() -> None:
    rules = dict.fromkeys(FAMILIES, 0.1) | {ORACLE: 0.4, FOLLOWER: 0.2}
    results = []
    for name, gain in ((FIVE, 0.02), (ONE, 0.0)):
        for seed in (101, 102, 103):
            growth = {**rules, "momentum": 0.15, START: 0.05, OWN: 0.1 + gain + 0.01 * (seed - 102)}
            gate = {"momentum": 0.1} if name == FIVE else {}
            results.append(
                {"learner": name, "seed": seed, "growth": growth, "turnover": dict.fromkeys(growth, 3.0), "gate": gate}
            )
    page = expert_table(results)
    assert "| five experts | 12.0 ± 2.5 | 11.0, 12.0, 13.0 | 3.0 |" in page
    assert "| five experts less one head | 2.0 ± 0.0 | 2.0, 2.0, 2.0 | - |" in page
    assert "| best single family | 15.0 ± 0.0 | 15.0, 15.0, 15.0 | 3.0 |" in page
    assert "| none | none | 0.10 ± 0.00 | none | none |" in page


def test_both_learners_see_the_same_samples(tmp_path: Path) -> None:
    five, one = expert_variants(3)
    assert list(five.seeds) == list(one.seeds) == [101, 102, 103]
    assert five.config(101, tmp_path) == one.config(101, tmp_path)
