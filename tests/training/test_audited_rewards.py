"""The audit covers rewards: a ranking is clean, and one that looks further than it says is caught and named."""

from __future__ import annotations

import pytest

from finflow.errors import ConfigError
from finflow.training.audit.configuration_audit import audit_configuration
from tests.short_trainings import FEW_EPISODES
from tests.training.whole_trainings import Make

pytestmark = pytest.mark.usefixtures("smaller_audit")
OWN = "tests.env.rewards.own_rewards"
KEYS = {**FEW_EPISODES, "objectives__ranking__k": 2}


def test_a_reward_that_declares_too_short_a_horizon_is_caught(tiny: Make) -> None:
    """Its table holds the return over five bars; it says that it needs one."""
    found = audit_configuration(tiny(**KEYS, objectives__reward=f"{OWN}:Forecast"))
    assert found.complaint is not None
    assert f"reward {OWN}:Forecast" in found.complaint


def test_rewards_that_say_how_far_they_look_are_clean(tiny: Make) -> None:
    names = ["builtin", "ranking", f"{OWN}:HonestForecast", f"{OWN}:ReturnOverThree"]
    found = audit_configuration(tiny(**KEYS, objectives__rewards=[{"name": name} for name in names]))
    assert found.complaint is None
    audited = {finding.component for finding in found.findings}
    assert {f"reward {name}" for name in names[1:]} <= audited
    assert all(finding.rows > 0 for finding in found.findings if finding.component.startswith("reward "))


def test_a_reward_that_cannot_be_imported_is_one_line(tiny: Make) -> None:
    with pytest.raises(ConfigError, match="cannot be imported"):
        audit_configuration(tiny(**KEYS, objectives__reward=f"{OWN}:Missing"))
