"""The queue of admitted messages: plans take turns, and within each plan its tasks (C3)."""

from collections import deque
from collections.abc import Collection

from perdure.features.mailbox.contract import InboxMessage

MAX_RUNNING = 200  # tasks that run at once; beyond them, one of each plan that has none running
MAX_WAITING = 10_000  # admitted messages; beyond them, files wait in the incoming folder, except for plans without any


class TurnQueue:
    """Admitted messages by plan and task, both in the order of their next turn."""

    def __init__(self) -> None:
        self._plans: dict[str, dict[str, deque[InboxMessage]]] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, message: InboxMessage) -> None:
        self._plans.setdefault(message.plan_id, {}).setdefault(message.task_id, deque()).append(message)
        self._size += 1

    def has_room(self, plan: str) -> bool:
        """Return whether more messages of a plan may be admitted."""
        return self._size < MAX_WAITING or plan not in self._plans

    def take(self, running: Collection[str]) -> InboxMessage | None:
        """Return the next message, if it may run beside those that are `running`, which are named by their plans."""
        is_full = len(running) >= MAX_RUNNING
        plan = next((name for name in self._plans if not is_full or name not in running), None)
        return None if plan is None else self._take_from(plan)

    def _take_from(self, plan: str) -> InboxMessage:
        tasks = self._plans.pop(plan)
        task = next(iter(tasks))
        messages = tasks.pop(task)
        message = messages.popleft()
        if messages:
            tasks[task] = messages
        if tasks:
            self._plans[plan] = tasks
        self._size -= 1
        return message
