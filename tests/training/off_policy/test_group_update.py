"""One update of learners side by side: as each would learn alone, on one core or two, from states that it may see."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from finflow.agent.batch import states_of
from finflow.agent.learners.soft_actor_critic import UpdatePoint
from finflow.training.data.replay import ONLINE
from finflow.training.off_policy.group_update import draw, step_portfolios, update_group
from finflow.training.off_policy.learners import Learner
from tests.training.off_policy.small_learners import CPU, MIDDLE, Desk, desk_of
from tests.training.whole_trainings import Make

PLAIN: dict[str, object] = {"bcell__mirrored__weight": 0.0}
OPTIONS: dict[str, object] = {
    **PLAIN,
    "bcell__anchor__weight": 0.5,
    "bcell__dropout": 0.1,
    "bcell__cql_mode": "lagrange",
    "bcell__entropy_backup": "relative",
    "train__observation_noise": 0.05,
}


def gradients(learner: Learner) -> dict[str, Tensor]:
    """All slopes of the last update."""
    agent = learner.agent
    return {
        name: torch.cat(
            [p.grad.flatten() for group in optimiser.param_groups for p in group["params"] if p.grad is not None]
        )
        for name, optimiser in (("actor", agent.policy_optimiser), ("critics", agent.critic_optimiser))
    }


def update(desk: Desk, *numbers: int) -> list[dict[str, Tensor]]:
    return update_group(desk.material, [desk.learners.everyone[number] for number in numbers], MIDDLE, actor=True)


@pytest.mark.parametrize("keys", [PLAIN, {}, {**PLAIN, "bcell__counterfactual": False}, OPTIONS])
def test_two_learners_together_learn_what_each_learns_alone(tiny: Make, keys: dict[str, object]) -> None:
    """Slopes within 1e-4 of their length, since sums over a larger batch round elsewhere; the critics' bit for bit.

    Two updates apart parameters may differ by more: Adam divides slopes near zero by their own size.
    """
    config = tiny(**keys, out_of_fold__blocks=2)
    together, apart = desk_of(config), desk_of(config)
    for one in (*together.learners.everyone, *apart.learners.everyone):
        one.portfolios.mirror = one.portfolios.mirror._replace(weight=0.5 if not keys else 0.0)
    found = update(together, 1, 2)
    alone = [*update(apart, 1), *update(apart, 2)]
    for number, own, other in zip((1, 2), found, alone, strict=True):
        ours, theirs = (gradients(one.learners.everyone[number]) for one in (together, apart))
        assert torch.equal(ours["critics"], theirs["critics"])
        distance = (ours["actor"] - theirs["actor"]).norm()
        assert distance < 1e-4 * theirs["actor"].norm()
        assert theirs["actor"].norm() > 1e-3
        shared = own.keys() & other.keys()
        for name in shared:
            torch.testing.assert_close(own[name], other[name], rtol=1e-3, atol=1e-4, msg=name)
        assert {"actor_loss", "q_loss", "policy_gradient", "critic_gradient", "end_value"} <= shared
    one, two = (gradients(together.learners.everyone[number])["actor"] for number in (1, 2))
    assert (one - two).norm() > 0.1 * one.norm()  # each has its own states


def test_the_behaviour_s_share_of_a_batch_is_annealed(tiny: Make) -> None:
    """Of 16 states three quarters at the start and a quarter at the end; without a replay all are the behaviour's."""
    made = desk_of(tiny(**PLAIN, bcell__counterfactual=False))
    learner = made.learners.everyone[0]

    def own(done: int) -> int:
        batch = draw(made.material, learner, UpdatePoint(done, 10), actor=False).batch
        return int((batch.families == ONLINE).sum())

    assert own(0) == 0
    (rows,) = step_portfolios(made.market, [learner], made.config)
    flat = {name: part.reshape(-1, *part.shape[2:]) for name, part in rows.items() if name != "alive"}
    learner.replay.add(**flat, family=np.full(len(flat["bar"]), ONLINE))
    assert [own(done) for done in (0, 5, 10, 99)] == [4, 8, 12, 12]


@pytest.mark.parametrize("published", [{"bcell__expansion": 0}, {"bcell__counterfactual": False}])
def test_as_published_no_level_of_values_is_moved(tiny: Make, published: dict[str, object]) -> None:
    for keys in ({}, published):
        made = desk_of(tiny(**PLAIN, **keys))
        update(made, 0)
        assert (float(made.learners.everyone[0].agent.critic.level) != 0.0) == (keys == {})


def test_actors_look_ahead_from_bars_with_room_for_it(tiny: Make) -> None:
    """As many decisions as the critics have transitions, at bars from which they all stay among the learner's own."""
    made = desk_of(tiny(**PLAIN, out_of_fold__blocks=2))
    for learner in made.learners.everyone:
        for _ in range(10):
            drawn = draw(made.material, learner, MIDDLE, actor=True)
            assert drawn.start is not None
            bars = drawn.start.state.bar
            assert len(bars) == 16 // 4
            assert np.isin(bars, learner.portfolios.starts).all()
            states = drawn.batch.states  # of the critics: the first of them
            tensors = made.market.tensors
            assert torch.equal(states.market, tensors.market[bars[: len(states.market)] - tensors.lag])


def test_a_vector_step_is_drawn_from_each_policy_and_stores_what_the_ledger_did(tiny: Make) -> None:
    """Together as alone, to float32's 1e-5 of a weight; each portfolio's next one is that of its next decision.

    Actions are stored in single precision, so that the ledger comes within 1e-6 of what they did.
    """
    config = tiny(**PLAIN, out_of_fold__blocks=2)
    made, apart = desk_of(config), desk_of(config)
    process = made.market.process
    moved = step_portfolios(made.market, made.learners.everyone, config)
    for one, rows in zip(apart.learners.everyone, moved, strict=True):
        state = one.portfolios.state
        (alone,) = step_portfolios(apart.market, [one], config)
        np.testing.assert_allclose(alone["action"], rows["action"], atol=1e-5)
        with torch.no_grad():
            centre = one.agent.policy(states_of(process.observe(state), CPU)).distribution.centre().numpy()
        assert 1e-3 < np.abs(rows["action"][0] - centre).max() < 0.5
        assert rows["action"].shape == (4, 4, process.n_weights)
        assert rows["alive"].all()
        for h in range(4):
            observed = process.observed_portfolio(state)
            np.testing.assert_allclose(rows["portfolio"][h], observed, atol=1e-6)
            step = process.step(state, rows["action"][h].astype(np.float64))
            np.testing.assert_allclose(rows["reward"][h], step.reward, atol=1e-8)
            after = process.observed_portfolio(step.state)
            np.testing.assert_allclose(rows["next_portfolio"][h], after, atol=1e-6)
            np.testing.assert_array_equal(rows["bar"][h], state.bar)
            state = step.state


def test_what_a_ruined_portfolio_would_do_after_is_not_alive(tiny: Make) -> None:
    made = desk_of(tiny(**PLAIN))
    learner, process = made.learners.everyone[0], made.market.process
    bar = int(learner.portfolios.state.bar[0])
    process.growth[bar + 2] = 1e-9  # everything is lost over the second decision's bar
    (rows,) = step_portfolios(made.market, [learner], made.config)
    ruined = rows["terminated"].any(axis=0)
    assert ruined[0]
    for place in np.flatnonzero(ruined):
        when = int(np.argmax(rows["terminated"][:, place]))
        assert rows["alive"][: when + 1, place].all()
        assert not rows["alive"][when + 1 :, place].any()
        assert learner.portfolios.state.wealth[place] == process.env.initial_capital
