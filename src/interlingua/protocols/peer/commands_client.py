"""Sends requests of commands to a running node, over its control API."""

from __future__ import annotations

from typing import Any

import httpx2

from ...model.errors import Conflict, InterlinguaError, InvalidRequest, NotFound, Unavailable

_KINDS: dict[int, type[InterlinguaError]] = {400: InvalidRequest, 404: NotFound, 409: Conflict, 413: InvalidRequest}


class NodeClient:
    def __init__(self, base: str, token: str | None = None, timeout: float = 65.0) -> None:
        if not base.startswith(("http://", "https://")):
            raise InvalidRequest(f"the address of a control API begins with http://, got {base[:80]!r}")
        self._base = base.rstrip("/")
        self._headers = {"authorization": f"Bearer {token}"} if token else {}
        self._timeout = timeout

    def get(self, path: str, **query: Any) -> Any:
        return self._ask("GET", path, params={name: value for name, value in query.items() if value is not None})

    def post(self, path: str, **body: Any) -> Any:
        return self._ask("POST", path, json={name: value for name, value in body.items() if value is not None})

    def _ask(self, method: str, path: str, **more: Any) -> Any:
        try:
            answer = httpx2.request(
                method, f"{self._base}{path}", headers=self._headers, timeout=self._timeout, **more
            )  # fmt: skip
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise Unavailable(f"no node answers at {self._base}: {str(error) or type(error).__name__}") from error
        try:
            told = answer.json()
        except ValueError:
            raise Unavailable(f"what answers at {self._base} is no node: {answer.status_code}, and no JSON") from None
        if answer.is_success:
            return told
        why = told.get("error") if isinstance(told, dict) else None
        raise _KINDS.get(answer.status_code, Unavailable)(f"the node says: {why or answer.status_code}")
