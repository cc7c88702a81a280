"""The secrets of this process, and how they are kept out of all that a run leaves behind.

They are collected once, where the parts are wired. A tool, a page or a model may say one of them back, as it is or
escaped, percent-encoded or in base64: each such form is replaced by `[redacted NAME]`. What a person or another program
sends to a run themselves is theirs, and not looked through.
"""

import base64
import html
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

LEAST = 8  # characters; shorter ones are words that occur by themselves
_HALVED = 24  # from this length on, half of a secret is one too: what tells of it may have cut it

_NAME = re.compile(
    r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|_(PASS|PWD|PAT|AUTH|COOKIE)$", re.IGNORECASE
)
_NAME_OF_MANY = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL)S$", re.IGNORECASE)
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
_SWITCHES = frozenset({"disabled", "required", "optional"})  # as long as a secret may be


class Secrets:
    """Named values, and everything that they look like. `Secrets()` knows none, and costs nothing."""

    def __init__(self, named: Iterable[tuple[str, str]] = ()) -> None:
        labels: dict[str, str] = {}
        for name, value in named:
            label = f"[redacted {re.sub(r'[^A-Za-z0-9_.-]', '_', name)}]"
            for form in _forms(value):
                labels.setdefault(form, label)
        # The longest first, so that a secret inside another one leaves no rest of it.
        self._labels = sorted(labels.items(), key=lambda pair: (-len(pair[0]), pair[0]))
        # What is looked for: a form that holds another one needs no look of its own.
        self._signs = _least(labels)
        self._signs_in_json = _least({shape for form in labels for shape in (form, *_escaped(form))})
        # As text of one byte a character, where Python looks twice as fast as in bytes.
        self._signs_in_bytes = [sign.encode(errors="surrogatepass").decode("latin-1") for sign in self._signs]

    def __repr__(self) -> str:
        return f"Secrets({len(self._labels)} forms)"

    def __bool__(self) -> bool:
        return bool(self._labels)

    def redact(self, text: str) -> str:
        if not [1 for sign in self._signs if sign in text]:  # a list, as a generator takes twice as long
            return text
        for form, label in self._labels:
            text = text.replace(form, label)
        return text

    def redact_bytes(self, data: bytes) -> bytes:
        text = data.decode("latin-1")
        if not [1 for sign in self._signs_in_bytes if sign in text]:
            return data
        for form, label in self._labels:
            data = data.replace(form.encode(errors="surrogatepass"), label.encode())
        return data

    def redact_value(self, value: Any) -> Any:
        """The same object where nothing is found; else JSON as it was, with its strings and keys redacted."""
        if not self._labels:
            return value
        if isinstance(value, str):
            return self.redact(value)
        said = json.dumps(value, ensure_ascii=False, default=str)
        return self._walk(value) if [1 for sign in self._signs_in_json if sign in said] else value

    def _walk(self, value: Any) -> Any:
        match value:
            case str():
                return self.redact(value)
            case dict():
                return {self._walk(key): self._walk(inner) for key, inner in value.items()}
            case list():
                return [self._walk(inner) for inner in value]
            case tuple():
                return tuple(self._walk(inner) for inner in value)
            case _:
                return value

    def tail(self, text: str, length: int) -> str:
        """The last characters of a text that is still being written: what may become a secret is held back."""
        text = self.redact(text)
        end = len(text)
        for form, _ in self._labels:
            if form[:4] in text[-len(form) :]:
                begun = (n for n in range(min(len(form) - 1, len(text)), 3, -1) if text.endswith(form[:n]))
                end = min(end, len(text) - next(begun, 0))
        return text[max(end - length, 0) : end]


def _least(forms: Iterable[str]) -> list[str]:
    """Those that hold no other."""
    least: list[str] = []
    for form in sorted(forms, key=lambda form: (len(form), form)):
        if not any(other in form for other in least):
            least.append(form)
    return least


NO_SECRETS = Secrets()


def secrets_of(
    environment: Mapping[str, str], urls: Mapping[str, str] | None = None, named: Iterable[tuple[str, str]] = ()
) -> Secrets:
    """Those of the process: what its environment names so, and the credentials in URLs there and in `urls`.

    `named` are values that are secrets whatever their names; but no path, number or switch is one.
    """
    found = [pair for name, value in environment.items() for pair in _in_variable(name, value)]
    found += [(name, value) for name, value in named if is_secret(name, value)]
    found += [(name, secret) for name, url in (urls or {}).items() for secret in _in_urls(url)]
    return Secrets(found)


def _in_variable(name: str, value: str) -> Iterator[tuple[str, str]]:
    value = value.strip()
    yield from ((name, secret) for secret in _in_urls(value))
    if _NAME_OF_HEADERS.search(name):
        yield from ((name, word) for word in _in_headers(value) if is_secret(name, word))
    for field in value.split(";") if ";" in value else ():  # of a connection string: `AccountName=…;AccountKey=…`
        what, _, said = field.partition("=")
        if _QUERY_NAME.search(what.strip()) and is_secret(name, said):
            yield name, said
    if _NAME_OF_HOOK.search(name):
        yield from ((name, piece) for url in _URL.findall(value) for piece in _in_hook(url))
    if _NAME.search(name):
        for part in (value, *_parts(name, value)):
            if is_secret(name, part):
                yield name, part


def is_secret(name: str, value: str) -> bool:
    """Whether a variable of such a name holds one. Paths, figures, switches and bare addresses are none."""
    if len(value) < LEAST or value.lower() in _SWITCHES or _is_figure(name, value):
        return False
    if _URL.fullmatch(value) and re.search(r"(URL|URI|ENDPOINT|HOST|ISSUER)$", name, re.IGNORECASE):
        return False
    return not _is_path(name, value)


def _is_figure(name: str, value: str) -> bool:
    """A number that says how many, how long, how often; not a password of digits, or a key that has no letter."""
    if not _NUMBER.fullmatch(value):
        return False
    return not (value.isdigit() and (len(value) >= _LONG_NUMBER or _NAME_OF_PASSWORD.search(name)))


def _is_path(name: str, value: str) -> bool:
    if _NAME_OF_PATH.search(name) and _RELATIVE_PATH.fullmatch(value):
        return True
    # A key in base64 may begin with a slash; but no folder is named like one.
    pieces = re.split(r"[/\\:]", value)
    random = any(
        len(p) >= 16 and re.search(r"[a-z]", p) and re.search(r"[A-Z]", p) and re.search(r"\d", p) for p in pieces
    )
    return not random and all(_PATH.fullmatch(piece) for piece in re.split(r":(?=[~./])", value))


def _parts(name: str, value: str) -> Iterator[str]:
    """The secrets inside a value that holds several: `k2:…,k1:…`, a JSON object of credentials, the lines of a key."""
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
    """Of `api-key=…,authorization=Bearer%20…`, as OpenTelemetry has them: others may be plain words."""
    for entry in value.split(","):
        header, _, said = entry.strip().partition("=")
        for word in unquote(said).split():
            if _QUERY_NAME.search(header) or _RANDOM.fullmatch(word):
                yield word


def _in_urls(text: str) -> Iterator[str]:
    """What identifies its holder in URLs: user and password, and query parameters that are named so."""
    for found in _URL.finditer(text) if "://" in text else ():
        try:
            url = urlsplit(found[0])
        except ValueError:
            continue
        holder, at, _ = url.netloc.rpartition("@")
        user, _, password = holder.partition(":")
        if at:
            yield f"{holder}@"
            pair = f"{unquote(user)}:{unquote(password)}"
            yield from (
                secret for secret in (pair, unquote(password or user), password or user) if len(secret) >= LEAST
            )
            yield from _shifted(pair) if password else ()  # as `Authorization: Basic` has it, however short
        for name, value in parse_qsl(url.query):
            if _QUERY_NAME.search(name) and len(value) >= LEAST:
                yield value


def _in_hook(url: str) -> Iterator[str]:
    """Whoever knows the path of a webhook may post there."""
    pieces = url.partition("://")[2].split("?")[0].split("/")[1:]
    yield from (piece for piece in pieces if _PIECE_OF_HOOK.fullmatch(piece))


def _forms(secret: str) -> Iterator[str]:
    """What a secret may look like; for most of them that is itself, and its base64."""
    plain = dict.fromkeys(
        (
            secret,
            _quoted(secret, "/"),
            _quoted(secret),
            _quoted(secret, " ").replace(" ", "+"),
            html.escape(secret),
            repr(secret)[1:-1],
        )
    )
    for form in plain:
        yield form
        for once in _escaped(form):
            yield once
            yield from _escaped(once)
        if len(form) >= _HALVED:
            yield from (form[: len(form) // 2], form[-(len(form) // 2) :])
    lowered = re.sub(r"%[0-9A-F]{2}", lambda code: code[0].lower(), _quoted(secret))
    yield lowered
    yield from _shifted(secret)


def _quoted(text: str, safe: str = "") -> str:
    return quote(text, safe=safe, errors="surrogatepass")  # a variable need not be UTF-8


def _escaped(text: str) -> tuple[str, ...]:
    """In a string of JSON, where that differs."""
    if text.isascii() and text.isprintable() and '"' not in text and "\\" not in text:
        return ()
    return json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]


def _shifted(secret: str) -> Iterator[str]:
    """Its base64, wherever in a longer text it began: the characters that only the secret decides."""
    data = secret.encode(errors="surrogatepass")
    for shift in range(3):
        whole = base64.b64encode(bytes(shift) + data).decode().rstrip("=")
        first = (0, 2, 3)[shift]
        last = len(whole) - (0 if (shift + len(data)) % 3 == 0 else 1)
        core = whole[first:last]
        if len(core) >= LEAST:
            yield core
            yield core.translate(str.maketrans("+/", "-_"))
