"""Local server of the page: bound to 127.0.0.1, for requests of its own page alone.

Other pages in the same browser can send requests to it too. Those that come by another host name (DNS rebinding) are
refused by their Host header, those of another page by Origin, Referer or Sec-Fetch-Site, and answers need a token that
only the page has (cross-site request forgery).
"""

from __future__ import annotations

import hmac
import json
import secrets
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from finflow.errors import FinflowError
from finflow.preferences.web_page.answer_session import AnswerSession, StaleQuestionError
from finflow.preferences.web_page.question_page import PairPage

HOST = "127.0.0.1"
TOKEN_HEADER = "X-Finflow-Token"
CHOICES = ("left", "tie", "right")
MOST_BYTES = 1024  # of an answer
PATIENCE = 10.0  # seconds that a silent connection is kept


class AnswerServer(ThreadingHTTPServer):
    """Server of one session, at a port, 0 for a free one; a FinflowError if it cannot be opened."""

    daemon_threads = True
    session: AnswerSession
    page: PairPage

    def __init__(self, port: int) -> None:
        try:
            super().__init__((HOST, port), _Handler)
        except (OSError, OverflowError) as error:
            message = getattr(error, "strerror", None) or "a port is a number from 0 to 65535"
            raise FinflowError(
                f"port {port} of {HOST} cannot be opened: {message}; choose another with --port, or 0 for a free one"
            ) from None
        self.token = secrets.token_urlsafe(32)
        names = (HOST, "localhost")
        self.hosts = frozenset(f"{name}:{self.server_port}" for name in names)
        self.origins = frozenset(f"http://{host}" for host in self.hosts)

    @property
    def url(self) -> str:
        """Address of the page."""
        return f"http://{HOST}:{self.server_port}/"

    def serve(self, session: AnswerSession, page: PairPage) -> None:
        """Serve a session until Ctrl-C; an answer that is being written then is finished."""
        self.session, self.page = session, page
        try:
            self.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            return


def _origin(address: str) -> str:
    return "/".join(address.split("/", 3)[:3])


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
        content = self.server.page.whole(self.server.session, self.server.token, nonce)
        self._send(HTTPStatus.OK, "text/html; charset=utf-8", content, {"Content-Security-Policy": policy})

    def do_POST(self) -> None:
        """Take an answer, a skip or an undo, and send the next question."""
        if not self._from_own_page():
            return
        if self.path != "/answer":
            self._send_json(HTTPStatus.NOT_FOUND, {"error": "answers go to /answer"})
        elif not hmac.compare_digest(self.headers.get(TOKEN_HEADER, "").encode(), self.server.token.encode()):
            message = "this page is of an earlier start of the server; load it again"
            self._send_json(HTTPStatus.FORBIDDEN, {"error": message})
        else:
            self._take(self._content())

    def _take(self, content: Any) -> None:
        number, act = (content.get(name) for name in ("question", "act")) if isinstance(content, dict) else (None, None)
        known = number is None or type(number) is int
        if not known or act not in (*CHOICES, "skip", "undo"):
            text = "an answer is an object of JSON: question, a number or null, and act: left, tie, right, skip or undo"
            self._send_json(HTTPStatus.BAD_REQUEST, {"error": text})
            return
        session, status, answer = self.server.session, HTTPStatus.OK, {}
        try:
            if act == "undo":
                session.undo(number)
            elif act == "skip":
                session.skip(number)
            else:
                session.answer(number, act)
        except StaleQuestionError as error:
            status, answer = HTTPStatus.CONFLICT, {"error": str(error)}
        except FinflowError as error:  # the file cannot be written: the question stays
            self._send_json(HTTPStatus.INTERNAL_SERVER_ERROR, {"error": str(error)})
            return
        self._send_json(status, {**answer, "html": self.server.page.part(session)})

    def _content(self) -> Any:
        """The JSON that was sent; None where it is none."""
        length = self.headers.get("Content-Length", "")
        kind = self.headers.get_content_type()
        if kind != "application/json" or not (length.isascii() and length.isdigit()) or int(length) > MOST_BYTES:
            self.close_connection = True
            return None
        try:
            return json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError):
            return None

    def _from_own_page(self) -> bool:
        """True for a request by the page's own address; the others are refused."""
        hosts = self.headers.get_all("Host", [])
        own = len(hosts) == 1 and hosts[0] in self.server.hosts
        own = own and all(origin in self.server.origins for origin in self.headers.get_all("Origin", []))
        own = own and all(_origin(page) in self.server.origins for page in self.headers.get_all("Referer", []))
        if own and self.headers.get("Sec-Fetch-Site", "none") in ("none", "same-origin"):
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
