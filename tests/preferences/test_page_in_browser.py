"""The page of pairs in a real browser: a person clicks and types through it, and sees all of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from finflow.preferences.judged_pairs import DrawnPair
from finflow.preferences.pairs import read_pairs
from tests.browser import DESK, PHONE, Browser, open_browser
from tests.preferences.conftest import served

SHOWN = "document.getElementById('state').dataset.question"


pytestmark = pytest.mark.usefixtures("images")


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


def test_what_the_server_refuses_is_told_on_the_page(page: Browser, tmp_path: Path) -> None:
    page.evaluate("document.body.dataset.token = 'old', 1")
    press(page, "ArrowLeft")
    wait_for(page, "!document.getElementById('message').hidden")
    assert "load it again" in page.evaluate("document.getElementById('message').textContent")
    assert page.evaluate(SHOWN) == "0"
    assert not (tmp_path / "pairs.jsonl").exists()


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
