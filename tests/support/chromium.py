"""Control a headless Chromium through its DevTools pipe: open pages, run scripts, press keys, take screenshots.

The protocol is JSON messages that end with a NUL byte, read from file descriptor 3 and written to 4, so no driver
program is needed.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

__all__ = ["Browser", "Page", "find_chromium"]

CHROMIUM_COMMANDS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
RESPONSE_LIMIT_S = 60.0
_CHROMIUM_FLAGS = (
    "--headless=new --remote-debugging-pipe --no-sandbox --disable-gpu --disable-dev-shm-usage --hide-scrollbars "
    "--no-first-run --disable-extensions --disable-background-networking --disable-component-update "
    "--blink-settings=availableHoverTypes=2,primaryHoverType=2 about:blank"  # a mouse, as on a desktop
)
_KEY_CODES = {"Tab": 9, "Enter": 13, "Escape": 27, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowUp": 38}
_KEY_CODES |= {"ArrowRight": 39, "ArrowDown": 40, "s": 83}


def find_chromium() -> str | None:
    """Return the path of a Chromium, None if it is not installed."""
    return next((path for name in CHROMIUM_COMMANDS if (path := shutil.which(name))), None)


class Browser:
    """A Chromium process with its own profile in `folder`."""

    def __init__(self, folder: Path) -> None:
        path = find_chromium()
        assert path is not None, f"no Chromium on PATH under the names {CHROMIUM_COMMANDS}: apt-get install chromium"
        read_child, self._write = _move_file_descriptors_above_10(*os.pipe())
        self._read, write_child = _move_file_descriptors_above_10(*os.pipe())
        launch = 'exec 3<&"$1" 4>&"$2"; shift 2; exec "$@"'
        command = [path, *_CHROMIUM_FLAGS.split(), f"--user-data-dir={folder}"]
        with (folder / "stderr.txt").open("wb") as said:
            self._process = subprocess.Popen(
                ["bash", "-c", launch, "bash", str(read_child), str(write_child), *command],
                pass_fds=(read_child, write_child),
                stdout=subprocess.DEVNULL,
                stderr=said,
            )
        os.close(read_child)
        os.close(write_child)
        self._bytes = b""
        self._count = 0
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.call("Browser.close")
        self._process.wait(RESPONSE_LIMIT_S)
        os.close(self._read)
        os.close(self._write)

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Call a DevTools method and return its result; other messages are added to ``events``."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read_message()
            if answer.get("id") == self._count:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return dict(answer["result"])

    def wait_for_event(self, method: str, session: str) -> None:
        """Wait for a DevTools event; return at once if it has arrived."""
        while not any(item["method"] == method and item.get("sessionId") == session for item in self.events):
            self._read_message()

    def _read_message(self) -> dict[str, Any]:
        end = time.monotonic() + RESPONSE_LIMIT_S
        while b"\0" not in self._bytes:
            ready, _, _ = select.select([self._read], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"no message from Chromium within {RESPONSE_LIMIT_S} s"
            part = os.read(self._read, 1 << 20)
            assert part, "Chromium ended"
            self._bytes += part
        line, _, self._bytes = self._bytes.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        if "method" in message:
            self.events.append(message)
        return message

    def open(
        self, path: Path, *, width: int = 1280, height: int = 900, dark: bool = False, script: bool = True
    ) -> Page:
        """Open a file as a page of this size in CSS pixels, and return it after it has loaded."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        page = Page(self, self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"])
        for domain in ("Page", "Network", "Runtime", "Log"):
            page.call(f"{domain}.enable")
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        page.call("Emulation.setEmulatedMedia", features=[scheme])
        page.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        page.call("Emulation.setFocusEmulationEnabled", enabled=True)
        page.call("Emulation.setScriptExecutionDisabled", value=not script)
        self.events.clear()
        page.url = path.as_uri()
        page.call("Page.navigate", url=page.url)
        self.wait_for_event("Page.loadEventFired", page.session)
        return page


class Page:
    """A page open in Chromium."""

    def __init__(self, browser: Browser, session: str) -> None:
        self.browser = browser
        self.session = session
        self.url = ""

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a DevTools method for this page and return its result."""
        return self.browser.call(method, self.session, **parameters)

    def evaluate(self, script: str) -> Any:
        """Return the value of a JavaScript expression, as plain data."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press_key(self, key: str, times: int = 1) -> None:
        """Press a named key, once or several times."""
        text = {"text": "\r"} if key == "Enter" else {}
        for _ in range(times):
            for kind in ("keyDown", "keyUp"):
                more = text if kind == "keyDown" else {}
                self.call(
                    "Input.dispatchKeyEvent",
                    type=kind,
                    key=key,
                    code=key,
                    windowsVirtualKeyCode=_KEY_CODES[key],
                    **more,
                )

    def write(self, text: str) -> None:
        """Type text into the focused element."""
        self.call("Input.insertText", text=text)

    def save_screenshot(self, path: Path, *, whole: bool = True) -> None:
        """Save the whole page or its visible part as a PNG; Chromium limits the height to about 16,000 pixels."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def errors(self) -> list[str]:
        """Return console messages, and requests other than for the page's own files, since the page was opened."""
        found = []
        for event in self.browser.events:
            kind, params = event["method"], event["params"]
            if event.get("sessionId") != self.session:
                continue
            if kind == "Runtime.exceptionThrown":
                found.append(str(params["exceptionDetails"].get("exception", params)))
            elif kind == "Runtime.consoleAPICalled":
                found.append(f"console.{params['type']}: {params['args']}")
            elif kind == "Log.entryAdded":
                found.append(f"{params['entry']['level']}: {params['entry']['text']}")
            elif kind == "Network.requestWillBeSent" and params["request"]["url"] not in (self.url, "data:,"):
                found.append(f"request for {params['request']['url']}")
        return found


def _move_file_descriptors_above_10(*descriptors: int) -> Sequence[int]:
    """Return copies of file descriptors with numbers of 10 or more, which Chromium does not use."""
    moved = [fcntl.fcntl(item, fcntl.F_DUPFD_CLOEXEC, 10) for item in descriptors]
    for item in descriptors:
        os.close(item)
    return moved
