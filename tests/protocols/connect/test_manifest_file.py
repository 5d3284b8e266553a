"""Agent manifests: what we export is good, and every way of being wrong is found, with its place."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest

import interlingua as il
from interlingua.protocols.connect import manifest, translate

from .test_door import AGENTS, mailer

URL = "https://agents.example.org/connect"


def made(**options: Any) -> dict[str, Any]:
    """A manifest as it comes out of a file."""
    document = manifest.export(mailer.card, url=URL, created_at="2026-01-31T12:00:00Z", **options)
    copied: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(document))
    return copied


def problems(document: Any) -> dict[str, str]:
    found = manifest.problems(document)
    assert len({problem.path for problem in found}) == len(found), "one per place, in these tests"
    return {problem.path: problem.message for problem in found}


DATA = "/extensions/0/data"


@pytest.mark.parametrize("name", [manifest.EXTENSION, manifest.OLD_EXTENSION])
def test_what_we_export_passes_our_check_under_both_names(name: str) -> None:
    for agent in AGENTS:
        document = manifest.export(agent.card, url=URL, created_at="2026-01-31T12:00:00Z", extension=name)
        assert manifest.problems(document) == []
        assert document["extensions"][0]["name"] == name
        assert document["locators"], "published servers read the first one without looking"
        data = document["extensions"][0]["data"]
        assert data["acp"] == translate.descriptor(agent.card)["specs"]


def test_an_export_says_where_the_agent_is_served_and_by_which_image() -> None:
    document = made(agent_id="some-id", image="ghcr.io/example/mailer:1", authors=["Ada"])
    server, image = document["extensions"][0]["data"]["deployment"]["deployment_options"]
    assert server["protocol"] == {"type": "ACP", "url": URL, "agent_id": "some-id"}
    assert image == {"type": "docker", "name": "image", "image": "ghcr.io/example/mailer:1"}
    assert document["locators"] == [{"type": "docker-image", "url": "ghcr.io/example/mailer:1"}]
    assert document["authors"] == ["Ada"]


def test_an_agent_can_say_in_its_metadata_what_code_cannot_know() -> None:
    said = {
        "authors": ["Ada"],
        "skills": [{"class_uid": 10201, "class_name": "Text completion"}],
        "locators": [{"type": "source-code", "url": "https://git.example.org/mail.git"}],
        "env_vars": [{"name": "SMTP", "desc": "The mail server", "required": True}],
        "agent_deps": [{"name": "speller", "ref": {"name": "org.example.speller", "version": "1.0.0"}}],
        "annotations": {"team": "post"},
    }

    @il.agent(metadata={"manifest": said})
    async def mail(text: str) -> str:
        return text

    document = manifest.export(mail.card, url=URL, created_at="2026-01-31T12:00:00Z")
    assert manifest.problems(document) == []
    deployment = document["extensions"][0]["data"]["deployment"]
    assert deployment["env_vars"] == said["env_vars"]
    assert deployment["agent_deps"] == said["agent_deps"]
    assert [document[name] for name in ("authors", "skills", "locators", "annotations")] == [
        said[name] for name in ("authors", "skills", "locators", "annotations")
    ]


def test_all_three_ways_of_deploying_are_known_with_their_fields() -> None:
    document = made()
    deployment = document["extensions"][0]["data"]["deployment"]
    deployment["deployment_options"] = [
        {
            "type": "source_code",
            "name": "graph",
            "url": "github.com/example/mail.git//agents?ref=main",
            "framework_config": {"framework_type": "langgraph", "graph": "mail.app:graph"},
        },
        {
            "type": "source_code",
            "name": "flow",
            "url": "file:///agents/mail",
            "framework_config": {
                "framework_type": "llamaindex",
                "path": "mail:flow",
                "interrupts": {"approval": {"interrupt_ref": "mail:Ask", "resume_ref": "mail:Answer"}},
            },
        },
        {
            "type": "remote_service",
            "name": "server",
            "protocol": {
                "type": "ACP",
                "url": URL,
                "agent_id": "a",
                "authentication": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
        {"type": "docker", "name": "image", "image": "ghcr.io/example/mail:1"},
    ]
    deployment["env_vars"] = [{"name": "A", "desc": "first", "required": False, "defaultValue": "x"}]
    deployment["agent_deps"] = [
        {
            "name": "speller",
            "ref": {"name": "org.example.speller", "version": "1.0.0", "url": "https://example.org/speller.json"},
            "deployment_option": "server",
            "env_var_values": {"name": "speller", "values": {"A": "y"}, "env_deps": [{"values": {"B": "z"}}]},
        }
    ]
    assert problems(document) == {}
    options = deployment["deployment_options"]
    del options[0]["framework_config"]["graph"]
    options[1]["framework_config"]["interrupts"]["approval"] = {"interrupt_ref": 3}
    options[2]["protocol"]["type"] = "A2A"
    del options[3]["image"]
    options.append({"type": "kubernetes"})
    deployment["env_vars"].append({"name": "A", "desc": "again"})
    deployment["agent_deps"][0]["env_var_values"]["env_deps"][0]["values"]["B"] = 3
    at = f"{DATA}/deployment"
    assert problems(document) == {
        f"{at}/deployment_options/0/framework_config/graph": "is missing",
        f"{at}/deployment_options/1/framework_config/interrupts/approval/interrupt_ref": "must be a text, and is 3",
        f"{at}/deployment_options/1/framework_config/interrupts/approval/resume_ref": "is missing",
        f"{at}/deployment_options/2/protocol/type": 'may be ACP, and is "A2A"',
        f"{at}/deployment_options/3/image": "is missing",
        f"{at}/deployment_options/4/type": 'may be source_code, remote_service, docker, and is "kubernetes"',
        f"{at}/env_vars/1/name": "'A' is there twice",
        f"{at}/agent_deps/0/env_var_values/env_deps/0/values/B": "must be a text, and is 3",
    }


def test_everything_that_is_wrong_is_told_at_once() -> None:
    document = made()
    del document["version"]
    document["locators"] = []
    document["authors"] = "Ada"
    document["created_at"] = "yesterday"
    document["skills"] = [{"class_uid": 1}, {"class_name": "no uid"}, "mail"]
    document["extensions"][0]["data"]["acp"]["input"] = {"type": "objekt"}
    document["extensions"][0]["data"]["deployment"]["deployment_options"] = []
    found = problems(document)
    assert set(found) == {
        "/version", "/locators", "/authors", "/created_at", "/skills/1/class_uid", "/skills/2", f"{DATA}/acp/input",
        f"{DATA}/deployment/deployment_options",
    }  # fmt: skip
    assert found["/version"] == "is missing"
    assert found["/locators"] == "is empty"
    assert found["/authors"] == 'must be a list, and is "Ada"'
    assert "not a valid JSON Schema" in found[f"{DATA}/acp/input"]


def _deny_threads(specs: dict[str, Any]) -> None:
    specs["capabilities"]["threads"] = False


def _no_update(specs: dict[str, Any]) -> None:
    del specs["custom_streaming_update"]


def _no_interrupts(specs: dict[str, Any]) -> None:
    specs["interrupts"] = []


def _deny_interrupts(specs: dict[str, Any]) -> None:
    specs["capabilities"]["interrupts"] = False


def _twice(specs: dict[str, Any]) -> None:
    specs["interrupts"] *= 2


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (_deny_threads, "thread_state"),
        (_no_update, "custom_streaming_update"),
        (_no_interrupts, "lists none"),
        (_deny_interrupts, "capabilities.interrupts is false"),
        (_twice, "'mail_send_approval' is there twice"),
    ],
)
def test_rules_between_fields_are_checked_in_every_form(spoil: Any, said: str) -> None:
    document = made()
    specs = document["extensions"][0]["data"]["acp"]
    spoil(specs)
    described = translate.descriptor(mailer.card) | {"specs": specs}
    earlier = {**described, "deployment": document["extensions"][0]["data"]["deployment"]}
    for whole, path in ((document, f"{DATA}/acp"), (described, "/specs"), (earlier, "/specs")):
        found = problems(whole)
        assert list(found) == [path]
        assert said in found[path]


@pytest.mark.parametrize("place", ["input", "output", "config", "custom_streaming_update", "thread_state"])
@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "objekt"}, "not a valid JSON Schema"),
        ({"type": "object", "properties": None}, "not a valid JSON Schema"),
        ({"$ref": "https://schemas.example.org/any.json"}, "refers to"),
        ({"$ref": "#/$defs/gone"}, "not a valid JSON Schema"),
    ],
)
def test_schemas_are_checked_and_nothing_is_fetched(place: str, schema: Any, said: str) -> None:
    described = copy.deepcopy(translate.descriptor(mailer.card))
    described["specs"][place] = schema
    found = problems(described)
    assert list(found) == [f"/specs/{place}"]
    assert said in found[f"/specs/{place}"]


def test_schemas_of_interrupts_are_checked_too() -> None:
    described = copy.deepcopy(translate.descriptor(mailer.card))
    described["specs"]["interrupts"][0]["resume_payload"] = {"required": "all"}
    described["specs"]["interrupts"].append({"interrupt_type": "x", "interrupt_payload": True})
    assert set(problems(described)) == {
        "/specs/interrupts/0/resume_payload", "/specs/interrupts/1/interrupt_payload",
        "/specs/interrupts/1/resume_payload",
    }  # fmt: skip


def test_the_earlier_form_and_a_bare_descriptor_are_known_for_what_they_are() -> None:
    described = translate.descriptor(mailer.card)
    assert manifest.form_of(described) == "descriptor"
    assert problems(described) == {}
    dependency = {"name": "speller", "ref": {"name": "org.example.speller", "version": "1.0.0"}}
    earlier = {
        **described,
        "deployment": {"deployment_options": [{"type": "docker", "image": "mail"}], "dependencies": [dependency]},
    }
    assert manifest.form_of(earlier) == "earlier manifest"
    assert problems(earlier) == {}
    del dependency["ref"]
    assert problems(earlier) == {"/deployment/dependencies/0/ref": "is missing"}
    assert manifest.form_of(made()) == "manifest"


def test_a_record_without_our_extension_is_no_manifest_and_other_extensions_are_let_be() -> None:
    document = made()
    other = {"name": "schema.oasf.agntcy.org/features/else", "data": {"anything": 1}}
    document["extensions"].insert(0, other)
    assert problems(document) == {}
    document["extensions"] = [other]
    assert list(problems(document)) == ["/extensions"]


@pytest.mark.parametrize(
    "document", [None, [], 3, "manifest", {}, {"specs": 3}, {"extensions": {}}, {"extensions": [3]}]
)
def test_what_is_no_manifest_at_all_is_told_without_a_crash(document: Any) -> None:
    assert manifest.problems(document)


def test_null_is_as_good_as_left_out() -> None:
    described = copy.deepcopy(translate.descriptor(mailer.card))
    described["specs"] |= {"thread_state": None, "interrupts": None}
    described["specs"]["capabilities"] |= {"threads": False, "interrupts": None}
    described["metadata"]["ref"]["url"] = None
    assert problems(described) == {}
