"""What `inspect` and `conform` look at may be anything: what never ends, never answers, or is something else."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from interlingua.detection import at_address, over_pipes
from interlingua.detection.detect import inspect
from interlingua.model.errors import Unavailable
from interlingua.transports import raw_client
from interlingua_conform import suite
from interlingua_conform.base import Subject, conform
from tests.kit.certificates import certificate, server_tls

Behaviour = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

MIB = 1024 * 1024


@contextlib.asynccontextmanager
async def stranger(behaviour: Behaviour, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """The address of a server that does with each connection what it likes."""
    open_connections: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        open_connections.add(task)
        try:
            await behaviour(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError, ssl.SSLError):
            pass
        finally:
            open_connections.discard(task)
            writer.transport.abort()

    server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=tls)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in list(open_connections):
            task.cancel()
        await asyncio.gather(*open_connections, return_exceptions=True)


def begins(head: bytes, more: bytes, pause: float = 0.0) -> Behaviour:
    """An answer that begins so, and goes on for ever."""

    async def behaviour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head)
        while True:
            writer.write(more)
            await writer.drain()
            await asyncio.sleep(pause)

    return behaviour


def answers(whole: bytes) -> Behaviour:
    async def behaviour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(whole)
            await writer.drain()

    return behaviour


async def nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


OK = b"HTTP/1.1 200 OK\r\n"
ENDLESS = {
    "a body": begins(OK + b"content-type: application/json\r\n\r\n[", b"1," * 50_000),
    "an event": begins(OK + b"content-type: text/event-stream\r\n\r\ndata: ", b"x" * 100_000),
    "headers, one by one": begins(OK, b"x-more: 1\r\n", 0.05),
    "a body, letter by letter": begins(OK + b"content-length: 100000\r\n\r\n", b" ", 0.05),
}


# whether what must not be waited for is time, and what is told
ENDS = {
    "a body": (False, "was answered with more than 4 MB, which is not read"),
    "an event": (False, "was answered with more than 4 MB, which is not read"),
    "headers, one by one": (True, "has answered nothing within 0.2 s"),
    "a body, letter by letter": (True, "it answers so slowly that not all could be tried within 0.6 s"),
}


@pytest.mark.parametrize("what", ENDLESS)
async def test_an_answer_without_end_is_not_waited_for(what: str) -> None:
    slow, said = ENDS[what]
    async with stranger(ENDLESS[what]) as address, asyncio.timeout(20):
        found, odd = await at_address.look(address, patience=0.2 if slow else 5.0)
    assert not found
    assert any(said in one for one in odd), odd


@pytest.mark.parametrize("protocol", ["connect", "mcp", "peer", "editor", "cap"])
async def test_checks_of_a_server_whose_answers_have_no_end_come_to_theirs(
    protocol: str,
) -> None:
    checks = suite(protocol)
    async with stranger(ENDLESS["a body"]) as address, asyncio.timeout(20):
        subject = Subject(address=address, patience=0.2, quiet=0.01, most=MIB)
        with contextlib.suppress(Unavailable):
            verdicts = {found.verdict async for found in conform(checks, subject, checks.ids[:3])}
            assert verdicts <= {"fail", "not applicable"}


async def test_who_takes_connections_and_says_nothing_is_told_so() -> None:
    async with stranger(nothing) as address:
        found, odd = await at_address.look(address, patience=0.2)
    assert (found, odd) == ([], [f"something listens at {address}, and has answered nothing within 0.2 s"])


async def test_where_an_address_sends_on_to_is_told_and_not_followed() -> None:
    away = answers(b"HTTP/1.1 302 Found\r\nlocation: /again?token=sesame\r\ncontent-length: 0\r\n\r\n")
    async with stranger(away) as address:
        found, odd = await at_address.look(address)
    assert not found
    assert odd[0].startswith(f"it sends on to another address: look there, at {address}/again")
    assert "sesame" not in odd[0]


async def test_an_address_that_sends_on_to_itself_is_told() -> None:
    async with stranger(answers(b"HTTP/1.1 302 Found\r\nlocation: /\r\ncontent-length: 0\r\n\r\n")) as address:
        found, odd = await at_address.look(address)
    assert (found, odd) == ([], ["it answers 302 and sends on to where it was asked: nobody would ever arrive"])


@pytest.mark.parametrize("headers", [b"x: " + b"a" * 10 * MIB, b"x: a\r\n" * MIB])
async def test_headers_that_are_too_long_are_told(headers: bytes) -> None:
    async with stranger(answers(OK + headers + b"\r\n\r\n")) as address:
        with pytest.raises(Unavailable, match=f"what listens at {address} answers with headers that are too long"):
            await at_address.look(address)


async def test_who_wants_a_websocket_is_told_with_how_to_look_at_a_node() -> None:
    async with stranger(answers(b"HTTP/1.1 426 Upgrade Required\r\ncontent-length: 0\r\n\r\n")) as address:
        found, odd = await at_address.look(address)
    assert not found
    assert f"interlingua inspect '{address.replace('http', 'acp')}/TOKEN'" in odd[0]


async def test_a_web_page_is_told_to_be_one() -> None:
    page = answers(OK + b"content-type: text/html\r\ncontent-length: 5\r\n\r\nHello")
    async with stranger(page) as address:
        said = [f"GET {address} is answered with 200 and a web page, for people"]
        assert await at_address.look(address) == ([], said)


async def test_what_speaks_no_http_is_told_so() -> None:
    async def banner(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"* OK IMAP4rev1 ready\r\n\r\n")
        await reader.read()

    async with stranger(banner) as address:
        with pytest.raises(Unavailable, match="answers with no HTTP") as refused:
            await at_address.look(address)
    assert not refused.value.transient


async def test_whoever_mixes_up_http_and_https_is_told(tmp_path: Path) -> None:
    tls = server_tls(certificate(tmp_path))
    async with stranger(nothing, tls) as address:
        with pytest.raises(Unavailable, match=f"if it speaks TLS: {address.replace('http', 'https')}"):
            await at_address.look(address)

    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")

    async with stranger(plain) as address:
        with pytest.raises(Unavailable, match=f"if it speaks no TLS: {address}"):
            await at_address.look(address.replace("http", "https"))


async def test_a_certificate_that_nobody_trusts_is_told_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = server_tls(certificate(tmp_path))
    page = answers(OK + b"content-type: text/html\r\ncontent-length: 5\r\n\r\nHello")
    async with stranger(page, tls) as address:
        address = address.replace("http", "https")
        with pytest.raises(Unavailable) as refused:
            await at_address.look(address)
        assert refused.value.message == (
            f"the certificate of {address} is not trusted: self-signed certificate; "
            "if it is yours, name a file that has it: SSL_CERT_FILE=certificate.pem interlingua …"
        )
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "127.0.0.1.pem"))
        raw_client.http.authorities.cache_clear()
        try:
            _, odd = await at_address.look(address)
        finally:
            raw_client.http.authorities.cache_clear()
        assert odd == [f"GET {address} is answered with 200 and a web page, for people"]


@pytest.mark.parametrize("line", ["y", "{}", '{"jsonrpc": "2.0"}'])
async def test_a_program_that_never_stops_talking_is_left(line: str) -> None:
    async with asyncio.timeout(30):
        found, _ = await over_pipes.look(["yes", line], "yes", patience=2.0)
    assert not found


async def test_an_echo_speaks_none_of_the_protocols() -> None:
    found, odd = await over_pipes.look(["cat"], "cat", patience=2.0)
    assert (found, odd) == ([], ["it repeats what it receives: whatever it speaks, it is none of these protocols"])


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("raise ImportError('no module named agents')", "ImportError: no module named agents"),
        ("print('Welcome!', flush=True); input()", "it prints: Welcome!"),
        ("import time; time.sleep(60)", "it says nothing within 0.5 s"),
    ],
)
async def test_of_a_program_that_speaks_none_it_is_told_what_it_did(code: str, said: str) -> None:
    patience = 0.5 if "0.5" in said else 10.0
    found, odd = await over_pipes.look([sys.executable, "-c", code], "x", patience=patience)
    assert not found
    assert said in odd[0]


@pytest.mark.parametrize(
    ("server", "defect", "id_"),
    [("mcp", "error is null", "mcp.intro.extends-mcp"), ("editor", "error-is-null", "editor.messages.json-rpc")],
)
async def test_an_answer_with_an_error_that_is_null_is_one_mistake(server: str, defect: str, id_: str) -> None:
    broken = Path(__file__).parent.parent / "conform" / server / "broken.py"
    ((spoken,), _) = await inspect(f"{sys.executable} {broken} '{defect}'")
    ((wrong),) = spoken.wrong
    assert spoken.protocol == server
    assert "an answer has both result and error" in wrong
    assert f"[{id_}]" in wrong
