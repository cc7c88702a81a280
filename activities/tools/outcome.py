"""An outcome as it is recorded: within its bounds, readable, and with a large result as an artifact."""

from typing import Any

from pydantic_core import from_json, to_json

from activities.storage.workspace import OutsideWorkspaceError, Workspace
from contracts.failures import ToolFault
from contracts.models import NESTING_MARGIN
from contracts.strict_input import find_flaw
from contracts.tool import MAX_ERROR, MAX_RESULT_BYTES, LargeResult, ToolCall, ToolOutcome, error_outcome

INLINE_BYTES = 64 * 1024  # of a result's JSON; more becomes an artifact
EXCERPT_BYTES = 4 * 1024
CUT_MARGIN = 64 * 1024  # characters


def reject_unreadable(outcome: ToolOutcome) -> ToolOutcome:
    """Return the outcome, or an error if the run could not read it back (lone surrogates, very deep nesting)."""
    try:
        from_json(b"%b%b%b" % (b"[" * NESTING_MARGIN, to_json(outcome), b"]" * NESTING_MARGIN))
    except ValueError as error:
        reason = find_flaw({"result": outcome.result}) or str(error)
        return error_outcome(
            ToolFault.tool_error, f"the call was made, but what it returned is no usable JSON: {reason}"
        )
    return outcome


def bound_result(outcome: ToolOutcome) -> ToolOutcome:
    """Cut a result to its first `MAX_RESULT_BYTES`, as text; return a smaller outcome unchanged."""
    result = outcome.result
    try:
        data = result.encode(errors="surrogatepass") if isinstance(result, str) else to_json(result)
    except ValueError:  # `reject_unreadable` reports it
        return outcome
    if len(data) <= MAX_RESULT_BYTES:
        return outcome
    return outcome.model_copy(update={"result": data[:MAX_RESULT_BYTES].decode(errors="ignore")})


def drop_cut_end(outcome: ToolOutcome) -> ToolOutcome:
    """Remove the last characters, which may contain half of a secret after the cut."""
    return outcome.model_copy(update={"result": outcome.result[:-CUT_MARGIN]})


def cut_error(text: str) -> str:
    """Return at most MAX_ERROR characters, with a note of how many are missing."""
    if len(text) <= MAX_ERROR:
        return text
    shown = MAX_ERROR - 60  # the mark is shorter
    return f"{text[:shown]}\n… (cut: {len(text) - shown:,} more characters)"


def is_large(outcome: ToolOutcome) -> bool:
    return len(to_json(outcome.result)) > INLINE_BYTES or (
        outcome.error is not None and len(outcome.error.message) > MAX_ERROR
    )


def fit_result(
    outcome: ToolOutcome, call: ToolCall | LargeResult, workspace: Workspace, *, is_cut: bool = False
) -> ToolOutcome:
    """Store a large result as an artifact and keep an excerpt of it; cut a large error (A9).

    If the artifact cannot be written, the outcome still has the excerpt, since the call has been made.
    """
    if outcome.error is not None:
        error = outcome.error.model_copy(update={"message": cut_error(outcome.error.message)})
        return outcome.model_copy(update={"error": error, "result": None})
    is_text = isinstance(outcome.result, str)
    data = outcome.result.encode() if isinstance(outcome.result, str) else to_json(outcome.result, indent=2)
    content_type = "text/plain" if is_text else "application/json"
    result: dict[str, Any] = {
        "artifact_path": None,
        "content_type": content_type,
        "bytes": len(data),
        "excerpt": data[:EXCERPT_BYTES].decode(errors="ignore"),
    }
    if is_cut:
        result["lost"] = f"a result may have {MAX_RESULT_BYTES:,} bytes: only its first part is left"
    try:
        result["artifact_path"] = workspace.write_artifact(f"{call.tool}-{call.step:02}", content_type, data)
    except (OSError, OutsideWorkspaceError) as error:
        result["lost"] = f"only the excerpt is left, the disk refused the rest: {error}"
    return outcome.model_copy(update={"result": result})
