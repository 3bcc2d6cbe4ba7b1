"""Files are there in full or not at all."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from finflow.errors import OutputError
from finflow.files import check_writable, write_atomically, write_together


def test_text_and_bytes_are_written_as_given(tmp_path: Path) -> None:
    write_atomically(tmp_path / "text", "−1\r\nä\n")
    write_atomically(tmp_path / "bytes", b"\x00\xff")
    assert (tmp_path / "text").read_bytes() == "−1\r\nä\n".encode()
    assert (tmp_path / "bytes").read_bytes() == b"\x00\xff"


def test_missing_folders_are_made_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "file"
    write_atomically(path, "new")
    write_atomically(path, "newer")
    assert path.read_text() == "newer"
    assert os.listdir(path.parent) == ["file"]


def test_others_may_read_the_file_as_far_as_the_user_lets_them(tmp_path: Path) -> None:
    mask = os.umask(0o022)
    try:
        write_atomically(tmp_path / "file", "x")
    finally:
        os.umask(mask)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_full_disk_leaves_the_old_file_and_no_temporary_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, step, full)
    with pytest.raises(OutputError) as raised:
        write_atomically(path, "new")
    message = str(raised.value)
    assert str(path) in message
    assert "No space left on device" in message
    assert "\n" not in message
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_an_interrupt_leaves_the_old_file_and_no_temporary_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
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


def test_a_file_where_a_folder_should_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("x")
    with pytest.raises(OutputError, match="taken"):
        write_atomically(tmp_path / "taken" / "file", "y")


def test_a_folder_in_place_of_the_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(OutputError, match="taken"):
        write_atomically(tmp_path / "taken", "y")
    assert os.listdir(tmp_path) == ["taken"]
