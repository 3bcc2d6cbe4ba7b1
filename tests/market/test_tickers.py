"""A list of tickers in a text file, on the command line and in a configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from finflow.cli import main
from finflow.cli.configuration import resolve
from finflow.cli.options import Parser, add_configuration_options, add_scale
from finflow.config import Config, MarketConfig
from finflow.errors import FinflowError, MarketError
from finflow.market.sources.panel_loader import load_panel, read_tickers
from finflow.market.sources.universes import UNIVERSES

TEXT = "\ufeff# the list\nAAPL, MSFT  # two\n\nJPM\nKO,\tPG\n"


def listed(folder: Path, text: str | bytes = TEXT) -> Path:
    path = folder / "tickers.txt"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_names_are_read_from_lines_and_commas(tmp_path: Path) -> None:
    assert read_tickers(listed(tmp_path)) == ("AAPL", "MSFT", "JPM", "KO", "PG")


def test_a_panel_has_the_assets_of_the_file_in_its_order(tmp_path: Path) -> None:
    panel = load_panel(MarketConfig(tickers_file=listed(tmp_path, "MSFT\nAAPL\n")))
    assert panel.sha256 == load_panel(MarketConfig(tickers=("MSFT", "AAPL"))).sha256
    assert panel.describe()["assets"] == ["MSFT", "AAPL"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "names no asset"),
        ("# nothing\n", "names no asset"),
        ("AAPL\n", r"at least two assets and .*tickers\.txt \(market\.tickers_file\) names AAPL only"),
        ("AAPL\nMSFT\nAAPL\n", "line 3: 'AAPL' is there already, on line 1"),
        ('AAPL\n"MSFT"\n', "line 2: .* is not a ticker"),
        (b"AAPL\n\xff\xfe\n", "is not UTF-8 text"),
        ("AAPL\nMFST\n", "'MFST' is not in the embedded data.*'MSFT'"),
    ],
)
def test_a_bad_list_is_one_clear_line(tmp_path: Path, text: str | bytes, words: str) -> None:
    with pytest.raises(MarketError, match=words) as caught:
        load_panel(MarketConfig(tickers_file=listed(tmp_path, text)))
    assert "\n" not in str(caught.value)


def test_a_list_that_is_not_there_is_named(tmp_path: Path) -> None:
    for path, words in ((tmp_path / "none.txt", "does not exist"), (tmp_path, "is a folder")):
        with pytest.raises(MarketError, match=words):
            load_panel(MarketConfig(tickers_file=path))


def configured(*arguments: str) -> Config:
    parser = Parser("")
    add_configuration_options(parser)
    add_scale(parser)
    return resolve(parser.parse(list(arguments)))


def test_the_option_means_yahoos_tickers_as_the_other_does() -> None:
    config = configured("--tickers-file", "list.txt")
    assert (config.market.source, config.market.tickers_file) == ("yfinance", Path("list.txt"))
    config = configured("--tickers-file", "list.txt", "--set", "market.source=embedded")
    assert config.market.source == "embedded"


def test_each_option_stands_in_for_what_a_file_says_of_the_other(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("market: {source: csv, path: prices.csv, tickers_file: list.txt}")
    market = configured("--config", str(path), "--tickers", "A", "B").market
    assert (market.tickers, market.tickers_file) == (("A", "B"), None)
    path.write_text("market: {source: csv, path: prices.csv, tickers: [A, B]}")
    market = configured("--config", str(path), "--tickers-file", "list.txt").market
    assert (market.tickers, market.tickers_file) == (None, Path("list.txt"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--tickers", "A", "B", "--tickers-file", "list.txt"), "not allowed with argument"),
        (("--tickers-file", "list.txt", "--set", "market.tickers=[A, B]"), "set one of the two to null"),
    ],
)
def test_both_at_once_are_refused(arguments: tuple[str, ...], words: str) -> None:
    with pytest.raises(FinflowError, match=words):
        configured(*arguments)


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
