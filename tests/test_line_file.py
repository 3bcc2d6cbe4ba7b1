"""Files that grow: lines are added and taken back whole."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from finflow.errors import OutputError
from finflow.files import file_in_use
from finflow.line_file import append_line, drop_last_line


def test_lines_are_added_and_taken_back_from_the_end(tmp_path: Path) -> None:
    path = tmp_path / "new" / "lines"
    for line in ("one", "größer", "three"):
        append_line(path, line)
    drop_last_line(path, "three")
    drop_last_line(path, "größer")
    assert path.read_text("utf-8") == "one\n"
    with pytest.raises(OutputError, match="ends with another line"):
        drop_last_line(path, "ne")
    drop_last_line(path, "one")
    assert path.read_bytes() == b""


def test_a_line_that_a_crash_cut_short_spoils_no_other(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"one\ntw")
    append_line(path, "three")
    assert path.read_bytes() == b"one\ntw\nthree\n"


def test_a_full_disk_leaves_the_lines_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lines"
    append_line(path, "one")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OutputError, match="No space left on device"):
            append_line(path, "two")
    assert path.read_bytes() == b"one\n"


def test_a_file_has_one_user_at_a_time_and_its_lock_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "lines"
    with (
        file_in_use(path, "writing to"),
        pytest.raises(OutputError, match=f"another process is writing to {path}; wait for it"),
        file_in_use(path, "writing to"),
    ):
        pass
    assert os.listdir(tmp_path) == []
