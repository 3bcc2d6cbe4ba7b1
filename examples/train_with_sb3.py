"""Train Stable-Baselines3's PPO on finflow's environment, and judge it on finflow's ledger.

    pip install 'finflow[sb3]'
    python train_with_sb3.py --steps 100000

The environment needs no wrapper: observations are a dictionary, actions are projected onto the simplex. The trained
model becomes a strategy, and is compared with equal weight on the validation window, net of the same costs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

import finflow
from finflow.evaluation.backtest import run_backtests
from finflow.evaluation.statistics.metrics import summarise
from finflow.strategies.classical import named_strategy
from finflow.strategies.strategy import Information
from finflow.training.data.training_data import prepare

SMALL = {"market.start": "2006-01-01", "env.episode_length": 63, "features.filters": "none"}


class Model:
    """A model of Stable-Baselines3 as a strategy."""

    name = "sb3-ppo"

    def __init__(self, model) -> None:
        self.model = model

    def decide(self, information: Information) -> NDArray[np.float64]:
        """The model's action, as the environment takes it: none negative, summing to one."""
        action, _ = self.model.predict(information.observation, deterministic=True)
        weights = np.clip(action.astype(np.float64), 0.0, None) + 1e-9
        return weights / weights.sum()


def main(arguments: Sequence[str]) -> int:
    """Train, judge, and print a line for each strategy."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2048, help="decisions to learn from")
    given = parser.parse_args(arguments)
    try:
        from stable_baselines3 import PPO
    except ImportError:
        print("this example needs the package stable-baselines3: pip install 'finflow[sb3]'", file=sys.stderr)
        return 2
    from finflow.env.sb3 import SB3VecEnv

    config = finflow.load_config(None, SMALL)
    market = SB3VecEnv(finflow.make_env(config, num_envs=4))
    model = PPO("MultiInputPolicy", market, n_steps=128, batch_size=128, n_epochs=2, seed=0, device="cpu")
    model.learn(given.steps)

    data = prepare(config)
    strategies = [Model(model), named_strategy("equal-weight", config.evaluation)]
    for run in run_backtests(data.process, data.split.validation, strategies):
        found = summarise(run, config.objectives.cvar_alpha)
        print(f"{run.name:13} Sharpe {found['sharpe']:5.2f}, turnover {found['annual_turnover']:6.2f} a year")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
