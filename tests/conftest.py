"""What every test can count on: no settings from outside, and the same hypothesis examples every time."""

from __future__ import annotations

import os

import hypothesis
import pytest

# A slow or busy machine must not fail a property, and a failure must come back on the next run.
hypothesis.settings.register_profile("finflow", deadline=None, derandomize=True)
hypothesis.settings.load_profile("finflow")


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("FINFLOW_"):
            monkeypatch.delenv(name)
