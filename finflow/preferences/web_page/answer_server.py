"""Page on which a person answers pairs: questions, the file of the answers, the HTML, and the local server.

A question shows two paths side by side, without the names of their strategies, which would bias the answer.

The server is bound to 127.0.0.1, for requests of its own page alone: those by another host name (DNS rebinding) are
refused, those of another page, and answers without the page's token (cross-site request forgery).
"""

from __future__ import annotations

import base64
import functools
import hmac
import json
import secrets
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from finflow.errors import FinflowError, OutputError, refuse
from finflow.evaluation.page.drawing import AREA_COLOURS, BLUE, GREY, VERMILION, legend_of_figure, percent_axis, render
from finflow.evaluation.page.page_numbers import show
from finflow.evaluation.report.figures import stack_assets
from finflow.evaluation.statistics.metrics import drawdown_series
from finflow.files import read_text_input, write_atomically
from finflow.line_file import append_line
from finflow.preferences.judged_pairs import Choice, DrawnPair, path_measures
from finflow.preferences.pairs import NAME, Pair, PortfolioPath, read_pairs

if TYPE_CHECKING:
    from jinja2 import Environment
    from matplotlib.figure import Figure


class StaleQuestionError(FinflowError):
    """An answer to a question that is not the one asked: of another tab, or of a key that was pressed twice."""


class AnswerSession:
    """Questions, and the file that their answers are added to at once.

    A question is answered when the file has its pair, so that a session goes on where the file ends. Skipped questions
    are not in the file, and are asked again in the next session. Threads may share a session. The file has lines of
    JSON, and is made by the first answer; the answers ``before`` are those that `answers_so_far` finds in it.
    """

    def __init__(self, file: Path, questions: Sequence[DrawnPair], before: Sequence[Pair]) -> None:
        self.file, self.questions = file, questions
        self._lock = threading.Lock()
        told = {frozenset((pair.first, pair.second)) for pair in before}
        self._before = {number for number, one in enumerate(questions) if frozenset(one.segments) in told}
        #: Question -> its answer, None where it was skipped, of this session; the latest last.
        self._dealt: dict[int, Pair | None] = {}

    @property
    def current(self) -> int | None:
        """Number of the question to ask; None when all are answered or skipped."""
        done = self._before | self._dealt.keys()
        return next((number for number in range(len(self.questions)) if number not in done), None)

    @property
    def skipped(self) -> int:
        return sum(pair is None for pair in self._dealt.values())

    @property
    def answered(self) -> int:
        """Questions of the list that are answered, those of earlier sessions too."""
        return len(self._before) + len(self._dealt) - self.skipped

    @property
    def can_undo(self) -> bool:
        """True where there is an answer or a skip of this session to take back."""
        return bool(self._dealt)

    def line(self) -> str:
        """The session at its beginning, in a line."""
        answered = f", {len(self._before):,} of them answered before" if self._before else ""
        return f"{len(self.questions):,} pairs{answered}; answers are added to {self.file}"

    def act(self, number: int | None, act: Choice | Literal["skip", "undo"]) -> None:
        """Answer the question that a person saw, skip it until the next session, or take back what was done last.

        Raises StaleQuestionError if another question is asked now; OutputError if the file cannot be written: nothing
        has changed then.
        """
        with self._lock:
            refuse(number != self.current, "the page is out of date: another question is shown now", StaleQuestionError)
            if act == "undo":
                if self._dealt:
                    last, pair = next(reversed(self._dealt.items()))
                    if pair:
                        self._drop(pair.line())
                    del self._dealt[last]
            elif number is not None:
                pair = None if act == "skip" else self.questions[number].answered(act)
                if pair:
                    append_line(self.file, pair.line())
                self._dealt[number] = pair

    def _drop(self, line: str) -> None:
        content = read_text_input(self.file, NAME, OutputError)
        refuse(
            not content.endswith(f"\n{line}\n") and content != f"{line}\n",
            f"{self.file} ends with another line than the one to take back: something else wrote it",
            OutputError,
        )
        write_atomically(self.file, content.removesuffix(f"{line}\n"))

    def close(self) -> str:
        """Take no more answers, and tell the session in a line."""
        self._lock.acquire()  # for good: an answer that is being written is finished first
        added, count = self.answered - len(self._before), len(self.questions)
        return f"{added:,} answers added to {self.file}; {count - self.answered:,} of {count:,} pairs are not answered"


def answers_so_far(file: Path) -> tuple[Pair, ...]:
    """Answers in a file that a session goes on with; none where it does not exist or is empty.

    Raises FinflowError if it is named as a CSV file, or a line of it is no pair.
    """
    refuse(
        file.suffix.lower() == ".csv",
        f"answers are added to files of JSON lines, not to {file}: name one that ends with .jsonl",
    )
    if not file.exists() or (file.is_file() and not file.stat().st_size):
        return ()
    return read_pairs([file]).pairs


STYLES = "finflow.evaluation.page"  # whose style sheet the page begins with
SMALLEST_RANGE = 0.01  # of an axis: below it, noise would fill a chart
FACTS = (
    ("return", "return", "%", True),
    ("max drawdown", "drawdown", "%", False),
    ("largest loss", "loss", "%", False),
    ("volatility a year", "volatility", "%", False),
    ("turnover a year", "turnover", "×", False),
)
"""Name on the page, name among a judge's measures, unit, and whether a sign is shown."""


def page_html(
    session: AnswerSession,
    template: str = "question.html.j2",
    *,
    assets: Sequence[str],
    bars_per_year: int,
    **facts: str,
) -> str:
    """HTML of the question that is asked: the part of the page that changes with every answer, or the whole page.

    ``pair_page.html.j2`` is the template of the whole page, whose facts are the ``token`` that answers carry, and the
    ``nonce`` of its style and script. ``assets`` leave cash out.
    """
    number = session.current
    panels: list[dict[str, object]] = []
    image = ""
    if number is not None:
        shown = session.questions[number].shown
        image = base64.b64encode(draw_paths(shown, assets)).decode("ascii")
        measures = [path_measures(path, bars_per_year) for path in shown]
        panels = [
            {
                "side": side,
                "span": f"{len(path)} holding periods, ending {path.dates[0]} to {path.dates[-1]}",
                "facts": [(name, show(found[key], unit, 1, plus=plus)) for name, key, unit, plus in FACTS],
            }
            for side, path, found in zip(("Left", "Right"), shown, measures, strict=True)
        ]
    state = {"session": session, "number": number, "panels": panels, "image": image, **facts}
    return _environment().get_template(template).render(state)


def draw_paths(paths: tuple[PortfolioPath, PortfolioPath], assets: Sequence[str]) -> bytes:
    """Draw equity, drawdown, weights and turnover of two paths side by side, on the same scales, as PNG."""
    held = np.sum([path.filled[:, :-1].mean(axis=0) for path in paths], axis=0)
    top = [int(column) for column in np.argsort(-held, kind="stable")[: len(AREA_COLOURS)]]

    def draw(figure: Figure) -> None:
        grid = figure.subplots(4, 2, sharex="col", sharey="row", height_ratios=(4, 2, 3, 2))
        for side, (equity, drawdown, weights, turnover), path in zip(("Left", "Right"), grid.T, paths, strict=True):
            days = np.concatenate([path.dates[:1] - 1, path.dates])
            equity.set_title(side)
            equity.plot(days, np.cumprod(np.append(1.0, 1.0 + path.returns)), color=BLUE)
            equity.axhline(1.0, color=GREY, linestyle="--", linewidth=0.8)
            drawdown.fill_between(days, np.append(0.0, drawdown_series(path.returns)), color=VERMILION, alpha=0.45)
            stack_assets(weights, path.dates, path.filled, assets, top)
            turnover.fill_between(path.dates, path.turnover, step="mid", color=BLUE)
            turnover.set_xlim(days[0], days[-1])
        for axes, name in zip(grid[:, 0], ("value of 1", "drawdown", "weights", "turnover"), strict=True):
            axes.set_ylabel(name)
            low, high = axes.get_ylim()
            spare = max(0.5 * (SMALLEST_RANGE - (high - low)), 0.0)
            axes.set_ylim(low - spare, high + spare)
        for axes in grid[[1, 3], 0]:
            percent_axis(axes)
        legend_of_figure(figure, grid[2, 0])

    return render(draw, 6.5)


@functools.cache
def _environment() -> Environment:
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    loader = ChoiceLoader([PackageLoader(__package__), PackageLoader(STYLES)])
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


HOST = "127.0.0.1"
TOKEN_HEADER = "X-Finflow-Token"
MOST_BYTES = 1024  # of an answer
PATIENCE = 10.0  # seconds that a silent connection is kept


class Answer(BaseModel):
    """The question that a person saw, and what was done with it."""

    model_config = ConfigDict(strict=True, extra="forbid")

    question: int | None
    act: Choice | Literal["skip", "undo"]


class AnswerServer(ThreadingHTTPServer):
    """Server of one session, at a port or, of 0, a free one; a FinflowError if it cannot be opened."""

    daemon_threads = True
    session: AnswerSession
    page: Callable[..., str]

    def __init__(self, port: int) -> None:
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            raise FinflowError(
                f"port {port} of {HOST} cannot be opened: {error.strerror}; choose another with --port, or 0 for a "
                "free one"
            ) from None
        self.token = secrets.token_urlsafe(32)
        self.hosts = [f"{name}:{self.server_port}" for name in (HOST, "localhost")]

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.server_port}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Show the traceback of a fault; a browser that went away during a request is none."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    def serve(self, session: AnswerSession, page: Callable[..., str]) -> None:
        """Serve a session until Ctrl-C, on pages of `page_html`; an answer that is being written then is finished."""
        self.session, self.page = session, page
        with suppress(KeyboardInterrupt):
            self.serve_forever(poll_interval=0.2)


class _Handler(BaseHTTPRequestHandler):
    """Answers one connection."""

    server: AnswerServer
    timeout = PATIENCE
    server_version, sys_version = "finflow", ""

    def do_GET(self) -> None:
        if not self._from_own_page():
            return
        if self.path != "/":
            self._send_json(HTTPStatus.NOT_FOUND, {"error": f"the page is at {self.server.url}"})
            return
        nonce = secrets.token_urlsafe(16)
        policy = (
            f"default-src 'none'; img-src data:; style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; "
            "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        content = self.server.page(self.server.session, "pair_page.html.j2", token=self.server.token, nonce=nonce)
        self._send(HTTPStatus.OK, "text/html; charset=utf-8", content, {"Content-Security-Policy": policy})

    def do_POST(self) -> None:
        """Take an answer, a skip or an undo, and send the next question."""
        if self._from_own_page():
            status, told = self._taken()
            if status in (HTTPStatus.OK, HTTPStatus.CONFLICT):
                told["html"] = self.server.page(self.server.session)
            self._send_json(status, told)

    def _taken(self) -> tuple[HTTPStatus, dict[str, str]]:
        if self.path != "/answer":
            return HTTPStatus.NOT_FOUND, {"error": "answers go to /answer"}
        if not hmac.compare_digest(self.headers.get(TOKEN_HEADER, "").encode(), self.server.token.encode()):
            return HTTPStatus.FORBIDDEN, {"error": "this page is of an earlier start of the server; load it again"}
        length = self.headers.get("Content-Length", "")
        short = length.isascii() and length.isdigit() and int(length) <= MOST_BYTES
        try:
            answer = Answer.model_validate_json(self.rfile.read(int(length)) if short else b"")
            self.server.session.act(answer.question, answer.act)
        except ValueError:
            text = "an answer is an object of JSON: question, a number or null, and act: left, tie, right, skip or undo"
            return HTTPStatus.BAD_REQUEST, {"error": text}
        except StaleQuestionError as error:
            return HTTPStatus.CONFLICT, {"error": str(error)}
        except FinflowError as error:  # the file cannot be written: the question stays
            return HTTPStatus.INTERNAL_SERVER_ERROR, {"error": str(error)}
        return HTTPStatus.OK, {}

    def _from_own_page(self) -> bool:
        """True for a request by the page's own address; the others are refused."""
        hosts = self.headers.get_all("Host", [])
        known = self.server.hosts
        own = len(hosts) == 1 and hosts[0] in known
        if own and all(origin in [f"http://{host}" for host in known] for origin in self.headers.get_all("Origin", [])):
            return True
        self._send_json(HTTPStatus.FORBIDDEN, {"error": f"this server answers at {self.server.url} alone"})
        return False

    def _send_json(self, status: HTTPStatus, content: dict[str, str]) -> None:
        self._send(status, "application/json", json.dumps(content), {})

    def _send(self, status: HTTPStatus, kind: str, content: str, headers: dict[str, str]) -> None:
        body = content.encode("utf-8")
        self.send_response(status)
        always = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **always, **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Keep the terminal clear."""
