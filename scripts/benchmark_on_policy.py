"""Decisions a second of PPO, and of Stable-Baselines3's: `python scripts/benchmark.py on-policy`."""

from __future__ import annotations

import argparse
import sys

from benchmark_tools import Peer, Rate, contender, measure, print_ratio, spread, use_one_thread

from finflow.agent.on_policy.on_policy_settings import OnPolicySettings
from finflow.training.data.reward_normalizer import RewardNormalizerConfig
from finflow.training.make_env import make_env
from finflow.training.on_policy.advanced_trainer import AdvancedPPOTrainer
from finflow.training.on_policy.task_rollouts import Environment, VectorTask
from scripts.evidence.on_policy_tasks import make_task

ENVIRONMENTS, ROLLOUT, MINIBATCH, EPOCHS = 8, 2048, 64, 10
TASKS = ("CartPole-v1", "Pendulum-v1", "market")
GOAL = 1.5


def our_rollouts(name: str) -> Rate:
    """Rollouts and updates of the advanced trainer; rewards as they are."""
    env: Environment = make_env(num_envs=ENVIRONMENTS) if name == "market" else make_task(name, ENVIRONMENTS)
    spaces = VectorTask(env).spaces
    trainer = AdvancedPPOTrainer(
        spaces.observations,
        spaces.actions,
        settings=OnPolicySettings.of("ppo", entropy_coefficient=0.0, epochs=EPOCHS, minibatch=MINIBATCH),
        reward_config=RewardNormalizerConfig.preset("off"),
    )

    def update(_: int) -> None:
        trainer.collect_rollout(env, ROLLOUT)
        trainer.train_step()

    return contender(update)


def benchmark_on_policy(given: argparse.Namespace) -> None:
    """Print decisions a second, and ours over the peer's; the peer runs with this interpreter by default."""
    use_one_thread()
    print(
        f"{ENVIRONMENTS} environments, rollouts of {ROLLOUT}, minibatches of {MINIBATCH}, {EPOCHS} epochs, one thread"
    )
    for name in TASKS:
        peer = Peer(
            given.sb3_python or sys.executable,
            "--sb3-python",
            "sb3_on_policy_speed.py",
            (name, ENVIRONMENTS, ROLLOUT, MINIBATCH, EPOCHS),
        )
        ours, theirs = f"finflow, {name}", f"Stable-Baselines3 {peer.version}"
        rates = measure({ours: our_rollouts(name), theirs: peer.rate}, given.rounds)
        peer.close()
        for contestant, updates in rates.items():
            print(f"{contestant:28}{spread([ROLLOUT * rate for rate in updates], ',.0f')} decisions/s")
        print_ratio(rates, ours, theirs, GOAL)
