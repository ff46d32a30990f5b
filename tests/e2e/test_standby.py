"""Two real controls of one host and one inventory: the second waits, knows the fleet, and leads when the first dies.

F17, F21, F22, F31, F34, A24, A42: real agent, engine, gateway and clients; the controls are killed or paused.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from typing_extensions import override

from scripts.fleet import Fleet, Json, wait_for
from scripts.ports import free_port
from tests.control import real_etcd
from tests.control.real_etcd import RealEtcd
from tests.e2e.conftest import fake, model, write_catalog

SECOND = "second"
ROUNDS = int(os.environ.get("FAILOVER_ROUNDS", "2"))
#: `bench.failover` measures it, under a second on a box that is quiet; whoever waited for nodes would take 20 s.
PROMPTLY_S = 12.0


class Pair(Fleet):
    """`control` and `second` have the same inventory; agents know both."""

    lease: tuple[str, ...] = ()

    def __init__(self, folder: Path, catalog: Path) -> None:
        super().__init__(folder, catalog)
        self.urls[SECOND] = f"http://127.0.0.1:{free_port()}"
        self.more["agent"] = [*("--control", self.urls["control"], "--control", self.urls[SECOND])]
        self.asked: list[httpx.Response | Exception] = []

    @override
    def words(self, part: str) -> list[str]:
        if part not in ("control", SECOND):
            return super().words(part)
        words = super().words("control")
        words[words.index("--listen") + 1] = self.urls[part].removeprefix("http://")
        return [*words, "--standby"] if not self.lease else [*words, *self.lease]

    def of(self, part: str, path: str = "/api/v1/leader") -> Json:
        try:
            found: Json = self.http.get(self.urls[part] + path).raise_for_status().json()
        except httpx.HTTPError:
            return {}
        return found

    def leads(self, part: str) -> bool:
        return bool(self.of(part).get("leading"))

    def settled(self, part: str) -> bool:
        found = self.of(part, "/api/v1/status")
        return bool(found) and found["leader"]["leading"] and found["settling"] is None

    def follow(self) -> None:
        """The first is dead: from here on `status` and the rest of `Fleet` ask the second."""
        self.urls["control"], self.urls[SECOND] = self.urls[SECOND], self.urls["control"]
        self.processes["control"] = self.processes.pop(SECOND)

    def decides(self) -> None:
        """One model more in the catalog is started."""
        models = {name: model(fake("--alias", name)) for name in ("alpha", "beta")}
        write_catalog(self.catalog, models)
        assert self.llmgw("catalog", "apply", "--yes").returncode == 0
        self.ready("beta")

    def ask(self, name: str = "alpha") -> httpx.Response:
        body = {"model": name, "messages": [{"role": "user", "content": "hi"}]}
        url = f"{self.urls['gateway']}/v1/chat/completions"
        return httpx.post(url, json=body, timeout=30, trust_env=False)

    def load(self, stop: threading.Event) -> None:
        while not stop.is_set():
            try:
                self.asked.append(self.ask())
            except httpx.HTTPError as e:
                self.asked.append(e)
            time.sleep(0.01)

    def failed(self) -> list[Any]:
        return [a for a in self.asked if not isinstance(a, httpx.Response) or a.is_error]

    def begin(self) -> dict[int, str]:
        """Both up, the model served, the gateway told of both."""
        self.start("control")
        wait_for(lambda: self.leads("control"), "the first leads")
        self.start(SECOND, "agent")
        self.ready("alpha")
        self.served("alpha")
        wait_for(lambda: self.of("control")["standbys"], "the leader knows the standby")
        wait_for(
            lambda: self.of(SECOND, "/api/v1/status")["replicas"], "the standby knows the fleet"
        )
        return self.engines()


@contextmanager
def under_load(pair: Pair) -> Iterator[None]:
    """Clients ask all the time, and every one of them is answered."""
    stop = threading.Event()
    clients = [threading.Thread(target=pair.load, args=(stop,)) for _ in range(2)]
    for client in clients:
        client.start()
    try:
        yield
        so_far = len(pair.asked)
        wait_for(lambda: len(pair.asked) > so_far + 10, "answers after it too")
    finally:
        stop.set()
        for client in clients:
            client.join()
    assert pair.failed() == []


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    catalog = write_catalog(tmp_path / "catalog.yaml", {"alpha": model(fake("--alias", "alpha"))})
    made = Pair(tmp_path, catalog)
    try:
        yield made
    finally:
        made.close()


def test_f17_a24_a_standby_leads_within_a_second_of_a_kill_and_nobody_notices(pair: Pair) -> None:
    """0 failed requests, 0 engines restarted, the same gateway, and it decides (F34: by the catalog it reads then)."""
    before = pair.begin()
    gateway = pair.gateway_pid()
    about = pair.of(SECOND)
    first = pair.of("control")
    assert (about["leading"], about["name"], about["epoch"]) == (
        False,
        first["name"],
        first["epoch"],
    )
    (row,) = first["standbys"]
    assert row["missing"] == []
    assert row["lag_s"] < 6
    said = pair.http.post(f"{pair.urls[SECOND]}/api/v1/pause", json={"why": "passed on"}).json()
    assert "passed on" in said["paused"]
    assert "passed on" in pair.of("control", "/api/v1/status")["paused"]
    pair.http.post(f"{pair.urls[SECOND]}/api/v1/resume", json={}).raise_for_status()
    with under_load(pair):
        began = time.monotonic()
        pair.kill("control")
        wait_for(lambda: pair.settled(SECOND), "the second leads and has settled")
        took_s = time.monotonic() - began
        pair.follow()
        pair.decides()
        pair.served("beta")
    assert pair.of("control")["epoch"] > first["epoch"]
    assert {p: s for p, s in pair.engines().items() if p in before} == before
    assert pair.gateway_pid() == gateway
    assert took_s < PROMPTLY_S


def test_f17_a24_round_after_round_the_leader_dies_and_comes_back_to_stand_by(pair: Pair) -> None:
    """FAILOVER_ROUNDS=50 for more. Nobody fails, nothing restarts, and what is on demand does not fall asleep (A24)."""
    awake = model(fake("--alias", "nap"), least=0)
    awake["scaling"]["idle_timeout"] = "10m"
    models = {"alpha": model(fake("--alias", "alpha")), "nap": awake}
    write_catalog(pair.catalog, models)
    pair.begin()
    pair.ask("nap").raise_for_status()
    wait_for(lambda: len(pair.engines()) == len(models), "the nap is over")
    before = pair.engines()
    epochs = [pair.of("control")["epoch"]]
    slowest_s = 0.0
    with under_load(pair):
        for _ in range(ROUNDS):
            began = time.monotonic()
            pair.kill("control")
            wait_for(lambda: pair.settled(SECOND), "the other leads and has settled")
            slowest_s = max(slowest_s, time.monotonic() - began)
            pair.follow()
            epochs.append(pair.of("control")["epoch"])
            pair.start(SECOND)
            wait_for(lambda: pair.of("control")["standbys"], "the leader knows the standby")
            wait_for(
                lambda: len(pair.of(SECOND, "/api/v1/status").get("replicas", ())) == len(models),
                "the standby knows the fleet",
            )
    assert pair.engines() == before
    assert epochs == sorted(set(epochs))
    assert slowest_s < PROMPTLY_S


# ---------------------------------------------------------------- several hosts: a lease in etcd

TTL_S = 3


class Apart(Pair):
    """As on two hosts: each control has an inventory of its own, and the lease is in a real etcd."""

    @override
    def words(self, part: str) -> list[str]:
        words = super().words(part)
        if part == SECOND:
            words[words.index("--gateway") + 1] = "none"
            words += ["--inventory", str(self.folder / SECOND / "inventory.db")]
        return words


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[RealEtcd]:
    with real_etcd.serving(tmp_path / "store") as found:
        yield found


@pytest.fixture
def apart(tmp_path: Path, etcd: RealEtcd) -> Iterator[Apart]:
    models = {"alpha": model(fake("--alias", "alpha"))}
    made = Apart(tmp_path, write_catalog(tmp_path / "catalog.yaml", models))
    made.lease = ("--lease", f"{etcd.spec}?ttl={TTL_S}s")
    try:
        yield made
    finally:
        made.close()


@pytest.mark.etcd
def test_f25_f31_the_next_leader_decides_within_ttl_and_a_second(apart: Apart) -> None:
    before = apart.begin()
    epoch = apart.of("control")["epoch"]
    with under_load(apart):
        began = time.monotonic()
        apart.kill("control")
        wait_for(lambda: apart.settled(SECOND), "the second leads and has settled")
        took_s = time.monotonic() - began
        apart.follow()
        apart.decides()
        apart.served("beta")
    assert apart.of("control")["epoch"] > epoch
    assert {p: s for p, s in apart.engines().items() if p in before} == before
    assert took_s < TTL_S + PROMPTLY_S


@pytest.mark.etcd
def test_f22_a_leader_that_wakes_after_its_lease_commands_nothing(apart: Apart) -> None:
    """Stopped past its ttl with an order to reload waiting for it: it finds its time over, and ends (F24, F25)."""
    before = apart.begin()
    with under_load(apart):
        first = apart.processes["control"]
        first.send_signal(signal.SIGSTOP)
        wait_for(lambda: apart.settled(SECOND), "the second leads and has settled")
        models = {name: model(fake("--alias", name)) for name in ("alpha", "beta")}
        write_catalog(apart.catalog, models)
        first.send_signal(signal.SIGHUP)
        first.send_signal(signal.SIGCONT)
        assert first.wait(60) == 1
        assert "the lease is lost" in apart.log("control").read_text()
        time.sleep(1.5)
        assert apart.engines() == before, "the second was not told of another catalog"
        del apart.processes["control"]
        apart.follow()
        apart.decides()
    running = apart.engines()
    assert {p: s for p, s in running.items() if p in before} == before
    assert len(running) == len(before) + 1


@pytest.mark.etcd
def test_f30_without_the_store_nothing_stops_and_nothing_is_decided(
    apart: Apart, etcd: RealEtcd
) -> None:
    before = apart.begin()
    epoch = apart.of("control")["epoch"]
    with under_load(apart):
        etcd.stop()
        wait_for(lambda: not apart.leads("control"), "the leader's time is over", 2 * TTL_S)
        refused = apart.http.post(
            f"{apart.urls['control']}/api/v1/models/alpha/stop", json={}
        ).json()
        assert refused["error"]["code"] == "not_leading"
        assert "could not be renewed" in apart.of("control", "/api/v1/status")["blocked"]
        time.sleep(TTL_S)
        assert not apart.leads("control")
        assert not apart.leads(SECOND)
        apart.check_alive()
        etcd.start()
        wait_for(
            lambda: any(apart.settled(p) for p in ("control", SECOND)), "one leads again", 20.0
        )
        apart.check_alive()
    leader = next(p for p in ("control", SECOND) if apart.leads(p))
    assert apart.of(leader)["epoch"] > epoch
    assert apart.engines() == before
