"""What the agent tells: its records and facts as the wire's report (contract/http.md "Inventory").

`api_key` and `served_name` go to control only, never into an inventory for people. What a record does not know
(rebuilt from markers, unreadable) is left out: missing reads as unknown. May not decide.
"""

from __future__ import annotations

from llmgw.core.types.messages import NodeReport, ShardReport
from llmgw.core.types.node import AgentState
from llmgw.core.types.record import Record
from llmgw.core.types.sleep import Asleep


def shard_report(record: Record, *, secrets: bool = False) -> ShardReport:
    start = record.start
    whole = not record.partial
    return ShardReport(
        shard=start.shard,
        replica=start.replica,
        incarnation=start.incarnation,
        attempt=record.attempt,
        rank=start.rank,
        world_size=start.world_size if whole else None,
        model=start.model,
        profile=start.profile,
        fingerprint=start.fingerprint,
        artefact=record.artefact,
        pool=start.pool if whole else "",
        fabric=start.fabric,
        gpus=start.gpus,
        hcas=start.hcas,
        port=start.port,
        ports=start.ports,
        endpoint=record.endpoint,
        state=record.state,
        desired=record.desired,
        resources=start.resources if whole else None,
        compute=record.compute,
        pid=record.pid,
        started_at=record.started_at,
        progress=record.watch.progress,
        gpu_peak_bytes=record.watch.peak_bytes,
        host_peak_bytes=record.watch.host_peak_bytes,
        error=record.error,
        gave_up=record.gave_up,
        never_ran=record.never_ran,
        sleep=start.sleep.level if start.sleep else 0,
        asleep=_asleep(record),
        api_key=record.api_key if secrets else None,
        served_name=(start.served_name or start.model) if secrets else None,
    )


def _asleep(record: Record) -> Asleep | None:
    """While it sleeps, and while it is torn down out of that: it never takes back what it gave."""
    if record.nap not in ("falling", "asleep"):
        return None
    verified = record.nap == "asleep"
    return Asleep(verified=verified, freed_bytes=record.freed_bytes, rest_bytes=record.rest_bytes)


def node_report(state: AgentState, *, for_register: bool) -> NodeReport:
    """The complete inventory; `for_register` is the only one with keys in it."""
    facts, token = state.facts, state.token
    return NodeReport(
        node=facts.node,
        node_id=facts.node_id,
        instance=facts.instance,
        version=facts.version,
        boot_id=facts.boot_id,
        epoch_seen=token.epoch if token else 0,
        leader_uuid=token.leader_uuid if token else None,
        address=facts.address,
        loopback=facts.loopback,
        inspect=facts.inspect,
        inspect_pin=facts.inspect_pin,
        pools=facts.pools,
        labels=facts.labels,
        fabrics=facts.fabrics,
        circuit=facts.circuit,
        reattached=state.reattached,
        follows=True,
        capacity=facts.capacity,
        gpus=state.gpus,
        gpus_error=state.gpus_error,
        shards=tuple(
            shard_report(r, secrets=for_register) for _, r in sorted(state.records.items())
        ),
        foreign=state.foreign,
    )
