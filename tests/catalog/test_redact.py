"""Which values people do not see."""

from __future__ import annotations

import pytest

from llmgw.catalog import redact


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("HF_TOKEN", "hf_abc", "***"),
        ("API_KEY", "abc", "***"),
        ("api_key", "abc", "***"),
        ("MY_SECRET_THING", "abc", "***"),
        ("DB_PASSWORD", "abc", "***"),
        ("HF_TOKEN", "${env.HF_TOKEN}", "${env.HF_TOKEN}"),
        ("HF_TOKEN", "${file./etc/key}", "${file./etc/key}"),
        ("LLAMA_API_KEY", "${api_key}", "${api_key}"),
        ("API_KEY", "sk-${env.REST}", "***"),
        ("API_KEY", "", ""),
        ("MAX_TOKENS", "4096", "4096"),
        ("TOKENIZERS_PARALLELISM", "false", "false"),
        ("OMP_NUM_THREADS", "2", "2"),
    ],
)
def test_env(name: str, value: str, shown: str) -> None:
    assert redact.env({name: value}) == {name: shown}


def test_argv() -> None:
    words = (
        "x",
        "--api-key",
        "abc",
        "--hf-token=def",
        "--token",
        "--max-tokens",
        "5",
        "--password=${env.P}",
        "-key",
        "k",
    )
    assert redact.argv(words) == (
        *(
            "x",
            "--api-key",
            "***",
            "--hf-token=***",
            "--token",
            "--max-tokens",
            "5",
            "--password=${env.P}",
        ),
        *("-key", "***"),
    )
    assert redact.argv(()) == ()
