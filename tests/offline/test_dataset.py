"""A dataset is kept whole, or refused with the reason: a learner never reads other data than it believes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from finflow.errors import FinflowError, OutputError
from finflow.offline import dataset as module
from finflow.offline.collection import made_by
from finflow.offline.dataset import OfflineDataset, load_dataset, save_dataset


def expected(world: Any) -> dict[str, str]:
    return made_by(world.config, world.process, world.window)


@pytest.fixture
def stored(tmp_path: Path, dataset: OfflineDataset) -> Path:
    path = tmp_path / "data" / "behaviour.npz"
    save_dataset(path, dataset)
    return path


def refusal(path: Path, wanted: dict[str, str]) -> str:
    """The one line with which a dataset is refused."""
    with pytest.raises(FinflowError) as raised:
        load_dataset(path, wanted)
    message = str(raised.value)
    assert "\n" not in message
    assert path.name in message
    return message


def test_what_is_read_is_what_was_written(stored: Path, small: Any, dataset: OfflineDataset) -> None:
    loaded = load_dataset(stored, expected(small))
    for name, column in dataset.arrays().items():
        read = getattr(loaded, name)
        assert read.dtype == column.dtype
        np.testing.assert_array_equal(read, column)
    assert loaded.meta == dataset.meta
    assert loaded.reward_scale == dataset.reward_scale


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"env__commission_bps": 20.0}, "costs and execution"),
        ({"env__execution_lag": 2}, "costs and execution"),
        ({"objectives__lambda_turn": 0.5}, "objectives"),
        ({"train__seed": 1}, "seed"),
        ({"train__offline_episodes": 41}, "episodes"),
        ({"market__train_end": "2008-05-30"}, "training window"),
        ({"market__tickers": "AAPL,AMD,GE,JNJ"}, "prices"),
        ({"market__cash_rate": 0.03}, "prices"),
    ],
)
def test_data_made_by_something_else_are_refused_by_name(
    stored: Path, small_of: Callable[..., Any], change: dict[str, object], named: str
) -> None:
    message = refusal(stored, expected(small_of(**change)))
    assert named in message
    assert "--recollect" in message


def test_data_made_by_other_code_are_refused(stored: Path, small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "code_hash", lambda *rooms: "0" * 16)
    assert "other ledger, code;" in refusal(stored, expected(small))


def test_what_decides_nothing_changes_nothing(small: Any, small_of: Callable[..., Any]) -> None:
    assert expected(small_of(train__n_envs=3, bcell__gamma=0.9)) == expected(small)


def test_a_file_of_another_kind_is_refused(tmp_path: Path, small: Any) -> None:
    """Other bytes, other arrays, and a pickle, which is never opened."""
    path = tmp_path / "other.npz"
    assert "there is no dataset" in refusal(path, expected(small))
    for content in (b"", b"PK\x03\x04", b"\x93NUMPY\x01\x00", b"\x80\x04]"):
        path.write_bytes(content)
        assert "not a complete finflow dataset" in refusal(path, expected(small))
    for arrays in ({"a": np.ones(3)}, {"meta": np.array([{"a": 1}], dtype=object)}):
        np.savez(path, **arrays)
        assert "not a complete finflow dataset" in refusal(path, expected(small))


def test_a_flipped_bit_is_refused_or_harmless(tmp_path: Path, small: Any, small_of: Callable[..., Any]) -> None:
    """Checksums cover every array; what they do not cover (times, padding) must change no number."""
    world = small_of(train__offline_episodes=2)
    data, path, wanted = world.collect(), tmp_path / "flipped.npz", expected(world)
    save_dataset(path, data)
    content, rng = bytearray(path.read_bytes()), np.random.default_rng(0)
    places = [*range(0, 400, 8), *range(len(content) - 900, len(content), 8), *rng.integers(len(content), size=60)]
    refused = 0
    for place in places:
        bit = 1 << int(rng.integers(8))
        content[place] ^= bit
        path.write_bytes(content)
        try:
            loaded = load_dataset(path, wanted)
        except FinflowError:
            refused += 1
        else:
            assert loaded.meta == data.meta
            for name, column in data.arrays().items():
                np.testing.assert_array_equal(getattr(loaded, name), column)
        content[place] ^= bit
    assert refused > 0.5 * len(places)


def test_a_full_disk_leaves_the_old_dataset(
    stored: Path, small: Any, dataset: OfflineDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(OutputError, match="No space left"):
            save_dataset(stored, dataset)
    assert len(load_dataset(stored, expected(small))) == len(dataset)
