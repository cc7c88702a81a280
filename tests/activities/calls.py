"""A tool's call: the context it runs in, and the error it ends with."""

from collections.abc import Awaitable
from datetime import UTC, datetime
from typing import Any

import pytest

from perdure.activities.storage.workspace import Workspace
from perdure.activities.tools.interface import CallContext, TransientToolError
from perdure.contracts.tool import ToolError, ToolOutcome


def new_context(workspace: Workspace, step: int = 1, **fields: Any) -> CallContext:
    return CallContext(
        "r",
        step,
        **{"idempotency_key": f"r:step:{step}:request", **fields},
        requested_at=datetime.now(UTC),
        workspace=workspace,
    )


def error_of(outcome: ToolOutcome | None) -> ToolError:
    assert outcome is not None
    assert outcome.status == "error"
    assert outcome.error is not None
    return outcome.error


async def transient_error(call: Awaitable[object]) -> TransientToolError:
    """The failure of a call that may be tried again."""
    with pytest.raises(TransientToolError) as failure:
        await call
    return failure.value
