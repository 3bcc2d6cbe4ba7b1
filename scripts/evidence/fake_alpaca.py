"""A fake of Alpaca's HTTP interface on this machine, for tests and evidence: an account, its orders, and faults.

It keeps what the real one promises and finflow relies on: an order is known by its client id, a second order of the
same id is refused with status 422, a market order waits until the market opens, and the account changes with fills
alone. Faults are named beforehand, and the next request that they fit meets them.
"""

from __future__ import annotations

import json
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

KEY, SECRET = "PKFAKE0123456789", "fake-secret-that-must-never-be-written"
BEFORE, AFTER = "before", "after"
_FINAL = ("filled", "canceled", "expired", "rejected")


@dataclass
class Fault:
    """A fault that the next request of a kind meets.

    Attributes
    ----------
    kind : str
        ``drop`` (the connection is closed), ``slow`` (the answer takes long), ``cut`` (half of the answer comes), or
        a status such as ``500``, ``429`` or ``403``.
    method, path : str
        Of the requests that meet it; a path is met by its beginning.
    message : str
        Said with a status; ``{keys}`` stands for the keys that came with the request.
    seconds : float
        Of a slow answer, or of the header Retry-After.
    """

    kind: str
    when: str = BEFORE
    method: str = "POST"
    path: str = "/v2/"
    message: str = "a fault"
    seconds: float = 0.0


@dataclass
class FakeAlpaca:
    """State of the fake account; `serving` gives it an address."""

    money: float = 1_000_000.0
    day: str = "2011-12-14"
    is_open: bool = False
    status: str = "ACTIVE"
    held: dict[str, float] = field(default_factory=dict)
    orders: dict[str, dict[str, Any]] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    watch: Callable[[str], None] | None = None
    address: str = ""
    lock: threading.RLock = field(default_factory=threading.RLock)

    def trade(self, day: str, prices: Mapping[str, float], shares: Mapping[str, float] | None = None) -> None:
        """A session of a day: every open order fills at the prices, or to a share of it by symbol and then expires."""
        with self.lock:
            self.day = day
            for order in self.orders.values():
                if order["status"] in _FINAL:
                    continue
                part = 1.0 if shares is None else shares.get(order["symbol"], 1.0)
                count = float(order["qty"]) * part
                sign, price = (1.0 if order["side"] == "buy" else -1.0), prices[order["symbol"]]
                order["status"] = "filled" if part == 1.0 else "expired"
                order["filled_qty"] = repr(count)
                if count:
                    order |= {"filled_avg_price": repr(price), "filled_at": f"{day}T21:00:00Z"}
                    self.held[order["symbol"]] = self.held.get(order["symbol"], 0.0) + sign * count
                    self.money -= sign * count * price
            self.held = {symbol: count for symbol, count in self.held.items() if abs(count) > 1e-9}

    def answer(self, method: str, path: str, query: Mapping[str, str], body: Mapping[str, Any]) -> tuple[int, Any]:
        """Carry out a request: the status, and the content."""
        with self.lock:
            if (method, path) == ("GET", "/v2/account"):
                return 200, self._account()
            if (method, path) == ("GET", "/v2/clock"):
                return 200, {
                    "timestamp": f"{self.day}T23:30:00Z",
                    "is_open": self.is_open,
                    "next_open": f"{self.day}T23:59:00Z",
                    "next_close": f"{self.day}T23:59:30Z",
                }
            if (method, path) == ("GET", "/v2/positions"):
                return 200, [self._position(symbol, count) for symbol, count in sorted(self.held.items())]
            if (method, path) == ("GET", "/v2/orders:by_client_order_id"):
                found = self.orders.get(query["client_order_id"])
                return (200, found) if found else (404, {"code": 40410000, "message": "order not found"})
            if (method, path) == ("POST", "/v2/orders"):
                return self._order(body)
            return 404, {"code": 40410000, "message": "no such endpoint"}

    def _order(self, body: Mapping[str, Any]) -> tuple[int, Any]:
        name = body["client_order_id"]
        if name in self.orders:
            return 422, {"code": 40010001, "message": "client_order_id must be unique"}
        now = f"{self.day}T23:30:00Z"
        self.orders[name] = {
            **{"id": str(uuid.uuid4()), "client_order_id": name, "symbol": body["symbol"], "qty": str(body["qty"])},
            **{"side": body["side"], "type": body["type"], "order_type": body["type"], "order_class": "simple"},
            **{"time_in_force": body["time_in_force"], "status": "accepted", "extended_hours": False},
            **{"created_at": now, "updated_at": now, "submitted_at": now, "filled_at": None},
            **{"filled_qty": "0", "filled_avg_price": None, "asset_class": "us_equity"},
        }
        return 200, self.orders[name]

    def _account(self) -> dict[str, Any]:
        return {
            **{"id": str(uuid.UUID(int=1)), "account_number": "PA000001", "status": self.status},
            **{"cash": repr(self.money), "trading_blocked": False, "account_blocked": False, "currency": "USD"},
        }

    def _position(self, symbol: str, count: float) -> dict[str, Any]:
        return {
            **{"asset_id": str(uuid.UUID(int=2)), "symbol": symbol, "exchange": "NYSE", "asset_class": "us_equity"},
            **{"avg_entry_price": "1", "qty": repr(count), "side": "long" if count > 0 else "short", "cost_basis": "1"},
        }

    def met(self, method: str, path: str) -> Fault | None:
        """The first fault that a request meets; it is used up."""
        with self.lock:
            self.requests.append(f"{method} {path}")
            for number, fault in enumerate(self.faults):
                if fault.method in (method, "*") and path.startswith(fault.path):
                    return self.faults.pop(number)
        return None


@contextmanager
def serving(account: FakeAlpaca) -> Iterator[FakeAlpaca]:
    """Serve an account on a free port of this machine; its `address` says where."""

    class Handler(_Handler):
        fake = account

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            """Say nothing: whoever asked was killed."""

    server = Server(("127.0.0.1", 0), Handler)
    account.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield account
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    """One connection to the fake."""

    fake: FakeAlpaca
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # head and body of an answer do not wait for each other

    def do_GET(self) -> None:
        self._serve("GET")

    def do_POST(self) -> None:
        self._serve("POST")

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def _serve(self, method: str) -> None:
        parts = urlsplit(self.path)
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else {}
        keys = self.headers.get("APCA-API-KEY-ID"), self.headers.get("APCA-API-SECRET-KEY")
        if keys != (KEY, SECRET):
            self._send(401, {"code": 40110000, "message": "request is not authorized"})
            return
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        fault = self.fake.met(method, parts.path)
        if self.fake.watch is not None:
            self.fake.watch(BEFORE)
        if fault is not None and fault.when == BEFORE and self._fail(fault):
            return
        status, content = self.fake.answer(method, parts.path, query, body)
        if self.fake.watch is not None:
            self.fake.watch(AFTER)
        if fault is not None and fault.when == AFTER and self._fail(fault, content):
            return
        self._send(status, content)

    def _fail(self, fault: Fault, content: Any = None) -> bool:
        """Meet a fault; True where there is no other answer."""
        if fault.kind == "slow":
            time.sleep(fault.seconds)
            return False
        if fault.kind == "drop":
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return True
        if fault.kind == "cut":
            whole = json.dumps(content).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(whole)))
            self.end_headers()
            self.wfile.write(whole[: len(whole) // 2])
            self.close_connection = True
            return True
        message = fault.message.format(keys=f"{KEY} {SECRET}")
        self._send(int(fault.kind), {"code": 1, "message": message}, fault.seconds)
        return True

    def _send(self, status: int, content: Any, retry_after: float = 0.0) -> None:
        text = json.dumps(content).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            if retry_after:
                self.send_header("Retry-After", f"{retry_after:g}")
            self.end_headers()
            self.wfile.write(text)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
