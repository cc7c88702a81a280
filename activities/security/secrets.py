"""The secrets of this process, and their removal from everything that a run stores.

They are collected once, at startup. A tool, a page or a model may return one of them as it is, in base64, base32 or
hex, or as a writer of JSON, HTML or URLs escapes it: each such form is replaced by `[redacted NAME]`. Text that a
person or another program sends to a run is not redacted.
"""

import base64
import html
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import lcm
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

MIN_SECRET = 8  # characters; shorter values occur as ordinary words
_MIN_HALVED = 24  # characters from which half of a secret is redacted too, since a message may be cut

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
_BEYOND_ASCII = re.compile(r"[^\x00-\x7f]+")
# Lengths of the search texts: shorter ones match too often, longer ones take too long to choose.
_SIGN, _MAX_SIGN = 8, 64
_MAX_PIECES = 64  # candidates for one search text; a key file has thousands
_SWITCHES = frozenset({"disabled", "required", "optional"})  # long enough to be secrets

_BETWEEN_HEX = ("", "%", "\\x")  # between the bytes of a dump, a URL, a literal

Escapes = dict[str, str | int | None]  # as `str.maketrans` takes it

# The characters besides letters, digits and `_.-~` that URL writers do not escape.
_LEFT_IN_URLS = (
    "",
    "/",  # of a path
    "!'()*",  # JavaScript's encodeURIComponent
    "!'()*;,/?:@&=+$#",  # its encodeURI
)
# What HTML writers escape besides `&`, `<` and `>`.
_IN_HTML: tuple[Escapes, ...] = (
    {'"': "&quot;", "'": "&#x27;"},  # Python
    {'"': "&quot;", "'": "&#39;"},  # lodash
    {'"': "&quot;", "'": "&#039;"},  # PHP
    {'"': "&#34;", "'": "&#39;"},  # Jinja
    {'"': "&#34;", "'": "&#39;", "+": "&#43;"},  # Go
    {'"': "&quot;", "'": "&#x27;", "+": "&#x2B;", "`": "&#x60;"},  # .NET
    {'"': "&quot;", "'": "&#x27;", "=": "&#x3D;", "`": "&#x60;"},  # Handlebars
    {'"': "&quot;", "'": "&#x27;", "/": "&#x2F;"},  # OWASP's advice
    {'"': "&quot;", "'": "&#39;", "/": "&#x2F;"},  # Mustache
    {'"': "&quot;", "'": "&#39;", "/": "&#x2F;", "=": "&#x3D;", "`": "&#x60;"},  # newer Mustache
    {'"': "&#34;", "'": "&#39;", "/": "&#47;"},  # decimal
)


def _unicode_escapes(signs: str, digits: str) -> Escapes:
    return {sign: f"\\u{ord(sign):04{digits}}" for sign in signs}


# What JSON writers escape besides what they must, and the digits of non-ASCII escapes (None: not escaped).
_IN_JSON: tuple[tuple[Escapes, str | None], ...] = (
    ({}, "x"),
    ({}, None),
    ({"/": "\\/"}, "x"),  # PHP
    ({"/": "\\/"}, None),
    (_unicode_escapes("\"&'+<>`", "X"), "X"),  # .NET
    (_unicode_escapes("\"&'+<>`", "x"), "x"),
    (_unicode_escapes("&<>", "x"), None),  # Go, Rails
    (_unicode_escapes("&'<=>", "x"), None),  # Gson
)


class Secrets:
    """Named values in all their encoded forms. `Secrets()` is empty, and costs nothing."""

    def __init__(self, named: Iterable[tuple[str, str]] = ()) -> None:
        labels: dict[str, str] = {}
        shapes_in_json: dict[str, None] = {}
        signs, signs_in_json = set[str](), set[str]()
        for name, value in named:
            label = f"[redacted {re.sub(r'[^A-Za-z0-9_.-]', '_', name)}]"
            forms = dict.fromkeys(_secret_forms(value))
            shapes = forms | dict.fromkeys(map(_dump_string, forms))
            for form in forms:
                labels.setdefault(form, label)
            shapes_in_json |= shapes
            signs |= _choose_signs(forms)
            signs_in_json |= _choose_signs(shapes)
        # The longest first, so that a secret inside another one leaves no remainder.
        self._labels = sorted(labels.items(), key=lambda pair: (-len(pair[0]), pair[0]))
        self._shapes_in_json = list(shapes_in_json)
        # Search texts: each form, and its shape in JSON, contains one of them.
        self._signs = _minimal_signs(signs)
        self._signs_in_json = _minimal_signs(signs_in_json)

    def __repr__(self) -> str:
        return f"Secrets({len(self._labels)} forms)"

    def __bool__(self) -> bool:
        return bool(self._labels)

    def redact(self, text: str) -> str:
        signs = [sign for sign in self._signs if sign in text]  # a list is twice as fast as a generator
        return _replace_forms(text, self._labels, signs) if signs else text

    def redact_bytes(self, data: bytes) -> bytes:
        text = data.decode(errors="surrogateescape")  # a variable that is not UTF-8 was decoded in the same way
        clean = self.redact(text)
        return data if clean is text else clean.encode(errors="surrogateescape")

    def redact_value(self, value: Any) -> Any:
        """Redact the strings and keys of a JSON value; return the same object if it holds no secret."""
        if not self._labels:
            return value
        if isinstance(value, str):
            return self.redact(value)
        text = json.dumps(value, ensure_ascii=False, default=str)
        signs = [sign for sign in self._signs_in_json if sign in text]
        has_secret = signs and any(shape in text for shape in self._shapes_in_json if _has_one(shape, signs))
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
        text = self.redact(text)
        end = len(text)
        for form, _ in self._labels:
            if form[:4] in text[-len(form) :]:
                starts = (n for n in range(min(len(form) - 1, len(text)), 3, -1) if text.endswith(form[:n]))
                end = min(end, len(text) - next(starts, 0))
        return text[max(end - length, 0) : end]


def _choose_signs(forms: Iterable[str]) -> set[str]:
    """Return a few texts such that each form contains one: most writers leave a part of a secret unchanged."""
    signs, remaining = set[str](), sorted(forms, key=len)
    while remaining:
        shortest = remaining[0]
        starts = range(0, max(len(shortest) - _SIGN, 0) + 1, len(shortest) // _MAX_PIECES + 1)
        pieces = [shortest[at : at + _SIGN] for at in starts]
        piece = max(pieces, key=lambda piece: sum(piece in form for form in remaining))
        signs.add(_grow_sign(piece, [form for form in remaining if piece in form]))
        remaining = [form for form in remaining if piece not in form]
    return signs


def _grow_sign(piece: str, forms: list[str]) -> str:
    """Extend a piece while all forms contain it: longer texts are found faster."""
    first = forms[0]
    start = first.index(piece)
    end = start + len(piece)
    while end < len(first) and end - start < _MAX_SIGN and all(first[start : end + 1] in form for form in forms):
        end += 1
    while start > 0 and end - start < _MAX_SIGN and all(first[start - 1 : end] in form for form in forms):
        start -= 1
    return first[start:end]


def _minimal_signs(signs: Iterable[str]) -> list[str]:
    """Return the texts that contain no other one."""
    least: list[str] = []
    for sign in sorted(signs, key=lambda sign: (len(sign), sign)):
        if not any(other in sign for other in least):
            least.append(sign)
    return least


def _has_one(form: str, signs: list[str]) -> bool:
    return bool([1 for sign in signs if sign in form])


def _replace_forms(text: str, labels: list[tuple[str, str]], signs: list[str]) -> str:
    for form, label in labels:
        if _has_one(form, signs):
            text = text.replace(form, label)
    return text


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
    if len(value) < MIN_SECRET or value.lower() in _SWITCHES or _is_figure(name, value):
        return False
    if _URL.fullmatch(value) and re.search(r"(URL|URI|ENDPOINT|HOST|ISSUER)$", name, re.IGNORECASE):
        return False
    return not _is_path(name, value)


def _is_figure(name: str, value: str) -> bool:
    """Return True for a number such as a limit or a duration, not for a numeric password or key."""
    if not _NUMBER.fullmatch(value):
        return False
    return not (value.isdigit() and (len(value) >= _LONG_NUMBER or _NAME_OF_PASSWORD.search(name)))


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
            yield from _base64_forms(pair) if password else ()  # as in `Authorization: Basic`, of any length
        for name, value in parse_qsl(url.query):
            if _QUERY_NAME.search(name) and len(value) >= MIN_SECRET:
                yield value


def _in_hook(url: str) -> Iterator[str]:
    """Yield the secret parts of a webhook's path."""
    pieces = url.partition("://")[2].split("?")[0].split("/")[1:]
    yield from (piece for piece in pieces if _PIECE_OF_HOOK.fullmatch(piece))


def _secret_forms(secret: str) -> Iterator[str]:
    """Yield the forms of a secret. Most have few: the secret itself, its base64, base32 and hex."""
    for form in dict.fromkeys((secret, *_in_urls_as(secret), *_in_html(secret), repr(secret)[1:-1])):
        yield form
        for writer in _IN_JSON if form == secret else _IN_JSON[:4]:
            once = _in_json(form, *writer)
            yield once
            if once != form:
                yield from (_in_json(once, *again) for again in (*_IN_JSON[:2], writer))
        if len(form) >= _MIN_HALVED:
            yield from (form[: len(form) // 2], form[-(len(form) // 2) :])
    yield from _encoded_forms(secret)


def _in_urls_as(secret: str) -> Iterator[str]:
    """Yield the percent-encoded and form-encoded secret, also with lower-case digits."""
    of_forms = (
        _percent_encode(secret, " "),
        _percent_encode(secret, " *").replace("~", "%7E"),
    )  # the second as in browsers and Java
    for form in (
        *(_percent_encode(secret, left) for left in _LEFT_IN_URLS),
        *(form.replace(" ", "+") for form in of_forms),
    ):
        yield form
        yield re.sub(r"%[0-9A-F]{2}", lambda code: code[0].lower(), form)


def _percent_encode(text: str, safe: str = "") -> str:
    return quote(text, safe=safe, errors="surrogatepass")  # a variable need not be UTF-8


def _in_html(text: str) -> Iterator[str]:
    safe = html.escape(text, quote=False)
    yield from (safe.translate(str.maketrans(more)) for more in _IN_HTML)


def _in_json(text: str, more: Escapes, digits: str | None) -> str:
    text = _dump_string(text).replace('\\"', '"').translate(str.maketrans({'"': '\\"', **more}))
    return text if digits is None else _BEYOND_ASCII.sub(lambda match: _escape_units(match[0], digits), text)


def _dump_string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _escape_units(text: str, digits: str) -> str:
    units = memoryview(text.encode("utf-16-le", errors="surrogatepass")).cast("H")
    return "".join(f"\\u{unit:04{digits}}" for unit in units)


def _encoded_forms(secret: str) -> Iterator[str]:
    """Yield the secret in base64, once and twice, in base32 and in hex, at any offset of a longer text."""
    data = secret.encode(errors="surrogatepass")
    for once in _base64_forms(secret):
        yield once
        yield from _base64_forms(once)
    for core in _shifted_cores(data, 5, base64.b32encode):
        yield core
        yield core.lower()
    for separator in _BETWEEN_HEX:
        yield separator.join(f"{byte:02x}" for byte in data)
        yield separator.join(f"{byte:02X}" for byte in data)


def _base64_forms(secret: str) -> Iterator[str]:
    """Yield the base64 in both alphabets."""
    for core in _shifted_cores(secret.encode(errors="surrogatepass"), 6, base64.b64encode):
        yield core
        yield core.translate(str.maketrans("+/", "-_"))


def _shifted_cores(data: bytes, bits: int, encode: Callable[[bytes], bytes]) -> Iterator[str]:
    """Yield, for each offset in a longer text, the encoded characters that depend on the data only."""
    for shift in range(lcm(bits, 8) // 8):
        encoded = encode(bytes(shift) + data).decode()
        core = encoded[-(-8 * shift // bits) : 8 * (shift + len(data)) // bits]
        if len(core) >= MIN_SECRET:
            yield core
