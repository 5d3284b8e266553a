"""A trace context for tests, and how it has to look behind a mount."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

ID = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACE = {
    "traceparent": f"00-{ID}-00f067aa0ba902b7-01",
    "tracestate": "vendor=1,other=2",
    "baggage": "tenant=acme;p=1,user=eve",
}
MALFORMED = {"traceparent": f"00-{ID.upper()}-00f067aa0ba902b7-01", "tracestate": "vendor=1"}

_REQUEST = re.compile(r"^(GET|POST|PUT|PATCH|DELETE) (\S+) HTTP/1\.1\r\n(.*?)\r\n\r\n", re.DOTALL | re.MULTILINE)


def check_sent_on(sent: Mapping[str, Any], hops: int = 1) -> None:
    """What the remote side got of TRACE: the same trace, and one hop more. Where the tests of this process have loaded
    OpenTelemetry, the parent is the span of the run here, and no longer that of its caller."""
    version, trace, span, flags = sent["traceparent"].split("-")
    assert (version, trace, flags) == ("00", ID, "01")
    assert re.fullmatch("[0-9a-f]{16}", span)
    assert sent["tracestate"] == TRACE["tracestate"]
    assert sent["baggage"] == f"interlingua-hops={hops},{TRACE['baggage']}"


def requests(heads: Iterable[str]) -> list[tuple[str, dict[str, str]]]:
    """The requests in what was read from sockets, piece by piece: method and path, and headers. A head is one piece."""
    found = []
    for method, path, lines in _REQUEST.findall("\n".join(heads)):
        pairs = (line.partition(":") for line in lines.split("\r\n"))
        found.append((f"{method} {path}", {name.strip().lower(): value.strip() for name, _, value in pairs}))
    return found
