"""The log: secrets stay out of it, nobody can write lines of their own, and off costs nothing."""

from __future__ import annotations

import io
import json
import logging
from typing import Any

import pytest

from interlingua.engine.observe import run_logging
from interlingua.security.redaction import redact_text, redact_url
from interlingua.server import checked_app
from interlingua.server.logs import KEEPS_LINES, LogFormat, logging_as


def lines(form: LogFormat, message: str, fields: dict[str, Any] | None = None, error: Exception | None = None) -> str:
    stream = io.StringIO()
    with logging_as(form, stream):
        logging.getLogger("interlingua.test").warning(
            message, extra={"fields": fields or {}}, exc_info=error if error is not None else False
        )
    return stream.getvalue()


def test_json_lines_have_the_fields_and_cannot_be_forged() -> None:
    text = lines(
        LogFormat.JSON, 'GET /a\n{"level": "info"}', {"run": "r", "caller": None, "level": "forged", "ms": 1.5}
    )
    (line,) = text.splitlines()
    told = json.loads(line)
    assert told["level"] == "warning"
    assert (told["logger"], told["run"], told["ms"]) == ("interlingua.test", "r", 1.5)
    assert "caller" not in told, "what is not known is left out"


def test_text_lines_cannot_be_forged() -> None:
    text = lines(LogFormat.TEXT, "GET /a\r\n2026-01-01 ERROR \x1b[31mforged\u2028", {"run": "some run"})
    assert len(text.splitlines()) == 1
    assert "\x1b" not in text
    assert text.endswith("(run=some run)\n")


def test_a_message_that_keeps_its_lines_has_them_indented() -> None:
    stream = io.StringIO()
    with logging_as(LogFormat.TEXT, stream):
        said = "agents.py cannot be loaded\n2026-01-01 ERROR \x1b[31mforged\r"
        logging.getLogger("interlingua.test").error(said, extra={KEEPS_LINES: True})
    first, second = stream.getvalue().splitlines()
    assert first.endswith("agents.py cannot be loaded")
    assert second == r"    2026-01-01 ERROR \x1b[31mforged\x0d"


@pytest.mark.parametrize("form", [LogFormat.JSON, LogFormat.TEXT])
def test_secrets_are_taken_out_of_messages_fields_and_tracebacks(form: LogFormat) -> None:
    try:
        raise ValueError("POST https://ada:hunter2@example.org/x?token=s3cret failed")
    except ValueError as caught:
        error = caught
    said = "sent il_a1b2_verysecret and Bearer abcdefghijkl to https://example.org/?api_key=s3cret"
    text = lines(form, said, {"path": "/x?signature=s3cret"}, error)
    for secret in ("hunter2", "s3cret", "verysecret", "abcdefghijkl"):
        assert secret not in text
    assert "il_a1b2_***" in text, "whose key it was may be known"
    assert "ValueError" in text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://ada:pw@example.org/a?x=1&b#c", "https://***@example.org/a?x=***&b"),
        ("http://127.0.0.1:8000/callme", "http://127.0.0.1:8000/callme"),
    ],
)
def test_addresses_are_shown_without_user_query_and_fragment(text: str, shown: str) -> None:
    assert redact_url(text) == shown


@pytest.mark.parametrize("text", ["a run of echo@0.1.0 failed", "n=3 and keys = values", "the basic idea", "monkey=1"])
def test_plain_words_are_let_be(text: str) -> None:
    assert redact_text(text) == text


def test_a_token_in_a_text_is_hidden() -> None:
    assert redact_text("got eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJhIn0.c2ln here") == "got *** here"


def test_off_leaves_logging_as_it_is_and_on_puts_everything_back() -> None:
    root = logging.getLogger()
    before = (root.handlers[:], root.level, logging.getLogger("httpx2").level)
    with logging_as(LogFormat.OFF):
        assert (root.handlers, root.level, logging.getLogger("httpx2").level) == before
    with logging_as(LogFormat.JSON, io.StringIO()):
        assert run_logging.log.isEnabledFor(logging.INFO)
        assert not logging.getLogger("httpx2").isEnabledFor(logging.INFO), "it logs addresses, secrets and all"
    assert (root.handlers, root.level, logging.getLogger("httpx2").level) == before


def test_when_nobody_reads_the_log_nothing_is_made_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_logging, "_fields", lambda row: pytest.fail("made for nobody"))
    monkeypatch.setattr(checked_app.CheckedApp, "_log", lambda *_: pytest.fail("made for nobody"))
    for name in ("interlingua.runs", "interlingua.access"):
        assert not logging.getLogger(name).isEnabledFor(logging.INFO)
    run_logging.created(None)  # type: ignore[arg-type]
