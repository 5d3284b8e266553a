"""The consoles, and text on them.

Everything that an agent says passes through `clean` first: text must not be able to drive the terminal.
"""

from __future__ import annotations

import re
import sys
from functools import lru_cache
from typing import Any

import msgspec
from rich.console import Console
from rich.text import Text

from ..model import json_values

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def clean(text: str) -> str:
    """Removes characters that move cursors, change colours or turn the direction of writing."""
    return _CONTROL.sub("", text)


@lru_cache(maxsize=2)
def _console(stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    # Without a terminal there is no width to fit; what is piped should not be cut.
    return Console(stderr=stderr, highlight=False, width=None if stream.isatty() else 160)


def console() -> Console:
    return _console(False)


def error_console() -> Console:
    return _console(True)


def note(text: str) -> None:
    """Prints a remark of the program on stderr."""
    error_console().print(Text(clean(text), "dim"), soft_wrap=True)


def as_json(value: Any, *, pretty: bool = True) -> str:
    data = json_values.encode(value)
    return (msgspec.json.format(data, indent=2) if pretty else data).decode()
