"""Looks at the output of a program on its pipes. Starts the program once for each protocol: its reaction to the first
words of another protocol may be anything."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from ..protocols.probing import MOST, Spoken
from ..transports.raw_client import Broken, Endpoint, Gone, Pipes
from .probes import probes

Probe = Callable[[Pipes, str], Awaitable[Spoken | None]]

_GRACE = 0.3
_ODD = 3  # odd facts to report of a program that speaks no protocol


async def look(command: list[str], shown: str, patience: float = 10.0) -> tuple[list[Spoken], list[str]]:
    """Finds every protocol that a program speaks, and reports odd facts. Raises Unavailable if it cannot be started."""
    subject = Endpoint(command=tuple(command), patience=patience, most=MOST)
    odd: list[str] = []
    tries = [asyncio.ensure_future(_try(probe, subject, shown, odd)) for _, own in probes() if (probe := own.pipes)]
    try:
        for attempt in asyncio.as_completed(tries):
            if await attempt is not None:
                break
        # A program speaks one of them: what it has not said to the others by now, it will not say.
        await asyncio.wait(tries, timeout=_GRACE)
    finally:
        for running in tries:
            running.cancel()
        await asyncio.gather(*tries, return_exceptions=True)
    found = [spoken for attempt in tries if not attempt.cancelled() and (spoken := attempt.result()) is not None]
    return found, [] if found else list(dict.fromkeys(odd))[:_ODD]


class _EchoAware(Pipes):
    """Keeps the messages that it sends, to recognize their echo."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.sent: list[Any] = []

    def send(self, message: Any) -> None:
        self.sent.append(message)
        super().send(message)


async def _try(probe: Probe, subject: Endpoint, shown: str, odd: list[str]) -> Spoken | None:
    async with _EchoAware.open(subject) as pipes:
        why = ""
        try:
            spoken = await probe(pipes, shown)
        except (Gone, Broken) as error:
            spoken, why = None, str(error)
        if any(message in pipes.sent for message in pipes.messages):
            odd.append("it repeats what it receives: whatever it speaks, it is none of these protocols")
            return None
        noise = text_of_line(pipes.noise[0]) if pipes.noise else ""
        if spoken is not None and noise:
            spoken.wrong.append(f"it prints lines that are no messages on stdout: {noise}")
        if spoken is None:
            if any(line.lower().startswith(b"content-length:") for line in pipes.lines):
                odd.append(
                    "it answers with Content-Length headers, as language servers do: none of these protocols has them"
                )
            elif noise:
                odd.append(f"it prints: {noise}")
            elif why and not pipes.messages:
                odd.append(pipes.gone() if pipes.ended else f"it says nothing within {subject.patience:g} s")
        return spoken


def text_of_line(line: bytes) -> str:
    return line[:400].decode(errors="replace").strip()[:100]
