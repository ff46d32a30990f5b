"""The order that starts each rank of a placed replica, unexpanded: the agent fills in `${...}`.

May not choose: where each rank goes is said.
"""

from __future__ import annotations

from llmgw.core.capacity import needed
from llmgw.core.types.catalog import Model, Profile
from llmgw.core.types.messages import LISTENS, Peer, Start
from llmgw.core.types.plan import Spot
from llmgw.core.types.state import State


def start_message(
    state: State,
    model: Model,
    placement: tuple[str, tuple[Spot, ...]],
    replica: str,
    incarnation: str,
) -> tuple[tuple[str, Start], ...]:
    """The start of each rank as (node, message), unexpanded.

    Ids come from the caller: the core makes no random ones.
    """
    profile = model.profile(placement[0])
    assert profile is not None
    spots = placement[1]
    peers = tuple(_peer(state, s) for s in spots)
    return tuple(
        (
            spot.node,
            Start(
                shard=f"{replica}/{spot.rank}",
                replica=replica,
                incarnation=incarnation,
                rank=spot.rank,
                world_size=len(spots),
                model=model.name,
                served_name=model.name,
                profile=profile.name,
                fingerprint=profile.fingerprint_on(spot.node),
                weights=profile.weights_on(spot.node),
                launcher=profile.launcher,
                image=profile.image,
                mounts=profile.mounts,
                engine=profile.engine,
                command=_command(profile, spot),
                env=profile.env,
                pool=profile.pool,
                fabric=spot.fabric or profile.fabric,
                gpus=spot.gpus,
                hcas=spot.hcas,
                port=spot.port,
                ports={"group": spot.group_port} if spot.group_port else {},
                resources=needed(profile, spot.node, state.learned),
                health=_health(profile, spot),
                compute=profile.compute,
                ready=profile.ready,
                start_timeout_s=profile.start_timeout_s,
                stop=profile.stop,
                restart=profile.restart,
                peers=peers,
                start_order="" if spot.rank else profile.start_order,
                insecure=profile.insecure,
                sleep=profile.sleep,
            ),
        )
        for spot in spots
    )


def _health(profile: Profile, spot: Spot) -> str:
    """The leader speaks for the group: a worker has no health of its own, but for what must listen before it comes."""
    if not spot.rank:
        return profile.health
    return LISTENS if profile.start_order else ""


def _peer(state: State, spot: Spot) -> Peer:
    report = state.nodes[spot.node].report
    fabric = report.fabrics.get(spot.fabric)
    return Peer(
        rank=spot.rank,
        node=spot.node,
        address=report.address,
        fabric_address=fabric.address if fabric else "",
        port=spot.port,
        group_port=spot.group_port,
    )


def _command(profile: Profile, spot: Spot) -> tuple[str, ...]:
    """Workers may be another program (ggml-rpc-server), or the same with other arguments (vllm --headless)."""
    if profile.nodes == 1:
        return profile.command
    if not spot.rank:
        return (*profile.command, *profile.leader_args)
    return (*(profile.worker_command or profile.command), *profile.worker_args)
