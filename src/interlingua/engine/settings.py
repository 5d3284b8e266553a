"""Every limit and interval of the engine, in one place."""

from __future__ import annotations

import msgspec


class Settings(msgspec.Struct, kw_only=True, frozen=True):
    park_after: float = 60.0
    """Seconds that a waiting agent stays in memory before it is unwound."""
    cancel_grace: float = 5.0
    """Seconds that an agent has to stop when it is cancelled; then it is abandoned."""
    shutdown_grace: float = 10.0
    """Seconds that running agents have to finish at shutdown; then they are handed back."""
    max_running: int = 1000
    """Agents that run at once in this process. Waiting ones that are parked do not count. With 0 it runs none."""
    agents: dict[str, int] = {}
    """The same for single agents: by NAME, for all its versions together, or by NAME@VERSION. Comes before what the
    agent says of itself (`max_running=`)."""
    max_pending: int = 100_000
    """Runs that may wait for a slot before new ones are refused."""
    max_input_bytes: int = 16 * 1024 * 1024
    """Of one input, config, answer or message, as JSON. Each is counted by itself."""
    max_log_bytes: int = 1024 * 1024 * 1024
    """Of the whole log of one run, with its records, over all its entries; beyond that it fails with too_large."""
    keep_live_bytes: int = 4 * 1024 * 1024
    """Of one live run: its newest events, unread messages, and results in its history. The rest is in the store."""
    max_hops: int = 16
    """Mounts that a call may go through, here and elsewhere. Beyond that it fails: probably mounts form a loop."""
    max_listening: int = 100
    """Runs that stay in memory while they wait for an answer which may be given where their agent is mounted from, to
    hear of it when it is. Beyond that, those that wait longest are set aside, and look from time to time."""
    max_sync_threads: int = 256
    """Threads for agents and steps that are plain functions."""
    processes: int = 2
    """Worker processes for agents with process=True, started when first needed."""
    sweep_every: float = 1.0
    """Seconds between looks for dead workers and forgotten work."""
    keep_finished: int = 128
    """Finished runs that are kept in memory for readers."""
    keep_finished_bytes: int = 16 * 1024 * 1024
    """Of what those runs have said."""
    question_deadline: float | None = None
    """Seconds after which a question expires that was asked without a deadline; None lets it wait for ever."""
    remind_after: tuple[float, ...] = ()
    """Seconds after a question was asked at which somebody is reminded of it, by a process that serves; none by
    default."""
    ttl_runs: float | None = None
    """Seconds after which a finished run is deleted; None keeps them."""
    ttl_threads: float | None = None
    """Seconds after which an unused thread is deleted; None keeps them."""
    tune_interpreter: bool = True
    """Shorten the interpreter's thread switch interval, so that a busy thread does not hold up the others, and let the
    garbage collector run less often: runs leave no cycles behind."""
    stall_warning: float = 1.0
    """Seconds after which an agent that blocks the event loop is named in the log; 0 turns it off."""
