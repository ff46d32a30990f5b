"""What a mount is: docker's own form, with placeholders in it."""

from __future__ import annotations

import pytest

from llmgw.core.mount import Mount, parse, wrong


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("/models:/models:ro", Mount("/models", "/models", read_only=True)),
        ("/a b:/c:rw", Mount("/a b", "/c")),
        ("/a:/c", Mount("/a", "/c")),
        ("${env.HOME}/.cache:/root/.cache", Mount("${env.HOME}/.cache", "/root/.cache")),
        ("${file./a:b}:/c:ro", Mount("${file./a:b}", "/c", read_only=True)),
        ("/a$$b:/c", Mount("/a$$b", "/c")),
        ("relative:/c", Mount("relative", "/c")),
        *((text, None) for text in ("", "/a", ":/c", "/a:", "/a:/c:z", "/a:/b:/c", "/a,b:/c")),
        *((text, None) for text in ("/a:/c:", "/$a:/c", "/${a:/c", '/a"b:/c', "/a\n:/c")),
    ],
)
def test_its_parts(text: str, found: Mount | None) -> None:
    assert parse(text) == found


def test_paths() -> None:
    assert [wrong(p) for p in ("/a", "${state_dir}/x", "/", "/a..b")] == [""] * 4
    assert wrong("a") == "is not an absolute path"
    assert wrong("/a/../b") == wrong("/..") == "goes up by .."
