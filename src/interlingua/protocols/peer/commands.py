"""`interlingua peer`, which is also `acp-relay`: a node of the peer protocol, with agents behind it or without."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...cli.flags import DerivedCommand, given, option_of
from ...cli.options import Store, examples
from ...mounts.settings import variable
from ...server.config.fields import Setting, described
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
_IN_VARIABLES = ("name", "http_token", "secret", "identity")


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


class PeerCommand(DerivedCommand):
    """The command: the settings of the door are its options."""

    def derived(self) -> list[inspect.Parameter]:
        from .config import DoorSettings
        from .node_flags import flag_names  # every command imports this module

        names = flag_names()
        return [_option(one) for one in described(DoorSettings, "") if one.field in names]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, spelled_out(args))


def _option(setting: Setting) -> inspect.Parameter:
    from .node_flags import SPELLINGS

    spellings = [setting.field, *(other for other, name in SPELLINGS.items() if name == setting.field)]
    bounds = {"min": setting.least, "max": setting.most} if setting.kind in ("whole", "number") else {}
    name = setting.field
    return option_of(
        setting, name, [f"--{spelling.replace('_', '-')}" for spelling in spellings],
        envvar=variable("peer", name) if name in _IN_VARIABLES else None, **bounds,
    )  # fmt: skip


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


def peer(
    ctx: typer.Context,
    targets: Annotated[
        list[str] | None,
        typer.Argument(metavar="TARGET", help="Files with agents, which answer messages.", show_default=False),
    ] = None,
    relay_url: Annotated[
        str | None, _given("--relay-url", "URL", "The relay too; beside a --relay without a URL, the only way.")
    ] = None,
    extensions: Annotated[str | None, _given("--extensions", "URIS", "Extensions, separated by commas.")] = None,
    limitations_json: Annotated[
        str | None, _given("--limitations-json", "JSON", "Limitations as an array of texts and objects.")
    ] = None,
    config: Annotated[
        Path | None,
        _given(
            "--config",
            "FILE",
            "A file with defaults for all options, as JSON or YAML.",
            callback=_config,
            is_eager=True,
        ),
    ] = None,
    inbox: Annotated[
        Path | None, _given("--inbox", "FILE", "Accepted, without effect: the store keeps messages.")
    ] = None,
    local_only: Annotated[
        bool,
        typer.Option("--local-only", help="Accepted, without effect: the node contacts nobody whom you did not name."),
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log everything, for debugging.")] = False,
    log: Annotated[
        LogFormat, typer.Option("--log", help="How to log runs, peers and problems on stderr.")
    ] = LogFormat.TEXT,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and leave.", callback=_version, is_eager=True)
    ] = False,
    store: Store = None,
) -> None:
    """Run a node of the peer protocol.

    The command prints the `acp://` link by which others connect.

    The agents of the targets answer the messages of peers. Without targets, your own programs do, over the control API,
    for which curl is enough. `interlingua peers` talks to a running node. Ctrl-C stops the node.
    """
    from ...server.logs import logging_as
    from ...terminal.session import go
    from .config import DoorSettings

    other_words = {"relay_url": relay_url, "extensions": extensions, "limitations_json": limitations_json}
    values = {**given(ctx), **other_words}
    flags = DoorSettings(
        **{name: value for name, value in values.items() if value is not None and value not in ([], ())}
    )
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
