"""A torch profiler trace of a few updates of each phase: where the time of an update goes."""

from __future__ import annotations

from pathlib import Path

from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile, supported_activities

from finflow.errors import OutputError

FIRST, LAST = 20, 25  # updates after the caches are warm


class UpdateProfiler:
    """Profiles the updates between two counts of each phase.

    Parameters
    ----------
    folder : Path
        Where ``trace_offline.json`` and ``trace_online.json`` go, for Perfetto or chrome://tracing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._running: profile | None = None

    def after_update(self, phase: str, count: int) -> None:
        """Start, stop or go on, ``count`` updates into a phase.

        Raises
        ------
        OutputError
            If the trace cannot be written.
        """
        if count == FIRST:
            wanted = {ProfilerActivity.CPU, ProfilerActivity.CUDA} & set(supported_activities())  # type: ignore[no-untyped-call]
            both = _ExperimentalConfig(profile_all_threads=True)  # or what is done on a second core were left out
            self._running = profile(activities=wanted, experimental_config=both)
            self._running.start()
        elif count == LAST and self._running is not None:
            self._running.stop()
            path = self.folder / f"trace_{phase}.json"
            try:
                self._running.export_chrome_trace(str(path))
            except (OSError, RuntimeError) as error:
                raise OutputError(f"cannot write {path}: {error}") from error
            self._running = None
