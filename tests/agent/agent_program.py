"""`llmgw agent` without its command line: settings as JSON in argv[1], errors as the CLI's one door words them."""

import json
import sys
from pathlib import Path

import msgspec

from llmgw.agent.run import run
from llmgw.agent.settings import AgentSettings
from llmgw.errors import LlmgwError


def main() -> int:
    raw = json.loads(sys.argv[1])
    settings = msgspec.convert(raw | {"state_dir": Path(raw["state_dir"])}, AgentSettings)
    try:
        return run(settings)
    except LlmgwError as e:
        sys.stderr.write(f"error: {e.message}\nhint: {e.hint}\n")
        return e.exit_code


if __name__ == "__main__":
    sys.exit(main())
