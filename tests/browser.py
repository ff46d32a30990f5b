"""A headless Chromium, driven over a pipe: a page opened, looked at, typed into. Nothing of it is left afterwards.

Answers for: the DevTools protocol over descriptors 3 and 4 (chromium --remote-debugging-pipe: JSON ended by NUL).
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import subprocess
import time
from pathlib import Path
from typing import Any

CHROMIUM = "chromium"
_FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe",
          "--no-first-run", "--disable-extensions", "--disable-background-networking")  # fmt: skip


class Browser:
    def __init__(self, folder: Path) -> None:
        theirs, self._out = os.pipe()
        self._in, answers = os.pipe()
        # Out of the way of 3 and 4, which the shell is to make of them.
        there, back = (fcntl.fcntl(fd, fcntl.F_DUPFD, 20) for fd in (theirs, answers))
        for fd in (theirs, answers):
            os.close(fd)
        # The shell gives Chromium the two descriptors where it looks for them.
        command = f'exec "$@" 3<&{there} 4>&{back}'
        self._process = subprocess.Popen(
            ["bash", "-c", command, "bash", CHROMIUM, *_FLAGS, f"--user-data-dir={folder}"],
            pass_fds=(there, back), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        os.close(there)
        os.close(back)
        self._last = 0
        self._buffer = b""
        self._session = ""
        self.errors: list[str] = []
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        found = self._ask("Target.attachToTarget", targetId=target, flatten=True)
        self._session = found["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._ask(f"{domain}.enable")

    def open(self, url: str, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self._ask("Emulation.setEmulatedMedia", features=scheme)
        self._ask("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=width < 600)  # fmt: skip
        self._ask("Page.navigate", url=url)

    def value(self, expression: str) -> Any:
        found = self._ask(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait(self, expression: str, timeout_s: float = 60.0) -> Any:
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            # While another page is coming there may be nothing to look at.
            if found := self.value(
                f"(() => {{ try {{ return {expression} }} catch (e) {{ return null }} }})()"
            ):
                return found
            time.sleep(0.05)
        msg = f"{expression}: not within {timeout_s:g} s: {self.value('document.body.innerText')[:2000]}"
        raise TimeoutError(msg)

    def press(self, key: str) -> None:
        codes = {"Tab": 9, "Enter": 13}
        more = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self._ask("Input.dispatchKeyEvent", type=kind, key=key, code=key,
                      windowsVirtualKeyCode=codes[key], **(more if kind == "keyDown" else {}))  # fmt: skip

    def type(self, text: str) -> None:
        self._ask("Input.insertText", text=text)

    def names(self) -> list[tuple[str, str]]:
        """What a screen reader is told: (role, name) of everything that is not left out."""
        nodes = self._ask("Accessibility.getFullAXTree")["nodes"]
        return [
            (n["role"]["value"], n.get("name", {}).get("value", ""))
            for n in nodes
            if not n.get("ignored")
        ]

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._out)
        os.close(self._in)

    def _ask(self, method: str, **params: Any) -> dict[str, Any]:
        self._last += 1
        message: dict[str, Any] = {"id": self._last, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            found = self._next()
            if found.get("id") == self._last:
                assert "error" not in found, found
                result: dict[str, Any] = found["result"]
                return result
            self._note(found)

    def _note(self, event: dict[str, Any]) -> None:
        """What a person would see red in the console: errors of scripts, and what the policy refused."""
        if event.get("method") == "Runtime.exceptionThrown":
            self.errors.append(str(event["params"]["exceptionDetails"]))
        entry = (
            event.get("params", {}).get("entry", {})
            if event.get("method") == "Log.entryAdded"
            else {}
        )
        if entry.get("level") == "error" and "401" not in entry.get("text", ""):
            self.errors.append(entry["text"])

    def _next(self, timeout_s: float = 60.0) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], timeout_s)
            assert ready, "chromium does not answer"
            part = os.read(self._in, 1 << 16)
            assert part, "chromium has ended"
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\0")
        found: dict[str, Any] = json.loads(line)
        return found
