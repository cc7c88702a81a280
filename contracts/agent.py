"""An agent's definition, and the snapshot a run keeps of it."""

from typing import Any

from contracts.models import Value, sparse
from contracts.run.limits import LimitOverrides, Limits
from contracts.tool import ToolTable

DEFAULT_AGENT = "default"


class Agent(Value):
    """An agent as its project defines it. `tools` is the allow-list; built-ins are always there, the journal's tools
    unless `journal` is False.

    `peers` are the agents that it may delegate to. One behind a `mailbox` lives outside Temporal: it takes tasks as
    files, and answers so. Where its `model` cannot answer, the `fallbacks` are asked, in their order. `follow_ups` are
    the conversations, beside the run's own, in which its follow-ups may resume work; None: it may create none.
    """

    name: str
    description: str = ""
    model: str | None = None
    fallbacks: tuple[str, ...] = ()
    tools: tuple[str, ...]
    peers: tuple[str, ...] = ()
    limits: LimitOverrides = LimitOverrides()
    prompt: str = ""
    mailbox: bool = False
    follow_ups: tuple[str, ...] | None = None
    journal: bool = True


class ToolSchema(Value):
    """A tool as the model is told of it."""

    name: str
    description: str
    input_schema: dict[str, Any]


class Definition(Value):
    """The bulk of a snapshot: what goes to the model. It lies in the run's store under its hash.

    `may_delegate` is False where the run lies too deep in a tree: an agent is then without its peers.
    """

    agent: str
    model: str
    fallbacks: tuple[str, ...] = sparse(())
    max_tokens: int
    system: str
    tools: tuple[ToolSchema, ...]
    may_delegate: bool = sparse(True)

    @property
    def models(self) -> tuple[str, ...]:
        """In the order in which they are asked."""
        return (self.model, *self.fallbacks)


class Opening(Value):
    """What the activity `open_run` found: the tool table, limits, and the definition by reference."""

    agent: str
    model: str
    definition: str
    tools: ToolTable
    limits: Limits  # of agent, file and defaults: decided here, so that a replay does not depend on a later default
    workspace: str
    peers: tuple[str, ...] = sparse(())  # that it may delegate to here
    mailboxes: tuple[str, ...] = sparse(())  # those that live outside
    sessions: tuple[str, ...] = sparse(())  # in which its follow-ups may resume, beside the run's own
    secret: str = sparse("")  # random; the nonces of the run's requests derive from it
    answer_keys: dict[str, str] = sparse({})  # public keys by id, of those who may answer
    ceiling: dict[str, Any] = sparse({})  # the limits of the project that no run exceeds
    key_id: str = sparse("")  # as in `RunState`


class OpeningRequest(Value):
    """The goal is read from the transcript, which a cursor names.

    `depth` is how many delegations lie above the run, `max_depth` what the run itself sets of that limit. `execution`
    is as in `RunState`.
    """

    agent: str
    length: int
    head: str
    depth: int = sparse(0)
    max_depth: int | None = sparse(None)
    execution: str = sparse("")
