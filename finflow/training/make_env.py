"""A configuration's environment in one line, for agents and libraries of a user's own."""

from __future__ import annotations

from pathlib import Path
from typing import overload

from finflow.config import Config, load_config
from finflow.env.vector_env import PortfolioEnv, PortfolioVectorEnv
from finflow.errors import ConfigError
from finflow.training.data.training_data import prepare

SPLITS = ("train", "validation", "test")


@overload
def make_env(
    config: Config | Path | str | None = ...,
    split: str = ...,
    num_envs: None = ...,
    *,
    whole_window: bool | None = ...,
    random_portfolios: bool = ...,
    final_evaluation: bool = ...,
) -> PortfolioEnv: ...


@overload
def make_env(
    config: Config | Path | str | None = ...,
    split: str = ...,
    *,
    num_envs: int,
    whole_window: bool | None = ...,
    random_portfolios: bool = ...,
    final_evaluation: bool = ...,
) -> PortfolioVectorEnv: ...


def make_env(
    config: Config | Path | str | None = None,
    split: str = "train",
    num_envs: int | None = None,
    *,
    whole_window: bool | None = None,
    random_portfolios: bool = False,
    final_evaluation: bool = False,
) -> PortfolioEnv | PortfolioVectorEnv:
    """Make the environment of a configuration: its prices, features, costs, limits and reward.

    Parameters
    ----------
    split : str
        ``train``, ``validation`` or ``test``: the window that episodes stay within.
    num_envs : int, optional
        Portfolios of a ``PortfolioVectorEnv``; one ``PortfolioEnv`` when left out.
    whole_window : bool, optional
        Whether an episode is the whole window; otherwise it is ``env.episode_length`` decisions from a random start.
        When left out: random starts for ``train``, the whole window for the others.
    random_portfolios : bool
        Start from random portfolios, not from cash.
    final_evaluation : bool
        Needed for ``test``, and for nothing else: that this is the last look, after everything has been chosen.

    Raises
    ------
    ConfigError
        If the split is not one of the three, or ``test`` is asked for without ``final_evaluation``.
    MarketError
        If prices are missing, wrong or too few.

    Examples
    --------
    >>> import finflow
    >>> env = finflow.make_env(split="validation")
    >>> observation, info = env.reset(seed=0)
    >>> len(env.action_space.low)  # 20 stocks and cash
    21
    """
    if split not in SPLITS:
        raise ConfigError(f"split = {split!r}: must be one of {', '.join(SPLITS)}")
    if split == "test" and not final_evaluation:
        raise ConfigError(
            "the test window is for the final evaluation alone: choose by split='validation', and pass "
            "final_evaluation=True when nothing is left to be chosen"
        )
    training_data = prepare(config if isinstance(config, Config) else load_config(config))
    process = training_data.process
    window: range | tuple[range, ...] = getattr(training_data.split, split)
    if split == "test":
        process = training_data.held_out_process()
    if split == "train":
        process, window = training_data.learning, training_data.train
    whole = split != "train" if whole_window is None else whole_window
    length = None if whole else training_data.config.env.episode_length
    if num_envs is None:
        return PortfolioEnv(process, window, length, random_portfolios)
    return PortfolioVectorEnv(process, window, num_envs, length, random_portfolios)
