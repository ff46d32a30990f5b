"""Xids of the NVIDIA driver, by NVML's event set and by the kernel's log: which card is taken out of use, and why."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from llmgw.agent.gpu.kmsg import KernelLog
from llmgw.agent.gpu.xid import ASKED_S, TOLD_S, Xid, Xids, address, parse, words
from llmgw.core.types.messages import Gpu, Resources
from tests.agent.cards import GIB, UUIDS, Cards
from tests.agent.rig import Rig, until

AT, WHEN = 5000.0, "2027-01-15T08:00:00Z"
#: Of the first and of the second made-up card.
FIRST, SECOND = "0000:01:00", "0000:02:00"
SOME = Resources(gpu_memory_bytes=2 * GIB)
CARD = Gpu(uuid="GPU-1", vendor="nvidia", pci="00000000:C6:00.0")
HERE = (0, 0xC6, 0)


def health(reading: Any) -> list[bool]:
    return [g["healthy"] for g in reading["gpus"]]


class Log:
    """A file that is read as the kernel's log is: one record a line."""

    def __init__(self, root: Path) -> None:
        self.path = root / "dev/kmsg"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.touch()

    def say(self, text: str, ago_s: float = 0.0) -> None:
        at_us = int((time.monotonic() - ago_s) * 1e6)
        with self.path.open("a") as file:
            file.write(f"3,1,{at_us},-;{text}\n")

    def xid(self, pci: str, code: int, more: str = "", ago_s: float = 0.0) -> None:
        self.say(f"NVRM: Xid (PCI:{pci}): {code}, {more}", ago_s)


# ---------------------------------------------------------------- lines and addresses


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (
            "NVRM: Xid (PCI:0000:c6:00): 79, pid=1101, name=nvc:[driver], GPU has fallen off the bus.",
            (HERE, 79, 1101, "nvc:[driver]"),
        ),
        (
            "NVRM: Xid (PCI:0000:c6:00): 13, pid='<unknown>', name=<unknown>, Graphics SM Warp",
            (HERE, 13, 0, ""),
        ),
        ("NVRM: Xid (PCI:c6:00): 31, Ch 00000010", (HERE, 31, 0, "")),
        ("NVRM: Xid (PCI:0000:C6:00): 45, pid=7, name=python3, Ch 8", (HERE, 45, 7, "python3")),
        ("NVRM: Xid (PCI:0001:c6:00): 48", ((1, 0xC6, 0), 48, 0, "")),
        ("NVRM: GPU at PCI:0000:c6:00: GPU-f0", None),
        ("NVRM: Xid (PCI:nowhere): 79", None),
    ],
)
def test_lines_of_all_drivers_are_read(line: str, found: tuple[Any, ...] | None) -> None:
    xid = parse(line, AT)
    assert (None if xid is None else (xid.pci, xid.code, xid.pid, xid.name)) == found


def test_one_card_has_one_address_however_it_is_written() -> None:
    written = ("00000000:C6:00.0", "0000:c6:00", "c6:00.0", "c6:00")
    assert {address(text) for text in written} == {HERE}
    assert address("") is None


# ---------------------------------------------------------------- what follows


@pytest.mark.parametrize("code", [46, 48, 62, 64, 74, 79, 95, 109, 119, 120, 140, 145, 158])
def test_grave_ones_keep_new_work_away(code: int) -> None:
    xids = Xids()
    xids.add([Xid(HERE, code, AT)])
    gpu = xids.judged(CARD, None, AT + 9e6)
    assert (gpu.healthy, gpu.lost) == (False, False)
    assert gpu.trouble.startswith(f"Xid {code} (")
    assert gpu.trouble.endswith("reboot this box" if code == 79 else "reset it when it is idle")


@pytest.mark.parametrize("code", [13, 31, 43, 45, 68, 94, 63, 92, 999])
def test_others_are_told_for_a_while_and_the_card_goes_on(code: int) -> None:
    """63 and 94 as well: the catalogue's immediate actions are IGNORE and RESTART_APP."""
    xids = Xids()
    xids.names = {7: "alpha-1/0"}
    xids.add([Xid(HERE, code, AT, WHEN, 7, "llama-server")])
    now = xids.judged(CARD, None, AT + 1)
    assert now.healthy
    assert now.trouble.startswith(f"Xid {code} (")
    if code in (13, 31, 43, 45, 68, 94):
        assert (
            "of alpha-1/0 (pid 7, llama-server) at 2027-01-15T08:00:00Z, the card goes on"
            in now.trouble
        )
    assert xids.judged(CARD, None, AT + TOLD_S).trouble == ""


def test_only_the_card_that_is_named() -> None:
    xids = Xids()
    xids.add([Xid(HERE, 79, AT)])
    other = Gpu(uuid="GPU-2", vendor="nvidia", pci="00000000:C7:00.0")
    amd = Gpu(uuid="GPU-3", vendor="amd", pci="0000:c6:00.0")
    for card in (other, amd, Gpu(uuid="GPU-4", vendor="nvidia")):
        assert xids.judged(card, None, AT) == card


def test_what_its_driver_asks_for_counts() -> None:
    """From 570 on it says whether something is left to do: then its word ends an Xid, and needs none (Xid 154)."""
    xids = Xids()
    xids.add([Xid(HERE, 119, AT), Xid(HERE, 154, AT)])
    assert not xids.judged(CARD, None, AT + 9e6).healthy
    at_once = xids.judged(CARD, 0, AT + ASKED_S)
    assert not at_once.healthy, "it may take a moment to say so"
    assert xids.judged(CARD, 0, AT + ASKED_S + 1) == CARD
    assert xids.judged(CARD, None, AT + ASKED_S + 2) == CARD, "it does not come back"
    asks = Xids().judged(CARD, 2, AT)
    assert (asks.healthy, asks.trouble) == (False, "its driver asks for a reboot of this box")
    assert Xids().judged(CARD, 9, AT).trouble == "its driver asks for recovery action 9"


def test_one_xid_from_both_places_is_one_and_the_log_knows_whose() -> None:
    xids = Xids()
    xids.names = {7: "alpha-1/0"}
    xids.add([Xid(HERE, 31, AT)])
    xids.add([Xid(HERE, 31, AT - 0.2, WHEN, 7, "python3")])
    xids.add([Xid(HERE, 31, AT + 0.1)])
    assert "of alpha-1/0 (pid 7, python3)" in xids.judged(CARD, None, AT).trouble
    xids.names = {}  # its process is gone
    assert "of alpha-1/0 (pid 7, python3)" in xids.judged(CARD, None, AT).trouble


def test_a_program_that_is_not_told_is_said_to_be_so() -> None:
    assert "of a program that is not told" in words(Xid(HERE, 43, AT))


# ---------------------------------------------------------------- the kernel's log


def test_the_log_is_read_on_from_where_it_was(tmp_path: Path) -> None:
    log = Log(tmp_path)
    reader = KernelLog(log.path)
    log.say("one", ago_s=100)
    (first,) = reader.new()
    assert first[0] == "one"
    assert abs(time.monotonic() - 100 - first[1]) < 30
    assert list(reader.new()) == []
    log.say("two; with more")
    with log.path.open("a") as file:
        file.write(" SUBSYSTEM=pci\nnonsense\n6,2,x,-;no time\n")
    assert [line for line, _ in reader.new()] == ["two; with more"]
    reader.close()


def test_a_log_that_is_not_there_or_says_no_is_empty(tmp_path: Path) -> None:
    assert list(KernelLog(tmp_path / "none").new()) == []
    assert list(KernelLog(tmp_path).new()) == []  # a folder: EISDIR at its read


@pytest.mark.skipif(not os.access("/dev/kmsg", os.R_OK), reason="/dev/kmsg may not be read here")
def test_the_real_one_has_times_of_this_boot() -> None:
    reader = KernelLog(Path("/dev/kmsg"))
    began = time.monotonic()
    found = list(reader.new())
    assert time.monotonic() - began < 30.0, "it never waits"
    assert all(at_s <= time.monotonic() + 60 for _, at_s in found)
    reader.close()


# ---------------------------------------------------------------- through the real binding


def test_nvmls_events_are_heard_without_waiting(cards: Cards) -> None:
    cards.xid(0, 95)  # before anybody asked: nobody can know
    readings = cards.read(
        lambda: cards.xid(1, 31), lambda: cards.xid(1, 48), cards.write, lambda: None
    )
    assert [health(r) for r in readings] == [[True, True]] * 2 + [[True, False]] * 3
    assert "Xid 31 (a memory page fault) of a program" in readings[1]["gpus"][1]["trouble"]
    assert readings[-1]["gpus"][1]["trouble"].startswith("Xid 48 (an uncorrected memory error)")
    assert readings[-1]["gpus"][0]["trouble"] == ""


def test_f72_xid_79_is_told_with_the_lost_card_and_over_when_it_is_back(cards: Cards) -> None:
    def lost() -> None:
        cards.xids.append((1, 79))
        cards.lose()

    _, gone, back = cards.read(lost, cards.find)
    card = gone["gpus"][1]
    assert (card["healthy"], card["lost"]) == (False, True)
    assert card["trouble"].startswith("Xid 79 (it fell off the bus) at ")
    assert (back["gpus"][1]["healthy"], back["gpus"][1]["trouble"]) == (True, "")


def test_the_kernels_log_of_this_boot_outlives_the_agent(cards: Cards, tmp_path: Path) -> None:
    log = Log(tmp_path / "root")
    log.xid(SECOND, 119, "pid=55, name=python3, Timeout after 45s", ago_s=time.monotonic() / 2)
    for _ in range(2):  # two processes
        (reading,) = cards.read(root=tmp_path / "root")
        assert health(reading) == [True, False]
        assert "Xid 119 (its firmware (GSP) does not answer)" in reading["gpus"][1]["trouble"]


def test_a_driver_that_asks_for_nothing_after_a_reset_is_believed(
    cards: Cards, tmp_path: Path
) -> None:
    log = Log(tmp_path / "root")
    log.xid(SECOND, 119, ago_s=time.monotonic() / 2)
    cards.set(1, recovery=0)
    reading, asked = cards.read(lambda: cards.set(1, recovery=1), root=tmp_path / "root")
    assert health(reading) == [True, True]
    assert asked["gpus"][1]["trouble"] == "its driver asks for a reset of it"


def test_a_card_without_events_is_told_of_by_the_log(cards: Cards, tmp_path: Path) -> None:
    log = Log(tmp_path / "root")
    cards.set(0, events=0)

    def both() -> None:
        cards.xid(0, 79)
        log.xid(FIRST, 64)

    _, heard = cards.read(both, root=tmp_path / "root")
    assert heard["gpus"][0]["trouble"].startswith("Xid 64 (")
    assert "79" not in heard["gpus"][0]["trouble"]


def test_mig_every_part_shares_the_fate_of_its_card(cards: Cards) -> None:
    parts = [{"uuid": f"MIG-{n}", "mem_total": 5 * GIB} for n in range(2)]
    cards.set(0, mig=1, mig_devices=parts)
    _, bad = cards.read(lambda: cards.xid(0, 140))
    assert {g["uuid"]: g["healthy"] for g in bad["gpus"]} == {
        UUIDS[1]: True,
        "MIG-0": False,
        "MIG-1": False,
    }


def test_a_running_shard_is_left_alone_and_new_work_goes_elsewhere(
    tmp_path: Path, cards: Cards
) -> None:
    """F72's like: the engine on the card runs on, its card takes nothing new, and control is told why."""
    rig = Rig(tmp_path, gpus="auto", world={"beat_s": 0.2})
    rig.start_agent(**cards.env).registered()
    try:
        shard = rig.ready(gpus=UUIDS[:1], resources=SOME)
        cards.use(0, GIB, (shard["pid"], GIB))
        cards.xid(0, 95)

        def told() -> Any:
            seen = [e["gpus"][0] for e in rig.control.events if e.get("gpus")]
            return next((g for g in reversed(seen) if not g.get("healthy", True)), None)

        assert "Xid 95" in until(told, "the bad card")["trouble"]
        rig.start(2, gpus=UUIDS[:1], resources=SOME)
        assert "Xid 95" in rig.control.refusal("gpu_held")["why"]
        now = rig.control.shards["alpha-1/0"]
        assert (now["state"], now["pid"], now["attempt"]) == ("ready", shard["pid"], 1)
    finally:
        rig.close()
