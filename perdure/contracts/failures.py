"""The kinds of failure, by who has to act. Each is the `type` of a Temporal ApplicationError."""

from enum import StrEnum


class RunFailure(StrEnum):
    """The reason that a run ended Failed."""

    invalid_input = "InvalidInput"
    """Caller: the start event is not valid. Fix the field that the message names, and start again."""
    unknown_agent = "UnknownAgent"
    """Caller: the worker's project has no such agent. `perdure agents` lists them."""
    bad_project = "BadProject"
    """Operator: `perdure.toml` or an agent file does not load. Fix the line that the message names, restart the
    worker, then resume the run."""
    model_refused = "ModelRefused"
    """Operator: key, model name, address or request was refused (3xx; 4xx except 408, 409, 425, 429; 501, 505). Fix it
    (`perdure doctor`), then resume the run."""
    rate_limited = "RateLimited"
    """Provider: 429 until retries were exhausted. Resume the run later, or name a fallback model."""
    model_unavailable = "ModelUnavailable"
    """Provider: 408, 409, 425, 5xx, broken streams or no connection, until retries were exhausted. Resume the run
    later, or name a fallback model."""
    hard_limit = "HardLimit"
    """Run: its active time is used up. Resume it for the same time again, or raise `hard_limit`."""
    turn_limit = "TurnLimit"
    """Run: a reply took longer than `turn_limit`. Raise it, or lower `max_tokens`, then resume the run."""
    model_unusable = "ModelUnusable"
    """Model: several replies in a row were unusable. Resume the run; if it fails again, use another model."""
    not_resumable = "NotResumable"
    """Caller: the run to resume or fork does not exist or cannot be resumed. The message gives the reason."""


class Stop(StrEnum):
    """The reason that an activity hands a decision back to its run. Not a failure."""

    in_doubt = "InDoubt"
    """The ledger holds a claim without a result, so the call may have happened. The run asks a person."""
    not_begun = "NotBegun"
    """The ledger accepts no claim, or the arguments are not available now. The run retries."""
    definition_changed = "DefinitionChanged"
    """The agent's definition changed since the run began. The run asks a person."""
    context_too_long = "ContextTooLong"
    """The conversation does not fit the model's window. The run shortens it and retries."""
    budget_used_up = "BudgetUsedUp"
    """A budget of the project does not cover the call. The run escalates."""


class ToolFault(StrEnum):
    """The `kind` of a tool's error, as the model sees it."""

    unknown_tool = "unknown_tool"
    """The agent has no tool of this name. To allow it, add it to the agent's `tools`."""
    invalid_arguments = "invalid_arguments"
    """The arguments do not match the tool's schema, or the tool rejected them. The message has details."""
    broken_json = "broken_json"
    """The arguments were not a JSON object, or larger than 1 MiB. If the reply was cut off, raise `max_tokens`."""
    budget = "budget"
    """Steps, reframes, time or the budget of delegations are used up; the call was not made. Raise the limit."""
    too_many = "too_many"
    """Too many calls in one reply, or subtasks in one delegation. The excess was not executed."""
    denied = "denied"
    """A person denied the call, or did not answer within `approval_timeout`."""
    timeout = "timeout"
    """No result within the tool's `timeout`. Raise it if the tool needs longer."""
    unreachable = "unreachable"
    """The tool's server does not answer. Check that it is running and that its address is right."""
    blocked = "blocked"
    """The address may not be fetched, or the path is outside the run's files. `allow_hosts` permits private hosts."""
    too_large = "too_large"
    """The page, answer, result or journal is too large. The message has the limit."""
    not_found = "not_found"
    """The page or file does not exist, or the MCP server no longer has the tool."""
    changed = "changed"
    """The MCP server changed the tool after it was accepted. `perdure tools --check` shows the difference, `--accept`
    accepts it."""
    http_error = "http_error"
    """The server answered with an HTTP error. The message has the status."""
    tool_error = "tool_error"
    """The tool failed. The message has the reason."""
    in_doubt = "in_doubt"
    """The call may have taken effect. Check before you repeat it."""
    interrupted = "interrupted"
    """The run ended before the call did."""
    not_finished = "not_finished"
    """The reply combined `finish` with a call that failed, so the run continues."""
    unknown_agent = "unknown_agent"
    """The agent is not among the `peers`."""
    too_deep = "too_deep"
    """The delegation would exceed `max_depth`."""
    subtask_failed = "subtask_failed"
    """A subtask failed, and with it the delegation. `perdure show` on its run gives the reason."""


class Escalation(StrEnum):
    """The `reason` of an `agent.escalated` event."""

    asked = "asked"
    """The model called `escalate`. The event's `detail` has the reason, its `handoff` the next steps."""
    step_budget = "step_budget"
    """`max_steps` is used up, and the model asked for another step. Start again with a higher limit."""
    turn_budget = "turn_budget"
    """`max_turns` is used up. Start again with a higher limit or a smaller goal."""
    reframe_budget = "reframe_budget"
    """The model asked for more than `max_reframes` reframes. Check that the goal can be met."""
    token_budget = "token_budget"  # noqa: S105 - tokens of a model, no secret
    """`budget_tokens` is used up. Start again with a higher budget, or fork the run: a fork starts at zero."""
    money_budget = "money_budget"
    """`budget_usd` is used up. Start again with a higher budget, or fork the run: a fork starts at zero."""
    shared_budget = "shared_budget"
    """A budget of the project is used up. Wait until it resets, or raise it: `perdure budget`; then fork the run."""
    context = "context"
    """The conversation does not fit the model's window, even after all recoveries. Split the goal."""
    step_never_issued = "step_never_issued"
    """An external tool sent a result for a step that the run never requested. Fix that tool."""
    wrong_tool = "wrong_tool"
    """An external tool sent a result for another tool's step. Fix that tool."""
    result_invalid = "result_invalid"
    """The run has an output schema, and the agent gave no result that matches it. `detail` has the errors."""
    not_accepted = "not_accepted"
    """The outcome did not pass the agent's `accept`, or could not be checked. `detail` has the reason."""
    model_declined = "model_declined"
    """The provider declined to answer (`refusal`). Reword the goal, or use another model."""


HELD = "Held"  # failure type of activities that have not begun, and wait on the server
WORKER_SHUTDOWN = "WorkerShutdown"  # failure type of activities that a stopping worker gives up
