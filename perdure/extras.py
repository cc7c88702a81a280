"""The extras of the package: what an installation may lack, and the one line with the command that adds it."""

from collections.abc import Iterator
from contextlib import contextmanager

from perdure.decisions.errors import ReportedError

# The extra that brings each library, by import name. Those that a setting asks for are named where it is read.
_WORKER = (
    "anthropic",
    "anyio",
    "bs4",
    "cel",
    "httpcore",
    "httpx",
    "httpx2",
    "markdownify",
    "mcp",
    "mcp_types",
    "standardwebhooks",
    "starlette",
    "uvicorn",
    "watchfiles",
)
_EXTRAS = {
    **dict.fromkeys(_WORKER, "worker"),
    **dict.fromkeys(("fastapi", "h11"), "gateway"),
    **dict.fromkeys(("PIL", "pypdf"), "media"),
    "cryptography": "keys",
    **dict.fromkeys(("a2a", "sse_starlette"), "a2a"),
}
_BROUGHT = {
    "a2a": "A2A is",
    "gateway": "the gateway is",
    "keys": "encryption and signatures are",
    "media": "the readers of images and PDF are",
    "worker": "the worker is",
}


class MissingExtraError(ReportedError, ImportError):
    """A part of Perdure is not installed. The message is one line, with the command that installs it."""


def install_command(extra: str) -> str:
    return f"pip install 'perdure[{extra}]'"


def describe_missing(error: ModuleNotFoundError) -> str | None:
    """Return the line for an import that an extra would satisfy, None for another one."""
    extra = _EXTRAS.get((error.name or "").partition(".")[0])
    return f"{_BROUGHT[extra]} not installed here: {install_command(extra)}" if extra else None


@contextmanager
def naming_extras() -> Iterator[None]:
    """Raise MissingExtraError for an import in the block that an extra would satisfy."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (line := describe_missing(error)) is None:
            raise
        raise MissingExtraError(line) from None
