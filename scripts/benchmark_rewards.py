"""Rollouts while workers compute a slow reward: `python scripts/benchmark.py rewards`."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from benchmark_tools import seconds_of, spread, use_one_thread

from finflow.config import load_config
from finflow.env.decision_process import DecisionProcess
from finflow.env.rewards.chosen_reward import with_reward
from finflow.env.rewards.reward_context import ChosenReward, RewardContext
from finflow.env.rewards.reward_queue import RewardQueue, queued_rewards, with_builtin_reward
from finflow.env.vector_env import PortfolioVectorEnv
from finflow.training.data.rewards import RewardUnits
from finflow.training.data.training_data import prepare
from finflow.training.on_policy.market_rollouts import RolloutCollector
from finflow.training.phases.training_state import start_offline, start_online

WORKERS, STEPS, TRANSITIONS = 4, 256, 1000
GOAL = 1.2


class Sleeping:
    """The log return, after 50 ms."""

    horizon = 1
    seconds = 0.05

    def __call__(self, context: RewardContext) -> Any:
        time.sleep(self.seconds)
        return context.log_return


class Napping(Sleeping):
    """The log return, after 5 ms."""

    seconds = 0.005


class Contexts:
    """Keeps what a reward would be given, in place of one."""

    def __init__(self, reward: ChosenReward) -> None:
        self.names, self.horizon = reward.names, reward.horizon
        self.log_return_weight = reward.log_return_weight
        self.seen: list[RewardContext] = []

    def components(self, context: RewardContext) -> Any:
        """Zeros."""
        self.seen.append(context)
        return context.xp.zeros((len(context.bar), len(self.names)))


def make_collector(reward: type[Sleeping]) -> RolloutCollector:
    """An untrained policy in the embedded market, with PPO's usual portfolios."""
    name = f"{__name__}:{reward.__name__}"
    config = load_config(None, {"online.algorithm": "ppo", "objectives.reward": name, "train.device": "cpu"}, {})
    data, device = prepare(config), torch.device("cpu")
    state = start_offline(config, data, device, TRANSITIONS)
    start_online(state, config, data, device)
    played = state.on_policy
    if played is None:
        raise ValueError("PPO learns on-policy")
    units = RewardUnits.of(data.learning, 1.0, "none", device)
    return RolloutCollector(played.played.env, played.agent, units, config, state.exploration, lambda _: None)


def contexts_of(collector: RolloutCollector, process: DecisionProcess) -> Sequence[RewardContext]:
    """Facts that the reward is given in a rollout."""
    if process.reward is None:
        raise ValueError("there is no reward to compute")
    contexts = Contexts(process.reward)
    collect(collector, collector.env, with_reward(process, contexts), None)
    return contexts.seen


def collect(
    collector: RolloutCollector, env: PortfolioVectorEnv, process: DecisionProcess, queue: RewardQueue | None
) -> None:
    """Collect a rollout in a market."""
    env.process, collector.queue = process, queue
    collector.decide(STEPS)


def compute_all(queue: RewardQueue, contexts: Sequence[RewardContext]) -> None:
    """Compute the rewards of a rollout that was played before."""
    for context in contexts:
        queue.components(context)
    queue.collect()


def benchmark_rewards(given: argparse.Namespace) -> None:
    """Print how long rollouts, rewards and both together take, and the ratio of both to the longer of the two."""
    use_one_thread()
    print(f"{STEPS} vector steps of PPO's usual portfolios; {WORKERS} workers, which have started")
    for reward in (Sleeping, Napping):
        collector = make_collector(reward)
        env, process = collector.env, collector.env.process
        with queued_rewards(process, WORKERS) as (queued, queue):
            if queue is None:
                raise ValueError("the reward is one that workers compute")
            contexts = contexts_of(collector, process)
            compute_all(queue, contexts)
            times: dict[str, list[float]] = {"rollout": [], "rewards": [], "together": []}
            for _ in range(given.rounds):
                alone = partial(collect, collector, env, with_builtin_reward(process), None)
                times["rollout"].append(seconds_of(alone).clock)
                times["rewards"].append(seconds_of(partial(compute_all, queue, contexts)).clock)
                times["together"].append(seconds_of(partial(collect, collector, env, queued, queue)).clock)
        print_times(reward, times)


def print_times(reward: type[Sleeping], times: dict[str, list[float]]) -> None:
    """One line for each part, and the ratio, taken round by round."""
    print(f"a reward of {1000.0 * reward.seconds:g} ms a step ({STEPS * reward.seconds:.1f} s in the process)")
    for name, seconds in times.items():
        print(f"  {name:10}{spread(seconds)} s")
    longer = map(max, times["rollout"], times["rewards"])
    ratios = [both / one for both, one in zip(times["together"], longer, strict=True)]
    wanted = f", wanted at most {GOAL}" if reward is Sleeping else ""
    print(f"  together / the longer of the two: {spread(ratios)}{wanted}")
