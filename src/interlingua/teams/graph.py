"""A team as a graph: agents with their delegation and oversight; as Mermaid or as SVG.

The SVG is laid out here, in layers from the entry agent downwards, which is enough for teams that a person can read.
Delegation is drawn with solid lines, oversight with dashed ones, from the overseer to the agent that it oversees.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal
from xml.sax.saxutils import escape

import msgspec

from ..model.team.manifest import ORCHESTRATOR, Team, entry_of

Kind = Literal["delegates", "oversees"]


class Edge(msgspec.Struct, frozen=True):
    source: str
    target: str
    kind: Kind
    note: str = ""  # when it is taken


def nodes_of(team: Team) -> list[str]:
    """Returns the nodes of the graph: the orchestrator, the agents, and all participants that an agent names."""
    named = (id_ for edge in edges_of(team) for id_ in (edge.source, edge.target))
    return list(dict.fromkeys([*([ORCHESTRATOR] if entry_of(team) else []), *team.manifests, *named]))


def edges_of(team: Team) -> list[Edge]:
    found: list[Edge] = []
    if (entry := entry_of(team)) is not None:
        found.append(Edge(ORCHESTRATOR, entry.id, "delegates", "the entry agent"))
    for manifest in team.manifests.values():
        for target in dict.fromkeys(manifest.allowed_agents):
            rule = manifest.delegate_rules.get(target)
            found.append(Edge(manifest.id, target, "delegates", rule.when_to_delegate if rule else ""))
        if manifest.overseer is not None:
            found.append(Edge(manifest.overseer, manifest.id, "oversees"))
    return found


# -- Mermaid --------------------------------------------------------------------------------------------------


def mermaid(team: Team) -> str:
    nodes = nodes_of(team)
    names = {id_: f"n{index}" for index, id_ in enumerate(nodes)}  # some ids are words of Mermaid, such as `end`
    lines = ["flowchart TD"]
    for id_ in nodes:
        left, right = ("[", "]") if id_ in team.manifests else ("([", "])")
        lines.append(f'    {names[id_]}{left}"{_mermaid_text(id_)}"{right}')
    for edge in edges_of(team):
        arrow = "-->" if edge.kind == "delegates" else "-. oversees .->"
        lines.append(f"    {names[edge.source]} {arrow} {names[edge.target]}")
    return "\n".join(lines) + "\n"


def _mermaid_text(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_. -]", lambda match: f"#{ord(match[0])};", text)


# -- SVG ------------------------------------------------------------------------------------------------------

_HEIGHT, _GAP, _LAYER, _MARGIN = 40, 36, 104, 32  # of a box, between boxes, from layer to layer, around
_STYLE = """
    svg { background: #ffffff; font: 14px system-ui, sans-serif; }
    .agent rect { fill: #eef2f7; stroke: #51607a; } .other rect { fill: #ffffff; stroke: #8a94a6; }
    text { fill: #1c2430; text-anchor: middle; dominant-baseline: central; }
    .edge { fill: none; stroke-width: 1.5; } .delegates { stroke: #2b5fb3; } .oversees { stroke: #a3441f; }
    .oversees { stroke-dasharray: 6 4; } .head-delegates { fill: #2b5fb3; } .head-oversees { fill: #a3441f; }
    @media (prefers-color-scheme: dark) {
      svg { background: #14181f; } text { fill: #e4e9f1; } .agent rect { fill: #252d3a; stroke: #93a1b8; }
      .other rect { fill: #14181f; } .delegates { stroke: #7fb0ff; } .oversees { stroke: #ff9b73; }
      .head-delegates { fill: #7fb0ff; } .head-oversees { fill: #ff9b73; }
    }"""


class Box(msgspec.Struct, frozen=True):
    """The place of a node: the middle of the box, and its width."""

    x: float
    y: float
    width: float
    layer: int


def svg(team: Team) -> str:
    edges, boxes = edges_of(team), layout(team)
    right = max((box.x + box.width / 2 for box in boxes.values()), default=200) + _MARGIN
    bottom = max((box.y for box in boxes.values()), default=0) + _HEIGHT / 2 + _MARGIN
    # Lines between boxes that are not in neighbouring layers bend out to the right.
    right += 56
    width, height = max(round(right), 300), round(bottom) + 40
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'role="img">',
        f"  <title>{_xml(f'The team {team.name}')}</title>",
        f"  <style>{_STYLE}\n  </style>",
        "  <defs>",
        *(f"    {_marker(kind)}" for kind in ("delegates", "oversees")),
        "  </defs>",
    ]
    pairs = {(edge.source, edge.target) for edge in edges} | {(edge.target, edge.source) for edge in edges}
    crowded = {pair for pair in pairs if sum({pair[0], pair[1]} == {e.source, e.target} for e in edges) > 1}
    for edge in edges:
        # Two lines between the same boxes keep apart, and arrows of both kinds do not meet in one point.
        bend = (18 if edge.kind == "oversees" else -18) if (edge.source, edge.target) in crowded else 0
        bend = bend or (14 if edge.kind == "oversees" else 0)
        lines.append(f"  {_line(edge, boxes[edge.source], boxes[edge.target], bend)}")
    lines.extend(f"  {_box(id_, box, id_ in team.manifests)}" for id_, box in boxes.items())
    lines.extend(f"  {one}" for one in _legend(height - 28))
    return "\n".join([*lines, "</svg>"]) + "\n"


def layout(team: Team) -> dict[str, Box]:
    """Returns a place for every node. No two boxes touch."""
    nodes, edges = nodes_of(team), edges_of(team)
    layers = _layers(nodes, edges)
    for _ in range(4):  # each pass brings boxes nearer to those that they are joined with, so that fewer lines cross
        _untangle(layers, edges)
    widths = {id_: max(80.0, 8.2 * len(_cut(id_)) + 28) for id_ in nodes}
    full = max((sum(widths[id_] + _GAP for id_ in layer) for layer in layers), default=0)
    places: dict[str, Box] = {}
    for depth, layer in enumerate(layers):
        x = _MARGIN + (full - sum(widths[id_] + _GAP for id_ in layer)) / 2 + _GAP / 2
        for id_ in layer:
            places[id_] = Box(x + widths[id_] / 2, _MARGIN + _HEIGHT / 2 + depth * _LAYER, widths[id_], depth)
            x += widths[id_] + _GAP
    return places


def _layers(nodes: list[str], edges: list[Edge]) -> list[list[str]]:
    """Returns the layers of nodes, by their shortest path from a start. Delegation leads downwards; an overseer that
    gets no delegation stands one layer above the agent that it oversees, where there is room, else at the top."""
    below = _delegations(nodes, edges)
    depth: dict[str, int] = {}
    for start in _starts(nodes, edges, below):
        _spread(start, below, depth)
    for id_ in nodes:
        if id_ not in depth:
            seen = [depth[edge.target] for edge in edges if edge.source == id_ and edge.target in depth]
            depth[id_] = max(min(seen, default=0) - 1, 0)
    return [[id_ for id_ in nodes if depth[id_] == level] for level in sorted(set(depth.values()))]


def _delegations(nodes: list[str], edges: list[Edge]) -> dict[str, list[str]]:
    """Returns the agents that each one may delegate to, besides itself."""
    below: dict[str, list[str]] = {id_: [] for id_ in nodes}
    for edge in edges:
        if edge.kind == "delegates" and edge.source != edge.target:
            below[edge.source].append(edge.target)
    return below


def _starts(nodes: list[str], edges: list[Edge], below: dict[str, list[str]]) -> list[str]:
    """Returns the nodes to begin with: first those without incoming edges, then those in circles."""
    reached = {target for targets in below.values() for target in targets}
    only_oversee = {edge.source for edge in edges if edge.kind == "oversees" and not below[edge.source]}
    free = [id_ for id_ in nodes if id_ not in reached and id_ not in only_oversee]
    return [*free, *(id_ for id_ in nodes if id_ in reached)]


def _spread(start: str, below: dict[str, list[str]], depth: dict[str, int]) -> None:
    if start in depth:
        return
    depth[start] = 0
    row = [start]
    while row:
        following = []
        for id_ in row:
            for target in below[id_]:
                if target not in depth:
                    depth[target] = depth[id_] + 1
                    following.append(target)
        row = following


def _untangle(layers: list[list[str]], edges: list[Edge]) -> None:
    joined: dict[str, list[str]] = {}
    for edge in edges:
        joined.setdefault(edge.source, []).append(edge.target)
        joined.setdefault(edge.target, []).append(edge.source)
    for layer in layers:
        place = {id_: (index + 0.5) / len(row) for row in layers for index, id_ in enumerate(row)}
        others = {id_: [place[other] for other in joined.get(id_, []) if other not in layer] for id_ in layer}
        layer.sort(key=lambda id_: sum(others[id_]) / len(others[id_]) if others[id_] else place[id_])


def _line(edge: Edge, a: Box, b: Box, bend: float) -> str:
    half = _HEIGHT / 2
    if a == b:
        x, y = a.x + a.width / 2, a.y
        way = f"M {x:.1f} {y - 8:.1f} c 34 -18 34 34 4 16"
    elif a.layer == b.layer:
        side = 1 if b.x > a.x else -1
        x1, x2 = a.x + side * a.width / 4, b.x - side * b.width / 4
        down = half if edge.kind == "oversees" else -half
        lift = down * (1.9 + abs(x2 - x1) / 400)
        way = f"M {x1:.1f} {a.y + down:.1f} Q {(x1 + x2) / 2:.1f} {a.y + lift:.1f} {x2:.1f} {b.y + down:.1f}"
    else:
        side = 1 if b.y > a.y else -1
        y1, y2 = a.y + side * half, b.y - side * half
        x1, x2 = a.x + bend, b.x + bend
        if abs(a.layer - b.layer) > 1:  # around the boxes between
            out = max(x1, x2) + 24 * abs(a.layer - b.layer) + abs(bend)
            near, far = y1 + side * half, y2 - side * half
            way = f"M {x1:.1f} {y1:.1f} C {out:.1f} {near:.1f} {out:.1f} {far:.1f} {x2:.1f} {y2:.1f}"
        else:
            middle = (y1 + y2) / 2
            way = f"M {x1:.1f} {y1:.1f} C {x1:.1f} {middle:.1f} {x2:.1f} {middle:.1f} {x2:.1f} {y2:.1f}"
    verb = "may delegate to" if edge.kind == "delegates" else "oversees"
    told = f"{edge.source} {verb} {edge.target}" + (f": {edge.note}" if edge.note else "")
    return f'<path class="edge {edge.kind}" d="{way}" marker-end="url(#{edge.kind})"><title>{_xml(told)}</title></path>'


def _box(id_: str, box: Box, is_agent: bool) -> str:
    x, y, kind = box.x - box.width / 2, box.y - _HEIGHT / 2, "agent" if is_agent else "other"
    shape = f'<rect x="{x:.1f}" y="{y:.1f}" width="{box.width:.1f}" height="{_HEIGHT}" rx="{8 if is_agent else 20}"/>'
    text = f'<text x="{box.x:.1f}" y="{box.y:.1f}">{_xml(_cut(id_))}</text>'
    return f'<g class="{kind}"><title>{_xml(id_)}</title>{shape}{text}</g>'


def _legend(y: float) -> Iterable[str]:
    for x, kind, text in ((_MARGIN, "delegates", "may delegate to"), (_MARGIN + 180, "oversees", "oversees")):
        yield f'<path class="edge {kind}" d="M {x} {y:.1f} h 30" marker-end="url(#{kind})"/>'
        yield f'<text x="{x + 40}" y="{y:.1f}" style="text-anchor: start">{text}</text>'


def _marker(kind: str) -> str:
    return (
        f'<marker id="{kind}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" '
        f'orient="auto-start-reverse"><path class="head-{kind}" d="M 0 0 L 10 5 L 0 10 z"/></marker>'
    )


def _cut(text: str) -> str:
    return text if len(text) <= 40 else text[:39] + "…"


def _xml(text: str) -> str:
    """Returns text for XML, without the characters that XML cannot hold."""
    return escape(re.sub("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", text), {'"': "&quot;"})
