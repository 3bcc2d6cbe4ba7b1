"""A tensor file is whole and unaltered, or it is refused: no damaged state is ever learned from."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save
from torch import Tensor

from finflow import tensor_file
from finflow.errors import CheckpointError
from finflow.tensor_file import KEY, read_tensors, write_tensors

STATE: dict[str, Any] = {
    "update": 7,
    "learning_rate": 1e-4 / 3,
    "best": None,
    "generator": {"state": 2**127 + 1},
    "names": ["ä", 'a"b'],
    "on": True,
}


def some_tensors() -> dict[str, Tensor]:
    """Every kind that a training holds."""
    generator = torch.Generator().manual_seed(0)
    return {
        "net/weight": torch.randn(5, 3, generator=generator),
        "net/double": torch.randn(4, generator=generator, dtype=torch.float64),
        "half": torch.randn(3, generator=generator).bfloat16(),
        "count": torch.tensor(3, dtype=torch.int64),
        "flags": torch.tensor([True, False, True]),
        "random": generator.get_state(),
        "none": torch.zeros(0, 4),
        "special": torch.tensor([float("nan"), float("inf"), -0.0]),
    }


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "state.safetensors"
    write_tensors(file, some_tensors(), STATE)
    return file


def refusal(path: Path) -> str:
    with pytest.raises(CheckpointError) as raised:
        read_tensors(path)
    message = str(raised.value)
    assert "\n" not in message
    assert path.name in message
    return message


def test_what_is_read_is_what_was_written_and_may_be_changed(path: Path) -> None:
    read_tensors(path)[0]["net/weight"].zero_()
    tensors, state = read_tensors(path)
    assert state == STATE
    expected = some_tensors()
    assert tensors.keys() == expected.keys()
    for name, tensor in expected.items():
        assert tensors[name].dtype == tensor.dtype
        assert tensors[name].shape == tensor.shape
        assert tensors[name].reshape(-1).view(torch.uint8).tolist() == tensor.reshape(-1).view(torch.uint8).tolist()


def test_equal_contents_give_equal_bytes_in_whatever_order(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.safetensors"
    tensors = dict(reversed(some_tensors().items()))
    write_tensors(other, tensors, dict(reversed(STATE.items())))
    assert other.read_bytes() == path.read_bytes()
    assert list(read_tensors(other)[0]) == sorted(tensors)  # the library's own order is chance
    tensors["special"][2] = 0.0  # one other bit: it equals -0.0
    write_tensors(other, tensors, STATE)
    assert other.read_bytes() != path.read_bytes()


def test_views_parameters_and_either_part_alone_can_be_written(tmp_path: Path) -> None:
    base = torch.arange(12.0).reshape(3, 4)
    write_tensors(tmp_path / "f", {"t": base.T, "p": torch.nn.Parameter(torch.ones(2)), "s": base[1:, ::2] * 1}, {})
    tensors, state = read_tensors(tmp_path / "f")
    torch.testing.assert_close(tensors["t"], base.T)
    torch.testing.assert_close(tensors["p"], torch.ones(2))
    assert state == {}
    write_tensors(tmp_path / "f", {}, {"a": 1})
    assert read_tensors(tmp_path / "f") == ({}, {"a": 1})


@pytest.fixture
def small_path(tmp_path: Path) -> Path:
    """A file small enough to be damaged in most of its places."""
    file = tmp_path / "small.safetensors"
    tensors = some_tensors()
    write_tensors(file, {name: tensors[name] for name in ("net/weight", "count", "flags")}, {"update": 7})
    return file


def test_a_file_cut_short_anywhere_or_longer_is_refused(small_path: Path) -> None:
    content = small_path.read_bytes()
    small_path.write_bytes(content + b"\x00")
    refusal(small_path)
    for size in [*range(16), *range(16, len(content), 3), len(content) - 1]:
        small_path.write_bytes(content[:size])
        refusal(small_path)


def test_a_flipped_bit_anywhere_is_refused(small_path: Path) -> None:
    """One bit of every byte; only the spaces that pad the header may change without harm."""
    content, rng = bytearray(small_path.read_bytes()), np.random.default_rng(0)
    expected, expected_state = read_tensors(small_path)
    harmless = 0
    for place in range(len(content)):
        bit = 1 << int(rng.integers(8))
        content[place] ^= bit
        small_path.write_bytes(content)
        try:
            tensors, state = read_tensors(small_path)
        except CheckpointError as error:
            assert "\n" not in str(error)  # noqa: PT017
        else:
            harmless += 1
            assert state == expected_state
            assert tensors.keys() == expected.keys()
            assert all(torch.equal(tensor, expected[name]) for name, tensor in tensors.items())
        content[place] ^= bit
    assert harmless <= 8


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": 99}, f"version 99, this finflow reads version {tensor_file.VERSION}; use a newer finflow"),
        ({"state": json.dumps({"update": 8})}, "SHA-256"),
    ],
)
def test_another_version_and_another_state_than_was_hashed_are_refused(
    changes: dict[str, object], words: str, path: Path
) -> None:
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(json.loads(content[8 : 8 + size])["__metadata__"][KEY])
    path.write_bytes(save(some_tensors(), metadata={KEY: json.dumps({**header, **changes})}))
    assert words in refusal(path)


OTHERS = [None, {"finflow": "7"}, {"finflow": "{}"}, {"finflow": "["}, {"other": "1"}]


@pytest.mark.parametrize(
    "content", [*(save({"a": torch.ones(1)}, metadata) for metadata in OTHERS), b"", b"\x00" * 8, b"\xff" * 64, b"text"]
)
def test_files_of_another_kind_and_safetensors_of_others_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "other").write_bytes(content)
    assert "not a finflow checkpoint" in refusal(tmp_path / "other")


def test_nothing_is_ever_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "agent.pt"
    torch.save({"a": torch.ones(1)}, path)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("something was unpickled")

    for place, name in ((pickle, "loads"), (pickle, "load"), (torch, "load")):
        monkeypatch.setattr(place, name, refuse)
    refusal(path)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    assert "there is no checkpoint" in refusal(tmp_path / "none")
    assert "cannot read" in refusal(tmp_path)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object()])
def test_a_state_that_is_not_json_is_an_error_before_anything_is_written(value: object, tmp_path: Path) -> None:
    with pytest.raises((ValueError, TypeError)):
        write_tensors(tmp_path / "f", {}, {"a": value})
    assert list(tmp_path.iterdir()) == []
