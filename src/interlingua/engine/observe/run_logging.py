"""Lines of the program's log when a run is created, taken over and when it has ended, with its id and who asked for it.

Nothing of what was asked or answered stands in them. Where nobody reads them they cost one look at a logger.
"""

from __future__ import annotations

import logging
from typing import Any

from ...model.events import RunBlocked, RunFinished
from ...model.status import Status
from ...store.changes import Sealed
from ...store.rows import RunRow

log = logging.getLogger("interlingua.runs")


def created(row: RunRow) -> None:
    if log.isEnabledFor(logging.INFO):
        log.info("run %s of %s created", row.id, row.agent, extra={"fields": _fields(row)})


def taken_over(row: RunRow, stood_still: float) -> None:
    if log.isEnabledFor(logging.INFO):
        fields = _fields(row) | {"ms": round(stood_still * 1000, 1)}
        log.info("run %s of %s goes on here: its worker died", row.id, row.agent, extra={"fields": fields})


def blocked(row: RunRow, body: RunBlocked) -> None:
    fields = _fields(row) | {"reason": body.reason}
    log.warning("run %s of %s is blocked: %s", row.id, row.agent, body.message, extra={"fields": fields})


def committed(sealed: Sealed) -> None:
    """Called after each transaction of a run that is here."""
    if not log.isEnabledFor(logging.INFO):
        return
    for body in sealed.bodies:
        if type(body) is RunFinished:
            _ended(sealed.row, body)


def _ended(row: RunRow, body: RunFinished) -> None:
    fields = _fields(row) | {"status": body.status.value, "ms": round((row.updated_at - row.created_at) / 1000, 1)}
    if body.error is None:
        log.info("run %s of %s %s", row.id, row.agent, body.status.value, extra={"fields": fields})
        return
    fields |= {"error": body.error.code, "transient": body.error.transient}
    level = logging.INFO if body.status is Status.CANCELLED else logging.WARNING
    said = body.status.value.replace("_", " ")
    log.log(level, "run %s of %s %s: %s", row.id, row.agent, said, body.error.message, extra={"fields": fields})


def _fields(row: RunRow) -> dict[str, Any]:
    fields = {"run": row.id, "caller": row.caller, "agent": f"{row.agent}@{row.version}"}
    for name, value in (("thread", row.thread), ("parent", row.parent)):
        if value is not None:
            fields[name] = value
    return fields
