"""Preferences from the command line: pairs that a judge or a person compares, and models that learn from them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from finflow.cli.configuration import checkpoint_configuration, evaluation_overrides, resolve
from finflow.cli.option_table import ANSWERS, ASKED, DIRECT
from finflow.cli.output import open_page

if TYPE_CHECKING:
    from finflow.config import Config
    from finflow.preferences.pairs import SegmentMarket
    from finflow.training.data.training_data import TrainingData


def run_preferences(given: argparse.Namespace) -> None:
    """Have a person or a judge compare pairs of segments of the training window, or learn from files of such pairs."""
    sys.path.append(str(Path.cwd()))  # a user's own strategy lies where the user is
    if given.method in DIRECT:
        _learn_policy(given)
        return
    config = resolve(given)
    if given.learn:
        _learn(config, given.learn, given.output)
    elif given.judge:
        _make_pairs(config, given.judge, given.pairs, given.output)
    else:
        _ask(config, given.ask or ANSWERS, given.pairs or ASKED, given.port or 0, given.open)


def preference_mistakes(given: argparse.Namespace) -> list[tuple[object, str]]:
    """Mistakes in options of `--mode prefer`: true for what was made, and the answer."""
    asks, direct = not (given.judge or given.learn), given.method in DIRECT
    ways = bool(given.judge) + bool(given.learn) + bool(given.ask)
    return [
        (given.method and not given.learn, "--method belongs to --learn"),
        (
            direct and not given.resume,
            f"--method {given.method} needs --resume with the run folder or checkpoint of the agent",
        ),
        (
            given.resume and not direct,
            f"--mode prefer has an agent (--resume) with --learn and --method {' or '.join(DIRECT)} alone",
        ),
        (ways > 1, "--mode prefer does one of --ask, --judge and --learn at a time"),
        (
            not asks and not given.output,
            f"--{'judge' if given.judge else 'learn'} needs --output with the file to write",
        ),
        (asks and given.output, "--output belongs to --judge and --learn; name the file of your answers after --ask"),
        *(
            (getattr(given, one) and not asks, f"--{one} belongs to --ask: --mode prefer without --judge and --learn")
            for one in ("port", "open")
        ),
        (given.pairs and given.learn, "--pairs belongs to --ask and --judge; --learn uses all pairs of its files"),
    ]


def _training_market(config: Config) -> tuple[TrainingData, SegmentMarket]:
    from finflow.preferences.pairs import SegmentMarket
    from finflow.training.data.training_data import prepare

    data = prepare(config)
    return data, SegmentMarket(data.process, data.split.train, config)


def _ask(config: Config, file: Path, count: int, port: int, opened: bool) -> None:
    from finflow.files import in_use
    from finflow.preferences.judged_pairs import make_questions
    from finflow.preferences.web_page.answer_server import (
        AnswerServer,
        AnswerSession,
        answers_so_far,
        page_html,
    )

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


def _learn(config: Config, files: Sequence[Path], output: Path) -> None:
    from finflow.preferences.pairs import read_pairs

    file = read_pairs(files)  # a file that cannot be used is refused before any work is done
    import torch

    from finflow.preferences.model_training import learn_model
    from finflow.preferences.preference_reward import pair_tensors, save_model

    torch.set_num_threads(config.train.threads)
    data, market = _training_market(config)
    pairs = pair_tensors(market, file)
    model, learned = learn_model(pairs, data.shape, config.train.seed)
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
    write_tensors(given.output, tensors, facts)
    print("\n".join([file.line(), *learned.lines(), f"agent: {given.output}"]))
