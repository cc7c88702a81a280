"""What people send to a run: answers (`human_input`, `answer`) and cancel requests (`cancel`)."""

from enum import StrEnum

from pydantic import Field

from contracts.models import Edge, sparse
from contracts.sender import Sender


class Decision(StrEnum):
    """What a person may decide. Which of these a question takes is in `decisions.run.question`."""

    approve = "approve"  # make this call
    approve_tool = "approve_tool"  # this tool, for the rest of this run
    deny = "deny"  # do not make it; the run goes on
    run_again = "run_again"  # make the call again, though it may have happened
    use_result = "use_result"  # the result is `text`
    give_up = "give_up"  # the model is told that it may have happened
    use_new = "use_new"  # go on with the new definition
    keep_old = "keep_old"  # go on as the run began
    proceed = "continue"  # go on as before
    stop = "stop"  # end the run


class HumanInput(Edge):
    """The body of the signal `human_input` and of the update `answer`.

    `question_id` and `call`, the digest of a call to approve, are optional: what they name must be what is open. An
    answer that names neither is for the question that is open when the run handles it: sent twice, it may answer two.
    """

    question_id: str | None = Field(default=None, max_length=200)
    """If given, it must be an open one; needed where several are open."""
    call: str | None = Field(default=None, max_length=200)
    """The digest of the call to approve; if given, it must be the one that is asked about."""
    text: str | None = Field(default=None, max_length=200_000)
    """The answer; of a denial, the reason; with `use_result`, the result."""
    decision: Decision | None = None
    """What the [question](#decisions) takes."""
    by: str | None = Field(default=None, max_length=200)
    """Who answers, as they say."""
    sender: Sender | None = sparse(None)
    """Where it came in. Perdure's doors set it."""
    signature: str | None = Field(default=None, max_length=200, exclude_if=lambda signature: signature is None)
    """`KEY:BASE64`, over all of this, the run and its execution. Needed where the run names `answer_keys`."""


class CancelRequest(Edge):
    """The body of the signal `cancel`; both fields may be left out, and so may the body."""

    reason: str | None = Field(default=None, max_length=2000)
    """Shown with the run."""
    by: str | None = Field(default=None, max_length=200)
    """Who asks, as they say."""
    sender: Sender | None = sparse(None)
    """Where it came in. Perdure's doors set it."""
