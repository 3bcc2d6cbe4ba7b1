"""Random portfolios as strategies, named by their seeds: segments that cover what no rule would hold."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from finflow.env.coverage import draw_coverage
from finflow.strategies.strategy import Information

PREFIX = "random-"
PURPOSE = 91  # of the generators that draw them
PERIODS = (1, 5, 21, 63)
"""Decisions between two draws, by the seed's remainder."""


def random_seed(name: str) -> int | None:
    """The seed in a name such as ``random-7``; None in any other name."""
    found = re.fullmatch(rf"{PREFIX}(0|[1-9][0-9]{{0,8}})", name)
    return None if found is None else int(found[1])


class RandomPortfolios:
    """Portfolios of the coverage mixture, drawn anew at every 1st, 5th, 21st or 63rd decision.

    Parameters
    ----------
    seed : int
        Draws the portfolios; its remainder modulo 4 chooses how often.
    """

    def __init__(self, seed: int) -> None:
        self.name = f"{PREFIX}{seed}"
        self._period = PERIODS[seed % len(PERIODS)]
        self._generator = np.random.default_rng(np.random.SeedSequence([PURPOSE, seed]))

    def decide(self, information: Information) -> NDArray[np.float64]:
        """A new portfolio of what is listed, or the present one, which trades nothing."""
        if information.step % self._period:
            return information.portfolio
        listed = information.listed[None]
        drawn: NDArray[np.float64] = draw_coverage(self._generator, 1, len(information.portfolio), listed)[0][0]
        return drawn
