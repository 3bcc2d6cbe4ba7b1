"""A small market and paths made by hand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from finflow.config import load_config
from finflow.preferences.judged_pairs import DrawnPair, Judge, judge_pairs, make_questions
from finflow.preferences.pairs import PortfolioPath, SegmentMarket
from finflow.preferences.preference_reward import PairTensors, pair_tensors
from finflow.preferences.web_page.answer_server import AnswerServer, AnswerSession, answers_so_far, page_html
from finflow.training.data.training_data import TrainingData, prepare

SMALL: dict[str, object] = {
    "market.source": "synthetic",
    "market.synthetic.kind": "lognormal",
    "market.synthetic.assets": 3,
    "market.synthetic.bars": 1200,
    "market.synthetic.drift": 0.0005,
    "market.synthetic.edge": 0.0004,
    "market.synthetic.volatility": 0.03,
    "market.synthetic.correlation": 0.2,
    "market.train_end": "2021-12-31",
    "market.validation_end": "2022-06-30",
    "features.filters": "none",
    "features.regimes": False,
    "bcell.hidden_dim": 16,
    "env.episode_length": 20,
    "preferences.judge.strategies": ["equal-weight", "momentum"],
    "preferences.judge.random": 6,
    "objectives.preference.segment": 10,
}

PAGE = partial(page_html, assets=("A", "B", "C"), bars_per_year=252)


@pytest.fixture(scope="module", autouse=True)
def _quick_models(few_epochs: None) -> None: ...


def small_options() -> list[str]:
    keys = [f"{name}={' '.join(value) if isinstance(value, list) else value}" for name, value in SMALL.items()]
    return [word for name in keys for word in ("--set", name)]


def judged_pairs(market: SegmentMarket, judge: Judge, count: int, seed: int = 0) -> PairTensors:
    """Pairs of a market with the answers of a judge, as tensors."""
    return pair_tensors(market, judge_pairs(market, judge, count, seed))


@contextmanager
def served(file: Path, questions: Sequence[DrawnPair]) -> Iterator[AnswerServer]:
    """A server of questions, whose answers are added to a file."""
    with AnswerServer(0) as server:
        session = AnswerSession(file, questions, answers_so_far(file))
        thread = threading.Thread(target=server.serve, args=(session, PAGE))
        thread.start()
        yield server
        server.shutdown()
        thread.join(timeout=20)


@pytest.fixture(scope="session")
def small_data() -> TrainingData:
    """A synthetic market of three assets and four years."""
    return prepare(load_config(None, SMALL))


@pytest.fixture(scope="session")
def small_market(small_data: TrainingData) -> SegmentMarket:
    return SegmentMarket(small_data.process, small_data.split.train, small_data.config)


@pytest.fixture(scope="session")
def path_of() -> Callable[..., PortfolioPath]:
    """A path with given returns, and the same turnover in every period."""

    def make(returns: Sequence[float], turnover: float = 0.0) -> PortfolioPath:
        steps = len(returns)
        weights = np.full((steps, 2), 0.5)
        dates = np.busday_offset("2001-01-01", np.arange(steps), roll="forward")
        found = np.asarray(returns, dtype=np.float64)
        return PortfolioPath(dates, found, np.full(steps, turnover), np.zeros(steps), weights, weights)

    return make


@pytest.fixture(scope="session")
def questions(small_market: SegmentMarket) -> tuple[DrawnPair, ...]:
    """Six questions of the small market, of both sides."""
    return make_questions(small_market, 6, seed=0)
