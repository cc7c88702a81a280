"""A project's policy: its rules, and their verdict on a call."""

import re
from enum import StrEnum
from typing import Any, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from contracts.duration import Duration
from contracts.models import FrozenModel, SparseModel, StrictModel, omit_default
from contracts.people.rubric import Rubric
from contracts.sender import Sender

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
    the tool's own approval still counts, unless the policy `loosens` it. `terms` are set if people decide. `facts` are
    the facts of the run that the rules looked at.
    """

    verdict: Verdict
    rule: str | None = omit_default(None)
    policy: str
    reason: str = omit_default("")
    loosens: bool = omit_default(default=False)
    terms: ApprovalTerms | None = omit_default(None)
    facts: dict[str, Any] = Field(default_factory=dict, exclude_if=lambda facts: not facts)


class PolicyContext(SparseModel):
    """The facts of a run that its conversation does not hold.

    `policy` is the hash of the policy that the run began with, or that a person accepted for it. `has_read` is
    inherited from a delegating run.
    """

    policy: str
    caller: Sender | None = None
    has_read: tuple[str, ...] = ()


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

    `edits` are changed arguments, by the id of the tool use.
    """

    length: int
    head: str
    definition: str
    context: PolicyContext | None
    calls: tuple[str, ...]
    edits: dict[str, dict[str, Any]] = Field(default_factory=dict)


class PolicyLookup(FrozenModel):
    """The input of `find_policy`: the hash of a policy that a person accepts for a run."""

    policy: str


class PolicyFound(FrozenModel):
    """The result of `find_policy`. `found` is true if the worker or the run's store has the policy.

    `current` is the hash of the worker's own policy; empty if it has none.
    """

    found: bool
    current: str = ""
