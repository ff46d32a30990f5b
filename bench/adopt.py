"""What adopting a whole fleet costs: decode + observe + decide, as a ratio to msgspec decoding the same bytes (P8).

`python -m bench.adopt [SHARDS...]` prints one line a size and a JSON result; ratios are medians of interleaved rounds
in one process. Measures only: it asserts nothing.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import statistics
import sys
import time
from collections.abc import Callable

import msgspec

from llmgw.core.adopt.survey import survey
from llmgw.core.reconcile.decide import decide
from llmgw.core.reconcile.fresh import Memory, started
from llmgw.core.reconcile.observe import observe
from llmgw.core.types.catalog import Catalog, Model, Profile, Scaling
from llmgw.core.types.messages import Gpu, NodeReport, Resources, ShardReport
from llmgw.core.types.plan import Plan
from llmgw.core.types.state import NodeRegistered, Tick
from llmgw.wire import decode_report, encode

SIZES = (100, 1_000, 10_000)
SHARDS_A_NODE = 10
MODELS = 50


def fleet(shards: int) -> tuple[Catalog, list[bytes]]:
    """Nodes of ten one-GPU engines each, of fifty models, as the messages that their agents would register with."""
    models = {
        f"model-{i:02}": Model(
            name=f"model-{i:02}",
            scaling=Scaling(min=0 if i % 2 else shards // MODELS, max=shards // MODELS),
            profiles=(
                Profile(
                    name="q4",
                    engine="llama.cpp",
                    gpus=1,
                    gpu_memory_bytes=18 << 30,
                    weights={"default": f"/models/{i:02}.gguf"},
                    fingerprints={"default": f"1:{i:032x}"},
                ),
            ),
        )
        for i in range(MODELS)
    }
    nodes = shards // SHARDS_A_NODE
    return Catalog(models=models), [encode(_node(n)) for n in range(nodes)]


def _node(n: int) -> NodeReport:
    gpus = tuple(
        Gpu(
            uuid=f"GPU-{n:04}-{g:04}",
            index=g,
            name="NVIDIA GeForce RTX 3090",
            memory_bytes=24 << 30,
            driver="580.1",
        )
        for g in range(SHARDS_A_NODE)
    )
    return NodeReport(
        node=f"box{n:04}",
        node_id=f"{n:032x}",
        boot_id=f"{n:032x}",
        version="0.1.0",
        epoch_seen=41,
        address=f"10.0.{n // 250}.{n % 250}",
        gpus=gpus,
        shards=tuple(_shard(n, g) for g in range(SHARDS_A_NODE)),
    )


def _shard(n: int, g: int) -> ShardReport:
    number = n * SHARDS_A_NODE + g
    model = f"model-{number % MODELS:02}"
    replica = f"{model}-{number:05}"
    return ShardReport(
        shard=f"{replica}/0",
        replica=replica,
        incarnation=f"01890a5d-ac96-774b-bcce-{number:012x}",
        rank=0,
        world_size=1,
        model=model,
        profile="q4",
        fingerprint=f"1:{number % MODELS:032x}",
        artefact=f"/models/{number % MODELS:02}.gguf",
        pool="default",
        gpus=(f"GPU-{n:04}-{g:04}",),
        port=18000 + g,
        endpoint=f"http://10.0.{n // 250}.{n % 250}:{18000 + g}",
        state="ready",
        resources=Resources(
            gpu_memory_bytes=18 << 30, host_memory_bytes=4 << 30, cpu_cores=4.0, power_w=300.0
        ),
        pid=4000 + number,
        started_at="2026-11-30T09:12:00Z",
    )


def adopt(catalog: Catalog, messages: list[bytes]) -> Plan:
    """What a control does that starts and hears them all: one pass at the end."""
    state = started(catalog, Memory(), now=0.0, settle_timeout_s=60.0, keep_unknown=False)
    for message in messages:
        state = observe(state, NodeRegistered(decode_report(message)), 1.0)
    state = observe(state, Tick(), 61.0)
    plan = decide(state, 61.0, survey(state))
    assert len(plan.verdicts) == len(messages) * SHARDS_A_NODE
    assert not plan.actions, plan.actions[:3]
    return plan


def bare(messages: list[bytes]) -> list[NodeReport]:
    decoder = msgspec.json.Decoder(NodeReport)
    return [decoder.decode(m) for m in messages]


def untyped(messages: list[bytes]) -> list[object]:
    return [msgspec.json.decode(m) for m in messages]


def _timed(work: Callable[[], object]) -> float:
    gc.collect()
    began = time.process_time()
    work()
    return time.process_time() - began


def measure(shards: int, rounds: int) -> dict[str, float]:
    catalog, messages = fleet(shards)
    times: dict[str, list[float]] = {"typed": [], "untyped": [], "adopt": []}
    for _ in range(rounds):
        times["typed"].append(_timed(lambda: bare(messages)))
        times["untyped"].append(_timed(lambda: untyped(messages)))
        times["adopt"].append(_timed(lambda: adopt(catalog, messages)))
    typed, plain, whole = (statistics.median(times[k]) for k in ("typed", "untyped", "adopt"))
    return {
        "shards": shards,
        "decode_us": round(typed / shards * 1e6, 2),
        "untyped_us": round(plain / shards * 1e6, 2),
        "adopt_us": round(whole / shards * 1e6, 2),
        "ratio": round(whole / typed, 2),
        "ratio_untyped": round(whole / plain, 2),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.adopt")
    parser.add_argument("shards", nargs="*", type=int, default=list(SIZES))
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    found = [measure(n, args.rounds) for n in args.shards]
    for row in found:
        sys.stderr.write("  ".join(f"{k} {v}" for k, v in row.items()) + "\n")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    sys.stdout.write(json.dumps({"adopt": found, "peak_mib": round(peak)}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
