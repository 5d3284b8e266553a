"""Every limit and interval of the engine, in one place."""

from __future__ import annotations

import msgspec


class Settings(msgspec.Struct, kw_only=True, frozen=True):
    park_after: float = 60.0
    """Seconds that a waiting agent stays in memory before it is parked."""
    cancel_grace: float = 5.0
    """Seconds that an agent has to stop when it is cancelled; then it is abandoned."""
    shutdown_grace: float = 10.0
    """Seconds that running agents have to finish at shutdown; then their runs go back to the queue."""
    max_running: int = 1000
    """Agents that execute at once in this process. Parked ones do not count. With 0 it executes none."""
    agents: dict[str, int] = {}
    """The same for single agents: by NAME, for all its versions together, or by NAME@VERSION. Overrides the agent's
    own `max_running=`."""
    max_pending: int = 100_000
    """Runs that may wait for a slot before new ones are refused."""
    max_input_bytes: int = 16 * 1024 * 1024
    """The size of one input, config, answer or message, as JSON."""
    max_log_bytes: int = 1024 * 1024 * 1024
    """The size of the log of one run, with its records; beyond that the run fails with too_large."""
    keep_live_bytes: int = 4 * 1024 * 1024
    """Bytes of one live run in memory: its newest events, unread messages and recorded results."""
    max_hops: int = 16
    """Mounts that a call may pass, on all servers. Beyond that it fails: the mounts probably form a loop."""
    max_listening: int = 100
    """Runs of mounted agents that stay in memory while they wait for an answer, because it may be given on the remote
    server. Beyond that, those that wait longest are parked and poll the remote server."""
    max_sync_threads: int = 256
    """Threads for agents and steps that are plain functions."""
    processes: int = 2
    """Worker processes for agents with process=True, started when first needed."""
    sweep_every: float = 1.0
    """Seconds between searches for dead workers and forgotten runs."""
    keep_finished: int = 128
    """Finished runs that stay in memory for readers."""
    keep_finished_bytes: int = 16 * 1024 * 1024
    """The size of the logs of those runs."""
    question_deadline: float | None = None
    """Seconds after which a question without a deadline expires; None lets it wait for ever."""
    remind_after: tuple[float, ...] = ()
    """Seconds after a question was asked at which a server sends a reminder; none by default."""
    ttl_runs: float | None = None
    """Seconds after which a finished run is deleted; None keeps them."""
    ttl_threads: float | None = None
    """Seconds after which an unused thread is deleted; None keeps them."""
    tune_interpreter: bool = True
    """Shorten the interpreter's thread switch interval, so that a busy thread does not delay the others, and run the
    garbage collector less often: runs leave no cycles behind."""
    stall_warning: float = 1.0
    """Seconds after which the log names an agent that blocks the event loop; 0 turns it off."""
