"""Calls that a server does not finish at once: when its task is looked at, and what it asks people."""

import re
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

from perdure.contracts.run.signals import Decision, HumanInput
from perdure.contracts.tool import InputRequest, ServerTask, Unfinished
from perdure.decisions.people.form import describe_form, read_form
from perdure.decisions.text.formatting import format_task, truncate

MAX_INPUTS = 10  # of one look, or of one call
MAX_TEXT = 4000  # characters of a server's message to a person
MAX_URL = 2000
MAX_ROUNDS = 20  # in which the server of a call asks people
SENDABLE = ("accept", "decline", "cancel")  # responses of MCP; ours are `sent`, and `none` for what is not carried out
LEAST_PAUSE, MOST_PAUSE = 0.2, 300.0  # seconds between two looks
SKEW = timedelta(minutes=5)  # by which a server may keep a task longer, by its own clock
UNSEEN = timedelta(days=1)  # after which a task that cannot be looked at is in doubt, if it does not expire before
_HOST = re.compile(r"[a-z0-9.-]{1,253}|\[[0-9a-f:.]+\]")
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


def pause_before_check(task: ServerTask, now: datetime) -> timedelta:
    """Return the time until the next look: the server's, longer for an old task, and not beyond its expiry."""
    age = (now - task.created_at).total_seconds()
    seconds = min(max(task.poll_ms / 1000, age / 20, LEAST_PAUSE), MOST_PAUSE)
    if task.expires_at is not None and now < task.expires_at:
        seconds = min(seconds, max((task.expires_at - now).total_seconds(), LEAST_PAUSE))
    return timedelta(seconds=seconds)


def is_given_up(task: ServerTask, now: datetime) -> bool:
    """Return whether no further look is worth it: the task's time is over, or it was not seen for a day."""
    return now > task.seen_at + UNSEEN or (task.expires_at is not None and now > task.expires_at + SKEW)


def format_input(asked: InputRequest, left: Unfinished, call: str) -> str:
    """Return the question to a person, with the host of a link before the server's own words."""
    head = f"The server {left.server}, in `{truncate(call, 200)}`"
    said = f"\n\n{asked.message}" if asked.message else ""
    until = f"\n\n{format_task(left.task)}" if left.task else ""
    if asked.url:
        host = urlsplit(asked.url).netloc
        opened = "Perdure does not open it. Answer continue once you have opened it, or deny"
        return f"{head}, wants you to open a page of {host}{said}\n\n{asked.url}\n\n{opened}.{until}"
    if asked.form is None:
        rest = "Answer deny to cancel the task, or continue to wait for its end"
        return f"{head}, wants what Perdure does not do: {asked.refused}.{said}\n\n{rest}.{until}"
    fields = describe_form(asked.form)
    ways = "Answer with the values, in lines of name: value or as JSON; continue takes the defaults; deny declines"
    return f"{head}, asks{said}\n\n{fields}\n\n{ways}.{until}"


def to_response(asked: InputRequest, answer: HumanInput) -> dict[str, Any]:
    """Return the `ElicitResult` of an answer that the question has accepted; for what was refused, ours."""
    if answer.decision is Decision.deny:
        return {"action": "decline"}
    if asked.refused:
        return {"action": "none"}
    if asked.form is None:
        return {"action": "accept"}
    return {"action": "accept", "content": read_form(asked.form, answer.text or "")}


def url_flaw(url: Any) -> str | None:
    """Return the reason why a person is not asked to open an address, if any."""
    if not isinstance(url, str) or len(url) > MAX_URL or not re.fullmatch(r"[!-~]+", url) or "\\" in url:
        return "its link is no address in plain characters"
    try:
        parts = urlsplit(url)
        host, _ = _host_of(url), parts.port
    except ValueError:
        return "its link is no address"
    if parts.username is not None or parts.password is not None or not _HOST.fullmatch(host):
        return "its link hides its host"
    if parts.scheme == "https" or (parts.scheme == "http" and host in _LOOPBACK):
        return None
    return f"its link is {parts.scheme}, not https"


def _host_of(url: str) -> str:
    host = urlsplit(url).hostname or ""
    return f"[{host}]" if ":" in host else host
