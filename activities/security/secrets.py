"""The secrets of this process, and how they are kept out of all that a run leaves behind.

They are collected once, where the parts are wired. A tool, a page or a model may say one of them back, as it is, in
base64, base32 or hex, or as some writer of JSON, HTML or URLs escapes it: each such form is replaced by
`[redacted NAME]`. What a person or another program sends to a run themselves is theirs, and not looked through.
"""

import base64
import html
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import lcm
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

LEAST = 8  # characters; shorter ones are words that occur by themselves
_HALVED = 24  # from this length on, half of a secret is one too: what tells of it may have cut it

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
# Characters of what is looked for: fewer are found in many a text, more take long to choose, and not longer to find.
_SIGN, _MOST_SIGN = 8, 64
_MOST_PIECES = 64  # that one is chosen of; a whole key file has thousands
_SWITCHES = frozenset({"disabled", "required", "optional"})  # as long as a secret may be

_BETWEEN_HEX = ("", "%", "\\x")  # of the bytes of a dump, a URL, a literal

Escapes = dict[str, str | int | None]  # as `str.maketrans` takes it

# What writers of URLs leave as it is beside letters, digits and `_.-~`.
_LEFT_IN_URLS = (
    "",
    "/",  # of a path
    "!'()*",  # JavaScript's encodeURIComponent
    "!'()*;,/?:@&=+$#",  # its encodeURI
)
# What writers of HTML make of more than `&`, `<` and `>`.
_IN_HTML: tuple[Escapes, ...] = (
    {'"': "&quot;", "'": "&#x27;"},  # Python
    {'"': "&quot;", "'": "&#39;"},  # lodash
    {'"': "&quot;", "'": "&#039;"},  # PHP
    {'"': "&#34;", "'": "&#39;"},  # Jinja
    {'"': "&#34;", "'": "&#39;", "+": "&#43;"},  # Go
    {'"': "&quot;", "'": "&#x27;", "+": "&#x2B;", "`": "&#x60;"},  # .NET
    {'"': "&quot;", "'": "&#x27;", "=": "&#x3D;", "`": "&#x60;"},  # Handlebars
    {'"': "&quot;", "'": "&#x27;", "/": "&#x2F;"},  # as OWASP advises
    {'"': "&quot;", "'": "&#39;", "/": "&#x2F;"},  # Mustache
    {'"': "&quot;", "'": "&#39;", "/": "&#x2F;", "=": "&#x3D;", "`": "&#x60;"},  # and as it is today
    {'"': "&#34;", "'": "&#39;", "/": "&#47;"},  # in decimals
)


def _coded(signs: str, digits: str) -> Escapes:
    return {sign: f"\\u{ord(sign):04{digits}}" for sign in signs}


# What writers of JSON make of more than they must, and with which digits of what is beyond ASCII: None leaves it.
_IN_JSON: tuple[tuple[Escapes, str | None], ...] = (
    ({}, "x"),
    ({}, None),
    ({"/": "\\/"}, "x"),  # PHP
    ({"/": "\\/"}, None),
    (_coded("\"&'+<>`", "X"), "X"),  # .NET
    (_coded("\"&'+<>`", "x"), "x"),
    (_coded("&<>", "x"), None),  # Go, Rails
    (_coded("&'<=>", "x"), None),  # Gson
)


class Secrets:
    """Named values, and everything that they look like. `Secrets()` knows none, and costs nothing."""

    def __init__(self, named: Iterable[tuple[str, str]] = ()) -> None:
        labels: dict[str, str] = {}
        shapes_in_json: dict[str, None] = {}
        signs, signs_in_json = set[str](), set[str]()
        for name, value in named:
            label = f"[redacted {re.sub(r'[^A-Za-z0-9_.-]', '_', name)}]"
            forms = dict.fromkeys(_forms(value))
            shapes = forms | dict.fromkeys(map(_dumped, forms))
            for form in forms:
                labels.setdefault(form, label)
            shapes_in_json |= shapes
            signs |= _signs(forms)
            signs_in_json |= _signs(shapes)
        # The longest first, so that a secret inside another one leaves no rest of it.
        self._labels = sorted(labels.items(), key=lambda pair: (-len(pair[0]), pair[0]))
        # As text of one byte a character, where Python looks twice as fast as in bytes.
        self._labels_in_bytes = [(_bytewise(form), _bytewise(label)) for form, label in self._labels]
        self._shapes_in_json = list(shapes_in_json)
        # What is looked for: each form, and each of its shapes, has one of these in it.
        self._signs = _least(signs)
        self._signs_in_bytes = [_bytewise(sign) for sign in self._signs]
        self._signs_in_json = _least(signs_in_json)

    def __repr__(self) -> str:
        return f"Secrets({len(self._labels)} forms)"

    def __bool__(self) -> bool:
        return bool(self._labels)

    def redact(self, text: str) -> str:
        found = [sign for sign in self._signs if sign in text]  # a list, as a generator takes twice as long
        return _replaced(text, self._labels, found) if found else text

    def redact_bytes(self, data: bytes) -> bytes:
        text = data.decode("latin-1")
        found = [sign for sign in self._signs_in_bytes if sign in text]
        return _replaced(text, self._labels_in_bytes, found).encode("latin-1") if found else data

    def redact_value(self, value: Any) -> Any:
        """The same object where nothing is found; else JSON as it was, with its strings and keys redacted."""
        if not self._labels:
            return value
        if isinstance(value, str):
            return self.redact(value)
        said = json.dumps(value, ensure_ascii=False, default=str)
        found = [sign for sign in self._signs_in_json if sign in said]
        is_there = found and any(shape in said for shape in self._shapes_in_json if _has_one(shape, found))
        return self._walk(value) if is_there else value

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


def _signs(forms: Iterable[str]) -> set[str]:
    """Few texts, one of which is in each form: most writers leave some part of a secret as it is."""
    signs, left = set[str](), sorted(forms, key=len)
    while left:
        begins = range(0, max(len(left[0]) - _SIGN, 0) + 1, len(left[0]) // _MOST_PIECES + 1)
        pieces = [left[0][at : at + _SIGN] for at in begins]
        piece = max(pieces, key=lambda piece: sum(piece in form for form in left))
        signs.add(_grown(piece, [form for form in left if piece in form]))
        left = [form for form in left if piece not in form]
    return signs


def _grown(piece: str, forms: list[str]) -> str:
    """As long as each of the forms still holds it: what is longer is found faster."""
    first = forms[0]
    start = first.index(piece)
    end = start + len(piece)
    while end < len(first) and end - start < _MOST_SIGN and all(first[start : end + 1] in form for form in forms):
        end += 1
    while start > 0 and end - start < _MOST_SIGN and all(first[start - 1 : end] in form for form in forms):
        start -= 1
    return first[start:end]


def _least(signs: Iterable[str]) -> list[str]:
    """Those that hold no other: they need no look of their own."""
    least: list[str] = []
    for sign in sorted(signs, key=lambda sign: (len(sign), sign)):
        if not any(other in sign for other in least):
            least.append(sign)
    return least


def _has_one(form: str, signs: list[str]) -> bool:
    return bool([1 for sign in signs if sign in form])


def _replaced(text: str, labels: list[tuple[str, str]], found: list[str]) -> str:
    for form, label in labels:
        if _has_one(form, found):
            text = text.replace(form, label)
    return text


def _bytewise(text: str) -> str:
    return text.encode(errors="surrogatepass").decode("latin-1")


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
    if name == "PERDURE_ANSWER_KEY":  # public halves are no secrets, and runs have them in their state
        value = ",".join(entry for entry in value.split(",") if ":public:" not in entry)
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
    for form in dict.fromkeys((secret, *_in_urls_as(secret), *_in_html(secret), repr(secret)[1:-1])):
        yield form
        for writer in _IN_JSON if form == secret else _IN_JSON[:4]:
            once = _in_json(form, *writer)
            yield once
            if once != form:
                yield from (_in_json(once, *again) for again in (*_IN_JSON[:2], writer))
        if len(form) >= _HALVED:
            yield from (form[: len(form) // 2], form[-(len(form) // 2) :])
    yield from _encoded(secret)


def _in_urls_as(secret: str) -> Iterator[str]:
    """Percent-encoded, and as a form has it, in lower case too."""
    of_forms = (_quoted(secret, " "), _quoted(secret, " *").replace("~", "%7E"))  # the second as browsers and Java do
    for form in (*(_quoted(secret, left) for left in _LEFT_IN_URLS), *(form.replace(" ", "+") for form in of_forms)):
        yield form
        yield re.sub(r"%[0-9A-F]{2}", lambda code: code[0].lower(), form)


def _quoted(text: str, safe: str = "") -> str:
    return quote(text, safe=safe, errors="surrogatepass")  # a variable need not be UTF-8


def _in_html(text: str) -> Iterator[str]:
    safe = html.escape(text, quote=False)
    yield from (safe.translate(str.maketrans(more)) for more in _IN_HTML)


def _in_json(text: str, more: Escapes, digits: str | None) -> str:
    """In a string of JSON."""
    said = _dumped(text).replace('\\"', '"').translate(str.maketrans({'"': '\\"', **more}))
    return said if digits is None else _BEYOND_ASCII.sub(lambda found: _units(found[0], digits), said)


def _dumped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _units(text: str, digits: str) -> str:
    units = memoryview(text.encode("utf-16-le", errors="surrogatepass")).cast("H")
    return "".join(f"\\u{unit:04{digits}}" for unit in units)


def _encoded(secret: str) -> Iterator[str]:
    """In base64, once and twice, in base32 and in hex, wherever in a longer text it began."""
    data = secret.encode(errors="surrogatepass")
    for once in _shifted(secret):
        yield once
        yield from _shifted(once)
    for core in _cores(data, 5, base64.b32encode):
        yield core
        yield core.lower()
    for separator in _BETWEEN_HEX:
        yield separator.join(f"{byte:02x}" for byte in data)
        yield separator.join(f"{byte:02X}" for byte in data)


def _shifted(secret: str) -> Iterator[str]:
    """Its base64, in both alphabets."""
    for core in _cores(secret.encode(errors="surrogatepass"), 6, base64.b64encode):
        yield core
        yield core.translate(str.maketrans("+/", "-_"))


def _cores(data: bytes, bits: int, encode: Callable[[bytes], bytes]) -> Iterator[str]:
    """Of each way in which it may lie in a longer text the characters of so many bits that only the data decides."""
    for shift in range(lcm(bits, 8) // 8):
        whole = encode(bytes(shift) + data).decode()
        core = whole[-(-8 * shift // bits) : 8 * (shift + len(data)) // bits]
        if len(core) >= LEAST:
            yield core
