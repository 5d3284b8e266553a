"""Names on a bus that others share: where its servers are, and the subjects of one installation.

Pure: takes texts apart and puts them together.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from urllib.parse import SplitResult, urlsplit, urlunsplit

import msgspec

from ...model.errors import InvalidRequest
from ..port import BusSettings

PREFIX = "interlingua"
_TOKEN = re.compile(r"[A-Za-z0-9_-]+")
_PORT = 4222


class Address(msgspec.Struct, frozen=True):
    servers: list[str]  # with what the address says of user and password
    prefix: str
    tls: bool

    @property
    def shown(self) -> str:
        """Without secrets."""
        return ",".join(_without_secrets(server) for server in self.servers)


def parse(settings: BusSettings) -> Address:
    """`nats://[USER:PASSWORD@]HOST[:PORT][,HOST…][/PREFIX]`, or `tls://…`."""
    text = settings.url or ""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise InvalidRequest("the bus has no address; say for instance nats://127.0.0.1:4222")
    first = _split(parts[0])
    # Only the last of several servers has room for a path behind it.
    split = [first, *(_split(part if "://" in part else f"{first.scheme}://{part}") for part in parts[1:])]
    if any(one.scheme != first.scheme for one in split):
        raise InvalidRequest("the servers of one bus are all nats:// or all tls://")
    path = split[-1].path.strip("/")
    prefix = settings.prefix or path.replace("/", ".") or PREFIX
    if not all(_TOKEN.fullmatch(token) for token in prefix.split(".")):
        raise InvalidRequest(f"the prefix of the bus is {prefix!r}; it is names of letters, digits, - and _, with dots")
    user = next((one.netloc.rpartition("@")[0] for one in split if "@" in one.netloc), "")
    servers = []
    for one in split:
        netloc = one.netloc if "@" in one.netloc or not user else f"{user}@{one.netloc}"
        if one.port is None:
            netloc = f"{netloc.rstrip(':')}:{_PORT}"
        servers.append(urlunsplit((one.scheme, netloc, "", "", "")))
    return Address(servers, prefix, first.scheme == "tls")


def _split(text: str) -> SplitResult:
    try:
        found = urlsplit(text)
        known = found.scheme in ("nats", "tls") and bool(found.hostname)
        _ = found.port
    except ValueError:
        known = False
    if not known:
        # Not the address itself: there may be a password in it.
        raise InvalidRequest("the address of a bus is nats://HOST[:PORT] or tls://HOST[:PORT], and this is another")
    return found


def _without_secrets(server: str) -> str:
    found = urlsplit(server)
    return urlunsplit((found.scheme, found.netloc.rpartition("@")[2], "", "", ""))


def is_token(text: str) -> bool:
    """Whether a text can be part of a subject as it is."""
    return _TOKEN.fullmatch(text) is not None


@functools.lru_cache(1000)
def token(text: str) -> str:
    """Any text as part of a subject: readable, and never the same for two texts."""
    if is_token(text) and len(text) < 100:
        return text
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", text)[:60]
    # A short hash tells apart what is written alike.
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return f"{plain}-{base64.b32encode(digest).decode().rstrip('=').lower()}"


class Subjects:
    """What is said where."""

    def __init__(self, prefix: str) -> None:
        self.changed = f"{prefix}.changed"  # to everyone: there may be work, or anything may have been missed
        self.inbox = f"{prefix}.inbox"  # to everyone: something is in the inbox of a run
        self.watch = f"{prefix}.watch"  # to everyone: which runs are read here
        self.presence = f"{prefix}.presence"
        self.all_work = f"{prefix}.work.*"
        self.stream = f"{prefix.replace('.', '_')}_work"
        self._reader = f"{prefix}.reader."
        self._worker = f"{prefix}.worker."
        self._work = f"{prefix}.work."

    def read(self, reader: str, run: str) -> str:
        """To one process: what has become of a run that it reads."""
        return f"{self._reader}{reader}.{run}"

    def all_read(self, reader: str) -> str:
        return f"{self._reader}{reader}.*"

    def worker(self, worker: str) -> str:
        return f"{self._worker}{worker}"

    def work(self, queue: str) -> str:
        return self._work + token(queue)
