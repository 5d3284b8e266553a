"""Questions over the control API: listed, followed, answered, withdrawn."""

from __future__ import annotations

import json
from pathlib import Path

from .agents import client, serve


async def test_a_question_is_listed_answered_and_gone(store: Path) -> None:
    async with serve(store) as server, client(server) as http:
        run = (await http.post("/runs", json={"agent": "asker", "input": "go"})).json()
        await http.get(f"/runs/{run['id']}/wait")
        page = (await http.get("/questions")).json()
        (question,) = page["questions"]
        assert (question["run"], question["prompt"]) == (run["id"], "Really go?")
        bad = await http.post(f"/questions/{question['id']}/answer", json={"value": {"approved": "yes"}})
        assert (bad.status_code, bad.json()["error"]["path"]) == (400, "/approved")
        good = await http.post(f"/questions/{question['id']}/answer", json={"value": {"approved": True}})
        assert (good.json()["state"], good.json()["door"]) == ("answered", "control")
        late = await http.post(f"/questions/{question['id']}/answer", json={"value": {"approved": False}})
        assert (late.status_code, late.json()["error"]["code"]) == (409, "already_answered")
        assert (await http.get("/questions")).json()["questions"] == []
        (closed,) = (await http.get(f"/questions?state=any&cursor={page['cursor']}")).json()["questions"]
        assert closed["answer"] == {"approved": True}


async def test_a_withdrawn_question_ends_in_the_agent(store: Path) -> None:
    async with serve(store) as server, client(server) as http:
        run = (await http.post("/runs", json={"agent": "asker", "input": "go"})).json()
        (question,) = (await http.get(f"/runs/{run['id']}/wait")).json()["questions"]
        answer = await http.post(f"/questions/{question['id']}/withdraw", json={"reason": "moot"})
        assert answer.json()["state"] == "withdrawn"
        done = (await http.get(f"/runs/{run['id']}/wait")).json()
        assert done["status"] == "failed"
        assert "moot" in done["error"]["message"]


async def test_questions_are_followed_as_they_change(store: Path) -> None:
    async with serve(store) as server, client(server) as http:
        seen = []
        async with http.stream("GET", "/questions", headers={"accept": "text/event-stream"}) as stream:
            run = (await http.post("/runs", json={"agent": "asker", "input": "go"})).json()
            async for line in stream.aiter_lines():
                if not line.startswith("data: "):
                    continue
                question = json.loads(line.removeprefix("data: "))
                seen.append(question["state"])
                assert question["run"] == run["id"]
                if question["state"] == "answered":
                    break
                await http.post(f"/questions/{question['id']}/answer", json={"value": {"approved": True}})
        assert seen == ["open", "answered"]
