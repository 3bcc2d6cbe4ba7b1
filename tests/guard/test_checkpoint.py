"""Checkpoints are kept, found and fallen back on; a stop or a full disk at any moment leaves the previous ones."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from finflow.errors import CheckpointError, OutputError
from finflow.guard.checkpoint_folder import (
    BEST,
    LATEST,
    MODELS,
    PRETRAINED,
    CheckpointFolder,
    CheckpointWriter,
    numbered,
)
from finflow.tensor_file import read_tensors
from finflow.training.checkpoints.checkpoint_reader import read_newest
from finflow.training.checkpoints.run_folder import resolve_run


def fill(folder: CheckpointFolder, *updates: int) -> None:
    for update in updates:
        folder.save(update, {"a": torch.full((3,), float(update))}, {"update": update})


def updates_in(folder: CheckpointFolder) -> list[int]:
    return [read_tensors(path)[1]["update"] for path in folder.numbered()]


def damage(path: Path) -> None:
    """Half a file, in a file of its own: other names of the same content stay whole."""
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content[: len(content) // 2])


def no_space(*_: object, **__: object) -> None:
    raise OSError(28, "No space left on device")


@pytest.fixture
def folder(tmp_path: Path) -> CheckpointFolder:
    return CheckpointFolder(tmp_path / "run" / MODELS, max_checkpoints=3)


def test_the_newest_are_kept_and_the_latest_is_the_newest(folder: CheckpointFolder) -> None:
    fill(folder, 1, 9, 10, 99, 100_000, 1_000_000)
    assert updates_in(folder) == [1_000_000, 100_000, 99]
    assert read_tensors(folder.path(LATEST))[1]["update"] == 1_000_000
    assert sorted(path.name for path in folder.folder.iterdir()) == sorted(
        [f"{name}.safetensors" for name in (LATEST, *map(numbered, (99, 100_000, 1_000_000)))]
    )


@pytest.mark.parametrize("linked", [True, False])
def test_latest_and_numbered_hold_the_same_and_stay_apart(
    folder: CheckpointFolder, monkeypatch: pytest.MonkeyPatch, linked: bool
) -> None:
    """Also on a file system without hard links, and where a process that was killed left a half-made one."""

    def unsupported(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    if not linked:
        monkeypatch.setattr(os, "link", unsupported)
    fill(folder, 1)
    (folder.folder / f".{numbered(2)}.{os.getpid()}.tmp").write_bytes(b"left")
    fill(folder, 2)
    assert folder.path(numbered(2)).samefile(folder.path(LATEST)) is linked
    assert read_tensors(folder.path(numbered(1)))[1]["update"] == 1
    assert read_tensors(folder.path(LATEST))[1]["update"] == 2
    folder.save(2, {"a": torch.zeros(1)}, {"update": 2, "again": True})
    assert read_tensors(folder.path(numbered(2)))[1]["again"]
    assert not [path for path in folder.folder.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"max_checkpoints": 1}, [numbered(2), LATEST, BEST, PRETRAINED]),
        ({"max_checkpoints": 0}, [LATEST, BEST, PRETRAINED]),
        ({"save_latest": False}, [numbered(1), numbered(2), BEST, PRETRAINED]),
        ({"max_checkpoints": 0, "save_latest": False, "save_best": False}, [PRETRAINED]),
    ],
)
def test_what_is_not_wanted_is_not_kept(tmp_path: Path, options: dict[str, int], names: list[str]) -> None:
    folder = CheckpointFolder(tmp_path, **options)
    for name in (BEST, PRETRAINED):
        folder.save_as(name, {}, {})
    fill(folder, 1, 2)
    assert sorted(path.stem for path in tmp_path.iterdir()) == sorted(names)


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_full_disk_leaves_every_previous_checkpoint(
    folder: CheckpointFolder, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    fill(folder, 1, 2, 3)
    before = {path.name: path.read_bytes() for path in folder.folder.iterdir()}
    with monkeypatch.context() as patch:
        patch.setattr(os, step, no_space)
        with pytest.raises(OutputError, match="No space left"):
            fill(folder, 4)
    assert {path.name: path.read_bytes() for path in folder.folder.iterdir()} == before


def test_a_stop_between_two_names_leaves_a_run_that_can_go_on(
    folder: CheckpointFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after the latest was written, before it got its number."""
    fill(folder, 1)
    with monkeypatch.context() as patch:

        def killed(*_: object) -> None:
            raise KeyboardInterrupt

        patch.setattr(os, "link", killed)
        with pytest.raises(KeyboardInterrupt):
            fill(folder, 2)
    found = read_newest(folder.folder.parent)
    assert (found.path.stem, found.facts["update"], found.warning) == (LATEST, 2, None)
    fill(folder, 3)
    assert updates_in(folder) == [3, 1]


def test_without_a_latest_the_newest_numbered_is_found_then_the_best_then_the_pretrained(
    folder: CheckpointFolder,
) -> None:
    fill(folder, 1, 2)
    folder.save_as(BEST, {}, {})
    folder.save_as(PRETRAINED, {}, {})
    for name in (LATEST, numbered(2), numbered(1), BEST, PRETRAINED):
        found = resolve_run(folder.folder).find_checkpoint()
        assert found.stem == name
        found.unlink()


@pytest.mark.parametrize(
    ("damaged", "left"), [([], LATEST), ([LATEST, numbered(3)], numbered(2)), ([LATEST, numbered(2)], numbered(3))]
)
def test_a_damaged_latest_falls_back_to_the_newest_whole_one_and_says_so(
    folder: CheckpointFolder, damaged: list[str], left: str
) -> None:
    fill(folder, 1, 2, 3)
    for name in damaged:
        damage(folder.path(name))
    path, tensors, state, warning = read_newest(folder.folder.parent)
    assert path == folder.path(left)
    assert tensors["a"].tolist() == [state["update"]] * 3
    assert (warning is None) == (not damaged)
    assert warning is None or (folder.path(LATEST).name in warning and "\n" not in warning)


def test_a_file_that_was_named_is_never_replaced_by_another(folder: CheckpointFolder) -> None:
    fill(folder, 1, 2)
    damage(folder.path(LATEST))
    with pytest.raises(CheckpointError, match="damaged"):
        read_newest(folder.path(LATEST))
    assert read_newest(folder.path(numbered(1))).facts == {"update": 1}


def test_what_cannot_be_written_is_announced_and_tried_again(
    folder: CheckpointFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A best that waits is written before the latest, which speaks of it."""
    said: list[str] = []
    writer = CheckpointWriter(folder, said.append, lambda: None)
    writer.save(1, lambda: ({}, {"update": 1}))
    writer.require_written()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", no_space)
        writer.save_as(BEST, ({}, {"update": 2, "best": True}))
        writer.save(3, lambda: ({}, {"update": 3}))
        assert updates_in(folder) == [1]
        assert not folder.path(BEST).exists()
        with pytest.raises(OutputError, match=r"the end of this run could not be written: .*No space left.*update 1\)"):
            writer.require_written()
    assert len(said) == 2
    assert all("training goes on, and the next checkpoint tries again" in line and "\n" not in line for line in said)
    order: list[str] = []
    replace = os.replace
    monkeypatch.setattr(os, "replace", lambda a, b: (order.append(Path(b).stem), replace(a, b)))
    writer.save(4, lambda: ({}, {"update": 4}))
    assert order == [BEST, LATEST, numbered(4)]
    assert read_tensors(folder.path(BEST))[1] == {"update": 2, "best": True}
    assert said[2:] == ["checkpoints can be written again: that of update 4 is on the disk"]
    writer.require_written()


def test_no_checkpoint_is_written_before_what_it_refers_to(folder: CheckpointFolder) -> None:
    """A best one whose log rows have no room waits with them; learning goes on."""
    full = [True]

    def make_durable() -> None:
        if full[0]:
            raise OutputError("cannot write metrics.jsonl: No space left on device")

    said: list[str] = []
    writer = CheckpointWriter(folder, said.append, make_durable)
    writer.save_as(BEST, ({}, {"update": 2}))
    writer.save(3, lambda: ({}, {"update": 3}))
    assert not folder.path(BEST).exists()
    assert updates_in(folder) == []
    assert len(said) == 2
    full[0] = False
    writer.save(4, lambda: ({}, {"update": 4}))
    assert read_tensors(folder.path(BEST))[1] == {"update": 2}
    assert updates_in(folder) == [4]
    writer.require_written()


def test_a_newer_best_takes_the_place_of_one_that_waits(
    folder: CheckpointFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = CheckpointWriter(folder, lambda line: None, lambda: None)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", no_space)
        writer.save_as(BEST, ({}, {"update": 2}))
    writer.save_as(BEST, ({}, {"update": 3}))
    writer.save(4, lambda: ({}, {"update": 4}))
    assert read_tensors(folder.path(BEST))[1] == {"update": 3}
