"""The state dir: one agent, one node id, one machine."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from llmgw.agent.identity import COPY, FILE, StateDirError, open_state_dir


def test_the_id_stays_and_the_instance_does_not(tmp_path: Path) -> None:
    first = open_state_dir(tmp_path / "a", "m1")
    first.remember_boot("b1")
    first.lock.close()
    second = open_state_dir(tmp_path / "a", "m1")
    assert (second.node_id, second.boot_before) == (first.node_id, "b1")
    assert second.instance != first.instance
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "a/identity.json").stat().st_mode & 0o777 == 0o600
    second.lock.close()
    with open_state_dir(tmp_path / "b", "m1").lock:
        pass


def test_a_boot_is_written_once(tmp_path: Path) -> None:
    """A restart on a full disk must find nothing that it has to write."""
    first = open_state_dir(tmp_path, "m1")
    first.remember_boot("b1")
    first.lock.close()
    written = (tmp_path / "identity.json").stat().st_ino
    second = open_state_dir(tmp_path, "m1")
    second.remember_boot("b1")
    assert (tmp_path / "identity.json").stat().st_ino == written
    second.remember_boot("b2")
    assert (tmp_path / "identity.json").stat().st_ino != written
    second.lock.close()


def test_a_second_agent_is_told_who_is_there(tmp_path: Path) -> None:
    """F51."""
    with open_state_dir(tmp_path, "m1").lock, pytest.raises(StateDirError) as refused:
        open_state_dir(tmp_path, "m1")
    assert f"in use by another agent, pid {os.getpid()}" in refused.value.message
    assert "--state-dir" in refused.value.hint


def test_a_cloned_disk_is_a_new_node_and_adopts_nothing(tmp_path: Path) -> None:
    """F53: the records of the other machine are put aside, its token too."""
    first = open_state_dir(tmp_path, "m1")
    first.lock.close()
    (tmp_path / "records").mkdir()
    (tmp_path / "records/x@0@i.json").write_text("{}")
    (tmp_path / "token.json").write_text("{}")
    clone = open_state_dir(tmp_path, "m2")
    clone.lock.close()
    assert clone.node_id != first.node_id
    assert clone.boot_before == ""
    assert (tmp_path / f"records.of-{first.node_id}/x@0@i.json").exists()
    assert not (tmp_path / "records").exists()
    assert not (tmp_path / "token.json").exists()
    again = open_state_dir(tmp_path, "m2")
    again.lock.close()
    assert again.node_id == clone.node_id


#: What a power cut, a hand or a bad disk may leave; None: the file is gone.
DAMAGE = [
    None,
    b"",
    b"\0\0",
    b"{",
    b"[]",
    b'{"node_id": 7}',
    b'{"machine_id": "m1"}',
    b'{"node_id": "", "machine_id": "m1"}',
    b'{"node_id": "../../x", "machine_id": "m1"}',
    b'{"node_id": "%s", "machine_id": "m1"}' % (b"a" * 500),
    b"\xff\xfe",
    b"[" * 5000,
]


def spoil(path: Path, damage: bytes | None) -> None:
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage)


@pytest.mark.parametrize("damage", DAMAGE, ids=str)
@pytest.mark.parametrize("which", [FILE, COPY])
def test_either_file_tells_the_node_id(tmp_path: Path, which: str, damage: bytes | None) -> None:
    """Engines carry the id: under a new one nobody would take up those whose records are gone. Both are whole again."""
    first = open_state_dir(tmp_path, "m1")
    first.remember_boot("b1")
    first.lock.close()
    spoil(tmp_path / which, damage)
    again = open_state_dir(tmp_path, "m1")
    again.lock.close()
    assert (again.node_id, again.boot_before) == (first.node_id, "b1")
    assert (tmp_path / FILE).read_bytes() == (tmp_path / COPY).read_bytes()


@pytest.mark.parametrize("damage", DAMAGE, ids=str)
def test_with_both_lost_it_is_a_new_node(tmp_path: Path, damage: bytes | None) -> None:
    first = open_state_dir(tmp_path, "m1")
    first.lock.close()
    spoil(tmp_path / FILE, damage)
    spoil(tmp_path / COPY, damage)
    again = open_state_dir(tmp_path, "m1")
    again.lock.close()
    assert again.node_id not in (first.node_id, "")
    assert again.boot_before == ""
    assert (tmp_path / "identity.unreadable").exists() is (damage is not None)


def test_the_copy_of_a_cloned_disk_is_not_believed_either(tmp_path: Path) -> None:
    """F53."""
    first = open_state_dir(tmp_path, "m1")
    first.lock.close()
    (tmp_path / "records").mkdir()
    (tmp_path / "records/x@0@i.json").write_text("{}")
    (tmp_path / FILE).unlink()
    clone = open_state_dir(tmp_path, "m2")
    clone.lock.close()
    assert clone.node_id != first.node_id
    assert (tmp_path / f"records.of-{first.node_id}/x@0@i.json").exists()
    again = open_state_dir(tmp_path, "m2")
    again.lock.close()
    assert again.node_id == clone.node_id


def test_killed_between_putting_the_records_aside_and_a_new_id(tmp_path: Path) -> None:
    """F53: the next start ends what this one began."""
    first = open_state_dir(tmp_path, "m1")
    first.lock.close()
    (tmp_path / f"records.of-{first.node_id}").mkdir()
    (tmp_path / f"records.of-{first.node_id}/x@0@i.json").write_text("{}")
    clone = open_state_dir(tmp_path, "m2")
    clone.lock.close()
    assert clone.node_id != first.node_id


def test_a_full_disk_keeps_no_agent_from_the_id_that_is_left(tmp_path: Path) -> None:
    first = open_state_dir(tmp_path, "m1")
    first.lock.close()
    (tmp_path / FILE).unlink()
    (tmp_path / f"{FILE}.new").mkdir()  # nothing can be written
    open_state_dir(tmp_path, "m1").lock.close()
    assert not (tmp_path / FILE).exists()
    (tmp_path / f"{FILE}.new").rmdir()
    (tmp_path / f"{COPY}.new").mkdir()
    again = open_state_dir(tmp_path, "m1")
    again.lock.close()
    assert again.node_id == first.node_id
    assert (tmp_path / FILE).exists()


def test_a_state_dir_that_cannot_be_had(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StateDirError) as refused:
        open_state_dir(tmp_path / "file/agent")
    assert "cannot be used: Not a directory" in refused.value.message
    with pytest.raises(StateDirError):
        open_state_dir(Path("/proc/agent"))


def test_a_machine_without_an_id_has_none(tmp_path: Path) -> None:
    with open_state_dir(tmp_path).lock:
        pass


def test_a_copy_of_the_folder_on_the_same_host(tmp_path: Path) -> None:
    """Both would sweep the same markers and take each other's engines up."""
    with open_state_dir(tmp_path / "a", "m1").lock:
        shutil.copytree(tmp_path / "a", tmp_path / "b")
        with pytest.raises(StateDirError) as refused:
            open_state_dir(tmp_path / "b", "m1")
    assert "is a copy: another agent with node id" in refused.value.message
    assert "remove" in refused.value.hint
    open_state_dir(tmp_path / "b", "m1").lock.close()


def test_only_the_owner_may_open_the_lock(tmp_path: Path) -> None:
    open_state_dir(tmp_path / "a", "m1").lock.close()
    assert (tmp_path / "a/agent.lock").stat().st_mode & 0o777 == 0o600


def test_a_boot_id_that_cannot_be_written_is_said_and_keeps_no_agent_from_its_engines(
    tmp_path: Path,
) -> None:
    mine = open_state_dir(tmp_path, "m")
    assert mine.remember_boot("b1") == ""
    mine.lock.close()
    mine = mine._replace(state_dir=tmp_path / "gone")
    assert "could not be written: No such file or directory" in mine.remember_boot("b2")


def test_f56_what_a_newer_agent_writes_besides_makes_no_new_node(tmp_path: Path) -> None:
    """Its engines carry the old id: a new one would leave them unmanaged after a downgrade."""
    first = open_state_dir(tmp_path, "m1")
    first.lock.close()
    known = json.loads((tmp_path / "identity.json").read_bytes())
    (tmp_path / "identity.json").write_text(json.dumps(known | {"format": 2, "keys": [1]}))
    again = open_state_dir(tmp_path, "m1")
    again.lock.close()
    assert again.node_id == first.node_id


@pytest.mark.parametrize(("then", "now"), [("", "m1"), ("m1", "")])
def test_f53_a_machine_id_that_came_or_went_is_no_other_machine(
    tmp_path: Path, then: str, now: str
) -> None:
    first = open_state_dir(tmp_path, then)
    first.lock.close()
    (tmp_path / "records").mkdir(exist_ok=True)
    again = open_state_dir(tmp_path, now)
    again.lock.close()
    assert again.node_id == first.node_id
    assert (tmp_path / "records").exists()
    other = open_state_dir(tmp_path, "m2")
    other.lock.close()
    assert other.node_id != first.node_id
