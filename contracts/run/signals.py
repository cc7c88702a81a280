"""Messages from people to a run: answers (`human_input`, `answer`) and cancel requests (`cancel`)."""

from enum import StrEnum
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

from contracts.media import Attachments
from contracts.models import JsonResult, StrictModel, check_schema_bounds, omit_default, replace_surrogates
from contracts.sender import Sender


class Decision(StrEnum):
    """A person's decision. `decisions.run.question` defines the decisions that each kind of question accepts."""

    approve = "approve"  # make this call
    approve_tool = "approve_tool"  # allow this tool for the rest of the run
    deny = "deny"  # do not make the call; the run continues
    run_again = "run_again"  # make the call again, although it may have taken effect
    use_result = "use_result"  # the result is `text`
    give_up = "give_up"  # the model learns that the call may have taken effect
    use_new = "use_new"  # continue with the new definition
    keep_old = "keep_old"  # continue with the old definition
    proceed = "continue"  # continue as before
    stop = "stop"  # end the run


ChangedArguments = Annotated[
    dict[str, JsonResult], BeforeValidator(replace_surrogates), AfterValidator(check_schema_bounds)
]


class HumanInput(StrictModel):
    """The body of the signal `human_input` and of the update `answer`.

    `question_id` and `call`, the digest of a call to approve, are optional: if given, they must match what is open. An
    answer without either is for the question that is open when the run handles it: sent twice, it may answer two.
    """

    question_id: str | None = Field(default=None, max_length=200)
    """An open question; required if several are open."""
    call: str | None = Field(default=None, max_length=200)
    """The digest of the call to approve; optional. If set, it must match the question's."""
    text: str | None = Field(default=None, max_length=200_000)
    """The answer, the reason for a denial, or the result for `use_result`."""
    attachments: Attachments = omit_default(())
    """Images and PDF that belong to the answer of a `question`."""
    decision: Decision | None = None
    """A decision that the [question](#decisions) accepts."""
    arguments: ChangedArguments | None = Field(default=None, exclude_if=lambda arguments: arguments is None)
    """With `approve`: the arguments to make the call with, in place of the proposed ones."""
    by: str | None = Field(default=None, max_length=200)
    """The person who answers, self-declared."""
    sender: Sender | None = omit_default(None)
    """The entry point that it came through. Set by Perdure."""
    signature: str | None = Field(default=None, max_length=200, exclude_if=lambda signature: signature is None)
    """`KEY:BASE64`, over all fields, the run and its execution. Required if the run has `answer_keys`."""


class EndWatcher(StrictModel):
    """The body of the signal `watch_end`: a workflow that waits for the run's end."""

    workflow_id: str = Field(min_length=1, max_length=1000)
    """The workflow to signal `run_ended` as the run ends."""


class EndedRun(StrictModel):
    """The body of the signal `run_ended`, which a run sends to its watchers as it ends."""

    run_id: str = Field(min_length=1, max_length=1000)
    """The run; its workflow closes next."""


class CancelRequest(StrictModel):
    """The body of the signal `cancel`. The body and its fields are optional."""

    reason: str | None = Field(default=None, max_length=2000)
    """Shown with the run."""
    by: str | None = Field(default=None, max_length=200)
    """The person who cancels, self-declared."""
    sender: Sender | None = omit_default(None)
    """The entry point that it came through. Set by Perdure."""
