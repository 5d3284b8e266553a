"""Parts as content blocks, and back: what one side gives, the other has."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import interlingua as il
from interlingua.protocols.editor import translate, wire

IMAGE = b"\x89PNG"


@pytest.mark.parametrize(
    "part",
    [
        il.FilePart(data=IMAGE, media_type="image/png", name="cat.png", title="A cat", description="It sleeps."),
        il.FilePart(data=IMAGE, media_type="image/png"),
        il.FilePart(data=b"RIFF", media_type="audio/wav", name="purr.wav"),
        il.FilePart(url="https://example.com/1", data=IMAGE, media_type="image/png", name="cat.png"),
        il.FilePart(url="https://example.com/1", text="a,b", media_type="text/csv", name="b.csv", title="Numbers"),
        il.DataPart({"type": "image", "caption": "a cat", "width": 640}),
        il.DataPart({"type": "text", "text": "no text of the agent's"}),
        il.DataPart({"type": "text", "score": 3}),
        il.DataPart(["any", 1, None]),
        il.TextPart("text"),
    ],
)
def test_a_part_comes_back_as_it_was(part: Any) -> None:
    block = translate.block(part)
    msgspec.convert(block, wire.ContentBlock)  # a client that checks takes it
    assert translate.parts([block], open_types=False) == [part]


@pytest.mark.parametrize("name", ["über ad.csv", "folder/b.csv", "100%.txt", "what?.txt", "#1.txt"])
def test_the_name_of_an_embedded_file_comes_back_whatever_is_in_it(name: str) -> None:
    block = translate.block(il.FilePart(data=b"a,b", media_type="text/csv", name=name))
    assert block["resource"]["uri"].isascii()
    (back,) = translate.parts([block], open_types=False)
    assert isinstance(back, il.FilePart)
    assert (back.name, back.data) == (name, b"a,b")


@pytest.mark.parametrize("about", [None, 1, [], {"name": 3, "more": "x"}])
def test_what_is_said_about_a_file_in_another_way_is_nothing(about: Any) -> None:
    block = {"type": "image", "data": "aGk=", "mimeType": "image/png", "_meta": {wire.META_FILE: about}}
    assert translate.parts([block], open_types=False) == [il.FilePart(data=b"hi", media_type="image/png")]
