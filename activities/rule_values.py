"""The values of rules' expressions: quick ones in place, all others in a process with a deadline."""

import asyncio
import atexit
import os
import pickle
import select
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from time import monotonic
from typing import Any, TypeVar

from pydantic_core import from_json

from perdure.decisions.policy.rules import CheckedFacts, Expression, FindValue, UnevaluableError, find_value

R = TypeVar("R")

PROCESSES = 2  # each evaluates one expression at a time
ANSWER_SECONDS = 30.0  # of the clock, for one expression and the start of a process
RULES_SECONDS = 30.0  # of the clock, for all expressions of a reply or an event
TOO_SLOW = "it takes too long, or too much memory"
_LENGTH_BYTES = 4
_ENVIRONMENT = ("PATH", "LD_LIBRARY_PATH", "SYSTEMROOT")


@dataclass
class RuleReading:
    """Evaluates the expressions that one reply or event needs, until their time is used up."""

    seconds: float = RULES_SECONDS

    async def run(self, work: Callable[[FindValue], R], expressions: Iterable[Expression], facts: CheckedFacts) -> R:
        """Run work that finds values of these expressions: here if all of them are quick, else in a thread."""
        if facts.is_small and all(expression.is_simple for expression in expressions):
            return work(find_value)
        return await asyncio.get_running_loop().run_in_executor(_threads(os.getpid()), work, self._find_value)

    def _find_value(self, expression: Expression, facts: CheckedFacts) -> Any:
        """Return the value. Blocking. Raises UnevaluableError."""
        known = expression.select_facts(facts)
        if facts.is_small and expression.is_simple:
            return expression.execute(known)
        if self.seconds <= 0:
            raise UnevaluableError("the rules before it took too long")
        began = monotonic()
        try:
            answer = _processes(os.getpid()).ask(pickle.dumps((expression.text, known)))
        finally:
            self.seconds -= monotonic() - began
        if "reason" in answer:
            raise UnevaluableError(answer["reason"])
        return answer["value"]


@cache
def _threads(_process_id: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(PROCESSES, thread_name_prefix="rules")


@cache
def _processes(_process_id: int) -> "_Processes":
    processes = _Processes()
    atexit.register(processes.stop)
    return processes


class _Processes:
    """The processes that are idle. One that does not answer in time is ended."""

    def __init__(self) -> None:
        self._idle: list[subprocess.Popen[bytes]] = []
        self._lock = threading.Lock()

    def ask(self, data: bytes) -> dict[str, Any]:
        """Return the answer. Raises UnevaluableError if the evaluation is beyond its bounds."""
        process = self._take()
        try:
            answer = _exchange(process, data)
        except (OSError, EOFError, TimeoutError):
            _end(process)
            raise UnevaluableError(TOO_SLOW) from None
        except BaseException:
            _end(process)
            raise
        with self._lock:
            self._idle.append(process)
        return answer

    def _take(self) -> "subprocess.Popen[bytes]":
        with self._lock:
            while self._idle:
                if (process := self._idle.pop()).poll() is None:
                    return process
                _end(process)
        return _start()

    def stop(self) -> None:
        with self._lock:
            for process in self._idle:
                _end(process)
            self._idle.clear()


def _start() -> "subprocess.Popen[bytes]":
    environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "perdure.activities.rule_process"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # where the library prints what it panics of
        env=environment,
        bufsize=0,
        start_new_session=True,  # an interrupt at the terminal is for the worker
    )


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def _exchange(process: "subprocess.Popen[bytes]", data: bytes) -> dict[str, Any]:
    """Raises EOFError, OSError and TimeoutError."""
    if process.stdin is None or process.stdout is None:
        raise AssertionError("the process has pipes")
    until = monotonic() + ANSWER_SECONDS
    message = memoryview(len(data).to_bytes(_LENGTH_BYTES) + data)
    while message:
        message = message[process.stdin.write(message) or 0 :]
    length = int.from_bytes(_read(process.stdout.fileno(), _LENGTH_BYTES, until))
    answer: dict[str, Any] = from_json(_read(process.stdout.fileno(), length, until))
    return answer


def _read(pipe: int, length: int, until: float) -> bytes:
    data = b""
    while len(data) < length:
        if not select.select([pipe], [], [], max(until - monotonic(), 0))[0]:
            raise TimeoutError
        if not (piece := os.read(pipe, length - len(data))):
            raise EOFError
        data += piece
    return data
