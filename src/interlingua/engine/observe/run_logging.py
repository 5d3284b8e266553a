"""Log lines for created, taken over, blocked and ended runs, with the run's id and caller.

They never contain inputs or outputs. With the log level above INFO they cost one check of the logger.
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
        log.info("run %s of %s continues here: its worker died", row.id, row.agent, extra={"fields": fields})


def blocked(row: RunRow, body: RunBlocked) -> None:
    fields = _fields(row) | {"reason": body.reason}
    log.warning("run %s of %s is blocked: %s", row.id, row.agent, body.message, extra={"fields": fields})


def committed(sealed: Sealed) -> None:
    """Logs the end of a run. Called after each transaction of a local run."""
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
    status = body.status.value.replace("_", " ")
    log.log(level, "run %s of %s %s: %s", row.id, row.agent, status, body.error.message, extra={"fields": fields})


def _fields(row: RunRow) -> dict[str, Any]:
    fields = {"run": row.id, "caller": row.caller, "agent": f"{row.agent}@{row.version}"}
    for name, value in (("thread", row.thread), ("parent", row.parent)):
        if value is not None:
            fields[name] = value
    return fields
