"""Bearer tokens: 32 random bytes each, stored as SHA-256.

A slow hash protects passwords; random tokens cannot be guessed.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from perdure.activities.security import OTHERS
from perdure.activities.storage.workspace import PrivateDir
from perdure.contracts.models import StrictModel
from perdure.decisions.errors import format_validation_error
from perdure.decisions.ids import platform_name
from perdure.settings import ProjectError

TOKENS_VARIABLE = "PERDURE_TOKENS"  # `name:sha256:scope+scope:platform+platform,…`, in place of the file
PREFIX = "pdr_"  # secret scanners recognize it
PLATFORM = r"[a-z0-9][a-z0-9_.-]{0,63}"
NAME_PATTERN = r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}"


class Scope(StrEnum):
    """The permissions of a token; each is granted separately."""

    start = "runs:start"  # start runs, and hand requests to conversations
    read = "runs:read"  # read and follow runs, conversations and questions
    result = "tools:result"  # bring the results of tools outside
    answer = "human:answer"  # answer, approve and cancel, as a person does
    publish = "events:publish"  # publish events from outside
    budget = "budget:raise"  # raise and reset budgets


class Token(StrictModel):
    name: str = Field(pattern=f"^{NAME_PATTERN}$")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    scopes: tuple[Scope, ...] = Field(min_length=1)
    created_at: datetime | None = None
    expires_at: datetime | None = None  # None: never
    platforms: tuple[Annotated[str, Field(pattern=f"^{PLATFORM}$")], ...] = ()  # it may publish events of these

    def is_expired(self, now: datetime) -> bool:
        return self.expires_at is not None and now >= self.expires_at


class TokenFile(StrictModel):
    tokens: tuple[Token, ...] = ()


class TokenFileError(ProjectError):
    """The token file cannot be read, so every request is rejected. The message says why."""


def new_token(
    name: str, scopes: tuple[Scope, ...], lifetime: timedelta | None, platforms: tuple[str, ...] = ()
) -> tuple[str, Token]:
    """Create a token; return its text, which is shown once, and its stored form. Raises ProjectError."""
    if not re.fullmatch(NAME_PATTERN, name):
        raise ProjectError(f"a token's name has 1 to 64 of the characters A-Z a-z 0-9 _ . @ -, not {name[:80]!r}")
    platforms = tuple(map(platform_name, platforms))
    if wrong := next((platform for platform in platforms if not re.fullmatch(PLATFORM, platform)), None):
        raise ProjectError(f"a platform has 1 to 64 of the characters a-z 0-9 _ . -, not {wrong[:80]!r}")
    written, now = PREFIX + secrets.token_urlsafe(32), datetime.now(UTC)
    expires = now + lifetime if lifetime else None
    order = tuple(scope for scope in Scope if scope in scopes)
    stored = Token(
        name=name, sha256=token_digest(written), scopes=order, created_at=now, expires_at=expires, platforms=platforms
    )
    return written, stored


def token_digest(written: str) -> str:
    return hashlib.sha256(written.encode(errors="surrogateescape")).hexdigest()


@dataclass
class Tokens:
    """The tokens of the file, which is read again after a change, and of the environment."""

    path: Path
    fixed: tuple[Token, ...] = ()
    _kept: tuple[Token, ...] = ()
    _stamp: tuple[int, ...] | None = field(default=None)

    def read_all(self) -> tuple[Token, ...]:
        """Return all tokens. Raises TokenFileError."""
        try:
            info = self.path.stat()
            if info.st_mode & OTHERS:
                raise TokenFileError(f"{self.path}: other users can open it; run: chmod 600 {self.path}")
            stamp = (info.st_mtime_ns, info.st_size, info.st_ino)
            if stamp != self._stamp:
                self._kept, self._stamp = _read_token_file(self.path), stamp
        except FileNotFoundError:
            self._kept, self._stamp = (), None
        except OSError as error:
            raise TokenFileError(f"{self.path}: {error.strerror}") from None
        return (*self.fixed, *self._kept)

    def find_token(self, written: str, now: datetime) -> Token | None:
        """Return the token with this text, if valid; compares all in constant time. Raises TokenFileError."""
        provided, match = token_digest(written), None
        for token in self.read_all():
            if hmac.compare_digest(provided, token.sha256) and not token.is_expired(now):
                match = token
        return match

    def add(self, token: Token) -> None:
        """Store a token. Raises ProjectError if its name exists, TokenFileError."""
        with self._lock_file():
            if any(other.name == token.name for other in self.read_all()):
                raise ProjectError(f"token {token.name!r} already exists; revoke it first, or choose another name")
            self._write_file((*self._kept, token))

    def revoke(self, name: str) -> None:
        """Remove a token. Raises ProjectError if the file does not have it, TokenFileError."""
        if any(token.name == name for token in self.fixed):
            raise ProjectError(f"token {name!r} is from {TOKENS_VARIABLE}: remove it there and restart the gateway")
        with self._lock_file():
            remaining = tuple(token for token in self.read_all() if token.name != name and token not in self.fixed)
            if len(remaining) == len(self._kept):
                raise ProjectError(f"there is no token {name!r}; see: perdure token list")
            self._write_file(remaining)

    def _lock_file(self) -> AbstractContextManager[None]:
        """Return the lock for one change, also against other processes."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        return PrivateDir(self.path.parent).lock_folder()

    def _write_file(self, tokens: tuple[Token, ...]) -> None:
        content = TokenFile(tokens=tokens).model_dump_json(exclude_none=True, indent=2)
        PrivateDir(self.path.parent).write(content.encode(), self.path.name)


def _read_token_file(path: Path) -> tuple[Token, ...]:
    try:
        return TokenFile.model_validate_json(path.read_bytes()).tokens
    except ValidationError as error:
        raise TokenFileError(f"{path}: {format_validation_error(error, 'the file')}") from None


def read_tokens(home: Path, environment: Mapping[str, str]) -> Tokens:
    """Return the tokens of a home folder and of the environment. Raises ProjectError."""
    return Tokens(home / "tokens.json", tuple(_parse_variable(environment.get(TOKENS_VARIABLE) or "")))


def _parse_variable(text: str) -> Iterator[Token]:
    """Parse the variable. Errors never quote an entry, which may be a token instead of its hash."""
    names = set()
    for number, entry in enumerate(filter(None, (part.strip() for part in text.split(","))), 1):
        name, _, rest = entry.partition(":")
        sha256, _, rights = rest.partition(":")
        scopes, platforms = _split_rights(rights)
        try:
            token = Token.model_validate({"name": name, "sha256": sha256, "scopes": scopes, "platforms": platforms})
        except ValidationError as error:
            field_name = error.errors()[0]["loc"][0]
            raise ProjectError(
                f"{TOKENS_VARIABLE}: entry {number}: {field_name}: expected name:sha256:scope+scope, with 64 hex "
                f"digits and scopes of {', '.join(Scope)}, and after a colon the platforms of {Scope.publish}"
            ) from None
        if name in names:
            raise ProjectError(f"{TOKENS_VARIABLE}: entry {number}: the name {name!r} occurs twice")
        names.add(name)
        yield token


def _split_rights(text: str) -> tuple[list[str], list[str]]:
    """Split `scope+scope:platform+platform` into scopes and platforms."""
    parts = re.fullmatch(r"([a-z]+:[a-z]+(?:\+[a-z]+:[a-z]+)*)(?::(.+))?", text)
    if parts is None:
        return [text], []
    return parts[1].split("+"), parts[2].split("+") if parts[2] else []


def format_token_entry(token: Token) -> str:
    """Format a token as an entry of the variable, which has no expiry."""
    platforms = f":{'+'.join(token.platforms)}" if token.platforms else ""
    return f"{token.name}:{token.sha256}:{'+'.join(token.scopes)}{platforms}"
