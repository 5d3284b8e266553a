"""Looks at the server at an address: tries each protocol there, and below the prefix that servers often have.

Sends only requests that change nothing: lists and handshakes. Any answer of a stranger ends in a finding or in none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any
from urllib.parse import urljoin

import httpx2

from ..model.errors import InterlinguaError, Unavailable
from ..protocols.probing import LOCKED, MOST, Spoken
from ..protocols.targets import kinds
from ..security.redaction import redact_text
from ..transports.raw_client import LONG_HEADERS, Broken, Endpoint, Gone, Http, megabytes
from . import strangers
from .probes import probes

Probe = Callable[[Http, str, str], Awaitable[Spoken | None]]

_UPGRADE = 426


async def look(
    url: str, headers: dict[str, str] | None = None, patience: float = 5.0
) -> tuple[list[Spoken], list[str]]:
    """Finds every protocol that is spoken at or below an address; if there is none, describes what is there instead.
    Raises Unavailable if nothing answers."""
    base = url.rstrip("/")
    subject = Endpoint(address=base, headers=headers or {}, patience=patience, most=MOST)
    async with Http(subject) as http:
        instead = await _first_look(http, base)
        installed = [(own.http, protocol.prefix) for protocol, own in probes() if own.http is not None]
        tries = [
            _first(probe, http, base, prefix)
            for probe, prefix in (*installed, (strangers.a2a, ""), (strangers.beeai, ""))
        ]
        spoken, slow = await _within(3 * patience, tries)
        odd = [] if spoken else [instead]
        if http.overlong:
            odd.append(f"{min(http.overlong)} was answered with more than {megabytes(MOST)}, which is not read")
        if slow:
            odd.append(f"it answers so slowly that not all could be tried within {3 * patience:g} s")
    return spoken, odd


async def _within(seconds: float, tries: list[Coroutine[Any, Any, Spoken | None]]) -> tuple[list[Spoken], bool]:
    """Returns what the tries find within a time, and whether some of them were not done by then."""
    tasks = [asyncio.ensure_future(one) for one in tries]
    try:
        _, slow = await asyncio.wait(tasks, timeout=seconds)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    found = [spoken for task in tasks if not task.cancelled() and (spoken := task.result()) is not None]
    return found, bool(slow)


async def _first_look(http: Http, base: str) -> str:
    """Describes in words what answers at the address."""
    try:
        async with http.stream("GET", "", headers={"accept": "*/*"}) as answer:
            status, kind, onward = answer.status, answer.media_type, answer.headers.get("location")
    except Gone as error:
        if "was not answered" in str(error):
            return f"something listens at {base}, and has answered nothing within {http.subject.patience:g} s"
        if LONG_HEADERS in str(error):
            raise Unavailable(f"what listens at {base} answers with {LONG_HEADERS}", transient=False) from None
        other = base.replace("http://", "https://", 1)
        hint = f"; if it speaks TLS: {other}" if base.startswith("http://") else ""
        raise Unavailable(f"what listens at {base} answers with no HTTP: {error}{hint}", transient=False) from None
    except Unavailable as error:
        if base.startswith("https://") and "[SSL" in error.message:
            other = base.replace("https://", "http://", 1)
            raise Unavailable(f"{error.message}; if it speaks no TLS: {other}", transient=False) from None
        raise
    if onward is not None and 300 <= status < 400:
        there = urljoin(base + "/", onward)
        if there.rstrip("/") == base:
            return f"it answers {status} and sends on to where it was asked: nobody would ever arrive"
        return f"it sends on to another address: look there, at {redact_text(there)}"
    if status == _UPGRADE:
        links = [kind.scheme for kind in kinds().values() if kind.secret_path]
        link = base.replace("http", links[0], 1) + "/TOKEN" if links else ""
        hint = f". A node is looked at by its link: interlingua inspect '{link}'" if link else ""
        return f"it answers {status}: it wants a WebSocket{hint}"
    if _status_locked(status):
        return f"it answers {status}: {LOCKED}"
    what = "a web page, for people" if kind == "text/html" else kind or "nothing"
    return f"GET {base} is answered with {status} and {what}"


async def _first(probe: Probe, http: Http, base: str, prefix: str) -> Spoken | None:
    """Returns what a probe finds at the address itself, else below the usual prefix."""
    for path in ("", prefix) if prefix and not base.endswith(prefix) else ("",):
        try:
            async with asyncio.timeout(2 * http.subject.patience):
                spoken = await probe(http, base + path, path)
        except (Broken, Gone, InterlinguaError, httpx2.HTTPError, TimeoutError):
            continue
        if spoken is not None:
            return spoken
    return None


def _status_locked(status: int) -> bool:
    return status in (401, 403)
