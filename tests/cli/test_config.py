"""One order of precedence, and every error names the place its value came from."""

from pathlib import Path

import pytest

from llmgw import config
from llmgw.errors import UsageError

FILE = {"listen": "127.0.0.1:3", "label": ("rack=3", "gpu=a")}


def given(flag: object = None, env: str = "", file: dict[str, str] | None = None) -> config.Given:
    return config.Given({"listen": flag}, {"LLMGW_LISTEN": env}, file, Path("agent.yaml"))


@pytest.mark.parametrize(
    ("source", "port"),
    [
        (given("127.0.0.1:1", "127.0.0.1:2", {"listen": "127.0.0.1:3"}), 1),
        (given(None, "127.0.0.1:2", {"listen": "127.0.0.1:3"}), 2),
        (given(None, "", {"listen": "127.0.0.1:3"}), 3),
        (given(None, " ", {}), 4),
    ],
)
def test_flag_then_environment_then_file_then_default(source: config.Given, port: int) -> None:
    assert source.address("listen", "127.0.0.1:4").port == port


def test_lists_repeat_as_flags_and_are_comma_separated_in_the_environment() -> None:
    assert config.Given({"pool": ["a", "b,c"]}, {}).items("pool") == ("a", "b,c")
    assert config.Given({"pool": []}, {"LLMGW_POOL": "a, b ,"}).items("pool") == ("a", "b")
    assert config.Given({}, {}, {"pool": ("a", "b")}).items("pool") == ("a", "b")
    assert config.Given({}, {}).items("pool", ["default"]) == ("default",)


def test_pairs_and_switches_and_numbers() -> None:
    source = config.Given(
        {"label": ["a=1", "a=2"]}, {"LLMGW_KEEP_UNKNOWN": "Yes", "LLMGW_POWER_W": "1200"}
    )
    assert source.pairs("label") == {"a": "2"}
    assert source.switch("keep_unknown")
    assert not source.switch("other")
    assert source.number("power_w") == 1200
    assert source.number("other") is None


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda s: s.address("listen", ""), "LLMGW_LISTEN: '8801' is not HOST:PORT"),
        (lambda s: s.pairs("label"), "LLMGW_LABEL: 'rack' is not NAME=VALUE"),
        (lambda s: s.switch("keep"), "LLMGW_KEEP: 'maybe' is neither true nor false"),
        (lambda s: s.number("power_w"), "LLMGW_POWER_W: '1kW' is not a number"),
        (lambda s: s.text("pool", ""), "pool in agent.yaml: wants one value, got 2"),
    ],
)
def test_a_bad_value_is_refused_where_it_stands(call: object, said: str) -> None:
    env = {
        "LLMGW_LISTEN": "8801",
        "LLMGW_LABEL": "rack",
        "LLMGW_KEEP": "maybe",
        "LLMGW_POWER_W": "1kW",
    }
    source = config.Given({}, env, {"pool": ("a", "b")}, Path("agent.yaml"))
    assert callable(call)
    with pytest.raises(UsageError) as refused:
        call(source)
    assert refused.value.message == said
    assert refused.value.hint


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:0", config.Address("127.0.0.1", 0)),
        ("[::1]:8801", config.Address("::1", 8801)),
        ("box1:80", config.Address("box1", 80)),
    ],
)
def test_addresses(text: str, address: config.Address) -> None:
    assert config.address(text, "--listen") == address
    assert str(address) == text


@pytest.mark.parametrize("text", ["", ":8801", "box1:", "box1:70000", "box1:-1", "box1"])
def test_a_listener_needs_host_and_port(text: str) -> None:
    with pytest.raises(UsageError):
        config.address(text, "--listen")


def test_a_config_file_has_the_flags_as_keys(tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text(
        "control: [http://a:1, http://b:1]\nstate-dir: /x\npower-w: 900\n"
        "label: {rack: 7}\nfabric: {ib0: [10.1.0.1, mlx5_0]}\n"
    )
    known = ["control", "state_dir", "power_w", "label", "fabric"]
    assert config.read_file(path, known) == {
        "control": ("http://a:1", "http://b:1"),
        "state_dir": "/x",
        "power_w": "900",
        "label": ("rack=7",),
        "fabric": ("ib0=10.1.0.1,mlx5_0",),
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "lables: {a: b}\nnode: x\nnode: y\n",
            'agent.yaml:1:1: unknown key "lables" - did you mean "label"?',
        ),
        ("lables: {a: b}\nnode: x\nnode: y\n", 'agent.yaml:3:1: "node" is there twice - keep one'),
        ("node: [a", "agent.yaml:1:"),
        ("- a\n", "agent.yaml: wants `key: value` lines"),
    ],
)
def test_a_config_file_that_does_not_fit(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text(text)
    with pytest.raises(UsageError) as refused:
        config.read_file(path, ["label", "node"])
    assert said in refused.value.message


def test_a_config_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        config.read_file(tmp_path / "agent.yaml", ["node"])
    (tmp_path / "empty.yaml").write_text("# nothing\n")
    assert config.read_file(tmp_path / "empty.yaml", ["node"]) == {}


def test_where_things_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert config.state_dir("agent", {"LLMGW_STATE_DIR": "/data"}) == Path("/data/agent")
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert config.inventory_path({}) == Path("/var/lib/llmgw/control/inventory.db")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    env = {"XDG_STATE_HOME": str(tmp_path)}
    assert config.inventory_path(env) == tmp_path / "llmgw/control/inventory.db"
    monkeypatch.setenv("HOME", "/home/someone")
    home = Path("/home/someone/.local/state/llmgw/agent")
    assert config.state_dir("agent", {}) == home
    assert config.state_dir("agent", {"XDG_STATE_HOME": "not/absolute"}) == home


def test_a_token_comes_from_the_environment_or_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("from-file\n")
    assert config.token("LLMGW_TOKEN", file, env={"LLMGW_TOKEN": "from-env"}) == "from-env"
    assert config.token("LLMGW_TOKEN", tmp_path / "no", file, env={}) == "from-file"
    assert config.token("LLMGW_TOKEN", tmp_path / "no", env={}) == ""
    with pytest.raises(UsageError, match="cannot read the token"):
        config.token("LLMGW_TOKEN", tmp_path, env={})
