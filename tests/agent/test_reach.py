"""How an agent is reached, and what it keeps of the control it joined so that a restart needs nothing (http.md)."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from llmgw import config, tls
from llmgw.agent import reach
from llmgw.agent.settings import AgentSettings
from llmgw.cli import ask, daemons
from llmgw.config import Join, Trust
from llmgw.errors import UsageError

PIN = f"sha256:{'ab' * 32}"
URL = "https://10.0.0.10:8801"


def settings(folder: Path, **more: Any) -> AgentSettings:
    return AgentSettings(controls=(URL,), node="box2", state_dir=folder, **more)


def test_the_join_is_kept_for_its_owner_only_and_once(tmp_path: Path) -> None:
    mine = settings(tmp_path, token="s3cret", trust=Trust((PIN,)), address_given="auto")
    reach.remember(mine, [URL], "https://10.0.0.11:8802#x")
    file = tmp_path / "join.json"
    assert config.joined(tmp_path) == Join((URL,), Trust((PIN,)), "s3cret", "auto", "127.0.0.1")
    assert file.stat().st_mode & 0o777 == 0o600
    before = file.stat().st_mtime_ns
    reach.remember(mine, [URL], "https://10.0.0.11:8802#x")
    assert file.stat().st_mtime_ns == before
    assert (tmp_path / "url").read_text() == "https://10.0.0.11:8802#x\n"
    reach.remember(mine, [URL], config.AGENT_URL)  # where everybody looks anyway
    assert not (tmp_path / "url").exists()
    other = tmp_path / "plain"
    other.mkdir()
    reach.remember(settings(other), ["http://127.0.0.1:8801"], "")
    assert list(other.iterdir()) == []
    for broken in ("{", '{"controls": 7}', "[]"):
        file.write_text(broken)
        assert config.joined(tmp_path) == Join()


def test_what_is_given_comes_before_what_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LLMGW_NODE_TOKEN", raising=False)
    mine = settings(tmp_path, token="s3cret", trust=Trust((PIN,)), address_given="auto")
    reach.remember(mine, [URL], "")
    kept = Join((URL,), Trust((PIN,)), "s3cret", "auto", "127.0.0.1")
    assert daemons.joined(config.Given({}, {}), tmp_path) == ((URL,), kept)
    assert daemons.joined(config.Given({"control": [URL]}, {}), tmp_path) == ((URL,), kept)
    # Another control is told nothing, and is not believed for the pin of this one.
    other = "https://10.0.0.66:8801"
    found = daemons.joined(config.Given({"control": [other]}, {}), tmp_path)
    assert found == ((other,), Join((other,)))
    pin = PIN.replace("ab", "cd")
    monkeypatch.setenv("LLMGW_NODE_TOKEN", "another")
    _, found_join = daemons.joined(config.Given({}, {"LLMGW_PIN": pin}), tmp_path)
    assert (found_join.trust, found_join.token) == (Trust((pin,)), "another")


def test_beyond_loopback_it_shows_a_certificate_of_its_own(tmp_path: Path) -> None:
    plain = settings(tmp_path)
    assert reach.pair_of(plain, loopback=True) is None
    assert reach.pair_of(settings(tmp_path, insecure=True), loopback=False) is None
    pair = reach.pair_of(plain, loopback=False)
    assert pair == tls.Pair(tmp_path / "tls.crt", tmp_path / "tls.key")
    pin = tls.pin_of(tmp_path / "tls.crt")
    assert reach.url_of("10.0.0.11", 8802, pin) == "https://10.0.0.11:8802"
    assert reach.url_of("fd00::1", 8802, "") == "http://[fd00::1]:8802"
    with pytest.raises(UsageError, match="--tls-key is given without the other one"):
        reach.pair_of(settings(tmp_path, tls_key="k"), loopback=False)


def test_the_address_by_which_control_is_reached() -> None:
    assert reach.towards("http://127.0.0.1:8801") == "127.0.0.1"
    assert reach.towards("https://no-such-host.invalid:8801") == ""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect(("127.0.0.9", 1))
        assert reach.towards("https://127.0.0.9:8801") == sock.getsockname()[0]


def test_how_the_control_beside_it_is_spoken_to_by_now_is_that_ones_to_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of `llmgw up` it kept plain HTTP; for other boxes that control speaks TLS at the same place, and back."""
    monkeypatch.setenv("LLMGW_STATE_DIR", str(tmp_path))
    folder, nothing = tmp_path / "agent", config.Given({}, {})
    for part in ("agent", "control"):
        (tmp_path / part).mkdir()
    reach.remember(settings(folder, token="s3cret"), ["http://127.0.0.1:9901"], "")
    said = tmp_path / "control" / "url"
    said.write_text(f"https://127.0.0.1:9901#{PIN}\nhttps://10.0.0.11:9901#{PIN}\n")
    urls, found = daemons.joined(nothing, folder)
    assert (urls, found.trust, found.token) == (
        ("https://127.0.0.1:9901",),
        Trust((PIN,)),
        "s3cret",
    )
    # Named as it was kept, it is taken at its word; and so is a control elsewhere.
    named = config.Given({"control": ["http://127.0.0.1:9901"]}, {})
    assert daemons.joined(named, folder)[0] == ("http://127.0.0.1:9901",)
    said.write_text(f"https://127.0.0.1:9902#{PIN}\n")
    assert daemons.joined(nothing, folder)[0] == ("http://127.0.0.1:9901",)


def test_an_agent_that_nobody_told_of_a_control_looks_where_the_one_beside_it_was_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the command line of the same box does, which otherwise would speak of another control than doctor."""
    monkeypatch.setenv("LLMGW_STATE_DIR", str(tmp_path))
    monkeypatch.delenv("LLMGW_CONTROL", raising=False)
    folder, nothing = tmp_path / "agent", config.Given({}, {})
    assert daemons.joined(nothing, folder)[0] == (config.CONTROL_URL,)
    (tmp_path / "control").mkdir()
    (tmp_path / "control" / "url").write_text(f"https://127.0.0.1:9901#{PIN}\n")
    urls, found = daemons.joined(nothing, folder)
    assert (urls, found.trust) == (("https://127.0.0.1:9901",), Trust((PIN,)))
    assert [(p.url, p.trust) for p in ask.control(nothing)] == [(urls[0], found.trust)]
    # What it has joined itself, and what it is told, come first.
    folder.mkdir()
    reach.remember(settings(folder, trust=Trust((PIN,))), [URL], "")
    assert daemons.joined(nothing, folder)[0] == (URL,)
    assert daemons.joined(config.Given({"control": ["http://c:1"]}, {}), folder)[0] == (
        "http://c:1",
    )
    # The box's own control, named while the agent keeps another one, is believed as by the command line.
    named = config.Given({"control": ["https://127.0.0.1:9901"]}, {})
    assert daemons.joined(named, folder)[1].trust == ask.control(named)[0].trust == Trust((PIN,))
    # So is one whose inventory is elsewhere, which is asked only where it is named.
    (tmp_path / "control" / "url").rename(tmp_path / "url")
    assert daemons.joined(named, folder)[1].trust == Trust()
    monkeypatch.setenv("LLMGW_INVENTORY", str(tmp_path / "inventory.db"))
    assert daemons.joined(named, folder)[1].trust == ask.control(named)[0].trust == Trust((PIN,))
    assert daemons.joined(nothing, tmp_path / "other")[0] == (config.CONTROL_URL,)


def test_what_was_given_at_the_join_is_found_again(tmp_path: Path) -> None:
    words = {"node": "box2", "listen": "10.0.0.11:9", "ports": "1-9", "gpus": "none"}
    mine = settings(tmp_path, token="s3cret", trust=Trust((PIN,)), words_given=words)
    reach.remember(mine, [URL], "")

    def found(flags: dict[str, object]) -> dict[str, str]:
        given = config.Given(flags, {})
        return daemons.words_of(given, daemons.joined(given, tmp_path)[1])

    assert found({}) == words
    assert found({"node": "box3", "gpus": "auto"}) == words | {"node": "box3", "gpus": "auto"}
    assert found({"control": [URL]}) == {"node": "box2"}, (
        "who names it anew starts from the defaults"
    )
    assert found({"control": ["https://10.0.0.66:1"]}) == {}, "another control has other names"
    assert Path(found({"gpus": "cards.json"})["gpus"]).is_absolute()
    file = tmp_path / "join.json"
    before = json.loads(file.read_text())
    del before["words"]
    file.write_text(json.dumps(before))
    assert found({}) == {}, "an earlier version wrote it"
    assert config.joined(tmp_path).token == "s3cret"
