"""The file tools: read, write and list, inside the run's workspace."""

import asyncio
from datetime import timedelta
from io import TextIOWrapper
from typing import Any

from activities.storage.workspace import ARTIFACTS, OutsideWorkspace, Workspace
from activities.tools.interface import CallContext, TransientFailure
from contracts.agent import ToolSchema
from contracts.failures import ToolFault
from contracts.tool import Effect, ToolKind, ToolOutcome, ToolRoute, failed

MOST_CHARACTERS = 16_000  # of one read: even at four bytes each, below the size of an artifact
MOST_FILES = 1000  # in one listing

_TIMEOUT = timedelta(seconds=30)
_PATH = {"type": "string", "minLength": 1, "description": "Relative to the workspace, such as artifacts/report.md"}


class ReadFile:
    """The tool `read_file`: part of a text file, counted in characters."""

    route = ToolRoute(name="read_file", kind=ToolKind.native, effect=Effect.read, timeout=_TIMEOUT)
    schema = ToolSchema(
        name="read_file",
        description=(
            f"Read a text file of this run's workspace. At most {MOST_CHARACTERS:,} characters come back at once; "
            "a note at the end says where to read on."
        ),
        input_schema={
            "type": "object",
            "properties": {
                "path": _PATH,
                "offset": {"type": "integer", "minimum": 0, "description": "Characters to skip; default 0"},
                "limit": {"type": "integer", "minimum": 1, "description": "Characters to read at most"},
            },
            "required": ["path"],
            "additionalProperties": False,
        },
    )

    async def run(self, arguments: dict[str, Any], context: CallContext) -> ToolOutcome:
        path = arguments["path"]
        offset = int(arguments.get("offset", 0))
        limit = min(int(arguments.get("limit", MOST_CHARACTERS)), MOST_CHARACTERS)
        try:
            return await asyncio.to_thread(_read, context.workspace, path, offset, limit)
        except (OutsideWorkspace, OSError) as error:
            return _judged(path, error)


class WriteFile:
    """The tool `write_file`: replace a whole file. It is `keyed`, since a second call leaves the same file."""

    route = ToolRoute(name="write_file", kind=ToolKind.native, effect=Effect.keyed, timeout=_TIMEOUT)
    schema = ToolSchema(
        name="write_file",
        description=(
            "Write a text file in this run's workspace; an existing file is replaced as a whole. "
            f"Put what the user should receive below {ARTIFACTS}/."
        ),
        input_schema={
            "type": "object",
            "properties": {
                "path": _PATH,
                "content": {"type": "string", "description": "The whole text of the file"},
            },
            "required": ["path", "content"],
            "additionalProperties": False,
        },
    )

    async def run(self, arguments: dict[str, Any], context: CallContext) -> ToolOutcome:
        path, data = arguments["path"], arguments["content"].encode(errors="replace")
        try:
            written = await asyncio.to_thread(_write, context.workspace, path, data)
        except (OutsideWorkspace, OSError) as error:
            return _judged(path, error)
        artifacts = (written,) if written.startswith(f"{ARTIFACTS}/") else ()
        return ToolOutcome(result=f"wrote {written} ({len(data):,} bytes)", artifacts=artifacts)


class ListFiles:
    """The tool `list_files`: size in bytes and path, one line a file."""

    route = ToolRoute(name="list_files", kind=ToolKind.native, effect=Effect.read, timeout=_TIMEOUT)
    schema = ToolSchema(
        name="list_files",
        description="List the files of this run's workspace: size in bytes and path, one a line.",
        input_schema={"type": "object", "properties": {}, "additionalProperties": False},
    )

    async def run(self, arguments: dict[str, Any], context: CallContext) -> ToolOutcome:  # noqa: ARG002 - takes none
        try:
            files = await asyncio.to_thread(context.workspace.listing, MOST_FILES + 1)
        except OSError as error:
            return _judged("the workspace", error)
        lines = [f"{size:>9} {path}" for path, size in files[:MOST_FILES]]
        if len(files) > MOST_FILES:
            lines.append(f"[there are more; only the first {MOST_FILES:,} are listed]")
        return ToolOutcome(result="\n".join(lines) or "[the workspace has no files yet]")


def _read(workspace: Workspace, path: str, offset: int, limit: int) -> ToolOutcome:
    with TextIOWrapper(workspace.open(path), encoding="utf-8", errors="replace", newline="") as file:
        skipped = _skip(file, offset)
        if skipped < offset:
            return failed(
                ToolFault.invalid_arguments,
                f"offset {offset:,} is beyond the end: {path} has {skipped:,} characters",
            )
        text = file.read(limit + 1)
    if "\0" in text:
        return failed(ToolFault.invalid_arguments, f"{path} is not a text file")
    if len(text) > limit:
        end = offset + limit
        text = f"{text[:limit]}\n[cut: characters {offset} to {end}; read on with offset {end}]"
    return ToolOutcome(result=text or "[nothing here: the file ends at this offset]")


def _skip(file: TextIOWrapper, characters: int) -> int:
    """Skip up to `characters` in bounded pieces, and return how many were skipped."""
    skipped = 0
    while skipped < characters and (piece := file.read(min(characters - skipped, 1 << 20))):
        skipped += len(piece)
    return skipped


def _write(workspace: Workspace, path: str, data: bytes) -> str:
    normal = workspace.resolve(path, writing=True).relative_to(workspace.root).as_posix()
    workspace.write(path, data)
    return normal


def _judged(path: str, error: OutsideWorkspace | OSError) -> ToolOutcome:
    """Return an error that the model can act on. Raises TransientFailure for an error of the disk."""
    match error:
        case OutsideWorkspace():
            return failed(ToolFault.blocked, str(error))
        case FileNotFoundError():
            return failed(ToolFault.not_found, f"there is no file {path}; list_files shows what there is")
        case IsADirectoryError():
            return failed(ToolFault.invalid_arguments, f"{path} is a folder, not a file")
        case NotADirectoryError():
            return failed(ToolFault.invalid_arguments, f"a folder on the way to {path} is a file")
        case _:
            # Only the reason: the message of an OSError also contains the absolute path.
            raise TransientFailure(ToolFault.tool_error, f"{path}: {error.strerror or 'the disk failed'}")
