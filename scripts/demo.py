"""Shows the promise on this box: a real engine and a small model survive `kill -9` of control and of the agent.

Answers for: a report in which every line is a check that can fail, and nothing left behind. It may not word a result
that was not looked at.

    make demo            ends by itself; exit 0 when every check held
    make demo KEEP=1     leaves it running, with a URL to try
"""

import contextlib
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from typing_extensions import override

from scripts import engine
from scripts.fleet import Fleet, start_ticks, wait_for

MODEL = "smollm2"
QUESTION = "Write one sentence about the sea."
TOKENS = 500
#: The kills come once the stream is this far.
CONTROL_AT, AGENT_AT = 20, 60
CATALOG = """\
version: 1
models:
  {name}:
    scaling: {{min: {least}, max: 1}}
    profiles:
      - name: cpu
        command: {command}
        weights: {weights}
        args: [-t, 1, -np, 2, -c, 4096]
        host_memory: 512MiB
"""
Json = dict[str, Any]


class CheckError(Exception):
    """A check of the demo did not hold."""


class Report:
    """Lines as they are found out; `failed` remembers whether one did not hold."""

    def __init__(self) -> None:
        self.failed = False

    def check(self, held: object, said: str) -> None:
        print(f"  {'ok  ' if held else 'FAIL'}  {said}", flush=True)
        if not held:
            self.failed = True

    def must(self, held: object, said: str) -> None:
        """Without this nothing after it can be tried."""
        self.check(held, said)
        if not held:
            raise CheckError(said)


class Stream(threading.Thread):
    """One long answer, read as it comes; the engine numbers its tokens, so that a gap would show."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.url = f"{url}/v1/chat/completions"
        self.numbers: list[int] = []
        self.finish = ""
        self.usage = 0
        self.done = False
        self.error = ""

    @override
    def run(self) -> None:
        body = chat(QUESTION) | {
            "stream": True,
            "stream_options": {"include_usage": True},
            "timings_per_token": True,
            "ignore_eos": True,
            "max_tokens": TOKENS,
            "grammar": "root ::= [ -~]*",  # a token of half a character would come with the next one
        }
        try:
            with httpx.stream("POST", self.url, json=body, timeout=60, trust_env=False) as answer:
                answer.raise_for_status()
                for line in answer.iter_lines():
                    self._line(line)
        except httpx.HTTPError as e:
            self.error = f"{type(e).__name__}: {e}"

    def _line(self, line: str) -> None:
        data = line.removeprefix("data: ")
        if data == "[DONE]":
            self.done = True
        if not data.startswith("{"):
            return
        chunk: Json = json.loads(data)
        if "error" in chunk:
            self.error = f"it broke: {chunk['error']['message']}"
            return
        self.usage = (chunk.get("usage") or {}).get("completion_tokens", self.usage)
        for choice in chunk["choices"]:
            if (choice.get("delta") or {}).get("content"):
                self.numbers.append(chunk["timings"]["predicted_n"])
            self.finish = choice.get("finish_reason") or self.finish

    def reached(self, count: int) -> None:
        wait_for(lambda: self.at >= count or not self.is_alive(), f"token {count} of the stream")

    @property
    def at(self) -> int:
        return self.numbers[-1] if self.numbers else 0


def chat(text: str) -> Json:
    return {"model": MODEL, "messages": [{"role": "user", "content": text}], "temperature": 0}


def catalog(path: Path, *, name: str = MODEL, least: int = 1) -> Path:
    port = ["-m", "${weights}", "--host", "${host}", "--port", "${port}", "--alias", "${model}"]
    command = json.dumps([*engine.llama_server_command(), *port])
    weights = json.dumps(str(engine.model_path()))
    text = CATALOG.format(name=name, least=least, command=command, weights=weights)
    path.write_text(text)
    return path


def dry_run(fleet: Fleet, *more: object) -> tuple[int, Json]:
    said = fleet.llmgw("adopt", "--dry-run", "-o", "json", *more)
    if not said.stdout:
        msg = f"adopt --dry-run exited {said.returncode}: {said.stderr.strip()}"
        raise CheckError(msg)
    return said.returncode, json.loads(said.stdout)


def started(fleet: Fleet, report: Report) -> Json:
    fleet.start("control", "agent")
    began = time.monotonic()
    replica = fleet.ready(MODEL, 90)
    fleet.served(MODEL)
    shard: Json = replica["shards"][0]
    took = time.monotonic() - began
    report.must(
        shard["pid"] in fleet.engines(),
        f"control, agent, gateway and a llama-server with {MODEL} run ({took:.1f} s); "
        f"the engine is pid {shard['pid']}",
    )
    return shard


def answered(fleet: Fleet, report: Report) -> None:
    url = f"{fleet.urls['gateway']}/v1/chat/completions"
    answer = fleet.http.post(url, json=chat(QUESTION) | {"max_tokens": 40})
    text = ""
    if answer.status_code == httpx.codes.OK:
        text = " ".join(answer.json()["choices"][0]["message"]["content"].split())
    report.must(text, f"asked through the gateway, it answered ({answer.status_code}): {text[:90]}")


def killed(fleet: Fleet, report: Report, shard: Json) -> None:
    """The heart of it: both kills while a stream is open, both parts back, the same engine."""
    ticks = start_ticks(shard["pid"])
    stream = Stream(fleet.urls["gateway"])
    stream.start()
    at, lives, began = {}, {}, 0.0
    for part, count in (("control", CONTROL_AT), ("agent", AGENT_AT)):
        stream.reached(count)
        at[part], lives[part] = stream.at, fleet.life(part)
        fleet.kill(part)
        began = time.monotonic()
        fleet.start(part)
    for part, old in lives.items():
        fleet.back(part, old)
    replica = fleet.ready(MODEL)
    took = time.monotonic() - began
    stream.join(120)
    report.check(
        max(at.values()) < stream.at,
        f"kill -9 of control at token {at['control']} and of the agent at token {at['agent']} of a "
        f"stream; {took:.1f} s after the second kill both are back, their engine known to both",
    )
    whole = stream.numbers == list(range(1, TOKENS + 1)) and stream.usage == TOKENS
    report.check(
        whole and stream.done and stream.finish == "length",
        f"the stream got {len(stream.numbers)} of {TOKENS} tokens, the engine counted "
        f"{stream.usage}; finish_reason {stream.finish or 'none'}, "
        f"{'[DONE]' if stream.done else 'no [DONE]'} {stream.error}".rstrip(),
    )
    now = replica["shards"][0]
    same = now["pid"] == shard["pid"] and start_ticks(now["pid"]) == ticks is not None
    count = len(fleet.engines())
    report.check(
        same and count == 1,
        f"the engine was pid {shard['pid']} and is pid {now['pid']}, "
        f"{'started once' if same else 'another process'}; {count} engine in all",
    )


def removed(fleet: Fleet, report: Report, shard: Json) -> None:
    """A plan for an edited catalog: it must name the engine, and touch nothing."""
    edited = catalog(fleet.folder / "edited.yaml", name="another", least=0)
    code, plan = dry_run(fleet, "--catalog", edited)
    stops = [s for s in plan["shards"] if s["verdict"] == "unclaimed"]
    named = [s["shard"] for s in stops]
    why = stops[0]["why"] if stops else "nothing"
    report.check(
        code == 1 and named == [shard["shard"]] and plan["disturbs"] == 1,
        f"without {MODEL} in the catalog the dry run exits {code} and names "
        f"{', '.join(named) or 'nothing'}: {why}",
    )
    alive = start_ticks(shard["pid"])
    report.check(
        alive, f"it only looked: pid {shard['pid']} {'still runs' if alive else 'is gone'}"
    )


def ended(fleet: Fleet, report: Report) -> None:
    said = fleet.llmgw("down", "--engines", "--yes", timeout_s=90)
    left = fleet.engines()
    report.check(
        said.returncode == 0 and not left and fleet.gateway_pid() is None,
        f"llmgw down --engines ended the engine, control and the gateway (exit {said.returncode}, "
        f"{len(left)} engines left) {said.stderr.strip() if said.returncode else ''}".rstrip(),
    )


def shown(fleet: Fleet, report: Report) -> None:
    shard = started(fleet, report)
    answered(fleet, report)
    code, plan = dry_run(fleet)
    report.check(
        code == 0 and plan["summary"]["adopt"] == 1 and plan["disturbs"] == 0,
        f"adopt --dry-run before the restart: exit {code}, {plan['summary']['adopt']} adopted, "
        f"{plan['disturbs']} disturbed",
    )
    killed(fleet, report, shard)
    removed(fleet, report, shard)


def kept(fleet: Fleet) -> None:
    url, agent = fleet.urls["gateway"], fleet.processes["agent"].pid
    llmgw = f"LLMGW_CONTROL={fleet.urls['control']} {Path(sys.executable).parent / 'llmgw'}"
    print(
        f"\nIt keeps running. Try it:\n  curl {url}/v1/chat/completions -H 'content-type: application/json' \\"
    )
    print(f"    -d '{json.dumps(chat('Tell me a joke.'))}'\n  {llmgw} status")
    print(f"Stop it:\n  {llmgw} down --engines --yes && kill {agent} && rm -r {fleet.folder}")


def attempt(what: Callable[[], None], report: Report) -> None:
    """A part of the demo that breaks off is a failed check, with what happened."""
    try:
        what()
    except CheckError as e:
        if not report.failed:
            report.check(held=False, said=str(e))
    except (TimeoutError, RuntimeError, httpx.HTTPError, OSError, KeyError) as e:
        report.check(held=False, said=f"{type(e).__name__}: {e}")


def main() -> int:
    keep = os.environ.get("KEEP", "") not in ("", "0")
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="llmgw-demo-"))
    report = Report()
    try:
        fleet = Fleet(folder, catalog(folder / "catalog.yaml"))
    except FileNotFoundError as e:
        print(f"demo: {e}", file=sys.stderr)
        return 1
    server = engine.llama_server()
    print(f"llmgw demo: {server.why}; logs in {folder}", flush=True)
    print(
        f"  server  {' '.join(server.command or ())}\n  model   {engine.model_path()}", flush=True
    )
    try:
        attempt(lambda: shown(fleet, report), report)
        if keep and not report.failed:
            kept(fleet)
            return 0
        attempt(lambda: ended(fleet, report), report)
    finally:
        if not keep or report.failed:
            fleet.close()
    verdict = "a check FAILED" if report.failed else "every check held"
    print(f"{verdict}; {time.monotonic() - began:.0f} s in all")
    if report.failed:
        print(f"the logs are in {folder}", file=sys.stderr)
        return 1
    with contextlib.suppress(OSError):
        shutil.rmtree(folder)
    print(
        "next: .venv/bin/llmgw init catalog.yaml  writes a catalog for this server and this model"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
