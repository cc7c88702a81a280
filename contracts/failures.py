"""The kinds of failure, by whose fault they are. Each is the `type` of a Temporal ApplicationError."""

from enum import StrEnum


class RunFailure(StrEnum):
    """Why a run ended Failed."""

    invalid_input = "InvalidInput"
    """The caller: the start event does not validate. The message names the field; mend it, and start again."""
    unknown_agent = "UnknownAgent"
    """The caller: no such agent in the worker's project. `perdure agents` shows who there is."""
    bad_project = "BadProject"
    """The operator: `perdure.toml` or an agent file does not load. The message names file and line; resume the run
    when it is mended and the worker has been started again."""
    model_refused = "ModelRefused"
    """The operator: key, model name, address or request was refused (3xx; 4xx but 408, 409, 425, 429; 501, 505). Mend
    it (`perdure doctor`), then resume the run."""
    rate_limited = "RateLimited"
    """The provider: 429 until the retries were used up. Resume the run later, or name a fallback model."""
    model_unavailable = "ModelUnavailable"
    """The provider: 408, 409, 425, 5xx, broken streams, no connection, until the retries were used up. Resume the run
    later, or name a fallback model."""
    hard_limit = "HardLimit"
    """The run: its active time is used up. Resume it for as much time again, or raise `hard_limit`."""
    turn_limit = "TurnLimit"
    """The run: a reply was still coming after `turn_limit`. Raise it, or lower `max_tokens`, then resume the run."""
    model_unusable = "ModelUnusable"
    """The model: nothing usable in several replies in a row. Resume the run, with another model if it comes again."""
    not_resumable = "NotResumable"
    """The caller: the run to resume or fork is not there, or not one to resume. The message says why."""


class Stop(StrEnum):
    """Why an activity did not do its work, and asks the run to decide. No failure of anybody."""

    in_doubt = "InDoubt"
    """The ledger holds a claim without a result, so the call may have happened. The run asks a person."""
    not_begun = "NotBegun"
    """The ledger takes no claim, or the arguments cannot be had just now. The run tries again."""
    definition_changed = "DefinitionChanged"
    """The agent is defined otherwise than when the run began. The run asks a person."""
    context_too_long = "ContextTooLong"
    """The conversation does not fit the model's window. The run makes it shorter, and asks again."""


class ToolFault(StrEnum):
    """The `kind` of a tool's error, as the model sees it."""

    unknown_tool = "unknown_tool"
    """The agent has no tool of this name. Where it should, add it to the agent's `tools`."""
    invalid_arguments = "invalid_arguments"
    """The arguments do not fit the tool's schema, or the tool refused them. The message says what does not fit."""
    broken_json = "broken_json"
    """The arguments were no JSON object, or more than 1 MiB. Where the reply was cut off, raise `max_tokens`."""
    budget = "budget"
    """Steps, reframes, time or the delegations' budget are used up, and the call was not made. Raise the limit."""
    too_many = "too_many"
    """More calls in one reply, or subtasks in one delegation, than are taken. Those beyond were not made."""
    denied = "denied"
    """A person denied the call, or did not answer within `approval_timeout`."""
    timeout = "timeout"
    """No result within the tool's `timeout`. Raise it where the tool needs longer."""
    unreachable = "unreachable"
    """The tool's server does not answer. See whether it runs, and whether its address is right."""
    blocked = "blocked"
    """An address that must not be fetched, or a path that is none of the run's. `allow_hosts` opens private ones."""
    too_large = "too_large"
    """The page, answer, result or journal has more bytes than are taken. The message has the limit."""
    not_found = "not_found"
    """There is no such page or file, or the MCP server has the tool no more."""
    changed = "changed"
    """The MCP server defines the tool otherwise than it was accepted. `perdure tools --check` shows the difference,
    `--accept` takes it."""
    http_error = "http_error"
    """The other side answered with an error of HTTP. The message has its status."""
    tool_error = "tool_error"
    """The tool failed, and its message says why."""
    in_doubt = "in_doubt"
    """The call may have happened, and nobody knows. Look at the other side before you make it again."""
    interrupted = "interrupted"
    """The run ended before the call did."""
    not_finished = "not_finished"
    """`finish` stood beside a call that failed, so the run goes on."""
    unknown_agent = "unknown_agent"
    """None of the agent's `peers`."""
    too_deep = "too_deep"
    """A delegation below `max_depth`."""
    subtask_failed = "subtask_failed"
    """A subtask failed, and with it the whole delegation. Its run says why: `perdure show`."""


class Escalation(StrEnum):
    """The `reason` of an `agent.escalated` event."""

    asked = "asked"
    """The model called `escalate`. The event's `detail` says why, its `handoff` how to go on."""
    step_budget = "step_budget"
    """`max_steps` are used up, and the model wanted another. Start again with more of them."""
    turn_budget = "turn_budget"
    """`max_turns` are used up. Start again with more of them, or with less to do."""
    reframe_budget = "reframe_budget"
    """The model wanted to change its frame more than `max_reframes` times. See whether the goal can be met as it is."""
    token_budget = "token_budget"  # noqa: S105 - tokens of a model, no secret
    """`budget_tokens` are used up. Start again with more, or fork the run: a fork begins at nothing."""
    money_budget = "money_budget"
    """`budget_usd` is used up. Start again with more, or fork the run: a fork begins at nothing."""
    context = "context"
    """The conversation does not fit the model's window, and all recoveries are used up. Split the goal."""
    step_never_issued = "step_never_issued"
    """A tool outside sent a result for a step that the run never asked for. Mend that tool."""
    wrong_tool = "wrong_tool"
    """A tool outside sent a result for a step that was another tool's. Mend that tool."""
    model_declined = "model_declined"
    """The model's provider declined to answer (`refusal`). Say the goal otherwise, or take another model."""
