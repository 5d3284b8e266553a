"""Writes files that only their owner reads, once: whole or not at all, and never over an existing file."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def write_once(file: Path, held: bytes) -> None:
    """Writes a file that does not exist yet. If another process was faster, its file stays."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = file.with_name(f".{file.name}.{secrets.token_hex(6)}")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(held)
            out.flush()
            os.fsync(out.fileno())
        file.hardlink_to(draft)
    except FileExistsError:
        pass
    finally:
        draft.unlink()
