"""Writes mails over several turns, and sends none without your consent.

interlingua run examples/mailcomposer.py --thread lunch "To: ada@example.org. Shall we meet at noon?"
interlingua run examples/mailcomposer.py --thread lunch --config '{"style": "friendly"}' "Subject: Lunch"
"""

import re
from dataclasses import dataclass, field
from typing import Annotated, Literal

import msgspec

import interlingua as il

Email = Annotated[str, msgspec.Meta(extra_json_schema={"format": "email"})]  # so that clients can offer a fitting field


@dataclass
class Chat:
    """The state of a thread: everything that was said to the agent, and how much of it is in mails already."""

    messages: list[str] = field(default_factory=list)
    mailed: int = 0


@dataclass
class Style:
    style: Literal["formal", "friendly"] = "formal"


@dataclass
class Draft:
    to: list[str]
    subject: str
    body: str


@dataclass
class Reply:
    message: str


class MailSendApproval(il.Question[il.Verdict]):
    """Shall this mail be sent?"""

    subject: str
    body: str
    recipients: list[Email]


ADDRESS = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
SUBJECT = re.compile(r"\bsubject:\s*([^.\n]+)\.?", re.IGNORECASE)
TO = re.compile(rf"\bto:\s*{ADDRESS.pattern}(?:,\s*{ADDRESS.pattern})*\.?", re.IGNORECASE)


def write_draft(said: list[str], style: str) -> Draft:
    """What was said becomes a mail: its addresses, its subject, and the rest as text."""
    text = [line for part in said if (line := SUBJECT.sub("", TO.sub("", part)).strip())]
    hello, goodbye = ("Dear reader,", "Yours sincerely") if style == "formal" else ("Hi!", "Cheers")
    subjects = SUBJECT.findall("\n".join(said))
    return Draft(
        to=list(dict.fromkeys(ADDRESS.findall("\n".join(said)))),
        subject=subjects[-1].strip() if subjects else "",
        body="\n\n".join([hello, *text, goodbye]),
    )


@il.agent(name="org.agntcy.mailcomposer", version="0.0.1", asks=[MailSendApproval])
async def compose(message: str, ctx: il.Context[Chat, Style]) -> Reply:
    """Composes a mail over several turns, and sends it when you approve."""
    ctx.state.messages.append(message)
    draft = await ctx.step("draft", write_draft, ctx.state.messages[ctx.state.mailed :], ctx.config.style)
    if not draft.to:
        return Reply(message="Who is it for? Tell me an address.")
    if not draft.subject:
        return Reply(message="What is it about? Write “Subject: …”.")
    verdict = await ctx.ask(MailSendApproval(subject=draft.subject, body=draft.body, recipients=draft.to))
    if verdict.approved:
        ctx.state.mailed = len(ctx.state.messages)  # the next message begins another mail
    return Reply(message="Sent." if verdict.approved else "Not sent.")
