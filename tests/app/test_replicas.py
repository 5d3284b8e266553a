"""Servers on one store that know of each other: what needs no passing on, and what those find who try to misuse it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import httpx2

from interlingua.model.documents import Drop
from interlingua.security.keys import make_key
from interlingua.server.auth.stored_keys import StoredKeys
from interlingua.server.replicas.forward import MARK
from interlingua.store.open import open_store
from interlingua.transports.http.sse import Reader
from tests.kit.clients.mcp_http import Client, clients, joined
from tests.kit.ports import free_port
from tests.kit.postgres import store_in
from tests.protocols.cap.door_common import notice

from .fleet import WAIT, fleet


async def key(home: Path, name: str) -> str:
    store = open_store(store_in(home))
    await store.open()
    try:
        secret, record = make_key(name, ["*"], 0)
        await StoredKeys(store.keys).put(record)
        return secret
    finally:
        await store.close()


async def events(http: httpx2.AsyncClient, path: str, headers: dict[str, str], enough: str) -> tuple[list[Any], str]:
    """Data of a stream until some text is in it, or to its end, and the id to go on from."""
    got: list[Any] = []
    reader = Reader()
    with contextlib.suppress(httpx2.RemoteProtocolError):
        async with asyncio.timeout(WAIT), http.stream("GET", path, headers=headers, timeout=None) as response:
            assert response.status_code == 200, await response.aread()
            async for chunk in response.aiter_bytes():
                got += [json.loads(event.data) for event in reader.feed(chunk) if event.data]
                if enough and enough in json.dumps(got):
                    break
    return got, reader.last_id or ""


async def test_a_stream_of_connect_is_taken_up_at_another_server(tmp_path: Path) -> None:
    async with fleet(tmp_path, 2) as all_, httpx2.AsyncClient(timeout=WAIT) as http:
        first, second = all_.members
        body = {"agent_id": "helper", "input": {"text": "gate open"}, "stream_mode": "custom"}
        run = (await http.post(f"{first.address}/connect/runs", json=body)).json()["run_id"]
        before, place = await events(http, f"{first.address}/connect/runs/{run}/stream", {"last-event-id": "0"}, "one ")
        await first.kill()
        (tmp_path / "open").touch()
        headers = {"last-event-id": place}
        after, _ = await events(http, f"{second.address}/connect/runs/{run}/stream", headers, "")
        deltas = [told["update"]["delta"]["text"] for told in (*before, *after) if told["type"] == "custom"]
        assert "".join(deltas) == "one two three", "nothing is missing and nothing is told twice"
        ended = (await http.get(f"{second.address}/connect/runs/{run}/wait")).json()
        assert ended["output"]["values"] == {"text": "one two three"}


async def test_a_stream_of_cap_is_taken_up_at_another_server(tmp_path: Path) -> None:
    async with fleet(tmp_path, 2) as all_, httpx2.AsyncClient(timeout=WAIT) as http:
        first, second = all_.members
        posted = await http.post(f"{first.address}/cap/messages", json=notice("T1", "helper", "gate open"))
        assert posted.status_code < 300, posted.text
        before, place = await events(http, f"{first.address}/cap/tasks/T1/events", {}, "one ")
        await first.kill()
        (tmp_path / "open").touch()
        headers = {"last-event-id": place}
        after, _ = await events(http, f"{second.address}/cap/tasks/T1/events", headers, "")
        told = json.dumps([event for event in (*before, *after) if "delta" in event])
        assert [told.count(word) for word in ("one ", "two ", "three")] == [1, 1, 1], told
        assert "one two three" in json.dumps((await http.get(f"{second.address}/cap/tasks/T1")).json())


async def test_servers_tell_of_each_other_at_their_start_and_in_their_metrics(tmp_path: Path) -> None:
    async with fleet(tmp_path, 3) as all_:
        first, second, third = all_.members
        assert "on this store" not in first.said
        assert f"another replica on this store: {first.address}" in second.said
        assert "2 other replicas on this store: " in third.said
        await second.stop()
        async with asyncio.timeout(WAIT):
            while await third.metric("replicas") != 1:
                await asyncio.sleep(0.05)
        assert {one.address for one in await all_.replicas()} == {first.address, third.address}


FORGED = ("nobody.secret", "127.0.0.1:9.secret", "http://127.0.0.1:9/.secret", "..", ".", "{other}.x", "{own}.x")


async def test_a_forged_id_leads_nowhere(tmp_path: Path) -> None:
    async with fleet(tmp_path, 2) as all_, httpx2.AsyncClient(timeout=WAIT) as http:
        by_address = {one.address: one.id for one in await all_.replicas()}
        first, second = all_.members
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        for forged in FORGED:
            named = forged.format(own=by_address[first.address], other=by_address[second.address])
            headers = {"mcp-session-id": named, "accept": "application/json, text/event-stream"}
            assert (await http.post(f"{first.address}/mcp", json=ping, headers=headers)).status_code == 404
            old = await http.post(f"{first.address}/mcp/messages/", params={"session_id": named}, json=ping)
            assert old.status_code == 404
            answer = await http.post(f"{first.address}/editor", json=ping, headers={"acp-connection-id": named})
            assert answer.status_code == 404
        passed = await first.metric("passed_on_total")
        assert passed == 3, "only what names a replica that there is goes anywhere, and that is where it goes"


async def test_a_session_of_another_caller_is_nowhere_at_any_server(tmp_path: Path) -> None:
    async with fleet(tmp_path, 2) as all_:
        ours, theirs = await key(tmp_path, "ours"), await key(tmp_path, "theirs")
        async with clients(all_, **{"x-api-key": ours}) as client:  # type: ignore[arg-type]
            async with asyncio.timeout(WAIT):  # both servers have noticed that there are keys now
                for member in all_.members:
                    while (await client.http.get(f"{member.address}/readyz")).status_code != 401:
                        await asyncio.sleep(0.02)
            await client.begin()
            session = client.headers["mcp-session-id"]
            other = Client(client.http, client.url, {"x-api-key": theirs, "mcp-session-id": session})
            nobody = Client(client.http, client.url, {"mcp-session-id": session})
            for _ in range(2):
                assert (await other.ask("ping")).status == 404
                assert (await nobody.ask("ping")).status == 401
                assert (await client.ask("ping")).status == 200
            await (await all_.holder(session)).kill()
            assert (await other.ask("ping")).status == 404, "who it belongs to is known to who takes it over"
            assert (await nobody.ask("ping")).status == 401
            assert (await client.ask("ping")).status == 200


async def test_the_mark_of_what_was_passed_on_opens_nothing(tmp_path: Path) -> None:
    async with fleet(tmp_path, 2) as all_, clients(all_) as client:  # type: ignore[arg-type]
        await client.begin()
        holder = await all_.holder(client.headers["mcp-session-id"])
        [other] = all_.others(holder)
        ids = {one.address: one.id for one in await all_.replicas()}
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        headers = {**client.headers, "accept": "application/json, text/event-stream"}

        async def ask(member: Any, mark: str, **more: str) -> int:
            given = {**headers, MARK.decode(): mark, **more}
            return (await client.http.post(f"{member.address}/mcp", json=ping, headers=given)).status_code

        assert await ask(holder, ids[holder.address]) == 200, "that is how the other one says it"
        assert await ask(other, ids[other.address]) == 404, "it is not passed on twice"
        assert await ask(other, ids[holder.address]) == 421
        assert await ask(other, "nonsense") == 421
        assert await ask(holder, ids[holder.address], host="evil.example") == 403
        assert await ask(holder, ids[holder.address], origin="https://evil.example") == 403
        assert await ask(holder, ids[holder.address], **{"x-api-key": "wrong"}) == 401


async def test_a_server_that_others_took_for_dead_goes_on_with_what_is_in_the_store(tmp_path: Path) -> None:
    async with fleet(tmp_path, 2) as all_, clients(all_) as client:  # type: ignore[arg-type]
        await client.begin()
        stream = await client.run("gate open")
        seen = [await stream.next()]
        holder = next(one for one in await all_.replicas() if client.headers["mcp-session-id"].startswith(one.id))
        store = open_store(store_in(tmp_path))
        await store.open()
        try:
            await store.documents.write([Drop("replicas", holder.id)])
        finally:
            await store.close()
        seen += await stream.rest()  # it ends when the server has noticed
        again = await client.listen(stream.last_id)
        assert again.status == 200
        (tmp_path / "open").touch()
        seen += await again.rest()
        assert seen[-1]["result"]["output"] == joined(seen) == {"text": "one two three"}
        assert {one.id for one in await all_.replicas()} >= {holder.id}, "it is there again"


async def test_a_port_of_a_single_door_passes_on_too(tmp_path: Path) -> None:
    ports = [free_port(), free_port()]
    each = [("--mcp-port", str(port)) for port in ports]
    async with fleet(tmp_path, 2, "--no-peer-ports", each=each) as all_, clients(all_) as client:  # type: ignore[arg-type]
        await client.begin()
        holder = await all_.holder(client.headers["mcp-session-id"])
        for port in ports:
            client.url = f"http://127.0.0.1:{port}"
            assert (await client.ask("ping")).status == 200
        await holder.kill()
        client.url = f"http://127.0.0.1:{ports[1 - all_.members.index(holder)]}"
        assert (await client.ask("ping")).status == 200


async def test_a_long_body_is_passed_on_in_pieces_and_within_the_same_limits(tmp_path: Path) -> None:
    limits = ("--no-peer-ports", "--mcp-max-body-bytes", "3000000")
    async with fleet(tmp_path, 2, *limits) as all_, clients(all_) as client:  # type: ignore[arg-type]
        await client.begin()
        [other] = all_.others(await all_.holder(client.headers["mcp-session-id"]))

        async def post(size: int) -> int:
            message = {"name": "helper", "input": {"text": "x" * size}}
            body = json.dumps({"jsonrpc": "2.0", "id": size, "method": "agents/run", "params": message}).encode()
            headers = {**client.headers, "accept": "application/json, text/event-stream"}
            headers["content-type"] = "application/json"
            return (await client.http.post(f"{other.address}/mcp", content=body, headers=headers)).status_code

        assert await post(2_000_000) == 200
        assert await post(3_000_000) == 413
        assert (await client.ask("ping")).status == 200
