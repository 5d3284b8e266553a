"""Links, the addresses of peers: parsed into a small value here, and written back; nothing is dialled.

    acp://HOST[:PORT]/TOKEN         a WebSocket, straight to the peer (acps:// with TLS)
    acp+wss://HOST[:PORT]/acp/TOKEN a relay (acp+ws:// without TLS)
    tcp://HOST:PORT/TOKEN           a TCP connection with one JSON object per line
    http(s)://HOST[:PORT][/PATH]    plain HTTP with SSE (peer+http(s):// says that it is this protocol)

Every holder of the token may connect, so a link is a secret: `repr` and error messages show none of it.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
import secrets

import msgspec

from ....model.errors import InvalidRequest

DEFAULT_PORT = 7801

DIRECT = frozenset({"acp", "acps"})
RELAYED = frozenset({"acp+ws", "acp+wss"})
HTTP = frozenset({"http", "https"})
SCHEMES = (*sorted(DIRECT), *sorted(RELAYED), "tcp", *sorted(HTTP))

_PORTS = {"acp": DEFAULT_PORT, "acps": DEFAULT_PORT, "acp+ws": 80, "acp+wss": 443, "http": 80, "https": 443}
_SECURE = frozenset({"acps", "acp+wss", "https"})
_BINDINGS = {"acp": "A", "acps": "A", "acp+ws": "C", "acp+wss": "C", "tcp": "E", "http": "D", "https": "D"}

_LINK = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<authority>[^/?#]*)(?P<path>[^?#]*)(?P<rest>.*)", re.DOTALL
)
_AUTHORITY = re.compile(r"(?P<host>\[[^\[\]]*\]|[^:\[\]]*)(?::(?P<port>[^:]*))?")
_NAME = re.compile(
    r"(?=.{1,253}\Z)[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?)*\.?"
)
_TOKEN = re.compile(r"[A-Za-z0-9._~-]{1,200}")
_SEGMENTS = re.compile(r"(/[A-Za-z0-9._~!$&'()*+,;=:@%-]+)*")
_LIMIT = 2000


class Link(msgspec.Struct, frozen=True):
    scheme: str  # one of SCHEMES
    host: str  # without brackets
    port: int
    token: str  # empty where the binding has none
    secure: bool  # TLS
    path: str = ""  # the path before the token at a relay, or the base path of an HTTP API; no slash at its end

    def __str__(self) -> str:
        tail = f"/{self.token}" if self.token else ""
        return f"{self.scheme}://{self.address}{self.path}{tail}"

    def __repr__(self) -> str:
        return f"Link({self.shown})"

    @property
    def address(self) -> str:
        """Returns host and port as they stand in the link. A port that web addresses imply is left out."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        implied = self.scheme not in DIRECT and self.port == _PORTS.get(self.scheme)
        return host if implied else f"{host}:{self.port}"

    @property
    def shown(self) -> str:
        """Returns the link for logs: without its token."""
        return f"{self.scheme}://{self.address}{self.path}{'/…' if self.token else ''}"

    @property
    def binding(self) -> str:
        """Returns the letter of the link's binding."""
        return _BINDINGS[self.scheme]

    @property
    def url(self) -> str:
        """Returns the address to dial: a WebSocket URL, the HTTP base of a relay or of an API, or tcp://HOST:PORT."""
        if self.scheme in DIRECT:
            return f"{'wss' if self.secure else 'ws'}://{self.address}/{self.token}"
        if self.scheme == "tcp":
            return f"tcp://{self.address}"
        return f"{'https' if self.secure else 'http'}://{self.address}{self.path}"


def parse(text: str) -> Link:
    """Parses a link. Raises InvalidRequest, which names the fault and repeats no token."""
    if not text.strip():
        raise _wrong("a link is a text such as acp://HOST:7801/TOKEN")
    if len(text) > _LIMIT:
        raise _wrong(f"the link is longer than {_LIMIT} characters")
    match = _LINK.fullmatch(text.strip())
    if match is None:
        raise _wrong("the link has no scheme: it begins with acp://, for instance")
    scheme = match["scheme"].lower()
    if scheme.startswith("peer+") and scheme.removeprefix("peer+") in HTTP:
        scheme = scheme.removeprefix("peer+")
    if scheme not in SCHEMES:
        raise _wrong(f"{scheme[:40]}:// is no scheme of a link (one of {', '.join(SCHEMES)})")
    if match["rest"]:
        raise _wrong(f"an {scheme}:// link has neither a query nor a fragment")
    host, port = _place(scheme, match["authority"])
    path, token = _split(scheme, match["path"])
    return Link(scheme, host, port, token, scheme in _SECURE, path)


def direct(host: str, port: int, token: str, *, secure: bool = False) -> Link:
    """Returns the link of one of our WebSocket listeners."""
    return parse(str(Link("acps" if secure else "acp", host.strip("[]"), port, token, secure)))


def _place(scheme: str, authority: str) -> tuple[str, int]:
    if "@" in authority:
        raise _wrong(f"an {scheme}:// link has no user and no password")
    match = _AUTHORITY.fullmatch(authority)
    if match is None:
        raise _wrong("the host of the link cannot be read: an IPv6 address stands in brackets, as in [::1]:7801")
    host, port = match["host"], match["port"]
    if not host:
        raise _wrong("the link has no host")
    if port is None:
        if scheme not in _PORTS:
            raise _wrong(f"a {scheme}:// link names its port, as in {scheme}://HOST:7802/TOKEN")
        return _host(host), _PORTS[scheme]
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and 1 <= int(port) <= 65535):
        raise _wrong(f"the port of the link is a number from 1 to 65535, got {port[:20]!r}")
    return _host(host), int(port)


def _host(host: str) -> str:
    if host.startswith("["):
        inside = host[1:-1].replace("%25", "%", 1)
        try:
            ipaddress.IPv6Address(inside)
        except ValueError:
            raise _wrong(f"{host[:80]!r} is no IPv6 address") from None
        return inside.lower() if "%" not in inside else inside
    if not _NAME.fullmatch(host):
        raise _wrong(f"{host[:80]!r} is no host name (write international names in their xn-- form)")
    if re.fullmatch(r"[0-9.]+", host):  # four numbers, or nothing: 127.1 has different meanings on different systems
        try:
            ipaddress.IPv4Address(host)
        except ValueError:
            raise _wrong(f"{host[:80]!r} is no IPv4 address") from None
    return host.lower()


def _split(scheme: str, path: str) -> tuple[str, str]:
    """Returns the path before the token, and the token."""
    path = path.rstrip("/")
    if scheme in HTTP:
        if not _SEGMENTS.fullmatch(path):
            raise _wrong("the path of the link has characters that no path has, or an empty segment")
        return path, ""
    before, _, token = path.rpartition("/")
    if not token:
        raise _wrong("the link has no token")
    if not _TOKEN.fullmatch(token):
        raise _wrong("the token of the link is letters, digits, and any of . _ ~ -, at most 200")
    if scheme not in RELAYED:
        if before:
            raise _wrong(f"nothing but the token follows the host of an {scheme}:// link")
        return "", token
    if not before or not _SEGMENTS.fullmatch(before):
        raise _wrong(f"the path of an {scheme}:// link is /acp/TOKEN")
    return before, token


def new_token() -> str:
    """Returns a token that cannot be guessed: 64 random bits, as the reference has them."""
    return f"tok_{secrets.token_hex(8)}"


def same_token(a: str, b: str) -> bool:
    """Tells if two tokens are the same, in a time that reveals nothing. An empty token equals no other."""
    same = hmac.compare_digest(a.encode("utf-8", "surrogatepass"), b.encode("utf-8", "surrogatepass"))
    return same and bool(a)


def _wrong(why: str) -> InvalidRequest:
    return InvalidRequest(why, path="/link")
