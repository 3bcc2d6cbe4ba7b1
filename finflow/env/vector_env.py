"""N portfolios that step together: a native gymnasium vector environment over one decision process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from finflow.arrays import BoolArray, FloatArray, IntArray
from finflow.env.coverage import draw_coverage
from finflow.env.decision_process import DecisionProcess
from finflow.env.portfolio_state import PortfolioState, replace_rows, rows_of
from finflow.errors import ConfigError, MarketError, refuse
from finflow.ledger.constraints import as_portfolio


def observation_space(process: DecisionProcess) -> gym.spaces.Dict:
    """Space of one observation: ``assets`` (N, F + 1), ``market`` (M,), ``portfolio`` (K + 3,)."""
    n_market = process.market_features.shape[1]
    return gym.spaces.Dict(
        {
            "assets": gym.spaces.Box(-np.inf, np.inf, process.asset_features.shape[1:], np.float32),
            "market": gym.spaces.Box(-np.inf, np.inf, (n_market,), np.float32),
            "portfolio": gym.spaces.Box(-np.inf, np.inf, (process.portfolio_size,), np.float64),
        }
    )


def action_space(process: DecisionProcess) -> gym.spaces.Box:
    """Target weights, cash last; vectors off the simplex are projected onto it."""
    return gym.spaces.Box(0.0, 1.0, (process.n_weights,), np.float32)


def running_sharpe(sums: FloatArray, bars_per_year: int) -> FloatArray:
    """Sharpe ratio a year (N,) from count, sum and sum of squares (N, 3) of each episode's returns in excess of cash.

    Zero before there are two returns, or without any variation.
    """
    count, total, squares = sums.T
    mean = total / np.maximum(count, 1.0)
    variance = (squares - count * mean**2) / np.maximum(count - 1.0, 1.0)
    deviation = np.sqrt(np.maximum(variance, 0.0))
    safe = np.where(deviation > 1e-12, deviation, np.inf)
    return np.where(count > 1.0, mean / safe * np.sqrt(bars_per_year), 0.0)


class PortfolioVectorEnv(gym.vector.VectorEnv[Any, Any, Any]):
    """N portfolios over one market, each in its own episode; finished ones start again in the same step.

    Parameters
    ----------
    window : range, or several
        Bars that episodes stay within; of several ranges, each episode within one. `MarketError` if it is too short.
    episode_length : int or None
        Decisions of an episode; None is the whole window, from its beginning.
    random_portfolios : bool
        Start from portfolios that cover the simplex, not from cash.

    Attributes
    ----------
    starts : int array
        Bars that a whole episode may start at.
    """

    metadata: dict[str, Any] = {"render_modes": [], "autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

    def __init__(
        self,
        process: DecisionProcess,
        window: range | Sequence[range],
        num_envs: int,
        episode_length: int | None = None,
        random_portfolios: bool = False,
    ) -> None:
        refuse(num_envs < 1, f"num_envs = {num_envs}: must be at least 1", ConfigError)
        self.process = process
        segments = [process.decision_bars(one) for one in ([window] if isinstance(window, range) else window)]
        longest = max(len(bars) for bars in segments)
        self.episode_length = longest if episode_length is None else episode_length
        if longest < max(self.episode_length, 1):
            raise MarketError(
                f"the window has {longest} bars to decide at, fewer than env.episode_length "
                f"({self.episode_length}); move its dates or shorten the episodes"
            )
        self.bars = np.concatenate([np.arange(bars.start, bars.stop) for bars in segments])
        # the last bar of a window has no decision, so that two windows never touch
        self._inside = np.isin(np.arange(len(process.growth) + 1), self.bars)
        self.starts = np.concatenate([np.arange(bars.start, bars.stop - self.episode_length + 1) for bars in segments])
        self.random_portfolios = random_portfolios
        self.num_envs = num_envs
        self.single_observation_space = observation_space(process)
        self.single_action_space = action_space(process)
        self.observation_space = gym.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.action_space = gym.vector.utils.batch_space(self.single_action_space, num_envs)
        self.state = process.start(np.full(num_envs, self.bars[0], dtype=np.int64))
        self.age = np.zeros(num_envs, dtype=np.int64)
        self.excess_sums = np.zeros((num_envs, 3))  # of every episode so far, as `running_sharpe` takes them

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start every episode.

        ``options`` may give ``bars`` (N,), the first to decide at, and ``weights`` (N, K), the portfolios held then.
        An episode that starts too late for its whole length is truncated where the window ends.
        """
        if isinstance(seed, list):
            raise ConfigError("a vector of portfolios takes one seed, from which all of them are drawn")
        if seed is not None:
            self._np_random, self._np_random_seed = seeding.np_random(seed)
        options = check_options(options, ("bars", "weights"))
        bars, weights = options.get("bars"), options.get("weights")
        if bars is not None and np.shape(bars) != (self.num_envs,):
            raise ValueError(f"bars have the shape {np.shape(bars)}, not {(self.num_envs,)}")
        if bars is not None and not np.isin(bars, self.bars).all():
            first, last = self.bars[0], self.bars[-1]
            raise ValueError(f"an episode can start at the bars {first} to {last}, not at {bars}")
        if weights is not None:
            weights = as_portfolio(checked_actions(weights, self.num_envs, self.process.n_weights, "weights"))
        self._restart(np.ones(self.num_envs, dtype=np.bool_), bars, weights)
        return self.process.observe(self.state), {}

    def step(self, actions: Any) -> tuple[dict[str, Any], FloatArray, BoolArray, BoolArray, dict[str, Any]]:
        """Fill N targets (N, K) and hold them for a bar.

        ``info`` has ``sharpe``, ``cost``, ``turnover``, ``wealth``, ``refused`` (whether the account could not pay for
        the trade, and kept what it held) and the reward's components, all of the step itself, and where episodes ended
        ``final_obs`` (N,), the last observation of each that did, with its mask ``_final_obs``, as gymnasium's own
        vector environments give it. ``final_state`` has all N states.
        """
        outcome = self.process.step(self.state, checked_actions(actions, self.num_envs, self.process.n_weights))
        self.state = outcome.state
        excess = outcome.simple_return - (self.process.growth[self.state.bar, -1] - 1.0)
        self.excess_sums += np.stack([np.ones_like(excess), excess, excess**2], axis=1)
        observation = self.process.observe(self.state)
        self.age += 1
        over = (self.age >= self.episode_length) | ~self._inside[self.state.bar]
        truncated = np.greater(over, outcome.terminated)
        info: dict[str, Any] = {
            "sharpe": running_sharpe(self.excess_sums, self.process.panel.bars_per_year),
            "wealth": outcome.state.wealth,
            "cost": outcome.cost,
            "turnover": outcome.turnover,
            "refused": np.zeros(self.num_envs, dtype=np.bool_) if outcome.refused is None else outcome.refused,
        }
        for i, name in enumerate(self.process.reward_names):
            info[f"reward_{name}"] = outcome.components[:, i]
        ended = over | outcome.terminated
        if np.count_nonzero(ended):
            info["final_obs"] = last_observations(observation, ended)
            info["_final_obs"] = ended
            info["final_state"] = self.state
            self._restart(ended)
            for name, values in self.process.observe(rows_of(self.state, ended)).items():
                observation[name][ended] = values
        return observation, outcome.reward, outcome.terminated, truncated, info

    def _restart(self, which: BoolArray, bars: IntArray | None = None, weights: FloatArray | None = None) -> None:
        count = int(which.sum())
        if bars is None:
            bars = self.starts[self.np_random.integers(len(self.starts), size=count)]
        if weights is None and self.random_portfolios:
            weights, _ = draw_coverage(self.np_random, count, self.process.n_weights)
        fresh = self.process.start(np.asarray(bars, dtype=np.int64), weights)
        self.state = replace_rows(self.state, which, fresh)
        self.age = np.where(which, 0, self.age)
        self.excess_sums[which] = 0.0

    def get_state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Return the arrays that the next steps depend on, by name, and the generator's state."""
        arrays = {**vars(self.state), "age": self.age, "running_sharpe": self.excess_sums}
        return {name: np.array(value) for name, value in arrays.items()}, dict(self.np_random.bit_generator.state)

    def set_state(self, arrays: dict[str, NDArray[Any]], generator: dict[str, Any]) -> None:
        fields = dict(arrays)
        self.age = fields.pop("age").copy()
        self.excess_sums = fields.pop("running_sharpe").copy()
        self.state = PortfolioState(**{name: value.copy() for name, value in fields.items()})
        self._np_random = np.random.default_rng()
        self._np_random.bit_generator.state = generator


def check_options(options: dict[str, Any] | None, known: tuple[str, ...]) -> dict[str, Any]:
    """Return the options of a reset; ``ValueError`` for an unknown name."""
    for name in options or {}:
        if name not in known:
            raise ValueError(f"reset() has no option {name!r}; it has {' and '.join(known)}")
    return options or {}


def checked_actions(actions: Any, num_envs: int, n_weights: int, what: str = "actions") -> FloatArray:
    """Actions as float64 (N, K); ``ValueError`` for another shape or numbers that are not finite."""
    checked = np.asarray(actions, dtype=np.float64)
    if checked.shape != (num_envs, n_weights):
        raise ValueError(f"{what} have the shape {checked.shape}, not {(num_envs, n_weights)} (assets, then cash)")
    if not np.isfinite(checked.sum()) and not np.isfinite(checked).all():
        raise ValueError(f"{what} have numbers that are not finite")
    return checked


def last_observations(observation: dict[str, Any], ended: BoolArray) -> NDArray[np.object_]:
    """Observations of the episodes that ended, one dict each, and None for the others; (N,)."""
    last = np.full(len(ended), None, dtype=object)
    rows = zip(*(value[ended] for value in observation.values()), strict=True)
    for i, row in zip(np.flatnonzero(ended), rows, strict=True):
        last[i] = dict(zip(observation, row, strict=True))
    return last


class PortfolioEnv(gym.Env[dict[str, Any], NDArray[Any]]):
    """One portfolio, one episode at a time; parameters as of `PortfolioVectorEnv`."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012

    def __init__(
        self,
        process: DecisionProcess,
        window: range | Sequence[range],
        episode_length: int | None = None,
        random_portfolios: bool = False,
    ) -> None:
        self._portfolios = PortfolioVectorEnv(process, window, 1, episode_length, random_portfolios)
        self._ended = True
        self.observation_space = self._portfolios.single_observation_space
        self.action_space = self._portfolios.single_action_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start an episode; ``options`` may give ``bar`` and ``weights`` (K,)."""
        super().reset(seed=seed)
        self._ended = False
        options = check_options(options, ("bar", "weights"))
        batched: dict[str, Any] = {}
        if "bar" in options:
            batched["bars"] = np.array([options["bar"]])
        if "weights" in options:
            batched["weights"] = np.asarray(options["weights"], dtype=np.float64)[None]
        self._portfolios._np_random = self.np_random
        observation, _ = self._portfolios.reset(options=batched)
        return _first(observation), {"sharpe": 0.0, "wealth": float(self._portfolios.state.wealth[0])}

    def step(self, action: NDArray[Any]) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Fill a target and hold it for a bar; ``info`` is that of ``PortfolioVectorEnv``, as plain numbers."""
        if self._ended:
            raise gym.error.ResetNeeded("the episode has ended: call reset() before step()")
        observation, reward, terminated, truncated, info = self._portfolios.step(np.asarray(action)[None])
        self._ended = bool(terminated[0] or truncated[0])
        last = info.pop("final_obs", [_first(observation)])[0]
        facts = {name: value[0].item() for name, value in info.items() if name not in ("_final_obs", "final_state")}
        return last, float(reward[0]), bool(terminated[0]), bool(truncated[0]), facts


def _first(observation: dict[str, Any]) -> dict[str, Any]:
    return {name: value[0] for name, value in observation.items()}
