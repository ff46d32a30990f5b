"""`llmgw token`: what the next box needs to join, as one line to paste there; and the node tokens that there are.

Answers for: the line works as it is, and its secret is in no command's arguments. May not keep a token.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from llmgw import config
from llmgw.cli import ask, names, options
from llmgw.cli.sure import Yes, named, say, sure
from llmgw.errors import LlmgwError, UnreachableError, UsageError

Json = dict[str, Any]
#: As `control.node_tokens` has it.
UP = "up"
#: How control is started for other boxes, at its usual port.
WIDER = "llmgw control --listen 0.0.0.0:8801"
app = typer.Typer(
    help="Print the line with which the next box joins; keep node tokens.",
    rich_markup_mode=None,
)
Offline = Annotated[
    Path | None,
    typer.Option(help="With no control running: its inventory file; the tokens are beside it."),
]
Name = Annotated[
    str | None, typer.Argument(metavar="[NAME]", help="What to call it, e.g. the box's name.")
]


@app.callback(invoke_without_command=True)
def line(
    context: typer.Context,
    inventory: Offline = None,
    output: options.Output = "table",
    control: options.ControlUrl = None,
) -> None:
    """Print the line to paste on the next box.

    llmgw token prints control's URL, a node token and the hash of its certificate. The same token is shown until a
    node has joined with it; then it is that node's, and no other's.
    """
    if context.invoked_subcommand is None:
        _print(_made(_where(control, inventory)), output)


@app.command()
def new(
    name: Name = None,
    operator: Annotated[
        bool,
        typer.Option(
            "--operator",
            help="The operators' own token instead, which control beyond loopback asks for; it is "
            "written beside the inventory, where control and this box's command line find it.",
        ),
    ] = False,
    inventory: Offline = None,
    output: options.Output = "table",
    control: options.ControlUrl = None,
) -> None:
    """Make another node token and print the line with it.

    llmgw token new box3
    """
    if operator:
        _operator(inventory or config.inventory_path())
    else:
        if name is not None:
            named(name, "NAME")
        _print(_made(_where(control, inventory), name, new=True), output)


@app.command("list")
def list_(
    context: typer.Context,
    inventory: Offline = None,
    output: options.Output = "table",
    control: options.ControlUrl = None,
) -> None:
    """List the node tokens and whose they are, without the tokens.

    llmgw token list -o json
    """
    from llmgw.cli.listing import listed
    from llmgw.render.tokens import page

    listed(context, output, "tokens", _found(_where(control, inventory)), page)


@app.command()
def revoke(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="Which one: `llmgw token list`.", autocompletion=names.tokens
        ),
    ],
    yes: Yes = False,
    inventory: Offline = None,
    control: options.ControlUrl = None,
) -> None:
    """Revoke a node token.

    llmgw token revoke box3: control hears no more from who has it; engines keep running, unmanaged.
    """
    from urllib.parse import quote

    named(name, "NAME")
    where = _where(control, inventory)
    # One that is not there is nothing to ask about: whoever has the tokens refuses it, with the nearest name.
    if not yes and name in {token["name"] for token in _found(where)}:
        what = (
            f"the node that joined with the token {name} will be refused; its engines keep running"
        )
        sure(what, "Revoke it?", yes=False, otherwise="no token was revoked")
    if isinstance(where, ask.Peer):
        said = ask.post(where, f"/api/v1/tokens/{quote(name, safe='')}/revoke")
        if name == UP:
            say("`llmgw up` makes another for its agent when it is started again")
        for node in said["nodes"] if name != UP else ():
            say(f"{node} is refused from now on; `llmgw forget {node}` removes it for good")
    else:
        from llmgw.control import node_tokens

        _file(where).edit(lambda there: (node_tokens.without(there, name), None))
        _for_how_long(where)
    typer.echo(f"revoked {name}")


def _where(control: str | None, inventory: Path | None) -> ask.Peer | Path:
    """The control to ask; where this box's own does not run its inventory, beside which it reads them when it does."""
    if inventory is not None:
        return inventory
    given = config.Given({"control": control})
    peer = ask.first(ask.control(given))
    path = config.inventory_path()
    ours = config.reached(path.parent) or not config.joined(config.state_dir("agent")).controls
    if given.text("control", "") or not ours:
        return peer
    try:
        ask.get(peer, "/healthz", timeout_s=2.0)
    except UnreachableError as e:
        if e.code == "tls":
            raise
        say(f"{e.message}; going by its files in {path.parent}")
        return path
    except LlmgwError:
        pass
    return peer


def _found(where: ask.Peer | Path) -> list[Json]:
    if isinstance(where, ask.Peer):
        found: list[Json] = ask.get(where, "/api/v1/tokens")["tokens"]
        return found
    from llmgw.control import node_tokens

    return node_tokens.shown(_file(where).now())


def _file(inventory: Path) -> Any:
    from llmgw.control.node_tokens import NodeTokens

    return NodeTokens(inventory.parent)


def _for_how_long(inventory: Path) -> None:
    """A change to the file of one control of several: `lead` has what it comes to."""
    from llmgw.control.lease import noted

    if elsewhere := noted.elsewhere(inventory):
        say(
            f"warning: it counts only if no other control of the same {elsewhere} leads before this box's; "
            "with control running, `llmgw token` sees to it everywhere"
        )


def _made(where: ask.Peer | Path, name: str | None = None, *, new: bool = False) -> Json:
    if isinstance(where, ask.Peer):
        want = {"name": name, "new": new}
        answer: Json = ask.post(where, "/api/v1/tokens", want)
        return answer
    from llmgw.control import node_tokens, reach

    folder = where.parent
    urls = reach.remembered(folder)
    asks = (folder / "token").exists()
    if not urls and asks:  # agents of this box want one, too
        urls = (config.reached(folder) or config.CONTROL_URL,)
    if not urls:
        msg = f"no control that other boxes can reach has run with {where}"
        raise LlmgwError(msg, f"`llmgw token new --operator`, then `{WIDER}`; then this again")
    file = _file(where)
    before = file.now()
    made = file.edit(lambda there: node_tokens.added(there, name, new=new))
    if made.name not in before:
        _for_how_long(where)
    return {"name": made.name, "token": made.token, "urls": list(urls)}


def _print(found: Json, output: str) -> None:
    import json

    lines = [_line(found["token"], *config.pinned(url)) for url in found["urls"]]
    if output == "json":
        places = [config.pinned(url) for url in found["urls"]]
        document = {
            "schema": "llmgw.token/1",
            "name": found["name"],
            "token": found["token"],
            "urls": [url for url, _ in places],
            "pin": next((trust.pins[0] for _, trust in places if trust.pins), None),
            "line": lines[0],
        }
        typer.echo(json.dumps(document, indent=2))
        return
    typer.echo(lines[0])
    others = [config.pinned(url)[0] for url in found["urls"][1:]]
    if others:
        say(f"control listens on {', '.join(others)} too, for boxes that reach it there")
    first = config.pinned(found["urls"][0])[0]
    if _near(first):
        port = ask.address(ask.Peer("control", first, "", ""))[1]
        wider = f"`{WIDER.replace('8801', str(port))}`"
        say(
            f"control listens on this box alone, so the line is for an agent on this box; for others: {wider}"
        )
    elif "--pin" not in lines[0]:
        say("warning: control speaks plain HTTP: the token can be read on its way (--insecure)")
    say(
        f"token {found['name']} becomes the next node's own; the agent keeps it, with --node, --listen, --ports, "
        "--gpus and --address, so later `llmgw agent` alone will do; other flags, --state-dir too, are for each start"
    )


def _line(token: str, url: str, trust: config.Trust) -> str:
    pins = "".join(f" --pin {pin}" for pin in trust.pins)
    address = "" if _near(url) else " --address auto"
    return f"LLMGW_NODE_TOKEN={token} llmgw agent --control {url}{pins}{address}"


def _near(url: str) -> bool:
    return config.Address(ask.address(ask.Peer("control", url, "", ""))[0], 0).loopback


def _operator(inventory: Path) -> None:
    """Once, and never over one that is there: other boxes may know it."""
    import secrets

    folder = inventory.parent
    path = folder / "token"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError as e:
        msg = f"there is an operators' token in {path} already"
        raise UsageError(msg, f"`rm {path}` first to have another, and restart control then") from e
    except OSError as e:
        msg = f"cannot write {path}: {(e.strerror or str(e)).lower()}"
        raise LlmgwError(msg, "run as the user that runs control") from e
    with os.fdopen(fd, "w") as file:
        file.write(f"{secrets.token_urlsafe(32)}\n")
        file.flush()
        os.fsync(fd)
    if _runs(folder):
        say(
            "restart control now: until then it goes by what it was started with; engines and the gateway keep running"
        )
    say("control asks operators for it from its next start on; `llmgw` on this box finds it there")
    say("elsewhere: LLMGW_TOKEN")
    say(
        "agents want a token from then on: `llmgw token` prints the line for each, `llmgw up` sees to its own"
    )
    typer.echo(path)


def _runs(folder: Path) -> bool:
    """A control of this folder, as far as it has said where it is."""
    url, trust = config.pinned(config.reached(folder))
    try:
        ask.get(ask.Peer("control", url, "", "", trust), "/healthz", timeout_s=2.0)
    except LlmgwError:
        return False
    return bool(url)
