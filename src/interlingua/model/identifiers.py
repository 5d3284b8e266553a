"""The limit of ids and keys. A database keeps them in indexes, whose entries must be short."""

from __future__ import annotations

from .errors import InvalidRequest

MAX_ID_BYTES = 512


def check_id(id_: str, what: str, path: str = "", *, most: int = MAX_ID_BYTES) -> None:
    """Raise InvalidRequest for an id that is too long. `what` begins the sentence that says so."""
    if len(id_) * 4 > most and len(id_.encode(errors="replace")) > most:
        raise InvalidRequest(f"{what} is longer than {most} bytes; use a shorter one", path=path)
