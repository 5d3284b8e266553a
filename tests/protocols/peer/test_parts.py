"""Parts are checked on the way in, with the path of what is wrong, and translated to the model and back."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from interlingua.model.content import DataPart, FilePart, Part, TextPart, ToolResultPart
from interlingua.model.errors import Invalid, InvalidRequest, TooLarge
from interlingua.protocols.peer.translate.parts import (
    check_parts,
    from_model,
    input_of,
    known_parts,
    parts_of,
    text_of,
    to_model,
)

TEXT = {"type": "text", "content": "string content here"}
FILE = {
    "type": "file",
    "url": "https://example.com/report.pdf",
    "media_type": "application/pdf",
    "filename": "report.pdf",
}
DATA = {"type": "data", "content": {"any": "json", "value": True}}


class Published:
    """Keeps what is published, as a node does."""

    def __init__(self) -> None:
        self.files: list[tuple[bytes, str, str | None]] = []

    def __call__(self, data: bytes, media_type: str, name: str | None) -> str:
        self.files.append((data, media_type, name))
        return f"http://node.example/files/{len(self.files)}"


def refused(value: Any) -> Invalid:
    with pytest.raises(Invalid) as caught:
        check_parts(value)
    return caught.value


def test_the_three_kinds_of_parts_stand_in_one_message_in_order() -> None:
    assert check_parts([TEXT, FILE, DATA, TEXT]) == [TEXT, FILE, DATA, TEXT]


@pytest.mark.parametrize(
    "content",
    [{"a": [1]}, [1, "two", None], "text", 5, 1.5, True, False, None],
    ids=["object", "array", "string", "number", "fraction", "true", "false", "null"],
)
def test_a_data_part_holds_any_json_value(content: Any) -> None:
    part = {"type": "data", "content": content}
    assert check_parts([part]) == [part]
    assert to_model(part) == DataPart(content)


@pytest.mark.parametrize("content", [5, None, True, ["a"], {"a": 1}])
def test_a_text_part_whose_content_is_no_string_is_refused(content: Any) -> None:
    error = refused([TEXT, {"type": "text", "content": content}])
    assert error.path == "/parts/1/content"
    assert "is a text, got" in str(error)


def test_a_text_part_without_content_is_refused() -> None:
    assert refused([{"type": "text"}]).path == "/parts/0/content"


@pytest.mark.parametrize("part", [{"type": "file"}, {"type": "file", "url": ""}, {"type": "file", "url": 5}])
def test_a_file_part_without_an_address_is_refused(part: Any) -> None:
    assert refused([part]).path == "/parts/0/url"


@pytest.mark.parametrize(
    "url",
    [
        "ftp://example.com/a",
        "file:///etc/passwd",
        "data:text/plain,hello",
        "javascript:alert(1)",
        "//example.com/a",
        "/a",
        "https://",
        "http:///a",
        "https://exa mple.com/",
        "https://example.com/\n",
        "https://[::1/a",
        "https://example.com:99999/",
        "https://example.com/" + "a" * 9000,
    ],
)
def test_the_address_of_a_file_is_a_web_address(url: str) -> None:
    error = refused([{"type": "file", "url": url}])
    assert error.path == "/parts/0/url"
    assert len(str(error)) < 200


@pytest.mark.parametrize("url", ["http://h/a", "https://[::1]:8443/x?y#z", "HTTPS://example.com/ä"])
def test_http_and_https_addresses_are_taken(url: str) -> None:
    assert check_parts([{"type": "file", "url": url}])


@pytest.mark.parametrize("media_type", ["application/pdf", "text/plain; charset=utf-8", "image/svg+xml"])
def test_the_media_type_of_a_file_is_a_mime_type(media_type: str) -> None:
    assert check_parts([{**FILE, "media_type": media_type}])[0]["media_type"] == media_type


@pytest.mark.parametrize("media_type", ["pdf", "", 5, "a/b\r\nx: y", "/", "text/"])
def test_a_media_type_that_is_none_is_refused(media_type: Any) -> None:
    assert refused([{**FILE, "media_type": media_type}]).path == "/parts/0/media_type"


def test_media_type_and_filename_can_be_left_out_and_a_filename_is_a_text() -> None:
    assert check_parts([{"type": "file", "url": "http://h/a"}])
    assert refused([{**FILE, "filename": 5}]).path == "/parts/0/filename"


def test_there_is_no_part_for_raw_bytes() -> None:
    inline = {"type": "file", "data": base64.b64encode(b"bytes").decode(), "media_type": "image/png"}
    assert refused([inline]).path == "/parts/0/url"
    for kind in ("bytes", "image", "inline"):
        assert refused([{"type": kind, "content": "AAAA"}]).path == "/parts/0/type"


def test_a_message_holds_at_least_one_part() -> None:
    assert refused([]).path == "/parts"


@pytest.mark.parametrize("value", [None, "text", {"type": "text"}, 5])
def test_parts_that_are_no_list_are_refused(value: Any) -> None:
    error = refused(value)
    assert error.path == "/parts"
    assert "is a list of parts" in str(error)


@pytest.mark.parametrize(
    ("part", "path"),
    [
        ("text", "/parts/0"),
        (None, "/parts/0"),
        ([TEXT], "/parts/0"),
        ({}, "/parts/0/type"),
        ({"type": 5}, "/parts/0/type"),
        ({"type": "video", "url": "http://h/a"}, "/parts/0/type"),
        ({"type": "data"}, "/parts/0/content"),
        ({"type": "data", "content": {"a": [1, float("nan")]}}, "/parts/0/content/a/1"),
        ({"type": "text", "content": "\ud800"}, "/parts/0/content"),
    ],
)
def test_the_path_of_what_is_wrong_is_told(part: Any, path: str) -> None:
    assert refused([part]).path == path


def test_bottomless_nesting_and_a_thousand_parts_are_too_much() -> None:
    deep: Any = []
    for _ in range(200):
        deep = [deep]
    assert isinstance(refused([{"type": "data", "content": deep}]), TooLarge)
    assert refused([TEXT] * 1001).path == "/parts"


def test_members_that_are_not_known_are_kept() -> None:
    part = {**TEXT, "language": "en", "x": {"y": 1}}
    assert check_parts([part]) == [part]


def test_parts_of_a_later_version_are_left_out_where_others_remain() -> None:
    assert known_parts([{"type": "hologram", "z": 1}, TEXT]) == [TEXT]
    with pytest.raises(InvalidRequest, match="hologram"):
        known_parts([{"type": "hologram"}])
    with pytest.raises(InvalidRequest, match="is a text"):
        known_parts([{"type": "hologram"}, {"type": "text", "content": 5}])


# -- short forms ----------------------------------------------------------------------------------------------


def test_text_is_a_short_form_of_one_text_part() -> None:
    assert parts_of({"role": "user", "text": "hello"}) == [{"type": "text", "content": "hello"}]


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ("hello", {"type": "text", "content": "hello"}),
        ({"a": 1}, {"type": "data", "content": {"a": 1}}),
        (5, {"type": "data", "content": 5}),
    ],
)
def test_content_is_a_short_form_of_one_part(content: Any, part: dict[str, Any]) -> None:
    assert parts_of({"content": content}) == [part]


def test_parts_win_over_the_short_forms_and_null_is_absent() -> None:
    assert parts_of({"parts": [DATA], "text": "no"}) == [DATA]
    assert parts_of({"parts": None, "text": "yes"}) == [{"type": "text", "content": "yes"}]


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({}, "/parts"),
        ({"parts": None, "text": None, "content": None}, "/parts"),
        ({"parts": [], "text": "a"}, "/parts"),
        ({"text": 5}, "/text"),
        ({"text": ["a"]}, "/text"),
    ],
)
def test_a_body_without_content_is_refused(body: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parts_of(body)
    assert caught.value.path == path


@pytest.mark.parametrize(
    ("body", "parts"),
    [
        ({"input": {"parts": [TEXT]}}, [TEXT]),
        ({"parts": [TEXT], "input": {"parts": [DATA]}}, [TEXT]),
        ({"payload": {"role": "user", "parts": [DATA]}}, [DATA]),
        ({"payload": {"input": {"text": "a"}}}, [{"type": "text", "content": "a"}]),
        ({"payload": {"city": "Paris"}}, [{"type": "data", "content": {"city": "Paris"}}]),
        ({"input": "words"}, [{"type": "text", "content": "words"}]),
        ({"input": [1, 2]}, [{"type": "data", "content": [1, 2]}]),
        ({"title": "Sum", "description": "Add 1 and 2"}, [{"type": "text", "content": "Sum\n\nAdd 1 and 2"}]),
        ({"description": "Add"}, [{"type": "text", "content": "Add"}]),
        ({"role": "user"}, None),
        ({"payload": {}}, None),
        ({"payload": {"role": "user"}}, None),
    ],
)
def test_the_input_of_a_task_is_found_where_its_creator_put_it(body: dict[str, Any], parts: Any) -> None:
    assert input_of(body) == parts


def test_the_text_of_parts_is_joined_as_it_was_written() -> None:
    assert text_of([{"type": "text", "content": "a "}, DATA, {"type": "text", "content": "b"}]) == "a b"


# -- the model ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wire", "model"),
    [
        (TEXT, TextPart("string content here")),
        (FILE, FilePart(url="https://example.com/report.pdf", media_type="application/pdf", name="report.pdf")),
        ({"type": "file", "url": "http://h/a"}, FilePart(url="http://h/a")),
        (DATA, DataPart({"any": "json", "value": True})),
        ({"type": "data", "content": [1], "media_type": "a/b", "filename": "n"}, DataPart([1], "a/b", "n")),
    ],
)
def test_parts_translate_to_the_model_and_back(wire: dict[str, Any], model: Part) -> None:
    assert to_model(wire) == model
    assert from_model(model, Published()) == wire


@pytest.mark.parametrize(
    ("part", "published"),
    [
        (FilePart(data=b"\x00\x01", media_type="image/png", name="a.png"), (b"\x00\x01", "image/png", "a.png")),
        (FilePart(data=b"\x00"), (b"\x00", "application/octet-stream", None)),
        (FilePart(text="grüße", name="a.txt"), ("grüße".encode(), "text/plain; charset=utf-8", "a.txt")),
        (FilePart(url="data:text/csv,a%2Cb"), (b"a,b", "text/csv", None)),
        (FilePart(url="data:image/png;base64,AAE="), (b"\x00\x01", "image/png", None)),
        (FilePart(url="data:,hi"), (b"hi", "text/plain", None)),
        (FilePart(data=b"x", media_type="not a type"), (b"x", "application/octet-stream", None)),
    ],
)
def test_bytes_become_an_address(part: FilePart, published: tuple[bytes, str, str | None]) -> None:
    publish = Published()
    told = from_model(part, publish)
    assert publish.files == [published]
    assert told["type"] == "file"
    assert told["url"] == "http://node.example/files/1"
    assert told["media_type"] == published[1]
    assert told.get("filename") == published[2]
    assert check_parts([told])


@pytest.mark.parametrize("url", ["file:///home/u/a.txt", "mem://x", "data:image/png;base64,!!", ""])
def test_an_address_that_a_peer_cannot_open_is_told_as_data(url: str) -> None:
    publish = Published()
    told = from_model(FilePart(url=url, name="a.txt"), publish)
    assert told == {"type": "data", "content": {"file": {"uri": url, "filename": "a.txt"}}}
    assert publish.files == []
    assert check_parts([told])


def test_the_result_of_a_tool_is_told_as_data() -> None:
    told = from_model(ToolResultPart("search", {"hits": 2}, server="web", failed=True), Published())
    result = {"tool": "search", "result": {"hits": 2}, "failed": True, "server": "web"}
    assert told == {"type": "data", "content": {"tool_result": result}}
