"""Threads over the control API: made, changed, copied, read back in time, deleted."""

from __future__ import annotations

from pathlib import Path

from .agents import client, serve


async def test_a_thread_keeps_its_state_and_its_history(store: Path) -> None:
    async with serve(store) as server, client(server) as http:
        thread = (await http.post("/threads", json={"metadata": {"about": "counting"}})).json()
        for _ in range(2):
            run = await http.post("/runs", json={"agent": "counter", "thread": thread["id"]})
            assert run.status_code == 201
            await http.get(f"/runs/{run.json()['id']}/wait")
        now = (await http.get(f"/threads/{thread['id']}")).json()
        assert now["values"] == {"runs": 2}
        history = (await http.get(f"/threads/{thread['id']}/history")).json()["checkpoints"]
        assert [state["values"] for state in history] == [{"runs": 2}, {"runs": 1}]
        changed = await http.patch(
            f"/threads/{thread['id']}", json={"values": {"runs": 10}, "checkpoint": history[1]["id"]}
        )
        assert changed.json()["values"] == {"runs": 10}
        wrong = await http.patch(f"/threads/{thread['id']}", json={"values": {"runs": "many"}})
        assert (wrong.status_code, wrong.json()["error"]["path"]) == (400, "/values/runs")
        copy = (await http.post(f"/threads/{thread['id']}/copy")).json()
        assert (copy["id"] != thread["id"], copy["values"]) == (True, {"runs": 10})
        found = (await http.get("/threads", params={"metadata.about": "counting"})).json()["threads"]
        assert {one["id"] for one in found} >= {thread["id"]}
        assert (await http.delete(f"/threads/{thread['id']}")).status_code == 204
        assert (await http.get(f"/threads/{thread['id']}")).status_code == 404
