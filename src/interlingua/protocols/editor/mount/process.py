"""The process of an agent: a child whose output is read, and logged only without secrets."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from ....security.redaction import redact_text
from ....transports.process.child_process import Child, Output, environment, words_of

__all__ = ["Child", "Output", "environment", "start", "words_of"]

log = logging.getLogger("interlingua.editor.agent")


async def start(command: list[str], cwd: str, env: Mapping[str, str]) -> Child:
    return await Child.start(command, cwd, env, clean=redact_text, log=log)
