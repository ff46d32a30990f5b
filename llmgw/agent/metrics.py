"""`/metrics`: the node, its GPUs, its shards; and the engines' own metrics, of shards that run only.

An engine's families get `model` and `shard` labels, so that two engines do not overwrite each other. May not start or
wake anything: a scrape never counts as a request.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

import structlog
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from llmgw.agent import probe
from llmgw.agent.placeholders import host_of
from llmgw.core.types.messages import LIVE, SHARD_STATES
from llmgw.core.types.node import AgentState
from llmgw.core.types.record import Record

log = structlog.get_logger()
SHARD = ["shard", "model"]


class _Collected:
    """What a registry asks: families made before."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self.families = families

    def collect(self) -> Iterable[Metric]:
        return self.families


async def exposition(state: AgentState, beat_s: float) -> tuple[bytes, str]:
    """`beat_s`: when the loop's next heartbeat is due; one far behind shows a loop that is stuck."""
    live = [r for r in state.records.values() if r.state in LIVE and r.state != "asleep"]
    engines = await asyncio.gather(*(_engine(host_of(r, state.facts), r) for r in live))
    registry = CollectorRegistry(auto_describe=False)
    families = [*_own(state, beat_s), *_merged(f for some in engines for f in some)]
    registry.register(_Collected(families))
    return generate_latest(registry), CONTENT_TYPE_LATEST


def _own(state: AgentState, beat_s: float) -> Iterable[Metric]:
    late = max(time.monotonic() - beat_s, 0.0)
    yield _gauge("llmgw_agent_heartbeat_late_seconds", "How late the loop's heartbeat is", late)
    leading = sum(s.leader for s in state.sessions.values())
    yield _gauge("llmgw_agent_leaders", "Live sessions with a leading control", leading)
    yield from _gpus(state)
    yield from _shards(state)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _gpus(state: AgentState) -> Iterable[Metric]:
    total = GaugeMetricFamily("llmgw_gpu_memory_bytes", "GPU memory", labels=["gpu", "index"])
    used = GaugeMetricFamily("llmgw_gpu_memory_used_bytes", "In use", labels=["gpu", "index"])
    healthy = GaugeMetricFamily("llmgw_gpu_healthy", "1: it answers", labels=["gpu", "index"])
    power = GaugeMetricFamily("llmgw_gpu_power_watts", "Drawn now", labels=["gpu", "index"])
    for gpu in state.gpus or ():
        labels = [gpu.uuid, str(gpu.index)]
        total.add_metric(labels, gpu.memory_bytes)
        used.add_metric(labels, gpu.memory_used_bytes)
        healthy.add_metric(labels, float(gpu.healthy))
        if gpu.power_w is not None:
            power.add_metric(labels, gpu.power_w)
    return (total, used, healthy, power)


def _shards(state: AgentState) -> Iterable[Metric]:
    states = GaugeMetricFamily("llmgw_shard_state", "1: it is so", labels=[*SHARD, "state"])
    attempts = GaugeMetricFamily("llmgw_shard_attempt", "Starts of this placement", labels=SHARD)
    for record in state.records.values():
        labels = [record.start.shard, record.start.model]
        attempts.add_metric(labels, record.attempt)
        for name in SHARD_STATES:
            states.add_metric([*labels, name], float(record.state == name))
    return (states, attempts)


async def _engine(host: str, record: Record) -> list[Metric]:
    """An engine's own families, labelled; [] where it has none or does not answer in time."""
    start = record.start
    try:
        answer = await probe.fetch(host, start.port, "/metrics", record.api_key)
        if answer.status != 200:  # noqa: PLR2004  llama-server without --metrics says 501
            return []
        families = list(text_string_to_metric_families(answer.body.decode()))
    except probe.BROKEN as e:
        log.debug("no metrics of an engine", shard=start.shard, error=str(e))
        return []
    return [_labelled(f, {"shard": start.shard, "model": start.model}) for f in families]


def _labelled(family: Metric, labels: dict[str, str]) -> Metric:
    out = Metric(family.name, family.documentation, family.type)
    for sample in family.samples:
        out.add_sample(sample.name, {**sample.labels, **labels}, sample.value)
    return out


def _merged(families: Iterable[Metric]) -> Iterable[Metric]:
    """One family a name, with the samples of all engines: a name may be declared once only."""
    by_name: dict[str, Metric] = {}
    for family in families:
        by_name.setdefault(family.name, Metric(family.name, family.documentation, family.type))
        by_name[family.name].samples += family.samples
    return by_name.values()
