"""One control on one inventory (F17), a new epoch at every acquisition (F33)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from llmgw.control.lease import FileLease, Flock, LeaseLostError, lease
from llmgw.errors import LlmgwError


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


@pytest.mark.parametrize("spec", ["etcd://h:2379", "zookeeper"])
def test_other_leases_are_refused(spec: str, tmp_path: Path) -> None:
    with pytest.raises(LlmgwError, match=r"not supported yet|neither file nor etcd"):
        lease(spec, tmp_path / "i.db", Epochs())
