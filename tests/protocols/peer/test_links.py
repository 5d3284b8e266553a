"""Links are read and written without loss, refused with a reason, and never shown with their token."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlingua.model.errors import InvalidRequest
from interlingua.protocols.peer.wire.links import Link, direct, new_token, parse, same_token

TOKEN = "tok_0123456789abcdef"


@pytest.mark.parametrize(
    ("text", "link"),
    [
        (f"acp://1.2.3.4:7801/{TOKEN}", Link("acp", "1.2.3.4", 7801, TOKEN, False)),
        ("acp://1.2.3.4:7801/tok_xxx", Link("acp", "1.2.3.4", 7801, "tok_xxx", False)),
        (f"acp://host/{TOKEN}", Link("acp", "host", 7801, TOKEN, False)),
        (f"acp://host/{TOKEN}/", Link("acp", "host", 7801, TOKEN, False)),
        (f"  acp://host/{TOKEN}\n", Link("acp", "host", 7801, TOKEN, False)),
        (f"ACP://Host.Example/{TOKEN}", Link("acp", "host.example", 7801, TOKEN, False)),
        (f"acp://my_service:9000/{TOKEN}", Link("acp", "my_service", 9000, TOKEN, False)),
        (f"acp://[::1]:7801/{TOKEN}", Link("acp", "::1", 7801, TOKEN, False)),
        (f"acp://[2001:DB8::1]/{TOKEN}", Link("acp", "2001:db8::1", 7801, TOKEN, False)),
        (f"acp://[fe80::1%25eth0]:7801/{TOKEN}", Link("acp", "fe80::1%eth0", 7801, TOKEN, False)),
        (f"acps://host:443/{TOKEN}", Link("acps", "host", 443, TOKEN, True)),
        (f"acp+wss://relay.example/acp/{TOKEN}", Link("acp+wss", "relay.example", 443, TOKEN, True, "/acp")),
        (f"acp+ws://127.0.0.1:8080/acp/{TOKEN}", Link("acp+ws", "127.0.0.1", 8080, TOKEN, False, "/acp")),
        (f"acp+wss://h/deep/acp/{TOKEN}", Link("acp+wss", "h", 443, TOKEN, True, "/deep/acp")),
        (f"tcp://10.0.0.7:7802/{TOKEN}", Link("tcp", "10.0.0.7", 7802, TOKEN, False)),
        ("http://localhost:8000/peer", Link("http", "localhost", 8000, "", False, "/peer")),
        ("https://host", Link("https", "host", 443, "", True)),
        ("https://host/", Link("https", "host", 443, "", True)),
        ("peer+http://host:7901", Link("http", "host", 7901, "", False)),
        ("peer+https://host/a/b/", Link("https", "host", 443, "", True, "/a/b")),
    ],
)  # fmt: skip
def test_a_link_is_read(text: str, link: Link) -> None:
    assert parse(text) == link
    assert parse(str(link)) == link


@pytest.mark.parametrize(
    ("text", "written", "url", "binding"),
    [
        (f"acp://host/{TOKEN}", f"acp://host:7801/{TOKEN}", f"ws://host:7801/{TOKEN}", "A"),
        (f"acps://host/{TOKEN}", f"acps://host:7801/{TOKEN}", f"wss://host:7801/{TOKEN}", "A"),
        (f"acp://[::1]/{TOKEN}", f"acp://[::1]:7801/{TOKEN}", f"ws://[::1]:7801/{TOKEN}", "A"),
        (f"acp+wss://r/acp/{TOKEN}", f"acp+wss://r/acp/{TOKEN}", "https://r/acp", "C"),
        (f"acp+wss://r:444/acp/{TOKEN}", f"acp+wss://r:444/acp/{TOKEN}", "https://r:444/acp", "C"),
        (f"acp+ws://r:80/acp/{TOKEN}", f"acp+ws://r/acp/{TOKEN}", "http://r/acp", "C"),
        (f"tcp://h:7802/{TOKEN}", f"tcp://h:7802/{TOKEN}", "tcp://h:7802", "E"),
        ("peer+http://h:80/peer", "http://h/peer", "http://h/peer", "D"),
    ],
)
def test_a_link_knows_how_it_is_written_what_to_dial_and_its_binding(
    text: str, written: str, url: str, binding: str
) -> None:
    link = parse(text)
    assert (str(link), link.url, link.binding) == (written, url, binding)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "a link is a text such as"),
        ("   ", "a link is a text such as"),
        ("nonsense", "has no scheme"),
        ("host:7801/tok", "has no scheme"),
        (f"ftp://host/{TOKEN}", "ftp:// is no scheme of a link"),
        (f"peer+acp://host/{TOKEN}", r"peer\+acp:// is no scheme"),
        (f"acp:///{TOKEN}", "has no host"),
        (f"acp://:7801/{TOKEN}", "has no host"),
        (f"acp://host:0/{TOKEN}", "from 1 to 65535, got '0'"),
        (f"acp://host:65536/{TOKEN}", "from 1 to 65535"),
        (f"acp://host:/{TOKEN}", "from 1 to 65535, got ''"),
        (f"acp://host:-1/{TOKEN}", "from 1 to 65535"),
        (f"acp://host:abc/{TOKEN}", "from 1 to 65535"),
        (f"acp://host:٣/{TOKEN}", "from 1 to 65535"),
        (f"acp://host:78 01/{TOKEN}", "from 1 to 65535"),
        ("acp://host:7801", "has no token"),
        ("acp://host:7801/", "has no token"),
        ("acp+wss://host/", "has no token"),
        (f"acp+wss://host/{TOKEN}", "is /acp/TOKEN"),
        (f"acp://host/a/{TOKEN}", "nothing but the token follows the host"),
        ("acp://host/to ken", "the token of the link is letters"),
        ("acp://host/tok%2F", "the token of the link is letters"),
        (f"acp://host/{'t' * 201}", "the token of the link is letters"),
        (f"acp://host/{TOKEN}?a=b", "neither a query nor a fragment"),
        (f"acp://host/{TOKEN}#agent", "neither a query nor a fragment"),
        (f"acp://user:pass@host/{TOKEN}", "no user and no password"),
        (f"acp://::1:7801/{TOKEN}", "an IPv6 address stands in brackets"),
        (f"acp://[::1/{TOKEN}", "an IPv6 address stands in brackets"),
        (f"acp://[zz]:7801/{TOKEN}", "is no IPv6 address"),
        (f"acp://300.1.1.1/{TOKEN}", "is no IPv4 address"),
        (f"acp://127.1/{TOKEN}", "is no IPv4 address"),
        (f"acp://ho st/{TOKEN}", "is no host name"),
        (f"acp://bücher.example/{TOKEN}", "xn-- form"),
        (f"acp://-host/{TOKEN}", "is no host name"),
        (f"acp://host\x00/{TOKEN}", "is no host name"),
        (f"tcp://host/{TOKEN}", "names its port"),
        ("http://host//peer", "an empty segment"),
        ("http://host/a b", "characters that no path has"),
        (f"acp://{'h' * 3000}/{TOKEN}", "longer than 2000"),
    ],
)
def test_what_is_no_link_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why) as caught:
        parse(text)
    assert caught.value.path == "/link"
    assert TOKEN not in str(caught.value)


def test_a_token_shows_neither_in_the_representation_nor_where_a_link_is_shown() -> None:
    link = parse(f"acp://host:7801/{TOKEN}")
    assert TOKEN not in repr(link)
    assert TOKEN not in f"{[link]}"
    assert link.shown == "acp://host:7801/…"
    assert parse("http://host/peer").shown == "http://host/peer"


@given(st.text(max_size=60))
def test_any_text_is_a_link_or_a_bad_request(text: str) -> None:
    for given_text in (text, f"acp://{text}", f"acp://host/{text}"):
        try:
            link = parse(given_text)
        except InvalidRequest:
            continue
        assert parse(str(link)) == link


def test_the_link_of_a_listener() -> None:
    assert str(direct("192.168.1.5", 7801, TOKEN)) == f"acp://192.168.1.5:7801/{TOKEN}"
    assert str(direct("::1", 7805, TOKEN, secure=True)) == f"acps://[::1]:7805/{TOKEN}"
    with pytest.raises(InvalidRequest):
        direct("", 7801, TOKEN)


def test_new_tokens_have_64_random_bits_and_fit_into_a_link() -> None:
    tokens = {new_token() for _ in range(200)}
    assert len(tokens) == 200
    assert all(re.fullmatch(r"tok_[0-9a-f]{16}", token) for token in tokens)
    assert all(parse(f"acp://h/{token}").token == token for token in tokens)


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        (TOKEN, TOKEN, True),
        (TOKEN, TOKEN[:-1] + "0", False),
        (TOKEN, TOKEN + "0", False),
        (TOKEN, "", False),
        ("", "", False),
        ("tök", "tök", True),
        ("\ud800", "\ud800", True),
        (TOKEN, TOKEN.upper(), False),
    ],
)
def test_tokens_are_compared_and_no_token_equals_nothing(a: str, b: str, same: bool) -> None:
    assert same_token(a, b) is same
    assert same_token(b, a) is same
