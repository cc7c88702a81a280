"""The activity `take_attachments`: the attachments of a message, checked and copied into the run's store."""

import asyncio
import re
from hashlib import sha256
from pathlib import PurePosixPath

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.effects.attempts import heartbeating
from activities.media.check import MediaError, within_time
from activities.media.store import keep_media, read_media
from activities.project import Project
from activities.providers.options import visible_blocks
from activities.run.definition import read_definition
from activities.storage.store import StoredFileChangedError
from activities.storage.workspace import ARTIFACTS, OutsideWorkspaceError, Workspace
from activities.temporal import own_run_id
from activities.tools.content_type import suffix_of
from contracts.agent import Definition
from contracts.failures import RunFailure
from contracts.media import MAX_MEDIA_BYTES, Attached, Attachment, AttachRequest, StoredMedia
from contracts.models import escape_unprintable
from decisions.ids import UPLOADS_STORE
from decisions.model_names import provider_of
from decisions.run.compaction import COMPACT_AT
from decisions.text.media import media_block, media_tokens

INPUTS = f"{ARTIFACTS}/inputs"  # forks and later turns of a conversation get it with the artifacts


class MediaFiles:
    def __init__(self, project: Project) -> None:
        self._project = project

    @activity.defn
    async def take_attachments(self, request: AttachRequest) -> Attached:
        """Check the attachments, and copy them into the run's store and workspace.

        Raises ApplicationError `InvalidInput` if an attachment of a start is refused, if no model of the agent can see
        it, or if they fill the model's window.
        """
        media: list[StoredMedia] = []
        refused: list[str] = []
        async with heartbeating(own_run_id):
            for attachment in request.attachments:
                try:
                    media.append(await self._take(attachment))
                except MediaError as error:
                    refused.append(str(error))
            if request.definition is not None:
                store = self._project.stores.of(own_run_id())
                definition = await read_definition(store, request.definition)
                refused = refused or self._start_rejections(media, definition)
                if refused:
                    message = f"payload.attachments: {'; '.join(refused)}"
                    raise ApplicationError(message, type=RunFailure.invalid_input, non_retryable=True)
        return Attached(media=tuple(media), refused=tuple(refused))

    async def _take(self, attachment: Attachment) -> StoredMedia:
        """Raises MediaError, and OSError of a disk that may come back."""
        name = escape_unprintable(attachment.name)
        workspace, store = self._project.workspace(own_run_id()), self._project.stores.of(own_run_id())
        data = await asyncio.to_thread(self._read_source, attachment, name)
        media = await within_time(keep_media, store, data, name, attachment.path)
        if attachment.path is not None:
            return media
        path = await asyncio.to_thread(_write_input, workspace, media, data)
        return media.model_copy(update={"path": path})

    def _read_source(self, attachment: Attachment, name: str) -> bytes:
        try:
            if attachment.sha256 is not None:
                return read_media(self._project.stores.of(UPLOADS_STORE), attachment.sha256)
            run_id, _, path = (attachment.artifact or "").partition("/")
            workspace = self._project.workspace(run_id or own_run_id())
            with workspace.open(attachment.path or path) as file:
                return file.read(MAX_MEDIA_BYTES + 1)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            found = f"no upload has the hash {attachment.sha256}" if attachment.sha256 else "there is no such file"
            raise MediaError(f"{name}: {found}") from None
        except (OutsideWorkspaceError, StoredFileChangedError) as error:
            raise MediaError(f"{name}: {error}") from None

    def _start_rejections(self, media: list[StoredMedia], definition: Definition) -> list[str]:
        """Return the reasons why the agent's models cannot begin with the media."""
        names = [provider_of(model, self._project.providers) for model in definition.models]
        chat = self._project.chat_providers
        seen = {
            kind
            for provider, model in names
            for kind in visible_blocks(model, definition.options, is_chat=provider in chat)
        }
        models, tokens = ", ".join(definition.models), sum(map(media_tokens, media))
        window = self._project.window_of(*definition.models)
        if blind := [item.name for item in media if media_block(item)["type"] not in seen]:
            reason = f"agent {definition.agent} ({models}) cannot see it; set `sees` of [model] if it can"
            return [f"{', '.join(blind)}: {reason}"]
        if tokens > COMPACT_AT * window:
            return [f"about {tokens:,} tokens, too many for the window of {models}, {window:,}; attach fewer pages"]
        return []


def _write_input(workspace: Workspace, media: StoredMedia, data: bytes) -> str | None:
    """Write the file where the run's tools find it. Return its path, None if the run has no room for it."""
    stem = re.sub(r"[^\w .-]+", "_", PurePosixPath(media.name).stem).strip(". ")[:80] or "file"
    suffix = suffix_of(media.media_type)
    path = f"{INPUTS}/{stem}{suffix}"
    try:
        if workspace.is_taken(path, data):
            path = f"{INPUTS}/{stem}-{sha256(data).hexdigest()[:8]}{suffix}"
        workspace.write(path, data)
    except OutsideWorkspaceError:
        return None
    return path
