"""The online phase by exact rollouts: the B-Cell's policy and one for each block of the training years learn together.

Every update rolls each policy through the next bars of its portfolios and follows the exact gradient of what it earned.
At some updates the policies of the blocks are backtested in the block that they have not seen; that evidence chooses
the stage and the blend with a reference that the agent decides by. Then the agent's critics learn the values of that
policy and of other actions. Validation judges the finished agent once.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from finflow.agent.gradient_steps import compute_gradients, cosine, set_learning_rate, step
from finflow.agent.learners.bcell import BCell
from finflow.agent.learners.pathwise import advantage_scale, rollout_loss
from finflow.agent.networks.decision import Blend, MarketReading
from finflow.agent.networks.policy_ensemble import BatchedPolicies, joined_readings, load_like
from finflow.agent.precision import no_denormals
from finflow.config import Config, changed_keys
from finflow.env.portfolio_state import PortfolioState
from finflow.offline.dataset import OfflineDataset
from finflow.training.data.replay import MarketTensors, Transitions
from finflow.training.data.rollouts import RolloutMarket, joined_states, separate_states
from finflow.training.phase_names import ONLINE
from finflow.training.phases.critic_evaluation import (
    SMALLEST_SCALE,
    ExactReturns,
    calibrate,
    compare_advantages,
    critics_values,
    measure_returns,
    set_level,
    update_critics,
)
from finflow.training.phases.fold_evidence import FoldPolicy, backtest_blends, weigh_evidence
from finflow.training.phases.fold_pretraining import pretrain_folds
from finflow.training.phases.guard_snapshots import LearnerProbe
from finflow.training.phases.pretrain import probe_states, reward_units
from finflow.training.phases.rollout_state import Member, RolloutState, with_mirrors
from finflow.training.phases.training_run import TrainingRun

WARMUP = 20  # updates over which the learning rate rises: Adam's first steps are as long as its rate
MEASURED = 2  # batches of states in which exact advantages are measured
TAUGHT = 32  # batches of states whose exact returns teach the critics
JUDGED = 8  # batches of states by which the critics are calibrated, and in which they are judged
TO_MEASURE, TO_TEACH, TO_CALIBRATE, TO_JUDGE = range(4)  # purposes for which bars and portfolios are drawn
#: Keys of ``sac`` by which a user may expect to change what is learned online.
UNREAD = (
    *("bcell.alpha_init", "bcell.alpha_mode", "bcell.target_entropy", "bcell.entropy_backup", "bcell.cql_alpha"),
    *("bcell.cql_mode", "bcell.calibration", "bcell.gate_balance", "bcell.least_pull", "bcell.dropped_quantiles"),
    *("bcell.online_schedule", "bcell.anchor", "worlds.bootstraps"),
)


def rollout_updates(config: Config) -> int:
    """Number of updates that make up the decisions of ``train.online_episodes``."""
    keys = config.bcell.rollouts
    decisions = config.train.online_episodes * config.env.episode_length
    return math.ceil(decisions / (keys.portfolios * keys.horizon))


def stage_updates(total: int, looks: int) -> list[int]:
    """Updates after which the blocks' policies are kept for backtests: the last one, and others evenly before it."""
    return sorted({math.ceil(total * number / looks) for number in range(1, looks + 1)} - {0})


@no_denormals()
def learn_side_by_side(
    market: RolloutMarket, members: Sequence[Member], scales: Tensor, config: Config
) -> list[dict[str, Tensor]]:
    """Roll policies through the next windows of their portfolios; each takes one step of gradient ascent.

    Parameters
    ----------
    market : RolloutMarket
    members : sequence of Member
    scales : Tensor, (members,)
        Their ``sigma_A``.
    config : Config

    Returns
    -------
    list of dict of Tensor, ()
        Figures of each.
    """
    bcell, horizon = config.bcell, config.bcell.rollouts.horizon
    mirrored = [one.portfolios.mirrored for one in members]
    weights = [(1.0 - own, own) if config.bcell.rollouts.mirrored > 0.0 else (1.0,) for own in mirrored]
    tables = len(weights[0])
    states = [one.portfolios.window(scales.device) for one in members]
    begun = [
        replace(state, bar=state.bar + table * one.portfolios.mirror)
        for one, state in zip(members, states, strict=True)
        for table in range(tables)
    ]
    with torch.autocast(scales.device.type, torch.bfloat16, enabled=bcell.mixed_precision, cache_enabled=False):
        readings = [_read(market, one, state, config) for one, state in zip(members, states, strict=True)]
        side_by_side = BatchedPolicies([one.policy for one in members])
        reading = joined_readings(readings, horizon, tables)
        rollout = market.roll_out(side_by_side, reading, joined_states(begun), horizon)
        rewards = rollout.rewards.view(horizon, len(members), tables, -1)
        mean = (rewards * rewards.new_tensor(weights).unsqueeze(-1)).sum(dim=2)
        losses = [rollout_loss(mean[:, place], bcell.gamma, scale) for place, scale in enumerate(scales)]
    compute_gradients(torch.stack(losses).sum(), *(one.optimiser for one in members))
    norms = [step(one.optimiser, bcell.gradient_norm) for one in members]
    after = separate_states(rollout.state, len(begun))[::tables]  # as it was on the bars themselves
    for one, state in zip(members, after, strict=True):
        one.portfolios.move_on(state)
    turnover = rollout.turnover.float().view(len(members), tables, -1)[:, 0].mean(dim=1)
    of_limit: list[dict[str, Tensor]] = [{}] * len(members)
    if rollout.constrained is not None:
        means = rollout.constrained.view(horizon, len(members), tables, -1)[:, :, 0].mean(dim=(0, 2))
        of_limit = [{"constraint_mean": mean} for mean in means]
    return [
        {
            "actor_loss": loss.detach(),
            "policy_gradient": norms[place],
            "reward": rewards[:, place, 0].detach().mean(),
            "turnover": turnover[place],
            **of_limit[place],
        }
        for place, loss in enumerate(losses)
    ]


def _read(market: RolloutMarket, member: Member, state: PortfolioState, config: Config) -> MarketReading:
    """Reading of a policy at the bars of its next window, with the noise that is configured."""
    noise, noise_scale = None, config.train.observation_noise
    if config.bcell.dropout > 0.0 or noise_scale > 0.0:
        device = market.tensors.market.device
        noise = Generator(device=device).manual_seed(int(member.portfolios.rng.integers(2**62)))
    return market.read(member.policy, state, config.bcell.rollouts.horizon, noise, noise_scale)


def learn_together(
    market: RolloutMarket, bcell: BCell, state: RolloutState, config: Config, progress: float
) -> dict[str, Tensor]:
    """One update of the agent's policy and of every block's, in the same operations: theirs are small ones."""
    scales, rate = state.advantage_scales, config.bcell.rollouts.learning_rate
    members = [Member(bcell.policy, bcell.policy_optimiser, state.portfolios), *state.folds]
    for member in members:
        set_learning_rate(member.optimiser, rate * progress)
    metrics, *folds = learn_side_by_side(market, members, scales, config)
    for name in ("actor_loss", "policy_gradient") if folds else ():
        metrics[f"fold_{name}"] = torch.stack([fold[name] for fold in folds]).max()
        # what is not finite anywhere shows in the figure that the guard reads
        metrics[name] = metrics[name] + 0.0 * metrics[f"fold_{name}"]
    return metrics


def finetune_rollouts(run: TrainingRun, dataset: OfflineDataset) -> dict[str, float]:
    """Learn from rollouts, from the current state to the end of the online phase.

    Parameters
    ----------
    run : TrainingRun
        Its state's ``bcell`` and ``rollouts`` are used.
    dataset : OfflineDataset

    Returns
    -------
    dict
        The last update's losses and validation metrics.
    """
    config, counters, bcell, state = run.config, run.state.counters, run.state.bcell, run.state.rollouts
    if bcell is None or state is None:
        raise ValueError("the online phase has not begun")
    process = run.training_data.learning.process
    tensors = MarketTensors.of(process, run.device)
    units = reward_units(run, dataset)._replace(normalizer=None)  # a moving unit would move the objective
    market = RolloutMarket(process, tensors, units)
    begins = not bool((state.advantage_scales > 0.0).all())
    if begins:
        pretrained = pretrain_folds(run, dataset, state.blocks)
        state.begin_from(pretrained.folds)
        if pretrained.reference is not None:
            bcell.prior.load_state_dict(pretrained.reference)  # the reference that the blocks' evidence is about
        for place, (policy, portfolios) in enumerate(state.members(bcell.policy)):  # each on the bars that it may see
            measured = measure_returns(
                market, policy, _bars(portfolios.starts, MEASURED, config, TO_MEASURE), config, TO_MEASURE
            )
            state.advantage_scales[place] = advantage_scale(measured.returns).clamp(min=SMALLEST_SCALE)
    run.probe = probe_states(run, Transitions.of(dataset, run.device, tensors.members is not None), tensors)
    run.guard.begin(LearnerProbe(bcell, bcell.policy, run.probe), dataset.reward_scale)
    run.guard.guard_also(fold.optimiser for fold in state.folds)
    total = rollout_updates(config)
    looks = stage_updates(total, config.bcell.rollouts.looks)
    last = total + config.bcell.rollouts.critic_updates
    run.progress.start_phase(f"{ONLINE} (B-Cell)", last, done=counters.phase_update)
    if begins:
        if unread := changed_keys(config, UNREAD):
            run.progress.note(f"rollouts do not read {', '.join(unread)}; online.algorithm = sac does")
        run.validate(bcell.deployed, {"episode": 0.0})
    keys = config.bcell.rollouts
    learned = with_mirrors(market, state, keys) if keys.mirrored > 0.0 else market
    exact: ExactReturns | None = None
    metrics: dict[str, Tensor] = {}
    while counters.phase_update < last:
        done = counters.phase_update
        run.guard.expect_large_moves(True, begins=done in (0, total))
        if done < total:
            rate = cosine(1.0, done / total) * min((done + 1) / WARMUP, 1.0)
            latest = learn_together(learned, bcell, state, config, rate)
            if run.state.constraint is not None:
                run.state.constraint.update(float(latest["constraint_mean"]))
            bcell.update_average((done + 1) / total)
        else:
            if bcell.blend is not None and state.folds and state.looks:
                bcell.blend.copy_(_choose_blend(run, market, bcell, state).to_tensor(run.device))
            if exact is None:
                bars = _bars(state.portfolios.starts, TAUGHT, config, TO_TEACH)
                exact = measure_returns(market, bcell.deployed, bars, config, TO_TEACH)
                if done == total:
                    set_level(market, bcell, exact)
                    run.guard.snapshots.compare_from_here(run.guard.probe)
            latest = update_critics(market, bcell, exact, state.advantage_scales[0], config, done - total)
        metrics |= latest
        decisions = min(done + 1, total) * config.bcell.rollouts.portfolios * config.bcell.rollouts.horizon
        latest["advantage_scale"] = state.advantage_scales[0]
        latest["mirrored_weight"] = torch.tensor(state.portfolios.mirrored)
        facts = {"episode": decisions / config.env.episode_length}
        if run.state.constraint is not None:
            facts |= run.state.constraint.figures()
        rolled_back = run.count_update(latest, facts)
        if rolled_back:
            exact = None
        elif counters.phase_update in looks:
            _keep_policies(bcell, state)
        if not rolled_back and counters.phase_update % config.train.checkpoint_updates == 0:
            run.checkpoint()
        run.stop_if_asked()
    result: dict[str, float] = {}
    if not state.judged:
        state.judged = True
        result = {name: float(value) for name, value in metrics.items()} | _judge(run, market, bcell, state)
    run.progress.end_phase()
    return result


def _bars(starts: NDArray[np.int64], batches: int, config: Config, purpose: int) -> NDArray[np.int64]:
    """Bars to measure at, drawn by the seed, as many as so many online batches have states."""
    rng = np.random.default_rng(np.random.SeedSequence([config.train.seed, 83, purpose]))
    return rng.choice(starts, batches * config.train.online_batch_size)


def _keep_policies(bcell: BCell, state: RolloutState) -> None:
    """Keep the policies as they stand, to be backtested in their blocks."""
    policy = bcell.policy if bcell.average is None else bcell.average.policy
    learned = [policy, *(fold.policy for fold in state.folds)]
    state.looks.append([{name: t.detach().clone() for name, t in one.state_dict().items()} for one in learned])


def _folds_at(state: RolloutState, look: Sequence[Mapping[str, Tensor]]) -> list[FoldPolicy]:
    """Policies of the blocks as they were at a look, and as they were pretrained."""
    pretrained: list[Mapping[str, Tensor] | None] = [*state.pretrained] or [None] * len(state.folds)
    return [
        FoldPolicy(
            load_like(fold.policy, own), block.held_out, None if before is None else load_like(fold.policy, before)
        )
        for fold, block, own, before in zip(state.folds, state.blocks, look[1:], pretrained, strict=True)
    ]


def _choose_blend(run: TrainingRun, market: RolloutMarket, bcell: BCell, state: RolloutState) -> Blend:
    """Backtest the blocks' policies in their blocks, and give the agent the stage that this justifies; the blend."""
    policy = bcell.policy if bcell.average is None else bcell.average.policy
    volatility = run.training_data.log_volatility
    folds = [one for look in state.looks for one in _folds_at(state, look)]
    rewards = backtest_blends(folds, market.process, market.tensors, volatility, market.units.constraint)
    count = len(state.folds)
    looks = [torch.cat(rewards[at : at + count], dim=1) for at in range(0, len(rewards), count)]
    evidence = weigh_evidence(looks, state.blocks, volatility, run.config.train.seed)
    chosen, *of_folds = state.looks[evidence.look]
    policy.load_state_dict(chosen)
    for number, member in enumerate(bcell.members or ()):  # short data may have fewer blocks than were asked for
        member.load_state_dict(of_folds[number] if number < len(of_folds) else chosen)
    state.evidence, state.looks = evidence.facts(), []
    run.progress.note(evidence.describe())
    return evidence.blend


def _judge(run: TrainingRun, market: RolloutMarket, bcell: BCell, state: RolloutState) -> dict[str, float]:
    """Judge the finished agent on the validation window, once; it is the best checkpoint, whatever came before."""
    config, horizon = run.config, run.config.bcell.rollouts.horizon
    validation = market.process.decision_bars(run.training_data.split.validation)
    windows = {
        "training": state.portfolios.starts,
        "validation": np.arange(validation.start, validation.stop - horizon + 1),
    }
    bars = _bars(state.portfolios.starts, JUDGED, config, TO_CALIBRATE)
    calibrate(market, bcell, measure_returns(market, bcell.deployed, bars, config, TO_CALIBRATE))
    facts: dict[str, float | str] = {"episode": float(config.train.online_episodes), **(state.evidence or {})}
    for number, (name, bars) in enumerate(windows.items()):
        if not len(bars):
            continue
        drawn = _bars(bars, JUDGED, config, TO_JUDGE + number)
        exact = measure_returns(market, bcell.deployed, drawn, config, TO_JUDGE + number)
        compared = compare_advantages(critics_values(market, bcell, exact), exact)
        facts[f"{name}_advantage_slope"] = compared.slope
        facts[f"{name}_advantage_slope_error"] = compared.slope_error
        facts[f"{name}_advantage_correlation"] = compared.correlation
        facts[f"{name}_advantage_groups"] = json.dumps([compared.critics, compared.exact, compared.error])
    counters = run.state.counters
    counters.best_score = counters.best_update = None
    validated = run.validate(bcell.deployed, facts)
    run.checkpoint()
    return validated
