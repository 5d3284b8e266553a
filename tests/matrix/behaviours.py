"""What the agents of every source do, whatever wire they are behind: the words that they obey, and what comes of them.

A source gives `talk` a `Line`, which is all that its wire lets an agent do. Only the standard library is used here, and
nothing of ours: sources are processes that know nothing of the project.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Coroutine
from typing import Any, Protocol
from urllib.parse import urlsplit

PROTOCOLS = ("connect", "editor", "mcp", "peer", "cap")

TEXT_IN = {
    "type": "object",
    "properties": {"text": {"type": "string"}, "note": {"description": "Something structured beside the text"}},
    "required": ["text"],
}
TEXT_OUT = {
    "type": "object",
    "properties": {"text": {"type": "string"}},
    "required": ["text"],
}
NUMBERS = {
    "type": "object",
    "properties": {"numbers": {"type": "array", "items": {"type": "integer"}}},
    "required": ["numbers"],
}
TOTAL = {
    "type": "object",
    "properties": {"total": {"type": "integer"}, "seen": {"type": "array", "items": {"type": "integer"}}},
    "required": ["total", "seen"],
}

TALKER = "Does what the first word says"
TYPED = "Adds numbers"

FILE_IN = ("in.bin", "application/octet-stream", b"\x00\xffmatrix\x01")
"""Name, media type and bytes of the file that is sent along with `files`."""
DATA_IN = {"note": {"deep": [1, None, "x"]}}
"""The data that is sent along with it. Wires whose input is an object have it as a member, which the agents take."""
FILE_OUT = ("answer.bin", "application/octet-stream", b"\x00\x01\x02\x03\xff")
DATA_OUT = {"k": [1, 2]}
"""What `files` gives back beside its output."""

CHOICES = (("allow", "Allow", "allow_once"), ("reject", "Reject", "reject_once"))
"""Id, label and kind of what `choose` offers."""
MAY_I = "May I go on?"
WHO = "Who are you?"
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}
PEOPLE = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"name": {"type": "string"}, "skills": {"type": "array", "items": {"type": "string"}}},
        "required": ["name", "skills"],
    },
}
TEAM = {
    "type": "object",
    "properties": {"title": {"type": "string"}, "people": PEOPLE},
    "required": ["title", "people"],
}
WANTED = {"team": ("Who is in it?", TEAM), "numbers": ("Which numbers?", NUMBERS["properties"]["numbers"])}
"""What `want` asks for, and by which schema: more than a form of a few words, and what is no object at all."""
WHAT = "What do you want?"
WORDS = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


DETAILS: dict[str, Any] = {"code": 7, "errcode": [1, None], "data": {"details": {"ripe": "too"}}, "transient": "often"}
"""What `fail` adds: members that wires have names of their own for."""


class Failure(Exception):
    """What `fail` ends with. A wire carries of it what it can."""

    def __init__(self, code: str, transient: bool) -> None:
        self.code = code
        self.message = broke(code)
        self.transient = transient
        self.details = DETAILS
        super().__init__(self.message)


def failure_of(error: Exception) -> Failure:
    """What a run ends with that ended so. A source that is wrong itself says so, instead of never ending."""
    return error if isinstance(error, Failure) else Failure(repr(error), False)


def broke(code: str) -> str:
    return f"it broke: {code}"


class Line(Protocol):
    """One run, as far as its agent meets it."""

    memory: dict[str, str]  # of the thread, session or context; a fresh one where the wire has none
    files: list[dict[str, Any]]  # what came along: name, media_type, and bytes in `data` or an address in `url`
    data: list[Any]
    heard: dict[str, Any]  # metadata, traceparent, tracestate, baggage: what the wire brought of them

    async def say(self, text: str) -> None:
        """Extend the output."""

    async def give(self) -> None:
        """FILE_OUT and DATA_OUT, where the wire can."""

    async def choose(self) -> str:
        """The id of one of CHOICES."""

    async def form(self) -> dict[str, Any]:
        """Something that fits PERSON."""

    async def want(self, what: str) -> Any:
        """Something that fits that schema of WANTED."""

    async def ask(self) -> str:
        """Free text."""


async def talk(text: str, line: Line) -> None:
    """Raises Failure, and whatever its wire raises for cancelled work."""
    found = re.match(r"[a-z]+", text)
    word = found[0] if found else ""
    rest = text[len(word) :].split()
    match word:
        case "say":
            for one in rest:
                await line.say(one + " ")
        case "stream":
            await line.say("one ")
            await call("GET", f"{rest[0]}/pass/stream")
            await line.say("two ")
        case "files":
            await line.give()
            await line.say(json.dumps({"files": [await told(one) for one in line.files], "data": line.data}))
        case "remember":
            line.memory["kept"] = rest[0]
            await line.say("ok")
        case "recall":
            await line.say(line.memory.get("kept", "nothing"))
        case "choose":
            await line.say(f"chose {await line.choose()}")
        case "form":
            person = await line.form()
            await line.say(f"name is {person['name']}, age is {person['age']}")
        case "want":
            await line.say(json.dumps(await line.want(rest[0])))
        case "ask":
            await line.say(f"you said: {await line.ask()}")
        case "wait":
            await line.say("waiting ")
            await call("POST", f"{rest[0]}/note/begun")
            try:
                await asyncio.Event().wait()
            finally:
                beside(call("POST", f"{rest[0]}/note/cancelled"))
        case "fail":
            raise Failure(rest[0], rest[1] == "yes")
        case "meta":
            await call("POST", f"{rest[0]}/note/meta", line.heard)
            await line.say("ok")
        case _:
            raise Failure("unknown_word", False)


_beside: set[asyncio.Future[Any]] = set()


def beside(work: Coroutine[Any, Any, Any]) -> None:
    """Do something in a task of its own: whoever is being cancelled may not be let wait for anything."""
    task = asyncio.ensure_future(work)
    _beside.add(task)
    task.add_done_callback(_beside.discard)


async def told(file: dict[str, Any]) -> dict[str, Any]:
    """What came as a file, told so that it can be compared."""
    body = file["data"] if file.get("data") is not None else await call("GET", file["url"])
    digest = hashlib.sha256(body).hexdigest()
    return {"name": file.get("name"), "media_type": file.get("media_type"), "sha256": digest}


def sums(numbers: list[int]) -> list[dict[str, Any]]:
    """The output of `typed` as it grows, whole each time."""
    grown, seen = [], []
    for number in numbers:
        seen.append(number)
        grown.append({"total": sum(seen), "seen": list(seen)})
    return grown or [{"total": 0, "seen": []}]


# -- wires with nothing but flat forms ------------------------------------------------------------------------

ANSWER_SCHEMA = "interlingua/answerSchema"
"""In the `_meta` of a form on such a wire: what the form is for."""


def flat(schema: dict[str, Any]) -> dict[str, Any]:
    """A form in which everything that is no text is JSON in one. What is no object is in its only field."""
    names = list(schema["properties"]) if schema["type"] == "object" else ["answer"]
    return {"type": "object", "properties": {name: {"type": "string"} for name in names}, "required": names}


def laid(schema: dict[str, Any], value: Any) -> dict[str, Any]:
    """A value in the fields of such a form."""
    if schema["type"] != "object":
        return {"answer": json.dumps(value)}
    return {name: one if isinstance(one, str) else json.dumps(one) for name, one in value.items()}


def taken(schema: dict[str, Any], content: dict[str, Any]) -> Any:
    """A value out of them."""
    if schema["type"] != "object":
        return json.loads(content["answer"])
    members = schema["properties"]
    return {name: one if members[name]["type"] == "string" else json.loads(one) for name, one in content.items()}


# -- what a test expects --------------------------------------------------------------------------------------

EXPECTED_FILE = {"name": FILE_IN[0], "media_type": FILE_IN[1], "sha256": hashlib.sha256(FILE_IN[2]).hexdigest()}
NUMBERS_IN = {"numbers": [3, 4, 5]}
TOTAL_OUT = {"total": 12, "seen": [3, 4, 5]}
GIVEN: dict[str, Any] = {
    "team": {
        "title": "First",
        "people": [{"name": "Zoë", "skills": ["ships", '"quotes"']}, {"name": "", "skills": []}],
    },
    "numbers": [3, 4, 5],
}
"""What is answered to each of WANTED."""
WRONG: dict[str, Any] = {"team": {"title": "First", "people": [{"name": "Zoë", "skills": "ships"}]}, "numbers": ["3"]}
"""What fits none of them, and only deep inside."""


# -- reaching the test ----------------------------------------------------------------------------------------


async def call(method: str, url: str, body: Any = None) -> bytes:
    """One HTTP request, by hand: it can be cancelled at any moment, and needs no library."""
    where = urlsplit(url)
    assert where.hostname is not None
    reads, writes = await asyncio.open_connection(where.hostname, where.port)
    try:
        sent = b"" if body is None else json.dumps(body).encode()
        path = where.path + (f"?{where.query}" if where.query else "")
        head = [f"{method} {path} HTTP/1.1", f"host: {where.netloc}", "connection: close"]
        head += ["content-type: application/json", f"content-length: {len(sent)}", "", ""]
        writes.write("\r\n".join(head).encode() + sent)
        await writes.drain()
        answer = await reads.readuntil(b"\r\n\r\n")
        if b" 200 " not in answer.partition(b"\r\n")[0]:
            raise RuntimeError(f"{url} answered {answer.decode(errors='replace')}")
        length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", answer)
        return await (reads.readexactly(int(length[1])) if length else reads.read())
    finally:
        writes.close()
