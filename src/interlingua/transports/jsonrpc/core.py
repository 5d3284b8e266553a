"""Implements JSON-RPC 2.0 without I/O: frames in, their requests out, and answers as frames. Batches included.

A frame is one message in the form of its transport: a line, a WebSocket message, an HTTP body. `Rpc` keeps the state of
a connection: the open requests of this side, those of the peer, and the answers that belong into one array. Nothing
here waits, writes or knows a protocol's methods; `connection.Connection` puts asyncio around it.

The rules that keep two peers from harming each other:

- a request that cannot be read is answered with an error, which carries its id wherever that can be read, and the
  connection goes on; an answer that cannot be read ends the request that waits for it;
- nothing that looks like a response is ever answered, or two peers could answer each other's errors for ever;
- what is sent is one line, without NaN, and without a byte order mark.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from ...model.errors import ErrorInfo
from ...model.whole_text import whole_value
from .. import json_text
from ..channel import TooLong, size
from .limits import Limits, RpcLimits

log = logging.getLogger("interlingua.rpc")

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
CANCELLED = -32800

Id = int | str

_MISSING: Any = msgspec.UNSET
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


_REASONS = ("details", "message", "reason")  # members of an error's data that may hold the reason
_REASON_HAS = 2000  # characters


IsPiece = Callable[[Any], bool]


def no_piece(message: Any) -> bool:
    """Says that no notification carries a piece of text."""
    return False


class RpcError(Exception):
    """An error as JSON-RPC carries it: raise it in a handler to answer with it; requests raise the peer's."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data

    @classmethod
    def of(cls, info: ErrorInfo, code: int, run: str | None = None) -> RpcError:
        """Returns an error of the model with the code of a protocol. `run` is the run that ended with it."""
        data: dict[str, Any] = {"code": info.code, "transient": info.transient}
        if info.details is not None:
            data["details"] = info.details
        if run is not None:
            data["run"] = run
        return cls(code, info.message, data)

    def __str__(self) -> str:
        return f"{self.full_message} ({self.code})"

    @property
    def full_message(self) -> str:
        """The message, and the reason in `data` where that says more: the published SDKs of agents and editors answer
        "Internal error", with the reason in `data.details`."""
        reasons = [self.data] if isinstance(self.data, str) else []
        if isinstance(self.data, dict):
            reasons = [self.data[name] for name in _REASONS if isinstance(self.data.get(name), str)]
        reason = reasons[0].strip()[:_REASON_HAS] if reasons else ""
        if not reason or reason in self.message:
            return self.message
        return f"{self.message}: {reason}" if self.message else reason

    def plain(self) -> dict[str, Any]:
        error: dict[str, Any] = {"code": self.code, "message": self.message}
        if self.data is not None:
            error["data"] = self.data
        return error


# -- what comes in --------------------------------------------------------------------------------------------


class Call:
    """A request of the peer. It is answered exactly once, through `Rpc.answer` or `Rpc.fail`."""

    __slots__ = ("answered", "batch", "envelope", "id", "method", "params")

    def __init__(
        self, id_: Id, method: str, params: Any, batch: Batch | None = None, envelope: dict[str, Any] | None = None
    ) -> None:
        self.id = id_
        self.method = method
        self.params = params  # an object, an array, or None
        self.batch = batch
        self.envelope = envelope or {}  # the whole message: some peers put members beside params
        self.answered = False

    def __repr__(self) -> str:
        return f"<call {self.method} {self.id!r}>"


class Notice(msgspec.Struct, gc=False):
    """A notification of the peer."""

    method: str
    params: Any = None


class Reply(msgspec.Struct, gc=False):
    """The peer's answer to an open request of this side."""

    id: Id
    result: Any = None
    error: RpcError | None = None


class CancelWanted(msgspec.Struct, gc=False):
    """The peer no longer wants the answer to a request of its own. It still gets one."""

    call: Call


class Refused(msgspec.Struct, gc=False):
    """An error of the peer without an id: it could not read a message, and cannot name it."""

    error: RpcError


Incoming = Call | Notice | Reply | CancelWanted | Refused


class Batch:
    """The answers of one array, until the last is there."""

    __slots__ = ("answers", "open", "size")

    def __init__(self, size: int) -> None:
        self.size = size  # the number of entries, of whatever kind
        self.answers: list[bytes] = []
        self.open = 1  # answers to wait for; the one is the array itself, until it has been read to its end


# -- both sides of a connection -------------------------------------------------------------------------------


class Rpc:
    """The state of one connection. `receive` returns what came; `sends` collects the frames to send because of it."""

    def __init__(
        self,
        limits: RpcLimits | None = None,
        *,
        cancel: tuple[str, str] | None = ("$/cancel_request", "requestId"),
        batches: bool = True,
        is_piece: IsPiece = no_piece,
    ) -> None:
        """`is_piece` tells the notifications that carry pieces of text: halves of characters in them are kept."""
        self.limits: RpcLimits = limits or Limits()
        self._cancel = cancel  # the notification that takes a request back, and the member that names the request
        self._batches = batches
        self._is_piece = is_piece
        self._next = 0
        self._ours: set[Id] = set()
        self._theirs: dict[Id, Call] = {}  # the newest of each id
        self._open = 0  # open requests of the peer; more than the dict holds, if a peer uses an id twice
        self.sends: list[bytes] = []
        self.odd = 0  # frames and entries that could not be read, and answers to nothing

    # -- receiving ----------------------------------------------------------------------------------------

    def receive(self, frame: bytes) -> list[Incoming]:
        """Returns everything that one frame asks for, in order. Never raises for the content of a frame."""
        if type(frame) is TooLong:
            return self._unreadable(frame, INVALID_REQUEST, frame.problem)
        if len(frame) > self.limits.max_frame_bytes:
            return self._unreadable(frame, INVALID_REQUEST, f"message longer than {size(self.limits.max_frame_bytes)}")
        try:
            message = _decode(frame)
        except (ValueError, RecursionError):
            if not frame.strip():  # a blank line is nothing at all
                return []
            try:
                message = self._patiently(frame)
            except json_text.Unreadable as error:
                return self._unreadable(frame, PARSE_ERROR, str(error))
        if type(message) is not list:
            out: list[Incoming] = []
            self._take(message, None, out)
            return out
        return self._take_batch(message)

    def _patiently(self, frame: bytes) -> Any:
        """Reads a message that is not clean. NaN and the like are refused in a request: the peer did not mean null."""
        seen = json_text.glimpse(frame)
        if seen.kind == "request" and seen.id is not None:
            return json_text.decode(frame, numbers="refuse")
        return json_text.decode_pieces(frame, self._carries_pieces)

    def _carries_pieces(self, message: Any) -> bool:
        return all(map(self._is_piece, message)) if type(message) is list else self._is_piece(message)

    def _unreadable(self, frame: bytes, code: int, problem: str) -> list[Incoming]:
        seen = json_text.glimpse(frame)
        if seen.kind == "answer" or (seen.kind is None and seen.id in self._ours):
            self.odd += 1
            # An answer with an unreadable id could be for any request. To fail all is better than to hang.
            ended = [seen.id] if seen.id is not None else list(self._ours)
            log.warning("an answer of the peer cannot be read: %s", problem)
            error = RpcError(code, f"the answer cannot be read: {problem}")
            return [self._ended(id_, error) for id_ in ended if id_ in self._ours]
        log.warning("a message of the peer cannot be read: %s", problem)
        self._refuse(code, problem, seen.id)
        return []

    def _ended(self, id_: Id, error: RpcError) -> Reply:
        self._ours.discard(id_)
        return Reply(id_, error=error)

    def _take_batch(self, entries: list[Any]) -> list[Incoming]:
        out: list[Incoming] = []
        if not self._batches:
            self._refuse(INVALID_REQUEST, "batches are not accepted here; send one message at a time")
        elif not entries:
            self._refuse(INVALID_REQUEST, "an empty batch; leave it out")
        elif len(entries) > self.limits.max_batch:
            self._refuse(INVALID_REQUEST, f"a batch has at most {self.limits.max_batch} entries")
        elif all(_is_response(entry) for entry in entries):
            for entry in entries:
                self._take(entry, None, out)
        else:
            batch = Batch(len(entries))
            for entry in entries:
                if _is_response(entry):  # answers do not belong among calls
                    self._bad_entry(batch, "a response among requests")
                else:
                    self._take(entry, batch, out)
            self._entry_done(batch)
        return out

    def _take(self, message: Any, batch: Batch | None, out: list[Incoming]) -> None:
        if type(message) is not dict:
            self._bad_entry(batch, f"{_kind(message)} is not a message; send an object")
            return
        if _is_response(message):
            self._take_response(message, out)
            return
        problem = _problem(message)
        if problem is not None:
            self._bad_entry(batch, problem, message.get("id"))
            return
        params = message.get("params")
        if "id" not in message:
            self._take_notice(Notice(message["method"], params), out)
            return
        call = Call(message["id"], message["method"], params, batch, message)
        if batch is not None:
            batch.open += 1
        self._open += 1
        if self._open > self.limits.max_open:
            self.fail(call, RpcError(INVALID_REQUEST, f"more than {self.limits.max_open} requests are open"))
            return
        self._theirs[call.id] = call
        out.append(call)

    def _take_notice(self, notice: Notice, out: list[Incoming]) -> None:
        if self._cancel is not None and notice.method == self._cancel[0]:
            id_ = notice.params.get(self._cancel[1]) if isinstance(notice.params, dict) else None
            call = self._theirs.get(id_) if type(id_) in (int, str) else None  # type: ignore[arg-type]
            if call is not None:
                out.append(CancelWanted(call))
            return
        out.append(notice)

    def _take_response(self, message: dict[str, Any], out: list[Incoming]) -> None:
        id_ = message.get("id")
        error = message.get("error")
        if id_ is None and error is not None:  # some leave the id out
            self.odd += 1
            out.append(Refused(_told_error(error)))
            return
        if type(id_) not in (int, str) or id_ not in self._ours:
            self.odd += 1  # an answer to nothing, or one that came twice: noted, never answered
            return
        self._ours.discard(id_)
        out.append(Reply(id_, message.get("result")) if error is None else Reply(id_, error=_told_error(error)))

    def _bad_entry(self, batch: Batch | None, problem: str, id_: Any = None) -> None:
        if batch is None:
            self._refuse(INVALID_REQUEST, problem, id_)
        else:
            self.odd += 1
            batch.answers.append(_failure(_id(id_), RpcError(INVALID_REQUEST, problem)))

    def _refuse(self, code: int, problem: str, id_: Any = None) -> None:
        self.odd += 1
        self.sends.append(_failure(_id(id_), RpcError(code, problem)))

    # -- answering ----------------------------------------------------------------------------------------

    def answer(self, call: Call, result: Any) -> None:
        """Answers a request. The frame is in `sends`, unless its batch waits for other answers."""
        try:
            frame = _encoded({"jsonrpc": "2.0", "id": call.id, "result": result})
        except Exception as error:
            frame = _failure(call.id, RpcError(INTERNAL_ERROR, f"the answer is not JSON: {error}"))
        self._close(call, frame)

    def fail(self, call: Call, error: RpcError) -> None:
        self._close(call, _failure(call.id, error))

    def drop(self, call: Call) -> None:
        """Drops a request without an answer: its peer has cancelled it, in a protocol that then wants silence."""
        self._close(call, None)

    def _close(self, call: Call, answer: bytes | None) -> None:
        if call.answered:
            return
        call.answered = True
        self._open -= 1
        if self._theirs.get(call.id) is call:
            del self._theirs[call.id]
        if call.batch is None:
            if answer is not None:
                self.sends.append(answer)
        else:
            if answer is not None:
                call.batch.answers.append(answer)
            self._entry_done(call.batch)

    def _entry_done(self, batch: Batch) -> None:
        batch.open -= 1
        if not batch.open and batch.answers:  # an array of nothing is never sent
            self.sends.append(b"[" + b",".join(batch.answers) + b"]")

    def reopen(self, requests: Iterable[tuple[Id, str, Any]]) -> list[Call]:
        """Requests (id, method, params) that the peer made elsewhere, and that are answered here: several in one array,
        as they came."""
        requests_ = list(requests)
        batch = Batch(len(requests_)) if len(requests_) > 1 else None
        calls = [Call(id_, method, params, batch) for id_, method, params in requests_]
        for call in calls:
            self._open += 1
            self._theirs[call.id] = call
        if batch is not None:
            batch.open = len(calls)
        return calls

    @property
    def open_calls(self) -> int:
        """Requests of the peer that have no answer yet."""
        return self._open

    # -- asking -------------------------------------------------------------------------------------------

    def count_from(self, number: int) -> None:
        """Makes the ids of later requests higher than this. Another process used the lower ones, and answers to those
        are ignored here."""
        self._next = max(self._next, number)

    def request(self, method: str, params: Any = None) -> tuple[Id, bytes]:
        """Makes a request: returns its id, and the frame."""
        self._next += 1
        id_ = self._next
        frame = _encoded(call_message(method, params, id_))
        self._ours.add(id_)
        return id_, frame

    def notify(self, method: str, params: Any = None) -> bytes:
        return _encoded(call_message(method, params))

    def cancel(self, id_: Id) -> bytes | None:
        """Makes the frame that cancels a request of this side. The peer still answers it; until then it stays open."""
        if self._cancel is None or id_ not in self._ours:
            return None
        return self.notify(self._cancel[0], {self._cancel[1]: id_})

    def forget(self, id_: Id) -> None:
        """Stops waiting for an answer; one that comes later is ignored."""
        self._ours.discard(id_)

    def batch(self, calls: Iterable[tuple[str, Any, bool]]) -> tuple[list[Id], bytes]:
        """Makes one array of (method, params, whether an answer is wanted): returns the ids of the requests, and the
        frame.

        Many peers of today end the connection at an array: send one only to those that are known to take it.
        """
        ids: list[Id] = []
        entries = []
        for method, params, answered in calls:
            if answered:
                self._next += 1
                ids.append(self._next)
            entries.append(call_message(method, params, self._next if answered else _MISSING))
        if not entries:
            raise ValueError("a batch has at least one entry")
        frame = _encoded(entries)
        self._ours.update(ids)
        return ids, frame


def call_message(method: str, params: Any = None, id_: Any = _MISSING) -> dict[str, Any]:
    """Returns a request, or a notification without an id."""
    message: dict[str, Any] = {"jsonrpc": "2.0"}
    if id_ is not _MISSING:
        message["id"] = id_
    message["method"] = method
    if params is not None:
        message["params"] = params
    return message


def _encoded(message: Any) -> bytes:
    """A message as it goes out: halves of characters are replaced."""
    try:
        return _encode(message)
    except UnicodeEncodeError:
        return _encode(whole_value(msgspec.to_builtins(message)))


def _failure(id_: Id | None, error: RpcError) -> bytes:
    """Encodes an error whatever it holds: a request must have an answer."""
    try:
        return _encoded(failure_message(id_, error.plain()))
    except Exception:  # its data is not JSON
        return _encoded(failure_message(id_, {"code": error.code, "message": str(error.message)}))


def failure_message(id_: Id | None, error: dict[str, Any]) -> dict[str, Any]:
    """Returns the answer to a request that failed."""
    return {"jsonrpc": "2.0", "id": id_, "error": error}


def _id(value: Any) -> Id | None:
    """The id that an error carries: none where that is no id."""
    return value if type(value) in (int, str) else None


def _told_error(error: Any) -> RpcError:
    """The peer's error, as far as it is one."""
    members = error if type(error) is dict else {}
    code, text = members.get("code"), members.get("message")
    return RpcError(
        code if type(code) is int else INTERNAL_ERROR,
        text if type(text) is str else "the peer answered with an error",
        members.get("data"),
    )


def problem(message: Any) -> str | None:
    """Returns why a value is not a message, for transports that refuse such a value themselves; None if it is one."""
    if type(message) is not dict:
        return f"{_kind(message)} is not a message; send an object"
    return None if _is_response(message) else _problem(message)


def _is_response(message: Any) -> bool:
    return type(message) is dict and "method" not in message and ("result" in message or "error" in message)


def _problem(message: dict[str, Any]) -> str | None:
    """Returns why an object is neither a request nor a notification; None if it is one."""
    if message.get("jsonrpc") != "2.0":
        return 'a message has "jsonrpc": "2.0"'
    method = message.get("method", _MISSING)
    if method is _MISSING:
        return "a request has a method"
    if type(method) is not str:
        return f"the method is {_kind(method)}; it is a string"
    if "id" in message and type(message["id"]) not in (int, str):
        return f"the id is {_kind(message['id'])}; it is a whole number or a string"
    params = message.get("params")
    if params is not None and type(params) not in (dict, list):
        return f"params is {_kind(params)}; it is an object or an array"
    return None


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    return {bool: "true or false", int: "a number", float: "a number", str: "a string", list: "an array"}.get(
        type(value), "an object"
    )
