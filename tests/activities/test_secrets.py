"""What counts as a secret, what it may look like, and that nothing else is touched."""

import base64
import html
import io
import json
import logging
import re
import string
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st
from temporalio.exceptions import ApplicationError

from perdure.activities.redaction import redact_error
from perdure.activities.security import NO_SECRETS, Secrets, collect_secrets, is_secret, redact_model
from perdure.activities.storage.store import LocalStores
from perdure.activities.storage.workspace import Workspace
from perdure.contracts.tool import ToolOutcome
from perdure.telemetry import log_to

VALUE = 'pa55/w0rd+with "quotes" & ünicode\\'
SECRETS = Secrets([("DB_PASSWORD", VALUE)])

LOOKS = {
    "as it is": VALUE,
    "in JSON": json.dumps(VALUE),
    "in JSON, as UTF-8": json.dumps(VALUE, ensure_ascii=False),
    "in JSON in JSON": json.dumps(json.dumps({"a": VALUE})),
    "percent-encoded": quote(VALUE, safe=""),
    "percent-encoded in lower case": quote(VALUE, safe="").lower(),
    "in a path": quote(VALUE),
    "in a form": quote_plus(VALUE),
    "in HTML": html.escape(VALUE),
    "as Python shows it": repr(VALUE),
    "in base64": base64.b64encode(VALUE.encode()).decode(),
    "in URL-safe base64": base64.urlsafe_b64encode(VALUE.encode()).decode(),
    **{
        f"in base64 after {n} bytes": base64.b64encode(b"user:xyz"[:n] + VALUE.encode() + b"..").decode()
        for n in range(1, 9)
    },
    "in hex": VALUE.encode().hex(),
    "in hex, in capitals": f"ff{VALUE.encode().hex().upper()}00",
    "as escaped bytes": "".join(f"\\x{byte:02x}" for byte in VALUE.encode()),
    "with each character percent-encoded": "".join(f"%{byte:02X}" for byte in VALUE.encode()),
    "with each character percent-encoded in lower case": "".join(f"%{byte:02x}" for byte in VALUE.encode()),
    **{
        f"in base32 after {n} bytes": base64.b32encode(b"user:"[:n] + VALUE.encode() + b"..").decode() for n in range(6)
    },
    "in base32, in small letters": base64.b32encode(VALUE.encode()).decode().lower(),
    **{
        f"in base64 twice after {n} bytes": base64.b64encode(
            b"x" * n + base64.b64encode(b"user:xyz"[:n] + VALUE.encode() + b"..")
        ).decode()
        for n in range(7)
    },
    "cut in half": VALUE[: len(VALUE) * 2 // 3],
    "cut at its beginning": VALUE[len(VALUE) // 3 :],
}


@pytest.mark.parametrize("look", LOOKS)
def test_a_secret_is_found_whatever_it_looks_like(look: str) -> None:
    said = LOOKS[look]
    for clean in (
        SECRETS.redact(f"before {said} after"),
        SECRETS.redact_bytes(f"before {said} after".encode()).decode(),
        SECRETS.redact_value({"deep": [{said: 1}]})["deep"][0].__repr__(),
    ):
        assert "[redacted DB_PASSWORD]" in clean
        assert said not in clean


WRITTEN = "a1/b2+c3=d4&\"e5\"<f6>'g7' ü8(h9)*i!~"
WRITERS = {
    "PHP's json_encode": r"""a1\/b2+c3=d4&\"e5\"<f6>'g7' \u00fc8(h9)*i!~""",
    "PHP's json_encode, of what it has encoded": r"""a1\\\/b2+c3=d4&\\\"e5\\\"<f6>'g7' \\u00fc8(h9)*i!~""",
    "PHP's json_encode, as UTF-8": r"""a1\/b2+c3=d4&\"e5\"<f6>'g7' ü8(h9)*i!~""",
    "PHP's json_encode, of a URL": r"a1\/b2%2Bc3%3Dd4%26%22e5%22%3Cf6%3E%27g7%27%20%C3%BC8%28h9%29%2Ai%21~",
    "PHP's json_encode, of HTML": r"a1\/b2+c3=d4&amp;&quot;e5&quot;&lt;f6&gt;&#039;g7&#039; \u00fc8(h9)*i!~",
    "PHP's htmlspecialchars": "a1/b2+c3=d4&amp;&quot;e5&quot;&lt;f6&gt;&#039;g7&#039; ü8(h9)*i!~",
    ".NET's JsonSerializer": r"a1/b2\u002Bc3=d4\u0026\u0022e5\u0022\u003Cf6\u003E\u0027g7\u0027 \u00FC8(h9)*i!~",
    ".NET's JSON in lower case": r"a1/b2\u002bc3=d4\u0026\u0022e5\u0022\u003cf6\u003e\u0027g7\u0027 \u00fc8(h9)*i!~",
    ".NET's HtmlEncoder": "a1/b2&#x2B;c3=d4&amp;&quot;e5&quot;&lt;f6&gt;&#x27;g7&#x27; ü8(h9)*i!~",
    "Go's encoding/json": r"""a1/b2+c3=d4\u0026\"e5\"\u003cf6\u003e'g7' ü8(h9)*i!~""",
    "Go's html/template": "a1/b2&#43;c3=d4&amp;&#34;e5&#34;&lt;f6&gt;&#39;g7&#39; ü8(h9)*i!~",
    "Gson": r"""a1/b2+c3\u003dd4\u0026\"e5\"\u003cf6\u003e\u0027g7\u0027 ü8(h9)*i!~""",
    "JavaScript's encodeURIComponent": "a1%2Fb2%2Bc3%3Dd4%26%22e5%22%3Cf6%3E'g7'%20%C3%BC8(h9)*i!~",
    "its encodeURIComponent in lower case": "a1%2fb2%2bc3%3dd4%26%22e5%22%3cf6%3e'g7'%20%c3%bc8(h9)*i!~",
    "its encodeURI": "a1/b2+c3=d4&%22e5%22%3Cf6%3E'g7'%20%C3%BC8(h9)*i!~",
    "its URLSearchParams": "a1%2Fb2%2Bc3%3Dd4%26%22e5%22%3Cf6%3E%27g7%27+%C3%BC8%28h9%29*i%21%7E",
    "Mustache": "a1&#x2F;b2+c3&#x3D;d4&amp;&quot;e5&quot;&lt;f6&gt;&#39;g7&#39; ü8(h9)*i!~",
    "Mustache, as it was": "a1&#x2F;b2+c3=d4&amp;&quot;e5&quot;&lt;f6&gt;&#39;g7&#39; ü8(h9)*i!~",
    "Handlebars": "a1/b2+c3&#x3D;d4&amp;&quot;e5&quot;&lt;f6&gt;&#x27;g7&#x27; ü8(h9)*i!~",
    "OWASP's advice": "a1&#x2F;b2+c3=d4&amp;&quot;e5&quot;&lt;f6&gt;&#x27;g7&#x27; ü8(h9)*i!~",
    "HTML in decimals": "a1&#47;b2+c3=d4&amp;&#34;e5&#34;&lt;f6&gt;&#39;g7&#39; ü8(h9)*i!~",
    "Jinja": "a1/b2+c3=d4&amp;&#34;e5&#34;&lt;f6&gt;&#39;g7&#39; ü8(h9)*i!~",
}


@pytest.mark.parametrize("writer", WRITERS)
def test_a_secret_is_found_in_any_form(writer: str) -> None:
    secrets, said = Secrets([("KEY", WRITTEN)]), WRITERS[writer]
    assert secrets.redact(f"<{said}>") == "<[redacted KEY]>"
    assert secrets.redact_bytes(f"<{said}>".encode()) == b"<[redacted KEY]>"
    assert secrets.redact_value({said: [said]}) == {"[redacted KEY]": ["[redacted KEY]"]}


@pytest.mark.parametrize(
    ("secret", "said"),
    [
        ("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", r"wJalrXUtnFEMI\/K7MDENG\/bPxRfiCYEXAMPLEKEY"),
        ("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "wJalrXUtnFEMI&#x2F;K7MDENG&#x2F;bPxRfiCYEXAMPLEKEY"),
        ("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "wJalrXUtnFEMI&#47;K7MDENG&#47;bPxRfiCYEXAMPLEKEY"),
        ("abcdefgh+ijklmn/op+q==", r"abcdefgh\u002Bijklmn/op\u002Bq=="),
        ("pa(ss)word!12/3", "pa(ss)word!12%2F3"),
    ],
)
def test_a_key_or_a_password_is_found_in_any_form(secret: str, said: str) -> None:
    assert Secrets([("X", secret)]).redact(f"<{said}>") == "<[redacted X]>"


Escapes = dict[str, str | int | None]  # as `str.maketrans` takes it

# What HTML writers escape besides `&`, `<` and `>`.
IN_HTML: tuple[Escapes, ...] = (
    {'"': "&quot;", "'": "&#x27;"},  # Python
    {'"': "&quot;", "'": "&#39;"},  # lodash
    {'"': "&quot;", "'": "&#039;"},  # PHP
    {'"': "&#34;", "'": "&#39;", "+": "&#43;"},  # Go
    {'"': "&quot;", "'": "&#x27;", "+": "&#x2B;", "`": "&#x60;"},  # .NET
    {'"': "&quot;", "'": "&#39;", "/": "&#x2F;", "=": "&#x3D;", "`": "&#x60;"},  # Mustache
)


def _unicode_escapes(signs: str, digits: str) -> Escapes:
    return {sign: f"\\u{ord(sign):04{digits}}" for sign in signs}


# What JSON writers escape besides what they must, and the digits of non-ASCII escapes (None: not escaped).
IN_JSON: tuple[tuple[Escapes, str | None], ...] = (
    ({}, "x"),
    ({}, None),
    ({"/": "\\/"}, "x"),  # PHP
    ({"/": "\\/"}, None),
    (_unicode_escapes("\"&'+<>`", "X"), "X"),  # .NET
    (_unicode_escapes("&<>", "x"), None),  # Go, Rails
    (_unicode_escapes("&'<=>", "x"), None),  # Gson
)


def _in_json(text: str, more: Escapes, digits: str | None) -> str:
    text = json.dumps(text, ensure_ascii=False)[1:-1].replace('\\"', '"')
    text = text.translate(str.maketrans({'"': '\\"', **more}))
    if digits is None:
        return text
    units = (memoryview(char.encode("utf-16-le")).cast("H") for char in text)
    return "".join(
        char if char.isascii() else "".join(f"\\u{unit:04{digits}}" for unit in pair)
        for char, pair in zip(text, units, strict=True)
    )


def _written(secret: str) -> Iterator[str]:
    """The secret as it is written by each writer, and by each writer of JSON from that, once and twice."""
    safe = html.escape(secret, quote=False)
    in_urls = [quote(secret, safe=left) for left in ("", "/", "!'()*", "!'()*;,/?:@&=+$#")]
    in_urls += [quote_plus(secret), quote_plus(secret, safe="*").replace("~", "%7E")]
    lower = [re.sub("%[0-9A-F]{2}", lambda code: code[0].lower(), text) for text in in_urls]
    in_html = [safe.translate(str.maketrans(more)) for more in IN_HTML]
    for form in (secret, repr(secret)[1:-1], *in_urls, *lower, *in_html):
        once = [form, *(_in_json(form, *writer) for writer in IN_JSON)]
        yield from once
        yield from (_in_json(text, *writer) for text in once for writer in IN_JSON[:2])
    data = secret.encode()
    in_base64 = [base64.b64encode(b"xy"[:n] + data + b"..") for n in range(3)]
    in_base64 += [base64.b64encode(b"x" + data.translate(bytes.maketrans(b"+/", b"-_"))) for data in in_base64]
    yield from (text.decode() for text in (*in_base64, *map(base64.b32encode, (data + b"..", b"x" + data + b".."))))
    for digits in (data.hex(), data.hex().upper()):
        yield from (separator.join(re.findall("..", digits)) for separator in ("", "%", "\\x"))


@given(
    secrets=st.lists(
        st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("/+=&\"'<>%\\ "), min_size=8, max_size=60),
        min_size=1,
        max_size=3,
    )
)
def test_what_is_looked_for_is_in_every_form(secrets: list[str]) -> None:
    known = Secrets([("X", secret) for secret in secrets])
    for form in (form for secret in secrets for form in _written(secret)):
        assert known.redact(form) != form
        assert known.redact_bytes(form.encode()) != form.encode()
        assert known.redact_value([form]) != [form]


@given(
    secret=st.text(st.characters(exclude_categories=["Cs"]), min_size=8, max_size=60),
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
        max_leaves=12,
    ),
)
def test_no_secret_is_left_anywhere_in_a_value(secret: str, value: Any) -> None:
    secrets = Secrets([("X", secret)])
    clean = secrets.redact_value({"there": f"a{secret}b", secret: [secret, {"x": value}], "value": value})
    strings = list(_strings(clean))
    assert all(secret not in text for text in strings if secret not in "[redacted X]")


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for inner in (*value, *value.values()) if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _strings(inner)


@given(
    value=st.recursive(
        st.none() | st.integers() | st.text("abc "), lambda i: st.lists(i) | st.dictionaries(st.text("abc"), i)
    )
)
def test_what_holds_no_secret_is_the_same_object(value: Any) -> None:
    assert SECRETS.redact_value(value) is value
    assert NO_SECRETS.redact_value(value) is value


def test_redacting_twice_changes_nothing_more() -> None:
    once = SECRETS.redact(f"{VALUE} {VALUE}")
    assert SECRETS.redact(once) == once == "[redacted DB_PASSWORD] [redacted DB_PASSWORD]"


def test_of_two_secrets_in_one_another_no_rest_is_left() -> None:
    secrets = Secrets([("INNER", "s3cret-part"), ("OUTER", "s3cret-part-and-more")])
    assert secrets.redact("s3cret-part-and-more, s3cret-part") == "[redacted OUTER], [redacted INNER]"


KEY = "AbCdEf0123456789+/xYz="


@pytest.mark.parametrize(
    ("name", "value", "secret"),
    [
        ("OPENAI_API_KEY", "sk-1234567890", True),
        ("github_token", "ghp_1234567890", True),
        ("DB_PASSWD", "correct horse battery", True),
        ("AWS_SECRET_ACCESS_KEY", f"/{KEY}", True),
        ("KEY", "/aB3dE5gH7jK9mN1pQ3", True),
        ("WEBHOOK_SECRET", "https://hooks.example/T0/B1/x", True),
        ("API_KEY", "short", False),
        ("PWD", "/home/ann/secrets", False),
        ("SSH_KEY_PATH", "/home/ann/.ssh/id_rsa", False),
        ("SSL_KEY", "/etc/ssl/private/site.key", False),
        ("SSL_KEY", "~/keys/site.key", False),
        ("SIGNING_KEY_FILE", "keys/site.pem", False),
        ("KEY_DIRS", "/usr/share/keys:/etc/keys", False),
        ("TOKEN_URL", "https://auth.example/oauth/token", False),
        ("TOKENIZERS_PARALLELISM", "disabled", False),
        ("MAX_TOKENS", "12000000", False),
        ("TOKEN_RATE", "1,500,000.50", False),
        ("DB_PASSWORD", "12345678", True),
        ("API_KEY", "4539578763621486", True),
        ("SECRET_TTL", "3600.5000", False),
    ],
)
def test_paths_numbers_switches_and_addresses_are_no_secrets(name: str, value: str, secret: bool) -> None:
    assert is_secret(name, value) is secret


def test_the_path_of_a_webhook_is_one() -> None:
    secrets = collect_secrets(
        {"SLACK_WEBHOOK_URL": "https://hooks.a-long-name-1.example/services/T0123/B0123/x1Y2z3X4y5Z6x7Y8"}
    )
    assert secrets.redact("POST https://hooks.a-long-name-1.example/services/T0123/B0123/x1Y2z3X4y5Z6x7Y8: 404") == (
        "POST https://hooks.a-long-name-1.example/services/T0123/B0123/[redacted SLACK_WEBHOOK_URL]: 404"
    )


def test_only_variables_that_are_named_so_hold_secrets() -> None:
    secrets = collect_secrets({"HOME": "/home/ann-and-bob", "GREETING": "good morning", "MY_TOKEN": "good evening"})
    assert secrets.redact("good morning, good evening, /home/ann-and-bob") == (
        "good morning, [redacted MY_TOKEN], /home/ann-and-bob"
    )


def test_a_variable_that_is_no_utf8_is_a_secret_too() -> None:
    value = b"caf\xe9-1234567".decode(errors="surrogateescape")
    assert collect_secrets({"A_TOKEN": value}).redact(f"<{value}>") == "<[redacted A_TOKEN]>"


def test_each_of_several_keys_in_one_variable_is_a_secret() -> None:
    one, two = (base64.b64encode(bytes([n]) * 32).decode() for n in (1, 2))
    secrets = collect_secrets({"PERDURE_CODEC_KEYS": f"k2:{two},k1:{one}"})
    for said in (one, two, f"k1:{one}", f"k2:{two},k1:{one}"):
        assert secrets.redact(f"<{said}>") == "<[redacted PERDURE_CODEC_KEYS]>"


def test_of_the_keys_of_answers_the_secret_halves_are_secrets() -> None:
    one, two = (base64.b64encode(bytes([n]) * 32).decode() for n in (1, 2))
    secrets = collect_secrets({"PERDURE_ANSWER_KEY": f"k2:{two},k1:public:{one}"})
    assert secrets.redact(f"{one} {two}") == f"{one} [redacted PERDURE_ANSWER_KEY]"


def test_the_secrets_inside_a_json_variable_are_found_by_their_names() -> None:
    secrets = collect_secrets(
        {"GCP_CREDENTIALS": json.dumps({"project": "our-project", "private_key": "LINE-1\nLINE-2"})}
    )
    assert secrets.redact("our-project LINE-1\nLINE-2") == "our-project [redacted GCP_CREDENTIALS]"


def test_a_header_that_identifies_its_sender_is_a_secret_and_a_plain_one_is_none() -> None:
    headers = "api-key=k-of-ann-only,Authorization=Bearer%20b-of-ann-only,x-team=aB3dE5fG7hI9jK1l,kind=application/json"
    secrets = collect_secrets({"OTEL_EXPORTER_OTLP_HEADERS": headers})
    for said in ("k-of-ann-only", "b-of-ann-only", "aB3dE5fG7hI9jK1l"):
        assert secrets.redact(f"<{said}>") == "<[redacted OTEL_EXPORTER_OTLP_HEADERS]>"
    assert secrets.redact("<application/json>") == "<application/json>"


def test_the_lines_of_a_key_are_secrets_each() -> None:
    lines = [letter * 64 for letter in "abc"]
    secrets = collect_secrets({"TLS_KEY": "\n".join(["-----BEGIN PRIVATE KEY-----", *lines])})
    assert secrets.redact(f"> {lines[1]}") == "> [redacted TLS_KEY]"


@pytest.mark.parametrize(
    "said",
    [
        "https://ann:hunter2@db.example/x",
        "ann:hunter2",
        base64.b64encode(b"ann:hunter2").decode(),
        "https://db.example/x?api_key=0123abcd4567",
        "0123abcd4567",
        "p%40ss-word-9",
        "p@ss-word-9",
    ],
)
def test_the_credentials_in_urls_are_secrets(said: str) -> None:
    urls = {
        "tools.db.url": "https://ann:hunter2@db.example/x?api_key=0123abcd4567&page=1",
        "tools.other.url": "https://bob:p%40ss-word-9@db.example/y",
    }
    secrets = collect_secrets({}, urls)
    assert "redacted tools." in secrets.redact(said)
    assert secrets.redact("https://db.example/x?page=1, ann") == "https://db.example/x?page=1, ann"
    assert "redacted DATABASE" in collect_secrets({"DATABASE": "postgres://ann:hunter2@db/x"}).redact("ann:hunter2@db")


@pytest.mark.parametrize(
    "name", ["DB_PASS", "MYSQL_PWD", "GITHUB_PAT", "REDIS_AUTH", "SSH_PASSPHRASE", "SESSION_COOKIE"]
)
def test_what_is_named_like_a_secret_is_one(name: str) -> None:
    assert collect_secrets({name: "correct-horse"}).redact("it is correct-horse") == f"it is [redacted {name}]"


def test_the_fields_of_a_connection_string_are_secrets() -> None:
    secrets = collect_secrets(
        {"AZURE_CONN": "Endpoint=sb://x.example/;SharedAccessKeyName=all;SharedAccessKey=b64AbcdEfgh="}
    )
    assert secrets.redact("b64AbcdEfgh= at x.example") == "[redacted AZURE_CONN] at x.example"


@given(cut=st.integers(min_value=0, max_value=80))
def test_what_may_become_a_secret_is_held_back_while_it_is_written(cut: int) -> None:
    text = f"the key is {VALUE}, and that is all"
    shown = SECRETS.tail(text[:cut], 1000)
    assert VALUE[:4] not in shown
    assert text.startswith(shown) or "[redacted DB_PASSWORD]" in shown


def test_the_tail_is_as_long_as_asked() -> None:
    assert SECRETS.tail("abcdefgh", 3) == "fgh"
    assert NO_SECRETS.tail("abcdefgh", 3) == "fgh"


def test_secrets_do_not_show_themselves() -> None:
    assert VALUE not in repr(SECRETS)
    assert VALUE not in repr(Workspace(Path("x"), SECRETS))


def test_an_outcome_without_a_secret_is_left_alone() -> None:
    outcome = ToolOutcome(result={"n": 1.5}, artifacts=("a.md",))
    assert redact_model(outcome, SECRETS) is outcome
    assert redact_model(ToolOutcome(result=[VALUE], artifacts=("a.md",)), SECRETS) == ToolOutcome(
        result=["[redacted DB_PASSWORD]"], artifacts=("a.md",)
    )


def test_an_error_keeps_all_but_the_secret() -> None:
    error = ApplicationError(f"says {VALUE}", {"at": VALUE}, type="Kind", non_retryable=True)
    error.__cause__ = KeyError(VALUE)
    clean = redact_error(error, SECRETS)
    assert isinstance(clean, ApplicationError)
    assert (clean.type, clean.non_retryable) == ("Kind", True)
    assert (clean.message, clean.details) == ("says [redacted DB_PASSWORD]", ({"at": "[redacted DB_PASSWORD]"},))
    assert "[redacted DB_PASSWORD]" in str(clean.__cause__)
    assert isinstance(clean.__cause__, ApplicationError)
    assert clean.__cause__.type == "KeyError"
    plain = ValueError("nothing in it")
    assert redact_error(plain, SECRETS) is plain


def test_files_are_redacted_but_the_store_keeps_what_it_is_given(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path, SECRETS)
    workspace.write("artifacts/a.md", f"says {VALUE}".encode())
    workspace.write_own("context.md", b"\xff\x00" + VALUE.encode())
    workspace.append_line("trace.jsonl", json.dumps({"says": VALUE}))
    LocalStores(tmp_path.parent).of(tmp_path.name).write("segment-1.json", VALUE.encode())
    assert (tmp_path / "artifacts/a.md").read_text() == "says [redacted DB_PASSWORD]"
    assert (tmp_path / "context.md").read_bytes() == b"\xff\x00[redacted DB_PASSWORD]"
    assert json.loads((tmp_path / "trace.jsonl").read_text()) == {"says": "[redacted DB_PASSWORD]"}
    assert (tmp_path / ".store/segment-1.json").read_text() == VALUE


def test_log_lines_and_tracebacks_are_redacted() -> None:
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    out = io.StringIO()
    try:
        log_to(logging.StreamHandler(out), SECRETS)
        logging.getLogger("x").error("it said %s", VALUE, exc_info=ValueError(VALUE))
    finally:
        root.handlers[:] = before
        root.setLevel(level)
    line = json.loads(out.getvalue())
    assert line["message"] == "it said [redacted DB_PASSWORD]"
    assert "ValueError: [redacted DB_PASSWORD]" in line["error"]


def test_a_search_costs_next_to_nothing() -> None:
    """20 secrets and 2 KiB take some 45 µs; the bound is for a machine that has other things to do."""
    secrets = collect_secrets({f"A{n}_TOKEN": f"{n:02}-{string.ascii_letters[n : n + 24]}" for n in range(20)})
    text = "The quick brown fox jumps over the lazy dog, and 127.0.0.1 answers. " * 30
    best = min(_timed(secrets, text) for _ in range(50))
    assert best < 0.000_25


def test_however_many_forms_a_secret_has_few_texts_are_looked_for() -> None:
    secrets = Secrets([(f"K{n}", f"{n}{WRITTEN}") for n in range(10, 22)])
    assert len(set(_written(WRITTEN))) > 100
    assert len(secrets._signs) < 30 * 12


def _timed(secrets: Secrets, text: str) -> float:
    began = time.thread_time()
    secrets.redact(text)
    return time.thread_time() - began
