"""Files of a tool's result: each is an artifact, and the model sees images and PDF."""

from typing import Any

from activities.media.check import MediaError, is_media_type, media_type_of
from activities.media.store import keep_media
from activities.storage.store import Store
from activities.storage.workspace import OutsideWorkspaceError, Workspace
from contracts.media import StoredMedia
from contracts.tool import ToolOutcome

MAX_SHOWN_MEDIA = 20  # of one result


class ResultFiles:
    """The files of one result, whose names begin with `stem`. All methods block."""

    def __init__(self, stem: str, workspace: Workspace, store: Store | None) -> None:
        self.media: list[StoredMedia] = []
        self.paths: list[str] = []
        self._stem = stem
        self._workspace = workspace
        self._store = store

    def add_file(self, content_type: str, data: bytes) -> dict[str, Any]:
        """Store the data, and return its path, content type and bytes, or what was lost of it."""
        entry: dict[str, Any] = {"path": None, "content_type": content_type, "bytes": len(data)}
        number = len(self.paths) + 1
        stem = f"{self._stem}-{number}" if number > 1 else self._stem
        try:
            entry["path"] = self._workspace.write_artifact(stem, content_type, data)
        except (OSError, OutsideWorkspaceError) as error:  # the call was made: only this file is lost
            return entry | {"lost": f"the disk refused it: {error}"}
        self.paths.append(entry["path"])
        return entry | self._show(content_type, data, entry["path"])

    def to_outcome(self, content_type: str, data: bytes) -> ToolOutcome:
        """Store the only file of a result, and return the result."""
        entry = self.add_file(content_type, data)
        return ToolOutcome(result=entry, media=tuple(self.media), artifacts=tuple(self.paths))

    def _show(self, content_type: str, data: bytes, path: str) -> dict[str, str]:
        """Store the data as media if it is an image or a PDF. Return the reason if it cannot be shown."""
        if self._store is None or not (is_media_type(content_type) or media_type_of(data)):
            return {}
        if len(self.media) >= MAX_SHOWN_MEDIA:
            return {"not_shown": f"a result shows {MAX_SHOWN_MEDIA} images at most; read_file shows others"}
        try:
            self.media.append(keep_media(self._store, data, path=path))
        except (MediaError, OSError) as error:
            return {"not_shown": str(error)}
        return {}
