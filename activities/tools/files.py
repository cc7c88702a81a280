"""The file tools: read, write and list, inside the run's workspace."""

import asyncio
from datetime import timedelta
from io import TextIOWrapper
from typing import Any

from perdure.activities.media.check import HEAD_BYTES, PDF_HEAD, MediaError, media_type_of, within_time
from perdure.activities.media.store import keep_media
from perdure.activities.storage.workspace import ARTIFACTS, OutsideWorkspaceError, Workspace
from perdure.activities.tools.interface import CallContext, TransientToolError
from perdure.contracts.agent import ToolSchema
from perdure.contracts.failures import ToolFault
from perdure.contracts.media import MAX_MEDIA_BYTES
from perdure.contracts.tool import Effect, ToolKind, ToolOutcome, ToolRoute, error_outcome
from perdure.decisions.text.media import describe_media

MAX_READ_CHARACTERS = 16_000  # of one read: even at four bytes each, below the size of an artifact
MAX_LISTED_FILES = 1000  # in one listing

_TIMEOUT = timedelta(seconds=30)
_PATH = {"type": "string", "minLength": 1, "description": "Relative to the workspace, such as artifacts/report.md"}


class ReadFile:
    """The tool `read_file`: part of a text file, counted in characters, or an image or a PDF as the model sees it."""

    route = ToolRoute(name="read_file", kind=ToolKind.native, effect=Effect.read, timeout=_TIMEOUT)
    schema = ToolSchema(
        name="read_file",
        description=(
            f"Read a text file of this run's workspace. At most {MAX_READ_CHARACTERS:,} characters come back at once; "
            "a note at the end says where to read on. You see an image or a PDF as it is."
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
        limit = min(int(arguments.get("limit", MAX_READ_CHARACTERS)), MAX_READ_CHARACTERS)
        try:
            if context.store and (data := await asyncio.to_thread(_read_media_file, context.workspace, path)):
                media = await within_time(keep_media, context.store, data, "", path)
                return ToolOutcome(result=describe_media(media), media=(media,))
            return await asyncio.to_thread(_read_text, context.workspace, path, offset, limit)
        except MediaError as error:
            return error_outcome(ToolFault.invalid_arguments, str(error))
        except (OutsideWorkspaceError, OSError) as error:
            return _to_failure(path, error)


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
            written = await asyncio.to_thread(_write_file, context.workspace, path, data)
        except (OutsideWorkspaceError, OSError) as error:
            return _to_failure(path, error)
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
            files = await asyncio.to_thread(context.workspace.list_files, MAX_LISTED_FILES + 1)
        except OSError as error:
            return _to_failure("the workspace", error)
        lines = [f"{size:>9} {path}" for path, size in files[:MAX_LISTED_FILES]]
        if len(files) > MAX_LISTED_FILES:
            lines.append(f"[there are more; only the first {MAX_LISTED_FILES:,} are listed]")
        return ToolOutcome(result="\n".join(lines) or "[the workspace has no files yet]")


def _read_media_file(workspace: Workspace, path: str) -> bytes | None:
    """Return an image or a PDF, None for any other file."""
    with workspace.open(path) as file:
        head = file.read(HEAD_BYTES)
        if not media_type_of(head) and PDF_HEAD not in head:
            return None
        data = head + file.read(MAX_MEDIA_BYTES)
        return data if media_type_of(data) else None


def _read_text(workspace: Workspace, path: str, offset: int, limit: int) -> ToolOutcome:
    with TextIOWrapper(workspace.open(path), encoding="utf-8", errors="replace", newline="") as file:
        skipped = _skip_characters(file, offset)
        if skipped < offset:
            return error_outcome(
                ToolFault.invalid_arguments,
                f"offset {offset:,} is beyond the end: {path} has {skipped:,} characters",
            )
        text = file.read(limit + 1)
    if "\0" in text:
        return error_outcome(ToolFault.invalid_arguments, f"{path} is not a text file")
    if len(text) > limit:
        end = offset + limit
        text = f"{text[:limit]}\n[cut: characters {offset} to {end}; read on with offset {end}]"
    return ToolOutcome(result=text or "[nothing here: the file ends at this offset]")


def _skip_characters(file: TextIOWrapper, characters: int) -> int:
    """Skip up to `characters` in bounded pieces, and return how many were skipped."""
    skipped = 0
    while skipped < characters and (piece := file.read(min(characters - skipped, 1 << 20))):
        skipped += len(piece)
    return skipped


def _write_file(workspace: Workspace, path: str, data: bytes) -> str:
    normal = workspace.resolve(path, writing=True).relative_to(workspace.root).as_posix()
    workspace.write(path, data)
    return normal


def _to_failure(path: str, error: OutsideWorkspaceError | OSError) -> ToolOutcome:
    """Return an error that the model can act on. Raises TransientToolError for an error of the disk."""
    match error:
        case OutsideWorkspaceError():
            return error_outcome(ToolFault.blocked, str(error))
        case FileNotFoundError():
            return error_outcome(ToolFault.not_found, f"there is no file {path}; list_files shows what there is")
        case IsADirectoryError():
            return error_outcome(ToolFault.invalid_arguments, f"{path} is a folder, not a file")
        case NotADirectoryError():
            return error_outcome(ToolFault.invalid_arguments, f"a folder on the way to {path} is a file")
        case _:
            # Only the reason: the message of an OSError also contains the absolute path.
            raise TransientToolError(ToolFault.tool_error, f"{path}: {error.strerror or 'the disk failed'}")
