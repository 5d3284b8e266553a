"""The ports of the store that the facade passes on as they are, and the rows that its answers consist of.

Doors, mounts and commands import these names from here: they know the engine, and no store.
"""

from ..store.ports import DocumentStore as DocumentStore
from ..store.ports import KeyStore as KeyStore
from ..store.rows import CallbackRow as CallbackRow
from ..store.rows import EventRow as EventRow
from ..store.rows import QueueCount as QueueCount
from ..store.rows import RunRow as RunRow
from ..store.rows import Tombstone as Tombstone
