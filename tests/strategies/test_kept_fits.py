"""A kept fit is the fit, to the bit, or it is made again."""

from __future__ import annotations

import errno
import logging
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest

from finflow.config import MarketConfig
from finflow.strategies import kept_fits
from finflow.strategies.kept_fits import KeptFits

FITS = {("risk-parity", bytes(32)): np.array([0.1, 0.9]), ("minimum-cvar", bytes(range(32))): np.array([1e-300, 1.0])}


def written(path: Path) -> KeptFits:
    fits = KeptFits(path)
    for key, fit in FITS.items():
        fits[key] = fit
    return fits


def same(fits: KeptFits) -> bool:
    return fits.keys() == FITS.keys() and all(np.array_equal(fits[key], fit) for key, fit in FITS.items())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "new" / "fits.txt"


def test_what_was_fitted_is_read_again(path: Path) -> None:
    assert KeptFits(path) == {}
    assert same(written(path))
    assert same(KeptFits(path))


def test_two_at_once_keep_what_either_has_fitted(path: Path) -> None:
    one, other = KeptFits(path), KeptFits(path)
    for fits, (key, fit) in zip((one, other), FITS.items(), strict=True):
        fits[key] = fit
    one.update(other)  # as from another process, which has kept it
    assert same(one)
    assert same(KeptFits(path))
    assert sum(line != b"" for line in path.read_bytes().splitlines()) == 2


def test_a_pickle_holds_the_fits_alone(path: Path) -> None:
    found = pickle.loads(pickle.dumps(written(path)))  # as between processes
    assert type(found) is dict
    assert same(found)


@pytest.mark.parametrize("damage", ["changed", "cut off"])
def test_a_damaged_fit_is_left_out_and_made_again(damage: str, path: Path) -> None:
    written(path)
    content = path.read_bytes()
    place = content.index(b" ", len("risk-parity ")) + 5  # in the weights of the first
    changed = bytes([content[place] ^ 1])
    path.write_bytes(content[:place] + changed + content[place + 1 :] if damage == "changed" else content[:-20])
    lost, kept = list(FITS) if damage == "changed" else list(FITS)[::-1]
    fits = KeptFits(path)
    assert list(fits) == [kept]
    fits[lost] = FITS[lost]
    assert same(KeptFits(path))


def test_other_prices_rules_libraries_and_processors_have_other_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenBLAS has other kernels on other processors, and five of the seven optimisers other last bits by them."""
    places: list[Path] = []
    monkeypatch.setattr(kept_fits, "KeptFits", lambda path, read: places.append(path) or {})

    def place_of(panel: str = "prices", **changed: object) -> Path:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in changed.items():
                patch.setattr(kept_fits, name, value)
            kept_fits.kept_fits(MarketConfig(cache_dir=tmp_path), panel)
        return places[-1]

    def newer(changed: str) -> Callable[[str], str]:
        return lambda name: "99" if name == changed else kept_fits_version(name)

    kept_fits_version = kept_fits.package_version
    first = place_of()
    assert first == place_of()
    assert first.is_relative_to(tmp_path)
    libraries = ("skfolio", "cvxpy-base", "clarabel", "scikit-learn", "scipy", "numpy")
    others = [place_of(package_version=newer(name)) for name in libraries]
    others += [place_of("other prices"), place_of(code_hash=lambda rooms: f"other {rooms}")]
    others += [place_of(threadpool_info=lambda: [{"architecture": "Other"}])]
    assert len({first, *others}) == 1 + len(others)


def test_without_a_cache_fits_are_made_again_and_replace_those_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_fits, "KeptFits", KeptFits)
    key = next(iter(FITS))
    for use_cache, known in ((True, None), (False, None), (True, 2.0)):
        fits = kept_fits.kept_fits(MarketConfig(cache_dir=tmp_path, use_cache=use_cache), "prices")
        assert fits.get(key) == known
        fits[key] = np.array([2.0 if not use_cache else 1.0])


def test_fits_that_others_keep_are_read_where_none_can_be_added(
    path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(path)

    opened = Path.open

    def refuse(path: Path, mode: str = "r", *given: Any, **named: Any) -> IO[Any]:
        if "a" in mode:
            raise OSError(errno.EROFS, "Read-only file system")
        return opened(path, mode, *given, **named)

    monkeypatch.setattr(Path, "open", refuse)
    assert same(written(path))
    assert [line.count("Read-only file system") for line in caplog.messages] == [1]


def test_a_folder_that_cannot_be_written_costs_time_alone(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path.parent.write_text("a file in the way")
    with caplog.at_level(logging.WARNING):
        assert same(written(path))
    (line,) = caplog.messages
    assert line == f"fits cannot be kept in {path.parent}: a file is in the way; choose another market.cache_dir"
