"""What was downloaded once is there again, bit for bit, or not at all."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from finflow.errors import OutputError
from finflow.market.sources.yahoo_cache import PriceStore

REQUEST = {"source": "test", "tickers": ["A"], "start": None}
FRAME = pd.DataFrame({"close/A": [1.0, 2.0]}, index=pd.DatetimeIndex(["2020-01-01", "2020-01-02"], name="Date"))


def test_what_was_put_in_comes_out_by_its_request_and_is_named_by_its_content(tmp_path: Path) -> None:
    store = PriceStore(tmp_path / "new" / "folder")
    assert store.get(REQUEST) is None
    put = store.put(REQUEST, FRAME, {"adjusted": True})
    got = store.get(dict(reversed(REQUEST.items())))
    assert got is not None
    pd.testing.assert_frame_equal(got.frame, FRAME, check_freq=False)
    assert (got.facts, got.sha256) == ({"adjusted": True}, put.sha256)
    assert store.get({**REQUEST, "start": "2020-01-01"}) is None
    assert PriceStore(store.folder, read=False).get(REQUEST) is None
    assert store.put({**REQUEST, "start": "2019-01-01"}, FRAME, {}).sha256 == put.sha256
    assert [path.stem for path in store.folder.glob("*.parquet")] == [put.sha256]


@pytest.mark.parametrize(
    "damage", ["flip", "gone", "manifest list", "manifest bytes", "manifest facts", "manifest swapped"]
)
def test_damage_is_noticed_and_never_returned(tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    store = PriceStore(tmp_path)
    store.put(REQUEST, FRAME, {"adjusted": "yes"})
    data, manifest = next(tmp_path.glob("*.parquet")), next(tmp_path.glob("*.json"))
    content = data.read_bytes()
    match damage:
        case "flip":
            data.write_bytes(content[:50] + bytes([content[50] ^ 1]) + content[51:])
        case "gone":
            data.unlink()
        case "manifest list":
            manifest.write_text("[]")
        case "manifest bytes":
            manifest.write_bytes(b"\xff\xff")
        case "manifest facts":
            manifest.write_text(manifest.read_text().replace('"yes"', '"yea"'))
        case "manifest swapped":  # a sound manifest under another request's name
            store.put({**REQUEST, "start": "2019-01-01"}, FRAME * 2.0, {})
            (other,) = set(tmp_path.glob("*.json")) - {manifest}
            manifest.write_bytes(other.read_bytes())
    with caplog.at_level(logging.WARNING, "finflow"):
        assert store.get(REQUEST) is None
    assert store.damaged
    assert "damaged" in caplog.text
    store.put(REQUEST, FRAME, {})
    assert store.get(REQUEST) is not None
    assert not store.damaged


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OutputError, match=r"market\.cache_dir"):
        PriceStore(tmp_path / "file").put(REQUEST, FRAME, {})


@pytest.mark.parametrize("files", [0, 1])
def test_a_stop_between_the_files_leaves_the_old_prices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: int
) -> None:
    """Each is complete or not there at all (`tests/test_files.py`); the process is stopped after so many of the two."""
    store = PriceStore(tmp_path)
    store.put(REQUEST, FRAME, {})
    left = [os.replace] * files

    def stop(*arguments: Any) -> None:
        if not left:
            raise KeyboardInterrupt
        left.pop()(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", stop)
        with pytest.raises(KeyboardInterrupt):
            store.put(REQUEST, FRAME * 2.0, {})
    got = store.get(REQUEST)
    assert got is not None
    assert not store.damaged
    assert got.frame["close/A"].tolist() == [1.0, 2.0]


_WRITER = """
import sys
from pathlib import Path
import pandas as pd
from finflow.market.sources.yahoo_cache import PriceStore

store, which = PriceStore(Path(sys.argv[1])), float(sys.argv[2])
frame = pd.DataFrame({"close/A": [which] * 500}, index=pd.bdate_range("2020-01-01", periods=500, name="Date"))
seen = set()
for _ in range(15):
    store.put({"source": "test"}, frame, {"which": which})
    got = store.get({"source": "test"})
    assert got is not None and not store.damaged
    assert (got.frame["close/A"] == got.facts["which"]).all()
    seen.add(got.facts["which"])
print(len(seen))
"""


def test_two_processes_may_write_the_same_request_at_once(tmp_path: Path) -> None:
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(tmp_path), which],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        for which in ("1", "2")
    ]
    for writer in writers:
        _, said = writer.communicate(timeout=60)
        assert writer.returncode == 0, said
    assert len(list(tmp_path.glob("*.parquet"))) == 2
    assert len(list(tmp_path.glob("*.json"))) == 1
    assert not list(tmp_path.glob(".*"))
