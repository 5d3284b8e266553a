"""Finds the line in which an agent crashed. The engine logs the exception; a person at the terminal wants the line in
their file."""

from __future__ import annotations

import logging
import traceback
from pathlib import Path


class CrashSite(logging.Handler):
    """Remembers the last line of the agent's own files that an exception came through."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        if not record.exc_info or record.exc_info[1] is None:
            return
        package = str(Path(__file__).resolve().parent.parent)
        frames = [
            frame
            for frame in traceback.extract_tb(record.exc_info[1].__traceback__)
            if not frame.filename.startswith(package) or "examples" in Path(frame.filename).parts
        ]
        if frames:
            at = frames[-1]
            self.text = f'\n  File "{at.filename}", line {at.lineno}, in {at.name}' + (
                f"\n    {at.line.strip()}" if at.line else ""
            )

    def __enter__(self) -> CrashSite:
        logging.getLogger("interlingua.engine").addHandler(self)
        return self

    def __exit__(self, *exc: object) -> None:
        logging.getLogger("interlingua.engine").removeHandler(self)
