"""Golden runs have phases as they are for users."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module", autouse=True)
def quick_phases() -> None:
    """Shorten nothing."""
