"""What people send to a run: answers (`human_input`, `answer`) and cancel requests (`cancel`)."""

from enum import StrEnum

from pydantic import Field

from contracts.value import Edge


class Decision(StrEnum):
    """What a person may decide. Which of these a question takes is in `decisions.question`."""

    approve = "approve"
    approve_tool = "approve_tool"  # this tool, for the rest of this run
    deny = "deny"
    run_again = "run_again"
    use_result = "use_result"  # the result is `text`
    give_up = "give_up"  # the model is told that it may have happened
    use_new = "use_new"
    keep_old = "keep_old"
    proceed = "continue"
    stop = "stop"


class HumanInput(Edge):
    """The body of the signal `human_input` and of the update `answer`.

    `question_id` and `call`, the digest of a call to approve, are optional: what they name must be what is open.
    """

    question_id: str | None = None
    call: str | None = Field(default=None, max_length=200)
    text: str | None = Field(default=None, max_length=200_000)
    decision: Decision | None = None
    by: str | None = Field(default=None, max_length=200)


class CancelRequest(Edge):
    """The body of the signal `cancel`; both fields may be left out, and so may the body."""

    reason: str | None = Field(default=None, max_length=2000)
    by: str | None = Field(default=None, max_length=200)
