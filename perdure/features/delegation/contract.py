"""Subtasks of a delegation, their state and what they have spent (D1 to D5)."""

from enum import StrEnum
from typing import Literal

from pydantic import Field

from perdure.contracts.models import (
    Duration,
    FrozenModel,
    JsonResult,
    OutputSchema,
    StrictModel,
    omit_default,
    omit_no_result,
)
from perdure.contracts.people import Work
from perdure.contracts.run.limits import Share, Spent, SubtaskStatus

MAX_INSTRUCTIONS = 20_000  # characters of a subtask's instructions


class Join(StrEnum):
    """The condition for a delegation to be done."""

    all = "all"  # every subtask is done; one failure ends the delegation
    any = "any"  # one subtask that no other depends on is done; the rest are cancelled


class Subtask(StrictModel):
    """One node of the DAG, as the model writes it. It receives the results of the subtasks that `depends_on` names."""

    id: str = Field(pattern=r"^[A-Za-z0-9_-]{1,40}$")
    agent: str = Field(min_length=1, max_length=200)
    instructions: str = Field(min_length=1, max_length=MAX_INSTRUCTIONS)
    depends_on: tuple[str, ...] = ()
    expected_output: str = Field(default="", max_length=2000)
    timeout: Duration | None = None
    output_schema: OutputSchema | None = omit_default(None)


class DelegateArguments(StrictModel):
    """The arguments of the tool `delegate`."""

    subtasks: tuple[Subtask, ...] = Field(min_length=1)
    join: Join = Join.all


class Collected(FrozenModel):
    """The end of a subtask's run. `artifacts` are paths in the workspace of the delegating run.

    `result` is set if the run has an output schema; with a longer one than `most` bytes, the subtask has failed.
    """

    status: SubtaskStatus
    outcome: str
    artifacts: tuple[str, ...] = ()
    spent: Spent = Spent.model_construct()
    result: JsonResult = omit_no_result()


class SubtaskState(FrozenModel):
    """The state of a subtask. Its `share` is reserved while it runs; then `spent` replaces it.

    `run_id` is empty for a peer that lives outside.
    """

    id: str
    agent: str
    run_id: str
    status: SubtaskStatus = SubtaskStatus.waiting
    share: Share | None = None
    outcome: str = ""  # or the reason for its absence
    artifacts: tuple[str, ...] = ()
    spent: Spent = Spent.model_construct()
    result: JsonResult = omit_no_result()


class DelegationStatus(StrEnum):
    running = "running"
    done = "done"
    failed = "failed"


class DelegationRequest(FrozenModel):
    """The input of `Delegation`: subtasks for run `run_id` and its agent, at `step`, `depth` below the first run.

    `budget` is for all subtasks together. `max_depth` is the first run's and applies to the whole tree. `mailboxes`
    names the agents that live outside: their subtasks are messages, not runs. `heir` is the delegating run if it
    continues `run_id`: artifacts are copied to its workspace too. `key_id` replaces `run_id` in the ids of subtasks if
    an earlier run had the same id. `work` is that of the subtasks. `sources` are those that each agent may read, if
    other subtasks depend on its results.
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
    mailboxes: tuple[str, ...] = omit_default(())
    heir: str = omit_default("")
    key_id: str = omit_default("")
    work: Work | None = omit_default(None)
    sources: dict[str, tuple[str, ...]] = omit_default({})
    quiet: bool = omit_default(default=False)  # as in `StartPayload`: of the subtasks, too

    @property
    def id_base(self) -> str:
        """The id from which the ids of the subtasks derive."""
        return self.key_id or self.run_id


class DelegationState(FrozenModel):
    """The answer of the query `state` of a `Delegation`, and its result. `why` names the failed subtask."""

    status: DelegationStatus = DelegationStatus.running
    why: str = ""
    subtasks: tuple[SubtaskState, ...]


class CollectRequest(FrozenModel):
    """The input of the activity `collect`: read the result of run `run_id`, its outcome truncated to `most` bytes.

    Its artifacts are copied to the workspaces of the runs `into`, the delegating run first, into a folder named after
    the subtask. `share` counts as spent if the usage is not known.
    """

    run_id: str
    subtask: str
    into: tuple[str, ...]
    share: Share
    most: int
