"""Removes credentials from texts and addresses before they reach a log or a screen."""

from __future__ import annotations

import re

_HIDDEN = "***"
_RULES: list[tuple[re.Pattern[str], str]] = [
    # An API key's id is public and tells whose it was.
    (re.compile(r"\bil_([0-9A-Za-z]+)_[0-9A-Za-z_-]+"), rf"il_\1_{_HIDDEN}"),
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=*-]{6,}"), rf"\1 {_HIDDEN}"),
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]+\.[\w-]*"), _HIDDEN),
    (re.compile(r"(?i)\b([a-z][a-z0-9+.-]*://)[^\s/?#@]+@"), rf"\1{_HIDDEN}@"),
    (
        re.compile(
            r"(?i)([?&;]|\b)((?:[\w.-]*(?:token|secret|passwd|password|signature|credential|api[_-]?key|access[_-]?key))"
            r"|key|sig|auth|code)=[^\s&;#\"']+"
        ),
        rf"\1\2={_HIDDEN}",
    ),
]
# The text that each rule needs; the names of agents have an @ too, and no address before it.
_MARKS = re.compile(r"il_|earer|asic|EARER|ASIC|eyJ|=|://[^\s/?#@]+@").search


def redact_text(text: str) -> str:
    """Returns the text with everything replaced that looks like a credential."""
    if _MARKS(text) is None:  # most lines; the patterns cost more than this
        return text
    for pattern, shown in _RULES:
        text = pattern.sub(shown, text)
    return text


def redact_url(url: str) -> str:
    """An address as it may be shown: without user, fragment, and the values of its query."""
    before, mark, query = url.partition("#")[0].partition("?")
    shown = "&".join(part.partition("=")[0] + ("=" + _HIDDEN if "=" in part else "") for part in query.split("&"))
    return redact_text(before) + mark + (redact_text(shown) if mark else "")
