"""Train an agent by PPO on how well its weights rank the assets by their returns over the next bars.

A sample is a stretch of --segment decisions of one portfolio; as many portfolios step together as a batch has samples.
In an epoch every portfolio lives through as many decisions as the training years have.

Example: python scripts/train_ranking.py --reward_type ndcg --k 10 --batch_size 16 --mini_batch_size 4 --ppo_epochs 4
"""

import argparse
import math
import os
import sys
from collections.abc import Sequence
from typing import Any, get_args

from finflow.cli.exit_status import run_safely
from finflow.cli.option_table import CONFIGURATION, DRY_RUN, RECOLLECT, SCALE, add_options
from finflow.cli.options import Parser, one_of, positive_count, resolve
from finflow.cli.runs import train
from finflow.config import Config, RankingConfig
from finflow.env.rewards.ranking_reward import refuse_text_arguments
from finflow.errors import ConfigError

TYPES = get_args(RankingConfig.model_fields["type"].annotation)
#: Option -> default and meaning.
COUNTS = {
    "--k": (10, "assets at the top of the ranking that count"),
    "--batch_size": (16, "samples of a rollout: portfolios that step together"),
    "--mini_batch_size": (4, "samples in a gradient step"),
    "--ppo_epochs": (4, "passes over a rollout"),
    "--num_epochs": (3, "passes through the training years"),
    "--max_steps": (10_000, "rollouts at most"),
    "--segment": (21, "decisions of a sample; 21 is a month of daily bars"),
}
#: Option -> configuration key, and its meaning with the default.
KEYS = {
    "--learning_rate": ("online.learning_rate", "learning rate of the policy (1e-5)"),
    "--checkpoint_dir": ("output.logs_dir", "folder that holds the run folder"),
    "--log_with": ("output.log_with", "tensorboard or wandb"),
    "--temperature": ("acting.temperature", "of evaluated decisions: 0 is the policy's centre, 1 a draw from it (0)"),
    "--top_p": ("acting.top_p", "share that the assets which are held have of all, the largest first (1)"),
}


def main(arguments: Sequence[str]) -> None:
    """Read the options and train both phases on the ranking."""
    given = _read(arguments)
    batch, decisions = given.batch_size, given.batch_size * given.segment
    if given.mini_batch_size > batch:
        raise ConfigError(f"--mini_batch_size {given.mini_batch_size} is more than --batch_size {batch}")
    named = {key: value for key, value in ((key, getattr(given, key)) for key, _ in KEYS.values()) if value is not None}
    keys: dict[str, Any] = {
        "objectives.reward": "ranking",
        "objectives.ranking.type": given.reward_type,
        "objectives.ranking.k": given.k,
        "online.algorithm": "ppo",
        "online.portfolios": batch,
        "online.rollout": decisions,
        "online.minibatch": given.mini_batch_size * given.segment,
        "online.epochs": given.ppo_epochs,
        "online.learning_rate": 1e-5,
        **named,
        **given.overrides,
    }
    given.overrides = keys
    if given.project_name is not None:
        os.environ["WANDB_PROJECT"] = given.project_name
    if "train.online_episodes" not in keys:
        keys["train.online_episodes"] = episodes(resolve(given), given)
    train(argparse.Namespace(**vars(given), resume=None))


def episodes(config: Config, given: argparse.Namespace) -> int:
    """Episodes that have as many decisions as the epochs, or as the most rollouts that are allowed.

    Raises
    ------
    FinflowError
        If the prices cannot be had.
    """
    from finflow.market.panel import split_panel
    from finflow.market.sources.panel_loader import load_panel

    bars = len(split_panel(load_panel(config.market), config.market).train)
    rollouts: int = min(math.ceil(given.num_epochs * bars / given.segment), given.max_steps)
    return math.ceil(rollouts * config.online.rollout / config.env.episode_length)


def _read(arguments: Sequence[str]) -> argparse.Namespace:
    parser = Parser(__doc__ or "")
    parser.add_argument("--reward_type", type=one_of(*TYPES), default="ndcg", metavar="TYPE", help=", ".join(TYPES))
    for option, (default, text) in COUNTS.items():
        parser.add_argument(option, type=positive_count, default=default, metavar="N", help=f"{text} ({default:,})")
    for option, (key, text) in KEYS.items():
        parser.add_argument(option, dest=key, metavar=option.strip("-").split("_")[-1].upper(), help=text)
    parser.add_argument("--project_name", metavar="NAME", help="project in Weights & Biases")
    add_options(parser, RECOLLECT, DRY_RUN, SCALE, CONFIGURATION)
    refuse_text_arguments(word.lstrip("-").partition("=")[0] for word in arguments if word.startswith("--"))
    return parser.parse(arguments)


if __name__ == "__main__":
    sys.exit(run_safely(main))
