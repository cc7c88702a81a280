"""A program that evaluates expressions of rules, one after the other, with bounds on time and memory of its own.

Nothing can stop a running evaluation but the end of its process. A request is the length of the rest in 4 bytes, then
the pickled text and facts; an answer is its length, then JSON: `value`, or the `reason` why there is none.
"""

import pickle
import resource
import sys
from functools import lru_cache
from math import ceil
from typing import Any, BinaryIO

from pydantic_core import to_json

from perdure.decisions.policy.rules import FACTS, Expression, UnevaluableError, compile_expression

CPU_SECONDS = 1  # of one evaluation, and up to one more: the limit of a process counts whole seconds
MEMORY_BYTES = 1024 * 1024 * 1024  # of address space; the libraries take a third of it
LENGTH_BYTES = 4


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer requests until there are no more."""
    while head := requests.read(LENGTH_BYTES):
        text, facts = pickle.loads(requests.read(int.from_bytes(head)))  # noqa: S301 - written by the parent
        _limit_time()
        answer = to_json(_evaluate(text, facts))
        answers.write(len(answer).to_bytes(LENGTH_BYTES) + answer)
        answers.flush()


def _evaluate(text: str, facts: dict[str, Any]) -> dict[str, Any]:
    try:
        value = _compile(text, frozenset(facts)).execute(facts)
    except (UnevaluableError, MemoryError) as error:
        return {"reason": str(error) or "it takes too much memory"}
    return {"value": value if value is None or isinstance(value, bool | str | int | float) else []}


@lru_cache(maxsize=1_000)
def _compile(text: str, names: frozenset[str]) -> Expression:
    return compile_expression(text, FACTS | names)


def _limit_time() -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (ceil(used.ru_utime + used.ru_stime) + CPU_SECONDS, most))


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    serve(sys.stdin.buffer, sys.stdout.buffer)
