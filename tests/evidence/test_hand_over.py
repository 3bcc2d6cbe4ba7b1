"""The hand-over's evidence: every way of fine-tuning begins at the same policy, and falls are counted from there."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.evidence.hand_over import DEVICES, MARKETS, deepest_fall, hand_over_table, pretrain_and_branch
from tests.short_trainings import SHORT, config_in

SMALL: dict[str, object] = {
    **SHORT,
    "market.synthetic.kind": "constant-drift",
    "market.synthetic.bars": 1500,
    "market.train_end": "2020-12-31",
    "market.validation_end": "2021-07-30",
    "train.online_episodes": 10,
    "train.updates_per_vector_step": 1,
    "bcell.expansion": 0,
    "train.critic_only_updates": 4,
    "train.validation_updates": 5,
    "bcell.actor_lr": 1e-2,  # so that the ways differ within 10 updates
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    folder: Path = tmp_path_factory.mktemp("hand-over")
    return pretrain_and_branch(config_in(folder, {**MARKETS["lognormal"], **SMALL}))


def test_all_ways_begin_at_the_pretrained_policy_and_only_one_goes_to_the_end(
    found: dict[str, dict[str, list]],
) -> None:
    """50 updates: a fifth of them is looked at every 5, with and without each device."""
    curves = found["curves"]
    assert list(curves) == list(DEVICES)
    assert len({curve[0][1] for curve in curves.values()}) == 1
    assert [update for update, _ in curves["all devices"]][:3] == [0, 5, 10]
    assert curves["all devices"][-1][0] == 50
    for name, curve in curves.items():
        assert name == "all devices" or [update for update, _ in curve] == [0, 5, 10]
    later = {name: [worth for update, worth in curve if update == 10] for name, curve in curves.items()}
    assert later["without warm-up"] != later["all devices"]  # critics alone learned for the first four updates


def test_a_row_for_each_way(found: dict[str, object]) -> None:
    lines = hand_over_table([found, found]).splitlines()
    assert len(lines) == 2 + len(DEVICES)
    assert lines[2].startswith("| constant-drift | all devices | score |")


def test_a_fall_is_counted_from_the_beginning_and_not_from_the_best() -> None:
    curve = [[0, 0.5], [5, 0.7], [10, 0.4], [50, 0.1]]
    assert deepest_fall(curve, 20) == pytest.approx(0.1)
    assert deepest_fall(curve, 100) == pytest.approx(0.4)
    assert deepest_fall(curve[:2], 20) == 0.0
