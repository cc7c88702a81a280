"""Grants of OAuth: tokens of remote servers, encrypted in the project's store, refreshed by one process at a time.

A grant belongs to the project, or to one requester. It has a file for each version, which is created and never
changed: of two writers, one succeeds. A lease is a file, too, and belongs to one version. Only files an hour old are
deleted: the loser of a race takes nothing away.
"""

import asyncio
import json
import logging
import shlex
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from secrets import token_hex
from time import monotonic, time
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx2
from google.protobuf.message import DecodeError
from mcp.client.auth.utils import extract_field_from_www_auth
from mcp.shared.auth import OAuthToken
from mcp.shared.auth_utils import check_resource_allowed, resource_url_from_server_url
from pydantic import Field, ValidationError
from temporalio.api.common.v1 import Payload

from perdure.activities.http import IDENTITY
from perdure.activities.security import make_private
from perdure.activities.storage.store import LocalStore, Store
from perdure.codec import UNREADABLE, AesGcmCodec, UnknownKeyError
from perdure.contracts.models import FrozenModel
from perdure.decisions.errors import ReportedError
from perdure.features.mcp.activities.config import HttpServer
from perdure.features.mcp.rules import render_visible_line

LEASE_SECONDS = 20.0  # after which another process refreshes in place of one that was lost
LEASE_CHECK_SECONDS = 0.05
READ_ATTEMPTS = 20  # of a version that another process is writing
TOKEN_TIMEOUT = 10.0  # seconds for an answer of a token endpoint: less than a lease
MAX_EARLY = 60.0  # seconds before its end that a token is refreshed; at most a fifth of its life
KEPT = timedelta(hours=1)  # of older versions, leases and logins
ENDED = ("invalid_grant", "invalid_client", "unauthorized_client")  # errors after which a person must log in
M = TypeVar("M", bound=FrozenModel)
_log = logging.getLogger(__name__)


class GrantError(ReportedError):
    """There is no usable token now. The message is one line without secrets."""


class NeedsLoginError(GrantError):
    """A person must log in: for the project, or a requester of their own. `occasion` names the login that is over."""

    def __init__(self, server: str, occasion: str, reason: str, requester: str = "") -> None:
        whose = f" of {render_visible_line(requester)}" if requester else ""
        super().__init__(
            f"MCP server {server} needs a login{whose}: {reason}: {format_login_command(server, requester)}"
        )
        self.server, self.occasion, self.reason, self.requester = server, occasion, reason, requester


def format_login_command(server: str, requester: str = "") -> str:
    """Return the command that logs in at a terminal."""
    whose = f" --for {shlex.quote(render_visible_line(requester))}" if requester else ""
    return f"perdure mcp login {server}{whose}"


class _UnreadableError(GrantError):
    """A stored file is not whole, or of another key."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} of the store cannot be decrypted")


class Grant(FrozenModel):
    """The tokens of one server, with all that a refresh needs. `generation` counts logins, `version` changes.

    Without a `requester` it is the project's. `ended` is the reason why it needs a login; `wants` are scopes that a
    call lacked.
    """

    server: str
    requester: str = ""
    version: int
    generation: int
    issuer: str
    token_endpoint: str
    resource: str
    client_id: str
    client_secret: str | None = Field(default=None, repr=False)
    redirect_uri: str = ""
    scope: str = ""
    access_token: str = Field(default="", repr=False)
    refresh_token: str | None = Field(default=None, repr=False)
    lifetime: float | None = None  # seconds of an access token; null if the server does not say
    expires_at: float | None = None  # seconds since 1970
    by: str = ""
    granted_at: datetime
    ended: str = ""
    wants: str = ""

    def is_due(self, now: float) -> bool:
        """Return whether the token ends soon."""
        early = min(MAX_EARLY, (self.lifetime or 0.0) / 5)
        return self.expires_at is not None and now > self.expires_at - early

    def is_over(self, now: float) -> bool:
        return self.expires_at is not None and now >= self.expires_at

    def is_for(self, url: str) -> bool:
        """Return whether the token is for the server at this URL: no other server may see it."""
        return check_resource_allowed(resource_url_from_server_url(url), self.resource)

    def reason_for_login(self, url: str) -> str:
        """Return why the server at this URL needs a login; empty: it needs none."""
        return self.ended or ("" if self.is_for(url) else f"the grant is for {self.resource}")

    def with_token(self, token: OAuthToken) -> "Grant":
        """Return the next version, with a new token."""
        life = None if token.expires_in is None else float(token.expires_in)
        return self.evolve(
            version=self.version + 1,
            access_token=token.access_token,
            refresh_token=token.refresh_token or self.refresh_token,
            scope=token.scope or self.scope,
            lifetime=life,
            expires_at=None if life is None else time() + life,
            ended="",
            wants="",
        )


class GrantStore:
    """The grants of a project, by server and requester, and what logins need until they end."""

    def __init__(self, store: Store, codec: AesGcmCodec) -> None:
        self._store = store
        self._codec = codec
        self._seen: dict[str, float] = {}  # leases, by the time when they were first seen: hosts' clocks differ

    async def read(self, server: str, requester: str = "") -> Grant | None:
        """Return the grant for a server, the project's or a requester's. Raises GrantError, OSError.

        A version that stays unreadable is of a process that was killed as it wrote it: the one before counts.
        """
        folder, names = f"grants/{_place_of(server, requester)}", list[str]()
        for _ in range(READ_ATTEMPTS):
            names = await self._names(folder)
            if not names:
                return None
            with suppress(_UnreadableError):
                if grant := await self.read_sealed(f"{folder}/{names[-1]}", Grant):
                    return _must_be_of(grant, server, requester)
            await asyncio.sleep(LEASE_CHECK_SECONDS)  # it is being written, or was removed as too old
        for name in reversed(names[:-1]):
            with suppress(_UnreadableError):
                if grant := await self.read_sealed(f"{folder}/{name}", Grant):
                    return _must_be_of(grant, server, requester).evolve(version=int(names[-1]))
        raise GrantError(f"the stored grant of {server} cannot be decrypted: log in again")

    async def _names(self, folder: str) -> list[str]:
        if isinstance(self._store, LocalStore):
            await asyncio.to_thread(make_private, self._store.workspace.root)
        return await asyncio.to_thread(self._store.names, folder)

    async def name_occasion(self, generation: int, requester: str = "") -> str:
        """Return the name of a login by its number: one of its own in each store, and for each requester.

        Raises OSError.
        """
        await self._names("grants")
        with suppress(FileExistsError):
            await asyncio.to_thread(self._store.create, "identity", token_hex(4).encode())
        identity = (await asyncio.to_thread(self._store.read, "identity")).decode()
        return f"{_place_of(identity, requester)}-{generation}"

    async def commit(self, grant: Grant) -> bool:
        """Store a version. Return False if that version exists. Raises OSError."""
        place = _place_of(grant.server, grant.requester)
        try:
            await self.create_sealed(f"grants/{place}/{grant.version:012d}", grant)
        except FileExistsError:
            return False
        for folder in ("grants", "leases"):
            before = datetime.now(UTC) - KEPT
            await asyncio.to_thread(self._store.remove_older, f"{folder}/{place}", before)
        return True

    async def take_lease(self, server: str, version: int, requester: str = "") -> "Lease | None":
        """Take the lease of a version, unless another process has it. Raises OSError."""
        folder, prefix = f"leases/{_place_of(server, requester)}", f"{version:012d}-"
        names = [name for name in await self._names(folder) if name.startswith(prefix)]
        taken = [name for name in names if not name.endswith("~")]
        if taken and f"{taken[-1]}~" not in names:
            key = f"{folder}/{taken[-1]}"
            if monotonic() - self._seen.setdefault(key, monotonic()) < LEASE_SECONDS:
                return None
        name = f"{folder}/{prefix}{len(taken):04d}"
        try:
            await asyncio.to_thread(self._store.create, name, b"")
        except FileExistsError:
            return None
        was_lost = any(f"{each}~" not in names for each in taken)
        return Lease(self._store, name, was_lost=was_lost)

    async def read_sealed(self, name: str, kind: type[M]) -> M | None:
        """Return an encrypted file, if it exists and is whole. Raises GrantError, OSError."""
        try:
            data = await asyncio.to_thread(self._store.read, name)
        except FileNotFoundError:
            return None
        try:
            (payload,) = await self._codec.decode([Payload.FromString(data)])
            if payload.metadata.get("encoding") == UNREADABLE:
                raise _UnreadableError(name)
            return kind.model_validate_json(payload.data)
        except UnknownKeyError as error:
            raise GrantError(str(error)) from None
        except (DecodeError, ValidationError):
            raise _UnreadableError(name) from None

    async def create_sealed(self, name: str, value: FrozenModel) -> None:
        """Create an encrypted file. Raises FileExistsError, OSError."""
        await self._names(name.rpartition("/")[0])  # with the store itself
        plain = Payload(metadata={"encoding": b"json/plain"}, data=value.model_dump_json().encode())
        (sealed,) = await self._codec.encode([plain])
        await asyncio.to_thread(self._store.create, name, sealed.SerializeToString())

    async def use_up(self, name: str, folder: str) -> None:
        """Note that something was used. Raises FileExistsError if it was before."""
        await asyncio.to_thread(self._store.create, f"{folder}-used/{name}", b"")
        for each in (folder, f"{folder}-used"):
            await asyncio.to_thread(self._store.remove_older, each, datetime.now(UTC) - KEPT)


def _place_of(name: str, requester: str) -> str:
    """Return a name beside others for the same of a requester, whose own name may have any characters."""
    return f"{name}.{name_digest(requester)[:32]}" if requester else name


def _must_be_of(grant: Grant, server: str, requester: str) -> Grant:
    """Raises GrantError for a grant that was stored in the place of another."""
    if grant.server != server:
        raise GrantError(f"the stored grant of {server} belongs to {grant.server}: log in again")
    if grant.requester != requester:
        raise GrantError(f"the stored grant of {server} belongs to another requester: log in again")
    return grant


class Lease:
    """The right to change one version of a grant. `was_lost`: an earlier holder never gave it back."""

    def __init__(self, store: Store, name: str, *, was_lost: bool) -> None:
        self._store = store
        self._name = name
        self.was_lost = was_lost

    async def give_back(self) -> None:
        await asyncio.to_thread(self._store.create, f"{self._name}~", b"")


def grant_client() -> httpx2.AsyncClient:
    """Return a client for authorization servers: it follows no redirect and uses no proxy."""
    return httpx2.AsyncClient(trust_env=False, timeout=TOKEN_TIMEOUT, headers=dict(IDENTITY))


def must_be_trusted(url: str) -> str:
    """Return an address that tokens may be sent to. Raises GrantError for HTTP without TLS beyond this machine."""
    parts = urlsplit(url)
    if parts.scheme != "https" and parts.hostname not in ("127.0.0.1", "localhost", "::1"):
        raise GrantError(f"the authorization server has an address without TLS: {parts.scheme}://{parts.netloc}")
    return url


async def request_token(endpoint: str, form: dict[str, str]) -> OAuthToken | dict[str, Any]:
    """POST to a token endpoint. Return the token, or the error that it names. Raises GrantError if it may pass."""
    place = urlsplit(must_be_trusted(endpoint)).netloc
    try:
        async with grant_client() as http:
            answer = await http.post(endpoint, data=form)
    except httpx2.HTTPError as error:
        raise GrantError(f"{place} does not give a token now: {type(error).__name__}") from None
    if answer.status_code in (400, 401):
        try:
            body = json.loads(answer.content)
        except ValueError:
            body = None
        return body if isinstance(body, dict) and isinstance(body.get("error"), str) else {"error": "an unknown error"}
    try:
        if answer.status_code == 200:
            return OAuthToken.model_validate_json(answer.content)
    except ValidationError:
        raise GrantError(f"{place} gives a token that cannot be read") from None
    raise GrantError(f"{place} does not give a token now: HTTP {answer.status_code}")


class GrantKeeper:
    """The token of one server for all calls of a process, or for those of one requester."""

    needs_person = True

    def __init__(self, server: HttpServer, store: GrantStore, requester: str = "") -> None:
        self.server = server.name
        self.requester = requester
        self.store = store
        self._url = server.url
        self._grant: Grant | None = None
        self._turn = asyncio.Lock()
        self._lacking: dict[str, str] = {}  # scopes by tool

    async def current(self) -> Grant:
        """Return a grant whose token does not end soon. Raises GrantError, OSError."""
        grant = self._grant
        if grant is None or grant.is_due(time()):
            async with self._turn:
                if self._grant is grant:
                    self._grant = await self._fresh(None)
        return self._grant or await self._fresh(None)

    async def renew(self, rejected: Grant) -> Grant:
        """Return a grant with another token than one that the server rejected. Raises GrantError, OSError."""
        async with self._turn:
            if self._grant is None or self._grant.access_token == rejected.access_token:
                self._grant = None
                self._grant = await self._fresh(rejected.access_token)
        return self._grant

    async def reject(self, grant: Grant) -> None:
        """Note that the server rejects a token that was just refreshed. Raises OSError."""
        if self.needs_person:
            await self._end(grant, "the server rejects a token that was just refreshed")

    async def _end(self, grant: Grant, reason: str) -> None:
        """Note that a grant needs a login, if it is still the one that was tried."""
        self._grant = None
        await self.store.commit(grant.evolve(version=grant.version + 1, ended=reason))

    async def begin(self) -> Grant | None:
        """Return a first grant without a person, if the server's access allows it. Raises GrantError."""
        return None

    def form_of(self, grant: Grant) -> dict[str, str] | None:
        """Return the body of a refresh, without the client's credentials; None if there can be none."""
        if not grant.refresh_token:
            return None
        return {"grant_type": "refresh_token", "refresh_token": grant.refresh_token}

    def note_lack(self, tool: str, scope: str) -> None:
        self._lacking[tool] = scope

    def take_lack(self, tool: str) -> str | None:
        """Return the scope that the last call of a tool lacked, once."""
        return self._lacking.pop(tool, None)

    async def want(self, scope: str) -> NeedsLoginError:
        """Note the scope for the next login, and return the error that asks for it. Raises GrantError, OSError."""
        for _ in range(5):
            now = await self.store.read(self.server, self.requester)
            if now is None:
                break
            if self._grant is not None and now.generation != self._grant.generation:
                self._grant = None  # the rights may have come with a login that this process has not seen
                raise GrantError(f"there is another login to {self.server} since: call it again")
            wanted = " ".join(dict.fromkeys((*now.scope.split(), *now.wants.split(), *scope.split())))
            if now.wants == wanted or await self.store.commit(now.evolve(version=now.version + 1, wants=wanted)):
                self._grant = None
                return await self._needs_login(now.generation, f"a call needs more rights ({scope})")
        raise GrantError(f"the grant of {self.server} changes all the time")

    async def _needs_login(self, generation: int, reason: str) -> NeedsLoginError:
        occasion = await self.store.name_occasion(generation, self.requester)
        return NeedsLoginError(self.server, occasion, reason, self.requester)

    async def _fresh(self, rejected: str | None) -> Grant:
        """Return a token that another process has stored, or refresh: one process at a time."""
        deadline = monotonic() + LEASE_SECONDS + TOKEN_TIMEOUT
        while monotonic() < deadline:
            now = await self.store.read(self.server, self.requester)
            if now is not None and now.ended:
                raise await self._needs_login(now.generation, now.ended)
            usable = now if now is not None and now.access_token != rejected and now.is_for(self._url) else None
            if usable is not None and not usable.is_due(time()):
                return usable
            if lease := await self.store.take_lease(self.server, now.version if now else 0, self.requester):
                try:
                    latest = await self.store.read(self.server, self.requester)
                    if (latest and latest.version) == (now and now.version):
                        return await self._replace(now, rejected, lease)
                finally:
                    await lease.give_back()
            elif usable is not None and not usable.is_over(time()):
                return usable  # it still works while another process refreshes
            else:
                await asyncio.sleep(LEASE_CHECK_SECONDS)
        raise GrantError(f"another process has been refreshing the token of {self.server} for too long")

    async def _replace(self, grant: Grant | None, rejected: str | None, lease: Lease) -> Grant:
        if grant is None or not grant.is_for(self._url):
            version, generation = (grant.version, grant.generation) if grant else (0, 0)
            first = await self.begin()
            if first is None:
                reason = grant.reason_for_login(self._url) if grant else "no person has logged in"
                raise await self._needs_login(generation, reason)
            return await self._commit(first.evolve(version=version + 1, generation=generation + 1))
        form, still_works = self.form_of(grant), rejected != grant.access_token and not grant.is_over(time())
        try:
            answer = await request_token(grant.token_endpoint, self._with_client(grant, form)) if form else None
        except GrantError:
            if still_works:
                return grant
            raise
        if isinstance(answer, OAuthToken):
            return await self._commit(grant.with_token(answer))  # before its use: the old one may be spent
        error = str(answer["error"]) if answer else "there is no refresh token"
        if still_works:
            return grant
        if answer is not None and (error not in ENDED or not self.needs_person):
            raise GrantError(f"the authorization server of {self.server} refuses a refresh: {error[:100]}")
        lost = "; the answer to an earlier refresh may have been lost with its process" if lease.was_lost else ""
        reason = f"{'the grant has ended' if answer else 'the token has ended'} ({error[:100]}{lost})"
        latest = await self.store.read(self.server, self.requester)  # again: only the token that was tried is over
        if latest is not None and latest.version == grant.version:
            await self._end(grant, reason)
            raise await self._needs_login(grant.generation, reason)
        return latest or grant

    async def _commit(self, grant: Grant) -> Grant:
        if await self.store.commit(grant):
            return grant
        return await self.store.read(self.server, self.requester) or grant

    def _with_client(self, grant: Grant, form: dict[str, str]) -> dict[str, str]:
        own = {"client_id": grant.client_id, "resource": grant.resource}
        return form | own | ({"client_secret": grant.client_secret} if grant.client_secret else {})


class StoredAuth(httpx2.Auth):
    """Adds the stored token to each request, and renews it once after a 401.

    A refusal is left to the SDK as the server sent it; the keeper knows more (`GrantKeeper.current`, `take_lack`).
    """

    requires_request_body = True

    def __init__(self, keeper: GrantKeeper) -> None:
        self._keeper = keeper

    async def async_auth_flow(self, request: httpx2.Request) -> Any:
        try:
            grant = await self._keeper.current()
        except (GrantError, OSError) as error:
            raise httpx2.ConnectError(str(error), request=request) from None
        request.headers["Authorization"] = f"Bearer {grant.access_token}"
        response = yield request
        if response.status_code == 401:
            try:
                grant = await self._keeper.renew(grant)
            except (GrantError, OSError) as error:
                _log.info("mcp server %s: %s", self._keeper.server, error)
                return
            request.headers["Authorization"] = f"Bearer {grant.access_token}"
            response = yield request
            if response.status_code == 401:
                await self._keeper.reject(grant)
        if response.status_code == 403 and (scope := lacking_scope(response)):
            self._keeper.note_lack(_called_tool(request), scope)


def lacking_scope(response: httpx2.Response) -> str | None:
    """Return the scope that a request lacked, if the server says so (RFC 6750)."""
    if extract_field_from_www_auth(response, "error") != "insufficient_scope":
        return None
    return extract_field_from_www_auth(response, "scope") or "more"


def _called_tool(request: httpx2.Request) -> str:
    try:
        return str(json.loads(request.content)["params"]["name"])
    except (ValueError, KeyError, TypeError):
        return ""


def name_digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()
