"""Projects and stores: a store belongs to exactly one project, so that no code of another one touches its runs."""

from __future__ import annotations

from ...model.errors import Conflict
from ...store.ports import Store
from ...store.rows import ProjectRow
from ..agents.agent import Registry


async def join(store: Store, agents: Registry) -> str:
    """Give a store to the project of these agents, where it belongs to none. Returns the project that it belongs to.

    Agents without a project are for stores without one. Where there are no agents, nothing can be mixed up, and any
    store may be looked at.
    """
    project = agents.project
    agents.refusal = None
    if project:
        theirs = (await store.claims.claim_project(ProjectRow(project, str(agents.root or ""), store.clock.now()))).id
    else:
        owner = await store.claims.project()
        theirs = owner.id if owner is not None else ""
        if theirs and not agents.queues():
            agents.refusal = OtherProject(store.shown, theirs)  # to look is all that this engine may do
            return theirs
    if theirs != project:
        raise OtherProject(store.shown, theirs)
    return project


async def check(store: Store, project: str) -> None:
    """Raises OtherProject if a store belongs to another project than this. An empty one reads any store."""
    owner = await store.claims.project()
    if project and owner is not None and owner.id != project:
        raise OtherProject(store.shown, owner.id)


class OtherProject(Conflict):
    """A store of another project."""

    def __init__(self, store: str, project: str) -> None:
        super().__init__(
            f"store {store} belongs to project {project}; use another file or PostgreSQL schema, or set "
            f'project = "{project}"'
        )
