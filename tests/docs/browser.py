"""A Chromium without a screen, spoken to in its DevTools protocol through two pipes: nothing but the browser is needed."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
ARGUMENTS = (
    "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-component-update "
    "--disable-sync --hide-scrollbars --remote-debugging-pipe"
).split()

# Chromium reads descriptor 3 and writes descriptor 4; what is handed over may lie there itself.
_HAND_OVER = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]]
for end, number in zip(ends, (3, 4)):
    os.dup2(end, number)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Page:
    """One tab: where it goes, what it is told, and what its console said."""

    def __init__(self, reading: int, writing: int):
        self.input, self.output = os.fdopen(reading, "rb", buffering=0), os.fdopen(writing, "wb")
        self.session: str | None = None
        self.count = 0
        self.errors: list[str] = []
        self.loaded = False
        self.buffer = b""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.call("Page.addScriptToEvaluateOnNewDocument", source="try { localStorage.clear() } catch {}")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """The answer to a command."""
        self.count += 1
        message = {"id": self.count, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        self.output.write(json.dumps(message).encode() + b"\0")
        self.output.flush()
        while (answer := self._read()).get("id") != self.count:
            pass
        assert "error" not in answer, (method, answer["error"])
        return answer["result"]

    def _read(self) -> dict[str, Any]:
        """The next message; events are noted."""
        while b"\0" not in self.buffer:
            assert select.select([self.input], [], [], 180)[0], "the browser says nothing"
            chunk = self.input.read(1 << 20)
            assert chunk, "the browser has ended"
            self.buffer += chunk
        text, _, self.buffer = self.buffer.partition(b"\0")
        message = json.loads(text)
        params = message.get("params", {})
        match message.get("method"):
            case "Page.loadEventFired":
                self.loaded = True
            case "Runtime.exceptionThrown":
                self.errors.append(json.dumps(params["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "assert"):
                self.errors.append(json.dumps(params["args"]))
            case "Log.entryAdded" if params["entry"]["level"] == "error":
                self.errors.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        return message

    def look(self, width: int, height: int, scheme: str) -> None:
        """Take a size, and a user's wish for "light" or "dark"; of an empty page, since one in sight would note the wish."""
        self.visit("about:blank")
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def visit(self, address: str) -> None:
        """Go to an address, and wait until it is loaded."""
        self.loaded, self.errors = False, []
        self.call("Page.navigate", url=address)
        while not self.loaded:
            self._read()

    def value(self, script: str) -> Any:
        """What a JavaScript expression gives, awaited."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait(self, condition: str, seconds: float = 10) -> None:
        """Go on when a JavaScript expression is true."""
        until = time.monotonic() + seconds
        while not self.value(condition):
            assert time.monotonic() < until, f"not within {seconds} s: {condition}"
            time.sleep(0.05)

    def picture(self, path: Path) -> None:
        """Write a PNG of what is seen."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


@contextlib.contextmanager
def opened(profile: Path) -> Iterator[Page]:
    """A page in a browser of its own, which ends with it.

    Args:
      profile: an empty folder.
    """
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    command = [sys.executable, "-c", _HAND_OVER, str(theirs_in), str(theirs_out), str(BROWSER), *ARGUMENTS]
    profiled = [*command, f"--user-data-dir={profile}"]
    with subprocess.Popen(profiled, pass_fds=(theirs_in, theirs_out), stderr=subprocess.DEVNULL) as browser:
        os.close(theirs_in)
        os.close(theirs_out)
        page = Page(ours_in, ours_out)
        try:
            yield page
        finally:
            page.input.close()
            page.output.close()
            browser.terminate()
