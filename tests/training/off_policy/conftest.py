"""A training with evidence out of fold."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from finflow.training.off_policy.evidence import OutOfFold
from finflow.training.off_policy.learners import Learners
from finflow.training.trainer import FinFlowTrainer
from tests.training.whole_trainings import WITH_BLOCKS, Make, train_through


class Trained(NamedTuple):
    """A training that is over, and what makes others in its folder."""

    trainer: FinFlowTrainer
    make: Make

    @property
    def learners(self) -> Learners:
        found = self.trainer._begin().state.learners
        assert found is not None
        return found

    @property
    def evidence(self) -> OutOfFold:
        found = self.trainer._begin().state.out_of_fold
        assert found is not None
        return found


@pytest.fixture(scope="module")
def trained(shared: Make) -> Trained:
    return Trained(train_through(shared(**WITH_BLOCKS)), shared)
