"""What the log, and with it every caller, is told of an exception that an agent did not mean to show."""

from __future__ import annotations

import msgspec

from ..model import errors
from ..model.errors import ErrorInfo, InterlinguaError
from ..security.redaction import redact_text


def describe(error: BaseException) -> ErrorInfo:
    """As `model.errors.describe`. The texts of unexpected exceptions are libraries' and may quote an address with its
    password; what an agent says in an error of ours is its own business."""
    info = errors.describe(error)
    if isinstance(error, InterlinguaError):
        return info
    return msgspec.structs.replace(info, message=redact_text(info.message))
