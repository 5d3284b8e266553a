"""Checks values and answers that more than one check looks at: times, ids, parts, lists, refusals."""

from __future__ import annotations

import datetime
import re
import urllib.parse
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from interlingua.transports.raw_client import Answer

from ..base import Broken, expect, member, shown

_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d(:\d\d([.,]\d+)?)?([Zz]|[+-]\d\d:?\d\d)?")
VERSION = re.compile(r"\d+(\.\d+){1,2}([-+][0-9A-Za-z.+-]+)?")
LINK = re.compile(r"acps?://(\[[0-9A-Fa-f:.]+\]|[^/:@\s]+)(:\d{1,5})?/[^/\s]+")
HEX_64 = re.compile(r"[0-9a-f]{64}")
MADE_ID = re.compile(r"msg_[0-9a-f]{16}")
PART_TYPES = ("text", "file", "data")
_ABSENT = (404, 405, 501)  # statuses of a server that does not have something


def moment(value: Any, where: str) -> datetime.datetime:
    """A time of ISO 8601 in UTC, which says so."""
    expect(isinstance(value, str), f"{where} is no text: {shown(value)}")
    expect(_TIME.fullmatch(value), f"{where} is no time of ISO 8601: {value!r}")
    try:
        read = datetime.datetime.fromisoformat(value.upper().replace(",", "."))
    except ValueError as error:
        raise Broken(f"{where} is no time: {value!r} ({error})") from None
    expect(read.tzinfo is not None, f"{where} has no time zone: {value!r}")
    expect(read.utcoffset() == datetime.timedelta(0), f"{where} is not in UTC: {value!r}")
    return read


def parts_of(value: Any, where: str) -> list[dict[str, Any]]:
    """Parts as the document has them."""
    expect(isinstance(value, list), f"parts of {where} is no array: {shown(value)}")
    expect(value, f"parts of {where} is empty")
    for part in value:
        expect(isinstance(part, dict), f"a part of {where} is no object: {shown(part)}")
        kind = part.get("type")
        expect(kind in PART_TYPES, f"a part of {where} has the type {shown(kind)}: {shown(part)}")
        if kind == "text":
            member(part, "content", str, f"a text part of {where}")
        elif kind == "file":
            url = member(part, "url", str, f"a file part of {where}")
            expect(url.startswith(("http://", "https://")), f"the url of a file part of {where} is {url!r}")
        else:
            expect("content" in part, f"a data part of {where} has no content: {shown(part)}")
    return list(value)


def refused(answer: Answer, status: int, code: str, what: str) -> dict[str, Any]:
    """An error of a kind, in the envelope that all errors have."""
    expect(answer.status == status, f"{what} is answered with {told(answer)}, not with {status}")
    body = member(answer.json(), "", dict, "the error")
    got = body.get("error_code")
    expect(got == code, f"{what} is answered with the error_code {shown(got)}, not {code}: {shown(body)}")
    return body


class Refused(msgspec.Struct, frozen=True):
    """A row: a scene gives an answer (or an id and an answer) that refuses something with this status and code."""

    ids: str
    play: Callable[[Any], Awaitable[Any]]
    what: str
    status: int
    code: str

    async def check(self, driver: Any) -> None:
        seen = await self.play(driver)
        refused(seen[-1] if isinstance(seen, tuple) else seen, self.status, self.code, self.what)


def text(content: str) -> dict[str, Any]:
    return {"type": "text", "content": content}


def absent(answer: Answer) -> bool:
    """Returns whether a server answers that it does not have something."""
    return answer.status in _ABSENT


def segment(value: Any) -> str:
    """An id as a part of a path."""
    return urllib.parse.quote(str(value), safe=":@", errors="replace")


def told(answer: Answer) -> str:
    return f"{answer.status} {shown(answer.body.decode(errors='replace'), 160)}"


def listed(body: Any, name: str) -> list[dict[str, Any]]:
    """The objects of a list, which is bare or a member of an object."""
    found = body.get(name) if isinstance(body, dict) else body
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
