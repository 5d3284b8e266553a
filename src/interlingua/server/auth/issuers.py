"""Finds issuers of tokens by the address that a command line gives, and their keys from there."""

from __future__ import annotations

import httpx2
import msgspec

from ...model.errors import InterlinguaError, InvalidRequest
from ...security.issuers import Issuer

_WELL_KNOWN = (".well-known/openid-configuration", ".well-known/oauth-authorization-server")


class _Published(msgspec.Struct):
    issuer: str
    jwks_uri: str


async def issuer(name: str, audiences: list[str], jwks_url: str | None, scopes: list[str]) -> Issuer:
    """An issuer. Without the address of its keys, it is asked for that (OpenID Connect Discovery, RFC 8414)."""
    if jwks_url is None:
        # An attacker who can change the answer can make tokens: the rule for the address of the keys holds here, too.
        try:
            Issuer(name, audiences, jwks_url=name)
        except InvalidRequest as error:
            if error.path == "/jwks_url":
                raise InvalidRequest(f"an issuer is asked for its keys over https, got --issuer {name!r}") from None
            raise
        jwks_url = await _keys_of(name)
    return Issuer(name, audiences, jwks_url=jwks_url, scopes=scopes)


async def _keys_of(name: str) -> str:
    wrong = ""
    for path in _WELL_KNOWN:
        url = f"{name.rstrip('/')}/{path}"
        try:
            published = msgspec.json.decode(await fetch(url), type=_Published)
        except InterlinguaError:
            raise
        except Exception as error:  # any failure there, in the words of the library that noticed it
            wrong = f"{url}: {error}"
            continue
        if published.issuer != name:
            wrong = f"{url} is of another issuer, {published.issuer}"
            continue
        return published.jwks_uri
    raise InvalidRequest(f"Where are the keys of issuer {name}? Say it with --jwks-url, because {wrong}")


async def fetch(url: str) -> bytes:
    """Returns a document from an address that the owner gave, such as the keys of an issuer."""
    async with httpx2.AsyncClient(timeout=10.0) as client:
        answer = await client.get(url)
        answer.raise_for_status()
        return answer.content
