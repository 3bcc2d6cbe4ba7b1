"""Local server of the page: bound to 127.0.0.1, for requests of its own page alone.

Other pages in the same browser can send requests to it too. Those that come by another host name (DNS rebinding) are
refused by their Host header, those of another page by Origin, and answers need a token that only the page has
(cross-site request forgery).
"""

from __future__ import annotations

import hmac
import json
import secrets
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal

from pydantic import BaseModel, ConfigDict

from finflow.errors import FinflowError
from finflow.preferences.judged_pairs import Choice
from finflow.preferences.web_page.answer_session import AnswerSession, StaleQuestionError

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
        """Address of the page."""
        return f"http://{HOST}:{self.server_port}/"

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
        """Send the page."""
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
            page = (
                {"html": self.server.page(self.server.session)}
                if status in (HTTPStatus.OK, HTTPStatus.CONFLICT)
                else {}
            )
            self._send_json(status, {**told, **page})

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
