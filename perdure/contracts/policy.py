"""A project's policy: its rules, and their verdict on a call."""

import re
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from perdure.contracts.models import Duration, FrozenModel, SparseModel, StrictModel, omit_default
from perdure.contracts.people import Sender, Work


class Rubric(StrictModel):
    """The conditions, in words for a model that judges by them; by default the agent's own model."""

    rubric: str = Field(max_length=20_000)
    """The conditions, in words."""
    model: str | None = Field(default=None, min_length=1)
    """The model that judges; by default the agent's own."""

    @field_validator("rubric")
    @classmethod
    def _check_words(cls, rubric: str) -> str:
        if not rubric.strip():
            raise ValueError("it is empty: write the conditions in words")
        return rubric


_FUNCTION = re.compile(r"[\w.]+:\w+")


class Verdict(StrEnum):
    """A rule's `then`."""

    allow = "allow"  # make the call
    ask = "ask"  # a person decides
    deny = "deny"  # do not make the call; the model learns the reason
    review = "review"  # a function or a model decides; if it fails, a person


class ApprovalTerms(SparseModel):
    """The terms on which people approve a call.

    `approvers` are groups of people. With `on_expiry = "escalate"` they are asked one after the other, each for
    `expires`; after the last one the call is denied. `quorum` is the number of different people who must approve;
    with `not_requester` the person who started the run is not one of them.
    """

    approvers: tuple[str, ...] = omit_default(())
    quorum: int = omit_default(1)
    not_requester: bool = omit_default(default=False)
    expires: Duration | None = omit_default(None)
    on_expiry: Literal["deny", "escalate"] = omit_default("deny")


class PolicyVerdict(SparseModel):
    """The verdict on a call, as it is recorded. `verdict` is never `review`, which ends as one of the others.

    `rule` is the name of the deciding rule, or None if none holds; `policy` is the hash of its policy. After `allow`
    the tool's own approval still counts, unless the policy `loosens` it. If rules ask people, `terms` are those of each
    rule that asks, and all of them must be met. `facts` are the facts of the run that the rules looked at.
    """

    verdict: Verdict
    rule: str | None = omit_default(None)
    policy: str
    reason: str = omit_default("")
    loosens: bool = omit_default(default=False)
    terms: tuple[ApprovalTerms, ...] = omit_default(())
    facts: dict[str, Any] = Field(default_factory=dict, exclude_if=lambda facts: not facts)


class PolicyContext(SparseModel):
    """The facts of a run that its conversation does not hold.

    `policy` is the hash of the policy that the run began with, or that a person accepted for it; "" if there was none.
    `work` is the run's, if another one has set it off. `runs` are those that it continues: their calls are in its
    conversation. `conversation` is its lane, if it continues the work of another run. A dry run calls no function that
    reviews.
    """

    policy: str
    caller: Sender | None = None
    work: Work | None = omit_default(None)
    runs: tuple[str, ...] = omit_default(())
    conversation: str = omit_default("")
    dry_run: bool = False


class Rule(StrictModel):
    """A rule of `policy.toml`. The first rule that is about a call and whose `when` holds decides."""

    name: str = Field(default="", max_length=100)
    """Shown to people and to the model. By default `rule N`."""
    tools: tuple[str, ...] = Field(default=("*",), min_length=1)
    """The names of tools; `*` and `?` are wildcards."""
    agents: tuple[str, ...] = Field(default=("*",), min_length=1)
    """The names of agents, in the same way."""
    when: str | None = None
    """A CEL expression over the [facts](../policies.md#facts). Without one the rule always holds."""
    then: Verdict
    """`allow`, `ask`, `deny` or `review`."""
    reason: str = Field(default="", max_length=300)
    """Shown to people and to the model with the verdict."""
    review: Rubric | str | None = None
    """With `review`: the Python function that decides, as `module:function`, or `{rubric = ..., model = ...}` for a
    [model](../policies.md#by-a-model)."""
    approvers: tuple[str, ...] = ()
    """The groups whose people may approve. By default anyone may."""
    quorum: int = Field(default=1, ge=1, le=20)
    """The number of different people who must approve."""
    not_requester: bool = False
    """`true` if the person who started the run may not approve."""
    expires: Duration | None = None
    """The time until a call without a decision expires. By default it waits."""
    on_expiry: Literal["deny", "escalate"] = "deny"
    """`escalate` asks the next of the `approvers`."""

    @field_validator("review", mode="before")
    @classmethod
    def _read_review(cls, value: Any) -> Any:
        if isinstance(value, dict):
            try:
                return Rubric.model_validate(value)
            except ValidationError as error:
                first = error.errors(include_url=False)[0]
                reason = first["msg"].removeprefix("Value error, ")
                is_unknown = first["type"] == "extra_forbidden"
                raise ValueError(f"{first['loc'][0]}: {'no such setting' if is_unknown else reason}") from None
        if value is None or isinstance(value, Rubric) or (isinstance(value, str) and _FUNCTION.fullmatch(value)):
            return value
        raise ValueError('expected "module:function", or {rubric = "...", model = "..."}')

    @model_validator(mode="after")
    def _check_terms(self) -> Self:
        if (self.review is not None) != (self.then is Verdict.review):
            raise ValueError('then = "review" needs a function or a rubric in review, and review needs then = "review"')
        if self.terms != ApprovalTerms() and self.then not in (Verdict.ask, Verdict.review):
            raise ValueError(f'then = "{self.then}" asks no person: remove the settings of an approval')
        if self.on_expiry == "escalate" and (self.expires is None or len(self.approvers) < 2):
            raise ValueError('on_expiry = "escalate" needs expires, and two approvers or more')
        return self

    @property
    def terms(self) -> ApprovalTerms:
        return ApprovalTerms(**{name: getattr(self, name) for name in ApprovalTerms.model_fields})


class PolicyFile(StrictModel):
    """`policy.toml`."""

    may_loosen: bool = False
    """`true` if `allow` replaces a tool's own `approval`. Otherwise rules can only be stricter."""
    rule: tuple[Rule, ...] = Field(default=(), max_length=200)
    """The rules, in order."""


class PolicyCheckRequest(SparseModel):
    """The input of `check_policy`: calls of the latest reply of the transcript that a cursor names.

    `edits` are changed arguments, by the id of the tool use. `unmade` are the calls that take no step.
    """

    length: int
    head: str
    definition: str
    context: PolicyContext | None
    calls: tuple[str, ...]
    edits: dict[str, dict[str, Any]] = Field(default_factory=dict)
    unmade: tuple[str, ...] = ()


class PolicyLookup(FrozenModel):
    """The input of `find_policy`: the hash of a policy that a person accepts for a run."""

    policy: str


class PolicyFound(FrozenModel):
    """The result of `find_policy`. `found` is true if the worker or the run's store has the policy.

    `current` is the hash of the worker's own policy; empty if it has none.
    """

    found: bool
    current: str = ""


class SharedCall(FrozenModel):
    """A call. `arguments` are left out if they are too large for a history, or no rule reads one."""

    tool_use_id: str
    tool: str
    arguments: dict[str, Any] | None = omit_default(None)
    outcome: str = omit_default("pending")
    at: datetime | None = omit_default(None)


class ReserveRequest(StrictModel):
    """The body of the update `reserve`: calls of the reply at this `place` in the conversation of the run `run`.

    `order` sorts the attempts to get this reply: calls of an earlier attempt were not made. Without `replaces`, only
    the calls of the same tool use are replaced. `outcomes` are those of earlier calls, by tool use. A reader's
    conversation has the calls of the runs `known`, and those of its lane `conversation` that are in `seen`.
    """

    run: str
    place: int = 0
    order: str = ""
    replaces: bool = False
    conversation: str = omit_default("")
    calls: tuple[SharedCall, ...] = omit_default(())
    outcomes: dict[str, str] = omit_default({})
    known: tuple[str, ...] = omit_default(())
    seen: tuple[str, ...] = omit_default(())
    needs_history: bool = omit_default(default=False)


class CallsOfOthers(FrozenModel):
    """The answer: the calls of other runs that were reserved before. `is_cut`: the history does not hold all."""

    counts: dict[str, int] = Field(default_factory=dict)
    history: tuple[SharedCall, ...] = omit_default(())
    is_cut: bool = omit_default(default=False)


class ReservedCall(FrozenModel):
    """A call with its run, the place of its reply, and the order of the attempt that reserved it."""

    run: str
    place: int
    order: str
    conversation: str = omit_default("")
    call: SharedCall


class SharedCallsStart(StrictModel):
    """The input of `SharedCalls`. `root` is the first run of the request."""

    root: str = Field(min_length=1, max_length=1000)


class SharedCallsState(FrozenModel):
    """The state of a `SharedCalls`: its input after continue-as-new. `older` counts calls that are not listed any more,
    by run and tool.
    """

    type: Literal["shared_calls.continue"] = "shared_calls.continue"
    root: str
    calls: tuple[ReservedCall, ...] = ()
    older: dict[str, dict[str, int]] = Field(default_factory=dict)
