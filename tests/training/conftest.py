"""A market and a configuration small enough to train on in seconds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tensorboard.summary.writer import event_file_writer

from finflow.config import Config
from finflow.evaluation.report.results import ReportData
from finflow.market.features import market_features as crisis
from finflow.market.panel import MarketPanel, Split
from finflow.strategies.classical import NAMED
from finflow.training.audit import audit_subjects as audited, configuration_audit as auditing
from finflow.training.audit.look_ahead import Probe
from finflow.training.judging import held_out
from finflow.training.phases.stopping import request_stop
from finflow.training.phases.training_run import TrainingRun
from finflow.training.trainer import FinFlowTrainer
from tests.training.whole_trainings import Make, Stop, tiny_in


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Makes tiny configurations of one market for all tests of a file."""
    return tiny_in(tmp_path_factory.mktemp("shared"))


@pytest.fixture
def tiny(tmp_path: Path) -> Make:
    """Makes tiny configurations; keys in keyword form, ``bcell__dropout=0.1``."""
    return tiny_in(tmp_path)


@pytest.fixture
def stop_training(monkeypatch: pytest.MonkeyPatch) -> Stop:
    """Trains until a stop is asked for, before so many updates and warm-up steps."""

    def stop(config: Config, when: int) -> FinFlowTrainer:
        trainer, calls, original = FinFlowTrainer(config), 0, TrainingRun.stop_if_asked

        def count(run: TrainingRun) -> None:
            nonlocal calls
            calls += 1
            if calls == when:
                request_stop()
            original(run)

        with monkeypatch.context() as patch:
            patch.setattr(TrainingRun, "stop_if_asked", count)
            with pytest.raises(KeyboardInterrupt):
                trainer.train()
        return trainer

    return stop


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> list[ReportData]:
    """What reports would be made from; without the figures, which take seconds."""
    made: list[ReportData] = []

    def keep(folder: Path, data: ReportData) -> Path:
        made.append(data)
        return folder / "report.html"

    monkeypatch.setattr(held_out, "write_report", keep)
    return made


@pytest.fixture
def no_sections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports without the sections that play again, and with few compared strategies."""
    monkeypatch.setattr(held_out, "sections_of", lambda *given: ())
    monkeypatch.setattr(held_out, "COMPARED", ("equal-weight", "buy-and-hold", "momentum"))


@pytest.fixture
def smaller_audit(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """An audit of seconds: strategies that need no solver, few probes; what needs the whole one asks for it."""
    if "whole_audit" in request.fixturenames:
        return
    few = {name: NAMED[name] for name in ("equal-weight", "buy-and-hold", "momentum")}
    monkeypatch.setattr(auditing, "NAMED", few)
    real = auditing.probes_of

    def fewer(split: Split, first_bar: int, lag: int, seed: int) -> tuple[Probe, ...]:
        """Once in training and at the ends of the windows: the same again, the cut and the wildest shock."""
        bars = {split.train_end - 1, split.validation_end - 1, split.test_end - lag - 3}
        kinds, probes = ("repeat", "cut", "replaced"), real(split, first_bar, lag, seed)
        bars.add(min(probe.last for probe in probes))
        return tuple(probe for probe in probes if probe.last in bars and probe.kind in kinds)

    def near(panel: MarketPanel, split: Split, first: int, lag: int, seed: int) -> list[range]:
        """A day in the test window."""
        return [range(split.validation_end + 30, split.validation_end + 31)]

    monkeypatch.setattr(auditing, "probes_of", fewer)
    monkeypatch.setattr(auditing, "single_bars", near)
    monkeypatch.setattr(auditing, "unprimed", lambda *given: {})
    monkeypatch.setattr(audited, "BEFORE", 5)
    # What the states are fitted on is audited, not how well.
    monkeypatch.setattr(crisis, "_ROUNDS", 10)


@pytest.fixture(autouse=True)
def _numbered_event_files() -> Iterator[None]:
    """Event files are read in the order of their names: those of one second end in a number, of one digit here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(0))
        yield
