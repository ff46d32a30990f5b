"""The state dir: one agent, one node id, one machine."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from llmgw.agent.identity import StateDirError, open_state_dir


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


def test_a_torn_identity_is_a_new_node(tmp_path: Path) -> None:
    open_state_dir(tmp_path, "m1").lock.close()
    (tmp_path / "identity.json").write_bytes(b"\0\0")
    with open_state_dir(tmp_path, "m1").lock:
        assert (tmp_path / "identity.unreadable").exists()


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
    mine = mine._replace(path=tmp_path / "gone" / "identity.json")
    assert "could not be written: No such file or directory" in mine.remember_boot("b2")
