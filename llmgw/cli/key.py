"""`llmgw key add|list|revoke`: API keys of the gateway's clients. May not keep a key, nor decide who gets one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from llmgw import config
from llmgw.cli import ask, names, options
from llmgw.cli.sure import Yes, named, say, sure

Json = dict[str, Any]
#: What follows when there is no key any more; as `control.keys` has it.
OPEN = "with none left everybody may ask on loopback, and of a gateway with --insecure; else nobody"
app = typer.Typer(
    help="Make, list and revoke API keys of the gateway's clients.",
    rich_markup_mode=None,
    no_args_is_help=True,
)
Name = Annotated[str, typer.Argument(metavar="NAME", help="Whose key it is, e.g. open-webui.")]
Known = Annotated[
    str, typer.Argument(metavar="NAME", help="Whose key it is.", autocompletion=names.keys)
]
Offline = Annotated[
    Path | None,
    typer.Option(help="With no control running: the inventory file to write it into."),
]


@app.command()
def add(  # noqa: PLR0917 - options of a command line
    name: Name,
    model: Annotated[
        list[str] | None,
        typer.Option(help="A model it may use, or a glob; repeat it. [default: all]"),
    ] = None,
    in_flight: Annotated[
        int | None, typer.Option(min=1, help="Requests it may have running at one time.")
    ] = None,
    per_minute: Annotated[
        int | None, typer.Option(min=1, help="Requests it may begin within a minute.")
    ] = None,
    upstream: Annotated[
        bool, typer.Option("--upstream", help="It may use /upstream/, all of an engine's own API.")
    ] = False,
    inventory: Offline = None,
    output: options.Output = "table",
    control: options.ControlUrl = None,
) -> None:
    """Make an API key and print it, this once.

    llmgw key add open-webui --model 'qwen*': only its hash is kept. With the first key every client needs one. A
    gateway beyond loopback needs one before it starts: `llmgw key add NAME --inventory FILE` makes it while no
    control runs.
    """
    import json

    limits = {"in_flight": in_flight, "per_minute": per_minute}
    want: Json = {
        "name": name,
        "models": model or None,
        "limits": {k: v for k, v in limits.items() if v is not None},
        "rights": ["upstream"] if upstream else [],
    }
    answer = _online_add(control, want) if inventory is None else _offline_add(inventory, want)
    for pattern in answer.get("unmatched", ()):
        say(f"warning: no model of the catalog is called {pattern}")
    _lasting(answer)
    if output == "json":
        shown = {"schema": "llmgw.key/1", "name": answer["name"], "key": answer["key"]}
        typer.echo(json.dumps(shown, indent=2))
        return
    typer.echo(answer["key"])
    say(f"key {name} is shown this once; clients send it as `Authorization: Bearer KEY`")
    say("from the first key on every client needs one, on loopback too")


@app.command("list")
def list_(
    context: typer.Context,
    inventory: Offline = None,
    output: options.Output = "table",
    control: options.ControlUrl = None,
) -> None:
    """List the API keys, without their secrets.

    llmgw key list -o json
    """
    from llmgw.cli.listing import listed
    from llmgw.render.keys import page

    found = _found(inventory, None if inventory is not None else _peer(control))
    listed(context, output, "keys", found, page)


@app.command()
def revoke(
    name: Known,
    yes: Yes = False,
    inventory: Offline = None,
    control: options.ControlUrl = None,
) -> None:
    """Revoke an API key.

    llmgw key revoke open-webui: gateways refuse it from now on; requests that it began run to their end. The last
    one goes only if you say yes to that: with no key left a gateway may serve everybody.
    """
    from urllib.parse import quote

    named(name, "NAME")
    peer = None if inventory is not None else _peer(control)
    last = False
    # One that is not there is nothing to ask about: whoever has the keys refuses it, with the nearest name.
    if not yes and name in (there := _names(inventory, peer)):
        last = there == [name]
        what = f"clients that use the API key {name} will be refused"
        what += f", and it is the last one: {OPEN}" if last else ""
        sure(what, "Revoke it?", yes=False, otherwise="no key was revoked")
    if peer is None:
        assert inventory is not None
        answer = _offline_revoke(inventory, name, last=last or yes)
    else:
        path = f"/api/v1/keys/{quote(name, safe='')}/revoke"
        answer = ask.post(peer, path, {"last": last or yes})
    _lasting(answer)
    typer.echo(f"revoked {name}")
    if not answer["left"]:
        say(f"it was the last one: {OPEN}; `llmgw key add NAME` makes another")


def _found(inventory: Path | None, peer: ask.Peer | None) -> list[Json]:
    if peer is not None:
        found: list[Json] = ask.get(peer, "/api/v1/keys")["keys"]
        return found
    from llmgw.control import keys, store

    assert inventory is not None
    return keys.shown(store.read_keys(inventory))


def _names(inventory: Path | None, peer: ask.Peer | None) -> list[str]:
    return [key["id"] for key in _found(inventory, peer)]


def _peer(control: str | None) -> ask.Peer:
    return ask.first(ask.control(config.Given({"control": control})))


def _lasting(answer: Json) -> None:
    if answer.get("warning"):
        say(f"a restart of control would forget it: {answer['warning']}")


def _offline_add(inventory: Path, want: Json) -> Json:
    import msgspec

    from llmgw.control import keys, store

    wanted = msgspec.convert(want, keys.Wanted)
    secret = store.edit_keys(inventory, lambda there, at: keys.added(there, wanted, at))
    return {"name": wanted.name, "key": secret}


def _online_add(control: str | None, want: Json) -> Json:
    answer: Json = ask.post(_peer(control), "/api/v1/keys", want)
    return answer


def _offline_revoke(inventory: Path, name: str, *, last: bool) -> Json:
    from llmgw.control import keys, store

    def edit(there: keys.Keys, _: str) -> tuple[keys.Keys, Json]:
        return keys.without(there, name, last=last), {"left": len(there) - 1}

    return store.edit_keys(inventory, edit)
