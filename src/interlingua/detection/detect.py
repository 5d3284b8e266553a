"""Detects the protocols that a server or a program speaks, by speaking each of them to it.

Four of the five are called ACP, and others go by that name too. `at_address` looks at an address, `over_pipes` at a
program's pipes, `websockets` at a WebSocket, and a protocol itself at its links; all return `Spoken`. `quick_check`
adds the mistakes that show without running anything.
"""

from __future__ import annotations

import re
import shutil

from ..model.errors import Unavailable
from ..protocols.installed import protocols
from ..protocols.probing import Probes, Spoken
from ..protocols.targets import kinds, parse, protocol_of, schemes
from .probes import is_installed, with_title

__all__ = ["Spoken", "addressed", "detected", "inspect", "is_installed"]

_NAME = re.compile(r"[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*(/\S*)?")
_HOST = re.compile(r"([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\]):\d{1,5}(/\S*)?")


async def inspect(text: str, headers: dict[str, str] | None = None) -> tuple[list[Spoken], list[str]]:
    """Finds every protocol that is spoken by the target of a text (an address, a link, a command), and reports odd
    facts."""
    from . import quick_check

    found, odd = await _spoken(text, headers)
    await quick_check.look(found, headers)
    return [with_title(spoken) for spoken in found], odd


def addressed(text: str) -> str:
    """Turns HOST:PORT, as people write it, into an address of HTTP, unless there is a program of that name."""
    host = _HOST.fullmatch(text)
    if host is None or host[1] in schemes("command") or shutil.which(text) is not None:
        return text
    return f"http://{text}"


async def _spoken(text: str, headers: dict[str, str] | None) -> tuple[list[Spoken], list[str]]:
    from ..transports.process.child_process import words_of

    text = addressed(text)
    scheme, mark, rest = text.partition("://")
    kind = scheme.rpartition("+")[2]
    if mark and " " not in scheme:
        known = kinds().get(scheme)
        if known is not None and known.secret_path:
            return [await _at_link(text, scheme)], []
        address = f"{kind}://{rest}".partition("#")[0]
        if kind in ("http", "https"):
            from .at_address import look as at_address

            return await at_address(address, headers)
        if kind in ("ws", "wss"):
            from .websockets import look as at_socket

            return await at_socket(address, headers)
        parse(text)  # says what is wrong with it
    from .over_pipes import look as at_command

    command = next((text.removeprefix(f"{kind}:") for kind in schemes("command") if text.startswith(f"{kind}:")), text)
    words = words_of(command, "inspect")
    try:
        return await at_command(words, command)
    except Unavailable as error:
        hint = f"; if it is an address, write it as one: http://{command}" if _NAME.fullmatch(command) else ""
        raise Unavailable(f"{error.message}{hint}", transient=False) from None


async def _at_link(link: str, scheme: str) -> Spoken:
    """Looks at a target whose path is a secret: the protocol of its scheme knows how."""
    protocol = protocol_of(scheme)
    own: Probes | None = protocol.load("probes") if protocol is not None else None
    if own is None or own.link is None:
        raise Unavailable(f"nobody here knows how to look at {scheme}:// links", transient=False)
    return await own.link(link)


async def detected(url: str, headers: dict[str, str] | None = None) -> Spoken:
    """Returns the protocol to speak at an address that names none. Raises Unavailable if it speaks none that
    Interlingua does."""
    from .at_address import look

    found, odd = await look(url, headers)
    usable = [spoken for spoken in found if spoken.target is not None]
    names = [protocol.name for protocol in protocols()]
    # A server of tools is no protocol of its own, and comes last.
    usable.sort(key=lambda spoken: names.index(spoken.protocol) if spoken.protocol in names else len(names))
    if usable:
        return usable[0]
    others = ", ".join(with_title(spoken).title for spoken in found)
    instead = [f"it speaks {others}"] if others else odd
    raise Unavailable("; ".join([f"{url} speaks none of these protocols", *instead]), transient=False)
