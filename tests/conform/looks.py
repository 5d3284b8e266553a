"""Lists the looks that the checker takes at our own doors: over each wire, and at agents that show the rest."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from interlingua.security.keys import make_key
from interlingua.server.auth.stored_keys import StoredKeys
from interlingua.store.open import open_store
from interlingua_conform.base import Roles, Subject
from tests.kit import warm_python
from tests.kit.commands import process_env
from tests.kit.servers import Process, node, started

HERE = Path(__file__).parent
_ROOT = HERE.parents[1]
AGENTS = HERE / "agents.py"
ROLES = Roles(agent="echo", asking="careful", slow="slow", failing="broken")

Ids = frozenset[str]
Shows = Callable[[Ids], Ids]


@dataclass(frozen=True)
class Look:
    """A run of a suite of checks against one of our doors."""

    name: str  # the protocol, and what is looked at
    at: tuple[str, str] | None = None  # a server, and a path at it, or a pattern of what it prints; else `command`
    command: tuple[str, ...] = ()
    roles: Roles = ROLES
    only: tuple[str, ...] = ()  # beginnings of ids; all without it
    shows: Shows | None = None  # the ids that pass, of those that are looked at; None where that is not fixed
    fewest: int = 0  # how many pass at least, where they are not fixed
    patience: float = 60.0
    secret: str | None = None

    @property
    def protocol(self) -> str:
        return self.name.partition(" ")[0]

    def wants(self, ids: Ids) -> Ids:
        return frozenset(name for name in ids if name.startswith(self.only)) if self.only else ids


class Servers:
    """Starts each server when it is first needed. All of them end with the context."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._processes: dict[str, Process] = {}
        self._key = ""

    def __enter__(self) -> Servers:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def subject(self, look: Look) -> Subject:
        """The server or command of a look."""
        if look.at is None:
            store = self._folder / f"{look.name.replace(' ', '-')}.db"
            command = tuple(word.replace("STORE", str(store)) for word in look.command)
            return Subject(command=command, roles=look.roles, patience=look.patience)
        name, place = look.at
        process = self._process(name)
        address = process.find(place) if "(" in place else process.find(r"Serving on (http://\S+)") + place
        if place == "ws":
            address = address.replace("http://", "ws://").removesuffix("ws") + "/editor"
        headers = {"authorization": f"Bearer {self._key}"} if name == "all" else {}
        return Subject(address=address, roles=look.roles, patience=look.patience, secret=look.secret, headers=headers)

    def _process(self, name: str) -> Process:
        if name not in self._processes:
            folder = self._folder / name
            folder.mkdir()
            env = process_env(folder)
            env["PYTHONPATH"] += f":{_ROOT}"  # the agents of some servers are modules of the tests
            if name == "all":
                self._key = asyncio.run(_key_in(env["INTERLINGUA_STORE"]))
            if name == "node":
                process = self._stack.enter_context(node(env, folder, *_NODE))
            else:
                process = self._stack.enter_context(started(["serve", *_SERVED[name], *_PORTS], env, folder))
            self._processes[name] = process
        return self._processes[name]


async def _key_in(store: str) -> str:
    """A key of the server that has this store."""
    secret, record = make_key("ada", (), int(time.time() * 1e6))
    opened = open_store(store if "://" in store else Path(store))
    await opened.open()
    await StoredKeys(opened.keys).put(record)
    await opened.close()
    return secret


_SERVED: dict[str, tuple[str, ...]] = {
    "common": (str(AGENTS), "--editor-keep-alive", "0.05"),
    "all": (
        str(HERE / "every_agent.py"), "--mcp-page", "3", "--connect-disconnect-grace", "0.05",
        "--connect-keep-alive", "0.02",
    ),
    "team": (f"team:{_ROOT / 'examples' / 'sales-team'}",),
}  # fmt: skip
_PORTS = ("--port", "0", "--peer-port", "0", "--peer-http-port", "0")
_NODE = (
    "--name", "Full", "--secret", "shared", "--identity", "identity.json", "--advertise-mdns", "--http2",
    "--transport-modes", "p2p", "--availability-mode", "heartbeat", "--heartbeat-interval", "60",
    "--extension", "https://corp.example.com/ext/billing,tier=pro", "--limitations", "no images",
    "--skills", "summarize,translate",
)  # fmt: skip


def _stdio(protocol: str, file: Path = AGENTS) -> tuple[str, ...]:
    return (
        "env", "INTERLINGUA_PROJECT=tests", f"PYTHONPATH={_ROOT / 'src'}:{_ROOT}",
        warm_python.interlingua() if protocol != "peer" else sys.executable,
        *(("-m", "interlingua") if protocol == "peer" else ()), "stdio", "--as", protocol, "--store", "STORE",
        str(file),
    )  # fmt: skip


def _without(*ids: str) -> Shows:
    return lambda every: every - {name for name in every if name.startswith(ids)}


def _just(*ids: str) -> Shows:
    return lambda every: frozenset(name for name in every if name in ids)


def _all(ids: Ids) -> Ids:
    return ids


# -- what some looks cannot show ------------------------------------------------------------------------------

_EDITOR_NETWORK = (
    "editor.messages.streamable-http-defined", "editor.messages.custom-possible", "editor.http.", "editor.custom.",
)  # fmt: skip
_EDITOR_PIPES = (
    "editor.messages.stdio-defined", "editor.messages.agent-supports-stdio", "editor.batch.end-inside",
    "editor.input.invalid-utf-8", "editor.input.blank-lines", "editor.input.too-long", "editor.input.random",
    "editor.stdio.",
)  # fmt: skip
_FORMS = (
    "editor.v1.elicitation", "editor.v1.elicitation-declined", "editor.v1.spoken", "editor.v2.questions",
    # by agents with commands, and who print
    "editor.batch.follows-array", "editor.stdio.stderr-logging",
)  # fmt: skip
_LOGINS = ("editor.v1.authenticate", "editor.v1.terminal-auth", "editor.v2.login")

NOWHERE = {
    "editor.batch.agent-sends": "the door sends a batch only where the program that serves it asks for one",
    "editor.http.http-2": "declared as a deviation: we speak HTTP/1.1, and a proxy may speak HTTP/2",
    "editor.http.listen-before-load": "declared as a deviation: the stream opens, for clients that listen first",
    "peer.5-4.relay-only": "each of our nodes can be reached directly",
    "peer.6.internal": "nothing goes wrong inside",
    "cap.example-flow.inquiry-attachments": "an inquiry of ours is a verdict; attachments go with a message of its own",
}
"""The requirements that none of our doors shows, and why."""

_MCP_ECHO = (
    "mcp.delta.",  # one delta holds all that it says
    "mcp.listing.example-gpa", "mcp.running.example-howdy", "mcp.progress.example-howd",
    "mcp.running.schemas-unspecified",  # it takes and gives what the document's example does
    "mcp.door.templates", "mcp.door.list-changed",  # no agent takes a config
    "mcp.door.paging",
)  # fmt: skip

_CONNECT_OTHERS = {
    "connect.schemas.threads-optional": "plain",  # about agents without threads
    "connect.openapi.stream-mode-subset": "plain",  # without one of the modes
    "connect.schemas.streaming-optional": "mute",  # without any
    "connect.threads.state-inaccessible": "echo",  # with threads whose state no descriptor defines
}
"""What does not apply to an agent that uses everything, and the agent that shows it."""
_CONNECT_BOTH = ("connect.openapi.webhook", "connect.openapi.operations")


def _connect_agent(agent: str) -> Look:
    ids = (*(name for name, other in _CONNECT_OTHERS.items() if other == agent), *_CONNECT_BOTH)
    return Look(f"connect {agent}", ("all", "/connect"), roles=Roles(agent=agent), only=ids, shows=_all)


_CAP_EXAMPLE = (
    "cap.example-flow.analyst-asks-pm", "cap.example-flow.analyst-responds", "cap.example-flow.analyst-to-qa",
    "cap.example-flow.pm-asks-user", "cap.example-flow.pm-clarifies", "cap.example-flow.pm-delegates",
    "cap.example-flow.qa-approves", "cap.example-flow.research-before-handoff", "cap.example-flow.whole-flow",
)  # fmt: skip
_CAP_LATE = ("cap.observability.signals-timeout", "cap.audit.error-example")

LOOKS = (
    Look("connect common", ("common", "/connect"), fewest=180),
    Look(
        "connect chat", ("all", "/connect"), shows=_without(*_CONNECT_OTHERS),
        roles=Roles(agent="chat", asking="asker", slow="sleeper", failing="unwilling"),
    ),
    _connect_agent("plain"),
    _connect_agent("mute"),
    Look("mcp http", ("common", "/mcp"), shows=_without(*_MCP_ECHO)),
    Look("mcp sse", ("common", "/mcp/sse"), shows=_without(*_MCP_ECHO)),
    Look("mcp stdio", command=_stdio("mcp"), shows=_without(*_MCP_ECHO)),
    *(
        Look(f"mcp {agent}", ("all", "/mcp"), roles=Roles(agent=agent, asking="careful", slow="slow", failing="broken"))
        for agent in ("gpa", "story", "styled")
    ),
    Look("peer node", ("node", r"control API at (https?://\S+)"), roles=Roles(), secret="shared", fewest=439),
    Look("peer control", ("common", r"control API at (https?://\S+)"), fewest=101),
    Look("peer door", ("common", r"(http://\S+/peer)"), fewest=101),
    Look("peer link", ("common", r"peers connect to .* with (acps?://\S+)"), fewest=101),
    Look("peer stdio", command=_stdio("peer"), fewest=101),
    Look(
        "editor stdio", command=_stdio("editor"),
        shows=_without(*_EDITOR_NETWORK, *_FORMS, *_LOGINS, *NOWHERE),
    ),
    Look(
        "editor http", ("common", "/editor"),
        shows=_without(*_EDITOR_PIPES, *_FORMS, *_LOGINS, "editor.http.callers", *NOWHERE),
    ),
    Look(
        "editor websocket", ("common", "ws"),
        only=("editor.v1.prompt", "editor.http.", "editor.custom.agent"),
        shows=_just(
            "editor.v1.prompt", "editor.http.websocket", "editor.http.websocket-initialize", "editor.custom.agent"
        ),
    ),
    Look(
        "editor clerk", command=_stdio("editor", HERE / "editor" / "agents.py"),
        roles=Roles(asking="clerk"), only=_FORMS, shows=_all,
    ),
    Look(
        "editor guarded", command=_stdio("editor", HERE / "editor" / "guarded.py"), roles=Roles(),
        only=(*_LOGINS, "editor.v1.prompt"), shows=_just(*_LOGINS),
    ),
    Look(
        "editor keys", ("all", "/editor"), roles=Roles(agent="echo"),
        only=("editor.http.callers", "editor.v1.prompt", "editor.http.streams"), shows=_all,
    ),
    Look("cap common", ("common", "/cap"), fewest=51),
    Look("cap stdio", command=_stdio("cap"), fewest=51),
    Look(
        "cap crew", ("all", "/cap"), roles=Roles(agent="lead", asking="careful", slow="slow", failing="boss"),
        shows=_without(*_CAP_EXAMPLE, *_CAP_LATE, *NOWHERE),
    ),
    Look("cap late", ("all", "/cap"), roles=Roles(agent="echo", failing="waiter"), only=_CAP_LATE, shows=_all),
    Look("cap team", ("team", "/cap"), roles=Roles(agent="pm-1"), only=_CAP_EXAMPLE, shows=_all),
)  # fmt: skip
