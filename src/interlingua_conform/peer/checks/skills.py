"""The query of skills."""

from __future__ import annotations

from typing import Any

from ...base import applies, expect, member, shown
from ...remembering import once
from ...rows import Row, Source, add
from ..driver import Node
from ..shapes import absent, listed, told
from ..suite import check, suite

QUERY = "POST /skills/query"


async def _offered(node: Node) -> None:
    answer = await node.ask("POST", "/skills/query", {"query": "x", "limit": 1})
    promised = await node.has("query_skill") or await node.offers("skills_query")
    applies(promised or not absent(answer), f"{QUERY} is not there, and the card does not name it")


async def _asked(node: Node, **body: Any) -> dict[str, Any]:
    answer = await node.ask("POST", "/skills/query", body)
    applies(answer.status == 200, f"{QUERY} is answered with {told(answer)}")
    return member(answer.json(), "", dict, QUERY)


@once
async def _some(node: Node) -> tuple[str, dict[str, Any]]:
    """A skill of the card, asked for by its name."""
    skills = [
        skill for skill in listed((await node.card()).get("skills"), "skills") if isinstance(skill.get("id"), str)
    ]
    applies(skills, "the card lists no skills")
    id_ = skills[0]["id"]
    return id_, await _asked(node, query=id_, limit=5)


@check("peer.4-1.skills-query")
async def skills_can_be_queried(node: Node) -> None:
    await _offered(node)
    answer = await node.ask("POST", "/skills/query", {"query": "x", "limit": 1})
    expect(answer.status == 200, f"{QUERY} is answered with {told(answer)}")
    member(answer.json(), "", dict, QUERY)


@check("peer.11.capability")
async def whoever_can_be_queried_says_so(node: Node) -> None:
    answer = await node.ask("POST", "/skills/query", {"query": "x", "limit": 1})
    applies(answer.status == 200, f"{QUERY} is answered with {told(answer)}")
    expect(await node.has("query_skill"), f"{QUERY} is there, and capabilities.query_skill is not true")


async def _answer(node: Node) -> Any:
    return await _asked(node, query="x", limit=5)


async def _found(node: Node) -> list[dict[str, Any]]:
    skills = listed((await _some(node))[1], "skills")
    applies(skills, "the query finds no skills")
    return skills


def _up_to_one(score: Any, where: str) -> None:
    fits = isinstance(score, int | float) and not isinstance(score, bool) and 0 <= score <= 1
    expect(fits, f"{where} is {shown(score)}, no number up to 1")


_QUERY, _SKILL = Source(_answer, QUERY), Source(_found, f"a skill of {QUERY}", each=True)
add(
    suite,
    Row("peer.11.response-ok", _QUERY, "ok", bool, equals=True),
    Row("peer.11.response-skills", _QUERY, "skills", list),
    Row("peer.11.skill-id", _SKILL, "id", str),
    Row("peer.11.skill-name", _SKILL, "name", str),
    Row("peer.11.skill-match-score", _SKILL, "match_score", fits=_up_to_one),
)


@check("peer.11.query")
async def the_query_finds_what_it_names(node: Node) -> None:
    id_, body = await _some(node)
    found = [skill.get("id") for skill in listed(body, "skills")]
    expect(id_ in found, f"the query {id_!r} finds {found}")


@check("peer.11.limit")
async def the_limit_is_kept(node: Node) -> None:
    skills = listed((await node.card()).get("skills"), "skills")
    applies(len(skills) > 1, "the card lists fewer than two skills")
    # A letter that is in the names of several, if there is one.
    names = [str(skill.get("name", "")).lower() for skill in skills]
    letter = max("etaoinsrhldcum", key=lambda letter: sum(letter in name for name in names))
    body = await _asked(node, query=letter, limit=1)
    found = listed(body, "skills")
    expect(len(found) <= 1, f"with the limit 1 {len(found)} skills are found")


@check("peer.11.example")
async def the_answer_has_the_shape_of_the_example(node: Node) -> None:
    id_, body = await _some(node)
    skills = listed(body, "skills")
    applies(any(skill.get("id") == id_ for skill in skills), f"the query {id_!r} does not find it")
    expect(body.get("ok") is True, f"ok of {QUERY} is {shown(body.get('ok'))}")
    missing = [name for name in ("id", "name", "match_score") if name not in skills[0]]
    expect(not missing, f"a skill of {QUERY} has no {', '.join(missing)}: {shown(skills[0])}")


@check("peer.11.card-skills")
async def what_is_found_is_on_the_card(node: Node) -> None:
    _, body = await _some(node)
    known = [skill.get("id") for skill in listed((await node.card()).get("skills"), "skills")]
    others = [skill.get("id") for skill in listed(body, "skills") if skill.get("id") not in known]
    expect(not others, f"{QUERY} finds {others}, which the card does not list")
