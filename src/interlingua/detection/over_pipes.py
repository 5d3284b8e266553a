"""Looks at the output of a program on its pipes. Starts the program once for each protocol: its reaction to the first
words of another protocol may be anything."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from ..transports.raw_client import Broken, Endpoint, Gone, Pipes
from .cards import add_mcp_list, described_editor, described_mcp, described_peer, mcp_lists
from .findings import MOST, Listed, Spoken, object_of

Probe = Callable[[Pipes, str], Awaitable[Spoken | None]]

_LATEST_MCP = "2025-11-25"
_GRACE = 0.3
_ODD = 3  # odd facts to report of a program that speaks no protocol


async def look(command: list[str], shown: str, patience: float = 10.0) -> tuple[list[Spoken], list[str]]:
    """Finds every protocol that a program speaks, and reports odd facts. Raises Unavailable if it cannot be started."""
    subject = Endpoint(command=tuple(command), patience=patience, most=MOST)
    odd: list[str] = []
    tries = [asyncio.ensure_future(_try(probe, subject, shown, odd)) for probe in (_editor, _mcp, _cap, _peer)]
    try:
        for one in asyncio.as_completed(tries):
            if await one is not None:
                break
        # A program speaks one of them: what it has not said to the others by now, it will not say.
        await asyncio.wait(tries, timeout=_GRACE)
    finally:
        for running in tries:
            running.cancel()
        await asyncio.gather(*tries, return_exceptions=True)
    found = [spoken for one in tries if not one.cancelled() and (spoken := one.result()) is not None]
    return found, [] if found else list(dict.fromkeys(odd))[:_ODD]


class _Asked(Pipes):
    """Keeps the messages that it sends, to recognize their echo."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.sent: list[Any] = []

    def send(self, message: Any) -> None:
        self.sent.append(message)
        super().send(message)


async def _try(probe: Probe, subject: Endpoint, shown: str, odd: list[str]) -> Spoken | None:
    async with _Asked.open(subject) as pipes:
        why = ""
        try:
            found = await probe(pipes, shown)
        except (Gone, Broken) as error:
            found, why = None, str(error)
        if any(message in pipes.sent for message in pipes.messages):
            odd.append("it says back what it is told: whatever it speaks, it is none of these protocols")
            return None
        noise = text_of_line(pipes.noise[0]) if pipes.noise else ""
        if found is not None and noise:
            found.wrong.append(f"it prints lines that are no messages on stdout: {noise}")
        if found is None:
            if any(line.lower().startswith(b"content-length:") for line in pipes.lines):
                odd.append(
                    "it answers with Content-Length headers, as language servers do: none of these protocols has them"
                )
            elif noise:
                odd.append(f"it prints: {noise}")
            elif why and not pipes.messages:
                odd.append(pipes.gone() if pipes.ended else f"it says nothing within {subject.patience:g} s")
        return found


def text_of_line(line: bytes) -> str:
    return line[:400].decode(errors="replace").strip()[:100]


def _request(method: str, params: dict[str, Any], number: int = 0) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


async def _result(pipes: Pipes, number: int = 0) -> dict[str, Any] | None:
    answer = await pipes.until(
        lambda m: m.get("id") == number and ("result" in m or "error" in m), "an answer"
    )  # fmt: skip
    result = answer.get("result")
    return result if isinstance(result, dict) else None


async def _editor(pipes: Pipes, shown: str) -> Spoken | None:
    pipes.send(_request("initialize", {"protocolVersion": 1, "clientCapabilities": {}}))
    result = await _result(pipes)
    if (
        result is None
        or "serverInfo" in result
        or not ({"agentCapabilities", "agentInfo", "authMethods"} & set(result))
    ):
        return None
    return described_editor(result, f"editor:{shown}")


async def _mcp(pipes: Pipes, shown: str) -> Spoken | None:
    params = {"protocolVersion": _LATEST_MCP, "capabilities": {}, "clientInfo": {"name": "interlingua", "version": "0"}}
    pipes.send(_request("initialize", params))
    result = await _result(pipes)
    if result is None or "serverInfo" not in result:
        return None
    pipes.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
    spoken = described_mcp(result, f"mcp:{shown}")
    for number, kind in enumerate(mcp_lists(spoken), 1):
        pipes.send(_request(f"{kind}/list", {}, number))
        add_mcp_list(spoken, kind, await _result(pipes, number))
    return spoken


async def _cap(pipes: Pipes, shown: str) -> Spoken | None:
    """Sends a message to a recipient that does not exist: a program that speaks CAP answers it in CAP, if only with an
    error."""
    pipes.send({
        "type": "message", "task_id": "T0", "sender_id": "user", "recipient_id": "nobody", "content": "who is there?",
    })  # fmt: skip
    kinds = ("message", "error_response", "delegation_notice", "oversight_inquiry")
    answer = await pipes.until(lambda m: m.get("type") in kinds and "sender_id" in m, "a message of CAP")
    who = str(answer["sender_id"])
    agents = [Listed(who)] if who not in ("user", "orchestrator") else []
    return Spoken(protocol="cap", target=f"cap:{shown}", agents=agents)


async def _peer(pipes: Pipes, shown: str) -> Spoken | None:
    """A node that is started by others begins with its card."""
    card = {"name": "interlingua", "acp_version": "1.0", "capabilities": {"client_only": True}}
    pipes.send({"type": "acp.agent_card", "message_id": "msg_inspect", "card": card})
    frame = await pipes.until(lambda m: m.get("type") == "acp.agent_card", "a card")
    told = object_of(frame.get("card")) or frame
    spoken = described_peer(object_of(told.get("self")) or told, "")
    spoken.target = None
    spoken.notes.append("over pipes: a node is mounted by its link, not by its command")
    return spoken
