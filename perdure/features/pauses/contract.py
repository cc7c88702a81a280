"""Pauses: what each of them holds, who asked for it, and why."""

from datetime import datetime

from pydantic import Field

from perdure.contracts.bounds import LatestNotices
from perdure.contracts.models import FrozenModel, StrictModel, omit_default


class Pause(FrozenModel):
    """A pause of all runs, or of those of an `agent`, of a `schedule`, or of `runs` (ids), with their subtasks."""

    name: str = Field(pattern=r"^\S{1,300}$")
    """Without blanks. The reason that the server keeps of a held activity begins with it."""
    by: str
    at: datetime
    why: str = omit_default("")
    agent: str | None = omit_default(None)
    schedule: str | None = omit_default(None)
    query: str | None = omit_default(None)
    """The list filter that found the `runs`. Later runs are not among them."""
    runs: tuple[str, ...] = omit_default(())


class PauseChange(StrictModel):
    """Pauses that begin, and the names of those that end. A pause replaces one of its name."""

    begin: tuple[Pause, ...] = ()
    end: tuple[str, ...] = ()


class PauseState(FrozenModel):
    """The state of `Pauses`, carried over continue-as-new. `releasing` are ended pauses that may still hold runs."""

    pauses: tuple[Pause, ...] = ()
    releasing: tuple[str, ...] = omit_default(())
    ignored: LatestNotices = omit_default(LatestNotices())
