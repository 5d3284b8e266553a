"""`interlingua callbacks`: failed deliveries can be seen, and tried again while a server runs."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Queue

import httpx2

from tests.kit.commands import Result

from .test_serve import server

Cli = Callable[..., Result]


@contextmanager
def receiver(*codes: int) -> Iterator[tuple[str, Queue[dict[str, str]]]]:
    """Answers with the given codes, then 200, and keeps the run objects that it took."""
    left, took = list(codes), Queue[dict[str, str]]()

    class Answers(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            code = left.pop(0) if left else 200
            if code == 200:
                took.put(body)
            self.send_response(code)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{running.server_port}/callme?token=s3cret&n=1", took
        finally:
            running.shutdown()
            thread.join()


def test_failed_callbacks_are_listed_without_secrets_and_tried_again_on_demand(tmp_path: Path, cli: Cli) -> None:
    with receiver(500) as (url, took), server(tmp_path, "--callback-hours", "0") as (address, _):
        assert cli("callbacks", "list").out == "No callbacks.\n"
        assert cli("callbacks", "list", "--failed").out == "No callback has failed.\n"
        body = {"agent_id": "shout", "input": "x", "webhook": url}
        run = httpx2.post(f"{address}/connect/runs", json=body).json()["run_id"]
        for _ in range(100):  # every look is a process of its own, so this waits without sleeping
            if failed := cli("callbacks", "list", "--failed", "--json").json:
                break
        (row,) = failed
        assert (row["run"], row["state"], row["tries"], row["next_try"]) == (run, "given up", 1, None)
        assert row["last_error"] == "Unavailable: the receiver answered 500"
        assert row["url"].startswith("http://127.0.0.1:")
        assert row["url"].endswith("/callme?token=***&n=***")
        shown = cli("callbacks", "list")
        assert run[-8:] in shown.out
        assert "given up" in shown.out
        assert "s3cret" not in shown.out + json.dumps(row)
        assert cli("callbacks", "retry", str(row["id"])).out == f"1 will be tried again: {row['id']}\n"
        assert took.get(timeout=60)["run_id"] == run
        for _ in range(100):
            if not cli("callbacks", "list", "--failed", "--json").json:
                break
        (row,) = cli("callbacks", "list", "--json").json
        assert (row["state"], row["last_error"]) == ("sent", None)
        again = cli("callbacks", "retry", str(row["id"]))
        assert (again.code, "no failed callback" in again.err) == (3, True)
        assert cli("callbacks", "retry", "--all").out == "No callback has failed.\n"


def test_what_is_still_being_tried_shows_when_next(tmp_path: Path, cli: Cli) -> None:
    with receiver(*[503] * 1000) as (url, _), server(tmp_path) as (address, _):
        httpx2.post(f"{address}/connect/runs", json={"agent_id": "shout", "input": "x", "webhook": url})
        for _ in range(100):
            if failed := cli("callbacks", "list", "--failed", "--json").json:
                break
        (row,) = failed
        assert row["state"] == "waiting"
        assert row["next_try"] > row["created_at"]


def test_it_must_be_said_what_to_retry(cli: Cli) -> None:
    for args in ([], ["3", "--all"]):
        assert cli("callbacks", "retry", *args).code == 2
