"""The page on which a person answers pairs: its questions, its file, its server, and what the server refuses.

In a real browser a person clicks and types through it, and sees all of it.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from finflow.errors import OutputError
from finflow.files import in_use
from finflow.preferences.judged_pairs import DrawnPair, judge_pairs, make_judge, make_questions
from finflow.preferences.pairs import PortfolioPath, SegmentMarket, read_pairs, write_pairs
from finflow.preferences.web_page import answer_server
from finflow.preferences.web_page.answer_server import TOKEN_HEADER, AnswerServer, AnswerSession, answers_so_far
from tests.browser import DESK, PHONE, Browser, open_browser
from tests.commands import refusal
from tests.preferences.conftest import served, small_options

ROOT = Path(__file__).parents[2]
Questions = tuple[DrawnPair, ...]


def begun(file: Path, questions: Questions) -> AnswerSession:
    return AnswerSession(file, questions, answers_so_far(file))


class Client:
    """A client of the page at a port, with the token of its page."""

    def __init__(self, port: int, token: str = "") -> None:
        self.port, self.token = port, token

    def send(
        self, method: str = "GET", path: str = "/", body: str | None = None, **headers: str
    ) -> tuple[int, str, http.client.HTTPMessage]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        reply = connection.getresponse()
        text = reply.read().decode()
        connection.close()
        return reply.status, text, reply.headers

    def act(self, question: int, act: str, **changes: str) -> tuple[int, dict[str, str]]:
        return self.post(json.dumps({"question": question, "act": act}), **changes)

    def post(self, body: str, **changes: str) -> tuple[int, dict[str, str]]:
        status, text, _ = self.send("POST", "/answer", body, **{TOKEN_HEADER: self.token, **changes})
        return status, json.loads(text)


@pytest.fixture
def client(tmp_path: Path, questions: Questions) -> Iterator[Client]:
    with served(tmp_path / "pairs.jsonl", questions) as server:
        yield Client(server.server_port, server.token)


def test_questions_are_the_pairs_of_the_judges_with_a_drawn_side(
    small_market: SegmentMarket, questions: Questions
) -> None:
    judged = judge_pairs(
        small_market, make_judge("calmar", small_market.config.preferences.judge, 252), 2000, seed=0
    ).pairs
    many = make_questions(small_market, 400, seed=0)
    pairs = list(dict.fromkeys(frozenset((pair.first, pair.second)) for pair in judged))
    assert [frozenset(question.segments) for question in many] == pairs[:400]
    assert [(one.segments, one.turned) for one in many[:6]] == [(one.segments, one.turned) for one in questions]
    assert 0.4 < np.mean([question.turned for question in many]) < 0.6


def test_an_answer_names_the_segment_that_was_shown_on_that_side(questions: Questions) -> None:
    for question in (questions[0]._replace(turned=turned) for turned in (False, True)):
        for choice, side in (("left", 0), ("right", 1)):
            pair = question.answered(choice)  # type: ignore[arg-type]
            assert question.paths[0 if pair.better == "first" else 1] is question.shown[side]
        assert question.answered("tie").better == "tie"


def test_every_answer_is_in_the_file_at_once_and_can_be_taken_back(tmp_path: Path, questions: Questions) -> None:
    file = tmp_path / "new" / "pairs.jsonl"
    session = begun(file, questions)
    session.act(0, "left")
    session.act(1, "skip")
    session.act(2, "tie")
    assert [pair.better for pair in read_pairs([file]).pairs][1] == "tie"
    assert (session.answered, session.skipped) == (2, 1)
    session.act(3, "undo")
    assert (session.current, len(read_pairs([file]).pairs)) == (2, 1)
    session.act(2, "undo")
    assert (session.current, session.skipped) == (1, 0)
    whole = file.read_bytes()
    file.write_bytes(whole + b"\n")
    with pytest.raises(OutputError, match="ends with another line"):
        session.act(1, "undo")
    file.write_bytes(whole)
    session.act(1, "undo")
    session.act(0, "undo")
    assert (session.current, session.can_undo, file.read_bytes()) == (0, False, b"")
    assert answers_so_far(file) == ()


def test_a_session_goes_on_where_the_file_ends(tmp_path: Path, questions: Questions) -> None:
    file = tmp_path / "pairs.jsonl"
    foreign = questions[-1].answered("left")
    write_pairs(file, [foreign])
    first = begun(file, questions[:-1])
    for number, choice in enumerate(("left", "right", "tie")):
        first.act(number, choice)  # type: ignore[arg-type]
    second = begun(file, questions[:-1])
    assert (second.current, second.answered) == (3, 3)
    assert "3 of them answered before" in second.line()
    second.act(3, "left")
    for number in (4, 3, 3):  # never the answers of others or of an earlier session
        second.act(number, "undo")
    assert second.current == 3
    assert len(read_pairs([file]).pairs) == 4
    assert read_pairs([file]).pairs[0] == foreign
    assert second.close().startswith("0 answers added to")


def test_answers_come_by_http(client: Client, tmp_path: Path, questions: Questions) -> None:
    status, page, headers = client.send()
    assert status == 200
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    for name in {segment.strategy for question in questions for segment in question.segments}:
        assert name not in page, "the name of a strategy would bias the answer"
    assert client.act(0, "left")[0] == 200
    status, answer = client.act(0, "left")  # by a key that is pressed twice, or from a second tab
    assert (status, 'data-question="1"' in answer["html"]) == (409, True)
    assert read_pairs([tmp_path / "pairs.jsonl"]).pairs == (questions[0].answered("left"),)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example:80"}, 403),
        ({"Host": "127.0.0.1"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "https://127.0.0.1:PORT"}, 403),
        ({"Origin": "http://127.0.0.1:PORT.evil.example"}, 403),
        ({TOKEN_HEADER: "guess"}, 403),
        ({TOKEN_HEADER: ""}, 403),
        ({"Content-Length": "x"}, 400),
        ({"Content-Length": "99999999"}, 400),
    ],
)
def test_requests_of_other_pages_are_refused(
    client: Client, tmp_path: Path, headers: dict[str, str], status: int
) -> None:
    given = {name: value.replace("PORT", str(client.port)) for name, value in headers.items()}
    assert client.act(0, "left", **given)[0] == status
    for body in ("", '{"question": "0", "act": "left"}', '{"question": 0, "act": "best"}', "[" * 999):
        assert client.post(body)[0] == 400
    assert not (tmp_path / "pairs.jsonl").exists()
    assert client.act(0, "left")[0] == 200  # and the server lives on


def test_a_page_is_not_read_under_another_name_or_by_other_machines(client: Client) -> None:
    for headers in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}):
        status, text, _ = client.send(**headers)
        assert (status, client.token in text) == (403, False)
    assert client.send(Origin=f"http://127.0.0.1:{client.port}")[0] == 200
    assert client.send("GET", "/../secrets")[0] == 404
    with socket.create_connection(("127.0.0.1", client.port), timeout=20) as connection:
        # a proxy and the server could take different ones of two hosts
        hosts = f"Host: 127.0.0.1:{client.port}\r\nHost: evil.example\r\n"
        connection.sendall(f"GET / HTTP/1.1\r\n{hosts}Connection: close\r\n\r\n".encode())
        reply = connection.makefile("rb").read()
    assert b" 403 " in reply.splitlines()[0]
    assert client.token.encode() not in reply
    with pytest.raises(OSError):  # an address of this machine that is not 127.0.0.1
        socket.create_connection(("127.0.0.2", client.port), timeout=5).close()


def test_a_browser_that_goes_away_leaves_no_traceback(
    tmp_path: Path, questions: Questions, capsys: pytest.CaptureFixture[str]
) -> None:
    asked, gone = threading.Event(), threading.Event()

    def page(*_: object, **__: object) -> str:
        asked.set()
        gone.wait(20)
        return "x" * 50_000_000

    with served(tmp_path / "pairs.jsonl", questions) as server:
        assert Client(server.server_port).send()[0] == 200  # the server runs, with the page of `served`
        server.page, server.daemon_threads = page, False  # so that closing waits for the answer
        with socket.create_connection(("127.0.0.1", server.server_port), timeout=20) as connection:
            connection.sendall(f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{server.server_port}\r\n\r\n".encode())
            assert asked.wait(20)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        gone.set()
    assert capsys.readouterr().err == ""


def test_an_answer_that_cannot_be_written_is_not_lost_silently(client: Client, tmp_path: Path) -> None:
    (tmp_path / "pairs.jsonl").mkdir()
    status, answer = client.act(0, "left")
    assert (status, "cannot write" in answer["error"]) == (500, True)
    (tmp_path / "pairs.jsonl").rmdir()
    assert client.act(0, "left")[0] == 200


def test_both_paths_are_drawn_on_one_scale(
    path_of: Callable[..., PortfolioPath], questions: Questions, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Callable[[Figure], None]] = []
    monkeypatch.setattr(answer_server, "render", lambda draw, height: drawn.append(draw) or b"")
    flat, short = (path_of([0.0] * 5), path_of([0.0] * 5)), (path_of([-0.5, 1.0], 2.0), path_of([0.0, 0.1]))
    for paths in (flat, short, questions[0].shown):
        answer_server.draw_paths(paths, ("A", "B", "C")[: paths[0].filled.shape[1] - 1])
        drawn[-1](figure := Figure())
        for left, right in np.array(figure.axes).reshape(4, 2):
            assert left.get_ylim() == right.get_ylim()
            assert np.isfinite(left.get_ylim()).all()
    assert [text.get_text() for text in figure.legends[0].get_texts()][-1] == "cash"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--ask", "FOLDER/a/b.jsonl", "--port", "0"), "cannot write FOLDER/a/.b.jsonl.lock: a file is in the way"),
        (("--ask", "FOLDER"), "is a folder"),
        (("--ask", "FOLDER/b.csv"), "ends with .jsonl"),
        (("--ask", "FOLDER/b.jsonl", "--port", "TAKEN"), "port TAKEN of 127.0.0.1 cannot be opened"),
        (("--ask", "FOLDER/b.jsonl", "--port", "70000"), "must be a port"),
        (("--ask", "FOLDER/b.jsonl", "--set", "preferences.judge.strategies=momentun"), "there is no strategy"),
        (("--ask", "FOLDER/b.jsonl", "--output", "x"), "name the file of your answers after --ask"),
        (("--ask", "--judge", "calmar", "--output", "x"), "one of --ask, --judge and --learn"),
        (("--output", "x"), "name the file of your answers after --ask"),
        (("--judge", "calmer", "--output", "x"), "did you mean calmar?"),
        (("--judge", "calmar"), "need --output with the file to write"),
        (("--judge", "calmar", "--output", "x", "--set", "preferences.judge.rules=[beauty]"), "a rule is one of"),
        (("--judge", "calmar", "--output", "x", "--port", "1"), "--port belongs to --ask"),
        (("--learn", "a.jsonl", "--output", "x", "--open"), "--open belongs to --ask"),
        (("--learn", "a.jsonl", "--output", "x", "--pairs", "5"), "--pairs belongs to --ask and --judge"),
    ],
)
def test_wrong_commands_are_answered_in_a_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    (tmp_path / "a").touch()
    with AnswerServer(0) as server:
        port = str(server.server_port)
        *options, said = (word.replace("FOLDER", str(tmp_path)).replace("TAKEN", port) for word in (*arguments, said))
        assert said in refusal(capsys, "--mode", "prefer", *small_options(), *options)
    assert os.listdir(tmp_path) == ["a"]


def test_the_command_serves_until_ctrl_c_and_keeps_others_off_the_file(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "main.py"), "--mode", "prefer", "--pairs", "3", *small_options()]
    background = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *command]  # interrupts are ignored there unless handled
    with subprocess.Popen(
        background,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    ) as process:
        try:
            assert process.stdout is not None
            said = process.stdout.readline()
            port = int(re.findall(r"http://127\.0\.0\.1:(\d+)/ shows 3 pairs", said)[0])
            token = re.findall(r'data-token="([^"]+)"', Client(port).send()[1])[0]
            lock = in_use(tmp_path / "pairs.jsonl", "adding answers to")
            with pytest.raises(OutputError, match="another process is adding answers to"), lock:
                pass
            assert Client(port, token).act(0, "right")[0] == 200
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, err) == (0, "")
    assert out == "1 answers added to pairs.jsonl; 2 of 3 pairs are not answered\n"
    assert os.listdir(tmp_path) == ["pairs.jsonl"]
    assert len(read_pairs([tmp_path / "pairs.jsonl"]).pairs) == 1


SHOWN = "document.getElementById('state').dataset.question"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    opened = open_browser(tmp_path_factory.mktemp("browser"))
    yield opened
    opened.close()


@pytest.fixture
def page(browser: Browser, tmp_path: Path, questions: tuple[DrawnPair, ...]) -> Iterator[Browser]:
    """The page of four questions."""
    with served(tmp_path / "pairs.jsonl", questions[:4]) as server:
        browser.open(server.url)
        yield browser


def click(page: Browser, act: str) -> None:
    """Press a button with the mouse, at the place where a reader sees it."""
    box = page.evaluate(
        f"(() => {{const box = document.querySelector('[data-act={act}]').getBoundingClientRect(); "
        "return [box.x + box.width / 2, box.y + box.height / 2]})()"
    )
    for kind in ("mousePressed", "mouseReleased"):
        page.call("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)


def press(page: Browser, key: str) -> None:
    for kind in ("keyDown", "keyUp"):
        page.call("Input.dispatchKeyEvent", type=kind, key=key)


def wait_for(page: Browser, condition: str) -> None:
    page.evaluate(
        f"new Promise((done, late) => {{const look = () => {condition} ? done(1) : setTimeout(look, 20); look(); "
        "setTimeout(() => late('not within ten seconds'), 10000)})"
    )


@pytest.mark.usefixtures("images")
def test_three_pairs_are_answered_by_mouse_and_keys(
    page: Browser, tmp_path: Path, questions: tuple[DrawnPair, ...]
) -> None:
    file = tmp_path / "pairs.jsonl"
    click(page, "left")
    wait_for(page, f"{SHOWN} === '1'")
    press(page, "ArrowDown")
    wait_for(page, f"{SHOWN} === '2'")
    press(page, "ArrowRight")
    wait_for(page, f"{SHOWN} === '3'")
    told = read_pairs([file]).pairs
    assert told == (questions[0].answered("left"), questions[1].answered("tie"), questions[2].answered("right"))
    assert page.evaluate("document.getElementById('count').textContent").startswith("3 of 4 answered")
    press(page, "u")
    wait_for(page, f"{SHOWN} === '2'")
    assert read_pairs([file]).pairs == told[:2]
    click(page, "skip")
    wait_for(page, f"{SHOWN} === '3'")
    click(page, "right")
    wait_for(page, f"{SHOWN} === 'null'")
    assert page.evaluate("document.querySelector('h1').textContent") == "No pair is left"
    assert page.evaluate("[...document.querySelectorAll('button:not(:disabled)')].map(e => e.dataset.act)") == ["undo"]
    assert len(read_pairs([file]).pairs) == 3
    assert page.complaints == []


@pytest.mark.usefixtures("images")
def test_what_the_server_refuses_is_told_on_the_page(page: Browser, tmp_path: Path) -> None:
    page.evaluate("document.body.dataset.token = 'old', 1")
    press(page, "ArrowLeft")
    wait_for(page, "!document.getElementById('message').hidden")
    assert "load it again" in page.evaluate("document.getElementById('message').textContent")
    assert page.evaluate(SHOWN) == "0"
    assert not (tmp_path / "pairs.jsonl").exists()


@pytest.mark.usefixtures("images")
def test_both_paths_are_drawn_in_full_in_light_and_dark(page: Browser) -> None:
    looks = set()
    for scheme in ("light", "dark"):
        for width in (PHONE, DESK):
            found = page.measured(width, scheme)
            assert found["over"] == 0, f"{width} pixels, {scheme}"
            looks.add(found["ground"])
    assert len(looks) == 2
    assert page.evaluate("document.querySelector('img.charts').naturalWidth") > 1000
    assert page.complaints == []
