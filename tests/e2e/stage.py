"""A fleet that a test lets die at named points of its own code, and the one tour that passes through all of them.

Answers for: a part that died where it was told to is started again, and nothing else may end; after each step the
truth is looked up. It may not know which points there are.
"""

import signal
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import httpx
import yaml
from typing_extensions import override

from scripts.fleet import Fleet, wait_for
from tests.e2e import truth
from tests.e2e.conftest import fake, model
from tests.e2e.truth import Engine, Json

#: Always on and never touched: whatever happens, this very process stays.
STEADY = "alpha"
#: On demand, with the one GPU; killed once, drained and stopped by a catalog edit, woken by a request.
ASLEEP = "beta"
#: Always on, on the CPU, deaf to TERM; a catalog edit rolls it.
DEAF = "gamma"
SOON_S = 20.0


def catalog(starts: Path, edition: int, *, gpu: bool) -> Json:
    """An edition differs from the one before in how all but the steady model are started."""

    def one(name: str, least: int, *flags: str, **more: object) -> Json:
        said = "$$LLMGW_SHARD $$LLMGW_INCARNATION $$LLMGW_ATTEMPT"
        script = f'echo {said} >> {starts}; exec "$$0" "$$@"'
        return model(["sh", "-c", script, *fake("--alias", name, *flags)], least=least, **more)

    edited = ("--exit-code", str(edition))

    asleep = one(ASLEEP, 0, *edited, **({"gpus": 1} if gpu else {}))
    asleep["scaling"]["idle_timeout"] = "never"
    return {STEADY: one(STEADY, 1), ASLEEP: asleep, DEAF: one(DEAF, 1, *edited, "--ignore-term")}


#: Short, through settings that everybody has. A drain that nobody asked for otherwise takes a minute after a start of
#: control: a gateway that it has not heard may still be serving.
DEFAULTS = {
    "drain_timeout": "0.2s",
    "stop": {"signal": "TERM", "grace": "0.2s"},
    "restart": {"max": 50, "window": "30m", "backoff": "0.1s"},
}


class Stage(Fleet):
    def __init__(self, folder: Path, nvml: Path | None = None) -> None:
        folder.mkdir()
        self.starts = folder / "starts"
        self.nvml = nvml
        self.edition = 0
        super().__init__(folder, folder / "catalog.yaml", settle_timeout="30s")
        if nvml is not None:
            self.more["agent"] = ["--gpus", "auto"]
        self.edit()
        #: where each part is to die: in the next life, in the one after that, …
        self.points: dict[str, list[str]] = {}
        self.deaths: list[tuple[str, str]] = []
        self.counted = 0
        self.steady: tuple[int, int] | None = None
        self._point = ""
        self._now: dict[str, str] = {}

    # ------------------------------------------------ parts that die

    @property
    @override
    def env(self) -> dict[str, str]:
        env = super().env
        if self.nvml is not None:
            env |= {"LD_LIBRARY_PATH": str(self.nvml), "FAKE_NVML_GPUS": "1"}
        return env | ({"LLMGW_CRASH_AT": self._point} if self._point else {})

    @override
    def start(self, *parts: str) -> None:
        for part in parts:
            self._point = self._now[part] = next(iter(self.points.get(part, ())), "")
            if self._point:
                self.points[part].pop(0)
            super().start(part)
            self._point = ""

    @override
    def check_alive(self) -> None:
        """Whoever died where it was told to lives again; any other end is a failure."""
        for part, process in tuple(self.processes.items()):
            if process.poll() is None:
                continue
            point = self._now[part].partition(":")[0]
            said = self.log(part).read_text(errors="replace").splitlines()
            if not point or process.returncode != -signal.SIGKILL or f"crash point {point}" not in said:
                tail = "\n".join(said[-20:])
                msg = f"{part} ended with {process.returncode}, told to die at {point!r}: {tail}"
                raise RuntimeError(msg)
            assert said.count(f"crash point {point}") >= 1
            self.deaths.append((part, self._now[part]))
            self.undoubled()
            self.start(part)

    @property
    def armed(self) -> list[str]:
        """Points that nobody has come to yet."""
        alive = [point for part, point in self._now.items() if point and part in self.processes]
        return [*alive, *(p for points in self.points.values() for p in points)]

    def until(self, look: Callable[[], object], what: str) -> None:
        def alive() -> bool:
            self.check_alive()
            return bool(look())

        wait_for(alive, what, SOON_S)

    # ------------------------------------------------ what must be true

    def undoubled(self) -> None:
        assert not (said := truth.doubled(truth.engines(self))), said

    def rest(self, *wanted: str, other_than: Mapping[str, Engine] = {}) -> dict[str, Engine]:
        """Until nothing is under way any more and every account agrees with /proc."""
        wrong: list[str] = []

        def well() -> bool:
            self.undoubled()
            running = {e.model: e for e in truth.engines(self)}
            old = [m for m in (DEAF, ASLEEP) if m in other_than and running.get(m) == other_than[m]]
            wrong[:] = old or truth.wrong(self, set(wanted))
            return not wrong

        try:
            self.until(well, f"{', '.join(wanted)} at rest")
        except TimeoutError as e:
            msg = f"{e}; died at {self.deaths}: {wrong}"
            raise AssertionError(msg) from None
        found = {e.model: e for e in truth.engines(self)}
        self.steady = self.steady or found[STEADY].life
        assert found[STEADY].life == self.steady, f"{STEADY} was restarted: {self.deaths}"
        return found

    def started(self, count: int) -> None:
        """So many engine processes more were started than before, none twice under one attempt (law 1 of supervise)."""
        lines = self.starts.read_text().splitlines()
        assert len(set(lines)) == len(lines), f"an attempt was started twice: {lines}"
        new = lines[self.counted :]
        self.counted = len(lines)
        assert len(new) == count, f"wanted {count} engine starts, there were {new}; {self.deaths}"

    # ------------------------------------------------ steps

    def edit(self) -> None:
        self.edition += 1
        models = catalog(self.starts, self.edition, gpu=self.nvml is not None)
        document = {"version": 1, "defaults": DEFAULTS, "models": models}
        self.catalog.write_text(yaml.safe_dump(document, sort_keys=False))

    def wake(self) -> None:
        """A client asks for the model that sleeps, and is answered, whoever dies meanwhile (F5, F82)."""
        answers: list[httpx.Response | Exception] = []

        def ask() -> None:
            body = {"model": ASLEEP, "messages": [{"role": "user", "content": "hi"}]}
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

    def begin(self, parts: Iterable[str] = ("control", "agent")) -> None:
        """From nothing to everything running."""
        self.start(*parts)
        self.rest(STEADY, DEAF)
        self.wake()
        self.rest(STEADY, ASLEEP, DEAF)
        self.started(3)

    def tour(self) -> None:
        """An engine's death, a drain and a stop after an edit, a start and a wake: back to where it began."""
        before = self.rest(STEADY, ASLEEP, DEAF)
        self.kill_pid(before[ASLEEP].pid)
        self.until(lambda: self.life_of(ASLEEP) not in (None, before[ASLEEP].life), "a new engine")
        after = self.rest(STEADY, ASLEEP, DEAF)
        assert after[DEAF] == before[DEAF]
        self.started(1)
        self.edit()
        self.processes["control"].send_signal(signal.SIGHUP)
        self.rest(STEADY, DEAF, other_than=before)
        self.started(1)
        self.wake()
        now = self.rest(STEADY, ASLEEP, DEAF)
        self.started(1)
        assert now[DEAF].incarnation != before[DEAF].incarnation

    def life_of(self, name: str) -> tuple[int, int] | None:
        return next((e.life for e in truth.engines(self) if e.model == name), None)

    def restart(self, *parts: str, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Killed from outside and started as they are told to; what ran before runs on."""
        before = self.rest(STEADY, ASLEEP, DEAF)
        for part in parts:
            self.kill(part)
        meanwhile()
        self.start(*parts)
        after = self.rest(STEADY, ASLEEP, DEAF)
        assert after == before, f"engines were restarted: {before} {after} {self.deaths}"
        self.started(0)
