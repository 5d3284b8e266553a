"""The relay, and the peers that meet at it: its endpoints, its limits, and channels through it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx2
import pytest
import uvicorn

from interlingua.protocols.peer.bindings.listen import Incoming
from interlingua.protocols.peer.bindings.relay import RelayListener, dial_relay, listen_relay
from interlingua.protocols.peer.bindings.relay_room import RelayChannel, RelayTimes, Room
from interlingua.protocols.peer.relay.app import RelaySettings, relay_app
from interlingua.protocols.peer.wire.links import Link, new_token, parse
from interlingua.transports.channel import Channel, TooLong
from tests.kit.wait_for import PATIENCE, wait_for

LIMIT = 64 * 1024
QUICK = RelayTimes(request=5.0, ping_every=0.1, silent=0.6, outage=0.8)


class Server:
    """A relay on a real socket, which can go away and come back at the same port."""

    def __init__(self, app: Any) -> None:
        self.port = 0
        self._app = app
        self._task: asyncio.Task[None]
        self._uvicorn: uvicorn.Server

    async def start(self, app: Any = None) -> None:
        listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # so that asyncio knows TCP
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", self.port))
        self.port = listening.getsockname()[1]
        config = uvicorn.Config(app or self._app, log_level="critical", lifespan="off", timeout_graceful_shutdown=0)
        self._uvicorn = uvicorn.Server(config)
        self._uvicorn.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        self._task = asyncio.ensure_future(self._uvicorn.serve(sockets=[listening]))
        await wait_for(lambda: self._uvicorn.started)

    async def stop(self) -> None:
        self._uvicorn.should_exit = True
        await asyncio.wait_for(self._task, PATIENCE)

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def link(self, token: str) -> Link:
        return parse(f"acp+ws://127.0.0.1:{self.port}/acp/{token}")


@contextlib.asynccontextmanager
async def relaying(**settings: Any) -> AsyncIterator[Server]:
    server = Server(relay_app(RelaySettings(**settings)))
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@contextlib.asynccontextmanager
async def asking(**settings: Any) -> AsyncIterator[tuple[httpx2.AsyncClient, str]]:
    """A client of a relay, and the token of a session there."""
    async with (
        relaying(**settings) as server,
        httpx2.AsyncClient(base_url=server.base, trust_env=False, verify=False) as http,
    ):
        token = (await http.post("/acp/new")).json()["token"]
        yield http, token


# -- the endpoints ----------------------------------------------------------------------------------------------


async def test_a_session_is_begun_joined_used_and_deleted() -> None:
    async with asking() as (http, token):
        begun = (await http.post(f"/acp/new?token={token}")).json()
        assert begun["token"] == token
        assert begun["link"] == f"acp+ws://{http.base_url.host}:{http.base_url.port}/acp/{token}"
        assert begun["existed"] is True
        joined = (await http.post(f"/acp/{token}/join", json={"name": "A", "card": {"name": "A"}})).json()
        assert {key: joined[key] for key in ("ok", "session_id", "seq", "agent_name")} == {
            "ok": True,
            "session_id": token,
            "seq": 1,
            "agent_name": "A",
        }
        sent = await http.post(f"/acp/{token}/send", json={"type": "acp.message", "id": "m1", "ts": "x", "from": "A"})
        assert sent.json() == {"ok": True, "id": "m1", "seq": 2}
        before = int(time.time() * 1000)
        polled = (await http.get(f"/acp/{token}/poll")).json()
        assert polled["count"] == 2
        assert polled["last_id"] == "m1"
        assert polled["server_seq"] == 2
        join, message = polled["messages"]
        assert join["type"] == "acp.agent_joined"
        assert join["from"] == "A"
        assert join["card"] == {"name": "A"}
        assert message["seq"] == 2
        assert abs(message["ts"] - before) < 10_000
        status = (await http.get(f"/acp/{token}/status")).json()
        assert status["agents"] == ["A"]
        assert status["message_count"] == 2
        assert status["ttl_s"] == 3600
        assert (await http.get(f"/acp/{token}")).json()["token"] == token
        assert (await http.delete(f"/acp/{token}")).json() == {"ok": True, "deleted": token}
        assert (await http.get(f"/acp/{token}/status")).status_code == 403


@pytest.mark.parametrize("wanted", ["", "short", "with space", "x" * 65, "ünïcode", "a/b"])
async def test_a_token_that_is_none_is_replaced_by_one_that_nobody_guesses(wanted: str) -> None:
    async with asking() as (http, _):
        made = (await http.post("/acp/new", params={"token": wanted})).json()["token"]
        assert re.fullmatch(r"tok_[0-9a-f]{16}", made)


async def test_polls_go_on_after_an_id_and_take_no_more_than_their_limit() -> None:
    async with asking() as (http, token):
        for n in range(10):
            await http.post(f"/acp/{token}/send", json={"id": f"m{n}"})

        async def ids(**params: Any) -> list[str]:
            return [
                message["id"] for message in (await http.get(f"/acp/{token}/poll", params=params)).json()["messages"]
            ]

        assert await ids(limit=3) == ["m0", "m1", "m2"]
        assert await ids(after_id="m7") == ["m8", "m9"]
        assert await ids(after_id="m9") == []
        assert await ids(after_id="forgotten", limit=2) == ["m0", "m1"]
        assert await ids(since=int(time.time() * 1000) + 1000) == []
        assert await ids(since=int(time.time() * 1000) + 1000, after_id="m8") == ["m9"]
        assert len(await ids(since="nonsense", limit="nonsense", wait="nonsense")) == 10
        assert len(await ids(limit=0)) == 10


async def test_the_same_id_again_is_the_same_message() -> None:
    async with asking() as (http, token):
        first = (await http.post(f"/acp/{token}/send", json={"id": "m1", "n": 1})).json()
        again = (await http.post(f"/acp/{token}/send", json={"id": "m1", "n": 2})).json()
        assert first["seq"] == 1
        assert again == {"ok": True, "deduped": True, "id": "m1"}
        messages = (await http.get(f"/acp/{token}/poll")).json()["messages"]
        assert [message["n"] for message in messages] == [1]


async def test_a_poll_may_wait_for_news() -> None:
    async with asking() as (http, token):
        polling = asyncio.ensure_future(http.get(f"/acp/{token}/poll", params={"wait": 20}, timeout=PATIENCE))
        relay_sees = asyncio.ensure_future(http.get(f"/acp/{token}/status"))
        await relay_sees
        began = time.monotonic()
        await http.post(f"/acp/{token}/send", json={"id": "news"})
        answer = (await asyncio.wait_for(polling, PATIENCE)).json()
        assert [message["id"] for message in answer["messages"]] == ["news"]
        assert time.monotonic() - began < 10
        empty = await http.get(f"/acp/{token}/poll", params={"wait": 0.05, "after_id": "news"})
        assert empty.json()["messages"] == []
        assert empty.json()["last_id"] == "news"


async def test_a_reader_that_leaves_waits_no_more_and_makes_room_for_the_next() -> None:
    async with asking(waiting=1) as (http, token):

        async def poll(seconds: float) -> float:
            """How long the relay let it wait: where there is no room, the answer is there at once."""
            began = time.monotonic()
            answer = await http.get(f"/acp/{token}/poll", params={"wait": seconds}, timeout=PATIENCE)
            assert answer.json()["messages"] == []
            return time.monotonic() - began

        leaving = asyncio.ensure_future(poll(20))
        await http.get(f"/acp/{token}/status")
        while await poll(1) >= 1:  # a busy machine may take a while to refuse, but not as long as this
            if leaving.done():  # it found its place taken by this one
                leaving = asyncio.ensure_future(poll(20))
                await http.get(f"/acp/{token}/status")
        leaving.cancel()
        async with asyncio.timeout(10):
            while await poll(1) < 1:
                pass


async def test_a_session_that_is_deleted_wakes_whoever_waits_in_it() -> None:
    async with asking() as (http, token):
        polling = asyncio.ensure_future(http.get(f"/acp/{token}/poll", params={"wait": 20}, timeout=PATIENCE))
        await http.get(f"/acp/{token}/status")
        while not polling.done():
            await http.delete(f"/acp/{token}")
        assert (await polling).status_code == 403


async def test_numbers_and_members_come_out_as_they_went_in() -> None:
    body = b'{"id":"m","f":1.0,"big":123456789012345678901234567890,"text":"\xc3\xa9\\u0000","deep":{"x":[1e2]}}'
    async with asking() as (http, token):
        await http.post(f"/acp/{token}/send", content=body)
        polled = (await http.get(f"/acp/{token}/poll")).content
        for piece in (b'"f":1.0', b'"big":123456789012345678901234567890', b'"deep":{"x":[1e2]}'):
            assert piece in polled


async def test_an_address_is_announced_for_one_reader_and_a_short_time() -> None:
    async with asking(announce_ttl=60.0) as (http, _):
        told = {"token": "tok_abc", "ip": "192.0.2.7", "port": 7801, "nat_type": "full_cone"}
        assert (await http.post("/acp/announce", json=told)).json() == {
            "ok": True,
            "token": "tok_abc",
            "expires_in": 60,
        }
        found = (await http.get("/acp/peer?token=tok_abc")).json()
        assert (found["ip"], found["port"], found["nat_type"]) == ("192.0.2.7", 7801, "full_cone")
        assert (await http.get("/acp/peer?token=tok_abc")).status_code == 404
        assert (await http.get("/acp/peer")).status_code == 400
        for wrong in ({}, {**told, "port": 0}, {**told, "port": "x"}, {**told, "token": "a b"}, {**told, "ip": ""}):
            assert (await http.post("/acp/announce", json=wrong)).status_code == 400
        assert (await http.get("/acp/myip")).json()["ip"] == "127.0.0.1"
    async with asking(announce_ttl=0.0) as (http, _):
        await http.post("/acp/announce", json=told)
        assert (await http.get("/acp/peer?token=tok_abc")).status_code == 404


# -- what nobody finds out --------------------------------------------------------------------------------------


async def test_sessions_are_not_listed_and_wrong_tokens_are_all_answered_alike() -> None:
    async with asking() as (http, token):
        assert (await http.get("/acp/rooms")).status_code == 404
        assert token not in (await http.get("/acp/rooms")).text
        answers = set()
        for wrong in ("tok_0000000000000000", token[:-1], token + "0", "rooms2", "x"):
            for method, path in (("POST", "join"), ("POST", "send"), ("GET", "poll"), ("GET", "status")):
                refused = await http.request(method, f"/acp/{wrong}/{path}", json={} if method == "POST" else None)
                answers.add((refused.status_code, refused.text))
        assert answers == {(403, '{"error":"invalid_token","hint":"Session not found or expired"}')}
        assert (await http.delete("/acp/tok_0000000000000000")).json()["ok"] is True  # as if there had been one


async def test_of_a_token_that_can_be_guessed_nobody_learns_whether_others_use_it() -> None:
    async with asking() as (http, _):
        assert (await http.post("/acp/new?token=team42")).json()["existed"] is False
        assert (await http.post("/acp/new?token=team42")).json()["existed"] is False


async def test_whoever_tries_many_tokens_is_not_answered_for_a_while() -> None:
    async with asking(wrong_per_minute=5) as (http, token):
        codes = [(await http.get(f"/acp/wrong{n}/status")).status_code for n in range(7)]
        assert codes == [403] * 5 + [429] * 2
        assert (await http.get(f"/acp/{token}/status")).status_code == 429  # nor told when one is right


# -- limits -----------------------------------------------------------------------------------------------------


async def test_an_address_may_begin_so_many_sessions() -> None:
    async with asking(new_per_minute=4) as (http, _):
        codes = [(await http.post("/acp/new")).status_code for _ in range(5)]
        assert codes == [200] * 3 + [429] * 2
    async with asking(sessions_per_address=2) as (http, token):
        assert (await http.post("/acp/new")).status_code == 200
        assert (await http.post("/acp/new")).status_code == 429
        await http.delete(f"/acp/{token}")
        assert (await http.post("/acp/new")).status_code == 200


async def test_a_full_relay_lets_go_of_sessions_that_nobody_used_and_of_no_others() -> None:
    async with asking(sessions=2) as (http, used):
        await http.post(f"/acp/{used}/join", json={"name": "A"})
        unused = (await http.post("/acp/new")).json()["token"]
        newer = (await http.post("/acp/new")).json()["token"]
        assert (await http.get(f"/acp/{unused}/status")).status_code == 403
        assert (await http.get(f"/acp/{used}/status")).status_code == 200
        await http.post(f"/acp/{newer}/join", json={"name": "B"})
        assert (await http.post("/acp/new")).status_code == 503


async def test_sessions_end_when_nobody_uses_them() -> None:
    async with asking(ttl=0.0) as (http, token):
        await http.post(f"/acp/{token}/join", json={"name": "A"})
        assert (await http.get(f"/acp/{token}/status")).status_code == 403


async def test_the_log_keeps_the_newest_messages_within_its_size() -> None:
    async with asking(messages=5, session_bytes=2000) as (http, token):
        for n in range(8):
            await http.post(f"/acp/{token}/send", json={"id": f"m{n}"})
        messages = (await http.get(f"/acp/{token}/poll")).json()["messages"]
        assert [message["id"] for message in messages] == ["m3", "m4", "m5", "m6", "m7"]
        assert [message["seq"] for message in messages] == [4, 5, 6, 7, 8]
        await http.post(f"/acp/{token}/send", json={"id": "big", "text": "x" * 1980})
        messages = (await http.get(f"/acp/{token}/poll")).json()["messages"]
        assert [message["id"] for message in messages] == ["big"]
        again = (await http.post(f"/acp/{token}/send", json={"id": "m7"})).json()
        assert again["seq"] == 10  # one that is forgotten is new


async def test_a_reader_is_not_outrun_and_does_not_hold_others_up_for_ever() -> None:
    async with asking(messages=3, reader_seconds=0.3) as (http, token):
        for n in range(3):
            await http.post(f"/acp/{token}/send", json={"id": f"m{n}"})
        polled = await http.get(f"/acp/{token}/poll", params={"reader": "r1", "limit": 1})
        assert polled.json()["last_id"] == "m0"
        full = await http.post(f"/acp/{token}/send", json={"id": "m3"})
        assert full.status_code == 429
        assert full.headers["retry-after"] == "1"
        await http.get(f"/acp/{token}/poll", params={"reader": "r1", "after_id": "m0"})
        assert (await http.post(f"/acp/{token}/send", json={"id": "m3"})).status_code == 200
        async with asyncio.timeout(PATIENCE):  # it does not come back
            while (await http.post(f"/acp/{token}/send", json={"id": "m4"})).status_code != 200:
                pass
        assert (await http.get(f"/acp/{token}/poll")).json()["count"] == 3


async def test_memory_is_bounded_over_all_sessions() -> None:
    async with asking(total_bytes=10_000) as (http, token):
        other = (await http.post("/acp/new")).json()["token"]
        assert (await http.post(f"/acp/{token}/send", json={"text": "x" * 6000})).status_code == 200
        assert (await http.post(f"/acp/{other}/send", json={"text": "x" * 6000})).status_code == 429
        await http.delete(f"/acp/{token}")
        assert (await http.post(f"/acp/{other}/send", json={"text": "x" * 6000})).status_code == 200


@pytest.mark.parametrize("body", [b"[1]", b"nonsense", b'"x"', b"\xff", b"[" * 100_000, b'{"a":'])
async def test_a_body_that_is_no_object_is_refused_and_changes_nothing(body: bytes) -> None:
    async with asking() as (http, token):
        refused = await http.post(f"/acp/{token}/send", content=body)
        assert refused.status_code == 400
        assert refused.json()["error"] == "invalid_body"
        assert (await http.get(f"/acp/{token}/status")).json()["message_count"] == 0


async def test_a_body_that_is_too_large_is_refused() -> None:
    async with asking(message_bytes=1000) as (http, token):
        refused = await http.post(f"/acp/{token}/send", json={"text": "x" * 1000})
        assert refused.status_code == 413
        assert refused.json() == {"error": "too_large", "max_bytes": 1000}


async def test_unknown_paths_are_told() -> None:
    async with asking() as (http, token):
        assert (await http.get(f"/acp/{token}/ws")).status_code == 400
        assert (await http.get("/elsewhere")).status_code == 404
        assert (await http.get("/")).json()["error"] == "not_found"


# -- channels through it ----------------------------------------------------------------------------------------


class Host:
    def __init__(self) -> None:
        self.came: asyncio.Queue[tuple[Channel, Incoming]] = asyncio.Queue()
        self.changes: asyncio.Queue[tuple[bool, str]] = asyncio.Queue()
        self.listener: RelayListener

    async def connected(self, channel: Channel, incoming: Incoming) -> None:
        self.came.put_nowait((channel, incoming))
        assert isinstance(channel, RelayChannel)
        await channel.over.wait()

    async def channel(self) -> RelayChannel:
        channel, incoming = await asyncio.wait_for(self.came.get(), PATIENCE)
        assert incoming.binding == "relay"
        assert isinstance(channel, RelayChannel)
        return channel


@contextlib.asynccontextmanager
async def hosting(link: Link, *, times: RelayTimes | None = None) -> AsyncIterator[Host]:
    host = Host()
    host.listener = await listen_relay(
        link,
        host.connected,
        name="Host",
        max_bytes=LIMIT,
        times=times,
        on_change=lambda *is_: host.changes.put_nowait(is_),
    )
    await asyncio.wait_for(host.listener.ready(), PATIENCE)
    try:
        yield host
    finally:
        await asyncio.wait_for(host.listener.close(), PATIENCE)


async def guest(link: Link, name: str = "Guest", timeout: float = PATIENCE, **more: Any) -> RelayChannel:
    channel = await dial_relay(link, name=name, max_bytes=LIMIT, timeout=timeout, **more)
    assert isinstance(channel, RelayChannel)
    return channel


async def frames_of(channel: Channel, count: int) -> list[bytes]:
    found: list[bytes] = []
    async with asyncio.timeout(PATIENCE):
        while len(found) < count:
            more = await channel.receive()
            assert more, f"it ended after {len(found)} frames: {getattr(channel, 'why', '')}"
            found += more
    return found


@pytest.mark.parametrize("wait", [25.0, 0.0], ids=["the relay waits for news", "the relay cannot wait"])
async def test_a_guest_and_a_host_speak_through_a_relay_and_frames_stay_as_they_are(wait: float) -> None:
    frame = '{"type":"acp.message","ts":"2026-11-15T06:56:52.483894Z","id":"x","seq":7,"f":1.0,"é":"\\u00e9"}'.encode()
    async with relaying(wait=wait) as server, hosting(server.link(new_token())) as host:
        mine = await guest(host.listener.link)
        theirs = await host.channel()
        for end, other in ((mine, theirs), (theirs, mine)):
            end.send(frame)
            assert await frames_of(other, 1) == [frame]
        sent = [b'{"n":%d,"text":"%s"}' % (n, b"x" * (n % 300)) for n in range(700)]
        for frame in sent:
            mine.send(frame)
        await mine.drain()
        assert await frames_of(theirs, len(sent)) == sent
        await mine.close()
        assert await asyncio.wait_for(theirs.receive(), PATIENCE) == []
        assert theirs.why == "the other end closed it"


async def test_guests_have_channels_of_their_own_and_do_not_see_each_other() -> None:
    async with relaying() as server, hosting(server.link(new_token())) as host:
        # All have the same name: it is not by names that they are told apart.
        first = await guest(host.listener.link, "Host")
        with_first = await host.channel()
        second = await guest(host.listener.link, "Host")
        with_second = await host.channel()
        first.send(b'{"from":"first"}')
        second.send(b'{"from":"second"}')
        assert await frames_of(with_first, 1) == [b'{"from":"first"}']
        assert await frames_of(with_second, 1) == [b'{"from":"second"}']
        with_second.send(b'{"to":"second"}')
        assert await frames_of(second, 1) == [b'{"to":"second"}']
        await first.close()
        assert await asyncio.wait_for(with_first.receive(), PATIENCE) == []
        second.send(b'{"still":1}')
        assert await frames_of(with_second, 1) == [b'{"still":1}']
        await second.close()


async def test_nobody_at_the_relay_is_no_connection() -> None:
    async with relaying() as server:
        with pytest.raises(ConnectionError, match="nobody waits"):
            await guest(server.link(new_token()), timeout=0.3)
    with pytest.raises(ConnectionError, match="cannot be reached") as refused:
        await guest(server.link("tok_0123456789abcdef"))
    assert "tok_" not in str(refused.value)


async def test_a_host_that_closes_ends_its_channels() -> None:
    async with relaying() as server:
        async with hosting(server.link(new_token())) as host:
            mine = await guest(host.listener.link)
        assert await asyncio.wait_for(mine.receive(), PATIENCE) == []
        await mine.close()


async def test_a_host_that_comes_back_makes_guests_begin_anew() -> None:
    async with relaying() as server:
        link = server.link(new_token())
        async with hosting(link) as old:
            mine = await guest(link)
            theirs = await old.channel()
            theirs.room.stop_all()  # it is killed, and cannot say goodbye
            async with hosting(link) as new:
                assert await asyncio.wait_for(mine.receive(), PATIENCE) == []
                assert mine.why == "the host began anew"
                await mine.close()
                again = await guest(link)
                again.send(b"{}")
                assert await frames_of(await new.channel(), 1) == [b"{}"]
                await again.close()


async def test_channels_survive_a_relay_that_forgets_everything() -> None:
    async with relaying() as server, hosting(server.link(new_token())) as host:
        mine = await guest(host.listener.link)
        theirs = await host.channel()
        mine.send(b'{"n":1}')
        assert await frames_of(theirs, 1) == [b'{"n":1}']
        await server.stop()
        mine.send(b'{"n":2}')
        theirs.send(b'{"n":-2}')
        await server.start(relay_app(RelaySettings()))
        assert await frames_of(theirs, 1) == [b'{"n":2}']
        assert await frames_of(mine, 1) == [b'{"n":-2}']
        mine.send(b'{"n":3}')
        assert await frames_of(theirs, 1) == [b'{"n":3}']
        await mine.close()


async def test_a_relay_that_stays_away_ends_channels_and_the_host_waits_for_it() -> None:
    times = RelayTimes(request=5.0, ping_every=0.1, silent=PATIENCE, outage=0.8)
    async with relaying() as server, hosting(server.link(new_token()), times=times) as host:
        mine = await guest(host.listener.link, times=times)
        theirs = await host.channel()
        await server.stop()
        mine.send(b"{}")
        assert await asyncio.wait_for(mine.receive(), PATIENCE) == []
        assert await asyncio.wait_for(theirs.receive(), PATIENCE) == []
        assert "cannot be reached" in mine.why
        await mine.close()
        assert await host.changes.get() == (True, "")
        there, why = await asyncio.wait_for(host.changes.get(), PATIENCE)
        assert not there
        assert "cannot be reached" in why
        assert not host.listener.connected
        await server.start(relay_app(RelaySettings()))
        await asyncio.wait_for(host.listener.ready(), PATIENCE)
        again = await guest(host.listener.link)
        again.send(b"{}")
        assert await frames_of(await host.channel(), 1) == [b"{}"]
        await again.close()


async def test_a_host_may_be_there_before_its_relay() -> None:
    server = Server(relay_app())
    await server.start()
    await server.stop()
    host = Host()
    host.listener = await listen_relay(server.link(new_token()), host.connected, name="Host", max_bytes=LIMIT)
    await server.start()
    await asyncio.wait_for(host.listener.ready(), PATIENCE)
    mine = await guest(host.listener.link)
    await host.channel()
    await mine.close()
    await host.listener.close()
    await server.stop()


@pytest.mark.parametrize("hello", ["before the host joined", "after the host joined"])
async def test_a_guest_may_be_there_before_its_host(monkeypatch: pytest.MonkeyPatch, hello: str) -> None:
    """Both come to a relay at the same time. That the host begins anew is no loss to who has not met it yet."""
    said = asyncio.Event()
    async with relaying() as server:
        link = server.link(new_token())
        say = Room.say

        async def in_turn(room: Room, kind: str, to: str | None) -> None:
            if kind == "acp.relay_reset" and hello == "after the host joined":
                comes.set()
                await said.wait()
            await say(room, kind, to)
            if kind == "acp.relay_hello":
                said.set()

        monkeypatch.setattr(Room, "say", in_turn)
        comes = asyncio.Event()
        async with asyncio.TaskGroup() as both:
            if hello == "before the host joined":
                coming = both.create_task(guest(link))
                await asyncio.wait_for(said.wait(), PATIENCE)
                listening = both.create_task(_host(link))
            else:
                listening = both.create_task(_host(link))
                await asyncio.wait_for(comes.wait(), PATIENCE)
                coming = both.create_task(guest(link))
        mine, host = coming.result(), listening.result()
        theirs = await host.channel()
        for end, other in ((mine, theirs), (theirs, mine)):
            end.send(b"{}")
            assert await frames_of(other, 1) == [b"{}"]
        await mine.close()
        await host.listener.close()


async def _host(link: Link) -> Host:
    host = Host()
    host.listener = await listen_relay(link, host.connected, name="Host", max_bytes=LIMIT)
    await asyncio.wait_for(host.listener.ready(), PATIENCE)
    return host


async def test_one_that_is_gone_without_a_word_is_noticed() -> None:
    async with relaying() as server, hosting(server.link(new_token()), times=QUICK) as host:
        mine = await guest(host.listener.link, times=QUICK)
        theirs = await host.channel()
        quiet = asyncio.ensure_future(theirs.receive())
        done, _ = await asyncio.wait({quiet}, timeout=3 * QUICK.silent)
        assert not done  # pings go both ways
        mine.room.stop_all()
        assert await asyncio.wait_for(quiet, PATIENCE) == []
        assert "nothing came" in theirs.why
        await mine.close()


async def test_frames_that_the_relay_lost_end_the_channel_and_what_comes_twice_is_dropped() -> None:
    async with (
        relaying() as server,
        hosting(server.link(new_token())) as host,
        httpx2.AsyncClient(
            base_url=f"{server.base}/acp/{host.listener.link.token}", trust_env=False, verify=False
        ) as http,
    ):

        async def post(**message: Any) -> None:
            assert (await http.post("/send", json={"sender": "s1", **message})).status_code == 200

        await post(type="acp.relay_hello")
        channel = await host.channel()
        await post(n=1, frames=["1", "2"])
        await post(n=1, frames=["1", "2"])
        await post(n=2, frames=["2", "3"])
        assert await frames_of(channel, 3) == [b"1", b"2", b"3"]
        await post(n=4, frames=["x" * (LIMIT + 1)])
        [long] = await frames_of(channel, 1)
        assert type(long) is TooLong
        for odd in ({"n": "x", "frames": []}, {"n": 5, "frames": "x"}, {"n": None}, {"n": 5, "frames": [7, None]}):
            await post(**odd)
        assert await frames_of(channel, 2) == [b"7", b"None"]
        await post(n=9, frames=["9"])
        assert await asyncio.wait_for(channel.receive(), PATIENCE) == []
        assert channel.why == "the relay lost frames on the way"


async def test_the_reference_is_understood_and_understands() -> None:
    """What version 2.19 posts and reads: its card as the body of join, plain frames, and nothing of ours."""
    async with (
        relaying() as server,
        hosting(server.link(new_token())) as host,
        httpx2.AsyncClient(
            base_url=f"{server.base}/acp/{host.listener.link.token}", trust_env=False, verify=False
        ) as http,
    ):
        await http.post("/join", json={"name": "RefAgent", "card": {"name": "RefAgent"}})
        channel = await host.channel()
        [card] = await frames_of(channel, 1)
        assert json.loads(card) == {"type": "acp.agent_card", "card": {"name": "RefAgent"}}
        message = {"type": "acp.message", "message_id": "msg_1", "from": "RefAgent", "role": "user", "parts": []}
        await http.post("/send", json={**message, "ts": "2026-11-15T06:56:52.483894Z"})
        came = json.loads((await frames_of(channel, 1))[0])
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", came.pop("ts"))
        assert came == message
        channel.send(b'{"type":"acp.reply","message_id":"msg_2","correlation_id":"msg_1","from":"Host"}')
        after: list[dict[str, Any]] = []
        async with asyncio.timeout(PATIENCE):
            while not after:
                polled = (await http.get("/poll?wait=5")).json()["messages"]
                after = [m for m in polled if m["type"] == "acp.reply"]
        assert after[0]["correlation_id"] == "msg_1"
        assert after[0]["from"] == "Host"


async def test_a_guest_reaches_a_reference_that_only_listens() -> None:
    async with relaying() as server, httpx2.AsyncClient(base_url=server.base, trust_env=False, verify=False) as http:
        link = server.link((await http.post("/acp/new")).json()["token"])
        await http.post(f"/acp/{link.token}/join", json={"name": "RefHost"})
        mine = await guest(link, timeout=1.0)
        mine.send(b'{"type":"acp.message","message_id":"msg_1"}')
        await mine.drain()
        async with asyncio.timeout(PATIENCE):
            while True:
                messages = (await http.get(f"/acp/{link.token}/poll?wait=5")).json()["messages"]
                if any(m.get("message_id") == "msg_1" for m in messages):
                    break
        await http.post(f"/acp/{link.token}/send", json={"type": "acp.message", "from": "RefHost"})
        assert json.loads((await frames_of(mine, 1))[0])["from"] == "RefHost"
        await mine.close()


async def test_a_flood_waits_for_its_reader() -> None:
    """More than the log holds: senders wait, and nothing is lost."""
    async with relaying(messages=10, session_bytes=300_000) as server, hosting(server.link(new_token())) as host:
        mine = await guest(host.listener.link)
        theirs = await host.channel()
        sent = [b'{"n":%d,"x":"%s"}' % (n, b"x" * 20_000) for n in range(150)]

        async def flood() -> None:
            for frame in sent:
                mine.send(frame)
                await mine.drain()

        flooding = asyncio.ensure_future(flood())
        assert await frames_of(theirs, len(sent)) == sent
        await flooding
        await mine.close()


async def test_a_frame_that_is_too_large_for_the_relay_is_left_out_and_the_others_go(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with relaying(message_bytes=3000) as server, hosting(server.link(new_token())) as host:
        mine = await guest(host.listener.link)
        theirs = await host.channel()
        sent = [b'{"n":%d,"x":"%s"}' % (n, b"x" * size) for n, size in enumerate((2000, 2000, 4000, 2000))]
        for frame in sent:
            mine.send(frame)
        assert await frames_of(theirs, 3) == [sent[0], sent[1], sent[3]]
        assert f"a frame of {len(sent[2])} bytes is too large" in caplog.text
        assert host.listener.link.token not in caplog.text
        await mine.close()


@pytest.mark.parametrize(
    "answer", [b"[]", b"nonsense", b'{"messages":7}', b'{"messages":[7,null,{"seq":"x"}],"last_id":7}']
)
async def test_a_relay_that_talks_nonsense_is_no_connection(answer: bytes) -> None:
    async def nonsense(scope: Any, receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": answer})

    server = Server(nonsense)
    await server.start()
    with pytest.raises(ConnectionError):
        await guest(server.link(new_token()), timeout=0.5)
    await server.stop()
