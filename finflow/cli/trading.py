"""Decisions, paper trading and retraining from the command line."""

from __future__ import annotations

import argparse
import datetime as dt
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from finflow.cli.configuration import checkpoint_configuration, evaluation_overrides, resolve
from finflow.cli.exit_status import stopping_between_updates
from finflow.cli.options import explicit
from finflow.cli.output import resume_command, show_report
from finflow.errors import ConfigError
from finflow.text_table import table_lines

if TYPE_CHECKING:
    from finflow.config import Config
    from finflow.experiments.retraining.retrain_results import RetrainNumbers
    from finflow.trading.decision_results import Decision

_SHOWN = 8


def run_decision(given: argparse.Namespace, runs: Sequence[Path]) -> None:
    """Decide with the agent of a run, or with several (or a job) as one, and print the decision."""
    overrides = evaluation_overrides(given, runs[0]) | {
        key: value for key, value in explicit(given).items() if key.startswith("market.tickers")
    }
    date = None if not given.date else read_date(given.date[0], "--date")
    from finflow.trading.deciding import Request, decide

    outcome = decide(
        Request(
            tuple(runs),
            overrides,
            holdings=given.holdings,
            fills=given.fills,
            cash=given.cash,
            date=date,
            accept_drift=given.accept_drift,
            accept_verdict=given.i_know,
            dry_run=given.dry_run,
            broker=given.broker,
            live=given.live,
        )
    )
    if outcome.decision is not None:
        print("\n".join(decision_lines(outcome.decision)))
    for remark in outcome.remarks:
        print(f"note: {remark}")
    if outcome.folder is None:
        print("nothing was written (--dry-run)")
    elif outcome.decision is not None:
        print(f"written: decision.json, orders.csv and decision.html in {outcome.folder}")


def run_paper(given: argparse.Namespace, runs: Sequence[Path]) -> None:
    """Trade on paper with the agent of a run, or with several (or a job) as one, and print the state of the account."""
    overrides = evaluation_overrides(given, runs[0])
    if given.broker:
        overrides = {**overrides, "trading.broker": given.broker}
    first, until = (
        None if vars(given)[name] is None else read_date(vars(given)[name], f"--{name}") for name in ("from", "until")
    )
    from finflow.trading.deciding import Request
    from finflow.trading.paper.paper_trading import trade_on_paper

    outcome = trade_on_paper(
        Request(
            tuple(runs),
            overrides,
            first=first,
            until=until,
            follow=given.follow,
            accept_drift=given.accept_drift,
            accept_verdict=given.i_know,
            live=given.live,
        )
    )
    numbers = outcome.numbers
    sharpe = "-" if numbers.sharpe != numbers.sharpe else f"{numbers.sharpe:.2f}"
    print(f"paper account of {numbers.account}, {len(numbers.days):,} evenings up to {numbers.date}")
    print(
        f"value {numbers.value:,.2f}, net {numbers.total_return:+.2%}, Sharpe {sharpe}, turnover {numbers.turnover:.2f}"
    )
    if numbers.outside_since is not None:
        print(f"warning: since {numbers.outside_since} it is outside the band that its backtest implies (5 %)")
    elif numbers.expected_from:
        print("it is within the band that its backtest implies (5 %, at every check)")
    else:
        print("there is no expectation to compare with: the run has no backtest before the account began")
    if outcome.message is not None:
        print(f"note: {outcome.message}")
    print(f"page: {outcome.page}")


def read_date(text: str, option: str) -> dt.date:
    try:
        return dt.date.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{option} {text!r} is not a date: write it as 2020-03-16") from None


def decision_lines(decision: Decision) -> list[str]:
    agents = f" by the mean of {len(decision.agents)} agents" if len(decision.agents) > 1 else ""
    text = [
        f"the agent {decision.reasons.holds}",
        f"decision of {decision.date}{agents}, with what was known on {decision.known}; orders fill {decision.fills}",
        *(check.said for check in decision.checks if check.name == "age"),
        f"account: {decision.value:,.2f}, of which {decision.cash:,.2f} in cash",
        "",
    ]
    orders = [("orders", "side", "shares", "price", "value", "cost")]
    orders += [
        (one.ticker, one.side, f"{one.shares:,g}", f"{one.price:,.2f}", f"{one.value:,.2f}", f"{one.cost:,.2f}")
        for one in decision.orders
    ]
    text += (
        [f"  {line}" for line in table_lines(orders)] if decision.orders else ["  no order: the account stays as it is"]
    )
    text += [
        "",
        f"turnover {decision.turnover:.2%}, expected cost {decision.cost:,.2f}, "
        f"cash afterwards {decision.cash_after:,.2f}",
        *_held_back(decision),
        "",
    ]
    spread = len(decision.agents) > 1
    table = [("weights", "held", "aim", "target", "planned", *(("agents from", "to") if spread else ()))]
    for name in sorted(decision.assets, key=lambda name: (name == "cash", -decision.assets[name].planned, name)):
        one = decision.assets[name]
        cells = [one.held, one.aim, one.target, one.planned, *((one.spread.low, one.spread.high) if one.spread else ())]
        table.append((name, *(f"{cell:.2%}" for cell in cells)))
    text += [f"  {line}" for line in table_lines(table)]
    text += ["", *_reasons(decision), *_follow_up(decision)]
    text += [f"warning: {check.name}: {check.said}" for check in decision.checks if not check.passed]
    return text


def _held_back(decision: Decision) -> list[str]:
    held = decision.held_back
    text = [
        f"the aim is {held.to_aim:.2%} of the account away; the agent goes {held.trade_rate:.1%} of the way: "
        f"{held.to_target:.2%}"
    ]
    if held.in_band:
        text.append(
            f"the largest change of a weight, {held.largest_change:.3%}, does not exceed the no-trade band of "
            f"{held.no_trade_band:.3%}: nothing is traded"
        )
    if held.limited:
        text.append(f"the limits of the account leave {held.to_allowed:.2%} of that")
    if held.refused:
        text.append("the account cannot pay for the trade: nothing is traded")
    return text


def _reasons(decision: Decision) -> list[str]:
    reasons = decision.reasons
    text = ["gate: " + ", ".join(f"{name} {share:.0%}" for name, share in reasons.gate.items())]
    if reasons.features:
        text.append(f"since the bar before the aim moved by {reasons.aim_change:.2%}; the features that moved it most:")
        table = [("feature", "before", "now", "part")]
        for name, one in reasons.largest(_SHOWN).items():
            table.append((name, f"{one.before:+.2f}", f"{one.now:+.2f}", f"{one.part:+.3%}"))
        text += [f"  {line}" for line in table_lines(table)]
    text.append(f"the largest change: {reasons.question}; another decision would need")
    if not reasons.alternatives:
        text.append("  more than any single feature can do within its range in training")
    for other in reasons.alternatives:
        text.append(
            f"  {other.feature} at {other.changed:+.2f} in place of {other.now:+.2f} ({other.change:.2f} training "
            f"deviations): {other.outcome}"
        )
    return text


def _follow_up(decision: Decision) -> list[str]:
    before = decision.follow_up
    if before is None:
        return []
    if before.source == "plan":
        halted = ", but those in tickers that were halted then" if before.differences else ""
        source = f"are taken to have filled as planned (--fills FILE enters others){halted}"
        text = [f"the orders of {before.date} {source}"]
    else:
        source = f"by the {before.source} entered: cash {before.cash:+,.2f} against the plan"
        text = [f"since the decision of {before.date}, {source}"]
    for name, one in before.differences.items():
        lost = "" if one.shortfall != one.shortfall else f", {one.shortfall:+,.2f} implementation shortfall"
        text.append(f"  {name}: planned {one.planned:+,g}, done {one.done:+,g}{lost}")
    return text


def run_retraining(given: argparse.Namespace, run: Path) -> None:
    """Retrain the agent of a run, which is left as it is, on the newest prices, and print which of both to keep."""
    config = retraining_configuration(given, run)
    from finflow.experiments.jobs.independent_trainings import describe_trainings
    from finflow.experiments.retraining.retraining import FOLDER, compare_and_train, prepare_retraining
    from finflow.experiments.tasks import ComputeResources
    from finflow.training.checkpoints.run_folder import resolve_run
    from finflow.training.phases.stopping import request_stop

    elsewhere = explicit(given).get("output.logs_dir")
    parent = None if elsewhere is None else Path(str(elsewhere)) / FOLDER / resolve_run(run).folder.name
    retraining = prepare_retraining(run, config, parent)
    print("\n".join(retraining.lines()))
    resources = ComputeResources(given.workers, None, config.train.threads, config.train.device)
    with resources.ready():
        if given.dry_run:
            print("\n".join(describe_trainings(config, retraining.trainings, {"": retraining.panel})))
            return
        with stopping_between_updates(request_stop):
            try:
                numbers, page, new = compare_and_train(retraining, resources)
            except KeyboardInterrupt:
                raise KeyboardInterrupt("stopped; the same command continues from there") from None
    print("\n".join(retraining_lines(numbers)))
    print(f"continue with: {resume_command('decide', new or run)}")
    show_report(page)


def retraining_configuration(given: argparse.Namespace, run: Path) -> Config:
    """The configuration of the old run, with the changes that were asked for, up to the newest bar.

    A ConfigError refuses another universe or other windows.
    """
    if given.tickers:
        raise ConfigError("a retraining keeps the universe of its run: leave --tickers and --tickers-file out")
    before = checkpoint_configuration(run)
    from finflow.config import replace_values

    config = resolve(given, replace_values(before, {"market.test_end": None, "market.extend_cache": True}))
    for name in ("train_end", "validation_end"):
        if getattr(config.market, name) != getattr(before.market, name):
            raise ConfigError(
                f"market.{name} says what the old agent was trained on, {getattr(before.market, name)}, and cannot be "
                "another for a retraining; leave it out"
            )
    return config


def retraining_lines(numbers: RetrainNumbers) -> list[str]:
    table = [("compared", "sharpe", "return a year", "drawdown", "turnover a year")]
    for name, one in numbers.figures.items():
        cells = (f"{one.sharpe:.2f}", f"{one.annual_return:+.1%}", f"{one.max_drawdown:.1%}")
        table.append((name, *cells, f"{one.annual_turnover:.1f}"))
    chance = (1.0 - numbers.coverage) / 2.0
    lead = (
        f"Sharpe ratio of the new agent less that of the old: {numbers.lead:+.2f}, {numbers.bounds.low:+.2f} to "
        f"{numbers.bounds.high:+.2f} (paired bootstrap, {numbers.coverage:.1%}, {numbers.returns} returns)"
    )
    above = "above" if numbers.answer == "replace" else "not above"
    return [
        *table_lines(table),
        lead,
        f"{numbers.answer}: the lower bound is {above} the margin of {numbers.margin:g}; without a true lead the "
        f"chance of a replacement is {chance:.2%} here (comparison {numbers.comparison} of this agent)",
        *(f"warning: {note}" for note in numbers.notes),
    ]
