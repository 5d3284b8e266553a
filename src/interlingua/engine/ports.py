"""The types that the facade's answers consist of, and the ports of the store that it passes on as they are.

Doors, mounts and commands import these names from here: they know the engine, and neither its parts nor a store.
"""

from ..store.ports import DocumentStore as DocumentStore
from ..store.ports import KeyStore as KeyStore
from ..store.rows import CallbackRow as CallbackRow
from ..store.rows import EventRow as EventRow
from ..store.rows import QueueCount as QueueCount
from ..store.rows import RunRow as RunRow
from ..store.rows import Tombstone as Tombstone
from .cluster.membership import Membership as Membership
from .cluster.membership import Replica as Replica
from .cluster.remote_agents import RemoteAgents as RemoteAgents
from .cluster.session_affinity import SessionAffinity as SessionAffinity
from .log.log_reader import LogReader as LogReader
from .log.record_keys import kind_of as kind_of
from .log.record_keys import name_of as name_of
from .log.run_log import TransactionParticipant as TransactionParticipant
from .log.run_log import weight as weight
from .observe.run_metrics import BOUNDS as BOUNDS
from .observe.run_metrics import OTHER as OTHER
from .observe.run_metrics import Busiest as Busiest
from .observe.run_metrics import Histogram as Histogram
from .observe.run_metrics import Numbers as Numbers
from .observe.run_metrics import label as label
from .runs.queries import RunQueries as RunQueries
from .runs.run_handle import RunHandle as RunHandle
from .services.callbacks import NotTaken as NotTaken
from .services.move import Moved as Moved
from .services.move import Mover as Mover
from .services.team_tasks import Task as Task
from .teams.conversation import unclaimed as unclaimed
from .teams.members import MANIFEST as MANIFEST
from .teams.members import TeamAgent as TeamAgent
