"""Every option of the command line: its modes, its help and how it is read."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from finflow.cli.options import MODES, Override, Parser, number, one_of, positive_count, read_tickers

PROTOCOLS = ("holdout", "walk-forward", "cpcv")
ANSWERS = Path("pairs.jsonl")
"""File that answers are added to when none is named."""
ASKED = 100
"""Pairs that a person is asked about when `--pairs` is left out."""
REWARD_MODEL, DIRECT = "reward-model", ("dpo", "simpo")


class Option(NamedTuple):
    """An option; without modes it belongs to all of them, and a command without a mode was meant for the first."""

    name: str
    modes: tuple[str, ...]
    settings: Mapping[str, Any]

    def value(self, given: argparse.Namespace) -> Any:
        return vars(given)[self.name.removeprefix("--").replace("-", "_")]


def _option(name: str, metavar: str, modes: str, text: str, **settings: Any) -> Option:
    """An option with a value of that name; one without is a flag."""
    takes = {"metavar": metavar} if metavar else {"action": "store_true"}
    return Option(name, tuple(modes.split()), {**takes, "help": text, **settings})


def _key(name: str, value: str, keys: str, text: str) -> Option:
    """An option that stands for configuration keys, with a value, or in lower case the value itself."""
    takes: dict[str, Any] = {"metavar": value} if value.isupper() else {"nargs": 0, "const": value}
    return Option(name, (), {**takes, "help": text, "action": Override, "keys": tuple(keys.split())})


_TRAINS = "train demo evaluate tune"

OPTIONS: dict[str, tuple[Option, ...]] = {
    "agent": (
        _option("--mode", "MODE", "", f"{', '.join(MODES[:-1])} or {MODES[-1]}", type=one_of(*MODES)),
        _option(
            *("--resume", "RUN", ""),
            "run folder or checkpoint file. train: continue exactly where it stopped (an earlier checkpoint: in a new "
            "run folder; the folder of a job of several seeds: its missing ones); evaluate, backtest, explain, audit, "
            "decide, paper, retrain: the agent; evaluate, backtest, decide, paper: several, or a job, act as one, by "
            "the mean of their portfolios; inspect: what to inspect; tune: the study folder to continue",
            type=Path,
            nargs="+",
        ),
        _option(
            *("--agent", "NAME", "decide explain evaluate paper inspect"),
            "an agent that comes with finflow, in place of --resume: sp500, trained on 20 stocks of the S&P 500",
        ),
        _option(
            *("--strategy", "NAME", "backtest audit"),
            "backtest, audit: such as equal-weight or momentum, or your own as package.module:Name; backtest: also "
            "optimal, the best policy of a synthetic market",
            nargs="+",
        ),
        _option(
            *("--date", "DATE", "explain decide"),
            "explain: dates of the test window, as 2020-03-16; decide: the day to decide on, today when left out",
            nargs="+",
        ),
        _option(
            *("--output", "PATH", "explain compare prefer"),
            "explain: a JSON file to write; compare: the folder of its report; prefer: the file to write",
            type=Path,
        ),
        _option(
            *("--open", "", "train demo evaluate backtest tune compare retrain prefer"),
            "open the report, or the page of --ask, in the web browser",
        ),
        _option(
            *("--market", "NAME", "demo", "demo: embedded (the default), or planted: a known signal, and none"),
            type=one_of("embedded", "planted"),
        ),
        _option("--help-config", "SECTION", "", "list every configuration key, or one section's", nargs="?", const=""),
        _option("--version", "", "", "print the version, and stop"),
    ),
    "recollect": (
        _option("--recollect", "", "train demo", "collect the behaviour data again, even if a saved file matches"),
    ),
    "protocol": (
        _option(
            *("--protocol", "NAME", "evaluate"),
            "evaluate: holdout (the default: the agent on the test window), or walk-forward or cpcv (combinatorial "
            "purged): train anew for every fold, before the test window, by the configuration given or that "
            "of the agent",
            type=one_of(*PROTOCOLS),
        ),
    ),
    "dry run": (
        _option(
            *("--dry-run", "", f"{_TRAINS} decide retrain"),
            "say which trainings would run, and stop; decide: print everything and write nothing",
        ),
    ),
    "several trainings (--seeds, --protocol, --universe); docs/guide/scale.md": (
        _option(
            *("--workers", "N", f"{_TRAINS} retrain"),
            "trainings, or trials of a search, at once, in processes of this machine",
            type=positive_count,
        ),
        _option(
            *("--cluster", "ADDRESS", _TRAINS),
            "do them on a Ray cluster: auto for the one that this machine belongs to, or an address such as "
            "10.0.0.1:6379; --workers N limits how many at once",
        ),
        _option(
            *("--universe", "NAME", "train demo evaluate"),
            "tickers by name, in any mode: dow30 (the 30 stocks of the Dow, as of November 2024) or sectors (11 "
            "sector ETFs); or a file, for the same in each of several universes: a line for each, such as "
            "tech: AAPL MSFT NVDA",
            type=Path,
        ),
    ),
    "search": (
        _option("--trial", "N", "tune", "tune: repeat trial N of --resume, and compare", type=int),
        _key("--n-trials", "N", "tune.n_trials", "tune: configurations tried"),
        _key(
            *("--objective", "NAME", "tune.objective"),
            "tune: sharpe, sortino, calmar, cvar, dsr, ndcg, hit, mrr or rank_ic; several, as in sharpe,cvar, for a "
            "Pareto front",
        ),
        _key(
            *("--storage", "URL", "tune.storage"),
            "tune: storage of the trials: a database, or journal:PATH; SQLite in the study's folder when left out",
        ),
    ),
    "trading (--mode decide, --mode paper); docs/guide/decide.md": (
        _option(
            *("--holdings", "FILE", "decide"),
            "decide: current holdings, as .csv with the columns ticker,shares (cash may stand for a ticker), .json or "
            ".yaml; without it, those of the log of decisions, or cash alone",
            type=Path,
        ),
        _option(
            *("--cash", "X", "decide", "decide: cash in the account"),
            type=number("an amount of money such as 1250.50, and no debt: pay in, or sell first", 0.0, 1e300, float),
        ),
        _option(
            *("--fills", "FILE", "decide"),
            "decide: fills of the previous decision, as .csv with the columns ticker,shares,price and cost (shares "
            "below zero were sold)",
            type=Path,
        ),
        _option(
            *("--broker", "NAME", "decide paper"),
            "decide: read the holdings from this broker, and place the orders with it: paper, on the ledger, which "
            "begins with --cash or env.initial_capital; or alpaca, an account at Alpaca; paper: the same as --set "
            "trading.broker=NAME",
            type=one_of("paper", "alpaca"),
        ),
        _option("--live", "", "decide paper", "confirm that trading.alpaca.live = true may trade with real money"),
        _option(
            *("--accept-drift", "", "decide paper"),
            "decide, and paper at a broker: go on with features far outside their range in training",
        ),
        _option(
            *("--i-know", "", "decide paper"),
            "decide, and paper at a broker: go on with an agent that is worse than equal weight",
        ),
        _option(
            *("--from", "DATE", "paper"),
            "paper: first day that a decision fills on; it names the account, and without it the last one goes on",
        ),
        _option("--until", "DATE", "paper", "paper: last day; the newest bar when left out"),
        _option("--follow", "", "paper", "paper: wait for new bars, and decide once on each"),
    ),
    "preferences (--mode prefer); docs/reference/preferences.md": (
        _option(
            *("--ask", "FILE", "prefer"),
            "compare pairs of segments of the training window yourself, on a local web page (--open opens it); every "
            f"answer is added to this file of JSON lines, {ANSWERS} when left out, and the next start goes on where "
            "it ends; what --mode prefer does without --judge and --learn",
            nargs="?",
            const=ANSWERS,
            type=Path,
        ),
        _option(
            *("--port", "N", "prefer", "of the page, at 127.0.0.1; a free one when left out"),
            type=number("a port, a number from 0 (a free one) to 65535", 0, 65535),
        ),
        _option(
            *("--judge", "NAME", "prefer"),
            "make pairs of segments of the training window by this judge, and write them to --output: mean-variance, "
            "calmar, log-growth, or rules (preferences.judge.rules)",
            type=one_of("mean-variance", "calmar", "log-growth", "rules"),
        ),
        _option(
            *("--pairs", "N", "prefer", f"how many; 2000 when left out, {ASKED} of them with --ask"),
            type=positive_count,
        ),
        _option(
            *("--learn", "FILE", "prefer"),
            "learn from these files of pairs, .csv or lines of JSON, and write what was learned to --output",
            nargs="+",
            type=Path,
        ),
        _option(
            *("--method", "NAME", "prefer"),
            "of --learn: reward-model (the default); or dpo or simpo, which train the policy of the agent (--resume) "
            "itself: the file holds an agent to evaluate, backtest and decide with",
            type=one_of(REWARD_MODEL, *DIRECT),
        ),
        _option("--strict", "", "prefer", "of --learn: write nothing where guessing may predict as well"),
    ),
    "configuration": (
        _option("--verbose", "", "", "show warnings, and the traceback of a fault"),
        _option("--config", "FILE", "", "YAML file of keys; of several the last counts", type=Path, action="append"),
        _option("--set", "KEY=VALUE", "", "any key, such as bcell.cql_alpha=10", action=Override),
        _option(
            *("--tickers", "NAME", ""),
            "assets: tickers of Yahoo, or columns where market.source is csv or parquet; with --set "
            "market.source=embedded, some of the embedded stocks",
            nargs="+",
        ),
        _option("--tickers-file", "FILE", "", "the same from a file", dest="tickers", type=read_tickers),
        _key("--iql-epochs", "N", "train.offline_training_epochs", "passes of the offline phase over its data"),
        _key("--sac-episodes", "N", "train.online_episodes", "episodes of the online phase"),
        _key(
            *("--batch-size", "N", "train.offline_batch_size train.online_batch_size online.minibatch"),
            "of both phases",
        ),
        _key("--lr", "X", "bcell.actor_lr bcell.critic_lr online.learning_rate", "learning rates of both phases"),
        _key(
            "--algorithm", "NAME", "online.algorithm", "of the online phase: sac, ppo, ppo-kl, trpo, a2c or reinforce"
        ),
        _key("--seed", "N", "train.seed", "of every random number"),
        _key(
            *("--seeds", "N", "train.seeds evaluation.protocol.seeds tune.seeds"),
            "agents to train, one a seed, and to report together; with --protocol, of each fold",
        ),
        _key("--device", "NAME", "train.device", "auto, cpu, cuda or mps"),
        _key("--mixed-precision", "true", "bcell.mixed_precision", "matrix products of an update in bfloat16"),
        _key("--gradient-checkpointing", "true", "bcell.gradient_checkpointing", "less memory for more time"),
        _key("--profile", "true", "train.profile", "write a torch profiler trace of a few updates into the run folder"),
        _key("--log-with", "NAME", "output.log_with", "tensorboard, or wandb: Weights & Biases too"),
        _key("--no-cache", "false", "market.use_cache", "fetch prices and fit classical portfolios again"),
    ),
}
AGENT, RECOLLECT, PROTOCOL, DRY_RUN, SCALE, SEARCH, TRADING, PREFERENCES, CONFIGURATION = OPTIONS


def add_options(parser: Parser, *groups: str) -> None:
    """Add groups of options, or all of them."""
    for title in groups or OPTIONS:
        group: argparse._ActionsContainer = parser
        if title not in (AGENT, RECOLLECT, PROTOCOL, DRY_RUN):
            group = parser.add_argument_group(title)
        named = group.add_mutually_exclusive_group() if title == CONFIGURATION else group
        for option in OPTIONS[title]:
            place = named if option.name.startswith("--tickers") else group
            place.add_argument(option.name, **option.settings)


def check_protocol(parser: Parser, given: argparse.Namespace) -> None:
    """Refuse the options of trainings where nothing would be trained."""
    for option in (*OPTIONS[DRY_RUN], *OPTIONS[SCALE]) if given.protocol in (None, "holdout") else ():
        if option.value(given):
            parser.error(
                f"{option.name} belongs to --protocol walk-forward or cpcv, which train; a holdout evaluation does not"
            )
