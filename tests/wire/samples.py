"""One value of each message, every field said; `record` writes them down, test_recorded.py checks that none lacks."""

from __future__ import annotations

from typing import Any

from llmgw.core.types.by_hand import Fact, Started
from llmgw.core.types.catalog import Ready, Restart, Stop
from llmgw.core.types.messages import (
    Capacity,
    Commands,
    Compute,
    DrainShard,
    Events,
    EventsReply,
    Fabric,
    Foreign,
    ForgetShard,
    Gpu,
    NodeReport,
    Peer,
    Refusal,
    Registered,
    Resources,
    SendReport,
    ShardReport,
    Start,
    StopShard,
    Take,
    Token,
)
from llmgw.core.types.node import NodeFacts
from llmgw.core.types.record import Record
from llmgw.core.types.routes import Demand, Heard, RouteKey, RouteModel, RouteReplica, RouteTable
from llmgw.core.types.sleep import Asleep, Doors, SleepShard, WakeShard

GIB = 1 << 30
NODE_ID, BOOT_ID = "5d0f2c8be0c14f6f9f1f3a0a54f3f0aa", "0c9e1c4e-9a0b-4f55-8d53-0d6f5c4f5f10"
SESSION = "f1e2d3c4b5a69788"
TOKEN = Token(12, "2f9c1e0b7a8d4c35")
GPU = Gpu(
    uuid="GPU-1111",
    index=1,
    name="NVIDIA GeForce RTX 3090",
    memory_bytes=24 * GIB,
    memory_used_bytes=19 * GIB,
    healthy=False,
    pci="00000000:01:00.0",
    driver="550.54",
    power_limit_w=300.0,
    power_w=212.5,
    compute_capability="8.6",
    vendor="nvidia",
    selector="1",
    unified=True,
    lost=True,
    trouble="it does not answer any more",
    numa=1,
    nvlink=("GPU-7d0c1f8e-2a3b-4c5d-8e9f-0a1b2c3d4e5f",),
    link="gen1 x8 of gen4 x16",
)
RESOURCES = Resources(
    gpu_memory_bytes=18 * GIB, host_memory_bytes=4 * GIB, cpu_cores=4.0, power_w=300.0
)
SHARD = ShardReport(
    shard="alpha-7k2m/0",
    replica="alpha-7k2m",
    incarnation="inc-alpha",
    attempt=2,
    rank=0,
    world_size=1,
    model="alpha",
    profile="q4",
    fingerprint="1:aaaa",
    artefact="/models/alpha.gguf",
    pool="fast",
    fabric="ib0",
    gpus=("GPU-1111",),
    hcas=("mlx5_0",),
    port=18000,
    ports={"metrics": 18001},
    endpoint="http://10.0.0.11:18000",
    state="ready",
    desired="running",
    resources=RESOURCES,
    compute=Compute(device="cuda", layers_gpu=49, layers_total=49, gpu_bytes=19_000_000_000),
    pid=4711,
    started_at="2026-01-01T00:00:00Z",
    last_request_age_s=12.5,
    progress=0.75,
    gpu_peak_bytes=18 << 30,
    host_peak_bytes=3 << 30,
    error="3 of the last 5 probes failed",
    gave_up=True,
    never_ran=True,
    sleep=1,
    asleep=Asleep(verified=True, freed_bytes=16 * GIB, rest_bytes=2 * GIB),
    node="box1",
    api_key="secret-of-the-engine",
    served_name="alpha",
)
GONE = ShardReport(
    shard="gone-3b4c/0",
    replica="gone-3b4c",
    incarnation="inc-gone",
    rank=0,
    model="gone",
    state="ready",
    port=18002,
)
DELTA = ShardReport(
    shard="delta-1/0",
    replica="delta-1",
    incarnation="inc-delta",
    rank=0,
    model="delta",
    profile="main",
    state="draining",
    desired="draining",
    port=18003,
    endpoint="http://10.0.0.11:18003",
)
UNREADABLE = ShardReport(
    shard="odd-1/0", replica="odd-1", rank=0, state="unknown", error="its record cannot be read"
)
REPORT = NodeReport(
    node="box1",
    protocol=1,
    node_id=NODE_ID,
    instance="a6b1f6de-5a0e-4c0c-9f5e-9f0b1d2c3e4f",
    registration=987_654_321,
    version="0.1.0",
    boot_id=BOOT_ID,
    epoch_seen=11,
    leader_uuid="0a1b2c3d",
    address="10.0.0.11",
    loopback=f"{BOOT_ID}:4026531840",
    inspect="https://10.0.0.11:8802",
    inspect_pin="sha256:" + "5" * 64,
    pools=("fast", "default"),
    labels={"rack": "7"},
    fabrics={"ib0": Fabric(address="10.1.0.11", hcas=("mlx5_0",))},
    circuit="office",
    reattached=True,
    follows=True,
    capacity=Capacity(
        cpu_cores=16.0, host_memory_bytes=64 * GIB, power_w=1200.0, ports=(18000, 18099)
    ),
    gpus=(GPU,),
    gpus_error="the driver does not answer",
    shards=(SHARD, GONE, DELTA, UNREADABLE),
    foreign=(
        Foreign(
            pid=4242,
            gpu="GPU-1111",
            memory_bytes=GIB,
            command="llama-server",
            port=8080,
            by_hand=Started(
                pid=4242,
                start_ticks=123_456,
                started_at="2026-01-01T00:00:00Z",
                argv=("llama-server", "-c", "16384"),
                cwd="/home/me",
                port=8080,
            ),
            shard="alpha-7k2m/0",
        ),
    ),
)
START = Start(
    shard="alpha-7k2m/0",
    replica="alpha-7k2m",
    incarnation="inc-alpha",
    model="alpha",
    profile="q4",
    attempt=2,
    rank=0,
    world_size=1,
    served_name="alpha-served",
    fingerprint="1:aaaa",
    weights="/models/alpha.gguf",
    launcher="exec",
    mounts=("/srv/hub:/root/.cache:ro",),
    image="none",
    engine="llama-server",
    command=("llama-server", "--port", "${port}", "--api-key", "${api_key}"),
    env={"HF_TOKEN": "${env.HF_TOKEN}"},
    pool="fast",
    fabric="ib0",
    gpus=("GPU-1111",),
    hcas=("mlx5_0",),
    port=18000,
    ports={"metrics": 18001},
    resources=RESOURCES,
    health="/healthz",
    compute="llama.cpp",
    ready=Ready(token=True, failures=2, of=4),
    start_timeout_s=600.0,
    stop=Stop(signal="INT", grace_s=30.0),
    restart=Restart(max=3, window_s=900.0, backoff_s=2.0),
    peers=(
        Peer(
            rank=1,
            node="box2",
            address="10.0.0.12",
            fabric_address="10.1.0.12",
            port=18000,
            group_port=18050,
        ),
    ),
    start_order="workers_first",
    after=(("beta-2/0", "inc-beta"),),
    api_key="secret-of-the-engine",
    insecure=True,
    sleep=Doors(
        level=1,
        asleep="/is_sleeping",
        sleep=("/sleep?level=1",),
        wake=('/wake_up {"tags": []}',),
        canary=True,
    ),
    seq=1,
    session=SESSION,
    epoch=12,
    leader_uuid=TOKEN.leader_uuid,
)


def _order(seq: int) -> dict[str, Any]:
    return {"seq": seq, "session": SESSION, "epoch": 12, "leader_uuid": TOKEN.leader_uuid}


COMMANDS = Commands(
    commands=(
        START,
        DrainShard(shard="delta-1/0", incarnation="inc-delta", reason="operator", **_order(2)),
        StopShard(
            shard="gone-3b4c/0",
            incarnation="inc-gone",
            reason="model_removed",
            grace_s=5.0,
            force=True,
            not_after="91ab 812.500",
            **_order(3),
        ),
        ForgetShard(shard="old-1/0", incarnation="inc-old", **_order(4)),
        SendReport(**_order(5)),
        Take(
            shard="alpha-7k2m/0",
            incarnation="inc-alpha",
            pid=4242,
            start_ticks=123_456,
            start=START,
            template_env=("LLAMA_ARG_LOG_VERBOSITY",),
            **_order(6),
        ),
        SleepShard(shard="alpha-7k2m/0", incarnation="inc-alpha", reason="idle", **_order(7)),
        WakeShard(shard="alpha-7k2m/0", incarnation="inc-alpha", reason="wanted", **_order(8)),
    ),
    leader=False,
    epoch=12,
)
EVENTS = Events(
    session=SESSION,
    n=17,
    applied=5,
    shards=(SHARD,),
    gone=(("old-1/0", "inc-old"),),
    gpus=(GPU,),
    gpus_error="the driver does not answer",
    foreign=REPORT.foreign,
    refused=(
        Refusal(
            seq=1,
            shard="alpha-7k2m/0",
            incarnation="inc-alpha",
            reason="port_in_use",
            resource="port 18000",
            why="port 18000 is in use by pid 4242",
            facts=(Fact("-c", "32768", "16384", same=False),),
        ),
    ),
    digest="9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    at="91ab 808.500",
)
EVENTS_REPLY = EventsReply(match=False, epoch=12, programs=("llama-server",))
REGISTERED = Registered(
    session=SESSION,
    epoch=12,
    leader_uuid=TOKEN.leader_uuid,
    leader=False,
    protocol=1,
    lease="file",
    read_only=True,
    programs=("llama-server",),
    verdicts=(
        {
            "shard": "alpha-7k2m/0",
            "incarnation": "inc-alpha",
            "verdict": "adopt",
            "reason": "drift",
            "why": "matches q4",
        },
    ),
)
ROUTES = RouteTable(
    version=12_000_007,
    partial=True,
    controls=("http://10.0.0.1:8801", "http://10.0.0.2:8801"),
    models={
        "alpha": RouteModel(
            aliases=("first",),
            kind="embedding",
            listed=False,
            context=32768,
            status="loading",
            why="loading on box1",
            progress=0.75,
            no_room="box1: GPU 0 has 4.0 of 24.0 GiB free, 40.0 needed",
            wait_timeout_s=120.0,
            max_in_flight=8,
            queue=16,
            sticky_prefix_bytes=1024,
            replicas=(
                RouteReplica(
                    replica="alpha-7k2m",
                    endpoint="http://10.0.0.11:18000",
                    loopback=f"{BOOT_ID}:4026531840",
                    incarnation="inc-alpha",
                    profile="q4",
                    state="draining",
                    weight=3,
                    api_key="secret-of-the-engine",
                    upstream_model="alpha-served",
                    unheard=True,
                    sleeps=True,
                ),
            ),
        ),
    },
    keys=(
        RouteKey(
            id="team",
            sha256="ab" * 32,
            models=("alpha",),
            limits={"per_minute": 60.0},
            rights=("upstream",),
        ),
    ),
)
DEMAND_REPLY = Heard(version=12_000_007, leader=False, acting=False, at="5f0c 812.5")

DEMAND = Demand(
    gateway="8d1d6f0a",
    n=99,
    table=12_000_007,
    in_flight={"alpha-7k2m": 2},
    waiting={"gamma": 1},
    waited={"gamma": 12.5},
    last_byte={"alpha-7k2m": 0.5},
    breaker={"alpha-7k2m": "half-open"},
    breaker_why={"alpha-7k2m": "alpha-7k2m answers 503"},
    answered={"alpha-7k2m": 0.5},
    ended=True,
    resting=("beta-3x9q",),
    heard="5f0c 812.5",
)
FACTS = NodeFacts(node="box1", node_id=NODE_ID, boot_id=BOOT_ID, address="10.0.0.11")
RECORD = Record(
    start=START,
    state="ready",
    desired="draining",
    attempt=2,
    intent=True,
    pid=4711,
    start_ticks=123_456,
    boot_id=BOOT_ID,
    started_at="2026-01-01T00:00:00Z",
    endpoint="http://10.0.0.11:18000",
    artefact="/models/alpha.gguf",
    api_key="secret-of-the-engine",
    ending="stopped",
    signalled="stop",
    grace_s=5.0,
    force=True,
    failures=(100.5, 200.5),
    lasting=1,
    gave_up=True,
    never_ran=True,
    error="3 of the last 5 probes failed",
    exit_code=-9,
    compute=SHARD.compute,
    nap="asleep",
    rest_bytes=2 * GIB,
    freed_bytes=16 * GIB,
    partial=True,
    by_hand=True,
)
