"""The online phase by exact rollouts: the B-Cell's policy and one for each block of the training years learn together.

Every update rolls each policy through the next bars of its portfolios and follows the exact gradient of what it earned.
The agent's critics learn what other actions would have earned there. At some updates the policies of the blocks are
played in the block that they have not seen; in the end the stage and the blend with a reference that this justifies are
what the agent decides by. Validation judges that once.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import torch
from torch import Generator, Tensor

from finflow.agent.batch import States
from finflow.agent.gradient_steps import (
    SkippingAdam,
    compute_gradients,
    cosine,
    descend,
    polyak_update,
    set_learning_rate,
    step,
)
from finflow.agent.learners.bcell import BCell
from finflow.agent.learners.pathwise import (
    advantage_scale,
    calibration,
    counterfactual_loss,
    discounted_return,
    rollout_loss,
)
from finflow.agent.networks.decision import MarketReading
from finflow.agent.networks.policy import ExpertPolicy
from finflow.config import Config
from finflow.cores import run_both
from finflow.env.coverage import draw_coverage
from finflow.env.portfolio_state import PortfolioState
from finflow.offline.dataset import OfflineDataset
from finflow.training.data.replay import MarketTensors, Transitions
from finflow.training.data.rollouts import RolloutMarket, as_tensors, repeated
from finflow.training.phases.guard_snapshots import LearnerProbe
from finflow.training.phases.out_of_fold import Evidence, play_blends, weigh_evidence
from finflow.training.phases.pretrain import fill_window, probe_states, reward_units
from finflow.training.phases.rollout_state import Portfolios, RolloutState
from finflow.training.phases.training_run import TrainingRun
from finflow.training.phases.training_state import ONLINE

WARMUP = 20  # updates over which the learning rate rises: Adam's first steps are as long as its rate
MEASURED = 512  # states in which exact advantages are measured
VOLATILITY = "volatility_252"  # feature that the inverse-volatility reference reads


def rollout_updates(config: Config) -> int:
    """Number of updates: as many as it takes to live through ``train.online_episodes``."""
    keys = config.bcell.rollouts
    decisions = config.train.online_episodes * config.env.episode_length
    return math.ceil(decisions / (keys.portfolios * keys.horizon))


def look_updates(total: int, looks: int) -> list[int]:
    """Updates after which the blocks' policies are played: the last one, and others evenly before it."""
    return sorted({math.ceil(total * number / looks) for number in range(1, looks + 1)} - {0})


def volatility_of(run: TrainingRun) -> tuple[int, float]:
    """Column of the log volatility among the assets' features, and the deviation that it was scaled by."""
    features = run.training_data.features
    column = features.asset_names.index(VOLATILITY)
    return column, 1.0 if features.fitted is None else float(features.fitted.assets[column, 1])


def learn_policy(
    market: RolloutMarket,
    policy: ExpertPolicy,
    optimiser: SkippingAdam,
    portfolios: Portfolios,
    scale: Tensor,
    config: Config,
) -> dict[str, Tensor]:
    """Roll a policy through the next window of its portfolios and take one step up what it earned."""
    bcell, noise_scale = config.bcell, config.train.observation_noise
    state = portfolios.window(scale.device)
    noise = None
    if bcell.dropout > 0.0 or noise_scale > 0.0:
        noise = Generator(device=scale.device).manual_seed(int(portfolios.rng.integers(2**62)))
    with torch.autocast(scale.device.type, torch.bfloat16, enabled=bcell.mixed_precision, cache_enabled=False):
        reading = market.read(policy, state, portfolios.horizon, noise, noise_scale)
        rollout = market.roll_out(policy, reading, state, portfolios.horizon)
        loss = rollout_loss(rollout.rewards, bcell.gamma, scale)
    norm = descend(loss, optimiser, bcell.gradient_norm)
    portfolios.move_on(rollout.state)
    return {
        "actor_loss": loss.detach(),
        "policy_gradient": norm,
        "reward": rollout.rewards.detach().mean(),
        "turnover": rollout.turnover.float(),
    }


@torch.no_grad()
def exact_returns(
    market: RolloutMarket, bcell: BCell, state: PortfolioState, actions: Tensor, horizon: int
) -> tuple[Tensor, PortfolioState]:
    """Exact scaled returns of actions (batch, P, n) over a window in which the policy follows, (batch, P).

    Also the portfolios after it, P for each state.
    """
    count = actions.shape[1]
    reading = market.read(bcell.policy, state, horizon)
    many = MarketReading(*(part.repeat_interleave(count, dim=0) for part in reading))
    rollout = market.roll_out(bcell.policy, many, repeated(state, count), horizon, actions.flatten(0, 1))
    return discounted_return(rollout.rewards, bcell.config.gamma).view(-1, count), rollout.state


@torch.no_grad()
def compared_actions(policy: ExpertPolicy, states: States, count: int, rng: np.random.Generator) -> Tensor:
    """Actions to compare in each state, (batch, count, n): hold, the policy's own, and moves toward any portfolio."""
    held, own = states.weights, policy(states).distribution.centre()
    batch, width = held.shape
    drawn, _ = draw_coverage(rng, batch * (count - 2), width)
    toward = torch.as_tensor(drawn, dtype=torch.float32, device=held.device).view(batch, count - 2, width)
    listed = torch.cat([states.listed, torch.ones_like(states.listed[:, :1])], dim=1).unsqueeze(1)
    toward = toward * listed
    toward = toward / toward.sum(dim=-1, keepdim=True)
    share = torch.as_tensor(rng.random((batch, count - 2, 1)), dtype=torch.float32, device=held.device)
    return torch.cat([held.unsqueeze(1), own.unsqueeze(1), held.unsqueeze(1).lerp(toward, share)], dim=1)


def teach_critics(
    market: RolloutMarket, bcell: BCell, state: PortfolioState, scale: Tensor, config: Config, rng: np.random.Generator
) -> dict[str, Tensor]:
    """Take one step of the critics toward exact returns of many actions, bootstrapped after the window."""
    keys, bcell_keys = config.bcell.rollouts, config.bcell
    states = market.states(state)
    actions = compared_actions(bcell.policy, states, keys.actions, rng)
    returns, after = exact_returns(market, bcell, state, actions, keys.horizon)
    with torch.no_grad():
        later = market.states(after)
        following = bcell.policy.deterministic(later).unsqueeze(1)
        ahead = bcell.target_critic.value(bcell.target_critic.encode(later), later, following, with_quantiles=0)
        tail = ahead.mean[..., 0].min(dim=0).values.view_as(returns)
        returns = returns + bcell_keys.gamma**keys.horizon * tail
    distributional = bcell_keys.n_quantiles > 1
    values = bcell.critic.value(bcell.critic.encode(states), states, actions, keys.actions * int(distributional))
    loss, metrics = counterfactual_loss(values, returns, scale, distributional)
    compute_gradients(loss, bcell.critic_optimiser)
    metrics["critic_gradient"] = step(bcell.critic_optimiser, bcell_keys.gradient_norm)
    polyak_update(bcell.target_critic, bcell.critic, bcell_keys.tau)
    return metrics


def learn_together(
    market: RolloutMarket, bcell: BCell, state: RolloutState, config: Config, progress: float
) -> dict[str, Tensor]:
    """One update of the agent's policy and critics, and of every block's policy, on two cores where there are two."""
    scale, rate = state.advantage_scale, config.bcell.rollouts.learning_rate
    for optimiser in [bcell.policy_optimiser, *(fold.optimiser for fold in state.folds)]:
        set_learning_rate(optimiser, rate * progress)
    own = state.portfolios
    before = own.window(scale.device)

    def of_agent() -> dict[str, Tensor]:
        metrics = teach_critics(market, bcell, before, scale, config, own.rng)
        return metrics | learn_policy(market, bcell.policy, bcell.policy_optimiser, own, scale, config)

    def of_folds() -> list[dict[str, Tensor]]:
        learn = partial(learn_policy, market, scale=scale, config=config)
        return [learn(fold.policy, fold.optimiser, fold.portfolios) for fold in state.folds]

    metrics, folds = run_both(of_agent, of_folds, scale.device)
    for name in ("actor_loss", "policy_gradient") if folds else ():
        metrics[f"fold_{name}"] = torch.stack([fold[name] for fold in folds]).max()
        # what is not finite anywhere shows in the figure that the guard reads
        metrics[name] = metrics[name] + 0.0 * metrics[f"fold_{name}"]
    return metrics


def measure_advantages(
    market: RolloutMarket, bcell: BCell, bars: np.ndarray[tuple[int], np.dtype[np.int64]], config: Config, seed: int
) -> tuple[Tensor, Tensor]:
    """Exact returns and the critics' values of the same actions, each (states, actions), at decision bars."""
    keys, rng = config.bcell.rollouts, np.random.default_rng(np.random.SeedSequence([seed, 81]))
    weights, _ = draw_coverage(rng, len(bars), market.process.n_weights)
    state = as_tensors(market.process.start(bars, weights), market.tensors.market.device)
    states = market.states(state)
    actions = compared_actions(bcell.policy, states, keys.actions, rng)
    returns, _ = exact_returns(market, bcell, state, actions, keys.horizon)
    with torch.no_grad():
        values = bcell.critic.value(bcell.critic.encode(states), states, actions, with_quantiles=0).mean.mean(dim=0)
    return returns, values


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
    units = reward_units(run, dataset)
    fill_window(units, dataset)
    market = RolloutMarket(process, tensors, units)
    run.probe = probe_states(run, Transitions.of(dataset, run.device, tensors.members is not None), tensors)
    run.guard.begin(LearnerProbe(bcell, bcell.policy, run.probe), dataset.reward_scale)
    run.guard.guard_also(fold.optimiser for fold in state.folds)
    total = rollout_updates(config)
    looks = look_updates(total, config.bcell.rollouts.looks)
    run.progress.start_phase(f"{ONLINE} (B-Cell)", total, done=counters.phase_update)
    if counters.phase_update == 0 and not bool(state.advantage_scale > 0.0):
        run.validate(bcell.deployed, {"episode": 0.0})
        bars = np.random.default_rng(config.train.seed).choice(state.portfolios.starts, MEASURED)
        state.advantage_scale.copy_(advantage_scale(measure_advantages(market, bcell, bars, config, 0)[0]))
    metrics: dict[str, Tensor] = {}
    while counters.phase_update < total:
        done = counters.phase_update
        run.guard.expect_large_moves(True, begins=done == 0)
        rate = cosine(1.0, done / total) * min((done + 1) / WARMUP, 1.0)
        latest = learn_together(market, bcell, state, config, rate)
        bcell.update_average((done + 1) / total)
        metrics = latest | {"advantage_scale": state.advantage_scale}
        episode = (done + 1) * config.bcell.rollouts.portfolios * config.bcell.rollouts.horizon
        rolled_back = run.count_update(metrics, {"episode": episode / config.env.episode_length})
        if not rolled_back and counters.phase_update in looks:
            _look(run, market, bcell, state)
        if not rolled_back and counters.phase_update % config.train.checkpoint_updates == 0:
            run.checkpoint()
        run.stop_if_asked()
    result: dict[str, float] = {}
    if not state.judged:
        state.judged = True
        result = _judge(run, market, bcell, metrics, _decide_blend(run, bcell, state))
    run.progress.end_phase()
    return result


def _look(run: TrainingRun, market: RolloutMarket, bcell: BCell, state: RolloutState) -> None:
    """Keep the agent's policy as it stands, and play the blocks' policies in their blocks."""
    policy = bcell.policy if bcell.average is None else bcell.average.policy
    state.looks.append({name: tensor.detach().clone() for name, tensor in policy.state_dict().items()})
    play = partial(play_blends, process=market.process, tensors=market.tensors, volatility=volatility_of(run))
    pairs = list(zip(state.folds, state.blocks, strict=True))
    played = [play(fold.policy, bars=block.held_out) for fold, block in pairs]
    state.growth.append(torch.cat(played, dim=1) if played else torch.zeros(0))


def _decide_blend(run: TrainingRun, bcell: BCell, state: RolloutState) -> Evidence | None:
    """Give the agent the stage and the blend that the play out of fold justifies; None where there are no blocks."""
    policy = bcell.policy if bcell.average is None else bcell.average.policy
    if bcell.blend is None or not state.folds or not state.looks:
        return None
    evidence = weigh_evidence(state.growth, state.blocks, volatility_of(run), run.config.train.seed)
    policy.load_state_dict(state.looks[evidence.look])
    bcell.blend.copy_(evidence.blend.to_tensor(run.device))
    return evidence


def _judge(
    run: TrainingRun, market: RolloutMarket, bcell: BCell, metrics: dict[str, Tensor], evidence: Evidence | None
) -> dict[str, float]:
    """Judge the finished agent on the validation window, once; it is the best checkpoint, whatever came before."""
    config, process = run.config, market.process
    validation = process.decision_bars(run.training_data.split.validation)
    facts = {"episode": float(config.train.online_episodes)}
    windows = {"training": run.state.rollouts.portfolios.starts if run.state.rollouts else np.zeros(0, np.int64)}
    windows["validation"] = np.arange(validation.start, validation.stop - config.bcell.rollouts.horizon + 1)
    for name, bars in windows.items():
        if len(bars):
            chosen = np.random.default_rng(config.train.seed).choice(bars, MEASURED)
            exact, said = measure_advantages(market, bcell, chosen, config, 1)
            agreement = calibration(said, exact)
            facts[f"{name}_advantage_slope"] = float(agreement.slope)
            facts[f"{name}_advantage_correlation"] = float(agreement.correlation)
    if evidence is not None:
        facts |= {
            "confidence": float(evidence.blend.confidence),
            "out_of_fold_t": evidence.choice.t_statistic,
            "out_of_fold_gain": evidence.choice.gain,
        }
        run.progress.note(describe(evidence, run.state.counters.phase_update))
    counters = run.state.counters
    counters.best_score = counters.best_update = None
    validated = run.validate(bcell.deployed, facts)
    run.checkpoint()
    return {**{name: float(value) for name, value in metrics.items()}, **validated}


def describe(evidence: Evidence, updates: int) -> str:
    """One line on what was found out of sample, and what the agent therefore holds."""
    reference, choice = evidence.blend.reference.replace("-", " "), evidence.choice
    found = f"out of fold t = {choice.t_statistic:.1f} over {reference}"
    if evidence.blend.confidence == 0.0:
        return f"{found}: nothing was found that holds out of sample; this agent holds {reference}"
    return f"{found}: {evidence.blend.confidence:.0%} of the learned policy, the rest {reference}"
