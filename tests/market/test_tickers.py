"""Tickers of a text file or of a universe by name, on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from finflow.cli import main
from finflow.cli.configuration import resolve
from finflow.cli.options import UNIVERSES, Parser, add_configuration_options, add_scale
from finflow.config import Config
from finflow.errors import FinflowError

TEXT = "\ufeff# the list\nAAPL, MSFT  # two\n\nJPM\nKO,\tPG\n"


def listed(folder: Path, text: str | bytes = TEXT) -> str:
    path = folder / "tickers.txt"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def configured(*arguments: str) -> Config:
    parser = Parser("")
    add_configuration_options(parser)
    add_scale(parser)
    return resolve(parser.parse(list(arguments)))


def test_names_are_read_from_lines_and_commas_and_mean_yahoos_tickers(tmp_path: Path) -> None:
    market = configured("--tickers-file", listed(tmp_path)).market
    assert (market.source, market.tickers) == ("yfinance", ("AAPL", "MSFT", "JPM", "KO", "PG"))
    market = configured("--tickers-file", listed(tmp_path), "--set", "market.source=embedded").market
    assert (market.source, market.tickers) == ("embedded", ("AAPL", "MSFT", "JPM", "KO", "PG"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("# nothing\n", "at least one asset is needed"),
        ("AAPL\nMSFT\nAAPL\n", "names AAPL more than once"),
        (b"AAPL\n\xff\xfe\n", "is not UTF-8 text"),
        (None, "does not exist"),
    ],
)
def test_a_bad_list_is_one_clear_line(tmp_path: Path, text: str | bytes | None, words: str) -> None:
    with pytest.raises(FinflowError, match=words) as caught:
        configured("--tickers-file", str(tmp_path / "none.txt") if text is None else listed(tmp_path, text))
    assert "\n" not in str(caught.value)


def test_tickers_and_a_file_of_them_at_once_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FinflowError, match="not allowed with argument"):
        configured("--tickers", "A", "B", "--tickers-file", listed(tmp_path))


@pytest.mark.parametrize(("name", "count"), [("dow30", 30), ("sectors", 11)])
def test_a_universe_by_name_stands_for_its_tickers(name: str, count: int) -> None:
    config = configured("--universe", name)
    assert (config.market.source, config.market.tickers) == ("yfinance", UNIVERSES[name])
    assert len(set(UNIVERSES[name])) == count
    assert configured("--universe", name, "--set", "market.source=csv", "--set", "market.path=a.csv").market.path


def test_a_universe_by_name_is_the_whole_choice_of_tickers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FinflowError, match="--universe sectors names the tickers; leave --tickers and --tickers-file"):
        configured("--universe", "sectors", "--tickers", "A", "B")
    assert main(("--mode", "train", "--universe", "dow3")) == 2
    assert "dow3 does not exist; --universe takes a file, or dow30 or sectors" in capsys.readouterr().err
