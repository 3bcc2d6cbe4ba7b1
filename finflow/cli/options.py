"""Options of the command line, and the answers to wrong ones."""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from finflow.errors import FinflowError
from finflow.files import read_text_input

PROTOCOLS = ("holdout", "walk-forward", "cpcv")
SCALE = ("dry-run", "workers", "cluster", "universe")
MODES = (
    *("train", "evaluate", "backtest", "tune", "explain", "compare", "decide", "paper", "retrain", "audit", "inspect"),
    *("prefer", "demo"),
)

# fmt: off
UNIVERSES: Mapping[str, tuple[str, ...]] = {
    "dow30": (
        "AAPL", "AMGN", "AMZN", "AXP", "BA", "CAT", "CRM", "CSCO", "CVX", "DIS",
        "GS", "HD", "HON", "IBM", "JNJ", "JPM", "KO", "MCD", "MMM", "MRK",
        "MSFT", "NKE", "NVDA", "PG", "SHW", "TRV", "UNH", "V", "VZ", "WMT",
    ),
    "sectors": ("XLB", "XLC", "XLE", "XLF", "XLI", "XLK", "XLP", "XLRE", "XLU", "XLV", "XLY"),
}
# fmt: on
"""`dow30`: the Dow Jones Industrial Average as of 8 November 2024. Its members were chosen with hindsight, and some
list late (CRM 2004, V 2008). `sectors`: the Select Sector SPDR funds; XLRE lists in October 2015, XLC in June 2018."""

#: Options that stand for configuration keys, by group: option, its value or the name of it, keys, help.
_KEYS: dict[str, tuple[tuple[str, str, str, str], ...]] = {
    "configuration": (
        ("--iql-epochs", "N", "train.offline_training_epochs", "passes of the offline phase over its data"),
        ("--sac-episodes", "N", "train.online_episodes", "episodes of the online phase"),
        ("--batch-size", "N", "train.offline_batch_size train.online_batch_size online.minibatch", "of both phases"),
        ("--lr", "X", "bcell.actor_lr bcell.critic_lr online.learning_rate", "learning rates of both phases"),
        ("--algorithm", "NAME", "online.algorithm", "of the online phase: sac, ppo, ppo-kl, trpo, a2c or reinforce"),
        ("--seed", "N", "train.seed", "of every random number"),
        (
            *("--seeds", "N", "train.seeds evaluation.protocol.seeds tune.seeds"),
            "agents to train, one a seed, and to report together; with --protocol, of each fold",
        ),
        ("--device", "NAME", "train.device", "auto, cpu, cuda or mps"),
        ("--mixed-precision", "true", "bcell.mixed_precision", "matrix products of an update in bfloat16"),
        ("--gradient-checkpointing", "true", "bcell.gradient_checkpointing", "less memory for more time"),
        ("--profile", "true", "train.profile", "write a torch profiler trace of a few updates into the run folder"),
        ("--log-with", "NAME", "output.log_with", "tensorboard, or wandb: Weights & Biases too"),
        ("--no-cache", "false", "market.use_cache", "fetch prices again"),
    ),
    "search": (
        ("--n-trials", "N", "tune.n_trials", "tune: configurations tried"),
        (
            *("--objective", "NAME", "tune.objective"),
            "tune: sharpe, sortino, calmar, cvar, dsr, ndcg, hit, mrr or rank_ic; several, as in sharpe,cvar, for a "
            "Pareto front",
        ),
        (
            *("--storage", "URL", "tune.storage"),
            "tune: storage of the trials: a database, or journal:PATH; SQLite in the study's folder when left out",
        ),
    ),
}


def program() -> str:
    """Name that finflow was called by, for messages with commands."""
    path = Path(sys.argv[0])
    if path.suffix != ".py":
        return "finflow"
    if path.name == "__main__.py" and path.parent.parent.name == "scripts":
        return "python -m scripts." + path.parent.name
    return "python scripts/" + path.name if path.parent.name == "scripts" else "python main.py"


class Parser(argparse.ArgumentParser):
    """Options whose mistakes are answered with one line that names the nearest option."""

    def __init__(self, description: str, **settings: Any) -> None:
        super().__init__(
            prog=program(),
            description=description,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            **settings,
        )

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Read the arguments; raises a FinflowError for the first that is unknown or lacks its value."""
        given, unknown = self.parse_known_args(arguments)
        if unknown:
            self.refuse(unknown[0])
        self._name_universe(given)
        return given

    def _name_universe(self, given: argparse.Namespace) -> None:
        """Put the tickers of a universe that `--universe` names in the place of `--tickers`."""
        name = str(getattr(given, "universe", None))
        if name not in UNIVERSES:
            return
        if given.tickers:
            self.error(f"--universe {name} names the tickers; leave --tickers and --tickers-file out")
        given.tickers, given.universe = list(UNIVERSES[name]), None

    def refuse_first(self, messages: Iterable[str]) -> None:
        """Answer with the first of some messages about mistakes, if there is one."""
        for message in messages:
            self.error(message)

    def refuse(self, word: str) -> NoReturn:
        self.error(f"unknown argument {word}{self._hint(word)}")

    def error(self, message: str) -> NoReturn:
        """Raise a mistake as a FinflowError, like every other."""
        raise FinflowError(f"{message} ({self.prog} --help lists the options)")

    def _hint(self, word: str) -> str:
        options = [option for option in self._option_string_actions if option.startswith("--")]
        near = difflib.get_close_matches(word.partition("=")[0], options, n=1, cutoff=0.5)
        if word in MODES and "--mode" in options:
            near = [f"--mode {word}"]
        elif "=" in word and not word.startswith("-"):
            near = [f"--set {word}"]
        return f"; did you mean {near[0]}?" if near else ""


class _Override(argparse.Action):
    """Set configuration keys; a later value replaces an earlier one."""

    def __init__(self, *, keys: tuple[str, ...] = (), **settings: Any) -> None:
        super().__init__(**{**settings, "dest": "overrides", "default": {}})
        self.keys = keys

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        value, keys = self.const or values, self.keys
        if not keys:
            key, sign, value = values.partition("=")
            if not sign or not key.strip():
                raise argparse.ArgumentError(self, f"needs key=value, as in bcell.cql_alpha=10, not {values!r}")
            keys = (key.strip(),)
        namespace.overrides = {**namespace.overrides, **dict.fromkeys(keys, value)}


def add_configuration_options(parser: Parser) -> None:
    """Add --config, --set, the options that stand for configuration keys, and --verbose."""
    parser.add_argument("--verbose", action="store_true", help="show warnings, and the traceback of a fault")
    group = parser.add_argument_group("configuration")
    group.add_argument("--config", type=Path, metavar="FILE", help="YAML file of keys; the rest keep their defaults")
    group.add_argument("--set", action=_Override, metavar="KEY=VALUE", help="any key, such as bcell.cql_alpha=10")
    named = group.add_mutually_exclusive_group()
    named.add_argument(
        "--tickers",
        nargs="+",
        metavar="NAME",
        help="assets: tickers of Yahoo, or columns where market.source is csv or parquet; with --set "
        "market.source=embedded, some of the embedded stocks",
    )
    named.add_argument(
        "--tickers-file", dest="tickers", type=_read_tickers, metavar="FILE", help="the same from a file"
    )
    _add_keys(group, "configuration")


def _add_keys(group: argparse._ArgumentGroup, name: str) -> None:
    for option, value, keys, text in _KEYS[name]:
        takes: dict[str, Any] = {"metavar": value} if value.isupper() else {"nargs": 0, "const": value}
        group.add_argument(option, action=_Override, keys=tuple(keys.split()), help=text, **takes)


def add_search(parser: Parser) -> None:
    group = parser.add_argument_group("search")
    group.add_argument("--trial", type=int, metavar="N", help="tune: repeat trial N of --resume, and compare")
    _add_keys(group, "search")


def add_recollect(parser: Parser) -> None:
    parser.add_argument(
        "--recollect", action="store_true", help="collect the behaviour data again, even if a saved file matches"
    )


def add_dry_run(parser: Parser, text: str) -> None:
    parser.add_argument("--dry-run", action="store_true", help=text)


def add_protocol(parser: Parser) -> None:
    parser.add_argument(
        "--protocol",
        type=one_of(*PROTOCOLS),
        metavar="NAME",
        help="evaluate: holdout (the default: the agent on the test window), or walk-forward or cpcv (combinatorial "
        "purged): train anew for every fold, before the test window, by the configuration given or that "
        "of the agent",
    )
    add_dry_run(
        parser,
        "train, retrain, or --protocol walk-forward or cpcv: say which trainings would run, and stop; "
        "decide: print everything and write nothing",
    )


def add_scale(parser: Parser) -> None:
    group = parser.add_argument_group("several trainings (--seeds, --protocol, --universe); docs/guide/scale.md")
    group.add_argument(
        "--workers",
        type=positive_count,
        metavar="N",
        help="trainings, or trials of a search, at once, in processes of this machine",
    )
    group.add_argument(
        "--cluster",
        metavar="ADDRESS",
        help="do them on a Ray cluster: auto for the one that this machine belongs to, or an address such as "
        "10.0.0.1:6379; --workers N limits how many at once",
    )
    group.add_argument(
        "--universe",
        type=Path,
        metavar="NAME",
        help="tickers by name, in any mode: dow30 (the 30 stocks of the Dow, as of November 2024) or sectors (11 "
        "sector ETFs); or a file, for the same in each of several universes: a line for each, such as "
        "tech: AAPL MSFT NVDA",
    )


def add_trading(parser: Parser) -> None:
    """Add the options of a decision: holdings, fills, and checks to override."""
    group = parser.add_argument_group("trading (--mode decide, --mode paper); docs/guide/decide.md")
    group.add_argument(
        "--holdings",
        type=Path,
        metavar="FILE",
        help="decide: current holdings, as .csv with the columns ticker,shares (cash may stand for a ticker), .json or "
        ".yaml; without it, those of the log of decisions, or cash alone",
    )
    group.add_argument("--cash", type=_money, metavar="X", help="decide: cash in the account")
    group.add_argument(
        "--fills",
        type=Path,
        metavar="FILE",
        help="decide: fills of the previous decision, as .csv with the columns ticker,shares,price and cost (shares "
        "below zero were sold)",
    )
    group.add_argument(
        "--broker",
        type=one_of("paper", "alpaca"),
        metavar="NAME",
        help="decide: read the holdings from this broker, and place the orders with it: paper, on the ledger, which "
        "begins with --cash or env.initial_capital; or alpaca, an account at Alpaca; paper: the same as --set "
        "trading.broker=NAME",
    )
    group.add_argument(
        "--live", action="store_true", help="confirm that trading.alpaca.live = true may trade with real money"
    )
    group.add_argument(
        "--accept-drift",
        action="store_true",
        help="decide, and paper at a broker: go on with features far outside their range in training",
    )
    group.add_argument(
        "--i-know",
        action="store_true",
        help="decide, and paper at a broker: go on with an agent that is worse than equal weight",
    )
    group.add_argument(
        "--from",
        metavar="DATE",
        help="paper: first day that a decision fills on; it names the account, and without it the last one goes on",
    )
    group.add_argument("--until", metavar="DATE", help="paper: last day; the newest bar when left out")
    group.add_argument("--follow", action="store_true", help="paper: wait for new bars, and decide once on each")


def check_protocol(parser: Parser, given: argparse.Namespace) -> None:
    """Refuse the options of trainings where nothing would be trained."""
    for option in SCALE if given.protocol in (None, "holdout") else ():
        if getattr(given, option.replace("-", "_")):
            parser.error(
                f"--{option} belongs to --protocol walk-forward or cpcv, which train; a holdout evaluation does not"
            )


def positive_count(word: str) -> int:
    if not word.isascii() or not word.isdigit() or not 0 < int(word) < 10**6:
        raise argparse.ArgumentTypeError(f"{word!r} must be a whole number, 1 or more")
    return int(word)


def _money(word: str) -> float:
    try:
        amount = float(word)
    except ValueError:
        amount = -1.0
    if not 0.0 <= amount < float("inf"):
        raise argparse.ArgumentTypeError(f"{word!r} must be an amount of money, such as 25000 or 1250.50")
    return amount


def one_of(*names: str) -> Any:
    """A type for argparse: one of a few words, with the nearest named in the answer to any other."""

    def check(word: str) -> str:
        if word in names:
            return word
        near = difflib.get_close_matches(word, names, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise argparse.ArgumentTypeError(f"{word!r} is not one of {', '.join(names)}{hint}")

    return check


def _read_tickers(path: str) -> list[str]:
    """Names in a text file, separated by commas, blanks or lines; text after # on a line is a comment."""
    text = read_text_input(Path(path), "--tickers-file", FinflowError)
    return re.split(r"[,\s]+", " ".join(line.partition("#")[0] for line in text.splitlines()))


def explicit(arguments: argparse.Namespace) -> dict[str, object]:
    """Configuration keys that the command line itself names, and their values."""
    overrides: dict[str, object] = dict(arguments.overrides)
    if arguments.tickers:
        overrides["market.tickers"] = [name for word in arguments.tickers for name in word.split(",") if name]
    return overrides
