"""Lists every setting of `interlingua serve` in one table: its name in a file, as a flag and as a variable.

The checks of the file, the flags of the command, the variables and the reference page are all made from this table. It
does not know the use of a setting in the program (`build` does), and imports nothing that takes long.
"""

from __future__ import annotations

from .door_settings import DOORS
from .setting import MIB, Entries, Setting

SECTIONS = {
    "": "At the top of the file.",
    "server": "Where it listens, and what it writes down.",
    "store": "Where everything is kept, and for how long.",
    "bus": "How several servers on one store tell each other what happens; one server needs none.",
    "auth": "Who may come in, beside those who have a key of the store (`interlingua keys`).",
    "callbacks": "What is sent to addresses that callers name.",
    "limits": "Limits and intervals of the engine.",
    "mounting": "How mounts are kept: those that are down are tried again, with growing waits.",
    "doors.connect": "The door of the Agent Connect Protocol, under `/connect`.",
    "doors.mcp": "The door of agents over MCP, under `/mcp`.",
    "doors.editor": "The door of the Agent Client Protocol, under `/editor`.",
    "doors.cap": "The door of CAP, under `/cap`.",
    "doors.peer": "The door of the Agent Communication Protocol, under `/peer`, and its node with ports of its own.",
}

_S = Setting

SETTINGS: tuple[Setting, ...] = (
    _S(
        "project", "text", None,
        "The name of the project that the runs belong to. Processes that share a store have the same one. Without it, "
        "`project` in `[tool.interlingua]` of `pyproject.toml`, else the name of the package there; else a random one, "
        "which counts for a store in the project's folder alone.",
        metavar="NAME",
    ),
    _S(
        "server.host", "text", "127.0.0.1",
        "The address to listen on. Anything but loopback needs keys (`interlingua keys`) or issuers.",
    ),
    _S("server.port", "whole", 8000, "The port; 0 takes any free one.", least=0, most=65535),
    _S(
        "server.advertise", "text", None,
        "The address (`http://HOST:PORT`) at which other processes on the same store reach this one; without it, where "
        "it listens.",
        metavar="URL",
    ),
    _S(
        "server.elsewhere", "yes", True,
        "Whether doors offer agents, too, that only other processes on the same store have (`interlingua worker`).",
    ),
    _S(
        "server.allowed_hosts", "texts", [], "Host headers to accept beside the usual ones.", flag="--allow-host",
        metavar="HOST",
    ),
    _S(
        "server.allowed_origins", "texts", [], "Browser origins whose pages may call, and read what is answered.",
        flag="--allow-origin", metavar="ORIGIN",
    ),
    _S(
        "server.log", "text", "text", "Runs, requests and trouble on stderr: as JSON lines, as text, or not.",
        choices=("json", "text", "off"),
    ),
    _S(
        "server.trace", "path", None,
        "Write every message of every door to FILE, one JSON line each, secrets left out.", metavar="FILE",
    ),
    _S(
        "server.metrics", "text", None,
        "Answer `/metrics`, `/healthz` and `/readyz` at this address too, without asking for a key; a port alone is on "
        "loopback. For workers, which have no doors. Where the store has keys, names of agents, callers and mounts are "
        "for those who send one.",
        metavar="[HOST:]PORT",
    ),
    _S(
        "server.reload", "yes", False,
        "Look at the files of config, agents and teams all the time, and reload what has changed: for development.",
        flag="--reload/--no-reload",
    ),
    _S(
        "server.shutdown_grace", "whole", 3,
        "Seconds that open connections have to end when the server stops; streams could stay for ever.", least=0,
    ),
    _S("server.max_message_bytes", "whole", 32 * MIB, "Of one message of a WebSocket.", least=1),
    # -- store
    _S(
        "store.path", "path", None,
        "The store to use: a file, or a PostgreSQL database (`postgresql://…`). Without it, the project's own: "
        "`.interlingua/store.db` in its folder.",
        flag="--store", env="INTERLINGUA_STORE", metavar="PATH",
    ),
    _S("store.ttl_runs", "number", None, "Seconds after which a finished run is deleted.", least=0),
    _S("store.ttl_threads", "number", None, "Seconds after which an unused thread is deleted.", least=0),
    # -- bus
    _S(
        "bus.url", "text", None,
        "The NATS server that several servers on one store share: `nats://[USER:PASSWORD@]HOST[:PORT][/PREFIX]`, or "
        "`tls://…`; several servers of one cluster with commas in between. Needs `interlingua[nats]`. Without it, "
        "processes notice what others wrote to the file.",
        flag="--bus", env="INTERLINGUA_BUS", metavar="URL", secret=True,
    ),
    _S(
        "bus.prefix", "text", None,
        "What the names of all subjects begin with, where installations share a NATS server; without it, the path of "
        "the address, or `interlingua`.",
    ),
    _S("bus.token", "text", None, "A token that lets us in.", secret=True),
    _S("bus.credentials", "path", None, "A file of credentials (`.creds`) that lets us in.", metavar="FILE"),
    _S("bus.nkey", "path", None, "A file with the seed of an nkey that lets us in.", metavar="FILE"),
    _S(
        "bus.ca", "path", None, "The authority that the NATS server's certificate is from, where the system does not "
        "know it.", metavar="FILE",
    ),
    _S("bus.certificate", "path", None, "Our certificate, where the NATS server wants one.", metavar="FILE"),
    _S("bus.key", "path", None, "The key of our certificate.", metavar="FILE"),
    _S(
        "bus.hand_out", "text", "memory",
        "Where JetStream keeps the runs that are offered to others, or whether nothing is offered: workers then look "
        "for due runs, every `sweep_every` seconds.",
        choices=("memory", "file", "off"),
    ),
    # -- auth
    _S(
        "auth.audience", "texts", [], "What tokens call this server, for issuers that say nothing else.",
        flag="--audience", metavar="NAME",
    ),
    _S(
        "auth.jwks_url", "texts", [],
        "Where the keys of issuers are, in their order, for those that say nothing else; without it, where the issuer "
        "says they are.",
        flag="--jwks-url", metavar="URL",
    ),
    _S(
        "auth.scopes", "texts", [],
        "What callers may do whose tokens name no scopes of ours (as in `interlingua keys add`).",
        flag="--issuer-scope", metavar="SCOPE",
    ),
    # -- callbacks
    _S(
        "callbacks.secret", "text", None, "Sign callbacks with this.", flag="--callback-secret",
        env="INTERLINGUA_CALLBACK_SECRET", secret=True,
    ),
    _S(
        "callbacks.hours", "number", 24.0, "For how many hours a callback that fails is tried again.",
        flag="--callback-hours", least=0,
    ),
    _S(
        "callbacks.allow_private", "yes", False, "Whether callbacks may go to private addresses.",
        flag="--callback-private/--no-callback-private",
    ),
    # -- limits
    _S(
        "limits.park_after", "number", 60.0,
        "Seconds that a waiting agent stays in memory before it is unwound.", least=0,
    ),
    _S(
        "limits.cancel_grace", "number", 5.0,
        "Seconds that an agent has to stop when it is cancelled; then it is abandoned.", least=0,
    ),
    _S(
        "limits.shutdown_grace", "number", 10.0,
        "Seconds that running agents have to finish when the server stops; then they are handed back.", least=0,
    ),
    _S(
        "limits.max_running", "whole", 1000,
        "Agents that run at once in this process. Waiting ones that are parked do not count. With 0 it runs none, and "
        "leaves them to the other processes of its store.", least=0,
    ),
    _S(
        "limits.agents", "counts", {},
        "The same for single agents, by `NAME` (all its versions together) or `NAME@VERSION`; runs beyond that wait in "
        "line. Comes before what an agent says of itself (`max_running=`).",
        flag="--limit-agent", metavar="NAME=N", least=0,
    ),
    _S(
        "limits.max_pending", "whole", 100_000, "Runs that may wait for a slot before new ones are refused.", least=1,
    ),
    _S(
        "limits.max_input_bytes", "whole", 16 * MIB,
        "Of one input, config, answer or message, as JSON. Each is counted by itself: a prompt that is input and "
        "message at once counts once.", least=1,
    ),
    _S(
        "limits.max_log_bytes", "whole", 1024 * MIB,
        "Of the whole log of one run, with its records, over all its entries; beyond that it fails with `too_large`.",
        least=1,
    ),
    _S(
        "limits.keep_live_bytes", "whole", 4 * MIB,
        "Of one live run: its newest events, unread messages, and results in its history. The rest is in the store.",
        least=1,
    ),
    _S(
        "limits.max_hops", "whole", 16,
        "Mounts that a call may go through, here and elsewhere. Beyond that it fails: probably mounts form a loop.",
        least=1,
    ),
    _S(
        "limits.max_listening", "whole", 100,
        "Runs that stay in memory while they wait for an answer which may be given where their agent is mounted from, "
        "to hear of it when it is. Beyond that, those that wait longest are set aside, and look from time to time.",
        least=0,
    ),
    _S(
        "limits.max_sync_threads", "whole", 256, "Threads for agents and steps that are plain functions.", least=1,
    ),
    _S(
        "limits.processes", "whole", 2,
        "Worker processes for agents with process=True, started when first needed.", least=1,
    ),
    _S(
        "limits.sweep_every", "number", 1.0, "Seconds between looks for dead workers and forgotten work.", least=0.01,
    ),
    _S("limits.keep_finished", "whole", 128, "Finished runs that are kept in memory for readers.", least=0),
    _S("limits.keep_finished_bytes", "whole", 16 * MIB, "Of what those runs have said.", least=0),
    _S(
        "limits.question_deadline", "number", None,
        "Seconds after which a question expires that was asked without a deadline.", flag="--question-deadline",
        least=0,
    ),
    _S(
        "limits.remind_after", "numbers", [],
        "Seconds after a question was asked at which somebody is reminded of it, for instance after an hour and after "
        "a day.",
        flag="--remind-after", least=0,
    ),
    _S(
        "limits.tune_interpreter", "yes", True,
        "Shorten the interpreter's thread switch interval, and let the garbage collector run less often.",
    ),
    _S(
        "limits.stall_warning", "number", 1.0,
        "Seconds after which an agent that blocks the event loop is named in the log; 0 turns it off.", least=0,
    ),
    # -- mounting
    _S("mounting.wait", "number", 10.0, "Seconds for which the start waits for mounts that are slow.", least=0),
    _S("mounting.retry_first", "number", 1.0, "Seconds until a mount that is down is tried again.", least=0.01),
    _S("mounting.retry_last", "number", 60.0, "The longest of these waits; they double.", least=0.01),
    _S(
        "mounting.refresh", "number", 30.0,
        "Seconds after which a mount that is up is asked again for its agents; 0: never. Of an agent of the Agent "
        "Client Protocol it is only seen whether its server answers. Commands are only looked at when they have ended, "
        "or a run of theirs has failed.",
        least=0,
    ),
    _S(
        "mounting.patience", "number", 60.0,
        "Seconds for which a run that had begun waits for a mount that is down, after a restart.", least=0,
    ),
    # -- doors
    *DOORS,
)  # fmt: skip

_ONLY = _S("only", "texts", [], "The names of the agents that are served, where that is not all of them.")

ENTRIES: tuple[Entries, ...] = (
    Entries(
        "agents", "file", "TARGET", "Files with agents in them.",
        (
            _S("file", "path", None, "The file.", metavar="FILE"),
            _ONLY,
        ),
    ),
    Entries(
        "mounts", "target", "--mount",
        "Agents that are elsewhere: an address, or a command that is started here.",
        (
            _S(
                "target", "text", None,
                "Where: `connect+http://HOST/connect`, `mcp:COMMAND`, `acp://…`; `#AGENT` picks one of several.",
            ),
            _S("as", "text", None, "What the agent is called here, where the mount has just one."),
            _S("prefix", "text", "", "What stands before the names of its agents here."),
            _ONLY,
            _S("key", "text", None, "An API key or a bearer token, for an address.", secret=True),
            _S("headers", "names", {}, "Headers of every request, for an address.", secret=True),
            _S("env", "names", {}, "Variables of the process, for a command.", secret=True),
            _S("directory", "path", None, "The folder in which a command is run; without it, that of the config file."),
            _S(
                "settings", "anything", {},
                "Settings of the protocol's mount, by the names that they have as variables: "
                "`INTERLINGUA_MCP_PATIENCE` is `patience`.",
                secret=True,
            ),
        ),
        "TARGET",
    ),
    Entries(
        "teams", "dir", "--team", "Folders of manifests, each of which is a team.",
        (
            _S("dir", "path", None, "The folder, or the file of the team.", metavar="DIR"),
            _S("model", "text", None, "The model that thinks for members who have none, as provider:name."),
        ),
        "DIR",
    ),
    Entries(
        "auth.issuers", "issuer", "--issuer", "Issuers whose tokens (JWT) are accepted.",
        (
            _S("issuer", "text", None, "Its address, as its tokens have it."),
            _S("audience", "texts", [], "What its tokens call this server."),
            _S("jwks_url", "text", None, "Where its keys are; without it, where it says they are."),
            _S("scopes", "texts", [], "What callers may do whose tokens name no scopes of ours."),
            _S("algorithms", "texts", [], "The only ones that its tokens may be signed with."),
        ),
        "URL",
    ),
)  # fmt: skip


def setting(path: str) -> Setting:
    return _BY_PATH[path]


_BY_PATH = {one.path: one for one in SETTINGS}
