"""A gateway as a process of its own, for tests: `python serve.py '{"controls": [...], ...}'`, as the CLI starts it."""

import sys

import msgspec
import structlog

from llmgw.errors import LlmgwError
from llmgw.gateway.main import run
from llmgw.gateway.settings import GatewaySettings


def main() -> int:
    def path(kind: type, value: object) -> object:
        return kind(value)

    structlog.configure(
        processors=[structlog.processors.format_exc_info, structlog.processors.JSONRenderer()],
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
    )
    settings = msgspec.convert(msgspec.json.decode(sys.argv[1]), GatewaySettings, dec_hook=path)
    try:
        return run(settings)
    except LlmgwError as e:
        sys.stderr.write(f"{e.message} - {e.hint}\n")
        return e.exit_code


sys.exit(main())
