"""Files are there in full or not at all, and those that grow have whole lines."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from finflow.errors import OutputError
from finflow.files import check_writable, in_use, write_atomically, write_together
from finflow.line_file import append_line


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_text_and_bytes_are_written_as_given_and_nothing_else_is_left(tmp_path: Path) -> None:
    """Others may read the file as far as the user lets them."""
    path, mask = tmp_path / "a" / "b" / "file", os.umask(0o022)
    write_atomically(path, b"\x00\xff")
    os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o644
    assert path.read_bytes() == b"\x00\xff"
    write_atomically(path, "−1\r\nä\n")
    assert path.read_bytes() == "−1\r\nä\n".encode()
    assert os.listdir(path.parent) == ["file"]


@pytest.mark.parametrize(
    ("step", "fault", "error"),
    [
        ("fsync", full, (OutputError, "file: No space left on device")),
        ("replace", full, (OutputError, "file: No space left on device")),
        ("replace", interrupt, (KeyboardInterrupt, None)),
    ],
)
def test_a_full_disk_and_an_interrupt_leave_the_old_file_and_no_temporary_one(
    step: str,
    fault: Callable[..., None],
    error: tuple[type[BaseException], str | None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    monkeypatch.setattr(os, step, fault)
    with pytest.raises(error[0], match=error[1]):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_files_written_together_are_all_new_or_all_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {tmp_path / name: "new" for name in ("a", "b", "c")}
    for path in files:
        path.write_text("old")
    flush, flushed = os.fsync, []

    def full_at_the_third(descriptor: int) -> None:
        flushed.append(descriptor)
        if len(flushed) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", full_at_the_third)
    with pytest.raises(OutputError, match=r"cannot write .*c: No space left on device; free some space there"):
        write_together(files)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a": "old", "b": "old", "c": "old"}
    write_together(files)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a": "new", "b": "new", "c": "new"}


@pytest.mark.parametrize("keep", [True, False])
def test_a_folder_that_was_only_tried_is_not_left_behind(tmp_path: Path, keep: bool) -> None:
    (tmp_path / "mine").mkdir()
    check_writable(tmp_path / "mine" / "a" / "b", keep=keep)
    assert [path.name for path in sorted(tmp_path.rglob("*"))] == (["mine", "a", "b"] if keep else ["mine"])


@pytest.mark.parametrize("place", ["taken", "taken/file"])
def test_a_folder_in_place_of_the_file_or_a_file_in_place_of_its_folder_is_named(place: str, tmp_path: Path) -> None:
    if place == "taken":
        (tmp_path / "taken").mkdir()
    else:
        (tmp_path / "taken").write_text("x")
    with pytest.raises(OutputError, match="taken"):
        write_atomically(tmp_path / place, "y")
    assert os.listdir(tmp_path) == ["taken"]


def test_neither_a_line_cut_short_by_a_crash_nor_a_full_disk_spoils_the_lines_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lines"
    append_line(path, "one")
    path.write_bytes(path.read_bytes() + b"tw")
    append_line(path, "three")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match="No space left on device"):
        append_line(path, "four")
    assert path.read_bytes() == b"one\ntw\nthree\n"


def test_a_file_has_one_user_at_a_time_and_its_lock_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "lines"
    with (
        in_use(path, "writing to"),
        pytest.raises(OutputError, match=f"another process is writing to {path}; wait for it"),
        in_use(path, "writing to"),
    ):
        pass
    assert os.listdir(tmp_path) == []
