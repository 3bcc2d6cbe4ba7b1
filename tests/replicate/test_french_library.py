"""Files of French's data library: answers in the library's shapes, with made-up returns, and no network."""

from __future__ import annotations

import io
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from finflow.errors import MarketError
from scripts.replicate import french_library
from scripts.replicate.factor_sets import FACTORS, INDUSTRIES, MOMENTUM, SIZES, downloaded_sets, sets_of_files
from scripts.replicate.french_library import URL, download_table

NAMES = {
    FACTORS: ["Mkt-RF", "SMB", "HML", "RF"],
    INDUSTRIES: ["NoDur", "Durbl", "Manuf", "Enrgy", "HiTec", "Telcm", "Shops", "Hlth ", "Utils", "Other"],
    SIZES: ["SMALL LoBM", *(f"ME{number // 5 + 1} BM{number % 5 + 1}" for number in range(1, 24)), "BIG HiBM"],
    MOMENTUM: ["Mom   "],
}
TITLES = {INDUSTRIES: "Average Value Weighted Returns -- Monthly", SIZES: "Average Value Weighted Returns -- Monthly"}


def returns(name: str, months: int = 520) -> pd.DataFrame:
    """Percent with two decimals, from May 1963 on."""
    rng = np.random.default_rng(sorted(NAMES).index(name))
    values = (0.6 + 4.0 * rng.standard_normal((months, len(NAMES[name])))).round(2)
    return pd.DataFrame(values, index=pd.period_range("1963-05", periods=months, freq="M"), columns=NAMES[name])


def csv_of(name: str, table: pd.DataFrame | None = None) -> str:
    """The CSV file of a table, with the lines about it and the tables below it."""
    table = returns(name) if table is None else table
    rows = [
        f"{month:%Y%m}," + ",".join(f"{value:8.2f}" for value in values)
        for month, values in zip(table.index, table.to_numpy(), strict=True)
    ]
    head = [
        "This file was created using the 202412 CRSP database.",
        "Missing data are indicated by -99.99 or -999.",
        "",
    ]
    title = [f"  {TITLES[name]}"] if name in TITLES else []
    names = "," + ",".join(table.columns)
    years = [
        "",
        "  Annual returns, January-December",
        names,
        "  1964,   12.00" + ",    1.00" * (table.shape[1] - 1),
        "",
    ]
    return "\r\n".join([*head, *title, names, *rows, *years, "Copyright 2025 Eugene F. Fama and Kenneth R. French", ""])


def archive_of(name: str, text: str | None = None, members: int = 1) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for number in range(members):
            archive.writestr(f"{name}{number or ''}.csv", csv_of(name) if text is None else text)
    return buffer.getvalue()


class Server:
    """Answers the library's addresses, and writes down which were asked for."""

    def __init__(self, answer: Callable[[str], bytes] = archive_of) -> None:
        self.answer = answer
        self.asked: list[str] = []

    def __call__(self, url: str) -> bytes:
        self.asked.append(url)
        (name,) = [name for name in NAMES if URL.format(name=name) == url]
        return self.answer(name)


@pytest.mark.parametrize("name", NAMES)
def test_the_monthly_table_is_read_and_no_other(name: str, tmp_path: Path) -> None:
    table = download_table(name, tmp_path, Server())
    expected = returns(name)
    assert list(table.columns) == [column.strip() for column in NAMES[name]]
    assert (str(table.index[0]), len(table)) == ("1963-05", 520)
    np.testing.assert_allclose(table.to_numpy(), expected.to_numpy() / 100.0, atol=1e-12)


def test_a_table_is_asked_for_once(tmp_path: Path) -> None:
    server = Server()
    first = download_table(INDUSTRIES, tmp_path, server)
    again = download_table(INDUSTRIES, tmp_path, server)
    assert len(server.asked) == 1
    pd.testing.assert_frame_equal(first, again)


def test_missing_months_are_not_numbers(tmp_path: Path) -> None:
    table = returns(INDUSTRIES)
    table.iloc[3, 2] = -99.99
    read = download_table(INDUSTRIES, tmp_path, Server(lambda name: archive_of(name, csv_of(name, table))))
    assert np.argwhere(read.isna().to_numpy()).tolist() == [[3, 2]]


def raising(error: Exception) -> Callable[[str], bytes]:
    def answer(name: str) -> bytes:
        raise error

    return answer


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (raising(urllib.error.URLError("no route to host")), "no route to host.*name it with --data"),
        (raising(urllib.error.HTTPError("u", 404, "Not Found", None, None)), "404: Not Found"),  # type: ignore[arg-type]
        (raising(TimeoutError("timed out")), "timed out"),
        (lambda name: b"<html>Moved</html>", "has no table of months"),
        (lambda name: archive_of(name, members=2), "holds 2 CSV files"),
        (lambda name: archive_of(name, csv_of(name).replace("Value Weighted", "Equal Weighted")), "equal-weighted"),
        (lambda name: archive_of(name, csv_of(name).replace(",NoDur,", ",NoDur,Extra,")), "11 names stand over 10"),
        (lambda name: archive_of(name, csv_of(name).replace("196307,", "196307, x")), "cannot be read"),
    ],
    ids=["no network", "no page", "slow", "another page", "two files", "equal-weighted", "columns", "letters"],
)
def test_what_is_no_table_is_one_line_and_is_not_kept(
    answer: Callable[[str], bytes], words: str, tmp_path: Path
) -> None:
    with pytest.raises(MarketError, match=words) as caught:
        download_table(INDUSTRIES, tmp_path, Server(answer))
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_the_address_is_asked_as_it_is_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The one line that meets the network: urllib is asked for the address, and its bytes are the answer."""
    asked = []

    def urlopen(request: urllib.request.Request, timeout: float) -> io.BytesIO:
        asked.append((request.full_url, timeout > 0.0))
        return io.BytesIO(archive_of(MOMENTUM))

    monkeypatch.setattr(french_library.urllib.request, "urlopen", urlopen)
    table = download_table(MOMENTUM, tmp_path)
    assert asked == [(URL.format(name=MOMENTUM), True)]
    np.testing.assert_allclose(table["Mom"], returns(MOMENTUM).to_numpy()[:, 0] / 100.0, atol=1e-12)


def test_four_data_sets_are_put_together_as_the_paper_has_them(tmp_path: Path) -> None:
    sets = {name: table for (name, _), table in downloaded_sets(tmp_path, Server()).items()}
    widths = {name: table.shape for name, table in sets.items()}
    assert widths == {
        "MKT/SMB/HML": (497, 3),
        "10 industries": (497, 11),
        "FF 1-factor": (497, 21),
        "FF 4-factor": (497, 24),
    }
    month = pd.Period("1980-02", "M")
    bill = returns(FACTORS).loc[month, "RF"]
    assert sets["10 industries"].loc[month, "Utils"] == pytest.approx(
        (returns(INDUSTRIES).loc[month, "Utils"] - bill) / 100.0
    )
    assert sets["FF 4-factor"].loc[month, "Mom"] == pytest.approx(returns(MOMENTUM).loc[month, "Mom   "] / 100.0)
    assert "BIG HiBM" not in sets["FF 1-factor"]


def test_files_that_a_user_has_make_the_same_sets(tmp_path: Path) -> None:
    paths = [tmp_path / f"{name}.CSV" for name in (FACTORS, INDUSTRIES)]
    for path in paths:
        path.write_text(csv_of(path.stem), "latin-1", newline="")
    own = sets_of_files(paths)
    assert [name for name, _ in own] == ["MKT/SMB/HML", "10 industries"]
    loaded = {name: table for (name, _), table in downloaded_sets(tmp_path / "kept", Server()).items()}
    for (name, _), table in own.items():
        pd.testing.assert_frame_equal(table, loaded[name])


def test_a_missing_month_of_the_paper_is_named(tmp_path: Path) -> None:
    path = tmp_path / "short.csv"
    path.write_text(csv_of(FACTORS, returns(FACTORS, months=400)), newline="")
    with pytest.raises(MarketError, match="the returns of 1996-09 are not all there"):
        sets_of_files([path])
