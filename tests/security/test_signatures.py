"""Webhook signatures: only the sender can make them, and only for a while."""

from __future__ import annotations

import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlingua.model.errors import InvalidRequest
from interlingua.security.webhook_signatures import headers, sign, verify
from tests.kit.keys import NOW

ids = st.text("abcXYZ019_-", min_size=1, max_size=20)


def test_the_signature_is_what_a_receiver_can_compute_in_three_lines() -> None:
    expected = hmac.new(b"secret", b'v1.d-1.1800000000.{"a":1}', hashlib.sha256).hexdigest()
    assert sign("secret", "d-1", NOW, b'{"a":1}') == f"v1={expected}"


@given(st.binary(min_size=1), ids, st.integers(0, 10**12), st.binary())
def test_what_was_signed_verifies(secret: bytes, delivery: str, time: int, body: bytes) -> None:
    sent = headers(secret, delivery, time, body)
    assert verify(
        secret,
        sent["interlingua-delivery"],
        sent["interlingua-timestamp"],
        body,
        sent["interlingua-signature"],
        now=time,
    )


@given(st.tuples(ids, st.integers(0, 99), st.binary()), st.tuples(ids, st.integers(0, 99), st.binary()))
def test_a_signature_is_good_for_nothing_else(a: tuple[str, int, bytes], b: tuple[str, int, bytes]) -> None:
    assert verify("secret", *b, sign("secret", *a), now=0) is (a == b)


def test_another_secret_does_not_verify() -> None:
    assert not verify("other", "d", NOW, b"", sign("secret", "d", NOW, b""), now=NOW)


def test_an_old_or_future_delivery_does_not_verify() -> None:
    value = sign("secret", "d", NOW, b"")
    assert verify("secret", "d", NOW, b"", value, now=NOW + 300)
    assert verify("secret", "d", NOW, b"", value, now=NOW - 300)
    assert not verify("secret", "d", NOW, b"", value, now=NOW + 301)
    assert not verify("secret", "d", NOW, b"", value, now=NOW - 301)
    assert verify("secret", "d", NOW, b"", value, now=NOW + 301, tolerance=600)


def test_one_of_several_signatures_is_enough_while_secrets_change() -> None:
    both = f"{sign('old', 'd', NOW, b'')}, {sign('new', 'd', NOW, b'')}"
    assert verify("old", "d", NOW, b"", both, now=NOW)
    assert verify("new", "d", NOW, b"", both, now=NOW)


@pytest.mark.parametrize("signature", ["", "v1=", "v2=00", "v1", ",,,", "v1=é", "\ud800"])
def test_nonsense_is_not_genuine(signature: str) -> None:
    assert not verify("secret", "d", NOW, b"", signature, now=NOW)


@pytest.mark.parametrize(
    ("delivery", "time"), [("a.b", NOW), ("", NOW), ("d", "-1"), ("d", "٣"), ("d", "1e9"), ("d", "")]
)
def test_an_odd_id_or_time_is_not_genuine(delivery: str, time: int | str) -> None:
    assert not verify("secret", delivery, time, b"", "v1=00", now=NOW)


def test_signing_without_a_secret_or_with_an_ambiguous_id_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="secret"):
        sign("", "d", NOW, b"")
    with pytest.raises(InvalidRequest, match="delivery id"):
        sign("secret", "a.b", NOW, b"")
    with pytest.raises(InvalidRequest, match="timestamp"):
        sign("secret", "d", -1, b"")


def test_signatures_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[bytes] = []
    real = hmac.compare_digest

    def spy(a: bytes, b: bytes) -> bool:
        compared.append(a)
        return real(a, b)

    value = sign("secret", "d", NOW, b"")
    monkeypatch.setattr(hmac, "compare_digest", spy)
    assert verify("secret", "d", NOW, b"", f"{value},v1=00", now=NOW)
    assert compared == [value.encode(), b"v1=00"]  # the second too, though the first was right
