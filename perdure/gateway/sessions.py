"""Sessions of the page: a signed cookie, which a browser's scripts cannot read, in place of a bearer token.

The cookie has the name of a token and two times, never the token. Each request looks that token up, so a session ends
with it. All gateways of a project have one key: in `PERDURE_STORE` if it is set, else beside the tokens.
"""

import asyncio
import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from fastapi import Request, Response

from perdure.activities.security import OTHERS
from perdure.activities.storage.store import Store
from perdure.activities.storage.workspace import PrivateDir
from perdure.decisions.ids import GATEWAY_STORE
from perdure.gateway.tokens import NAME_PATTERN, Token, TokenFileError, Tokens
from perdure.settings import Settings

LIFETIME = timedelta(hours=1)  # without a request
LONGEST = timedelta(hours=12)  # with requests: a copied cookie is of no use on the next day
RENEWED_EVERY = timedelta(minutes=5)  # at most, so that few answers set a cookie
KEY_FILE = "session.key"
KEY_BYTES = 32

_COOKIE = "perdure-"
_HOST_ONLY = "__Host-"  # of a cookie over TLS: browsers take it from this host alone, not from one beside it
_PURPOSE = "perdure session 1"  # signed, so that a signature of another purpose or version is none
_FORM = re.compile(rf"1\.({NAME_PATTERN})\.(\d{{1,11}})\.(\d{{1,11}})\.([A-Za-z0-9_-]{{43}})", re.ASCII)


@dataclass(frozen=True)
class CookieSession:
    """A session that began at `since`; `is_secure` if its cookie is sent over TLS only."""

    token: Token
    since: datetime
    expires_at: datetime
    is_secure: bool = False

    def renew(self, now: datetime) -> "CookieSession":
        """Return the session with a later end, or the same if that is little later."""
        later = _begin(self.token, now, self.since, is_secure=self.is_secure)
        return later if later.expires_at - self.expires_at >= RENEWED_EVERY else self


def _begin(token: Token, now: datetime, since: datetime, *, is_secure: bool) -> CookieSession:
    ends = [now + LIFETIME, since + LONGEST, *([token.expires_at] if token.expires_at else [])]
    return CookieSession(token, since, min(ends).replace(microsecond=0), is_secure)


@dataclass
class Sessions:
    """Begins sessions, and finds those of requests. `read_key` blocks; by default the key is this process's own.

    The methods raise what `read_key` raises: TokenFileError, OSError.
    """

    read_key: Callable[[], bytes] = field(default=lambda: secrets.token_bytes(KEY_BYTES))
    _key: bytes = field(default=b"", repr=False)
    _reading: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def begin(self, response: Response, token: Token, *, is_secure: bool) -> CookieSession:
        """Begin a session and set its cookie."""
        now = datetime.now(UTC)
        session = _begin(token, now, now.replace(microsecond=0), is_secure=is_secure)
        await self.set_cookie(response, session)
        return session

    async def set_cookie(self, response: Response, session: CookieSession) -> None:
        key = await self._load_key()
        response.set_cookie(
            _cookie_name(key, is_secure=session.is_secure),
            _write(key, session),
            max_age=max(0, int((session.expires_at - datetime.now(UTC)).total_seconds())),
            path="/",
            secure=session.is_secure,
            httponly=True,
            samesite="strict",
        )

    async def find(self, request: Request, tokens: Tokens, *, is_secure: bool) -> CookieSession | None:
        """Return the session of a request; with `is_secure`, only one whose cookie is sent over TLS only."""
        for name, secure in await self._cookies(request):
            found = _read(await self._load_key(), request.cookies[name], tokens.read_all(), datetime.now(UTC), secure)
            if found and (secure or not is_secure):
                return found
        return None

    async def has_cookie(self, request: Request) -> bool:
        return bool(await self._cookies(request))

    async def end(self, request: Request, response: Response) -> None:
        """Tell the browser to forget the cookies of the request."""
        for name, secure in await self._cookies(request):
            response.delete_cookie(name, path="/", secure=secure, httponly=True, samesite="strict")

    async def _cookies(self, request: Request) -> list[tuple[str, bool]]:
        """Return the names of the project's cookies in a request, and whether TLS is needed to send them."""
        if not any(_COOKIE in name for name in request.cookies):
            return []
        key = await self._load_key()
        named = [(_cookie_name(key, is_secure=secure), secure) for secure in (True, False)]
        return [(name, secure) for name, secure in named if name in request.cookies]

    async def _load_key(self) -> bytes:
        async with self._reading:
            self._key = self._key or await asyncio.to_thread(self.read_key)
        return self._key


def _cookie_name(key: bytes, *, is_secure: bool) -> str:
    """Return a name that the projects of one host do not share: a browser sends cookies to all its ports."""
    return f"{_HOST_ONLY if is_secure else ''}{_COOKIE}{hashlib.sha256(key).hexdigest()[:8]}"


def _write(key: bytes, session: CookieSession) -> str:
    since, until = int(session.since.timestamp()), int(session.expires_at.timestamp())
    return f"1.{session.token.name}.{since}.{until}.{_sign(key, session.token, since, until)}"


def _sign(key: bytes, token: Token, since: int, until: int) -> str:
    """Return the signature, also of the token's hash: another token with the name does not continue the session."""
    signed = "\0".join((_PURPOSE, token.name, token.sha256, str(since), str(until)))
    return base64.urlsafe_b64encode(hmac.new(key, signed.encode(), hashlib.sha256).digest()).decode().rstrip("=")


def _read(key: bytes, cookie: str, tokens: tuple[Token, ...], now: datetime, is_secure: bool) -> CookieSession | None:
    """Return the session of a cookie; None if it is forged or over, or its token is expired or gone."""
    parts = _FORM.fullmatch(cookie)
    if parts is None:
        return None
    name, since, until, signature = parts[1], int(parts[2]), int(parts[3]), parts[4]
    for token in tokens:
        if token.name == name and hmac.compare_digest(signature, _sign(key, token, since, until)):
            session = CookieSession(token, _time(since), _time(until), is_secure)
            return None if now >= session.expires_at or token.is_expired(now) else session
    return None


def _time(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def open_sessions(settings: Settings) -> Sessions:
    """Return the sessions of a project. Its key is read or made at the first sign-in."""
    if settings.store is not None:
        return Sessions(lambda: _shared_key(settings.stores.of(GATEWAY_STORE)))
    return Sessions(lambda: _own_key(settings.home))


def _shared_key(store: Store) -> bytes:
    with suppress(FileExistsError):  # another gateway was first, or it is an old one
        store.create(KEY_FILE, secrets.token_bytes(KEY_BYTES))
    return _check_key(store.read(KEY_FILE), f"{KEY_FILE} in PERDURE_STORE")


def _own_key(home: Path) -> bytes:
    path = home / KEY_FILE
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.exists():
            with suppress(FileExistsError):  # it appears whole, so a gateway that is second reads all of it
                PrivateDir(home).create(secrets.token_bytes(KEY_BYTES), KEY_FILE)
        if path.stat().st_mode & OTHERS:
            raise TokenFileError(f"{path}: other users can open it; run: chmod 600 {path}")
        return _check_key(PrivateDir(home).read(KEY_FILE, most=KEY_BYTES), str(path))
    except OSError as error:
        raise TokenFileError(f"{path}: {error.strerror}") from None


def _check_key(key: bytes, place: str) -> bytes:
    if len(key) != KEY_BYTES:
        raise TokenFileError(f"{place}: it is not a key; remove it, and people sign in again")
    return key
