"""What we export, read by the published SDK's own validator."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import msgspec
import pytest

from interlingua.protocols.connect import manifest, translate

from ..protocols.connect.test_door import AGENTS

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

VALIDATE = """
import json, sys
from agntcy_acp.manifest.validator import descriptor_from_manifest, validate_agent_descriptor, validate_agent_manifest
told = []
for made, described in json.load(sys.stdin):
    validate_agent_manifest(made, raise_exception=True)
    validate_agent_descriptor(described, raise_exception=True)
    told.append(sorted(descriptor_from_manifest(made)))
print(json.dumps(told))
"""


def test_every_manifest_and_descriptor_of_ours_passes_the_published_validator(acp_sdk: Path) -> None:
    made = [
        [
            manifest.export(
                agent.card,
                url="http://127.0.0.1:8000/connect",
                created_at="2026-01-31T12:00:00Z",
                agent_id=translate.agent_id(agent.card),
                image="docker://ghcr.io/example/agents:1",
            ),
            translate.descriptor(agent.card),
        ]
        for agent in AGENTS
    ]
    text = msgspec.json.encode(made).decode()
    done = subprocess.run(
        [acp_sdk, "-c", VALIDATE], input=text, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert len(told) == len(AGENTS)
    assert all({"capabilities", "config", "input", "output"} <= set(specs) for specs in told), "it found ours"
