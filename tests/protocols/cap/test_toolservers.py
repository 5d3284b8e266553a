"""Tool servers as processes: started when they are needed, kept, restarted, let go; and rude ones harm nobody else."""

from __future__ import annotations

import asyncio
import resource
import sys
import time
from pathlib import Path

import pytest

from interlingua.model.content import FilePart, TextPart
from interlingua.model.errors import RunTimedOut, ToolFailed, Unavailable
from interlingua.model.team.manifest import Server
from interlingua.tools import connections
from interlingua.tools.servers import McpServers, ToolSettings

from .tool_common import HERE, Watched, polite, rude, tools, words

quick = pytest.mark.usefixtures("quick_tools")  # where it does not matter how they start and end


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "calls.log"


# -- what they give back --------------------------------------------------------------------------------------


@quick
async def test_all_pages_of_the_list_are_read_and_schemas_pass_as_they_are() -> None:
    async with tools(polite()) as server:
        found = await server.list()
        assert [tool.name for tool in found][:3] == ["about", "say", "blocks"]
        assert len(found) == 10
        assert {tool.server for tool in found} == {"Tools"}
        assert found[0].description == "Does about."
        assert found[0].input_schema == {"type": "object", "properties": {"n": {"type": "integer"}}, "x-own": [1]}


@quick
async def test_the_list_is_asked_for_once_until_the_server_says_that_it_has_changed(log: Path) -> None:
    async with tools(polite(log)) as server:
        await server.list()
        await server.list()
        assert words(log).count("list") == 3  # one for each page
        await server.call("grow", name="new_one")
        assert "new_one" in [tool.name for tool in await server.list()]


@quick
async def test_text_blocks_become_one_text_and_structured_content_goes_before_them() -> None:
    async with tools(polite()) as server:
        found = await server.outcome("say", texts=["one", "two"])
        assert (found.result, found.failed) == ("one\ntwo", False)
        assert found.content == [TextPart("one"), TextPart("two")]
        assert await server.call("say", texts=[]) == ""
        assert isinstance(await server.call("about"), dict)


@quick
async def test_pictures_and_files_become_parts_and_a_list_of_blocks() -> None:
    async with tools(polite()) as server:
        found = await server.outcome("blocks")
        assert [block["type"] for block in found.result] == ["text", "image", "resource_link", "resource"]
        assert found.content == [
            TextPart("a picture"),
            FilePart(data=b"\x89PNG", media_type="image/png"),
            FilePart(url="https://example.com/r.csv", name="r.csv", media_type="text/csv", size=12),
            FilePart(text="notes", media_type="text/plain", name="file:///notes.txt"),
        ]
        with pytest.raises(ToolFailed, match="no base64"):
            await server.call("blocks", data="???")


@quick
async def test_a_tool_that_says_that_it_failed_fails_with_its_own_words() -> None:
    async with tools(polite()) as server:
        with pytest.raises(ToolFailed) as failed:
            await server.call("fail")
        assert failed.value.message == "the table is locked"
        assert failed.value.details == {"server": "Tools", "tool": "fail"}
        with pytest.raises(ToolFailed, match="refuses nothing"):
            await server.call("nothing")
        assert await server.call("say", texts=["still here"]) == "still here"


@quick
async def test_a_result_over_the_limit_is_not_taken_and_the_connection_lives_on() -> None:
    async with tools(polite(), max_result=1000) as server:
        assert len(await server.call("say", texts=["x" * 900])) == 900
        for size in (1001, 20_000):  # the second is not even read
            with pytest.raises(ToolFailed, match="bytes"):
                await server.call("big", size=size)
        assert await server.call("say", texts=["still here"]) == "still here"


# -- what they are given --------------------------------------------------------------------------------------


@quick
async def test_scopes_travel_with_each_call() -> None:
    async with tools(polite()) as server:
        assert (await server.call("about", scopes=("read:docs", "write:summary")))["scopes"] == [
            "read:docs",
            "write:summary",
        ]
        assert (await server.call("about"))["scopes"] == []


async def test_a_server_inherits_little_and_gets_what_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTHER_SECRET", "not yours")
    args = ("--key=${KEY}", "${KEY:-no}${NONE:-yes}${EMPTY:-}", "[${EMPTY}]")
    given = polite(env={"OWN": "v-${KEY}-${KEY}", "PLAIN": "$KEY"}, args=args)
    async with tools(given, {"KEY": "k1234", "EMPTY": ""}) as server:
        about = await server.call("about")
    assert about["env"]["OWN"] == "v-k1234-k1234"
    assert about["env"]["PLAIN"] == "$KEY"
    assert about["args"] == ["--key=k1234", "k1234yes", "[]"]
    assert about["cwd"] == str(HERE)
    assert "PATH" in about["env"]
    assert "OTHER_SECRET" not in about["env"]


@pytest.mark.parametrize(
    ("server", "told"),
    [
        (polite(args=("${NOT_THERE}",)), "its args needs NOT_THERE"),
        (polite(env={"A": "${NOT_THERE}"}), "its env A needs NOT_THERE"),
        (polite(env={"A": "${not a name}"}), "its env A needs not a name"),
        (Server(url="http://127.0.0.1:1/mcp", headers={"X-Key": "${NOT_THERE}"}), "its header X-Key needs NOT_THERE"),
        (Server(url="ftp://example.com"), "is no address"),
        (Server(command="python", cwd="no-such-folder"), "there is no folder"),
        (Server(command="no-such-command-anywhere"), "cannot be started"),
        (Server(), "neither a command nor a url"),
    ],
    ids=["args", "env", "name", "header", "address", "folder", "command", "nothing"],
)
async def test_what_is_missing_is_named_and_will_be_missing_again(server: Server, told: str) -> None:
    async with tools(server, {}, attempts=1, pause=1000) as given:
        for _ in range(2):
            with pytest.raises(Unavailable, match=told) as missing:
                await given.list()
            assert missing.value.transient is False


async def test_a_secret_is_not_in_what_is_told_about_a_server_that_fails() -> None:
    server = Server(command="python", args=("-c", "import sys; sys.exit('bad key ' + sys.argv[1])", "${KEY}"))
    async with tools(server, {"KEY": "hunter22"}) as given:
        with pytest.raises(Unavailable, match=r"bad key \*\*\*") as failed:
            await given.list()
        assert "hunter22" not in failed.value.message


@quick
async def test_a_secret_is_not_in_what_a_tool_says_of_its_failure() -> None:
    async with tools(polite(env={"KEY": "${KEY}"}), {"KEY": "hunter22"}) as given:
        with pytest.raises(ToolFailed, match=r"bad key \*\*\*") as failed:
            await given.call("fail", text="bad key hunter22")
        assert "hunter22" not in str(failed.value)


async def test_without_the_library_it_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(sys.modules):
        if name.startswith("interlingua.tools.") and name != "interlingua.tools.servers":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "mcp", None)
    monkeypatch.setitem(sys.modules, "mcp_types", None)
    async with tools(polite()) as server:
        with pytest.raises(Unavailable, match=r"pip install 'interlingua\[teams\]'"):
            await server.list()


# -- their lives ----------------------------------------------------------------------------------------------


@quick
async def test_one_process_serves_many_calls_at_once(log: Path) -> None:
    async with tools(polite(log)) as server:
        waiting = asyncio.ensure_future(server.call("cancelled"))
        texts = [[f"number {number}"] for number in range(50)]
        assert await asyncio.gather(*(server.call("say", texts=one) for one in texts)) == [one[0] for one in texts]
        assert not waiting.done()
        waiting.cancel()
    assert words(log).count("start") == 1


@quick
async def test_equal_servers_share_a_process_and_others_do_not() -> None:
    servers = McpServers(HERE)
    try:
        pids = [
            (await servers.call(id_, server, "about", {})).result["pid"]
            for id_, server in (("A", polite()), ("A", polite()), ("B", polite()), ("A", polite(env={"X": "1"})))
        ]
    finally:
        await servers.close()
    assert pids[0] == pids[1]
    assert len(set(pids)) == 3


@quick
async def test_a_call_that_takes_too_long_is_taken_back_and_the_connection_goes_on() -> None:
    async with tools(polite()) as server:
        before = await server.call("about")
        with pytest.raises(RunTimedOut, match=r"Tools did not answer within 0.2 s \(wait\)") as late:
            await server.call("wait", timeout=0.2)
        assert late.value.transient
        assert await server.call("cancelled") == "yes"
        assert (await server.call("about"))["pid"] == before["pid"]


@quick
async def test_the_timeout_of_a_server_is_never_exceeded(log: Path) -> None:
    async with tools(rude("answers", log, timeout=2)) as server:
        with pytest.raises(RunTimedOut, match="did not answer within 2 s"):
            await server.call("silent", timeout=600)


@quick
async def test_a_caller_who_goes_away_takes_its_call_back() -> None:
    async with tools(polite()) as server:
        call = asyncio.ensure_future(server.call("wait"))
        dying = asyncio.ensure_future(server.call("cancelled"))
        await server.call("about")  # both are on their way before this one
        call.cancel()
        assert await dying == "yes"


async def test_a_server_that_dies_fails_its_calls_and_the_next_call_starts_it_anew(log: Path) -> None:
    async with tools(polite(log)) as server:
        both = asyncio.gather(server.call("wait"), server.call("die", when="waited"), return_exceptions=True)
        for error in await both:
            assert isinstance(error, Unavailable)
            assert error.transient
            assert error.message == "Tools is gone: it was ended by SIGKILL; the last it said: the disk is full"
        assert await server.call("say", texts=["again"]) == "again"
    assert words(log).count("start") == 2


async def test_a_server_that_exits_at_once_is_told_with_its_last_words_and_is_not_started_again_and_again(
    log: Path,
) -> None:
    async with tools(rude("exit", log), attempts=2, pause=0.001) as server:
        for _ in range(2):
            with pytest.raises(Unavailable, match="it exited with status 3; the last it said: no license found"):
                await server.call("any")
        assert len(words(log)) == 2
    log.unlink()
    async with tools(rude("exit", log), attempts=1, pause=1000) as server:
        with pytest.raises(Unavailable, match="no license found"):
            await server.call("any")
        for _ in range(3):
            with pytest.raises(Unavailable, match=r"no license found \(that was attempt 1; the next is made in 30"):
                await server.call("any")
        assert len(words(log)) == 1


async def test_a_server_that_dies_with_every_first_call_counts_as_failing(log: Path) -> None:
    async with tools(rude("exit after start", log), attempts=1, pause=1000) as server:
        with pytest.raises(Unavailable, match="I do not work on Sundays"):
            await server.call("any")
        with pytest.raises(Unavailable, match="the next is made in"):
            await server.call("any")
        assert len(words(log)) == 1


async def test_a_death_counts_once_whoever_hears_of_it_first(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    why = connections.ProcessLink.why

    async def late(self: connections.ProcessLink) -> str:
        task = asyncio.current_task()
        if task is not None and task.get_name().startswith("tool server"):
            await asyncio.Event().wait()  # whoever called hears of it first, and ends the connection
        return await why(self)

    async with tools(rude("exit after start", log), attempts=2, pause=0.001) as server:
        monkeypatch.setattr(connections.ProcessLink, "why", late)
        for _ in range(2):
            with pytest.raises(Unavailable, match=r"I do not work on Sundays$"):
                await server.call("any")
    log.unlink()
    async with tools(rude("exit after start", log), attempts=1, pause=1000) as server:
        with pytest.raises(Unavailable, match=r"I do not work on Sundays$"):
            await server.call("any")
        with pytest.raises(Unavailable, match="that was attempt 1; the next is made in"):
            await server.call("any")
        assert len(words(log)) == 1


async def test_many_callers_wait_for_one_start_and_hear_of_its_failure(log: Path) -> None:
    async with tools(rude("exit", log)) as server:
        found = await asyncio.gather(*(server.call("any") for _ in range(5)), return_exceptions=True)
        assert all(isinstance(error, Unavailable) for error in found)
        assert len({id(error) for error in found}) == 5
        assert len(words(log)) == 1


@quick
async def test_a_server_that_nobody_uses_is_let_go_and_comes_back_when_it_is_called(log: Path) -> None:
    async with tools(polite(log), idle_timeout=0.01) as server:
        first = Watched((await server.call("about"))["pid"])
        await first.ended()
        assert await server.call("say", texts=["back"]) == "back"
    assert words(log).count("start") == 2


@quick
async def test_a_call_keeps_its_server_from_being_idle() -> None:
    async with tools(polite(), idle_timeout=0.01) as server:
        await server.list()
        with pytest.raises(RunTimedOut, match="did not answer"):  # and not: it was let go
            await server.call("wait", timeout=0.5)


async def test_close_ends_everything_that_was_started_and_fails_what_is_under_way() -> None:
    servers = McpServers(HERE, ToolSettings(end_patience=(0.2, 2.0)))
    server = polite()
    about = (await servers.call("Tools", server, "about", {})).result
    spawned = (await servers.call("Tools", server, "spawn", {})).result
    processes = [Watched(about["pid"]), Watched(spawned["pid"])]
    waiting = asyncio.ensure_future(servers.call("Tools", server, "wait", {}))
    await servers.call("Tools", server, "about", {})
    await servers.close()
    for process in processes:
        await process.ended()
    with pytest.raises(Unavailable, match="it was let go"):
        await waiting
    with pytest.raises(Unavailable, match="shutting down"):
        await servers.list("Tools", server)
    await servers.close()


async def test_close_ends_a_server_that_has_not_started_yet(log: Path) -> None:
    servers = McpServers(HERE, ToolSettings())
    waiting = asyncio.ensure_future(servers.list("Tools", rude("silent", log)))
    await asyncio.wait([waiting], timeout=0)
    await servers.close()
    with pytest.raises(Unavailable, match="before it had started"):
        await waiting


# -- rude ones ------------------------------------------------------------------------------------------------


async def test_what_is_no_message_is_skipped(log: Path) -> None:
    async with tools(rude("garbage", log)) as server:
        assert await server.call("any") == "done"


@pytest.mark.parametrize(
    ("tool", "told"),
    [
        ("huge", "it answered with 90000"),
        ("odd", "cannot be read"),
        ("no message", "no message"),
        ("deep", "nested deeper"),
    ],
)
async def test_an_answer_that_nobody_can_use_fails_its_own_call_alone(tool: str, told: str, log: Path) -> None:
    async with tools(rude("answers", log)) as server:
        with pytest.raises(ToolFailed, match=told):
            await server.call(tool)
        assert await server.call("any") == "done"
        assert len(words(log)) == 1


@quick
async def test_a_flood_of_notifications_disturbs_nobody(log: Path) -> None:
    async with tools(rude("answers", log)) as server, tools(polite()) as other:
        assert await server.call("flood") == "done"
        await other.list()
        flooded = asyncio.ensure_future(server.call("flood for ever", timeout=1))
        for number in range(20):
            assert await other.call("say", texts=[str(number)]) == str(number)
        with pytest.raises(RunTimedOut):
            await flooded


async def test_a_line_without_an_end_is_not_kept(log: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with tools(rude("endless line", log, timeout=1)) as server:
        with pytest.raises(RunTimedOut, match="did not start within 1 s"):
            await server.call("any")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # kB; it writes far more than that


async def test_a_server_that_never_answers_is_given_up(log: Path) -> None:
    async with tools(rude("silent", log, timeout=0.3)) as server:
        with pytest.raises(RunTimedOut, match=r"Tools did not start within 0\.3 s"):
            await server.call("any")
        with pytest.raises(RunTimedOut, match=r"within 0\.05 s"):
            await server.call("any", timeout=0.05)


@quick
async def test_a_server_is_started_again_only_when_the_one_before_has_ended(log: Path) -> None:
    async with tools(rude("stays", log, timeout=1.5)) as server:
        for _ in range(2):
            with pytest.raises(RunTimedOut):
                await server.call("any")
        assert words(log) == ["start", "end", "start"]


async def test_a_server_that_does_not_read_keeps_no_caller_longer_than_its_timeout(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_PATIENCE", 90.0)
    async with tools(rude("deaf", log)) as server:
        assert await server.list() == []
        for _ in range(5):
            before = time.monotonic()
            with pytest.raises(RunTimedOut, match=r"within 0\.2 s"):
                await server.call("any", timeout=0.2, much="x" * 500_000)
            assert time.monotonic() - before < 60


async def test_a_list_without_an_end_is_not_read_for_ever(log: Path) -> None:
    async with tools(rude("endless list", log)) as server:
        with pytest.raises(ToolFailed, match="the list has no end"):
            await server.list()


async def test_a_server_that_knows_only_the_revision_without_a_handshake_is_reached(log: Path) -> None:
    async with tools(rude("modern", log)) as server:
        assert await server.call("any") == "done"
