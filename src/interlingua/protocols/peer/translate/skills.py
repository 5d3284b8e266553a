"""Skills: the abilities of a node, as others see them, and how well a query fits each.

An agent is a skill; so is every skill on its card, and every bare id that the owner advertises. Relevance is counted
from words alone, so the same query gives the same ranking on every machine; nothing is learned, and no service is
asked.
"""

from __future__ import annotations

import difflib
import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from ....model.card import AgentCard
from ....model.errors import InvalidRequest

MAX_QUERY = 1000  # characters that count
OURS = ("input_schema", "output_schema", "input_text", "output_text", "via")


class Skill(msgspec.Struct, omit_defaults=True):
    id: str
    name: str
    description: str = ""
    tags: list[str] = []
    examples: list[str] = []
    input_modes: list[str] = []
    output_modes: list[str] = []
    version: str = ""
    limitations: list[dict[str, Any]] = []
    agent: str | None = None  # the agent with the skill; None where the id is only advertised
    # Our addition: schemas of input and output, so that structure survives between two Interlingua nodes.
    input_schema: dict[str, Any] | None = None
    output_schema: dict[str, Any] | None = None
    input_text: str | None = None
    output_text: str | None = None
    via: list[str] | None = None  # the servers that it has come by, this one last

    def view(self) -> dict[str, Any]:
        """Returns the skill for cards and lists: always with the members that clients read without asking."""
        told: dict[str, Any] = {
            "id": self.id,
            "name": self.name,
            "description": self.description,
            "version": self.version,
            "tags": self.tags,
            "examples": self.examples,
            "input_modes": self.input_modes,
            "output_modes": self.output_modes,
            "limitations": self.limitations,
        }
        for name in OURS:
            if (value := getattr(self, name)) is not None:
                told[name] = value
        return told


# -- where they come from -------------------------------------------------------------------------------------


def from_cards(
    cards: Iterable[AgentCard], more: Iterable[Skill] = (), way: Callable[[AgentCard], list[str]] | None = None
) -> list[Skill]:
    """Returns all skills of a node: its agents, then the skills on their cards, then those that are only advertised.

    An id names one skill. Where two agents have a skill of the same id, the later one is `agent/skill`. `way` gives the
    servers that an agent has come by.
    """
    cards = list(cards)
    found: dict[str, Skill] = {}
    for card in cards:
        if card.name not in found:
            found[card.name] = _agent(card)
            found[card.name].via = way(card) if way is not None else None
    for card in cards:
        for listed in card.skills:
            taken = found.get(listed.id)
            if taken is not None and taken.agent == card.name and taken.id == card.name:
                continue  # the agent lists itself
            id_ = listed.id if taken is None else f"{card.name}/{listed.id}"
            told = Skill(id_, listed.name, listed.description, list(listed.tags), list(listed.examples))
            told.input_modes, told.output_modes = _modes(card)
            told.version, told.agent = card.version, card.name
            told.via = way(card) if way is not None else None
            found.setdefault(id_, _structured(told, card))
    for skill in more:
        found.setdefault(skill.id, skill)
    return list(found.values())


def answers(card: AgentCard, wanted: Any) -> bool:
    """Tells if a skill name in a message means an agent: its own name, or a skill that it has."""
    own = {one.id for one in card.skills}
    return wanted in (card.name, card.key) or wanted in own or wanted in {f"{card.name}/{id_}" for id_ in own}


def declared(value: str | Sequence[Any]) -> list[Skill]:
    """Returns the skills that the owner advertises: ids separated by commas, or a list (also as JSON) of ids and skill
    objects."""
    if isinstance(value, str):
        if not value.strip().startswith("["):
            return _once(Skill(id_, id_) for part in value.split(",") if (id_ := part.strip()))
        try:
            value = json.loads(value)
        except ValueError as error:
            raise InvalidRequest(
                f"skills look like a JSON array, but cannot be read: {error}", path="/skills"
            ) from None
    return _once(_declared(entry, f"/skills/{index}") for index, entry in enumerate(value))


def read(value: Any) -> list[Skill]:
    """Returns the valid skills on a remote card."""
    entries = value if isinstance(value, list) else []
    found = []
    for entry in entries:
        try:
            found.append(_declared(entry, "/skills"))
        except InvalidRequest:
            continue  # a peer's mistake in one skill is no reason to know none of the others
    return found


def _agent(card: AgentCard) -> Skill:
    inputs, outputs = _modes(card)
    examples = [example for skill in card.skills if skill.id == card.name for example in skill.examples]
    tags = [tag for skill in card.skills if skill.id == card.name for tag in skill.tags]
    told = Skill(card.name, card.name, card.description, tags, examples, inputs, outputs, card.version, [], card.name)
    return _structured(told, card)


def _structured(skill: Skill, card: AgentCard) -> Skill:
    skill.input_schema, skill.output_schema = card.input, card.output
    skill.input_text, skill.output_text = card.input_text, card.output_text
    return skill


def _modes(card: AgentCard) -> tuple[list[str], list[str]]:
    """Returns the modes of an agent: every agent takes and gives objects; text only where its card names a field for
    it."""
    return (
        ["text", "data"] if card.input_text is not None else ["data"],
        ["text", "data"] if card.output_text is not None else ["data"],
    )


def _declared(entry: Any, path: str) -> Skill:
    if isinstance(entry, str) and entry.strip():
        return Skill(entry.strip(), entry.strip())
    if not isinstance(entry, dict) or not isinstance(entry.get("id") or entry.get("name"), str):
        raise InvalidRequest(f"{path} is the id of a skill, or an object with an id", path=path)
    id_ = str(entry.get("id") or entry.get("name"))
    try:
        known = {name: entry[name] for name in Skill.__struct_fields__ if entry.get(name) is not None}
        return msgspec.convert({**known, "id": id_, "name": known.get("name", id_), "agent": None}, Skill)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"{path}: {error}", path=path) from None


def _once(skills: Iterable[Skill]) -> list[Skill]:
    found: dict[str, Skill] = {}
    for skill in skills:
        found.setdefault(skill.id, skill)
    return list(found.values())


# -- relevance ------------------------------------------------------------------------------------------------

# The tiers do not overlap: any match of the name is worth more than every match of the description.
EXACT_ID, SAME_ID, SAME_NAME = 1.0, 0.95, 0.9
ALL_OF_NAME = (0.7, 0.85)  # every word of the query is in id or name
SOME_OF_NAME = (0.4, 0.69)
ELSEWHERE = (0.01, 0.39)  # tags, description and examples alone

_TAGS, _DESCRIPTION, _EXAMPLES = 1.0, 0.75, 0.6
_WORD, _STEM, _PREFIX, _TYPO = 1.0, 0.9, 0.75, 0.6

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_TOKENS = re.compile(r"[^\W_]+")
_UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]+")  # scripts that put no spaces between words
_ENDINGS = ("izations", "ization", "ations", "ation", "izers", "izer", "izing", "ized", "izes", "ize",
            "ators", "ator", "ating", "ated", "ates", "ate",
            "ings", "ing", "ions", "ion", "ers", "er", "ors", "or", "ies", "ied", "ed", "es", "s", "e",
            "y")  # fmt: skip
_NOISE = frozenset({
    "a", "an", "and", "any", "are", "as", "at", "be", "by", "can", "could", "do", "does", "for", "from", "give", "has",
    "have", "help", "how", "i", "in", "into", "is", "it", "its", "me", "my", "need", "of", "on", "or", "please", "some",
    "someone", "something", "that", "the", "their", "them", "this", "to", "us", "want", "we", "what", "which", "who",
    "will", "with", "would", "you", "your",
})  # fmt: skip


def score(query: str, skill: Skill) -> float:
    """Returns how well a skill fits a query, from 0 (not at all) to 1 (it is the id itself)."""
    asked = query.strip()[:MAX_QUERY]
    if not asked:
        return 0.0
    if asked.casefold() == skill.id.casefold():
        return EXACT_ID
    wanted = _words(asked)
    if not wanted:
        return 0.0
    id_words, name_words = _words(skill.id), _words(skill.name)
    if wanted == id_words:
        return SAME_ID
    if wanted == name_words:
        return SAME_NAME
    title = tuple(dict.fromkeys(id_words + name_words))
    told = tuple(word for word in wanted if word not in _NOISE)
    if not told:  # words that stand in every text say something only where they are a name
        return ALL_OF_NAME[0] if set(wanted) <= set(title) else 0.0
    return _score_of_words(told, skill, name_words, title)


def _score_of_words(
    wanted: tuple[str, ...], skill: Skill, name_words: tuple[str, ...], title: tuple[str, ...]
) -> float:
    """Returns the fit of single words and a skill: best where its name has them all."""
    in_title = [_best(word, title) for word in wanted]
    if all(in_title):
        used = {found for word in wanted for found in name_words or title if _likeness(word, found)}
        share = len(used) / len(name_words or title)
        return _within(ALL_OF_NAME, sum(in_title) / len(in_title) * (0.5 + share / 2))
    elsewhere = [_elsewhere(word, skill) for word in wanted]
    if any(in_title):
        fits = [max(named, other / 2) for named, other in zip(in_title, elsewhere, strict=True)]
        return _within(SOME_OF_NAME, sum(fits) / len(fits))
    return _within(ELSEWHERE, sum(elsewhere) / len(elsewhere)) if any(elsewhere) else 0.0


def search(skills: Iterable[Skill], query: str, limit: int = 10) -> list[dict[str, Any]]:
    """Returns the skills that fit, best first, each with its match_score. Equal scores keep the order of the card."""
    ranked = [(fit, skill) for skill in skills if (fit := score(query, skill)) > 0]
    ranked.sort(key=lambda pair: -pair[0])
    return [{**skill.view(), "match_score": fit} for fit, skill in ranked[: max(0, limit)]]


def _elsewhere(word: str, skill: Skill) -> float:
    return max(
        _TAGS * max((_best(word, _words(tag)) for tag in skill.tags), default=0.0),
        _DESCRIPTION * _best(word, _words(skill.description), typos=False),
        _EXAMPLES * max((_best(word, _words(example), typos=False) for example in skill.examples), default=0.0),
    )


def _within(tier: tuple[float, float], part: float) -> float:
    low, high = tier
    return round(low + (high - low) * min(1.0, part), 3)


@lru_cache(maxsize=4096)
def _words(text: str) -> tuple[str, ...]:
    """Returns the words of a text, in order, each once: TranslateText, translate-text and "translate text" are the
    same."""
    plain = unicodedata.normalize("NFKC", text)
    found: dict[str, None] = {}
    for token in _TOKENS.findall(plain):
        for piece in _CAMEL.split(token):
            word = piece.casefold()
            if _UNSPACED.fullmatch(word) and len(word) > 2:
                found.update(dict.fromkeys(word[at : at + 2] for at in range(len(word) - 1)))
            else:
                found[word] = None
    return tuple(found)


def _best(word: str, among: Sequence[str], *, typos: bool = True) -> float:
    return max((_likeness(word, other, typos) for other in among), default=0.0)


@lru_cache(maxsize=65536)
def _likeness(word: str, other: str, typos: bool = True) -> float:
    if word == other:
        return _WORD
    if min(len(word), len(other)) < 3:
        return 0.0
    if _stem(word) == _stem(other):
        return _STEM
    if other.startswith(word):
        return _PREFIX
    if typos and min(len(word), len(other)) >= 5 and abs(len(word) - len(other)) <= 2 and word[0] == other[0]:
        alike = difflib.SequenceMatcher(None, word, other, autojunk=False)
        if alike.quick_ratio() >= 0.85 and alike.ratio() >= 0.85:
            return _TYPO
    return 0.0


@lru_cache(maxsize=16384)
def _stem(word: str) -> str:
    word = word.replace("ise", "ize").replace("isa", "iza").replace("isi", "izi") if len(word) > 5 else word
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word[: -len(ending)]
    return word


# -- the reference's way of asking ----------------------------------------------------------------------------


def support(skills: Sequence[Skill], skill_id: str, constraints: dict[str, Any] | None = None) -> dict[str, Any]:
    """Returns the support level of a skill under constraints: supported, partial (this node cannot tell) or
    unsupported."""
    asked = constraints or {}
    skill = next((skill for skill in skills if skill.id == skill_id), None)
    level, reason = "supported", None
    applied: dict[str, Any] = {}
    if skill is None:
        level, reason = "unsupported", f"there is no skill {skill_id[:200]!r}"
    else:
        for name, value in asked.items():
            modes = {"input_mode": skill.input_modes, "output_mode": skill.output_modes}.get(name)
            if modes is None or not isinstance(value, str):
                if level == "supported":
                    level, reason = "partial", f"nothing is declared about {name[:80]}"
                continue
            applied[name] = value
            if modes and value not in modes:
                level, reason = "unsupported", f"{name} of this skill is {' or '.join(modes)}, not {value[:80]!r}"
    known = [skill.id for skill in skills]
    return {"skill_id": skill_id, "support_level": level, "reason": reason, "constraints_applied": applied,
            "known_skills": known}  # fmt: skip
