"""Learners side by side: how long they learn, what of them is saved, and what a file may not hold."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from finflow.config import load_config
from finflow.errors import CheckpointError
from finflow.training.data.replay import ONLINE
from finflow.training.off_policy.group_update import step_portfolios, update_group
from finflow.training.off_policy.learners import Learners, online_updates, vector_steps
from tests.training.off_policy.small_learners import MIDDLE, Desk, desk_of
from tests.training.whole_trainings import Make


@pytest.fixture
def desk(tiny: Make) -> Callable[[], Desk]:
    """Makes learners with a block each for two, always the same."""

    def make() -> Desk:
        return desk_of(tiny(out_of_fold__blocks=2, bcell__mirrored__weight=0.0))

    return make


def learn(desk: Desk, steps: int = 2) -> None:
    """Some vector steps, each stored and followed by an update."""
    for _ in range(steps):
        everyone = desk.learners.everyone
        for one, rows in zip(everyone, step_portfolios(desk.market, everyone, desk.config), strict=True):
            flat = {name: part.reshape(-1, *part.shape[2:]) for name, part in rows.items() if name != "alive"}
            one.replay.add(**flat, family=np.full(len(flat["bar"]), ONLINE))
        update_group(desk.material, dict(enumerate(everyone)), MIDDLE, actor=True, measured=False)


def all_of(learners: Learners) -> tuple[dict[str, Tensor], Any]:
    """What is saved of learners, with the delivered agent's policy."""
    tensors, facts = learners.capture()
    own = learners.everyone[0].agent.policy.state_dict()
    return tensors | {f"own/{name}": tensor.clone() for name, tensor in own.items()}, facts


def differences(one: dict[str, Tensor], other: dict[str, Tensor]) -> list[str]:
    assert one.keys() == other.keys()
    return [name for name, tensor in one.items() if not torch.equal(tensor, other[name])]


def test_the_phase_is_as_many_updates_as_its_decisions_allow() -> None:
    """1000 episodes of 252 decisions by 16 portfolios, 16 decisions a vector step; none ahead: one a step."""
    default = load_config(None, {}, environ={})
    assert online_updates(default) == 985
    assert vector_steps(default, 16) == 16
    alone = load_config(None, {"bcell.expansion": 0, "train.updates_per_vector_step": 2}, environ={})
    assert online_updates(alone) == 2 * 15_750
    assert vector_steps(alone, 1) == 16  # rounded up


def test_restored_learners_go_on_with_the_same_bits(desk: Callable[[], Desk]) -> None:
    """Replays, portfolios, generators, networks and moments; without the replays they would not."""
    first, second, without = desk(), desk(), desk()
    learn(first)
    for other, with_replay in ((second, True), (without, False)):
        other.learners.everyone[0].agent = copy.deepcopy(first.learners.everyone[0].agent)  # is saved by itself
        other.learners.restore(*first.learners.capture(with_replay))
    for one in (first, second, without):
        learn(one)
    (tensors, facts), (again, others) = all_of(first.learners), all_of(second.learners)
    assert differences(tensors, again) == []
    assert facts == others
    networks = [name for name in tensors if "policy/" in name]
    assert all(not torch.equal(tensors[name], all_of(without.learners)[0][name]) for name in networks)


def test_a_snapshot_leaves_replays_where_they_are(desk: Callable[[], Desk]) -> None:
    made = desk()
    learn(made)
    tensors, facts = made.learners.capture(with_replay=False)
    assert not any("replay" in name for name in tensors)
    before = [len(one) for one in made.learners.replays]
    learn(made)
    later = [replay.written for replay in made.learners.replays]
    made.learners.restore(tensors, facts)
    assert [replay.written for replay in made.learners.replays] == later
    assert differences(made.learners.capture(with_replay=False)[0], tensors) == []
    forgotten = made.learners.forget_after([one["written"] for one in facts["learners"]])
    assert forgotten == sum(later) - sum(before) > 0
    assert [len(one) for one in made.learners.replays] == before


def test_after_a_rollback_every_learner_has_other_random_numbers(desk: Callable[[], Desk]) -> None:
    made = desk()
    before = [(one.noise.get_state(), one.portfolios.rng.bit_generator.state) for one in made.learners.everyone]
    made.learners.reseed(0, 900_010)
    after = [(one.noise.get_state(), one.portfolios.rng.bit_generator.state) for one in made.learners.everyone]
    for (noise, rng), (other, another) in zip(before, after, strict=True):
        assert not torch.equal(noise, other)
        assert rng != another
    assert len({str(rng) for _, rng in after}) == 3
    made.learners.reseed(0, 900_010)
    assert [str(one.portfolios.rng.bit_generator.state) for one in made.learners.everyone] == [str(r) for _, r in after]


def test_the_replay_is_shared_out_among_the_learners(desk: Callable[[], Desk]) -> None:
    """A capacity of 150 for three of them; a learner of a block begins from weights of its own."""
    made = desk()
    assert [replay.capacity for replay in made.learners.replays] == [50, 50, 50]
    first = [one.agent.policy.gate.weight for one in made.learners.everyone]
    assert not torch.equal(first[1], first[2])
    assert made.learners.everyone[0].agent.members is not None
    assert all(one.agent.members is None for one in made.learners.of_blocks)


def test_a_replay_that_cannot_be_is_refused(desk: Callable[[], Desk]) -> None:
    """With counts that are none, or of another market."""
    made, other = desk(), desk()
    learn(made, 1)
    tensors, facts = made.learners.capture()
    for name, value in (
        *(("written", count) for count in (-3, 10**40, 1.5, True)),
        *(("first", count) for count in (-1, 10**6)),
    ):
        changed = copy.deepcopy(facts)
        changed["learners"][1][name] = value
        with pytest.raises((ValueError, RuntimeError)):
            other.learners.restore(tensors, changed)
    for column, change in (("bar", 10**6), ("bar", -(10**6)), ("family", 100)):
        name = f"2/replay/{column}"
        with pytest.raises(ValueError, match=f"replay.{column} is out of its range"):
            other.learners.restore(tensors | {name: tensors[name] + change}, facts)


def test_learners_of_other_blocks_are_refused(desk: Callable[[], Desk], tiny: Make) -> None:
    tensors, facts = desk().learners.capture()
    other = desk_of(tiny(out_of_fold__blocks=3, bcell__mirrored__weight=0.0)).learners
    with pytest.raises(ValueError, match="other blocks"):
        other.restore(tensors, facts)
    wide = desk_of(tiny(out_of_fold__blocks=2, bcell__mirrored__weight=0.0, bcell__hidden_dim=32)).learners
    with pytest.raises((ValueError, RuntimeError, CheckpointError)):
        wide.restore(tensors, facts)
