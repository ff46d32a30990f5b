"""One control on one inventory (F17), a new epoch at every acquisition (F33)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from llmgw.control.lease import FileLease, Flock, Holder, LeaseLostError, lease, store
from llmgw.errors import LlmgwError, UsageError


class Epochs:
    def __init__(self) -> None:
        self.stored = 4

    def epoch(self) -> int:
        return self.stored

    def write_epoch(self, epoch: int, leader_uuid: str) -> None:
        assert leader_uuid
        self.stored = epoch


def test_f33_every_acquisition_is_a_new_epoch_above_all_that_were_seen(tmp_path: Path) -> None:
    held = FileLease(tmp_path / "i.db", Epochs())
    assert [held.acquire("a", 0), held.acquire("a", 0), held.acquire("a", 41)] == [5, 6, 42]
    assert held.deadline(0.0) is None
    held.release()


def test_f17_a_second_control_is_told_who_has_the_inventory(tmp_path: Path) -> None:
    held = FileLease(tmp_path / "i.db", Epochs())
    code = (
        "import sys; from pathlib import Path; from llmgw.control.lease import Flock; "
        "Flock(Path(sys.argv[1])).take()"
    )
    other = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "i.db")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"in use by another control, pid {os.getpid()}" in other.stderr
    held.release()
    with Flock(tmp_path / "i.db") as lock:
        assert lock.ours


def test_a_full_disk_does_not_keep_the_lock_from_anybody(tmp_path: Path) -> None:
    """The pid in it is for people: a control that cannot write it was a bug report, exit 70."""
    code = (
        "import resource, sys; from pathlib import Path; from llmgw.control.lease import Flock; "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)); Flock(Path(sys.argv[1])).take()"
    )
    words = [sys.executable, "-c", code, str(tmp_path / "i.db")]
    assert subprocess.run(words, check=False).returncode == 0


def test_a_removed_lock_file_is_taken_again_or_the_lease_is_lost(tmp_path: Path) -> None:
    held = FileLease(tmp_path / "i.db", Epochs())
    (tmp_path / "i.db.lock").unlink()
    held.renew()
    (tmp_path / "i.db.lock").unlink()
    with Flock(tmp_path / "i.db"), pytest.raises(LeaseLostError, match="in use by another control"):
        held.renew()


def test_a_folder_that_cannot_be_written_is_one_clear_error() -> None:
    with pytest.raises(LlmgwError, match="cannot lock the inventory"):
        Flock(Path("/proc/nothing/i.db")).take()


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ("zookeeper", "neither file nor etcd"),
        ("etcd://", "it names no server"),
        ("etcd://h", "'h' is not HOST:PORT"),
        ("etcd://me:secret@h:1", "it holds a user"),
        ("etcd://h:1?ttl=1s", "ttl=1s is no time from 2s to 300s"),
        ("etcd://h:1?ttl=never", "ttl=never is no time"),
        ("etcd://h:1?ttl=ten", "ttl=ten is no time"),
        ("etcd://h:1?tls=yes", "it has no option 'tls'"),
        ("etcd://h:1?ca=/x.pem", "ca= is for TLS"),
        ("etcds://h:1?key=/x.pem", "key= without cert="),
    ],
)
def test_a_lease_that_cannot_work_is_refused_at_once(spec: str, why: str, tmp_path: Path) -> None:
    """Secrets come by environment: `ps` shows arguments, and so they are not repeated here either."""
    with pytest.raises(UsageError) as refused:
        lease(spec, tmp_path / "i.db", Epochs())
    assert why in refused.value.message
    assert "secret" not in refused.value.message


def test_what_a_lease_in_etcd_may_say() -> None:
    env = {"LLMGW_ETCD_USER": "llmgw", "LLMGW_ETCD_PASSWORD": "pw"}
    found = store("etcds://a:1,b:2,c:3/fleet?ttl=9s&ca=/ca.pem", env)
    assert found.servers == ("https://a:1", "https://b:2", "https://c:3")
    assert (found.prefix, found.ttl_s, found.ca) == ("fleet", 9.0, "/ca.pem")
    assert (found.user, found.password, found.call_s) == ("llmgw", "pw", 1.0)
    with pytest.raises(LlmgwError, match="the TLS files for etcd cannot be used"):
        found.tls()
    plain = store("etcd://a:1", {})
    assert (plain.prefix, plain.ttl_s, plain.tls()) == ("llmgw", 10.0, False)


def test_f17_a_standby_waits_for_the_file_and_knows_who_has_it(tmp_path: Path) -> None:
    """In a process of its own each: a flock is one process's."""
    first = FileLease(tmp_path / "i.db", Epochs())
    first.about = Holder("box:1", "http://127.0.0.1:8801")
    code = """
import asyncio, sys
from pathlib import Path
from llmgw.control.lease import FileLease
from llmgw.errors import LlmgwError
path = Path(sys.argv[1])
held = FileLease(path, None, standby=True)
assert not held.held
print(held.holder, flush=True)
sys.stdin.readline()
woken = []
asyncio.run(held.run(lambda: woken.append(1), lambda: 0))
assert held.held and woken and held.holder is None
print("leads", flush=True)
"""
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "i.db")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        assert other.stdin is not None
        said = other.stdout.readline()
        assert "box:1" in said
        assert "http://127.0.0.1:8801" in said
        first.release()
        other.stdin.write("\n")
        other.stdin.flush()
        assert other.stdout.readline() == "leads\n"


def test_of_one_file_there_is_one_lease_by_any_name(tmp_path: Path) -> None:
    """Agents tell two controls of one file from two controls of two (`two_leaders`)."""
    (tmp_path / "link").symlink_to(tmp_path)
    one = FileLease(tmp_path / "i.db", Epochs())
    one.release()
    same = FileLease(tmp_path / "link" / "i.db", Epochs())
    same.release()
    other = FileLease(tmp_path / "j.db", Epochs())
    other.release()
    assert one.id == same.id != other.id
    assert one.id.startswith("file:")
