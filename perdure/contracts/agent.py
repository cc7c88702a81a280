"""An agent's definition, and a run's snapshot of it."""

from typing import Any

from perdure.contracts.model_settings import ModelOptions, ModelOverrides, Pace
from perdure.contracts.models import FrozenModel, omit_default
from perdure.contracts.people import Account, NoticeRoute
from perdure.contracts.policy import Rubric
from perdure.contracts.run.events import PlanInForce
from perdure.contracts.run.limits import LimitOverrides, Limits
from perdure.contracts.tool import Holdable, ToolTable

DEFAULT_AGENT = "default"


class Agent(FrozenModel):
    """An agent of a project. `tools` is the allow-list; built-in tools are always available, the journal's tools
    unless `journal` is False.

    `peers` are the agents that it may delegate to. An agent with a `mailbox` lives outside Temporal and exchanges
    files. If `model` cannot answer, the `fallbacks` are asked in order. `follow_ups` are the conversations, apart from
    the run's own, in which its follow-ups may resume work; None: it may not create follow-ups. `fuse_reads` is the
    project's setting if it is None. `search_tools` says whether its tools are searched; None: if they are many.
    `server_tools` are as in `ModelOptions`. `pace` is the project's if it is None. `max_running` runs of it are at work
    at once; with `per_owner`, so many of each owner.

    `input_schema` is for the `context` of a start, `output_schema` for the `result` of a run: a JSON Schema, or
    `module:Model` until the worker imports it. `accept` is the check that an outcome must pass: a function, as
    `module:function`, or a rubric.
    """

    name: str
    description: str = ""
    model: str | None = None
    fallbacks: tuple[str, ...] = ()
    tools: tuple[str, ...]
    peers: tuple[str, ...] = ()
    options: ModelOverrides = ModelOverrides.model_construct()
    limits: LimitOverrides = LimitOverrides.model_construct()
    prompt: str = ""
    mailbox: bool = False
    follow_ups: tuple[str, ...] | None = None
    journal: bool = True
    fuse_reads: bool | None = None
    search_tools: bool | None = None
    input_schema: dict[str, Any] | str | None = None
    output_schema: dict[str, Any] | str | None = None
    accept: Rubric | str | None = None
    server_tools: tuple[dict[str, Any], ...] = ()
    pace: Pace | None = None
    max_running: int | None = None
    per_owner: bool = False


class ToolSchema(FrozenModel):
    """A tool as the model sees it."""

    name: str
    description: str
    input_schema: dict[str, Any]


class Definition(FrozenModel):
    """The part of a snapshot that the model sees, stored in the run's store under its hash.

    `searched` are the tools that the model does not see until it searches for them. `may_delegate` is False if the run
    is too deep in a tree; the agent then has no peers. `output_schema` is for the `result` of `finish`; with
    `is_schema_requested` it came with the start, not from the agent.
    """

    agent: str
    model: str
    fallbacks: tuple[str, ...] = omit_default(())
    options: ModelOptions = ModelOptions.model_construct()
    system: str
    tools: tuple[ToolSchema, ...]
    searched: tuple[ToolSchema, ...] = omit_default(())
    may_delegate: bool = omit_default(True)
    output_schema: dict[str, Any] | None = omit_default(None)
    is_schema_requested: bool = omit_default(default=False)
    accept: Rubric | str | None = omit_default(None)  # a rubric with its model

    @property
    def models(self) -> tuple[str, ...]:
        """The models, in the order in which they are asked."""
        return (self.model, *self.fallbacks)


class StartSnapshot(Holdable):
    """The result of the activity `open_run`: the tool table, limits, and the definition by reference."""

    agent: str
    model: str
    definition: str
    tools: ToolTable
    limits: Limits  # merged from agent, file and defaults here, so that a replay does not depend on a later default
    workspace: str
    peers: tuple[str, ...] = omit_default(())  # agents that this run may delegate to
    mailboxes: tuple[str, ...] = omit_default(())  # peers that live outside
    sessions: tuple[str, ...] = omit_default(())  # other conversations in which its follow-ups may resume
    secret: str = omit_default("")  # random; the nonces of the run's requests derive from it
    answer_keys: dict[str, str] = omit_default({})  # as in `RunState`
    ceiling: dict[str, Any] = omit_default({})  # the project's limits that no run exceeds
    key_id: str = omit_default("")  # as in `RunState`
    fuse_reads: bool = omit_default(default=False)  # as in `RunState`
    is_typed: bool = omit_default(default=False)  # as in `RunState`
    notify: tuple[NoticeRoute, ...] = omit_default(())  # as in `RunState`
    pace: Pace | None = omit_default(None)  # as in `RunState`
    policy: str = omit_default("")  # as in `RunState`
    accept: str = omit_default("")  # as in `RunState`
    planned: PlanInForce | None = omit_default(None)  # as in `RunState`
    account: Account | None = omit_default(None)  # as in `RunState`
    place: str = omit_default("")  # as in `RunState`
    places: int | None = omit_default(None)  # as in `RunState`


class StartSnapshotRequest(FrozenModel):
    """The input of `open_run`. A cursor (`length`, `head`) names the transcript that holds the goal.

    `depth` counts the delegations above the run; `max_depth` is the run's own setting of that limit, and `pace` its own
    pace. `execution` is as in `RunState`, `output_schema` as in `StartPayload`. `context` is set to be checked.
    `planned` is the plan of the start, which is to be looked up; `account` is that of the run that has set it off.
    If it `is_first`, the run begins and takes a place.
    """

    agent: str
    length: int
    head: str
    depth: int = omit_default(0)
    max_depth: int | None = omit_default(None)
    pace: Pace | None = omit_default(None)
    execution: str = omit_default("")
    output_schema: dict[str, Any] | None = omit_default(None)
    context: dict[str, Any] | None = omit_default(None)
    planned: PlanInForce | None = omit_default(None)
    account: Account | None = omit_default(None)
    is_first: bool = omit_default(default=False)
