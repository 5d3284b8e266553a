"""Every limit and interval of the engine, in one place."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from ..setting_types import MIB, Count, CountOrNone, Interval, Seconds


class Settings(msgspec.Struct, kw_only=True, frozen=True):
    park_after: Annotated[
        Seconds, Meta(description="Seconds that a waiting agent stays in memory before it is parked.")
    ] = 60.0
    cancel_grace: Annotated[
        Seconds, Meta(description="Seconds that an agent has to stop when it is cancelled; then it is abandoned.")
    ] = 5.0
    shutdown_grace: Annotated[
        Seconds,
        Meta(
            description="Seconds that running agents have to finish at shutdown; then their runs go back to the queue."
        ),
    ] = 10.0
    max_running: Annotated[
        CountOrNone,
        Meta(
            description="Agents that execute at once in this process. Parked ones do not count. With 0 it executes "
            "none."
        ),
    ] = 1000
    agents: Annotated[
        dict[Annotated[str, Meta(min_length=1)], CountOrNone],
        Meta(
            description="The same for single agents: by NAME, for all its versions together, or by NAME@VERSION. "
            "Overrides the agent's own `max_running=`.",
            extra={"flag": "--limit-agent", "metavar": "NAME=N"},
        ),
    ] = {}
    max_pending: Annotated[Count, Meta(description="Runs that may wait for a slot before new ones are refused.")] = (
        100_000
    )
    max_input_bytes: Annotated[
        Count, Meta(description="The size of one input, config, answer or message, as JSON.")
    ] = 16 * MIB
    max_log_bytes: Annotated[
        Count,
        Meta(description="The size of the log of one run, with its records; beyond that the run fails with too_large."),
    ] = 1024 * MIB
    keep_live_bytes: Annotated[
        Count,
        Meta(description="Bytes of one live run in memory: its newest events, unread messages and recorded results."),
    ] = 4 * MIB
    max_hops: Annotated[
        Count,
        Meta(
            description="Mounts that a call may pass, on all servers. Beyond that it fails: the mounts probably form a "
            "loop."
        ),
    ] = 16
    max_listening: Annotated[
        CountOrNone,
        Meta(
            description="Runs of mounted agents that stay in memory while they wait for an answer, because it may be "
            "given on the remote server. Beyond that, those that wait longest are parked and poll the remote server."
        ),
    ] = 100
    max_sync_threads: Annotated[Count, Meta(description="Threads for agents and steps that are plain functions.")] = 256
    processes: Annotated[
        Count, Meta(description="Worker processes for agents with process=True, started when first needed.")
    ] = 2
    sweep_every: Annotated[
        Interval, Meta(description="Seconds between searches for dead workers and forgotten runs.")
    ] = 1.0
    keep_finished: Annotated[CountOrNone, Meta(description="Finished runs that stay in memory for readers.")] = 128
    keep_finished_bytes: Annotated[CountOrNone, Meta(description="The size of the logs of those runs.")] = 16 * MIB
    question_deadline: Annotated[
        Seconds | None,
        Meta(
            description="Seconds after which a question without a deadline expires; None lets it wait for ever.",
            extra={"flag": "--question-deadline"},
        ),
    ] = None
    remind_after: Annotated[
        tuple[Seconds, ...],
        Meta(
            description="Seconds after a question was asked at which a server sends a reminder; none by default.",
            extra={"flag": "--remind-after"},
        ),
    ] = ()
    ttl_runs: Annotated[
        Seconds | None,
        Meta(description="Seconds after which a finished run is deleted; None keeps them.", extra={"section": "store"}),
    ] = None
    ttl_threads: Annotated[
        Seconds | None,
        Meta(
            description="Seconds after which an unused thread is deleted; None keeps them.", extra={"section": "store"}
        ),
    ] = None
    tune_interpreter: Annotated[
        bool,
        Meta(
            description="Shorten the interpreter's thread switch interval, so that a busy thread does not delay the "
            "others, and run the garbage collector less often: runs leave no cycles behind."
        ),
    ] = True
    stall_warning: Annotated[
        Seconds,
        Meta(description="Seconds after which the log names an agent that blocks the event loop; 0 turns it off."),
    ] = 1.0
