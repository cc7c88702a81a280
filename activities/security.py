"""Secrets, their redaction, and private files."""

import base64
import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from html.entities import codepoint2name
from math import lcm
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from pydantic import BaseModel

MIN_SECRET = 8  # characters; shorter values occur as ordinary words
_MIN_HALVED = 24  # characters from which half of a secret is redacted too, since a message may be cut
_MIN_START = 4  # characters of a secret that is still being written; fewer are shown

_NAME = re.compile(
    r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|_(PASS|PWD|PAT|AUTH|COOKIE)$", re.IGNORECASE
)
_NAME_OF_MANY = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL)S$|^PERDURE_ANSWER_KEY$", re.IGNORECASE)
_RANDOM = re.compile(r"(?=.*\d)(?=.*[A-Za-z])[A-Za-z0-9]{16,}")
_NAME_OF_HOOK = re.compile(r"WEBHOOK", re.IGNORECASE)
_PIECE_OF_HOOK = re.compile(r"(?=.*\d)(?=.*[A-Za-z])[\w.~@-]{16,}", re.ASCII)
_NAME_OF_HEADERS = re.compile(r"HEADERS$", re.IGNORECASE)
_QUERY_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL|^AUTH|^SIG(NATURE)?$", re.IGNORECASE)
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s,;\"'<>]+")
_NUMBER = re.compile(r"[-+]?[\d.,:_e+-]+")
_NAME_OF_PASSWORD = re.compile(r"SECRET|PASSW|_(PASS|PWD)$", re.IGNORECASE)
_LONG_NUMBER = 16  # digits: no limit, rate or time has so many
_PATH = re.compile(r"(~|\.{1,2}|[A-Za-z]:)?([/\\][\w .@-]+)+[/\\]?")
_NAME_OF_PATH = re.compile(r"(PATH|FILE|DIR|HOME|FOLDER|SOCK)$", re.IGNORECASE)
_RELATIVE_PATH = re.compile(r"[\w .@-]+([/\\][\w .@-]+)*")
_SWITCHES = frozenset({"disabled", "required", "optional"})  # long enough to be secrets

_MAX_SIGN = 64  # characters of a search text
_MAX_SPELLING = 6  # characters of one that is escaped once, such as `&#x2F;`
_UNCHANGED = re.compile(r"[A-Za-z0-9_.-]+")
_PIECES = re.compile(r"[A-Za-z0-9_.-]+|\\+|.", re.DOTALL)
# Backslashes before an escaped character: one, or more if the text was escaped again.
_ESCAPE, _MAYBE_ESCAPE = r"\\{1,8}", r"\\{0,15}"
_QUOTED = "\"'/"  # the characters that writers escape with a backslash alone
_AMPERSAND = rf"(?:&|{_ESCAPE}u0026)"
_NAMES_IN_HTML = {**codepoint2name, ord("'"): "apos"}
_LETTERS_IN_JSON = {"\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}
_BETWEEN_HEX = ("", "%", "\\x")  # between the bytes of a dump, a URL, a literal
_URL_SAFE = str.maketrans("+/", "-_")


@dataclass(frozen=True, eq=False)
class _Form:
    """A text to look for: each of its spellings contains one of `signs`."""

    label: str
    text: str
    signs: tuple[str, ...]
    spell: Callable[[str], str]

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        return re.compile(self.spell(self.text))

    @cached_property
    def start(self) -> str:
        """The beginning of each spelling, in lower case."""
        start = _UNCHANGED.match(self.text[:2])
        return start[0].lower() if start else ""


class Secrets:
    """Named values in all their encoded forms. `Secrets()` is empty, and costs nothing."""

    def __init__(self, named: Iterable[tuple[str, str]] = ()) -> None:
        names = {value: name for name, value in reversed(list(named))}  # the first name of a value
        forms = [
            form
            for value, name in names.items()
            for form in _forms_of(value, f"[redacted {re.sub(r'[^A-Za-z0-9_.-]', '_', name)}]")
        ]
        # The longest first, so that a secret inside another one leaves no remainder.
        self._forms = sorted(forms, key=lambda form: (-len(form.text), form.text))
        self._signs = list(dict.fromkeys(sign for form in self._forms for sign in form.signs))

    def __repr__(self) -> str:
        return f"Secrets({len(self._forms)} forms)"

    def __bool__(self) -> bool:
        return bool(self._forms)

    def redact(self, text: str) -> str:
        for form in self._likely_forms(text):
            text = form.pattern.sub(form.label, text)
        return text

    def _likely_forms(self, text: str) -> "list[_Form]":
        signs = {sign for sign in self._signs if sign in text}
        return [form for form in self._forms if not signs.isdisjoint(form.signs)] if signs else []

    def redact_bytes(self, data: bytes) -> bytes:
        text = data.decode(errors="surrogateescape")  # a variable that is not UTF-8 was decoded in the same way
        clean = self.redact(text)
        return data if clean is text else clean.encode(errors="surrogateescape")

    def redact_value(self, value: Any) -> Any:
        """Redact the strings and keys of a JSON value; return the same object if it holds no secret."""
        if not self._forms:
            return value
        if isinstance(value, str):
            return self.redact(value)
        # Its other escapes are spellings that are looked for.
        text = json.dumps(value, ensure_ascii=False, default=str).replace("\\\\", "\\")
        has_secret = any(form.pattern.search(text) for form in self._likely_forms(text))
        return self._redact_inner(value) if has_secret else value

    def _redact_inner(self, value: Any) -> Any:
        match value:
            case str():
                return self.redact(value)
            case dict():
                return {self._redact_inner(key): self._redact_inner(inner) for key, inner in value.items()}
            case list():
                return [self._redact_inner(inner) for inner in value]
            case tuple():
                return tuple(self._redact_inner(inner) for inner in value)
            case _:
                return value

    def tail(self, text: str, length: int) -> str:
        """Return the end of a text that is still being written, without a possible start of a secret."""
        import regex  # matches in part, which `re` does not; a client shows no such text

        text = self.redact(text)
        end = len(text)
        for form in self._forms:
            recent = text[-_MAX_SPELLING * len(form.text) :]
            if form.start in recent.lower():
                start = regex.search(form.pattern.pattern, recent, partial=True)
                if start and len(start[0]) >= _MIN_START:
                    end = min(end, len(text) - len(start[0]))
        return text[max(end - length, 0) : end]


NO_SECRETS = Secrets()


def collect_secrets(
    environment: Mapping[str, str], urls: Mapping[str, str] | None = None, named: Iterable[tuple[str, str]] = ()
) -> Secrets:
    """Collect the secrets in environment variables, by their names, and the credentials in URLs there and in `urls`.

    `named` values are secrets with any name, unless they are paths, numbers or switches.
    """
    secrets = [pair for name, value in environment.items() for pair in _in_variable(name, value)]
    secrets += [(name, value) for name, value in named if is_secret(name, value)]
    secrets += [(name, secret) for name, url in (urls or {}).items() for secret in _in_urls(url)]
    return Secrets(secrets)


def _in_variable(name: str, value: str) -> Iterator[tuple[str, str]]:
    value = value.strip()
    if name == "PERDURE_ANSWER_KEY":  # public keys are not secret, and runs have them in their state
        value = ",".join(entry for entry in value.split(",") if ":public:" not in entry)
    yield from ((name, secret) for secret in _in_urls(value))
    if _NAME_OF_HEADERS.search(name):
        yield from ((name, word) for word in _in_headers(value) if is_secret(name, word))
    for field in value.split(";") if ";" in value else ():  # of a connection string: `AccountName=…;AccountKey=…`
        key, _, word = field.partition("=")
        if _QUERY_NAME.search(key.strip()) and is_secret(name, word):
            yield name, word
    if _NAME_OF_HOOK.search(name):
        yield from ((name, piece) for url in _URL.findall(value) for piece in _in_hook(url))
    if _NAME.search(name):
        for part in (value, *_split_secrets(name, value)):
            if is_secret(name, part):
                yield name, part


def is_secret(name: str, value: str) -> bool:
    """Return True if the value can be a secret: not a path, number, switch or plain URL."""
    if len(value) < MIN_SECRET or value.lower() in _SWITCHES:
        return False
    if _NUMBER.fullmatch(value):  # a limit or a duration, unless it looks like a numeric password or key
        return value.isdigit() and (len(value) >= _LONG_NUMBER or bool(_NAME_OF_PASSWORD.search(name)))
    if _URL.fullmatch(value) and re.search(r"(URL|URI|ENDPOINT|HOST|ISSUER)$", name, re.IGNORECASE):
        return False
    return not _is_path(name, value)


def _is_path(name: str, value: str) -> bool:
    if _NAME_OF_PATH.search(name) and _RELATIVE_PATH.fullmatch(value):
        return True
    # A base64 key may begin with a slash, but folder names do not look like keys.
    pieces = re.split(r"[/\\:]", value)
    random = any(
        len(p) >= 16 and re.search(r"[a-z]", p) and re.search(r"[A-Z]", p) and re.search(r"\d", p) for p in pieces
    )
    return not random and all(_PATH.fullmatch(piece) for piece in re.split(r":(?=[~./])", value))


def _split_secrets(name: str, value: str) -> Iterator[str]:
    """Yield the secrets in a value that holds several: `k2:…,k1:…`, a JSON object, the lines of a key file."""
    if _NAME_OF_MANY.search(name):
        for entry in value.split(","):
            yield entry.strip()
            yield entry.strip().partition(":")[2]
    if value.startswith("{"):
        try:
            fields = json.loads(value)
        except ValueError:
            return
        yield from (v for k, v in fields.items() if isinstance(v, str) and _NAME.search(k))
    if "\n" in value:
        yield from (line for line in value.splitlines() if len(line) >= 32)


def _in_headers(value: str) -> Iterator[str]:
    """Yield the secrets of `api-key=…,authorization=Bearer%20…`, OpenTelemetry's format."""
    for entry in value.split(","):
        header, _, content = entry.strip().partition("=")
        for word in unquote(content).split():
            if _QUERY_NAME.search(header) or _RANDOM.fullmatch(word):
                yield word


def _in_urls(text: str) -> Iterator[str]:
    """Yield the credentials in URLs: user and password, and query parameters by their names."""
    for match in _URL.finditer(text) if "://" in text else ():
        try:
            url = urlsplit(match[0])
        except ValueError:
            continue
        holder, at, _ = url.netloc.rpartition("@")
        user, _, password = holder.partition(":")
        if at:
            yield f"{holder}@"
            pair = f"{unquote(user)}:{unquote(password)}"
            yield from (
                secret for secret in (pair, unquote(password or user), password or user) if len(secret) >= MIN_SECRET
            )
            yield from _base64_cores(pair) if password else ()  # as in `Authorization: Basic`, of any length
        for name, value in parse_qsl(url.query):
            if _QUERY_NAME.search(name) and len(value) >= MIN_SECRET:
                yield value


def _in_hook(url: str) -> Iterator[str]:
    """Yield the secret parts of a webhook's path."""
    pieces = url.partition("://")[2].split("?")[0].split("/")[1:]
    yield from (piece for piece in pieces if _PIECE_OF_HOOK.fullmatch(piece))


def _forms_of(secret: str, label: str) -> Iterator[_Form]:
    """Yield the secret itself, and in base64 once and twice, in base32 and in hex, at any offset of a longer text."""
    half = len(secret) // 2
    for text in (secret, secret[:half], secret[-half:]) if len(secret) >= _MIN_HALVED else (secret,):
        yield _Form(label, text, (_longest_unchanged(text),), _spell)
    for once in _base64_cores(secret):
        yield _Form(label, once, (_longest_unchanged(once),), _spell_base64)
        for both in zip(_base64_cores(once), _base64_cores(once.translate(_URL_SAFE)), strict=True):
            sign = _longest_unchanged("".join(one if one == other else " " for one, other in zip(*both, strict=True)))
            yield from (_Form(label, twice, (sign,), _spell_base64) for twice in dict.fromkeys(both))
    data = secret.encode(errors="surrogatepass")
    for core in _shifted_cores(data, 5, base64.b32encode):
        yield _Form(label, core, (core[:_MAX_SIGN], core[:_MAX_SIGN].lower()), _any_case)
    bytes_in_hex = [re.findall("..", digits) for digits in (data.hex(), data.hex().upper())]
    signs = (separator.join(pairs)[:_MAX_SIGN] for separator in _BETWEEN_HEX for pairs in bytes_in_hex)
    yield _Form(label, data.hex(), tuple(dict.fromkeys(signs)), _spell_hex)


def _longest_unchanged(text: str) -> str:
    return max(_UNCHANGED.findall(text), key=len, default="")[:_MAX_SIGN]


def _spell(text: str) -> str:
    return "".join(_spell_piece(piece) for piece in _PIECES.findall(text))


def _spell_piece(piece: str) -> str:
    """Return a pattern of the spellings of one character, of several backslashes, or of what no writer changes."""
    if _UNCHANGED.fullmatch(piece):
        return re.escape(piece)
    char, code, count = piece[0], ord(piece[0]), len(piece)
    units = memoryview(char.encode("utf-16-le", errors="surrogatepass")).cast("H")
    ways = [
        "".join(f"{_ESCAPE}u{_any_case(f'{unit:04x}')}" for unit in units),
        f"{_ESCAPE}(?:x{_any_case(f'{code:02x}')}|U{_any_case(f'{code:08x}')})",
        "".join(f"%{_any_case(f'{byte:02x}')}" for byte in char.encode(errors="surrogatepass")),
        f"{_AMPERSAND}#(?:0*{code}|[xX]0*{_any_case(f'{code:x}')});",
    ]
    if name := _NAMES_IN_HTML.get(code):
        ways.append(f"{_AMPERSAND}{name};")
    if letter := _LETTERS_IN_JSON.get(char):
        ways.append(_ESCAPE + letter)
    if char == " ":
        ways.append(_spell_piece("+"))  # in forms
    others = f"(?:{'|'.join(ways)})"
    if char == "\\":  # doubled each time that it is escaped
        doubled = "|".join(rf"\\{{{count << times}}}" for times in (4, 3, 2, 1, 0))
        return f"(?:{others}{{{count}}}|{doubled})"
    return f"(?:{_MAYBE_ESCAPE if char in _QUOTED else ''}{re.escape(char)}|{others})"


def _spell_base64(text: str) -> str:
    """Return a pattern of base64 in both alphabets."""
    others = {sign: f"(?:{sign.translate(_URL_SAFE)}|{_spell_piece(sign)})" for sign in "+/"}
    return "".join(others.get(piece, piece) for piece in _PIECES.findall(text))


def _spell_hex(text: str) -> str:
    return "".join(f"(?:%|{_ESCAPE}x)?{_any_case(text[at : at + 2])}" for at in range(0, len(text), 2))


def _any_case(text: str) -> str:
    return re.sub("[a-zA-Z]", lambda letter: f"[{letter[0].lower()}{letter[0].upper()}]", text)


def _base64_cores(text: str) -> Iterator[str]:
    return _shifted_cores(text.encode(errors="surrogatepass"), 6, base64.b64encode)


def _shifted_cores(data: bytes, bits: int, encode: Callable[[bytes], bytes]) -> Iterator[str]:
    """Yield, for each offset in a longer text, the encoded characters that depend on the data only."""
    for shift in range(lcm(bits, 8) // 8):
        encoded = encode(bytes(shift) + data).decode()
        core = encoded[-(-8 * shift // bits) : 8 * (shift + len(data)) // bits]
        if len(core) >= MIN_SECRET:
            yield core


V = TypeVar("V", bound=BaseModel)


def redact_model(value: V, secrets: Secrets) -> V:
    """Return the value without secrets: the same object if nothing changes."""
    if not secrets:
        return value
    fields = value.model_dump()
    clean = secrets.redact_value(fields)
    return value if clean is fields else type(value).model_validate(clean)


OTHERS = stat.S_IRWXG | stat.S_IRWXO


def make_private(folder: Path) -> None:
    """Create the folder if needed. If other users may enter it, remove their access to it and its contents.

    Links are not followed. Raises OSError if the folder cannot be created.
    """
    for missing in reversed([above for above in (folder, *folder.parents) if not above.exists()]):
        missing.mkdir(mode=0o700, exist_ok=True)
    if not folder.stat().st_mode & OTHERS:
        return
    for above, folders, files in os.walk(folder, topdown=False):
        for name in (*folders, *files):
            with suppress(OSError):  # another user's file, or one that was just removed
                _restrict_access(Path(above) / name)
    with suppress(PermissionError):  # a folder of another user, who decides about its access
        _restrict_access(folder)


def open_private(path: str | Path, flags: int) -> int:
    """Open a file like `os.open`, with mode 0600 if it is new. Usable as `open(..., opener=...)`."""
    return os.open(path, flags, 0o600)


def create_private(path: Path) -> Path:
    """Create an empty private file unless it exists, for libraries that open it by path."""
    os.close(open_private(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND))
    return path


def _restrict_access(path: Path) -> None:
    status = path.lstat()
    if not stat.S_ISLNK(status.st_mode) and status.st_mode & OTHERS:
        path.chmod(stat.S_IMODE(status.st_mode) & ~OTHERS)
