"""A headless Chromium that tests drive over its debugging pipe."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "chrome")
PHONE, DESK, PAPER = 360, 1280, 718  # CSS pixels; A4 less margins of 1 cm is 718
WAIT = 60.0  # seconds for one answer

MEASURE = """(() => ({
  over: document.documentElement.scrollWidth - document.documentElement.clientWidth,
  wide: [...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth + 1)
    .map(e => e.getAttribute('aria-label')),
  images: [...document.images].map(i => [i.closest('[id]') ? i.closest('[id]').id : '', i.complete && i.naturalWidth]),
  ground: getComputedStyle(document.body).backgroundColor,
  ink: getComputedStyle(document.body).color,
  html: document.documentElement.outerHTML,
}))()"""


class Browser:
    """One page of a headless Chromium."""

    def __init__(self, program: str, folder: Path) -> None:
        to_child, self._write = os.pipe()
        self._read, from_child = os.pipe()
        command = [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        command += ["--remote-debugging-pipe", f"--user-data-dir={folder}", "--hide-scrollbars", "about:blank"]
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{to_child} 4>&{from_child}', "bash", *command],
            pass_fds=(to_child, from_child),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_child)
        os.close(from_child)
        self._buffer, self._count, self._session = b"", 0, ""
        self.complaints: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """Ask, and wait for the answer; events on the way are noted."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        message |= {"sessionId": self._session} if self._session else {}
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._count:
            self._note(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def open(self, url: str) -> None:
        """Go to a page and wait until it has loaded."""
        self.complaints.clear()
        self.call("Page.navigate", url=url)
        while self._note(self._next()) != "Page.loadEventFired":
            pass

    def evaluate(self, expression: str) -> Any:
        """The value of an expression on the page; of a promise, what it comes to."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"]["value"]

    def measured(self, width: int, scheme: str = "light", media: str = "screen") -> Any:
        """The page at a width, in light or dark, on screen or on paper."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        preference = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", media=media, features=preference)
        return self.evaluate(MEASURE)

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(timeout=30)
        os.close(self._read)
        os.close(self._write)

    def _next(self) -> Any:
        until = time.monotonic() + WAIT
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(until - time.monotonic(), 0.0))
            assert ready, "Chromium does not answer"
            more = os.read(self._read, 1 << 20)
            assert more, "Chromium has gone"
            self._buffer += more
        message, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(message)

    def _note(self, event: Any) -> str:
        method, found = str(event.get("method")), event.get("params", {})
        if method == "Log.entryAdded":
            self.complaints.append(f"{found['entry']['level']}: {found['entry']['text']}")
        elif method in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled"):
            self.complaints.append(json.dumps(found)[:300])
        return method


def open_browser(folder: Path) -> Browser:
    """A browser with its files in a folder; the test is skipped where there is none."""
    program = next((path for name in PROGRAMS if (path := shutil.which(name))), None)
    if program is None or shutil.which("bash") is None:
        pytest.skip(f"no browser to open pages in: none of {', '.join(PROGRAMS)} is installed")
    return Browser(program, folder)
