"""Maps the tree of errors to the answers of each door."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
from starlette.requests import Request

from interlingua.doors import rpc_errors
from interlingua.doors.errors import STATUSES, HttpErrors, about
from interlingua.model.errors import (
    AgentError,
    AlreadyFinished,
    Conflict,
    ErrorTable,
    InterlinguaError,
    InvalidRequest,
    NotFound,
    RunNotFound,
    all_errors,
)
from interlingua.protocols.editor import translate as editor
from interlingua.protocols.mcp import translate as mcp
from interlingua.security.errors import EgressRefused, HostRefused, KeysUnavailable, OriginRefused, Unauthenticated
from interlingua.transports.http.body import SlowBody, WrongContentType

AT_THE_DOOR = [Unauthenticated, HostRefused, OriginRefused, EgressRefused, KeysUnavailable, SlowBody, WrongContentType]
EVERY = [*all_errors(), *AT_THE_DOOR]
REQUEST = Request({"type": "http", "headers": [], "path": "/"})


def table(protocol: str) -> ErrorTable[Any]:
    errors: HttpErrors = importlib.import_module(f"interlingua.protocols.{protocol}.door.errors").ERRORS
    return errors.table


TABLES: dict[str, ErrorTable[Any]] = {
    **{protocol: table(protocol) for protocol in ("connect", "peer", "cap")},
    "JSON-RPC over HTTP": rpc_errors.ERRORS.table, "editor": editor.ERRORS, "mcp": mcp.ERRORS,
}  # fmt: skip


@pytest.mark.parametrize("door", TABLES)
@pytest.mark.parametrize("error", EVERY, ids=lambda error: error.code)
def test_every_error_has_a_row_in_every_door_and_only_the_root_is_unknown(
    door: str, error: type[InterlinguaError]
) -> None:
    base = TABLES[door].base(error)
    assert (base is InterlinguaError) == (error is InterlinguaError)


def test_a_class_without_a_row_has_that_of_its_nearest_base() -> None:
    rows = ErrorTable({InterlinguaError: 0, NotFound: 1, Conflict: 2, AlreadyFinished: 3})
    assert [rows.of(error) for error in (RunNotFound, Conflict, AlreadyFinished, InvalidRequest)] == [1, 2, 3, 0]


def test_an_error_of_a_log_has_the_row_of_its_code() -> None:
    class Mine(AgentError):
        code = "conflict"

    rows = ErrorTable({InterlinguaError: 0, NotFound: 1, Conflict: 2})
    codes = ["run_not_found", "conflict", "run_failed", "my_own"]
    assert [rows.of_code(code) for code in codes] == [1, 2, 0, 0]


def test_a_table_without_the_root_is_refused() -> None:
    with pytest.raises(ValueError, match="a row for InterlinguaError"):
        ErrorTable({NotFound: 404})


def test_a_response_has_the_status_of_the_table_and_the_body_of_the_protocol() -> None:
    errors = HttpErrors(
        STATUSES, lambda error, status, request: {"said": error.message, "status": status, "path": request.url.path},
        lambda error, request: {"x-code": error.code},
    )  # fmt: skip
    answer = errors.response(RunNotFound("there is no run x"), REQUEST)
    assert (answer.status_code, answer.headers["x-code"]) == (404, "run_not_found")
    assert answer.body == b'{"said":"there is no run x","status":404,"path":"/"}'


def test_an_unknown_caller_gets_a_challenge() -> None:
    answer = HttpErrors(STATUSES, lambda error, status, request: None).response(Unauthenticated("who?"), REQUEST)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith('Bearer realm="interlingua"')


def test_an_error_holds_the_members_by_which_an_answer_names_the_message() -> None:
    message = {"id": "m1", "text": "long" * 1000}
    error = InvalidRequest("no")
    about(error, [message], "id")
    assert error.refused_message == b""
    about(error, message, "id", "task")
    assert error.refused_message == b'{"id":"m1"}'
    about(error, {"id": "m2"}, "id")
    assert error.refused_message == b'{"id":"m1"}'
