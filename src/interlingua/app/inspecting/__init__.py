"""Tells which of the protocols something speaks, by speaking each of them to it.

Four of the five are called ACP, and others go by that name too. `addresses` looks at what answers at an address,
`commands` at what a program says over its pipes, `links` at a node behind an acp:// link; all give `Spoken`. What is
wrong there as far as it shows without running anything is found by `closer`.
"""

from __future__ import annotations

from ...model.errors import Unavailable
from .spoken import OURS, Spoken

__all__ = ["OURS", "Spoken", "detected", "inspect"]

_PREFERRED = ("connect", "peer", "mcp", "cap", "editor")  # the first has threads, and runs that outlive connections


async def inspect(text: str, headers: dict[str, str] | None = None) -> tuple[list[Spoken], list[str]]:
    """Every protocol that is spoken by what a text names (an address, a link, a command), and what was odd."""
    from . import closer

    found, odd = await _spoken(text, headers)
    await closer.look(found, headers)
    return found, odd


async def _spoken(text: str, headers: dict[str, str] | None) -> tuple[list[Spoken], list[str]]:
    from ...transports.children import words_of
    from ..targets import COMMANDS

    scheme, mark, rest = text.partition("://")
    kind = scheme.rpartition("+")[2]
    if mark and kind in ("http", "https") and " " not in scheme:
        from .addresses import look as at_address

        return await at_address(f"{kind}://{rest}".partition("#")[0], headers)
    if mark and " " not in scheme:
        from .links import look as at_link

        return await at_link(text), []
    from .commands import look as at_command

    command = next((text.removeprefix(f"{kind}:") for kind in COMMANDS if text.startswith(f"{kind}:")), text)
    return await at_command(words_of(command, "inspect"), command)


async def detected(url: str, headers: dict[str, str] | None = None) -> Spoken:
    """The protocol to speak at an address that names none. Raises Unavailable where there is none of ours."""
    from .addresses import look

    found, odd = await look(url, headers)
    for protocol in _PREFERRED:
        for spoken in found:
            if spoken.protocol == protocol and spoken.target is not None:
                return spoken
    others = ", ".join(spoken.title for spoken in found)
    instead = [f"it speaks {others}"] if others else odd
    raise Unavailable("; ".join([f"{url} speaks none of these protocols", *instead]), transient=False)
