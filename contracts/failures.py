"""The kinds of failure, by whose fault they are. Each is the `type` of a Temporal ApplicationError."""

from enum import StrEnum


class RunFailure(StrEnum):
    """Why a run ended Failed."""

    invalid_input = "InvalidInput"  # the caller: the start event does not validate
    unknown_agent = "UnknownAgent"  # the caller: no such agent in the worker's project
    bad_project = "BadProject"  # the operator: perdure.toml or an agent file does not load
    model_refused = "ModelRefused"  # the operator: key, model name or request refused (400, 401, 403, 404)
    rate_limited = "RateLimited"  # the provider: 429 until the retries were used up
    model_unavailable = "ModelUnavailable"  # the provider: 5xx, broken streams, no connection, to the end
    hard_limit = "HardLimit"  # the run: its active time is used up
    model_unusable = "ModelUnusable"  # the model: nothing usable in several replies in a row
    not_resumable = "NotResumable"  # the caller: the run to resume or fork is not there, or not one to resume


class Stop(StrEnum):
    """Why an activity did not do its work, and asks the run to decide. No failure of anybody."""

    in_doubt = "InDoubt"  # the ledger holds a claim without a result
    not_begun = "NotBegun"  # the ledger takes no claim, or the arguments cannot be had: later, perhaps
    definition_changed = "DefinitionChanged"
    context_too_long = "ContextTooLong"  # the conversation does not fit the model's window


class ToolFault(StrEnum):
    """The `kind` of a tool's error, as the model sees it."""

    unknown_tool = "unknown_tool"
    invalid_arguments = "invalid_arguments"
    broken_json = "broken_json"
    budget = "budget"
    too_many = "too_many"  # calls in one reply
    denied = "denied"
    timeout = "timeout"
    unreachable = "unreachable"
    blocked = "blocked"
    too_large = "too_large"
    not_found = "not_found"
    changed = "changed"  # the tool's server defines it otherwise than it was accepted
    http_error = "http_error"
    tool_error = "tool_error"
    in_doubt = "in_doubt"  # the call may have happened
    interrupted = "interrupted"  # the run ended before the call did
    not_finished = "not_finished"  # `finish` beside a call that failed
    unknown_agent = "unknown_agent"  # none of the agent's peers
    too_deep = "too_deep"  # a delegation below `max_depth`
    subtask_failed = "subtask_failed"  # and with it the whole delegation


class Escalation(StrEnum):
    """The `reason` of an `agent.escalated` event."""

    asked = "asked"  # the model called `escalate`
    step_budget = "step_budget"
    turn_budget = "turn_budget"
    reframe_budget = "reframe_budget"
    token_budget = "token_budget"  # noqa: S105 - tokens of a model, no secret
    money_budget = "money_budget"
    context = "context"  # it does not fit the model's window, and all recoveries are used up
    step_never_issued = "step_never_issued"
    wrong_tool = "wrong_tool"
    model_declined = "model_declined"
