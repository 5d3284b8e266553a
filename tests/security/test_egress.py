"""The egress guard: where strangers may not send us, and that a checked name cannot lead elsewhere afterwards."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx2
import pytest

from interlingua.model.errors import Denied, Unavailable
from interlingua.security.egress import EgressGuard, Resolve
from interlingua.security.errors import EgressRefused, HostUnresolved
from tests.kit.certificates import certificate, client_tls, server_tls
from tests.kit.http_servers import serve


def names(**addresses: list[str]) -> Resolve:
    """A resolver that knows only these names (with _ for a dot), and addresses as themselves."""
    known = {name.replace("_", "."): found for name, found in addresses.items()}

    async def resolve(host: str, port: int) -> list[str]:
        return known.get(host, [host])

    return resolve


STRICT = EgressGuard(allow_loopback=False)
LOCAL = EgressGuard(allow_loopback=True)


async def refusal(url: str, guard: EgressGuard = STRICT) -> str:
    with pytest.raises(EgressRefused) as refused:
        await guard.check(url)
    assert refused.value.code == "egress_refused"
    assert isinstance(refused.value, Denied)
    return refused.value.message


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/",
        "http://127.1/",
        "http://2130706433/",
        "http://0x7f000001/",
        "http://0x7f.1/",
        "http://0177.1/",
        "http://017700000001/",
        "http://localhost/",
        "http://LOCALHOST/",
        "http://[::1]/",
        "http://[::ffff:127.0.0.1]/",
        "http://[::ffff:7f00:1]/",
        "https://127.0.0.1:8443/path?query",
    ],
)
async def test_this_machine_is_refused_however_it_is_spelt(url: str) -> None:
    assert (await refusal(url)).endswith("it leads to this machine itself")


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("http://0.0.0.0/", "unspecified"),
        ("http://0/", "unspecified"),
        ("http://[::]/", "unspecified"),
        ("http://10.0.0.1/", "private network"),
        ("http://192.168.0.1/", "private network"),
        ("http://0xa000001/", "private network"),
        ("http://[fd00::1]/", "private network"),
        ("http://100.64.0.1/", "shared network"),
        ("http://169.254.169.254/latest/meta-data", "link-local"),
        ("http://2852039166/", "link-local"),
        ("http://[::ffff:a9fe:a9fe]/", "link-local"),
        ("http://[fe80::1]/", "link-local"),
        ("http://[fd00:ec2::254]/", "metadata"),
        ("http://168.63.129.16/", "metadata"),
        ("http://224.0.0.1/", "multicast"),
        ("http://[64:ff9b::7f00:1]/", "reserved"),
        ("http://[2002:7f00:1::]/", "reserved"),
        ("http://[2001:0:7f00:1::]/", "reserved"),
        ("http://255.255.255.255/", "reserved"),
    ],
)
async def test_special_addresses_are_refused_by_name_of_their_kind(url: str, place: str) -> None:
    assert place in await refusal(url)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("ftp://example.org/", "scheme 'ftp'"),
        ("file:///etc/passwd", "scheme 'file'"),
        ("gopher://127.0.0.1/", "scheme 'gopher'"),
        ("ws://example.org/", "scheme 'ws'"),
        ("/relative", "scheme ''"),
        ("//example.org/", "scheme ''"),
        ("http://", "without a host"),
        ("http:///path", "without a host"),
        ("http://user@example.org/", "user name or password"),
        ("http://user:hunter2@example.org/", "user name or password"),
        ("http://example.org\\@127.0.0.1/", "user name or password"),
        ("http://example.org:0/", "port 0"),
        ("http://example.org:65536/", "port 65536"),
        ("http://example.org:-1/", "port -1"),
        ("http://example.org:http/", "not a valid URL"),
        ("http://exa\nmple.org/", "not a valid URL"),
        ("http://[::1/", "not a valid URL"),
        ("http://256.1.1.1/", "not a valid URL"),
    ],
)
async def test_a_url_that_is_not_plain_http_to_a_host_is_refused(url: str, reason: str) -> None:
    message = await refusal(url, EgressGuard(False, resolve=names(example_org=["93.184.216.34"])))
    assert reason in message
    assert "hunter2" not in message


async def test_a_public_host_is_let_through_with_the_address_that_was_checked() -> None:
    guard = EgressGuard(False, resolve=names(example_org=["93.184.216.34", "2606:2800:220::1"]))
    target = await guard.check("https://Example.org/hook?token=1")
    assert (target.scheme, target.host, target.port) == ("https", "example.org", 443)
    assert target.addresses == ("93.184.216.34", "2606:2800:220::1")
    assert target.address == "93.184.216.34"
    assert target.server_name == "example.org"
    assert (await guard.check("http://[2606:2800:220::1]:8080")).server_name is None


@pytest.mark.parametrize("bad", ["10.0.0.5", "127.0.0.1", "::1", "fe80::1%eth0", "::ffff:10.0.0.5"])
async def test_a_name_with_one_refused_address_is_refused_and_the_address_is_not_told(bad: str) -> None:
    guard = EgressGuard(False, resolve=names(two_example=["93.184.216.34", bad]))
    message = await refusal("http://two.example/secret-path?token=1", guard)
    assert message.startswith("Refused to call 'two.example': it leads to ")
    assert bad not in message
    assert "token" not in message


async def test_loopback_is_allowed_where_the_guard_says_so_and_nothing_else() -> None:
    assert (await LOCAL.check("http://localhost:8000/")).address in ("127.0.0.1", "::1")
    assert (await LOCAL.check("http://[::ffff:127.0.0.1]/")).address == "127.0.0.1"
    for url in ("http://0.0.0.0/", "http://10.0.0.1/", "http://[64:ff9b::7f00:1]/", "http://169.254.169.254/"):
        await refusal(url, LOCAL)


async def test_private_networks_are_allowed_where_the_guard_says_so_and_nothing_else() -> None:
    guard = EgressGuard(allow_loopback=False, allow_private=True)
    assert (await guard.check("http://10.0.0.1/")).address == "10.0.0.1"
    assert (await guard.check("http://[fd00::1]/")).address == "fd00::1"
    for url in ("http://127.0.0.1/", "http://169.254.169.254/", "http://[fd00:ec2::254]/", "http://100.64.0.1/"):
        await refusal(url, guard)


async def test_hosts_that_the_owner_vouches_for_may_be_near_but_never_metadata() -> None:
    resolve = names(
        hooks_internal=["10.0.0.7"],
        a_b_corp_example=["100.64.0.9"],
        corp_example=["10.0.0.8"],
        evilcorp_example=["10.0.0.8"],
        api_internal=["10.0.0.9"],
        meta_corp_example=["169.254.169.254"],
    )
    guard = EgressGuard(False, allow_hosts=["Hooks.internal", "*.corp.example", "api.internal:8080"], resolve=resolve)
    assert (await guard.check("http://hooks.internal:99/")).address == "10.0.0.7"
    assert (await guard.check("http://a.b.corp.example/")).address == "100.64.0.9"
    assert (await guard.check("http://api.internal:8080/")).address == "10.0.0.9"
    for url in (
        "http://corp.example/",
        "http://evilcorp.example/",
        "http://api.internal/",
        "http://meta.corp.example/",
        "http://10.0.0.7/",
    ):
        await refusal(url, guard)


async def test_a_name_that_leads_nowhere_may_lead_somewhere_later() -> None:
    async def fails(host: str, port: int) -> list[str]:
        raise OSError("no such host")

    async def hangs(host: str, port: int) -> list[str]:
        await asyncio.Event().wait()
        raise AssertionError

    for guard in (EgressGuard(False, resolve=fails), EgressGuard(False, resolve=hangs, resolve_timeout=0)):
        with pytest.raises(HostUnresolved, match=r"'nowhere\.example' could not be resolved") as unresolved:
            await guard.check("http://nowhere.example/")
        assert unresolved.value.transient
        assert isinstance(unresolved.value, Unavailable)
        async with guard.client() as client:
            with pytest.raises(httpx2.ConnectError):
                await client.get("http://nowhere.example/")


async def test_a_host_name_that_no_resolver_takes_is_unresolved_not_a_crash() -> None:
    with pytest.raises(HostUnresolved):
        await STRICT.check(f"http://{'a' * 70}.example/")
    with pytest.raises(HostUnresolved):
        await STRICT.check("http://%31%32%37.0.0.1/")


async def test_the_connection_goes_to_the_checked_address_with_the_hosts_own_name() -> None:
    async with serve() as server:
        guard = EgressGuard(True, resolve=names(receiver_example=["127.0.0.1"]))
        async with guard.client() as client:
            url = f"http://receiver.example:{server.port}/hook?a=1"
            response = await client.post(url, content=b"", headers={"host": "other.example"})
        assert response.text == "ok"
        assert str(response.url) == url
        assert server.requests[0].startswith(b"POST /hook?a=1 HTTP/1.1\r\n")
        assert server.header("host") == f"receiver.example:{server.port}"


async def test_a_name_that_changes_its_address_after_the_check_leads_nowhere_else() -> None:
    answers = iter([["93.184.216.34"], ["127.0.0.1"]])
    asked: list[str] = []

    async def rebinding(host: str, port: int) -> list[str]:
        asked.append(host)
        return next(answers)

    async with serve() as server:
        guard = EgressGuard(False, resolve=rebinding)
        target = await guard.check(f"http://rebound.example:{server.port}/")
        assert target.address == "93.184.216.34"
        async with guard.client() as client:
            with pytest.raises(EgressRefused):
                await client.get(f"http://rebound.example:{server.port}/")
        assert asked == ["rebound.example"] * 2  # once for each check, and never to connect
        assert server.connections == 0


async def test_a_redirect_is_not_followed_and_where_it_is_the_next_hop_is_judged() -> None:
    async with serve() as server:
        server.answer = (
            b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:%d/inside\r\ncontent-length: 0\r\n\r\n" % server.port
        )
        guard = EgressGuard(False, allow_hosts=["receiver.example"], resolve=names(receiver_example=["127.0.0.1"]))
        url = f"http://receiver.example:{server.port}/"
        async with guard.client() as client:
            assert (await client.get(url)).status_code == 302
            assert len(server.requests) == 1
            with pytest.raises(EgressRefused):
                await client.get(url, follow_redirects=True)
        assert all(b"/inside" not in request for request in server.requests)


@pytest.mark.parametrize("addresses", [["127.0.0.2", "127.0.0.1"], ["127.0.0.2", "127.0.0.1", "127.0.0.3"]])
async def test_another_address_of_the_name_is_tried_when_the_first_does_not_answer(addresses: list[str]) -> None:
    async with serve() as server:
        guard = EgressGuard(True, resolve=names(receiver_example=addresses))
        async with guard.client() as client:
            assert (await client.get(f"http://receiver.example:{server.port}/")).status_code == 200


async def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serve() as proxy, serve() as server:
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{proxy.port}")
        monkeypatch.setenv("ALL_PROXY", f"http://127.0.0.1:{proxy.port}")
        async with LOCAL.client() as client:
            await client.get(f"http://127.0.0.1:{server.port}/")
        assert (len(proxy.requests), len(server.requests)) == (0, 1)


async def test_tls_is_verified_for_the_name_not_for_the_address(tmp_path: Path) -> None:
    made = certificate(tmp_path, "receiver.example")
    resolve = names(receiver_example=["127.0.0.1"], other_example=["127.0.0.1"])
    async with serve(tls=server_tls(made)) as server:
        async with EgressGuard(True, resolve=resolve).client(verify=client_tls(made)) as client:
            assert (await client.get(f"https://receiver.example:{server.port}/")).text == "ok"
            # The same address under another name: no connection that was verified for the first may carry it.
            with pytest.raises(httpx2.ConnectError, match="certificate"):
                await client.get(f"https://other.example:{server.port}/")
        assert server.names == ["receiver.example", "other.example"]
        assert server.header("host") == f"receiver.example:{server.port}"


async def test_a_connection_is_not_used_again_for_another_name() -> None:
    resolve = names(a_example=["127.0.0.1"], b_example=["127.0.0.1"])
    async with serve() as server:
        async with EgressGuard(True, resolve=resolve).client() as client:
            await client.get(f"http://a.example:{server.port}/")
            await asyncio.gather(*(client.get(f"http://{name}.example:{server.port}/") for name in "abab"))
        assert server.connections == len(server.requests) == 5
