"""The team without a model: a function for each manifest. With `--model provider:name` a model thinks instead."""

from typing import Any

import interlingua as il


@il.agent(name="pm-1", asks=[il.AskText])
async def plan(ctx: il.Context[None, None], text: str) -> str:
    """Plans the work, and reports what was verified."""
    spec = await ctx.tool("DocsServer", "read_file", {"name": "project-spec.md"})
    asked = await ctx.ask(
        il.AskText("Do you want regional breakdowns, client segments, or the overall trend?"),
        attachments=[il.ToolResultPart("read_file", spec, "DocsServer")],
    )
    clients = {"quarter": "Q4", "clients": ["ClientA", "ClientB"]}
    lost = await ctx.tool("DataServer", "query_data", clients)

    async def clarify(message: il.Message) -> str:
        return "Yes, and tell whether it was the same in the quarter before."

    found = await ctx.delegate(
        "analyst-1",
        f"{text}. The user said: {asked.text} Work out what ClientA and ClientB cost us, and what rose and fell most.",
        attachments=[
            il.ToolResultPart("query_data", lost, "DataServer"),
            il.ToolResultPart("read_file", spec, "DocsServer"),
            "ClientA and ClientB left; promotions in December; product X came in October.",
        ],
        reason="It takes numbers, and the user has said which.",
        on_message=clarify,
    )
    return f"Verified:\n{found['text']}"


@il.agent(name="analyst-1")
async def analyse(ctx: il.Context[None, None], text: str) -> str:
    """Works out the numbers, and has them verified."""
    regions = await ctx.tool("DataServer", "process_data", {"by": "region"})
    products = await ctx.tool("DataServer", "process_data", {"by": "product", "top": 5})
    clients = await ctx.tool("DataServer", "process_data", {"by": "client"})
    await ctx.send("pm-1", "Some clients order in bursts. Shall I look into that as well?")
    further = (await ctx.receive(sender="pm-1")).text

    report = "\n".join(
        [
            "Revenue by region: " + told(regions["totals"], "region"),
            "Lost with clients: " + told(clients["fallen"], "client"),
            "Products that rose: " + told(products["risen"], "product"),
            "Products that fell: " + told(products["fallen"], "product"),
        ]
    )

    async def explain(verdict: il.ReviewVerdict) -> str:
        return "Confirmed: only lines whose status is closed; the sums come from process_data."

    await ctx.delegate(
        "qa-1",
        "The analysis is done; please verify the numbers and whether they answer the question.",
        attachments=[il.DataPart({"regions": regions["totals"], "note": further})],
        output=report,
        on_inquiry=explain,
    )
    return report


@il.agent(name="qa-1")
async def verify(ctx: il.Context[None, None], text: str) -> Any:
    """Asks once where the numbers come from, and approves what adds up."""
    if ctx.review is None:
        return "I verify what others propose."
    proposal = ctx.review
    if not proposal.earlier:
        await ctx.tool("SummaryServer", "create_summary", {"title": "First look", "points": [proposal.summary or "–"]})
        inquiry = "The total for Europe looks low. Which lines are in it?"
        return il.ReviewVerdict("inquire", proposal.result_hash, inquiry=inquiry)
    return il.ReviewVerdict("approve", proposal.result_hash, reason="Verified. The numbers add up.")


def told(lines: list[dict[str, Any]], name: str) -> str:
    return "; ".join(f"{line[name]} {line['Q3']} → {line['Q4']} ({line['change']:+})" for line in lines)
