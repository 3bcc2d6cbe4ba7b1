"""Whatever a command raises ends in one line and a status; signals; and the process as a user starts it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from finflow.cli import exit_status
from finflow.cli.exit_status import run_safely, stopping_between_updates
from finflow.errors import MarketError
from tests.commands import ctrl_c_as

ROOT = Path(__file__).parents[2]


def raising(error: BaseException) -> Callable[[Sequence[str]], None]:
    def command(arguments: Sequence[str]) -> None:
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (MarketError("no\nprices"), 2, "error: no prices"),
        (FileNotFoundError(2, "No such file or directory", "prices.csv"), 2, "error: prices.csv: No such file"),
        (OSError(28, "No space left on device"), 2, "error: No space left on device"),
        (MemoryError(), 2, "error: out of memory: use smaller batches"),
        (RuntimeError("[enforce fail] can't allocate memory: 9 bytes"), 2, "error: out of memory: use smaller batches"),
        (ModuleNotFoundError("no", name="torch"), 2, "error: the package torch is not installed"),
        (KeyboardInterrupt(), 130, "stopped"),
        (KeyboardInterrupt("stopped; to continue: ..."), 130, "stopped; to continue: ..."),
        (ModuleNotFoundError("no", name="finflow.x"), 1, "fault in finflow: ModuleNotFoundError: no"),
        (ValueError("two\nlines"), 1, "fault in finflow: ValueError: two lines (test_safety.py, line"),
    ],
)
def test_whatever_is_raised_ends_in_one_line_and_a_status(
    error: BaseException,
    status: int,
    words: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert run_safely(raising(error), []) == status
    written = capsys.readouterr().err
    assert written.count("\n") == 1
    assert written.startswith(words)


def test_ctrl_c_in_an_import_is_ctrl_c_whatever_the_import_makes_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    def command(arguments: Sequence[str]) -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise RecursionError("half an import") from None

    with ctrl_c_as(signal.default_int_handler):
        assert run_safely(command, []) == 130
        assert capsys.readouterr().err == "stopped\n"
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_for_a_stop_and_the_second_stops_at_once(
    first: signal.Signals, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(exit_status, "request_stop", lambda: asked.append(True))
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with stopping_between_updates():
        signal.raise_signal(first)
        assert asked == [True]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert asked == [True]
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    assert "once more to stop at once" in capfd.readouterr().err


def test_another_thread_trains_without_touching_the_handlers() -> None:
    before, seen = signal.getsignal(signal.SIGINT), []

    def work() -> None:
        with stopping_between_updates():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]


def test_an_interrupt_stops_a_command_that_a_shell_started_in_the_background() -> None:
    with ctrl_c_as(signal.SIG_IGN):
        assert run_safely(lambda _: signal.raise_signal(signal.SIGINT), []) == 130
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_output_that_was_closed_is_no_fault() -> None:
    command = f'exec "{sys.executable}" "{ROOT / "main.py"}" --help-config >&-'
    ended = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_the_traceback_of_a_fault_is_kept_in_a_file_or_shown_with_verbose(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert run_safely(raising(ValueError("why")), []) == 1
    (kept,) = tmp_path.iterdir()
    assert str(kept) in capsys.readouterr().err
    assert "ValueError: why" in kept.read_text("utf-8")
    assert run_safely(raising(ValueError("why")), ["--verbose"]) == 1
    said = capsys.readouterr().err
    assert "Traceback (most recent call last)" in said
    assert said.rstrip().splitlines()[-1].startswith("fault in finflow: ValueError: why")


def test_warnings_of_libraries_are_shown_only_when_asked_for() -> None:
    script = (
        "import sys, warnings\n"
        "from finflow.cli.exit_status import run_safely\n"
        "run_safely(lambda arguments: warnings.warn('old', DeprecationWarning) or warnings.warn('litter'))"
    )
    quiet = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert quiet.stderr == ""
    loud = subprocess.run(
        [sys.executable, "-c", script, "--verbose"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "litter" in loud.stderr


def test_the_process_ends_with_status_2_and_leaves_nothing_behind(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "main.py"), "--mode", "train", "--set", "bcell.gama=1"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("error: unknown key bcell.gama")
    assert ended.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_help_and_mistakes_load_nothing_heavy() -> None:
    script = (
        "import sys\nfrom finflow.cli import main\n"
        "main([]), main(['--help-config']), main(['--mode', 'train', '--set', 'a=1'])\n"
        "print(sorted({'torch', 'pandas', 'numpy', 'skfolio', 'matplotlib'} & set(sys.modules)))"
    )
    ended = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "--set" in ended.stdout
    assert ended.stdout.splitlines()[-1] == "[]"


def test_a_reader_that_leaves_early_is_no_fault() -> None:
    command = [sys.executable, str(ROOT / "main.py"), "--help-config"]
    reader, writer = os.pipe()
    os.close(reader)
    try:
        ended = subprocess.run(command, cwd=ROOT, stdout=writer, stderr=subprocess.PIPE, timeout=60, check=False)
    finally:
        os.close(writer)
    assert (ended.returncode, ended.stderr) == (141, b"")
