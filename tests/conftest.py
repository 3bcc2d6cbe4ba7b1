"""What every test can count on: no settings from outside, and the same hypothesis examples every time."""

from __future__ import annotations

import os

# Before torch is loaded: on two cores, two threads are far slower than one whenever the other core is busy.
os.environ.setdefault("OMP_NUM_THREADS", "1")

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
