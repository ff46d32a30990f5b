"""`llmgw agent` without its command line: settings as JSON in argv[1], errors as the CLI's one door words them.

`world` among them is what no test can have for real: `deaf` engines that no signal ends (a process in D state), an
agent that is `blind` to what runs in containers (another user's), a shorter wait for a `kill`, before the unknown is
asked about `again` and for a container's `creation_grace`, a quicker heart `beat`, logs that are long soon
(`log_max_bytes`), a `card` on the bus whose driver is not up, the `machine_id` file of another machine.
"""

import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from llmgw.agent import container_evidence, containers, gpu, identity, logs, loop, process
from llmgw.agent.run import run
from llmgw.agent.settings import AgentSettings
from llmgw.core.supervise import reattach, teardown
from llmgw.errors import LlmgwError


def pretend(
    *,
    deaf: bool = False,
    blind: bool = False,
    card: bool = False,
    kill_wait_s: float = 0.0,
    again_s: float = 0.0,
    creation_grace_s: float = -1.0,
    beat_s: float = 0.0,
    log_max_bytes: int = 0,
    machine_id: str = "",
) -> None:
    world: Any = process
    if machine_id:
        identity.MACHINE_ID = Path(machine_id)
    if deaf:
        world.send = lambda _pid, _ticks, _signal: True
    if blind:
        container_evidence.groups = dict
    if kill_wait_s:
        teardown.KILL_WAIT_S = kill_wait_s
    if again_s:
        reattach.AGAIN_S = again_s
    if creation_grace_s >= 0:
        containers.CREATION_GRACE_S = creation_grace_s
    if beat_s:
        loop.HEARTBEAT_S = beat_s
    if log_max_bytes:
        logs.LOG_MAX_BYTES = log_max_bytes
    if card:
        world = gpu
        world.nvidia_card = lambda _root: True


def main() -> int:
    raw = json.loads(sys.argv[1])
    pretend(**raw.pop("world", {}))
    settings = msgspec.convert(raw | {"state_dir": Path(raw["state_dir"])}, AgentSettings)
    try:
        return run(settings)
    except LlmgwError as e:
        sys.stderr.write(f"error: {e.message}\nhint: {e.hint}\n")
        return e.exit_code


if __name__ == "__main__":
    sys.exit(main())
