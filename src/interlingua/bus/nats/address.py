"""Addresses of NATS servers, and the subjects of one installation on a shared bus. Pure."""

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
    servers: list[str]  # with user and password, if the address has them
    prefix: str
    tls: bool

    @property
    def shown(self) -> str:
        """The servers without secrets."""
        return ",".join(_without_secrets(server) for server in self.servers)


def parse(settings: BusSettings) -> Address:
    """Parses `nats://[USER:PASSWORD@]HOST[:PORT][,HOST…][/PREFIX]`, or `tls://…`."""
    text = settings.url or ""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise InvalidRequest("the bus has no address; say for instance nats://127.0.0.1:4222")
    first = _split(parts[0])
    # Only the last of several servers can have a path.
    split = [first, *(_split(part if "://" in part else f"{first.scheme}://{part}") for part in parts[1:])]
    if any(server.scheme != first.scheme for server in split):
        raise InvalidRequest("the servers of one bus are all nats:// or all tls://")
    path = split[-1].path.strip("/")
    prefix = settings.prefix or path.replace("/", ".") or PREFIX
    if not all(_TOKEN.fullmatch(token) for token in prefix.split(".")):
        raise InvalidRequest(f"the prefix of the bus is {prefix!r}; it is names of letters, digits, - and _, with dots")
    user = next((server.netloc.rpartition("@")[0] for server in split if "@" in server.netloc), "")
    servers = []
    for server in split:
        netloc = server.netloc if "@" in server.netloc or not user else f"{user}@{server.netloc}"
        if server.port is None:
            netloc = f"{netloc.rstrip(':')}:{_PORT}"
        servers.append(urlunsplit((server.scheme, netloc, "", "", "")))
    return Address(servers, prefix, first.scheme == "tls")


def _split(text: str) -> SplitResult:
    try:
        url = urlsplit(text)
        known = url.scheme in ("nats", "tls") and bool(url.hostname)
        _ = url.port
    except ValueError:
        known = False
    if not known:
        # The message omits the address, which may contain a password.
        raise InvalidRequest("the address of a bus is nats://HOST[:PORT] or tls://HOST[:PORT], and this is another")
    return url


def _without_secrets(server: str) -> str:
    url = urlsplit(server)
    return urlunsplit((url.scheme, url.netloc.rpartition("@")[2], "", "", ""))


def is_token(text: str) -> bool:
    """True if a text can be part of a subject unchanged."""
    return _TOKEN.fullmatch(text) is not None


@functools.lru_cache(1000)
def token(text: str) -> str:
    """Turns any text into a part of a subject: readable and unique."""
    if is_token(text) and len(text) < 100:
        return text
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", text)[:60]
    # A short hash distinguishes texts that look alike.
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return f"{plain}-{base64.b32encode(digest).decode().rstrip('=').lower()}"


class Subjects:
    """The subjects of one installation."""

    def __init__(self, prefix: str) -> None:
        self.changed = f"{prefix}.changed"  # broadcast: there may be work, or messages may have been lost
        self.inbox = f"{prefix}.inbox"  # broadcast: an item in the inbox of a run
        self.watch = f"{prefix}.watch"  # broadcast: the runs that a process reads
        self.presence = f"{prefix}.presence"
        self.all_work = f"{prefix}.work.*"
        self.stream = f"{prefix.replace('.', '_')}_work"
        self._reader = f"{prefix}.reader."
        self._worker = f"{prefix}.worker."
        self._work = f"{prefix}.work."

    def read(self, reader: str, run: str) -> str:
        """The subject of committed events of a run, for one process that reads it."""
        return f"{self._reader}{reader}.{run}"

    def all_read(self, reader: str) -> str:
        return f"{self._reader}{reader}.*"

    def worker(self, worker: str) -> str:
        return f"{self._worker}{worker}"

    def work(self, queue: str) -> str:
        return self._work + token(queue)
