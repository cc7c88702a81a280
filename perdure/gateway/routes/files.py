"""Files: uploads, which messages attach, and the artifacts of runs.

An artifact goes out with its type by content, never by its name, and with headers under which it cannot act as a page.
"""

import asyncio
import errno
import io
import re
import tempfile
from collections.abc import AsyncGenerator
from contextlib import closing
from dataclasses import dataclass
from typing import Annotated, Any, BinaryIO
from urllib.parse import quote

from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response
from starlette.requests import ClientDisconnect

from perdure.activities.media.check import MediaError, media_type_of
from perdure.activities.media.store import put_upload, read_media
from perdure.activities.storage.store import StoredFileChangedError
from perdure.activities.storage.workspace import ARTIFACTS, suffix_of
from perdure.client.files import NO_ARTIFACT, TEXT, UNKNOWN_TYPE, Artifact
from perdure.client.run_list import find_run
from perdure.contracts.media import Sha256, StoredMedia
from perdure.contracts.models import FrozenModel, escape_unprintable
from perdure.gateway.auth import CurrentGateway, Gateway, RunId, ScopedRoute, needs_scope
from perdure.gateway.problems import RETRY_SOON, ApiError, describe_problems
from perdure.gateway.routes.sse import CLIENT_READ_TIMEOUT, PatientStream
from perdure.gateway.tokens import Scope

MAX_UPLOADS = 8  # at a time; each takes its size of disk, then of memory
CHUNK_BYTES = 256 * 1024
SAFE_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "sandbox; default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "private, no-cache",
    "Accept-Ranges": "bytes",
}
BYTES = {"content": {"*/*": {"schema": {"type": "string", "format": "binary"}}}}

router = APIRouter(
    prefix="/v1",
    tags=["files"],
    route_class=ScopedRoute,
    responses=describe_problems(400, 401, 403, 404, 408, 409, 413, 422, 500, 503),
)
_FULL_DISK = (errno.ENOSPC, errno.EDQUOT)


@router.post(
    "/files",
    dependencies=[needs_scope(Scope.start)],
    response_model_exclude_none=True,
    openapi_extra={"requestBody": {"required": True, "content": {"application/octet-stream": {}}}},
    responses=describe_problems(429, 507),
)
async def upload_file(
    gateway: CurrentGateway,
    request: Request,
    name: Annotated[str, Query(min_length=1, max_length=200, description="The file's name, for people.")] = "file",
) -> StoredMedia:
    """Store an image or a PDF, which is the body, for `attachments` by its `sha256`. Repeats have no effect."""
    if gateway.uploads >= MAX_UPLOADS:
        raise ApiError(429, f"this gateway receives {MAX_UPLOADS} files, its limit; try again", headers=RETRY_SOON)
    gateway.uploads += 1
    try:
        with tempfile.TemporaryFile() as file:  # a slow upload takes no memory
            async for chunk in request.stream():
                await asyncio.to_thread(file.write, chunk)
            file.seek(0)
            data, stores = await asyncio.to_thread(file.read), gateway.session.settings.stores
            return await put_upload(stores, data, escape_unprintable(name))
    except ClientDisconnect:
        raise ApiError(400, "the client left before the end of the file") from None
    except MediaError as error:
        raise ApiError(422, str(error)) from None
    except OSError as error:
        if error.errno not in _FULL_DISK:
            raise
        raise ApiError(507, "the gateway's disk is full; its operator must make room") from None
    finally:
        gateway.uploads -= 1


class ArtifactList(FrozenModel):
    """The artifacts of a run. `available` is false if the gateway does not have the run's folder."""

    run_id: str
    available: bool
    artifacts: tuple[Artifact, ...]


@router.get("/runs/{run_id}/artifacts", dependencies=[needs_scope(Scope.read)])
async def list_artifacts(gateway: CurrentGateway, run_id: RunId) -> ArtifactList:
    """List the artifacts of a run, which are below `/v1/runs/{run_id}/` at their `path`."""
    run = await find_run(gateway.session.client, run_id)
    artifacts = await asyncio.to_thread(gateway.artifacts.list_artifacts, run.run_id)
    return ArtifactList(run_id=run.run_id, available=artifacts is not None, artifacts=tuple(artifacts or ()))


@dataclass(frozen=True)
class FileConditions:
    """The headers by which a request asks for a part of a file, or for a file that has changed."""

    range: Annotated[str | None, Header(description="`bytes=FIRST-LAST`; one range.")] = None
    if_range: Annotated[str | None, Header(description="An `ETag`.")] = None
    if_none_match: Annotated[str | None, Header(description="An `ETag`.")] = None


Conditions = Annotated[FileConditions, Depends()]
_FILE: dict[str, Any] = {
    "dependencies": [needs_scope(Scope.read)],
    "response_class": Response,
    "responses": describe_problems(416)
    | {
        200: {"description": "The file, typed by its content", **BYTES},
        206: {"description": "The requested range", **BYTES},
        304: {"description": "Not modified"},
    },
}


@router.get("/runs/{run_id}/artifacts/{path:path}", **_FILE)
async def read_artifact(
    gateway: CurrentGateway,
    run_id: RunId,
    path: Annotated[str, Path(description="The path after `artifacts/`.", min_length=1)],
    conditions: Conditions,
) -> Response:
    """Return an artifact. Its `ETag` is its SHA-256."""
    run = await find_run(gateway.session.client, run_id)
    try:
        file, artifact = await asyncio.to_thread(gateway.artifacts.open_artifact, run.run_id, f"{ARTIFACTS}/{path}")
    except NO_ARTIFACT:
        raise ApiError(404, "the run has no such artifact here") from None
    return _send_file(gateway, file, artifact, conditions)


@router.get("/runs/{run_id}/media/{sha256}", **_FILE)
async def read_run_media(
    gateway: CurrentGateway, run_id: RunId, sha256: Annotated[Sha256, Path()], conditions: Conditions
) -> Response:
    """Return an image or a PDF of a message or a result, by the `sha256` in the run's events."""
    run = await find_run(gateway.session.client, run_id)
    try:
        data = await asyncio.to_thread(read_media, gateway.session.settings.stores.of(run.run_id), sha256)
    except (FileNotFoundError, StoredFileChangedError):
        raise ApiError(404, "the run has no such file") from None
    content_type = media_type_of(data) or UNKNOWN_TYPE
    about = Artifact(path=sha256 + suffix_of(content_type), bytes=len(data), content_type=content_type, sha256=sha256)
    return _send_file(gateway, io.BytesIO(data), about, conditions)


def _send_file(gateway: Gateway, file: BinaryIO, about: Artifact, conditions: FileConditions) -> Response:
    """Return the response with an open file, which it closes. Raises ApiError 416."""
    etag, first, last, status = f'"{about.sha256}"', 0, about.bytes - 1, 200
    headers = SAFE_HEADERS | {"ETag": etag, "Content-Disposition": _format_disposition(about)}
    if conditions.if_none_match and etag in conditions.if_none_match:
        file.close()
        return Response(status_code=304, headers=headers)
    if conditions.range and conditions.if_range in (None, etag):
        try:
            first, last, status = _parse_range(conditions.range, about.bytes)
        except ValueError:
            file.close()
            size = {"Content-Range": f"bytes */{about.bytes}"}
            raise ApiError(416, f"the file has {about.bytes:,} bytes", field="Range", headers=size) from None
    headers |= {"Content-Length": str(last - first + 1), "Content-Type": about.content_type}
    headers |= {"Content-Range": f"bytes {first}-{last}/{about.bytes}"} if status == 206 else {}
    return PatientStream(_read_chunks(file, first, last), gateway, CLIENT_READ_TIMEOUT, status, headers)


def _format_disposition(artifact: Artifact) -> str:
    shown = artifact.content_type not in (TEXT, UNKNOWN_TYPE)
    name = quote(artifact.path.rpartition("/")[2], safe="")
    return f"{'inline' if shown else 'attachment'}; filename*=utf-8''{name}"


def _parse_range(header: str, size: int) -> tuple[int, int, int]:
    """Return first and last byte, and the status. Raises ValueError if the range is beyond the file.

    Several ranges, or ones that are not well formed, are ignored, as RFC 9110 allows: the file is sent as a whole.
    """
    match = re.fullmatch(r"bytes\s*=\s*(\d{0,19})-(\d{0,19})\s*", header, re.ASCII)
    first, last = match.groups() if match else ("", "")
    if not (first or last) or (first and last and int(last) < int(first)):
        return 0, size - 1, 200
    start = int(first) if first else max(size - int(last), 0)
    if start >= size:
        raise ValueError(header)
    return start, min(int(last), size - 1) if first and last else size - 1, 206


async def _read_chunks(file: BinaryIO, first: int, last: int) -> AsyncGenerator[bytes]:
    with closing(file):
        file.seek(first)
        remaining = last - first + 1
        while remaining and (chunk := await asyncio.to_thread(file.read, min(CHUNK_BYTES, remaining))):
            remaining -= len(chunk)
            yield chunk
