"""Our own door passes its own checks, over every wire: what does not apply to it is named, with the reason."""

from __future__ import annotations

from pathlib import Path

from interlingua.protocols.editor.config import DoorSettings
from interlingua.protocols.editor.door.http import WebDoor
from interlingua.security.keys import make_key
from interlingua.server.app import ServeSettings, serving
from interlingua.server.auth.stored_keys import StoredKeys
from interlingua.store.open import open_store
from interlingua_conform import suite
from interlingua_conform.base import Roles, Subject
from tests.kit import warm_python

from .. import agents
from ..common import AGENTS, ROLES, failures, findings

HERE = Path(__file__).parent
PATIENCE = 40.0  # for a machine that is busy

IDS = set(suite("editor").ids)
NETWORK = {
    "editor.messages.streamable-http-defined", "editor.messages.custom-possible",
    *(id_ for id_ in IDS if id_.startswith(("editor.http.", "editor.custom."))),
}  # fmt: skip
PIPES = {
    "editor.messages.stdio-defined", "editor.messages.agent-supports-stdio", "editor.batch.end-inside",
    "editor.input.invalid-utf-8", "editor.input.blank-lines", "editor.input.too-long", "editor.input.random",
    *(id_ for id_ in IDS if id_.startswith("editor.stdio.")),
}  # fmt: skip

FORMS = {"editor.v1.elicitation", "editor.v1.elicitation-declined", "editor.v1.spoken", "editor.v2.questions"}
SHOWN = {"editor.batch.follows-array", "editor.stdio.stderr-logging"}  # by agents with commands, and who print
LOGINS = {"editor.v1.authenticate", "editor.v1.terminal-auth", "editor.v2.login"}
KEYS = {"editor.http.callers"}

NEVER = {
    "editor.batch.agent-sends": "the door sends a batch only where the program that serves it asks for one",
    "editor.http.http-2": "declared as a deviation: we speak HTTP/1.1, and a proxy may speak HTTP/2",
    "editor.http.listen-before-load": "declared as a deviation: the stream opens, for clients that listen first",
}


def command(folder: Path, file: Path) -> tuple[str, ...]:
    return (
        "env",
        "INTERLINGUA_PROJECT=tests",
        warm_python.interlingua(),
        "stdio",
        "--as",
        "editor",
        "--store",
        str(folder / "store.db"),
        str(file),
    )


def not_applicable(found: dict[str, object]) -> set[str]:
    return {id_ for id_, finding in found.items() if getattr(finding, "verdict", "") == "not applicable"}


async def test_a_command_of_ours_passes(tmp_path: Path) -> None:
    found = await findings("editor", Subject(command=command(tmp_path, AGENTS), roles=ROLES, patience=PATIENCE))
    assert failures(found) == {}
    assert set(found) == IDS
    others = {"editor.batch.agent-sends"}
    assert not_applicable(found) == NETWORK | FORMS | SHOWN | LOGINS | others


async def test_a_server_of_ours_passes(store: Path) -> None:
    async with serving(
        store, [agents.echo, agents.careful, agents.slow, agents.broken], ServeSettings(port=0)
    ) as server:  # fmt: skip
        web = server.app.doors["editor"][1].close_streams.__self__  # type: ignore[union-attr]
        assert isinstance(web, WebDoor)
        web.settings = DoorSettings(keep_alive=0.05)  # or the checks would have to wait for it
        subject = Subject(address=server.address + "/editor", roles=ROLES, patience=PATIENCE)
        found = await findings("editor", subject)
    assert failures(found) == {}
    assert set(found) == IDS
    assert not_applicable(found) == PIPES | FORMS | SHOWN | LOGINS | KEYS | set(NEVER)


async def test_a_websocket_address_is_enough(store: Path) -> None:
    async with serving(
        store, [agents.echo, agents.careful, agents.slow, agents.broken], ServeSettings(port=0)
    ) as server:  # fmt: skip
        address = server.address.replace("http://", "ws://") + "/editor"
        subject = Subject(address=address, roles=ROLES, patience=PATIENCE)
        found = await findings("editor", subject, ["editor.v1.prompt", "editor.http.", "editor.custom.agent"])
    assert failures(found) == {}
    passed = {id_ for id_, finding in found.items() if finding.verdict == "pass"}
    assert passed == {
        "editor.v1.prompt", "editor.http.websocket", "editor.http.websocket-initialize", "editor.custom.agent",
    }  # fmt: skip


async def test_forms_commands_and_prints_of_our_agents_pass(tmp_path: Path) -> None:
    subject = Subject(command=command(tmp_path, HERE / "agents.py"), roles=Roles(asking="clerk"), patience=PATIENCE)
    found = await findings("editor", subject, [*FORMS, *SHOWN])
    assert {id_: (finding.verdict, finding.why) for id_, finding in found.items()} == dict.fromkeys(
        FORMS | SHOWN, ("pass", "")
    )


async def test_logins_of_our_agents_pass(tmp_path: Path) -> None:
    subject = Subject(command=command(tmp_path, HERE / "guarded.py"), patience=PATIENCE)
    found = await findings("editor", subject, [*LOGINS, "editor.v1.prompt"])
    assert {id_: finding.verdict for id_, finding in found.items()} == {
        **dict.fromkeys(LOGINS, "pass"), "editor.v1.prompt": "not applicable",
    }  # fmt: skip


async def test_keys_of_ours_pass(store: Path) -> None:
    kept = open_store(store)
    await kept.open()
    secret, record = make_key("conform", ["*"], 0)
    await StoredKeys(kept.keys).put(record)
    await kept.close()
    async with serving(store, [agents.echo], ServeSettings(port=0)) as server:
        headers = {"authorization": f"Bearer {secret}"}
        subject = Subject(address=server.address + "/editor", headers=headers, patience=PATIENCE)
        found = await findings("editor", subject, [*KEYS, "editor.v1.prompt", "editor.http.streams"])
    assert {id_: finding.verdict for id_, finding in found.items()} == dict.fromkeys(
        ["editor.v1.prompt", "editor.http.streams", *KEYS], "pass"
    )


def test_only_what_is_named_with_a_reason_applies_to_none_of_our_wires() -> None:
    by_pipes = NETWORK | FORMS | SHOWN | LOGINS | {"editor.batch.agent-sends"}
    by_network = PIPES | FORMS | SHOWN | LOGINS | KEYS | set(NEVER)
    assert (by_pipes & by_network) - FORMS - SHOWN - LOGINS - KEYS == set(NEVER)
