"""Extensions: read from flags and cards, each URI once, required ones found."""

from __future__ import annotations

import re
from typing import Any

import pytest

from interlingua.model.errors import InvalidRequest
from interlingua.protocols.peer.wire.extensions import (
    BUILT_IN,
    advice,
    built_in,
    check,
    dedupe,
    extension,
    missing_required,
    parse_many,
    parse_one,
    read,
)

BILLING = "https://corp.example.com/ext/billing"
AUDIT = "https://corp.example.com/ext/audit"


@pytest.mark.parametrize(
    ("text", "declared"),
    [
        (BILLING, {"uri": BILLING, "required": False, "params": {}}),
        (f"{BILLING},required=true", {"uri": BILLING, "required": True, "params": {}}),
        (f"{BILLING},required=false", {"uri": BILLING, "required": False, "params": {}}),
        (f"{BILLING},required=YES", {"uri": BILLING, "required": True, "params": {}}),
        (f"{BILLING},tier=pro,seats=5", {"uri": BILLING, "required": False, "params": {"tier": "pro", "seats": "5"}}),
        (f" {BILLING} , tier = a=b ", {"uri": BILLING, "required": False, "params": {"tier": "a=b"}}),
        (f"{BILLING}?v=2,tier=pro", {"uri": f"{BILLING}?v=2", "required": False, "params": {"tier": "pro"}}),
        ("urn:example:ext", {"uri": "urn:example:ext", "required": False, "params": {}}),
    ],
)
def test_a_flag_declares_one_extension(text: str, declared: dict[str, Any]) -> None:
    assert parse_one(text) == declared


def test_the_example_of_a_required_extension_with_a_param() -> None:
    found = parse_one("https://corp.example.com/ext/billing,required=true,tier=pro")
    assert found == {"uri": BILLING, "required": True, "params": {"tier": "pro"}}


def test_the_example_of_several_extensions() -> None:
    found = parse_many("acp:ext:custom-v1,https://corp.example.com/ext/audit")
    assert found == [extension("acp:ext:custom-v1"), extension(AUDIT)]


def test_several_uris_have_no_params_and_each_stands_once() -> None:
    assert parse_many(f" {AUDIT},,{BILLING},{AUDIT} ") == [extension(AUDIT), extension(BILLING)]
    assert parse_many("") == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        ",required=true",
        "no uri",
        "billing",
        f"{BILLING},required",
        f"{BILLING},required=maybe",
        f"{BILLING},=x",
        "https://",
        "acp:ext:",
        "acp:ext:hmac",
        "acp:other:thing-v1",
        "https://a b/",
        "https://a/" + "x" * 3000,
    ],
)
def test_a_flag_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_one(text)
    assert len(str(caught.value)) < 250


def test_an_extension_has_a_uri() -> None:
    for value in ({}, {"uri": None}, {"uri": ""}, {"uri": 5}, {"required": True}):
        with pytest.raises(InvalidRequest, match="known by its URI") as caught:
            check(value)
        assert caught.value.path == "/uri"


def test_required_and_params_have_defaults() -> None:
    assert check({"uri": AUDIT}) == {"uri": AUDIT, "required": False, "params": {}}
    assert check({"uri": AUDIT, "required": None, "params": None}) == {"uri": AUDIT, "required": False, "params": {}}


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ("text", ""),
        ({"uri": AUDIT, "required": "true"}, "/required"),
        ({"uri": AUDIT, "params": []}, "/params"),
        ({"uri": AUDIT, "params": {"a": float("inf")}}, "/a"),
    ],
)
def test_an_extension_object_that_makes_no_sense_is_refused(value: Any, path: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check(value)
    assert caught.value.path == path


@pytest.mark.parametrize(
    ("on", "uris"),
    [
        ({}, []),
        ({"hmac": True}, ["acp:ext:hmac-v1"]),
        ({"mdns": True}, ["acp:ext:mdns-v1"]),
        ({"h2c": True}, ["acp:ext:h2c-v1"]),
        ({"hmac": True, "mdns": True, "h2c": True}, ["acp:ext:hmac-v1", "acp:ext:mdns-v1", "acp:ext:h2c-v1"]),
    ],
    ids=["none", "hmac", "mdns", "h2c", "all"],
)
def test_built_in_extensions_are_listed_while_their_feature_is_on(on: dict[str, bool], uris: list[str]) -> None:
    found = built_in(**{"hmac": False, "mdns": False, "h2c": False, **on})
    assert [entry["uri"] for entry in found] == uris
    assert all(entry["required"] is False for entry in found)


def test_the_extension_for_signing_names_its_scheme() -> None:
    (found,) = built_in(hmac=True, mdns=False, h2c=False)
    assert found == {"uri": "acp:ext:hmac-v1", "required": False, "params": {"scheme": "hmac-sha256"}}


def test_the_uris_of_built_in_extensions_have_one_form() -> None:
    assert all(re.fullmatch(r"acp:ext:[a-z0-9]+-v[0-9]+", uri) for uri in BUILT_IN)


def test_a_uri_that_is_declared_twice_is_listed_once() -> None:
    assert len(dedupe([extension(AUDIT), extension(BILLING), extension(AUDIT)])) == 2


def test_the_first_declaration_of_a_uri_counts() -> None:
    first, second = extension(AUDIT, required=True, params={"n": 1}), extension(AUDIT, params={"n": 2})
    assert dedupe([first, second]) == [first]
    assert dedupe([second, first]) == [second]


def test_required_extensions_that_are_not_supported_are_found() -> None:
    card = [
        extension(AUDIT, required=True),
        extension(BILLING, required=True),
        extension("acp:ext:hmac-v1", required=True),
    ]
    assert missing_required(card, ["acp:ext:hmac-v1", BILLING]) == [AUDIT]
    assert missing_required(card, [AUDIT, BILLING, "acp:ext:hmac-v1"]) == []


def test_an_extension_that_is_not_required_is_ignored_however_unknown() -> None:
    assert (
        missing_required([extension(AUDIT), {"uri": "x:y", "future": 1}, {"uri": BILLING, "required": False}], []) == []
    )


@pytest.mark.parametrize("value", [None, "text", {}, [5, None, {"uri": 5}, {"required": True}, {"uri": "no uri"}]])
def test_a_peer_whose_extensions_make_no_sense_requires_nothing(value: Any) -> None:
    assert read(value) == []
    assert missing_required(value, []) == []


def test_the_extensions_of_a_peer_are_read_with_their_defaults() -> None:
    assert read([{"uri": AUDIT, "x": 1}, {"uri": AUDIT, "required": True}]) == [extension(AUDIT)]


@pytest.mark.parametrize(
    ("uri", "told"),
    [
        (AUDIT, ""),
        ("acp:ext:hmac-v1", ""),
        ("acp:ext:custom-v1", "reserved"),
        ("http://corp.example.com/x", "https://"),
        ("urn:x:y", "https://"),
    ],
)
def test_the_owner_is_told_of_uris_that_are_reserved_or_not_unique(uri: str, told: str) -> None:
    found = advice([extension(uri)])
    assert len(found) == (1 if told else 0)
    assert all(told in line and uri in line for line in found)
