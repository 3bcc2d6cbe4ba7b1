"""Whether any of several strategies beats a benchmark, and which, after all of them were looked at; by arch.

- SPA: Hansen, A Test for Superior Predictive Ability, Journal of Business & Economic Statistics 23 (2005). Its null:
  no strategy has a greater mean return than the benchmark.
- StepM: Romano and Wolf, Stepwise Multiple Testing as Formalized Data Snooping, Econometrica 73 (2005). It names the
  strategies that do, such that the chance of naming a single one wrongly is at most the size.

Both draw days in blocks (the stationary bootstrap), the same days for all strategies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finflow.evaluation.statistics.bootstrap import MINIMUM_BLOCKS
from finflow.evaluation.statistics.sharpe_tests import check_returns

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Superiority:
    """p-values of the SPA test, in [0, 1], by what is done about strategies that are clearly worse.

    Attributes
    ----------
    lower
        All that are worse are left out: too liberal.
    consistent
        Those are left out that are worse by more than chance would explain: the one to read.
    upper
        None is left out: White's reality check, too careful.
    strategies
        How many were compared with the benchmark.
    """

    lower: float
    consistent: float
    upper: float
    strategies: int


@dataclass(frozen=True)
class Resampling:
    """How days are drawn: resamples, mean block in days, and the seed."""

    samples: int
    block_length: int
    seed: int


def superior_ability(benchmark: Array, strategies: Mapping[str, Array], resampling: Resampling) -> Superiority:
    """Hansen's SPA test of mean returns.

    Parameters
    ----------
    benchmark : float64 (days,)
        Returns of the benchmark.
    strategies
        Name -> returns (days,).
    resampling

    Raises
    ------
    EvidenceError
        If there are gaps, or the window has fewer than `MINIMUM_BLOCKS` blocks.
    """
    from arch.bootstrap import SPA

    test = SPA(*_losses(benchmark, strategies, resampling), **_settings(resampling))
    test.compute()
    found = test.pvalues
    return Superiority(
        float(found["lower"]), float(found["consistent"]), float(found["upper"]), strategies=len(strategies)
    )


def superior_strategies(
    benchmark: Array, strategies: Mapping[str, Array], resampling: Resampling, size: float = 0.05
) -> tuple[str, ...]:
    """Names of the strategies that beat the benchmark by Romano and Wolf's StepM, in the order given.

    Parameters
    ----------
    benchmark, strategies, resampling
        As in `superior_ability`.
    size
        Chance of naming even one wrongly, in (0, 1).
    """
    from arch.bootstrap import SPA

    left, found = dict(strategies), set()
    while left:  # arch's own StepM breaks off with an error where every strategy is superior in the end
        test = SPA(*_losses(benchmark, left, resampling), **_settings(resampling))
        test.compute()
        names = list(left)
        better = {names[int(index)] for index in test.better_models(size)}
        if not better:
            break
        found |= better
        left = {name: returns for name, returns in left.items() if name not in better}
    return tuple(name for name in strategies if name in found)


def _losses(benchmark: Array, strategies: Mapping[str, Array], resampling: Resampling) -> tuple[Array, Array]:
    """What arch compares: losses, so returns with the sign turned."""
    fewest = max(MINIMUM_BLOCKS * resampling.block_length, 3)
    check_returns(benchmark, "the benchmark", fewest)
    for name, returns in strategies.items():
        check_returns(returns, name, fewest)
    return -benchmark, -np.column_stack(list(strategies.values()))


def _settings(resampling: Resampling) -> dict[str, Any]:
    return {
        "block_size": resampling.block_length,
        "reps": resampling.samples,
        "bootstrap": "stationary",
        "seed": np.random.default_rng(resampling.seed),
    }
