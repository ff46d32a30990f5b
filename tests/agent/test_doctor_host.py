"""`llmgw doctor`: kernel, limits, memory, clock, control, and what the catalog names."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from llmgw.agent.doctor.catalog import catalog
from llmgw.agent.doctor.host import host
from llmgw.agent.doctor.look import Answer
from llmgw.agent.doctor.peers import peers
from llmgw.core.types.catalog import Catalog, Model, Profile
from tests.agent.machine import AGENT, DATE, NOON_S, Box, lines, machine

GIB = 1 << 30


@pytest.fixture
def box(tmp_path: Path) -> Box:
    return partial(machine, tmp_path)


# ------------------------------------------------ the machine


def test_the_kernel_gives_pidfds_or_not(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    assert lines(host, box(), "kernel") == ["ok 6.8.0, with pidfd"]

    def refuse(_pid: int) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    assert lines(host, box(), "kernel")[0].startswith(
        "fail kernel 6.8.0 gives no pidfd ([Errno 38]"
    )


@pytest.mark.parametrize(
    ("options", "user", "said"),
    [
        ("rw,hidepid=invisible", 7, "warn /proc is mounted with hidepid=invisible: "),
        ("rw,hidepid=2", 7, "warn /proc is mounted with hidepid=2: "),
        ("rw,hidepid=0", 7, "ok "),
        ("rw,hidepid=2", 0, "ok "),
    ],
)
def test_processes_that_are_hidden_from_us(box: Box, options: str, user: int, said: str) -> None:
    """F45."""
    node = box({"proc/mounts": f"proc /proc proc {options} 0 0\n"}, user=user)
    assert lines(host, node, "proc")[0].startswith(said)


def test_without_a_list_of_mounts_nothing_is_said_of_proc(box: Box) -> None:
    assert lines(host, box({"proc/mounts": ""}), "proc")[0].startswith("skip ")


def limits(files: str = "1024 1048576", locked: str = "8388608 8388608") -> dict[str, str]:
    head = f"{'Limit':26}{'Soft Limit':21}{'Hard Limit':21}Units\n"
    rows = [("Max open files", files, "files"), ("Max locked memory", locked, "bytes")]
    text = head + "".join(f"{n:26}{' '.join(v.split())} {u}\n" for n, v, u in rows)
    return {f"proc/{AGENT}/limits": text}


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ("1024 1048576", "ok 1024 open files a process (hard limit 1048576)"),
        ("1024 unlimited", "ok 1024 open files a process (hard limit unlimited)"),
        ("1024 1024", "warn 1024 open files a process (hard limit 1024): engines with many"),
    ],
)
def test_open_files_of_the_agent_that_engines_inherit(box: Box, files: str, said: str) -> None:
    assert lines(host, box(limits(files)), "files")[0].startswith(said)


def test_locked_memory_matters_with_rdma_cards(box: Box) -> None:
    assert lines(host, box(limits()), "memlock")[0].startswith("skip ")
    card = {"sys/class/infiniband/mlx5_0/node_type": "1: CA\n"}
    (said,) = lines(host, box(limits() | card), "memlock")
    assert said.startswith("warn 8388608 bytes may be locked, and RDMA (mlx5_0) registers")
    free = limits(locked="unlimited unlimited")
    assert lines(host, box(free | card), "memlock") == ["ok unlimited, for RDMA (mlx5_0)"]


def test_memory_that_a_cgroup_does_not_allow(box: Box) -> None:
    assert lines(host, box(), "memory") == ["ok 32.0 GiB of 64.0 GiB available"]
    files = {
        f"proc/{AGENT}/cgroup": "0::/a.slice/b.service\n",
        "sys/fs/cgroup/a.slice/memory.max": f"{8 * GIB}\n",
        "sys/fs/cgroup/a.slice/b.service/memory.max": "max\n",
    }
    (said,) = lines(host, box(files), "memory")
    assert said.startswith(
        "warn 32.0 GiB of 64.0 GiB available, but cgroup /a.slice allows 8.0 GiB"
    )


def test_memory_that_a_cgroup_of_the_old_kind_does_not_allow(box: Box) -> None:
    """In a container the path is the host's, and the limit stands at the root of what can be seen."""
    files = {
        f"proc/{AGENT}/cgroup": "4:memory:/docker/abc\n0::/\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{4 * GIB}\n",
    }
    assert "cgroup / allows 4.0 GiB" in lines(host, box(files), "memory")[0]
    files["sys/fs/cgroup/memory/memory.limit_in_bytes"] = f"{(1 << 63) - 4096}\n"
    assert lines(host, box(files), "memory")[0].startswith("ok ")


def test_strict_overcommit_is_said(box: Box) -> None:
    memory = "MemTotal: 1048576 kB\nMemAvailable: 9 kB\nCommitLimit: 2097152 kB\nCommitted_AS: 1048576 kB\n"
    files = {"proc/meminfo": memory, "proc/sys/vm/overcommit_memory": "2\n"}
    (said,) = lines(host, box(files), "overcommit")
    assert said.startswith("warn vm.overcommit_memory=2 leaves 1.0 GiB to reserve")
    files["proc/sys/vm/overcommit_memory"] = "0\n"
    assert lines(host, box(files), "overcommit") == []


def test_no_meminfo(box: Box) -> None:
    assert lines(host, box({"proc/meminfo": ""}), "memory")[0].startswith("skip ")


# ------------------------------------------------ clock, control, token


@pytest.mark.parametrize(("wrong", "level"), [(None, "skip"), (True, "warn"), (False, "ok")])
def test_the_kernels_word_on_the_clock(box: Box, wrong: bool | None, level: str) -> None:
    assert lines(peers, box(unsynchronised=lambda: wrong), "clock")[0].startswith(f"{level} ")


@pytest.mark.parametrize(
    ("off_s", "said"),
    [(4.0, ""), (90.0, "this clock is 90 s ahead of "), (-90.0, "this clock is 90 s behind ")],
)
def test_a_clock_unlike_controls(box: Box, off_s: float, said: str) -> None:
    found = lines(peers, box(time_s=lambda: NOON_S + off_s), "clock")[1:]
    assert [f[: len(said) + 5] for f in found] == ([f"warn {said}"] if said else [])


def test_a_control_that_does_not_say_its_time(box: Box) -> None:
    node = box(ask=lambda _url, _path: Answer(200, "no date"))
    assert len(lines(peers, node, "clock")) == 1


def test_a_control_that_does_not_answer(box: Box) -> None:
    node = box(
        ask=lambda _url, _path: Answer(0, error="its certificate is not trusted", hint="--pin")
    )
    (found,) = (c for c in peers(node) if c.name == "control")
    assert (found.level, found.hint) == ("fail", "--pin")  # no firewall, nothing to start
    node = box(ask=lambda _url, _path: Answer(0, error="Connection refused"))
    assert lines(peers, node, "control")[0].startswith(
        "fail http://c:8801 does not answer: Connection refused - start control"
    )
    assert lines(peers, node, "token") == []


@pytest.mark.parametrize(
    ("status", "token", "said"),
    [
        (410, "t0k", "ok http://c:8801 takes the node token"),
        (410, "", "ok http://c:8801 takes us without a token"),
        (401, "t0k", "fail http://c:8801: the node token is wrong - LLMGW_NODE_TOKEN"),
        (401, "", "fail http://c:8801: a node token is needed and there is none - LLMGW"),
        (0, "t0k", "warn http://c:8801 does not answer: late - try again"),
    ],
)
def test_whether_control_takes_our_token(box: Box, status: int, token: str, said: str) -> None:
    def ask(_url: str, path: str) -> Answer:
        return Answer(200, DATE) if path == "/healthz" else Answer(status, error="late")

    assert lines(peers, box(ask=ask, token=token), "token")[0].startswith(said)


# ------------------------------------------------ the catalog


def of(**profile: Any) -> Catalog:
    main = Profile(**{"name": "main", "engine": "llama-cpp", **profile})
    return Catalog(models={"alpha": Model(name="alpha", profiles=(main,))})


def test_programs_by_the_path_of_the_running_agent(box: Box, tmp_path: Path) -> None:
    node = box(catalog=of(command=("llama-server", "-m")))
    (said,) = lines(catalog, node, "engines")
    assert said.startswith(
        f"warn llama-server (llama-cpp): no such program on the PATH ({tmp_path}"
    )
    program = tmp_path / "bin" / "llama-server"
    program.parent.mkdir()
    program.touch(mode=0o755)
    assert lines(catalog, node, "engines") == ["ok llama-server found"]


def test_a_program_that_only_the_agent_can_expand_is_not_looked_for(box: Box) -> None:
    node = box(catalog=of(command=("${env.ENGINE}",)))
    assert lines(catalog, node, "engines")[0].startswith("skip ")


def test_weights_that_are_not_here(box: Box, tmp_path: Path) -> None:
    file = tmp_path / "a.gguf"
    node = box(catalog=of(command=("sh",), weights={"box1": str(file), "default": "org/name"}))
    (said,) = lines(catalog, node, "weights")
    assert said.startswith(f"warn {file} (alpha/main) not found on box1")
    file.touch()
    assert lines(catalog, node, "weights") == ["ok the file that the catalog names is here"]
    other = replace(node, name="box2")
    assert lines(catalog, other, "weights") == ["skip the catalog names no file of weights"]


def test_a_container_runtime_that_the_catalog_uses(box: Box, tmp_path: Path) -> None:
    node = box(catalog=of(launcher="podman", image="x"))
    assert lines(catalog, node, "podman")[0].startswith("warn podman is not on the PATH (")
    assert lines(catalog, node, "docker") == []
    program = tmp_path / "bin" / "podman"
    program.parent.mkdir()
    program.touch(mode=0o755)
    assert lines(catalog, node, "podman") == [f"ok {program}"]
