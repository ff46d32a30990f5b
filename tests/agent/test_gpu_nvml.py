"""What is read of NVIDIA cards, through the real binding and the fake library: readings one after another."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.agent.cards import GIB, UUIDS, Cards
from tests.agent.rig import ROOT, alive, until

MIG = {
    "name": "NVIDIA A100-SXM4-40GB",
    "mig": 1,
    "mem_total": 40 * GIB,
    "mig_devices": [
        {
            "uuid": "MIG-1111",
            "mem_total": 5 * GIB,
            "mem_used": GIB,
            "procs": [{"pid": 7, "mem": GIB}],
        },
        {"error": 6},
        {"uuid": "MIG-3333", "name": "A100 MIG 2g.10gb", "mem_total": 10 * GIB, "slices": 2},
    ],
}


def health(reading: Any) -> list[tuple[str, bool, bool]]:
    return [(g["uuid"], g["healthy"], g["lost"]) for g in reading["gpus"]]


def test_facts_of_a_card(cards: Cards) -> None:
    cards.use(0, 3 * GIB, (os.getpid(), 2 * GIB))
    (reading,) = cards.read()
    assert reading["measured"]
    assert [g["uuid"] for g in reading["gpus"]] == list(UUIDS)
    first = reading["gpus"][0]
    assert (first["memory"], first["memory_used"], first["healthy"]) == (24 * GIB, 3 * GIB, True)
    assert (first["pci"], first["driver"], first["power_limit_w"], first["power_w"]) == (
        "00000000:01:00.0",
        "570.86.15",
        300.0,
        60.0,
    )
    assert (first["vendor"], first["compute_capability"]) == ("nvidia", "9.0")
    assert (first["unified"], first["trouble"]) == (False, "")
    assert reading["uses"] == [[os.getpid(), UUIDS[0], 2 * GIB]]


def test_the_link_of_a_card_now_and_at_most(cards: Cards) -> None:
    """An x1 riser, or a slot that is shared, is a fact to look for when a model loads slowly."""
    cards.set(0, link=[1, 8, 4, 16])
    cards.set(1, link=[0, 0, 0, 0])  # a GB10 has none
    cards.write()
    (reading,) = cards.read()
    assert [g["link"] for g in reading["gpus"]] == ["gen1 x8 of gen4 x16", ""]


def test_a70_what_draws_is_listed_with_what_computes_and_counted_once(cards: Cards) -> None:
    cards.set(
        0, procs=[{"pid": 1, "mem": GIB}], graphics=[{"pid": 1, "mem": GIB}, {"pid": 2, "mem": 5}]
    )
    (reading,) = cards.read()
    assert reading["uses"] == [[1, UUIDS[0], GIB], [2, UUIDS[0], 5]]


def test_f72_a_card_that_is_lost_and_found_again(cards: Cards) -> None:
    """One card lost is that card's trouble. It keeps its name, its place and its PCI address."""
    before, lost, found = cards.read(cards.lose, cards.find)
    fine = [(UUIDS[0], True, False), (UUIDS[1], True, False)]
    assert health(before) == health(found) == fine
    assert health(lost) == [(UUIDS[0], True, False), (UUIDS[1], False, True)]
    assert "Xid 79" in lost["gpus"][1]["trouble"]


def test_f72_a_card_that_no_longer_is_counted_is_lost_too(cards: Cards) -> None:
    def gone() -> None:
        cards.gpus.pop()
        cards.write()

    _, lost = cards.read(gone)
    assert health(lost) == [(UUIDS[0], True, False), (UUIDS[1], False, True)]
    assert (lost["gpus"][1]["index"], lost["gpus"][1]["memory"]) == (1, 24 * GIB)


def test_f71_numbers_move_and_names_stay(cards: Cards) -> None:
    """A reboot, or a card taken out: what ran on GPU 1 is now on GPU 0, and known by its uuid."""
    cards.use(1, 9 * GIB, (5, 9 * GIB))
    cards.set(1, bus_id="00000000:41:00.0")

    def swapped() -> None:
        cards.gpus.reverse()
        cards.write()

    before, after = cards.read(swapped)
    assert [(g["uuid"], g["index"]) for g in after["gpus"]] == [(UUIDS[1], 0), (UUIDS[0], 1)]
    assert before["uses"] == after["uses"] == [[5, UUIDS[1], 9 * GIB]]
    assert after["gpus"][0]["pci"] == "00000000:41:00.0"


def test_power_limits_are_those_in_force(cards: Cards) -> None:
    readings = cards.read(lambda: cards.set(0, limit_mw=220500, power_mw=101250))
    assert [r["gpus"][0]["power_limit_w"] for r in readings] == [300.0, 220.5]
    assert readings[1]["gpus"][0]["power_w"] == 101.25


def limits(reading: Any) -> list[tuple[float, str]]:
    return [(g["power_limit_w"], g["trouble"]) for g in reading["gpus"]]


def test_a_power_limit_is_set_only_where_it_is_asked_for(cards: Cards) -> None:
    (left,) = cards.read()
    assert limits(left) == [(300.0, "")] * 2
    (asked,) = cards.read(limit_w=250)
    assert limits(asked) == [(250.0, "")] * 2
    (same,) = cards.read(limit_w=300)
    assert limits(same) == [(300.0, "")] * 2


def test_a_power_limit_that_is_not_permitted_or_not_possible_is_a_warning(cards: Cards) -> None:
    """The card is used on: a limit is a wish of whoever pays for the current."""
    cards.env["FAKE_NVML_NOT_ROOT"] = "1"
    first, again = cards.read(lambda: None, limit_w=250)
    said = "its power limit is 300 W, not the 250 W asked for: insufficient permissions; root may: nvidia-smi -pl"
    assert limits(first) == limits(again) == [(300.0, said)] * 2
    assert health(first) == [(UUIDS[0], True, False), (UUIDS[1], True, False)]
    del cards.env["FAKE_NVML_NOT_ROOT"]
    (low,) = cards.read(limit_w=50)
    said = "its power limit is 300 W, not the 50 W asked for: the card takes 200 to 700 W"
    assert limits(low) == [(300.0, said)] * 2


@pytest.mark.parametrize(
    ("facts", "healthy", "trouble"),
    [
        ({"ecc": 0, "remap": [0, 0]}, True, ""),
        ({"ecc": 1}, False, "1 memory error was not corrected since its driver was loaded"),
        ({"ecc": 12, "remap": [1, 0]}, False, "12 memory errors were not corrected"),
        ({"ecc": 0, "remap": [1, 0]}, True, "rows of its memory are remapped at its next reset"),
        ({"ecc": 0, "remap": [0, 1]}, False, "could not be remapped: the card needs service"),
        ({"ecc": 0, "retire_pending": 1}, False, "pages of its memory wait to be retired"),
        ({"mem_error": 16}, False, "it does not answer: GPU requires restart"),
    ],
)
def test_memory_errors_keep_new_work_away_and_are_told(
    cards: Cards, facts: dict[str, Any], healthy: bool, trouble: str
) -> None:
    cards.set(0, **facts)
    (reading,) = cards.read()
    first, other = reading["gpus"]
    assert (first["healthy"], first["lost"]) == (healthy, False)
    assert trouble in first["trouble"]
    assert bool(first["trouble"]) is bool(trouble)
    assert (other["healthy"], other["trouble"]) == (True, "")


# ---------------------------------------------------------------- MIG


def test_mig_devices_are_gpus_of_their_own_and_their_card_is_not_one(cards: Cards) -> None:
    cards.set(0, **MIG)
    (reading,) = cards.read()
    assert [(g["uuid"], g["index"], g["name"], g["memory"]) for g in reading["gpus"]] == [
        (UUIDS[1], 1, "NVIDIA Fake 80GB", 24 * GIB),
        ("MIG-1111", 100, "NVIDIA A100-SXM4-40GB MIG 1g.5gb", 5 * GIB),
        ("MIG-3333", 102, "A100 MIG 2g.10gb", 10 * GIB),
    ]
    assert all(g["healthy"] and g["pci"] for g in reading["gpus"])
    assert reading["gpus"][1]["memory_used"] == GIB
    assert reading["uses"] == [[7, "MIG-1111", GIB]]


def test_a_card_in_mig_mode_without_parts_says_so(cards: Cards) -> None:
    cards.set(0, mig=1)
    (reading,) = cards.read()
    assert health(reading)[0] == (UUIDS[0], False, False)
    assert "nvidia-smi mig -cgi" in reading["gpus"][0]["trouble"]


def test_a_card_taken_apart_or_put_together_on_purpose_is_not_lost(cards: Cards) -> None:
    one = [{"uuid": "MIG-1111", "mem_total": 5 * GIB}]
    whole, parts, fewer, again = cards.read(
        lambda: cards.set(0, **MIG),
        lambda: cards.set(0, mig_devices=one),
        lambda: cards.set(0, mig=0, mig_devices=None),
    )
    assert [g["uuid"] for g in whole["gpus"]] == [*UUIDS]
    assert [g["uuid"] for g in parts["gpus"]] == [UUIDS[1], "MIG-1111", "MIG-3333"]
    assert [g["uuid"] for g in fewer["gpus"]] == [UUIDS[1], "MIG-1111"]
    assert health(again) == [(UUIDS[0], True, False), (UUIDS[1], True, False)]


def test_f72_with_its_card_every_part_is_lost(cards: Cards) -> None:
    cards.set(0, **MIG)
    _, lost, found = cards.read(lambda: cards.lose(0), lambda: cards.find(0))
    assert {u: gone for u, _, gone in health(lost) if u.startswith("MIG")} == {
        "MIG-1111": True,
        "MIG-3333": True,
    }
    assert all(fine for _, fine, _ in health(found))


# ---------------------------------------------------------------- one memory for host and GPU


def test_a_gpu_without_memory_of_its_own_has_the_hosts(cards: Cards, tmp_path: Path) -> None:
    """GB10 (DGX Spark): "not supported" is no lost card (dra-driver-nvidia-gpu#1073, nvtop#411)."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text(
        "MemTotal:       127600748 kB\nMemFree:  9 kB\nMemAvailable:   118566368 kB\n"
    )
    cards.gpus = [{"uuid": "GPU-gb10", "name": "NVIDIA GB10", "mem_error": 3}]
    cards.write()
    reading, told = cards.read(
        lambda: cards.set(0, mem_error=None, mem_total=127600748 << 10), root=tmp_path
    )
    for gpu in (reading["gpus"][0], told["gpus"][0]):  # some drivers tell the host's memory
        assert (gpu["memory"], gpu["unified"], gpu["healthy"]) == (127600748 << 10, True, True)
        used = (127600748 - 118566368) << 10
        assert gpu["memory_used"] == used // (64 << 20) * (64 << 20)


def test_without_a_word_about_the_hosts_memory_it_is_not_healthy(
    cards: Cards, tmp_path: Path
) -> None:
    cards.set(0, mem_error=3)
    (reading,) = cards.read(root=tmp_path)
    assert health(reading)[0] == (UUIDS[0], False, False)


# ---------------------------------------------------------------- the driver away and back (F59)


def test_f59_nvml_away_and_back(cards: Cards) -> None:
    """`init_error` hits a library that is opened anew; every card mute at once is the access, not the hardware."""

    def mute() -> None:
        for i in range(2):
            cards.set(i, error=999)

    def loud() -> None:
        for i in range(2):
            cards.set(i, error=None)

    seen = cards.read(mute, lambda: cards.write(init_error=999), loud)
    assert [r["gpus"] is None for r in seen] == [False, True, True, False]
    assert "Unknown Error (the devices of a container" in seen[1]["error"]
    assert "Unknown Error" in seen[2]["error"]
    assert seen[3]["error"] == ""
    assert health(seen[3]) == [(UUIDS[0], True, False), (UUIDS[1], True, False)]


def test_f59_one_mute_card_among_others_is_that_cards_trouble_and_not_lost(cards: Cards) -> None:
    cards.use(1, 5 * GIB)
    _, mute, lost = cards.read(lambda: cards.set(1, error=999), cards.lose)
    assert health(mute) == [(UUIDS[0], True, False), (UUIDS[1], False, False)]
    card = mute["gpus"][1]
    assert card["trouble"] == "it does not answer: Unknown Error"
    assert (card["memory"], card["memory_used"], card["pci"]) == (
        24 * GIB,
        5 * GIB,
        "00000000:02:00.0",
    )
    assert mute["blind"] == [UUIDS[1]]  # nobody sees memory come back there
    card = lost["gpus"][1]
    assert (card["memory"], card["memory_used"], lost["blind"]) == (24 * GIB, 0, [])


def test_f59_all_cards_gone_at_once_is_not_all_lost(cards: Cards) -> None:
    def none() -> None:
        cards.path.write_text('{"gpus": [], "driver": "570.86.15"}')

    _, away, back = cards.read(none, cards.write)
    assert (away["gpus"], away["error"]) == (
        None,
        "an NVIDIA card is here, and its driver lists none",
    )
    assert health(back) == [(UUIDS[0], True, False), (UUIDS[1], True, False)]


def test_all_cards_said_to_be_lost_are_lost(cards: Cards) -> None:
    def both() -> None:
        cards.lose(0)
        cards.lose(1)

    _, lost = cards.read(both)
    assert health(lost) == [(UUIDS[0], False, True), (UUIDS[1], False, True)]


def test_a_driver_that_is_replaced_under_the_agent_is_told(cards: Cards) -> None:
    def mute() -> None:
        for i in range(2):
            cards.set(i, error=999)
        cards.write(init_error=18)

    def new() -> None:
        for card in cards.gpus:
            card.pop("error", None)
        cards.write(driver="580.10.01")

    _, away, told, back = cards.read(mute, lambda: None, new)
    assert away["gpus"] is None
    assert (
        "version mismatch (the driver was replaced under the running kernel module" in told["error"]
    )
    assert {g["driver"] for g in back["gpus"]} == {"580.10.01"}


# ---------------------------------------------------------------- the figures of docs/gpu-notes.md


def test_the_program_that_measures_a_real_card_works_on_made_up_ones(cards: Cards) -> None:
    """`scripts/gpu_facts.py kill`: it waits for the memory to settle, ends what it started, and says where it was."""
    facts = [sys.executable, str(ROOT / "scripts/gpu_facts.py")]
    env = {**os.environ, **cards.env, "PYTHONPATH": str(ROOT)}
    said = subprocess.run([*facts, "read"], env=env, capture_output=True, text=True, check=True)
    assert json.loads(said.stdout[: said.stdout.rindex("}") + 1])["gpus"][0]["uuid"] == UUIDS[0]
    tells = cards.path.with_suffix(".pid")
    engine = ["sh", "-c", f'echo "$CUDA_VISIBLE_DEVICES $$" > {tells}; exec sleep 60']
    with subprocess.Popen(
        [*facts, "kill", UUIDS[1], "--", *engine], env=env, stdout=subprocess.PIPE, text=True
    ) as program:
        until(lambda: tells.exists() and tells.read_text().endswith("\n"), "its start")
        seen, pid = tells.read_text().split()
        cards.use(1, 3 * GIB, (int(pid), 3 * GIB))
        until(lambda: not alive(int(pid)), "its end")
        cards.use(1, 0)
        assert program.stdout is not None
        words = program.stdout.read()
    assert (seen, program.returncode) == (UUIDS[1], 0), words
    assert f"pid {pid} held 3072 MiB of {UUIDS[1]}" in words
    assert "memory back" in words
    assert words.endswith("pinned by its uuid: yes\n")


def test_a62_who_is_near_to_whom_is_told(cards: Cards, tmp_path: Path) -> None:
    """The kernel's -1 says that it does not know (sysfs-bus-pci, numa_node); a link is between two."""
    for bus, numa in (("01", "1"), ("02", "-1")):
        device = tmp_path / f"sys/bus/pci/devices/0000:{bus}:00.0"
        device.mkdir(parents=True)
        (device / "numa_node").write_text(f"{numa}\n")
    cards.set(0, nvlink=[1])
    cards.set(1, nvlink=[0])
    (reading,) = cards.read(root=tmp_path)
    assert [(g["numa"], g["nvlink"]) for g in reading["gpus"]] == [
        (1, [UUIDS[1]]),
        (None, [UUIDS[0]]),
    ]


def test_cards_that_are_not_linked_and_parts_of_one_are_near_to_nobody(cards: Cards) -> None:
    cards.set(0, **MIG)
    (reading,) = cards.read()
    assert {(g["numa"], tuple(g["nvlink"])) for g in reading["gpus"]} == {(None, ())}
