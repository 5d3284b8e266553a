"""`interlingua peer`, which is also `acp-relay`: a node of the peer protocol, with agents behind it or without."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from ...cli.options import Store, examples
from ...server.logs import LogFormat

if TYPE_CHECKING:
    from ..base import Command
    from .config import DoorSettings
    from .node.hosting import Hosting

EPILOG = examples(
    "interlingua peer --name Alice",
    "interlingua peer agents.py --name Bob --join acp://127.0.0.1:7801/tok_0123456789abcdef",
    "interlingua peer agents.py --host 0.0.0.0 --secret shared --identity --advertise-mdns",
    "interlingua peer --config node.json --port 7811",
)

# Flags that may stand without a value.
_BARE = ("--identity", "--relay")


def spelled_out(arguments: list[str]) -> list[str]:
    """Returns the arguments with every value in its place: `--identity` and `--relay` may have none."""
    found: list[str] = []
    for at, argument in enumerate(arguments):
        if argument == "--":
            return found + arguments[at:]
        following = arguments[at + 1] if at + 1 < len(arguments) else "-"
        bare = argument in _BARE and not _is_value(argument, following)
        found.append(f"{argument}=" if bare else argument)
    return found


def _is_value(option: str, word: str) -> bool:
    if word.startswith("-"):
        return False
    if option == "--relay":
        return "://" in word or not word
    return not (word.endswith(".py") or ".py:" in word or ".py#" in word or "://" in word)  # a target with agents


class PeerCommand(TyperCommand):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, spelled_out(args))


def add_peer(to: typer.Typer, command: Command) -> None:
    to.command(command.name, epilog=EPILOG, cls=PeerCommand, rich_help_panel=command.panel)(peer)


def _version(wanted: bool) -> None:
    if wanted:
        from ..._version import __version__

        typer.echo(f"interlingua {__version__}")
        raise typer.Exit


def _config(ctx: typer.Context, path: Path | None) -> Path | None:
    if path is not None:
        from .node_flags import read_config

        ctx.default_map = {**(ctx.default_map or {}), **read_config(path)}
    return path


def _given(name: str, metavar: str | None, text: str, *more: str, **others: Any) -> Any:
    return typer.Option(name, *more, metavar=metavar, help=text, show_default=False, **others)


Port = {"min": 0, "max": 65535}


def peer(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TARGET]...", help="Agents that answer: files with agents in them.", show_default=False
        ),
    ] = None,
    name: Annotated[
        str, typer.Option("--name", help="What others call this node.", envvar="INTERLINGUA_PEER_NAME")
    ] = "ACP-Agent",
    port: Annotated[
        int | None, _given("--port", None, "Where peers connect; 7801, or a free one where that is taken.", **Port)
    ] = None,
    http_port: Annotated[
        int | None, _given("--http-port", None, "The control API; 7901, or a free one where that is taken.", **Port)
    ] = None,
    host: Annotated[
        str, typer.Option("--host", help="The address where peers connect; 0.0.0.0 for those on other machines.")
    ] = "127.0.0.1",
    http_host: Annotated[
        str, typer.Option("--http-host", help="The address of the control API. Elsewhere than here, it wants a token.")
    ] = "127.0.0.1",
    http_token: Annotated[
        str | None,
        _given("--http-token", "TOKEN", "What the control API wants to see.", envvar="INTERLINGUA_PEER_HTTP_TOKEN"),
    ] = None,
    tcp_port: Annotated[
        int | None, _given("--tcp-port", None, "Also take peers that come by plain TCP (tcp:// links), here.", **Port)
    ] = None,
    public_host: Annotated[
        str | None, _given("--public-host", "HOST", "The host in the link, where others reach this machine by it.")
    ] = None,
    public_url: Annotated[
        str | None, _given("--public-url", "URL", "Where files of this node are fetched, where that is not here.")
    ] = None,
    join: Annotated[list[str] | None, _given("--join", "LINK", "Connect to this peer (repeatable).")] = None,
    skills: Annotated[
        str | None, _given("--skills", "IDS", "Skills to advertise: ids separated by commas, or a JSON array.")
    ] = None,
    default_agent: Annotated[
        str | None, _given("--default-agent", "AGENT", "Who answers messages that name no skill.")
    ] = None,
    secret: Annotated[
        str | None,
        _given("--secret", "KEY", "Sign messages with this shared secret.", envvar="INTERLINGUA_PEER_SECRET"),
    ] = None,
    hmac_window: Annotated[
        float, typer.Option("--hmac-window", min=1, help="Seconds that a signed message may be old.")
    ] = 300.0,
    strict: Annotated[bool, typer.Option("--strict", help="Drop what is badly signed, instead of a warning.")] = False,
    identity: Annotated[
        str | None,
        _given(
            "--identity",
            "[PATH]",
            "Sign with an Ed25519 key, kept in PATH (else ~/.acp/identity.json), where it is made if need be.",
            "--identity-file",
            envvar="INTERLINGUA_PEER_IDENTITY",
        ),
    ] = None,
    relay: Annotated[
        str | None, _given("--relay", "[URL]", "A relay for when peers cannot connect directly: acp+wss://HOST.")
    ] = None,
    relay_url: Annotated[
        str | None, _given("--relay-url", "URL", "The same; beside a --relay without URL, the only way.")
    ] = None,
    transport_modes: Annotated[
        str | None, _given("--transport-modes", "MODES", "p2p, relay, or both with a comma between them.")
    ] = None,
    advertise_mdns: Annotated[
        bool, typer.Option("--advertise-mdns", help="Tell the local network of this node, link included.")
    ] = False,
    advertise_dnssd: Annotated[
        bool, typer.Option("--advertise-dnssd", help="The same by standard DNS-SD (needs zeroconf).")
    ] = False,
    max_msg_bytes: Annotated[
        int, typer.Option("--max-msg-bytes", "--max-msg-size", min=1024, help="The largest message that is taken.")
    ] = 1_048_576,
    extension: Annotated[
        list[str] | None,
        _given("--extension", "URI[,required=true][,KEY=VALUE...]", "An extension to declare (repeatable)."),
    ] = None,
    extensions: Annotated[str | None, _given("--extensions", "URIS", "Extensions, separated by commas.")] = None,
    http2: Annotated[
        bool, typer.Option("--http2", help="HTTP/2 in cleartext on the control API, too (needs hypercorn).")
    ] = False,
    availability_mode: Annotated[
        str | None, _given("--availability-mode", "MODE", "persistent, heartbeat, cron or manual.")
    ] = None,
    heartbeat_interval: Annotated[
        float | None, _given("--heartbeat-interval", "SECONDS", "How often this node wakes up.", min=0)
    ] = None,
    next_active_at: Annotated[
        str | None, _given("--next-active-at", "TIME", "When it is there next, as in 2026-11-15T09:00:00Z.")
    ] = None,
    availability_cron: Annotated[
        str | None, _given("--availability-cron", "CRON", "When it is there, as a cron expression.")
    ] = None,
    supported_interfaces: Annotated[
        str | None, _given("--supported-interfaces", "NAMES", "Interface groups for the card, separated by commas.")
    ] = None,
    limitations: Annotated[
        str | None, _given("--limitations", "TEXTS", "What this node cannot do, separated by commas.")
    ] = None,
    limitations_json: Annotated[
        str | None, _given("--limitations-json", "JSON", "The same as an array of texts and objects.")
    ] = None,
    tls_cert: Annotated[
        Path | None, _given("--tls-cert", "FILE", "Take peers by TLS (acps:// links), with this certificate.")
    ] = None,
    tls_key: Annotated[Path | None, _given("--tls-key", "FILE", "The key of the certificate.")] = None,
    tls_ca: Annotated[
        Path | None, _given("--tls-ca", "FILE", "Certificates to trust beside those of the system.")
    ] = None,
    config: Annotated[
        Path | None,
        _given("--config", "FILE", "Defaults for all flags, as JSON or YAML.", callback=_config, is_eager=True),
    ] = None,
    inbox: Annotated[
        Path | None, _given("--inbox", "FILE", "Accepted and not used: messages are kept in the store.")
    ] = None,
    local_only: Annotated[
        bool, typer.Option("--local-only", help="Accepted: nobody is contacted whom you did not name, in any case.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log everything, for debugging.")] = False,
    log: Annotated[
        LogFormat, typer.Option("--log", help="Runs, peers and trouble on stderr: as JSON lines, as text, or not.")
    ] = LogFormat.TEXT,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and leave.", callback=_version, is_eager=True)
    ] = False,
    store: Store = None,
) -> None:
    """Run a node of the peer protocol.

    The command prints the `acp://` link by which others connect.

    Agents that are given answer what peers send. Without any, programs of yours do, over the control API: all of it
    can be used with curl. `interlingua peers` talks to a node that runs. Ctrl-C stops.
    """
    given = dict(locals())
    from ...server.logs import logging_as
    from ...terminal.session import go
    from .config import DoorSettings
    from .node_flags import flag_names

    flags = DoorSettings(**{name: given[name] for name in flag_names() if given[name] is not None})
    with logging_as(log):
        if verbose:
            import logging

            logging.getLogger("interlingua").setLevel(logging.DEBUG)  # libraries would write down headers, secrets too
        go(_peer(targets or [], flags, store, log))


async def _peer(targets: list[str], flags: DoorSettings, store: Path | None, form: LogFormat) -> int:
    import asyncio
    import logging
    import signal

    from ...server.loading.target import load_to_serve
    from ...server.paths import Place
    from ..targets import parse
    from .commands_node import hosting
    from .node_flags import settings_of

    settings = settings_of(flags)
    parsed = [parse(target) for target in targets]
    place = Place(store, parsed)
    agents = [agent for target in parsed for agent in await load_to_serve(target, place.project.root)]
    project = place.project.claim(place.store)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with hosting(place.store, agents, settings, bus=place.bus, project=project, root=place.project.root) as host:
        if form is LogFormat.JSON:  # a reader of JSON lines wants nothing else; the link is a secret
            fields = {"address": host.control, "name": host.node.name}
            logging.getLogger("interlingua").info("a node is up at %s", host.control, extra={"fields": fields})
        else:
            show(host)
        await stop.wait()
        loop.remove_signal_handler(signal.SIGINT)  # a second Ctrl-C leaves at once
    return 0


def show(host: Hosting) -> None:
    """Prints the name of the node, how to connect, and lines to try."""
    from ...cli.serve_loop import say
    from ...security.addresses import is_loopback

    node = host.node
    agents = ", ".join(agent.card.name for agent in node.engine.agents)
    say(f"Node {node.name} is up; {f'agents: {agents}' if agents else 'no agents, so your programs answer'}")
    for line in host.lines():
        say(f"  {line}")
    if is_loopback(node.settings.host) and node.link is not None:
        say("  (from this machine alone; --host 0.0.0.0 lets others in)")
    if node.link is not None:
        say("Connect another one:")
        say(f"$ interlingua peer --name Friend --join {node.link}")
    say("Then send to it:")
    token = " -H 'authorization: Bearer TOKEN'" if host.http_token is not None else ""
    body = '{"role": "user", "text": "hello"}'
    say(f"$ curl -s {host.control}/message:send{token} -H 'content-type: application/json' -d '{body}'")
    say("Ctrl-C stops.")


def acp_relay() -> None:
    """The entry point of the `acp-relay` script: `interlingua peer` by the name that the specification has for it."""
    from ...cli.app import start

    start("peer")
