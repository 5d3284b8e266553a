"""Reads the request headers that security depends on: names in any case, and no header that says two things."""

from __future__ import annotations

from collections.abc import Mapping

from ..model.errors import InvalidRequest


def single(headers: Mapping[str, str], name: str) -> str | None:
    """The value of a header. Two different values are an error: the next reader might believe the other one."""
    raw = getattr(headers, "raw", None)
    if raw is None:
        values = {value.strip() for key, value in headers.items() if key.lower() == name}
    else:  # a web framework keeps lines as bytes; its mapping decodes all of them each time
        name_ = name.encode("latin-1")
        values = {value.decode("latin-1").strip() for key, value in raw if key.lower() == name_}
    if len(values) > 1:
        raise InvalidRequest(f"The request has several {name} headers that differ; send one")
    return values.pop() if values else None
