"""Calling the four shapes of a handler: coroutine, async generator, function and generator (these two in a thread)."""

from __future__ import annotations

from typing import Any

from ...model import json_values
from .generators import ThreadDrain, drain
from .handler_run import HandlerRun


async def invoke(run: HandlerRun) -> Any:
    """The handler's output as a JSON object, or None where it is the join of what was emitted."""
    data = run.data
    agent = data.agent
    assert agent is not None
    # A copy: the request is part of the log.
    kwargs = agent.bind(json_values.copy(data.request.input), run.thread.context)
    run.bound = True
    if agent.process:
        return await run.processes.run(agent, data.request.input, run.output.show_delta)
    match agent.shape:
        case "async":
            return _encoded(run, await agent.fn(**kwargs))
        case "async_generator":
            await drain(data, run.output, agent.fn(**kwargs))
            return None
        case "sync":
            return _encoded(run, await run.threads.call(lambda: agent.fn(**kwargs)))
        case "sync_generator":
            draining = ThreadDrain(data, run.waits, run.output, run.threads)
            return _encoded(run, await run.threads.call(lambda: draining.run(agent.fn(**kwargs))))


def _encoded(run: HandlerRun, result: Any) -> Any:
    if result is None:
        return None
    agent = run.data.agent
    assert agent is not None
    return result if agent.output is None else agent.output.encode(result)
