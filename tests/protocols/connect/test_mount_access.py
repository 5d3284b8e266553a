"""What the mount shows to a server that wants a key, and what it wants of one that speaks https."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import interlingua as il
from interlingua.model.errors import Denied, Unavailable
from interlingua.mounts import http
from interlingua.protocols.connect.mount.server import load
from interlingua.protocols.targets import Target
from interlingua.security.keys import make_key
from interlingua.server.auth.stored_keys import StoredKeys
from interlingua.store.open import open_store
from tests.kit.certificates import certificate
from tests.kit.engines import engine, finish
from tests.kit.mounts.connect import door, local, mounted, remote_runs

from .reference import Reference, listening


async def key_for(store: Path) -> str:
    opened = open_store(store)
    await opened.open()
    secret, record = make_key("ada", ["*"], 1)
    await StoredKeys(opened.keys).put(record)
    await opened.close()
    return secret


async def test_the_key_comes_from_the_environment(tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTERLINGUA_CONNECT_KEY", await key_for(tmp_path / "remote.db"))
    async with door(tmp_path) as server, local(store, server.address + "/connect") as eng:
        assert (await finish(eng, "words", {"text": "one two"})).output == {"text": "one two"}
        (remote,) = await remote_runs(server)
        assert remote.caller != il.RunRequest("words").caller.id


@pytest.mark.parametrize("key", [None, "il_nonsense"])
async def test_a_server_that_wants_another_key_is_told_how_to_get_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str | None
) -> None:
    if key is None:
        monkeypatch.delenv("INTERLINGUA_CONNECT_KEY", raising=False)
    else:
        monkeypatch.setenv("INTERLINGUA_CONNECT_KEY", key)
    await key_for(tmp_path / "remote.db")
    async with door(tmp_path) as server:
        with pytest.raises(Denied, match=r"127\.0\.0\.1 refused: .+; put the API key into INTERLINGUA_CONNECT_KEY"):
            await mounted(server.address + "/connect")


async def test_a_key_that_is_revoked_fails_the_run_with_a_clear_error(
    tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTERLINGUA_CONNECT_KEY", await key_for(tmp_path / "remote.db"))
    async with door(tmp_path) as server, local(store, server.address + "/connect") as eng:
        keys = StoredKeys(server.engine.keys)
        (record,) = await keys.all()
        await keys.revoke(record.id, 2)
        run = await finish(eng, "words", {"text": "one two"})
        assert (run.status, run.error.code) == (il.Status.FAILED, "denied")
        assert "INTERLINGUA_CONNECT_KEY" in run.error.message


@pytest.fixture
def fresh_certificates() -> Iterator[None]:
    http._tls.cache_clear()
    yield
    http._tls.cache_clear()


@pytest.mark.usefixtures("fresh_certificates")
async def test_https_trusts_the_certificates_of_ssl_cert_file(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = certificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(made))
    async with listening(Reference(), made) as address:
        assert address.startswith("https://")
        agents = await load(Target("connect+https", f"connect+{address}"))
        async with engine(store, *agents) as eng:
            run = await finish(eng, "org.example-Echo-Agent", {"text": "one two"})
            assert run.output == {"text": "one two"}


@pytest.mark.usefixtures("fresh_certificates")
async def test_https_refuses_a_certificate_that_nobody_vouches_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    async with listening(Reference(), certificate(tmp_path)) as address:
        with pytest.raises(Unavailable, match="certificate verify failed"):
            await mounted(address)
