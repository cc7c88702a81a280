"""The content that has arrived for a run and that its loop has not taken in yet. Another execution would not get it."""

from collections.abc import Iterator
from contextlib import contextmanager

from pydantic_core import to_json

from contracts.conversation import SteerRequest
from contracts.run.events import ToolResultPayload
from contracts.run.state import RunState
from contracts.tool import ToolOutcome

MAX_PENDING_MESSAGES = 256 * 1024  # bytes of pending steered messages that another execution begins with


class Inbox:
    def __init__(self) -> None:
        self.messages: list[SteerRequest] = []  # from the user
        self.results: dict[int, ToolOutcome] = {}  # from outside, by step
        self.checking = 0  # answers that are not recorded yet, as their changed arguments are checked
        self.is_open = True  # until the run's end is reported
        self._last: dict[int, ToolResultPayload] = {}  # the result that was applied last, by step
        self._paused: list[int] = []  # steps whose request has not been sent, or not again

    def put_result(self, result: ToolResultPayload, outcome: ToolOutcome) -> None:
        self._last[result.step] = result
        self.results[result.step] = outcome

    def is_new(self, result: ToolResultPayload) -> bool:
        """Return False for an event that is delivered again: it is not the result of the next attempt."""
        is_repeated = result.completed_at is not None and self._last.get(result.step) == result
        return result.step not in self.results and result.step not in self._paused and not is_repeated

    @contextmanager
    def pausing_results(self, step: int) -> Iterator[None]:
        """Accept no result of the step: its request has not been sent, or not again."""
        self._paused.append(step)
        try:
            yield
        finally:
            self._paused.remove(step)

    def take_messages(self, count: int) -> list[SteerRequest]:
        messages, self.messages = self.messages[:count], self.messages[count:]
        return messages

    def holds_updates(self, state: RunState) -> bool:
        """Return whether something has arrived that another execution would not get."""
        results = any(pending.step in self.results for pending in state.pending)
        return results or self.checking > 0 or len(to_json(self.messages)) > MAX_PENDING_MESSAGES
