"""Descriptors outside of servers: in manifests, in files as a directory has them, and the sample of the document."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2
import jsonschema_rs

import interlingua
from interlingua.cli.demo.processes import example

from .test_contract_descriptor import SAMPLE_METADATA, Catalogue, composer, mounted
from .test_door import up


async def command(*args: str | Path, code: int = 0) -> str:
    """A command of ours, as a user gives it; what it prints."""
    source = str(Path(interlingua.__file__).resolve().parents[1])
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-m", "interlingua", *map(str, args)],
        env={**os.environ, "PYTHONPATH": source, "COLUMNS": "200"}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


async def test_an_agents_manifest_has_its_schemas_its_capabilities_and_what_else_describes_it(tmp_path: Path) -> None:
    made = json.loads(await command("manifest", "export", example("mailcomposer"), "--author", "Ada"))
    (extension,) = made["extensions"]
    async with up(tmp_path / "store.db", composer()) as s:
        (agent,) = await s.post("/agents/search", {})
        described = await s.get(f"/agents/{agent['agent_id']}/descriptor")
    assert extension["data"]["acp"] == described["specs"]
    ref = described["metadata"]["ref"]
    assert (made["name"], made["version"], made["authors"]) == (ref["name"], ref["version"], ["Ada"])
    assert made["description"] == described["metadata"]["description"]
    file = tmp_path / "manifest.json"
    file.write_text(json.dumps(made))
    assert (await command("manifest", "check", file)).endswith("this manifest is good\n")
    del extension["data"]["acp"]["input"]
    file.write_text(json.dumps(made))
    assert "/acp/input" in await command("manifest", "check", file, code=1)


async def test_a_file_from_a_directory_is_all_that_is_needed_to_call_an_agent(tmp_path: Path) -> None:
    async with up(tmp_path / "store.db", composer()) as s:
        address = f"{s.server.address}/connect"
        file = tmp_path / "record.json"
        await command("manifest", "export", example("mailcomposer"), "--url", address, "-o", file)

        # From here on, nothing is known but the file.
        data = json.loads(file.read_bytes())["extensions"][0]["data"]
        (place,) = [o["protocol"] for o in data["deployment"]["deployment_options"] if o["type"] == "remote_service"]
        specs = data["acp"]
        input_ = {"message": "To: ada@example.org. Subject: Lunch. At noon?"}
        assert jsonschema_rs.validator_for(specs["input"]).is_valid(input_)
        async with httpx2.AsyncClient(base_url=place["url"], timeout=20) as http:
            body = {"agent_id": place["agent_id"], "input": input_}
            told = (await http.post("/runs/wait", json=body)).json()
            (kind,) = specs["interrupts"]
            assert told["output"]["interrupt_type"] == kind["interrupt_type"]
            assert jsonschema_rs.validator_for(kind["interrupt_payload"]).is_valid(told["output"]["interrupt_payload"])
            answer = {"approved": True}
            assert jsonschema_rs.validator_for(kind["resume_payload"]).is_valid(answer)
            run = told["run"]["run_id"]
            assert (await http.post(f"/runs/{run}", json=answer)).status_code == 200
            output = (await http.get(f"/runs/{run}/wait")).json()["output"]
        assert jsonschema_rs.validator_for(specs["output"]).is_valid(output["result"])
        assert output["result"] == {"message": "Sent."}


def text(description: str, **more: Any) -> dict[str, Any]:
    return {"type": "string", "description": description, **more}


def object_(description: str, required: list[str] | None = None, **members: Any) -> dict[str, Any]:
    made: dict[str, Any] = {"type": "object", "description": description, "properties": members}
    return made | ({"required": required} if required else {})


# The document's sample in full: its structure and its names, in words of our own.
SAMPLE = {
    "metadata": SAMPLE_METADATA,
    "specs": {
        "capabilities": {"threads": True, "interrupts": True, "callbacks": True},
        "input": object_("What goes in", message=text("What the user said last")),
        "output": object_("What comes out", message=text("What the agent says next")),
        "config": object_("How it writes", style={"type": "string", "enum": ["formal", "friendly"]}),
        "thread_state": object_(
            "What it remembers",
            messages={"type": "array", "description": "All that was said", "items": text("One message")},
        ),
        "interrupts": [
            {
                "interrupt_type": "mail_send_approval",
                "interrupt_payload": object_(
                    "The mail that shall be sent",
                    ["subject", "body", "recipients"],
                    subject=text("What it is about", title="Subject"),
                    body=text("What it says", title="Body"),
                    recipients={
                        "title": "Recipients", "type": "array", "items": {"type": "string", "format": "email"},
                    },
                ),
                "resume_payload": object_(
                    "Whether it may be sent",
                    ["approved"],
                    reason=text("Why, or why not", title="Reason"),
                    approved={"title": "Decision", "type": "boolean", "description": "True to send it"},
                ),
            }
        ],
    },
}  # fmt: skip


async def test_the_full_sample_is_read_and_all_that_is_in_it_comes_out_unchanged(tmp_path: Path) -> None:
    file = tmp_path / "mailcomposer.json"
    file.write_text(json.dumps(SAMPLE))
    assert (await command("manifest", "check", file)).endswith("this descriptor is good\n")
    async with mounted(Catalogue(SAMPLE)) as agents, up(tmp_path / "store.db", *agents) as s:
        (found,) = await s.post("/agents/search", {})
        written = await s.get(f"/agents/{found['agent_id']}/descriptor")
    # Our own server streams the agent's output, whoever serves the agent: that is all that it adds.
    assert written["specs"]["capabilities"].pop("streaming") == {"values": True, "custom": True}
    del written["specs"]["custom_streaming_update"]
    assert written == SAMPLE
