"""The reads of a turn and the next model call in one activity: request and result of `read_and_reflect`."""

from datetime import timedelta

from contracts.duration import Duration
from contracts.models import SparseModel
from contracts.run.compaction import ContextFull
from contracts.run.turn import ModelTurn, TurnRequest
from contracts.tool import ToolCall, ToolOutcome

MAX_FUSED_READS = 16
MAX_READ_TIMEOUT = timedelta(seconds=30)
READS_TIME = timedelta(minutes=3)  # for all attempts of the reads and the delays between them


class FusedRead(ToolCall):
    """A read, and the timeout of its tool."""

    timeout: Duration = timedelta(seconds=30)


class FusedTurnRequest(SparseModel):
    """The input of `read_and_reflect`. `turn.length` and `turn.head` name the conversation before the results.

    The model is not called if the reads take `time_left_ms` or more: the active time until the run's next limit.
    """

    reads: tuple[FusedRead, ...]
    turn: TurnRequest
    time_left_ms: int


class FusedTurn(SparseModel):
    """The outcomes, in the order of the reads, and the reply.

    An outcome is None if the call must still be made, as a call of its own. `head` is the hash of the conversation
    that the reply answers. `reason` says why there is no reply; the model is then called as usual. `interrupted`: the
    worker stopped.
    """

    outcomes: tuple[ToolOutcome | None, ...]
    head: str = ""
    reply: ModelTurn | ContextFull | None = None
    reason: str = ""
    interrupted: bool = False
