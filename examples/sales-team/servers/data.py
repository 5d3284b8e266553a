"""DataServer: the sales table, as an MCP server over stdio. Try it: `python data.py`.

The table is a file, data/sales.csv, so the same question has the same answer every time.
"""

from __future__ import annotations

import csv
import os
from collections import defaultdict
from pathlib import Path
from typing import Any, Literal

from mcp.server.mcpserver import MCPServer

TABLE = Path(__file__).resolve().parent.parent / "data" / "sales.csv"

server = MCPServer("DataServer", log_level="WARNING")


@server.tool()
def query_data(
    quarter: Literal["Q3", "Q4"] | None = None,
    regions: list[str] | None = None,
    clients: list[str] | None = None,
    products: list[str] | None = None,
    status: str = "closed",
) -> dict[str, Any]:
    """Lines of the sales table that fit all filters, with their totals. Only closed sales, unless told otherwise."""
    note("query_data")
    rows = select(quarter=quarter, region=regions, client=clients, product=products, status=status)
    return {
        "filters": {"quarter": quarter, "regions": regions, "clients": clients, "products": products, "status": status},
        "count": len(rows),
        "units": sum(row["units"] for row in rows),
        "revenue": sum(row["revenue"] for row in rows),
        "rows": rows,
    }


@server.tool()
def process_data(
    by: Literal["region", "client", "product", "month"],
    top: int = 5,
    regions: list[str] | None = None,
    clients: list[str] | None = None,
) -> dict[str, Any]:
    """Closed revenue of Q3 and Q4 side by side, and what rose and fell the most."""
    note("process_data")
    totals: dict[str, dict[str, int]] = defaultdict(lambda: {"Q3": 0, "Q4": 0})
    for row in select(region=regions, client=clients, status="closed"):
        totals[row[by]][row["quarter"]] += row["revenue"]
    table: list[dict[str, Any]] = [
        {by: name, **both, "change": both["Q4"] - both["Q3"]} for name, both in sorted(totals.items())
    ]
    changes = sorted(table, key=lambda line: line["change"], reverse=True)
    return {
        "totals": table,
        "revenue": {quarter: sum(both[quarter] for both in totals.values()) for quarter in ("Q3", "Q4")},
        "risen": [line for line in changes if line["change"] > 0][:top],
        "fallen": [line for line in reversed(changes) if line["change"] < 0][:top],
    }


def select(**filters: str | list[str] | None) -> list[dict[str, Any]]:
    """Lines in which every filter that is given holds: a value, or one of several."""
    wanted = {name: [one] if isinstance(one, str) else one for name, one in filters.items() if one is not None}
    with TABLE.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if all(row[name] in those for name, those in wanted.items())]
    return [{**row, "units": int(row["units"]), "revenue": int(row["revenue"])} for row in rows]


def note(*words: str) -> None:
    """Write down that a tool was called, for whoever wants to count."""
    if log := os.environ.get("CALLS_LOG"):
        with Path(log).open("a") as file:
            file.write(" ".join(("DataServer", *words)) + "\n")


if __name__ == "__main__":
    server.run()
