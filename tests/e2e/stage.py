"""A fleet whose parts die at named points of their own code, and one tour of it that passes through all of them.

Answers for: who died where it was told to is started again, and nothing else may end; after each step the truth is
looked up, and so many engines were started as the step needs and no more. It may not know which points there are.
"""

import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import httpx
import yaml
from typing_extensions import override

from llmgw.control.store import read_memory
from scripts.fleet import Fleet
from tests.e2e import truth
from tests.e2e.conftest import fake, model
from tests.e2e.truth import Engine, Json
from tests.nursery import Nursery

#: Always on and never touched: whatever happens, this very process stays.
STEADY = "alpha"
#: On demand, with the one GPU; a catalog edit drains and stops it, a request wakes it.
ASLEEP = "beta"
#: On demand, with the same GPU: it comes only where a cell asks for it, in the other's place.
RIVAL = "delta"
#: Always on, on the CPU, deaf to TERM; killed once, and rolled by a catalog edit.
DEAF = "gamma"
SOON_S, TICK_S = 60.0, 0.15
#: Short, through settings that everybody has. A drain that nobody asked for otherwise takes a minute after a start of
#: control: a gateway that it has not heard may still be serving.
DEFAULTS = {
    "drain_timeout": "0.2s",
    "stop": {"signal": "TERM", "grace": "0.2s"},
    "restart": {"max": 50, "window": "30m", "backoff": "0.1s"},
}


def catalog(starts: Path, edition: int) -> Json:
    """An edition differs from the one before in how all but the steady model are started; each start leaves a line."""

    def one(name: str, least: int, *flags: str, **more: object) -> Json:
        said = "$$LLMGW_SHARD $$LLMGW_INCARNATION $$LLMGW_ATTEMPT"
        script = f'echo {said} >> {starts}; exec "$$0" "$$@"'
        return model(["sh", "-c", script, *fake("--alias", name, *flags)], least=least, **more)

    edited = ("--exit-code", str(edition))
    asleep, rival = (one(name, 0, *edited, gpus=1) for name in (ASLEEP, RIVAL))
    for on_demand in (asleep, rival):
        on_demand["scaling"] |= {"idle_timeout": "1h", "min_up": "0s"}
    deaf = one(DEAF, 1, *edited, "--ignore-term")
    models = {STEADY: one(STEADY, 1), ASLEEP: asleep, RIVAL: rival, DEAF: deaf}
    return {"version": 1, "defaults": DEFAULTS, "models": models}


class Stage(Fleet):
    def __init__(self, folder: Path, nursery: Nursery) -> None:
        folder.mkdir()
        super().__init__(folder, folder / "catalog.yaml", settle_timeout="30s")
        self.nursery = nursery
        self.more["agent"] = ["--gpus", "auto"]
        #: where each part is to die: in its next life, in the one after that, …
        self.points: dict[str, list[str]] = {}
        self.deaths: list[str] = []
        #: files of the journal that are kept for people; such a fleet is not as it was found
        self.kept: tuple[str, ...] = ()
        #: what ran before a step that replaces it
        self.other: Mapping[str, Engine] = {}
        self.steady: tuple[int, int] | None = None
        self.edition = 0
        self.edit()
        self._starts = 0
        self._point = ""
        self._now: dict[str, str] = {}
        self._from: dict[str, int] = {}

    # ------------------------------------------------ parts that die

    @property
    @override
    def env(self) -> dict[str, str]:
        return (
            super().env
            | {"FAKE_NVML_GPUS": "1"}
            | ({"LLMGW_CRASH_AT": self._point} if self._point else {})
        )

    @override
    def start(self, *parts: str) -> None:
        for part in parts:
            left = self.points.get(part)
            self._point = self._now[part] = left.pop(0) if left else ""
            log = self.log(part)
            self._from[part] = log.stat().st_size if log.exists() else 0
            child = self.nursery.start(self.words(part), self.env, log)
            self.processes[part] = child  # type: ignore[assignment]
            self._point = ""

    @override
    def check_alive(self) -> None:
        """Whoever died where it was told to lives again; any other end is a failure."""
        for part, process in tuple(self.processes.items()):
            if process.poll() is None:
                continue
            point = self._now[part]
            said = self.log(part).read_bytes()[self._from[part] :].decode(errors="replace")
            mark = f"crash point {point.partition(':')[0]}"
            if process.returncode != -signal.SIGKILL or mark not in said.splitlines()[-1:]:
                msg = f"{part} ended with {process.returncode}, to die at {point!r}: {said[-2000:]}"
                raise RuntimeError(msg)
            self.deaths.append(f"{part} {point}")
            assert not (wrong := truth.doubled(truth.engines(self))), wrong
            if part == "control":
                self.read_only()
            self.start(part)

    def read_only(self) -> None:
        """A53: what an offline dry run reads of a file that a dead control left, it leaves as it is: a journal too."""
        folder = self.inventory.parent
        before = {p.name: p.read_bytes() for p in folder.glob("inventory.db*")}
        read_memory(self.inventory)
        assert before == {p.name: p.read_bytes() for p in folder.glob("inventory.db*")}

    @property
    def armed(self) -> list[str]:
        """Points that nobody has come to yet."""
        now = [point for part, point in self._now.items() if point and part in self.processes]
        return [*now, *(p for points in self.points.values() for p in points)]

    @override
    def back(self, part: str, old: object, timeout_s: float = SOON_S) -> None:
        self.until(lambda: self.life(part) not in (None, old), f"a new {part}")
        self.surveyed()

    def surveyed(self) -> None:
        """Every agent has registered anew, as an operator asked."""
        self.until(lambda: (self.survey() or {}).get("complete"), "a complete survey")

    def until(self, look: Callable[[], object], what: str) -> None:
        """`Fleet`'s waiting, with parts that may die meanwhile."""
        give_up = time.monotonic() + SOON_S
        self.check_alive()
        while not look():
            if time.monotonic() > give_up:
                msg = f"{what}: not within {SOON_S:g} s; died at {self.deaths}"
                raise TimeoutError(msg)
            time.sleep(TICK_S)
            self.check_alive()

    # ------------------------------------------------ what must be true

    def rest(self, *wanted: str) -> dict[str, Engine]:
        """Until nothing is under way any more and every account agrees with /proc; meanwhile nothing is held twice."""
        wrong: list[str] = []

        def well() -> bool:
            running = truth.engines(self)
            assert not (doubled := truth.doubled(running)), doubled
            wrong[:] = truth.wrong(self, running, wanted, self.kept)
            if self.other.get(DEAF) in running:
                wrong.append(f"the {DEAF} of before still runs")
            return not wrong

        try:
            self.until(well, f"{', '.join(wanted)} at rest")
        except TimeoutError as e:
            msg = f"{e}: {wrong}"
            raise AssertionError(msg) from None
        found = {e.model: e for e in truth.engines(self)}
        self.steady = self.steady or found[STEADY].life
        assert found[STEADY].life == self.steady, f"{STEADY} was restarted: {self.deaths}"
        return found

    def started(self, count: int) -> None:
        """So many engine processes more than before were started, none twice under one attempt."""
        lines = self.starts.read_text().splitlines()
        assert len(set(lines)) == len(lines), f"an attempt was started twice: {lines}"
        new = lines[self._starts :]
        self._starts = len(lines)
        assert len(new) == count, f"wanted {count} engine starts, there were {new}; {self.deaths}"

    @property
    def starts(self) -> Path:
        return self.folder / "starts"

    # ------------------------------------------------ steps

    def edit(self) -> None:
        self.edition += 1
        document = catalog(self.starts, self.edition)
        self.catalog.write_text(yaml.safe_dump(document, sort_keys=False))

    def wake(self, name: str = ASLEEP) -> None:
        """A client asks for a model that sleeps, and is answered, whoever dies meanwhile (F5, F82)."""
        answers: list[httpx.Response | Exception] = []

        def ask() -> None:
            body = {"model": name, "messages": [{"role": "user", "content": "hi"}]}
            url = f"{self.urls['gateway']}/v1/chat/completions"
            try:
                answers.append(httpx.post(url, json=body, timeout=SOON_S, trust_env=False))
            except httpx.HTTPError as e:
                answers.append(e)

        client = threading.Thread(target=ask, daemon=True)
        client.start()
        self.until(lambda: answers, "an answer")
        client.join()
        said = answers[0]
        assert isinstance(said, httpx.Response), said
        assert said.status_code == httpx.codes.OK, said.text

    def begin(self) -> None:
        """From nothing to everything running."""
        self.start("control", "agent")
        self.rest(STEADY, DEAF)
        self.wake()
        self.whole()
        self.started(3)

    def whole(self) -> dict[str, Engine]:
        return self.rest(STEADY, ASLEEP, DEAF)

    def tour(self) -> None:
        """A survey, an engine's death, a catalog edit that rolls one model and stops another, a wake: as it was."""
        self.surveyed()
        before = self.other = self.whole()
        self.kill_pid(before[DEAF].pid)
        after = self.other = self.whole()
        assert after[ASLEEP] == before[ASLEEP]
        self.started(1)
        self.edit()
        self.processes["control"].send_signal(signal.SIGHUP)
        self.rest(STEADY, DEAF)
        self.started(1)
        self.other = {}
        self.wake()
        self.whole()
        self.started(1)

    def restart(self, *parts: str, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Killed from outside and started as they are told to; what ran before runs on, in the same processes."""
        before = self.whole()
        lives = {part: self.life(part) for part in parts}
        for part in parts:
            self.kill(part)
        meanwhile()
        self.start(*parts)
        for part, old in lives.items():
            self.back(part, old)
        after = self.whole()
        assert after == before, f"engines were restarted: {before} {after} {self.deaths}"
        self.started(0)

    # ------------------------------------------------ the operator

    def clear(self) -> None:
        """What one cell made of the failure counts is nothing to the next."""
        for name in (ASLEEP, RIVAL, DEAF):
            url = f"{self.urls['control']}/api/v1/replicas/{name}/clear"
            self.http.post(url, json={}).raise_for_status()
