"""`interlingua peers`: a node that runs, looked at and used from another shell, over its control API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...cli.options import Json, examples

if TYPE_CHECKING:
    from ..base import Command

app = typer.Typer(
    no_args_is_help=True,
    help="Use a running node: its peers, and their messages.\n\nThe node is that of `interlingua peer`, or of "
    "`interlingua serve`.",
)

Url = Annotated[
    str, typer.Option("--url", metavar="URL", envvar="ACP_BASE_URL", help="The control API of the node.")
]  # fmt: skip
Token = Annotated[
    str | None,
    typer.Option(
        "--token", envvar="INTERLINGUA_PEER_HTTP_TOKEN", help="What it wants to see, where it is not on this machine.",
        show_default=False,
    ),
]  # fmt: skip
BASE = "http://127.0.0.1:7901"


def add_peers(to: typer.Typer, command: Command) -> None:
    to.add_typer(app, name=command.name, rich_help_panel=command.panel)


def _node(url: str, token: str | None) -> Any:
    from .commands_client import NodeClient

    return NodeClient(url, token)


def _print(told: Any, as_json: bool, lines: list[str]) -> None:
    """Prints an answer. A peer's text is untrusted: nothing in it may move the cursor."""
    import json

    from ...terminal.console import clean

    typer.echo(json.dumps(told) if as_json else "\n".join(clean(line) for line in lines))


@app.command("status", epilog=examples("interlingua peers status", "interlingua peers status --json"))
def status(url: Url = BASE, token: Token = None, as_json: Json = False) -> None:
    """Show who the node is, how others connect to it, and how many are."""
    node = _node(url, token)
    told = {**node.get("/status"), **node.get("/link")}
    lines = [
        f"name       {told.get('agent_name')}",
        f"link       {told.get('link') or 'none: others cannot connect to it'}",
        f"connected  {told.get('peer_count', 0)}",
        f"messages   {told.get('messages_sent', 0)} sent, {told.get('messages_received', 0)} received",
    ]
    _print(told, as_json, lines)


@app.command("list", epilog=examples("interlingua peers list"))
def list_(url: Url = BASE, token: Token = None, as_json: Json = False) -> None:
    """List the peers that the node knows, connected or not."""
    peers = _node(url, token).get("/peers")["peers"]
    lines = [f"{p['id']}  {'connected' if p['connected'] else 'away':<9}  {p['name']}" for p in peers]
    _print(peers, as_json, lines or ["no peers yet; interlingua peers connect LINK"])


@app.command("connect", epilog=examples("interlingua peers connect acp://192.0.2.7:7801/tok_0123456789abcdef"))
def connect(
    link: Annotated[str, typer.Argument(metavar="LINK", help="The link of the other node.", show_default=False)],
    url: Url = BASE,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Connect the node to another one, and keep it connected."""
    told = _node(url, token).post("/peers/connect", link=link)
    _print(told, as_json, [f"{told['peer_id']} is being connected"])


@app.command(
    "send", epilog=examples('interlingua peers send "hello"', 'interlingua peers send "hello" --to peer_001 --wait 30')
)
def send(
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What to say.", show_default=False)],
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="PEER", help="To whom, where several are connected.", show_default=False),
    ] = None,
    wait: Annotated[
        float | None,
        typer.Option(
            "--wait", metavar="SECONDS", min=1, max=60, help="Wait so long for the reply.", show_default=False
        ),
    ] = None,
    url: Url = BASE,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Send a message to a peer."""
    told = _node(url, token).post(
        "/message:send", role="user", text=text, peer_id=to, sync=True if wait else None, timeout=wait
    )
    reply = told.get("reply")
    how = "queued as" if told.get("queued") else "sent as"
    lines = [_said(reply)] if isinstance(reply, dict) else [f"{how} {told['message_id']}"]
    _print(told, as_json, lines)


@app.command("receive", epilog=examples("interlingua peers receive", "interlingua peers receive --wait 30"))
def receive(
    wait: Annotated[
        float | None,
        typer.Option(
            "--wait", metavar="SECONDS", min=0, max=30, help="Wait so long for something.", show_default=False
        ),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many to take at most.")] = 50,
    url: Url = BASE,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Take the messages that have come. Each is handed out once."""
    messages = _node(url, token).get("/message:recv", wait=wait, limit=limit)["messages"]
    lines = [
        f"{message.get('from') or (message.get('raw') or {}).get('from')}: {_said(message)}" for message in messages
    ]
    _print(messages, as_json, lines or ["nothing has come"])


def _said(message: dict[str, Any]) -> str:
    """Returns the text of a message; of parts without text, the kind."""
    parts = message.get("parts") or []
    told = [part["content"] if part.get("type") == "text" else f"[{part.get('type')}]" for part in parts]
    return " ".join(told) if told else str(message.get("content"))
