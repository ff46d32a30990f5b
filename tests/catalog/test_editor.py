"""The catalog's schema in a real YAML language server: what an editor underlines, offers and explains.

The server is an npm package in build/editor (`npm install --prefix build/editor yaml-language-server@1.25.0`).
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scripts.generated import ROOT
from tests.beds import needs

SERVER = ROOT / "build/editor/node_modules/yaml-language-server/bin/yaml-language-server"
EXAMPLE = ROOT / "catalog.example.yaml"
pytestmark = [
    needs("node", root=False),
    pytest.mark.skipif(
        not SERVER.exists(),
        reason="no language server (npm install --prefix build/editor yaml-language-server@1.25.0)",
    ),
]
Json = dict[str, Any]


class Editor:
    """Speaks the Language Server Protocol 3.17 over the server's stdin and stdout."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._server = subprocess.Popen(
            ["node", SERVER, "--stdio"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._id = 0
        self.told: list[Json] = []
        self.ask("initialize", {"processId": None, "rootUri": folder.as_uri(), "capabilities": {}})
        self.tell("initialized", {})

    def _send(self, message: Json) -> None:
        assert self._server.stdin is not None
        data = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self._server.stdin.write(b"Content-Length: %d\r\n\r\n" % len(data) + data)
        self._server.stdin.flush()

    def _next(self) -> Json:
        assert self._server.stdout is not None
        size = 0
        while line := self._server.stdout.readline().strip():
            name, _, value = line.partition(b":")
            size = int(value) if name.lower() == b"content-length" else size
        message: Json = json.loads(self._server.stdout.read(size))
        if "id" in message and "method" in message:  # it asks for settings: it has none of us
            items = (
                message["params"].get("items", [])
                if isinstance(message.get("params"), dict)
                else []
            )
            self._send({"id": message["id"], "result": [None for _ in items]})
        return message

    def tell(self, method: str, params: Json) -> None:
        self._send({"method": method, "params": params})

    def ask(self, method: str, params: Json) -> Any:
        self._id += 1
        self._send({"id": self._id, "method": method, "params": params})
        while True:
            message = self._next()
            if message.get("id") == self._id and "method" not in message:
                return message["result"]
            self.told.append(message)

    def open(self, name: str, text: str) -> str:
        """Its URI. The schema is named by the file's first line, as in the example."""
        file = self.folder / name
        file.write_text(text)
        document = {"uri": file.as_uri(), "languageId": "yaml", "version": 1, "text": text}
        self.tell("textDocument/didOpen", {"textDocument": document})
        return file.as_uri()

    def problems(self, name: str, text: str) -> list[str]:
        uri = self.open(name, text)
        while True:
            message = self._next()
            params: Json = message.get("params", {})
            if message.get("method") == "textDocument/publishDiagnostics" and params["uri"] == uri:
                return [d["message"] for d in params["diagnostics"]]

    def at(self, method: str, uri: str, line: int, character: int) -> Any:
        place = {"textDocument": {"uri": uri}, "position": {"line": line, "character": character}}
        return self.ask(f"textDocument/{method}", place)

    def close(self) -> None:
        self._server.kill()
        self._server.wait()
        for pipe in (self._server.stdin, self._server.stdout):
            if pipe is not None:
                pipe.close()


@pytest.fixture(scope="module")
def editor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Editor]:
    folder = tmp_path_factory.mktemp("editor")
    shutil.copy(ROOT / "catalog.schema.json", folder)
    made = Editor(folder)
    yield made
    made.close()


HEAD = EXAMPLE.read_text().splitlines()[0]


def test_the_example_has_nothing_underlined(editor: Editor) -> None:
    assert editor.problems("example.yaml", EXAMPLE.read_text()) == []


def test_a_wrong_key_is_underlined(editor: Editor) -> None:
    (said,) = editor.problems("wrong.yaml", f"{HEAD}\nversion: 1\nmodles: {{}}\n")
    assert "modles" in said


def test_keys_are_offered_and_explained(editor: Editor) -> None:
    text = f"{HEAD}\nversion: 1\nmodels:\n  q:\n    scaling:\n      idle_timeout: 5m\n      \n"
    uri = editor.open("offer.yaml", text)
    offered = editor.at("completion", uri, 6, 6)
    names = {i["label"] for i in (offered["items"] if isinstance(offered, dict) else offered)}
    assert {"min", "max"} <= names
    hover = editor.at("hover", uri, 5, 10)
    assert "idle" in json.dumps(hover).lower() or "10m" in json.dumps(hover)
