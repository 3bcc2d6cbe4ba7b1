"""Modes of trained agents, strategies and preferences: evaluation, audit, explanation, trading, learning."""

from __future__ import annotations

import argparse
import datetime as dt
import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from finflow.cli.option_table import ANSWERS, ASKED, DIRECT
from finflow.cli.options import as_yaml, checkpoint_configuration, evaluation_overrides, explicit, place_of, resolve
from finflow.cli.output import open_page, show_audit, show_outcome, show_report
from finflow.errors import CheckpointError, ConfigError, FinflowError, first_few, refuse
from finflow.provenance import short_hash

if TYPE_CHECKING:
    from finflow.config import Config
    from finflow.preferences.pairs import SegmentMarket
    from finflow.trading.decide_mode import Request
    from finflow.training.data.training_data import TrainingData

#: Keys that an evaluation may change without changing its figures.
_NOT_DECIDING = (
    *("output.", "trading.", "train.", "market.cache_dir", "market.use_cache", "market.extend_cache"),
    "env.episode_length",
)


def run_evaluation(
    arguments: argparse.Namespace, paths: Sequence[Path], only: Sequence[str] | None = None, with_backtest: bool = False
) -> None:
    """Evaluate a trained agent, or several that act as one, on the test window, and show the outcome.

    Several agents trade the mean of their portfolios; the folder of a job stands for all of its agents. The report goes
    into the run's folder; that of a changed market or environment into a folder of its own there. ``only`` names the
    strategies to list; ``with_backtest`` runs sweeps and stress periods whatever `evaluation.sweeps` is.
    """
    overrides = evaluation_overrides(arguments, paths[0])
    from finflow.training.judging.agent_strategy import load_agents
    from finflow.training.judging.evaluations import evaluate_agents

    agents = load_agents(paths, overrides)
    folder = place_of(arguments, agents.folder, 1 if len(paths) == 1 else 2)
    deciding = {key: as_yaml(value) for key, value in sorted(overrides.items()) if not key.startswith(_NOT_DECIDING)}
    if deciding:  # else the agents' own folder, whose report no other evaluation may replace
        folder = folder / "evaluations" / short_hash(json.dumps(deciding))
    outcome = evaluate_agents(agents, folder, with_backtest)
    show_outcome(outcome, only)


def backtest_named(config: Config, names: Sequence[str]) -> None:
    """Backtest named strategies on the test window, the first as the evaluated one, and show the outcome."""
    from finflow.training.judging.evaluations import backtest_strategies

    show_outcome(backtest_strategies(config, names))


def run_audit(given: argparse.Namespace) -> None:
    """Audit a configuration, with a user's strategies and an agent if given; FinflowError if one looks ahead."""
    config = resolve(given, checkpoint_configuration(given.resume)) if given.resume else resolve(given)
    from finflow.training.audit.configuration_audit import audit_configuration, mark_leaks
    from finflow.training.audit.look_ahead import verdict_of

    findings = audit_configuration(config, given.strategy or (), given.resume)
    show_audit(findings)
    for line in mark_leaks(config, findings, given.strategy or (), given.resume):
        print(line)
    if complaint := verdict_of(findings):
        raise FinflowError(complaint)


def run_inspection(given: argparse.Namespace) -> None:
    """Show what a file of prices holds, or a run's checkpoints; a CheckpointError names those that are not whole."""
    path = given.resume or Path(given.run[0])
    from finflow.market.sources.price_inspection import describe_prices, kind_of_prices

    if kind := kind_of_prices(path):
        print("\n".join(describe_prices(path, kind, resolve(given).market)))
        return
    from finflow.training.checkpoints.checkpoint_reader import inspect_checkpoints

    inspections = inspect_checkpoints(path)
    print("\n".join([*_describe_run(path), *(line for inspection in inspections for line in inspection.lines)]))
    bad = [inspection.path.name for inspection in inspections if inspection.complaint is not None]
    if bad:
        others = "use another one" if len(bad) < len(inspections) else "start a new run"
        raise CheckpointError(
            f"{len(bad)} of {len(inspections)} checkpoints cannot be used: {', '.join(bad)}; {others}"
        )


def _describe_run(path: Path) -> list[str]:
    """Market and verdict of a run, as far as its manifest and the numbers of its report are there."""
    from finflow.trading.live_market import read_part
    from finflow.training.checkpoints.packaged_agents import METRICS
    from finflow.training.checkpoints.run_folder import MANIFEST, resolve_run

    folder, lines = resolve_run(path).folder, list[str]()
    if data := read_part(folder / MANIFEST, "data"):
        names = data.get("assets", [])
        source, count, first, last = data.get("source"), len(names), data.get("first_date"), data.get("last_date")
        lines.append(f"market: {source}, {count} assets ({first_few(names, 5)}), {first} to {last}")
    if answer := read_part(folder / METRICS, "verdict").get("beats_equal_weight"):
        lines.append(f"verdict: beats equal weight: {answer} (reports/report.html)")
    return lines


def run_explanation(given: argparse.Namespace) -> None:
    """Print why an agent traded on some dates, and write it as JSON to `--output`."""
    overrides = evaluation_overrides(given, given.resume)
    from finflow.evaluation.analysis.attribution import decisions_section
    from finflow.evaluation.page.page_numbers import json_text
    from finflow.files import write_atomically
    from finflow.training.judging.evaluations import explain_dates

    explanations = explain_dates(given.resume, overrides, given.date)
    if given.output is not None:
        write_atomically(given.output, json_text(dict(explanations)))
    shown = decisions_section(explanations)
    print("\n".join(shown.text({shown.key: shown.numbers})))
    if given.output is not None:
        print(f"written to {given.output}")


def run_comparison(given: argparse.Namespace) -> None:
    """Write the page that compares runs, by default in `comparisons/` next to the first, and print where it is."""
    from finflow.experiments.jobs.run_comparison import compare_runs

    page, lines = compare_runs([Path(run) for run in given.run], given.output)
    print("\n".join(lines))
    show_report(page)


def run_decision(given: argparse.Namespace) -> None:
    """Decide with the agent of a run, or with several (or a job) as one, and print the decision."""
    overrides = evaluation_overrides(given, given.resume) | {
        key: value for key, value in explicit(given).items() if key.startswith("market.tickers")
    }
    request = _request(given, overrides, broker=given.broker)
    from finflow.trading.decide_mode import decide
    from finflow.trading.decision_page import decision_page

    outcome = decide(request)
    if outcome.decision is not None:
        print("\n".join(decision_page(outcome.decision).text()))
    for remark in outcome.remarks:
        print(f"note: {remark}")
    if outcome.folder is None:
        print("nothing was written (--dry-run)")
    elif outcome.decision is not None:
        print(f"written: decision.json, orders.csv and decision.html in {outcome.folder}")


def run_paper(given: argparse.Namespace) -> None:
    """Trade on paper with the agent of a run, or with several (or a job) as one, and print the state of the account."""
    overrides = evaluation_overrides(given, given.resume)
    if given.broker:
        overrides = {**overrides, "trading.broker": given.broker}
    request = _request(given, overrides)
    from finflow.trading.paper_page import paper_page
    from finflow.trading.paper_trading import trade_on_paper

    outcome = trade_on_paper(request)
    print("\n".join(paper_page(outcome.numbers).text("evenings")))
    if outcome.message is not None:
        print(f"note: {outcome.message}")
    print(f"page: {outcome.page}")


def _request(given: argparse.Namespace, overrides: Mapping[str, object], broker: str | None = None) -> Request:
    """The options of a decision or of paper trading; those of the other mode were not given."""
    texts = {"--date": given.date[0] if given.date else None, "--from": vars(given)["from"], "--until": given.until}
    date, first, until = (read_date(text, option) for option, text in texts.items())
    from finflow.trading.decide_mode import Request

    return Request(
        tuple(given.agents),
        overrides,
        holdings=given.holdings,
        fills=given.fills,
        cash=given.cash,
        date=date,
        accept_drift=given.accept_drift,
        accept_verdict=given.i_know,
        dry_run=given.dry_run,
        broker=broker,
        live=given.live,
        first=first,
        until=until,
        follow=given.follow,
    )


def read_date(text: str | None, option: str) -> dt.date | None:
    try:
        return None if text is None else dt.date.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{option} {text!r} is not a date: write it as 2020-03-16") from None


def run_preferences(given: argparse.Namespace) -> None:
    """Have a person or a judge compare pairs of segments of the training window, or learn from files of such pairs."""
    output = given.output
    refuse(output and output.exists(), f"{output} exists already: name another file after --output, or remove this one")
    if given.method in DIRECT:
        _learn_policy(given)
        return
    config = resolve(given)
    if given.learn:
        _learn(config, given.learn, output, given.strict)
    elif given.judge:
        _make_pairs(config, given.judge, given.pairs, output)
    else:
        _ask(config, given.ask or ANSWERS, given.pairs or ASKED, given.port or 0, given.open)


def _training_market(config: Config) -> tuple[TrainingData, SegmentMarket]:
    from finflow.preferences.pairs import SegmentMarket
    from finflow.training.data.training_data import prepare

    data = prepare(config)
    return data, SegmentMarket(data.process, data.split.train, config)


def _ask(config: Config, file: Path, count: int, port: int, opened: bool) -> None:
    from finflow.files import in_use
    from finflow.preferences.judged_pairs import make_questions
    from finflow.preferences.web_page.answer_server import AnswerServer, AnswerSession, answers_so_far, page_html

    with in_use(file, "adding answers to"), AnswerServer(port) as server:
        before = answers_so_far(file)
        data, market = _training_market(config)
        session = AnswerSession(file, make_questions(market, count, config.train.seed), before)
        print(f"{server.url} shows {session.line()}; Ctrl-C stops", flush=True)
        if opened:
            open_page(server.url)
        server.serve(session, partial(page_html, assets=data.panel.assets, bars_per_year=data.panel.bars_per_year))
        print(session.close())


def _make_pairs(config: Config, name: str, count: int | None, output: Path) -> None:
    from finflow.preferences.judged_pairs import PAIRS, judge_pairs, make_judge
    from finflow.preferences.pairs import write_pairs

    data, market = _training_market(config)
    judge = make_judge(name, config.preferences.judge, data.panel.bars_per_year)
    judged = judge_pairs(market, judge, count or PAIRS, config.train.seed)
    write_pairs(output, judged.pairs)
    accuracy = f"attainable accuracy {judged.attainable:.3f}: of the answer that the judge gives more often"
    print("\n".join([f"{judged.line()}; {accuracy}", f"pairs: {output}"]))


def _learn(config: Config, files: Sequence[Path], output: Path, strict: bool) -> None:
    from finflow.preferences.pairs import read_pairs

    file = read_pairs(files)  # a file that cannot be used is refused before any work is done
    import torch

    from finflow.preferences.model_training import learn_model
    from finflow.preferences.preference_reward import pair_tensors, save_model

    torch.set_num_threads(config.train.threads)
    data, market = _training_market(config)
    pairs = pair_tensors(market, file)
    model, learned = learn_model(pairs, data.shape, config.train.seed)
    refuse(strict and learned.doubt(), f"nothing was written (--strict): {learned.doubt()}")
    save_model(output, model, learned.report(), (*data.features.asset_names, *data.features.market_names))
    print("\n".join([file.line(), *learned.lines(), f"reward model: {output}"]))


def _learn_policy(given: argparse.Namespace) -> None:
    from finflow.preferences.pairs import read_pairs

    file = read_pairs(given.learn)
    from finflow.tensor_file import write_tensors
    from finflow.training.checkpoints.checkpoint_reader import check_same_features, stored_config
    from finflow.training.checkpoints.reference_policy import learn_preferences
    from finflow.training.data.training_data import prepare
    from finflow.training.judging.agent_strategy import load_agents

    wanted = resolve(given, checkpoint_configuration(given.resume))
    overrides = evaluation_overrides(given, given.resume)
    kept = {key: value for key, value in overrides.items() if not key.startswith(("preferences.", "train.seed"))}
    agent, settings, seed = load_agents([given.resume], kept).alone, wanted.preferences.policy, wanted.train.seed
    data = prepare(stored_config(agent, kept))
    check_same_features(agent, data.features)
    tensors, facts, learned = learn_preferences(agent, data, given.learn, file, given.method, settings, seed)
    refuse(given.strict and learned.doubt(), f"nothing was written (--strict): {learned.doubt()}")
    write_tensors(given.output, tensors, facts)
    print("\n".join([file.line(), *learned.lines(), f"agent: {given.output}"]))
