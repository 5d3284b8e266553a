"""The text of an agent's unexpected exception for the log, and so for every caller."""

from __future__ import annotations

import msgspec

from ..model import errors
from ..model.errors import ErrorInfo, InterlinguaError
from ..security.redaction import redact_text


def describe(error: BaseException) -> ErrorInfo:
    """Describes an exception as `model.errors.describe` does, without secrets.

    The text of an unexpected exception comes from a library and may quote an address with its password. The text of an
    error of our tree is the agent's own and stays as it is.
    """
    info = errors.describe(error)
    if isinstance(error, InterlinguaError):
        return info
    return msgspec.structs.replace(info, message=redact_text(info.message))
