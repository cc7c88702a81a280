"""What is delegated, how it stands, and what it has used (D1 to D5)."""

from enum import StrEnum
from typing import Literal

from pydantic import Field

from contracts.duration import Duration
from contracts.models import Edge, Value, sparse

MOST_INSTRUCTIONS = 20_000  # characters of a subtask's instructions


class Join(StrEnum):
    """When a delegation has done its work."""

    all = "all"  # every subtask is done; one that fails is the end of it
    any = "any"  # one that nothing else waits for is done; the rest is cancelled


class Subtask(Edge):
    """One node of the DAG, as the model writes it. `depends_on` names the subtasks whose results it is given."""

    id: str = Field(pattern=r"^[A-Za-z0-9_-]{1,40}$")
    agent: str = Field(min_length=1, max_length=200)
    instructions: str = Field(min_length=1, max_length=MOST_INSTRUCTIONS)
    depends_on: tuple[str, ...] = ()
    expected_output: str = Field(default="", max_length=2000)
    timeout: Duration | None = None


class DelegateArguments(Edge):
    """The arguments of the tool `delegate`."""

    subtasks: tuple[Subtask, ...] = Field(min_length=1)
    join: Join = Join.all


class Share(Value):
    """A part of a budget: at most so much. None: no limit."""

    steps: int
    """Calls."""
    tokens: int | None = None
    """Sent and received."""
    usd: float | None = None
    """Money."""
    follow_ups: int | None = sparse(None)
    """Of the run, and of all that resumes from them."""


class Spent(Value):
    """What runs have used, with all that they delegated. `usd` is None once a model without a known price was used."""

    steps: int = 0
    tokens: int = 0
    usd: float | None = 0.0
    follow_ups: int = sparse(0)

    def __add__(self, other: "Spent") -> "Spent":
        usd = None if self.usd is None or other.usd is None else self.usd + other.usd
        follow_ups = self.follow_ups + other.follow_ups
        return Spent(steps=self.steps + other.steps, tokens=self.tokens + other.tokens, usd=usd, follow_ups=follow_ups)


class Assignment(Value):
    """Whose subtask a run is: of the run `by`, `depth` delegations below the first run, with its part of the budget."""

    by: str
    depth: int
    share: Share


class SubtaskStatus(StrEnum):
    waiting = "waiting"  # not started; in a delegation that is over, it never was
    running = "running"
    done = "done"
    escalated = "escalated"
    failed = "failed"
    timed_out = "timed_out"
    cancelled = "cancelled"
    terminated = "terminated"


class Collected(Value):
    """What became of a subtask's run. `artifacts` are paths in the workspace of the run that delegated it."""

    status: SubtaskStatus
    outcome: str
    artifacts: tuple[str, ...] = ()
    spent: Spent = Spent()


class SubtaskState(Value):
    """A subtask as it stands. While it runs its `share` is reserved, and then what it has `spent` is settled.

    `run_id` is empty where a peer outside does it.
    """

    id: str
    agent: str
    run_id: str
    status: SubtaskStatus = SubtaskStatus.waiting
    share: Share | None = None
    outcome: str = ""  # or why there is none
    artifacts: tuple[str, ...] = ()
    spent: Spent = Spent()


class DelegationStatus(StrEnum):
    running = "running"
    done = "done"
    failed = "failed"


class DelegationRequest(Value):
    """The input of `Delegation`: subtasks for run `run_id` and its agent, at `step`, `depth` below the first run.

    `budget` is what all of them may use together. `max_depth` is the first run's, and holds for the whole tree.
    `mailboxes` names the agents that live outside: their subtasks are no runs, but messages and replies. `heir` is the
    run that makes it, where it goes on from `run_id`: what the subtasks bring has to be in its workspace, too.
    `key_id` stands for `run_id` in the ids of what is delegated, where an earlier run had the same id.
    """

    type: Literal["agentic.delegate"] = "agentic.delegate"
    run_id: str
    agent: str
    step: int
    depth: int
    max_depth: int
    budget: Share
    subtasks: tuple[Subtask, ...] = Field(min_length=1)
    join: Join = Join.all
    mailboxes: tuple[str, ...] = sparse(())
    heir: str = sparse("")
    key_id: str = sparse("")

    @property
    def named(self) -> str:
        """The id that the ids of what is delegated are made of."""
        return self.key_id or self.run_id


class DelegationState(Value):
    """The answer of the query `state` of a `Delegation`, and its result. `why` names the subtask that failed it."""

    status: DelegationStatus = DelegationStatus.running
    why: str = ""
    subtasks: tuple[SubtaskState, ...]


class CollectRequest(Value):
    """The input of the activity `collect`: how run `run_id` ended, its outcome cut to `most` bytes.

    Its artifacts are copied to the workspaces of the runs `into`, the delegating one first, below a folder named for
    the subtask. `share` is what is taken for spent where nobody can tell.
    """

    run_id: str
    subtask: str
    into: tuple[str, ...]
    share: Share
    most: int
