"""What a path that control does not have is answered with, and who has it."""

from __future__ import annotations

from typing import Any

import httpx
from msgspec.structs import replace

from llmgw.config import Address
from tests.control.bench import Bench, scenario


def error(answer: httpx.Response) -> Any:
    return answer.json()["error"]


@scenario
async def test_a_client_of_models_is_sent_to_the_gateway(bench: Bench) -> None:
    """It was given the port of control: what control has for operators is of no help to it."""
    path = "/v1/chat/completions"
    for gateway, said in (
        (Address("127.0.0.1", 8800), f"the gateway: http://127.0.0.1:8800{path}"),
        (Address("0.0.0.0", 8800), f"the gateway: http://127.0.0.1:8800{path}"),
        (None, "a gateway, and this control runs none (--gateway none)"),
    ):
        bench.settings = replace(bench.settings, gateway=gateway)
        async with bench.running():
            answer = await bench.client.post(path, json={})
            assert (answer.status_code, error(answer)["code"]) == (404, "not_found")
            assert error(answer)["hint"] == f"this is control; clients ask {said}"
            other = error(await bench.client.get("/v2"))
            assert other["hint"] == "GET /openapi.json lists what there is"
