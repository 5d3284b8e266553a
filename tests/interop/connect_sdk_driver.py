"""Drives the published SDK of the Agent Connect Protocol for a test, in the SDK's own virtualenv.

    python connect_sdk_driver.py BASE_URL sync|async [API_KEY]

Each line on stdin is one call: `{"operation": "create_stateless_run", "arguments": {...}}`. Each line on stdout is its
outcome: `{"result": ...}` as the SDK's models have it, or `{"error": class, "status": code, "body": text}`. Nothing of
our own package is imported here: what works here works for everybody who uses the SDK.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
from typing import Any

from agntcy_acp import ACPClient, ApiClientConfiguration, ApiException, AsyncACPClient, models


def arguments(given: dict[str, Any]) -> dict[str, Any]:
    """The arguments as the SDK wants them: `run_create_stateless={...}` becomes a RunCreateStateless."""
    built = {}
    for name, value in given.items():
        model = getattr(models, "".join(word.capitalize() for word in name.split("_")), None)
        built[name] = model.from_dict(value) if model is not None and isinstance(value, dict) else value
    return built


def plain(value: Any) -> Any:
    if isinstance(value, list):
        return [plain(item) for item in value]
    if hasattr(value, "to_dict"):
        return json.loads(value.to_json())
    return value


async def call(client: Any, operation: str, given: dict[str, Any]) -> Any:
    outcome = getattr(client, operation)(**given)
    if inspect.iscoroutine(outcome):
        outcome = await outcome
    if hasattr(outcome, "__anext__"):
        return [item async for item in outcome]
    if hasattr(outcome, "__next__"):
        return list(outcome)
    return outcome


async def serve(client: Any) -> None:
    while line := await asyncio.to_thread(sys.stdin.readline):
        wanted = json.loads(line)
        try:
            told = {"result": plain(await call(client, wanted["operation"], arguments(wanted["arguments"])))}
        except ApiException as error:
            told = {"error": type(error).__name__, "status": error.status, "body": error.body, "data": str(error.data)}
        except Exception as error:
            told = {"error": type(error).__name__, "status": None, "body": str(error)}
        print(json.dumps(told), flush=True)


async def main(base: str, kind: str, key: str | None = None) -> None:
    configuration = ApiClientConfiguration(host=base, api_key={"x-api-key": key} if key else None, timeout=30)
    if kind == "sync":
        await serve(ACPClient(configuration=configuration))
    else:
        async with AsyncACPClient(configuration=configuration) as client:
            await serve(client)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
