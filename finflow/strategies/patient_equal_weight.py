"""Equal weight as one would really hold it: restored now and then, not every day."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from finflow.strategies.strategy import Information, equal_weights

PATIENT = "equal-weight-patient"
MONTH = 21  # decisions; no key of the configuration, since the verdict rests on it


class PatientEqualWeight:
    """Equal weight, restored at every ``MONTH``-th decision and held in between: it trades far less.

    The verdict asks for it, because what only saves the costs of daily rebalancing has not beaten equal weight.
    """

    name = PATIENT

    def decide(self, information: Information) -> NDArray[np.float64]:
        """Equal weights when it is time, otherwise what is held, (K,)."""
        if information.step % MONTH:
            return information.portfolio
        return equal_weights(information.listed)
