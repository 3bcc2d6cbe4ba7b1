"""Section `online`: the learning of the online phase."""

from __future__ import annotations

from typing import Literal

from finflow.config.section_types import Section, key


class OnlineConfig(Section):
    """Algorithm of the online phase."""

    algorithm: Literal["rollouts", "sac"] = key(
        "rollouts",
        "learning of the online phase: exact gradients of rollouts through the decision process, or distributional "
        "soft actor-critic with CQL, which alpha, target entropy, CQL, anchor and gate balance belong to",
    )
