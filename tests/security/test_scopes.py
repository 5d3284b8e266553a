"""Scopes: what they allow, and that every decision says why."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlingua.model.errors import Denied, InvalidRequest
from interlingua.model.run import OWNER, Caller
from interlingua.security.scopes import ACTIONS, Action, may, may_speak_as, require, sees, validate

AGENTS = ["mail", "mail@1.0", "mail@2.0", "mailer@1.0", "org.mail@1.0", "math@1.0"]
SCOPES = [
    *("do:" + action for action in ACTIONS),
    *("agents:mail", "agents:mail@1.0", "agents:ma*", "agents:math", "agents:*", "see:all"),
]

scopes_of = st.lists(st.sampled_from(SCOPES), unique=True).map(tuple)
actions = st.sampled_from(get_args(Action))
agents = st.none() | st.sampled_from(AGENTS)


def caller(*scopes: str) -> Caller:
    return Caller("key:a", "ci", scopes)


@pytest.mark.parametrize(
    ("scopes", "action", "agent", "allowed"),
    [
        (("*",), "admin", "mail@1.0", True),
        ((), "run", "mail@1.0", True),
        ((), "config", None, True),
        ((), "admin", None, False),
        (("see:all",), "admin", None, False),
        (("do:run",), "run", "mail@1.0", True),
        (("do:run",), "read", "mail@1.0", False),
        (("do:admin",), "admin", None, True),
        (("do:admin",), "run", None, False),
        (("agents:mail",), "run", "mail@1.0", True),
        (("agents:mail",), "run", "mail", True),
        (("agents:mail",), "run", "mailer@1.0", False),
        (("agents:mail@1.0",), "run", "mail@1.0", True),
        (("agents:mail@1.0",), "run", "mail@2.0", False),
        (("agents:mail@1.0",), "run", "mail", False),
        (("agents:ma*",), "run", "mailer@1.0", True),
        (("agents:ma*",), "run", "org.mail@1.0", False),
        (("agents:*",), "run", "mail@1.0", True),
        (("agents:mail", "do:read"), "run", "mail@1.0", False),
        (("agents:mail",), "admin", "mail@1.0", False),
        (("agents:mail",), "read", None, True),
        (("agents:mail", "agents:math"), "run", "math@1.0", True),
    ],
)
def test_scopes_allow_what_they_say(scopes: tuple[str, ...], action: Any, agent: str | None, allowed: bool) -> None:
    assert bool(may(caller(*scopes), action, agent)) is allowed


def test_a_decision_says_which_scopes_granted_it() -> None:
    decision = may(caller("do:run", "agents:ma*"), "run", "mail@1.0")
    assert decision.allowed
    assert decision.scopes == ("do:run", "agents:ma*")
    assert "agents:ma*" in decision.reason
    assert "no do: scope limits" in may(caller(), "run").reason


def test_a_refusal_says_who_may_do_what_and_which_scope_is_missing() -> None:
    with pytest.raises(Denied) as refused:
        require(caller("do:read", "do:answer"), "run", "mail@1.0")
    assert refused.value.message == "caller ci may only read, answer; run needs the scope do:run"
    assert refused.value.details == {"action": "run", "agent": "mail@1.0", "missing": ["do:run"]}
    refusal = may(caller("agents:math"), "run", "mail@1.0")
    assert refusal.missing == ("agents:mail", "agents:mail@1.0")
    assert refusal.reason.endswith("mail@1.0 needs the scope agents:mail or agents:mail@1.0")


@given(scopes_of, actions, agents)
def test_any_scope_that_a_refusal_names_as_missing_helps(
    scopes: tuple[str, ...], action: Action, agent: str | None
) -> None:
    refusal = may(caller(*scopes), action, agent)
    for missing in refusal.missing:
        again = may(caller(*scopes, missing), action, agent)
        assert again.allowed or again.missing != refusal.missing
    assert refusal.allowed is (not refusal.missing)


@given(scopes_of, actions, agents, st.data())
def test_the_scopes_that_granted_something_are_enough_and_the_callers_own(
    scopes: tuple[str, ...], action: Action, agent: str | None, data: st.DataObject
) -> None:
    decision = may(caller(*scopes), action, agent)
    if decision:
        assert set(decision.scopes) <= set(scopes)
        assert may(caller(*decision.scopes), action, agent)
    shuffled = data.draw(st.permutations(scopes))
    assert may(caller(*shuffled), action, agent).allowed is decision.allowed


@given(scopes_of, actions, agents)
def test_everything_allows_everything_and_nothing_but_an_express_scope_allows_admin(
    scopes: tuple[str, ...], action: Action, agent: str | None
) -> None:
    assert may(caller(*scopes, "*"), action, agent)
    if may(caller(*scopes), "admin"):
        assert "do:admin" in scopes


def test_callers_see_their_own_unless_a_scope_says_otherwise() -> None:
    assert sees(caller(), "key:a")
    assert not sees(caller(), "key:b")
    assert not sees(caller("do:admin"), "key:b")
    assert sees(caller("see:all"), "key:b")
    assert sees(OWNER, "key:b")


@pytest.mark.parametrize("participant", ["analyst-1", "analyst-1#2"])
def test_speaking_as_an_agent_or_an_instance_of_it_needs_the_scope_of_that_agent(participant: str) -> None:
    decision = may_speak_as(caller("do:run", "as:analyst-1"), participant)
    assert decision.allowed
    assert decision.scopes == ("as:analyst-1",)
    refusal = may_speak_as(caller("do:run", "as:qa-1"), participant)
    assert not refusal
    assert refusal.missing == ("as:analyst-1",)
    assert refusal.reason == f"caller ci may not speak as {participant}; that needs the scope as:analyst-1"


@pytest.mark.parametrize("scopes", [(), ("*",), ("*", "do:admin"), ("agents:analyst-1",), ("as:analyst-10",)])
def test_nothing_but_its_own_scope_lets_anybody_speak_as_an_agent(scopes: tuple[str, ...]) -> None:
    assert not may_speak_as(caller(*scopes), "analyst-1")
    assert not may_speak_as(OWNER, "analyst-1")


def test_a_scope_to_speak_as_somebody_limits_nothing_else() -> None:
    assert may(caller("as:analyst-1"), "run", "mail@1.0")
    assert not sees(caller("as:analyst-1"), "key:b")
    assert validate(["as:analyst-1", "as:QA_2"]) == ("as:analyst-1", "as:QA_2")


@pytest.mark.parametrize(
    ("scope", "hint"),
    [
        ("do:raed", "did you mean do:read"),
        ("run", "did you mean do:run"),
        ("DO:RUN", "did you mean do:run"),
        ("see:everything", "There are"),
        ("agents:", "expected agents:NAME"),
        ("agents:ma*il", "expected agents:NAME"),
        ("agents:ma*@1.0", "expected agents:NAME"),
        ("agents:mail@", "expected agents:NAME"),
        ("do:run\n", "did you mean do:run"),
        ("as:", "expected as:AGENT"),
        ("as:analyst-1#2", "expected as:AGENT"),
        ("as:*", "expected as:AGENT"),
        ("", "There are"),
    ],
)
def test_a_scope_that_means_nothing_is_refused_with_what_would(scope: str, hint: str) -> None:
    with pytest.raises(InvalidRequest, match=hint) as refused:
        validate(["do:read", scope])
    assert refused.value.path == "/1"


def test_valid_scopes_come_back_once_each_in_order() -> None:
    assert validate(["see:all", *SCOPES, "*"]) == ("see:all", *SCOPES[:-1], "*")
    with pytest.raises(InvalidRequest, match="list of texts"):
        validate("do:run")
