"""Host and Origin: what a web page may not do to a server on loopback."""

from __future__ import annotations

import pytest

from interlingua.model.errors import Denied, InvalidRequest
from interlingua.security.errors import HostRefused, OriginRefused
from interlingua.security.origins import HostPolicy

LOOPBACK = HostPolicy.for_bind("127.0.0.1")


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8000", "127.0.0.1:8000", "[::1]:8000", "[::1]", "LOCALHOST:1", "localhost.:80"]
)
def test_a_loopback_server_answers_to_loopback_names_on_any_port(host: str) -> None:
    LOOPBACK.check({"Host": host})


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8000",
        "localhost.evil.example",
        "127.0.0.1.evil.example:8000",
        "user@localhost",
        "localhost:80:80",
        "localhost:*",
        "localhost:",
        "[::1",
        "local host",
        "",
        "127.0.0.1/",
    ],
)
def test_a_loopback_server_answers_to_no_other_name(host: str) -> None:
    with pytest.raises(HostRefused) as refused:
        LOOPBACK.check({"host": host})
    assert refused.value.code == "host_refused"
    assert isinstance(refused.value, Denied)


def test_a_request_without_host_is_refused_and_the_refusal_says_which_are_fine() -> None:
    with pytest.raises(HostRefused, match="no Host header"):
        LOOPBACK.check({})
    with pytest.raises(HostRefused, match=r"'evil\.example'; it answers to localhost, 127\.0\.0\.1"):
        LOOPBACK.check({"host": "evil.example"})


def test_a_program_that_sends_no_origin_is_fine() -> None:
    LOOPBACK.check({"host": "localhost:8000", "user-agent": "curl/8"})


@pytest.mark.parametrize(
    "origin", ["http://localhost:3000", "https://127.0.0.1", "http://[::1]:8000", "HTTP://LocalHost"]
)
def test_pages_from_this_machine_may_call_a_loopback_server(origin: str) -> None:
    LOOPBACK.check({"host": "localhost:8000", "origin": origin})


@pytest.mark.parametrize(
    "origin",
    [
        "null",
        "https://evil.example",
        "http://localhost.evil.example",
        "http://localhost@evil.example",
        "chrome-extension://localhost",
        "localhost",
        "",
        "http://",
        "http://localhost:*",
        "http://localhost/",
    ],
)
def test_pages_from_elsewhere_may_not(origin: str) -> None:
    with pytest.raises(OriginRefused) as refused:
        LOOPBACK.check({"host": "localhost:8000", "origin": origin})
    assert refused.value.code == "origin_refused"


def test_two_hosts_in_one_request_are_refused_whichever_would_be_fine() -> None:
    class Lines(dict[str, str]):
        def items(self) -> list[tuple[str, str]]:  # type: ignore[override]
            return [("host", "localhost"), ("Host", "evil.example")]

    with pytest.raises(InvalidRequest, match="several host headers"):
        LOOPBACK.check(Lines())


def test_a_server_bound_to_another_loopback_address_answers_to_it() -> None:
    HostPolicy.for_bind("127.0.0.9").check({"host": "127.0.0.9:80", "origin": "http://127.0.0.9"})
    HostPolicy.for_bind("::1").check({"host": "[::1]:80"})


def test_a_public_server_answers_to_any_name_unless_some_are_given() -> None:
    HostPolicy.for_bind("0.0.0.0").check({"host": "agents.example"})
    named = HostPolicy.for_bind("0.0.0.0", hosts=["agents.example", "other.example:8443"])
    named.check({"host": "agents.example:9000"})
    named.check({"host": "other.example:8443"})
    with pytest.raises(HostRefused):
        named.check({"host": "other.example"})
    with pytest.raises(HostRefused):
        named.check({"host": "localhost"})


def test_a_public_server_takes_pages_that_it_served_or_that_were_allowed() -> None:
    policy = HostPolicy.for_bind("0.0.0.0", origins=["https://app.example"])
    policy.check({"host": "agents.example", "origin": "https://agents.example"})
    policy.check({"host": "agents.example:8000", "origin": "http://agents.example:8000"})
    policy.check({"host": "agents.example", "origin": "https://app.example:443"})
    for origin in ("https://app.example:8443", "http://app.example", "http://agents.example:8000", "null"):
        with pytest.raises(OriginRefused):
            policy.check({"host": "agents.example", "origin": origin})


def test_everything_is_allowed_only_by_a_star() -> None:
    HostPolicy(["*"], ["*"]).check({"host": "a.example", "origin": "null"})
    HostPolicy(["*"], ["null"]).check({"host": "a.example", "origin": "null"})
    with pytest.raises(InvalidRequest, match="allowed host"):
        HostPolicy(["http://a.example"])
    with pytest.raises(InvalidRequest, match="allowed origin"):
        HostPolicy(["*"], ["a.example"])
