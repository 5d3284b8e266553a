"""Defines the errors of this package, as a branch of the tree in `model.errors`.

    InterlinguaError
    ├── Unauthenticated     the caller is unknown; `challenge` is the value for WWW-Authenticate
    ├── Denied
    │   ├── HostRefused     the Host header names another server (DNS rebinding)
    │   ├── OriginRefused   a web page from elsewhere sent the request
    │   └── EgressRefused   an outgoing call to a place that no caller may choose
    ├── Unavailable
    │   ├── HostUnresolved  the name of an outgoing call could not be resolved
    │   └── KeysUnavailable the keys of a token's issuer could not be fetched
    └── Invalid
        └── UnsafeBind      a public address without authentication

Messages name what was wrong and what to do. None of them holds a secret, or an address that the caller did not send.
"""

from __future__ import annotations

import re

from ..model.errors import Denied, InterlinguaError, Invalid, Unavailable

_NOT_QUOTABLE = re.compile(r"[^\x20-\x21\x23-\x5b\x5d-\x7e]")  # RFC 6750: what an error_description may hold


class Unauthenticated(InterlinguaError):
    """The request carries no valid credential."""

    code = "unauthenticated"

    def __init__(self, message: str, *, rejected: bool = True) -> None:
        """`rejected`: a credential came and was refused. Without one, RFC 6750 wants a challenge without an error."""
        super().__init__(message)
        self.rejected = rejected
        self.challenge = 'Bearer realm="interlingua"'
        if rejected:
            description = _NOT_QUOTABLE.sub("'", message)
            self.challenge += f', error="invalid_token", error_description="{description}"'


class HostRefused(Denied):
    """The Host header names a host that this server is not."""

    code = "host_refused"


class OriginRefused(Denied):
    """A web page of another origin sent the request."""

    code = "origin_refused"


class EgressRefused(Denied):
    """The outgoing call leads to where others may not send us."""

    code = "egress_refused"


class HostUnresolved(Unavailable):
    """The host of an outgoing call could not be resolved."""

    code = "host_unresolved"


class KeysUnavailable(Unavailable):
    """The keys of a token's issuer could not be fetched."""

    code = "keys_unavailable"


class UnsafeBind(Invalid):
    """A public address without authentication."""

    code = "unsafe_bind"
