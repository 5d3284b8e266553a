"""The types that settings have in common.

A setting is a described field: `Annotated[Seconds, Meta(description="…")]`.

`Meta(extra=…)` says what the name of the field does not: `key` (the name in a file), `flag`, `env`, `metavar`,
`secret`, `basic` (what the short help says), `section` (another one than that of the struct), `defaults` (a function
that reads the file of this setting, which holds defaults of its section). `server/config/fields` uses them.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

MIB = 1024 * 1024

Count = Annotated[int, Meta(ge=1)]
CountOrNone = Annotated[int, Meta(ge=0)]
Port = Annotated[int, Meta(ge=0, le=65535)]
Seconds = Annotated[float, Meta(ge=0)]
Interval = Annotated[float, Meta(ge=0.01)]
