"""The interface between detection and the protocols: how a protocol recognises itself, and what it says of a server.

A protocol's `probe.py` speaks to a server whose protocol nobody knows. Strangers wrote what comes back: the functions
here read it with care.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from ..transports.jsonrpc.core import call_message
from ..transports.raw_client import Answer, Http, Pipes
from ..transports.raw_client.websocket import Socket

LOCKED = "it wants credentials: give a header with --header"
MOST = 4 * 1024 * 1024  # bytes of an answer that are read: what servers tell of themselves is much shorter


class Listed(msgspec.Struct, frozen=True):
    """An agent of a server."""

    name: str
    description: str = ""


class Spoken(msgspec.Struct, kw_only=True):
    """A protocol that the server speaks, and the facts about the server that it shows."""

    protocol: str
    title: str = ""  # of the protocol; that of the installed one, where it is empty
    target: str | None  # the argument for `interlingua run`; None if that cannot run it
    name: str = ""  # its own name for itself
    version: str = ""  # its own
    protocol_versions: list[str] = []
    agents: list[Listed] = []
    capabilities: list[str] = []
    wrong: list[str] = []  # its mistakes, as far as they were seen
    notes: list[str] = []


class Probes(msgspec.Struct, frozen=True, kw_only=True):
    """Each looks for the protocol in one way, and changes nothing on the server. Broken and Gone mean: not here."""

    http: Callable[[Http, str, str], Awaitable[Spoken | None]] | None = None
    """(client, address, path): looks at an address; the path leads there from the base of the client."""
    socket: Callable[[Socket, str], Awaitable[Spoken | None]] | None = None
    """(WebSocket, address): looks at the server behind a WebSocket that was opened for this probe."""
    pipes: Callable[[Pipes, str], Awaitable[Spoken | None]] | None = None
    """(pipes, command): looks at a program that was started for this probe."""
    link: Callable[[str], Awaitable[Spoken]] | None = None
    """(link): looks at a target whose path is a secret. Raises Unavailable if it cannot be reached."""


def flat(value: Any, prefix: str = "") -> list[str]:
    """The names of what is switched on in an object of capabilities: `sessionCapabilities.list`."""
    if not isinstance(value, dict):
        return []
    names = []
    for name, inner in value.items():
        path = f"{prefix}{name}"
        deeper = flat(inner, f"{path}.")
        if deeper:
            names += deeper
        elif inner not in (False, None):
            text = "/".join(map(str, inner)) if isinstance(inner, list) else inner
            names.append(path if isinstance(inner, bool | dict) else f"{path}={text}")
    return names


def object_of(value: Any) -> dict[str, Any]:
    """Returns a value that should be an object, or an empty object if it is something else."""
    return value if isinstance(value, dict) else {}


def list_of(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def text_of(value: Any) -> str:
    """Returns a value that should be a text, or an empty text if it is something else."""
    return value if isinstance(value, str) else ""


def first_line(value: Any) -> str:
    return text_of(value).strip().partition("\n")[0]


# -- JSON-RPC -------------------------------------------------------------------------------------------------

JSON_OR_STREAM = {"accept": "application/json, text/event-stream"}


def rpc_request(method: str, params: dict[str, Any], id_: int = 1) -> dict[str, Any]:
    return call_message(method, params, id_)


def rpc_result(answer: Answer) -> dict[str, Any] | None:
    """Returns the result in an answer, plain or the last of a stream."""
    if answer.status != 200:
        return None
    response: Any = None
    if answer.media_type == "text/event-stream":
        for line in answer.body.decode(errors="replace").splitlines():
            if line.startswith("data:") and line[5:].strip():
                try:
                    response = json.loads(line[5:])
                except ValueError:
                    return None
    else:
        response = answer.json()
    return _result_in(response)


async def rpc_response(pipes: Pipes, id_: int = 1) -> dict[str, Any] | None:
    """Waits for the response to a request, and returns its result."""
    return _result_in(
        await pipes.until(lambda m: m.get("id") == id_ and ("result" in m or "error" in m), "an answer")
    )  # fmt: skip


def _result_in(response: Any) -> dict[str, Any] | None:
    result = response.get("result") if isinstance(response, dict) else None
    return result if isinstance(result, dict) else None
