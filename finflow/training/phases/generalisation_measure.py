"""What a policy is worth where it learned and where it did not, and how far it has moved: measured as training goes.

All windows are played alike, in pieces of about an episode that each begin in cash, so that figures differ by the
market alone. Worlds are those of the phase, sixteen episodes of them, the same each time.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from finflow.agent.batch import States
from finflow.agent.learners.bcell import states_of
from finflow.agent.networks.logistic_normal import kl_per_dimension
from finflow.agent.networks.policy import ExpertPolicy
from finflow.env.decision_process import DecisionProcess, PortfolioState
from finflow.env.episode_worlds import are_alike
from finflow.env.vector_env import PortfolioVectorEnv, rows_of
from finflow.market.panel import BARS_PER_YEAR
from finflow.training.data.training_worlds import episode_worlds

if TYPE_CHECKING:
    from finflow.training.phases.training_run import TrainingRun

FloatArray = NDArray[np.float64]

EPISODES = 16  # of worlds
PURPOSE = 71  # of the generator that draws them
PREFIX = "generalisation_"


def measure(run: TrainingRun, policy: ExpertPolicy) -> dict[str, float]:
    """Figures of a policy for a row of metrics; empty where ``train.generalisation`` is off.

    Parameters
    ----------
    run : TrainingRun
        Its ``probe`` has the states on which policies are compared.
    policy : ExpertPolicy
        The one that would be deployed.

    Returns
    -------
    dict
        ``value`` (mean reward of a decision) and ``sharpe`` (a year, net, in excess of cash) in the worlds, the real
        training window and the validation window; ``gap``, the value in training less that in validation; ``kl``, from
        the policy as pretrained, in nats per free dimension. All names begin with ``generalisation_``.
    """
    if not run.config.train.generalisation:
        return {}
    found = _windows(run, policy)
    if not are_alike(run.config.worlds, run.training_data.process.n_weights - 1):
        found |= _worlds(run, policy)
    found["gap"] = found["train_value"] - found["validation_value"]
    bcell = run.state.bcell
    if bcell is not None and run.probe is not None:
        found["kl"] = moved(policy, bcell.prior, run.probe)
    return {PREFIX + name: value for name, value in found.items()}


@torch.no_grad()
def moved(policy: ExpertPolicy, prior: ExpertPolicy, states: States) -> float:
    """How far a policy is from another on given states: mean KL in nats per free dimension."""
    own, other = policy(states).distribution, prior(states).distribution
    return float(kl_per_dimension(own, other).mean())


def pieces(bars: range, length: int) -> tuple[NDArray[np.int64], int]:
    """First bars of the pieces that a window is cut into, and their common length, an episode at most."""
    count = max(math.ceil(len(bars) / length), 1)
    size = len(bars) // count
    return bars.start + size * np.arange(count), size


def play(
    process: DecisionProcess,
    policy: ExpertPolicy,
    state: PortfolioState,
    sizes: NDArray[np.int64],
    device: torch.device,
) -> tuple[FloatArray, FloatArray]:
    """Play portfolios for their own numbers of decisions, all at once.

    Returns
    -------
    rewards, excess : array, (steps, N)
        Excess of the net return over cash; not a number after a portfolio's last decision.
    """
    steps, count = int(sizes.max()), len(sizes)
    rewards, excess = np.full((steps, count), np.nan), np.full((steps, count), np.nan)
    rows = np.arange(count)
    for step in range(steps):
        going = sizes[rows] > step
        if not going.all():
            rows, state = rows[going], rows_of(state, going)
        with torch.no_grad():
            states = states_of(process.observe(state), device)
            weights = policy(states).distribution.centre().double().cpu().numpy()
        outcome = process.step(state, weights / weights.sum(axis=1, keepdims=True))
        state = outcome.state
        rewards[step, rows] = outcome.reward
        excess[step, rows] = outcome.simple_return - (process.growth[state.bar, -1] - 1.0)
    return rewards, excess


def _windows(run: TrainingRun, policy: ExpertPolicy) -> dict[str, float]:
    """The real training window and the validation window, in one go."""
    training_data, length = run.training_data, run.config.env.episode_length
    process = training_data.process
    train = [training_data.train] if isinstance(training_data.train, range) else list(training_data.train)
    starts, sizes, names = [], [], []
    for name, window in (*(("train", one) for one in train), ("validation", training_data.split.validation)):
        first, size = pieces(process.decision_bars(window), length)
        starts.append(first)
        sizes.append(np.full(len(first), size))
        names += [name] * len(first)
    state = process.start(np.concatenate(starts))
    rewards, excess = play(process, policy, state, np.concatenate(sizes), run.device)
    found: dict[str, float] = {}
    for name in ("train", "validation"):
        own = np.array(names) == name
        found |= _figures(name, rewards[:, own], excess[:, own])
    return found


def _worlds(run: TrainingRun, policy: ExpertPolicy) -> dict[str, float]:
    """Episodes as the phase plays them to learn from, without the exploration."""
    training_data, phase, length = run.training_data, run.state.counters.phase, run.config.env.episode_length
    process = training_data.learning.process
    worlds = episode_worlds(run.config, process, phase)
    env = PortfolioVectorEnv(process, training_data.windows(phase), EPISODES, length, worlds=worlds)
    env.reset(seed=int(np.random.SeedSequence([run.config.train.seed, PURPOSE]).generate_state(1)[0]))
    played = play(env.process, policy, env.state, np.full(EPISODES, length), run.device)
    return _figures("worlds", *played)


def _figures(name: str, rewards: FloatArray, excess: FloatArray) -> dict[str, float]:
    returns = excess[np.isfinite(excess)]
    deviation = float(returns.std(ddof=1)) if len(returns) > 1 else 0.0
    sharpe = float(returns.mean()) / deviation * math.sqrt(BARS_PER_YEAR) if deviation > 1e-12 else math.nan
    return {f"{name}_value": float(np.nanmean(rewards)), f"{name}_sharpe": sharpe}
