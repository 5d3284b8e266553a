"""Limits of size: each is counted once, over every kind of mounted server and every transport."""

from __future__ import annotations

from pathlib import Path

import pytest

import interlingua as il
from interlingua.model.content import Message, TextPart
from interlingua.model.errors import TooLarge
from interlingua.transports.http import sse
from tests.kit.engines import engine, finish

from .test_odd_text_mounts import SERVERS, mounted

MIB = 1024 * 1024
MORE_THAN_HALF = 8 * MIB + MIB // 8  # of what an input may have
OF_A_PEER = MIB - MIB // 4  # a message to a peer has at most 1 MiB


@pytest.mark.parametrize("server", SERVERS)
async def test_text_of_more_than_half_the_limit_reaches_a_mounted_agent(
    store: Path, tmp_path: Path, server: str
) -> None:
    text = "x" * (OF_A_PEER if server.startswith("peer") else MORE_THAN_HALF)
    async with mounted(store, tmp_path / "there", server, "measures") as (eng, name):
        run = await finish(eng, name, {"text": text}, messages=[Message("user", [TextPart(text)])])
        assert (run.error, run.output) == (None, {"text": str(len(text))})


@pytest.mark.parametrize("server", ["connect", "cap, HTTP"])
async def test_an_answer_beyond_the_limit_of_an_event_ends_its_run_and_says_so(
    store: Path, tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse.Reader.__init__, "__defaults__", (100_000,))
    async with mounted(store, tmp_path / "there", server, "odd") as (eng, name):
        run = await finish(eng, name, {"text": "x" * 200_000})
        assert run.error is not None
        assert run.error.code == "remote_failed"
        assert "cannot be read: an event of the stream is longer than 100000 bytes" in run.error.message
        assert (await finish(eng, name, {"text": "fine"})).output == {"text": "fine"}


@il.agent
async def measures(text: str) -> str:
    return str(len(text))


async def test_each_part_of_a_request_is_weighed_by_itself(store: Path) -> None:
    settings = il.Settings(max_input_bytes=100_000, stall_warning=0)
    text = "x" * 99_000
    said = [Message("user", [TextPart(text)])]
    async with engine(store, measures, settings=settings) as eng:
        run = await finish(eng, "measures", {"text": text}, messages=said, metadata={"note": "y" * 99_000})
        assert run.output == {"text": "99000"}
        for what, wrong in (
            ("input", {"input_": {"text": text + "x" * 1_000}}),
            ("messages", {"input_": {"text": "x"}, "messages": said * 2}),
            ("metadata", {"input_": {"text": "x"}, "metadata": {"note": "y" * 100_000}}),
        ):
            with pytest.raises(TooLarge) as refused:
                await finish(eng, "measures", **wrong)  # type: ignore[arg-type]
            assert refused.value.path == f"/{what}"
            assert refused.value.message.startswith(f"the {what} is larger than 100000 bytes")
