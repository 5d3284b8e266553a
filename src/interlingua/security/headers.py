"""Reading request headers that security hangs on: names in any case, and no header that says two things."""

from __future__ import annotations

from collections.abc import Mapping

from ..model.errors import InvalidRequest


def one(headers: Mapping[str, str], name: str) -> str | None:
    """The value of a header. Two different values are an error: the next reader might believe the other one."""
    # Mappings of web frameworks give every line of a repeated header in items().
    values = {value.strip() for key, value in headers.items() if key.lower() == name}
    if len(values) > 1:
        raise InvalidRequest(f"The request has several {name} headers that differ; send one")
    return values.pop() if values else None
