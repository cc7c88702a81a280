"""`trace --sign KEY --timestamp URL` and `verify --tsa-cert FILE`, with an authority that is made of openssl."""

import json
import shutil
import subprocess
import threading
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from perdure.client.records import record as timestamp
from perdure.decisions.errors import ReportedError
from perdure.testkit.model_server import ScriptedModel, says
from tests.e2e.projects import MakeProject, Project, use_model

OPENSSL = shutil.which("openssl") or ""
pytestmark = pytest.mark.skipif(not OPENSSL, reason="the authority is made of openssl")

CONFIG = """
[tsa]
default_tsa = own
[own]
serial = serial
signer_cert = tsa.pem
signer_key = tsa.key
signer_digest = sha256
default_policy = 1.2.3.4
digests = sha256
accuracy = secs:1
[tsa_cert]
basicConstraints = critical,CA:false
keyUsage = critical,digitalSignature
extendedKeyUsage = critical,timeStamping
"""
Answer = Callable[[bytes], tuple[int, bytes]]


def openssl(folder: Path, *args: str) -> None:
    subprocess.run([OPENSSL, *args], cwd=folder, check=True, capture_output=True)


def make_authority(folder: Path, name: str) -> Path:
    """A root certificate, and a certificate for time stamps that it signs."""
    folder.mkdir()
    (folder / "tsa.cnf").write_text(CONFIG)
    (folder / "serial").write_text("01\n")
    new_key = ("-newkey", "rsa:2048", "-nodes")
    openssl(folder, "req", "-x509", *new_key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", f"/CN={name}")
    openssl(folder, "req", "-new", *new_key, "-keyout", "tsa.key", "-out", "tsa.csr", "-subj", f"/CN={name} TSA")
    signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "tsa.cnf", "-extensions", "tsa_cert")
    openssl(folder, "x509", "-req", "-in", "tsa.csr", "-out", "tsa.pem", *signed)
    return folder


def stamp(folder: Path, query: bytes) -> tuple[int, bytes]:
    (folder / "query").write_bytes(query)
    openssl(folder, "ts", "-reply", "-config", "tsa.cnf", "-queryfile", "query", "-out", "reply")
    return 200, (folder / "reply").read_bytes()


@contextmanager
def serving(answer: Answer) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.headers["Content-Type"] == "application/timestamp-query"
            status, body = answer(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_authority(tmp_path_factory.mktemp("tsa") / "own", "own")


@pytest.fixture(scope="module")
def project(make_project: MakeProject, authority: Path) -> Iterator[Project]:
    """A project with a run, and its record, signed and stamped."""
    project = make_project()
    openssl(project.folder, "genpkey", "-algorithm", "ed25519", "-out", "record.key")
    openssl(project.folder, "pkey", "-in", "record.key", "-pubout", "-out", "record.pub")
    shutil.copy(authority / "ca.pem", project.folder / "ca.pem")
    shutil.copy(make_authority(authority.parent / "other", "other") / "ca.pem", project.folder / "other.pem")
    with ScriptedModel([says("done")]) as model, serving(lambda query: stamp(authority, query)) as url:
        project.env |= use_model(model)
        assert project.perdure("run", "--id", "r1", "say it").code == 0
        done = project.perdure("trace", "r1", "--export", "r1.record", "--sign", "record.key", "--timestamp", url)
        assert done.code == 0, done
        yield project


def last_line(project: Project) -> dict[str, Any]:
    line: dict[str, Any] = json.loads((project.folder / "r1.record").read_bytes().splitlines()[-1])
    return line


def rewrite(project: Project, **changes: Any) -> str:
    """Write the record with another last line; a field that is None is left out."""
    *events, _ = (project.folder / "r1.record").read_text().splitlines()
    line = {name: value for name, value in {**last_line(project), **changes}.items() if value is not None}
    text = json.dumps(line, sort_keys=True, separators=(",", ":"))
    project.write("changed.record", "\n".join([*events, text]) + "\n")
    return "changed.record"


def test_a_stamped_record_holds_and_says_before_when_it_was_signed(project: Project) -> None:
    done = project.perdure("verify", "r1.record", "--key", "record.pub", "--tsa-cert", "ca.pem")
    assert done.code == 0, done
    assert "holds: " in done.out
    assert " UTC, by an authority of --tsa-cert" in done.out
    report = json.loads(project.perdure("verify", "r1.record", "--tsa-cert", "ca.pem", "--json").out)
    assert report["holds"]
    assert report["stamped_at"].startswith("20")
    assert "who made its time stamp was not checked: give --tsa-cert" in project.perdure("verify", "r1.record").out
    report = json.loads(project.perdure("verify", "r1.record", "--json").out)
    assert (report["holds"], report["timestamp"], report["stamped_at"]) == (True, "not checked", None)


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        (lambda _: {"timestamp": "AAAA"}, "the time stamp is not valid: "),
        (
            lambda line: {"sig": b64encode(b64decode(line["sig"])[::-1]).decode()},
            "it is of something else",
        ),
    ],
)
def test_a_time_stamp_that_was_made_up_is_found_without_the_roots_of_an_authority(
    project: Project, change: Callable[[dict[str, Any]], dict[str, Any]], finding: str
) -> None:
    done = project.perdure("verify", rewrite(project, **change(last_line(project))))
    assert (done.code, finding in done.out) == (1, True), done


def test_openssl_agrees(project: Project, authority: Path) -> None:
    line = last_line(project)
    (authority / "token").write_bytes(b64decode(line.pop("timestamp")))
    (authority / "signed").write_text(json.dumps(line, sort_keys=True, separators=(",", ":")))
    openssl(authority, "ts", "-verify", "-in", "token", "-data", "signed", "-CAfile", "ca.pem")


@pytest.mark.parametrize(
    ("roots", "change", "finding"),
    [
        ("other.pem", lambda _: {}, "the time stamp is not valid: "),
        ("ca.pem", lambda _: {"timestamp": None}, "the time stamp is missing"),
        ("ca.pem", lambda _: {"timestamp": "AAAA"}, "the time stamp is not valid: "),
        ("ca.pem", lambda line: {"timestamp": change_byte(line["timestamp"])}, "the time stamp is not valid: "),
        ("ca.pem", lambda line: {"sig": b64encode(b64decode(line["sig"])[::-1]).decode()}, "the time stamp is not va"),
    ],
    ids=["another root", "no stamp", "no token", "a changed byte", "another signature"],
)
def test_a_time_stamp_of_something_else_is_found(
    project: Project, roots: str, change: Callable[[dict[str, Any]], dict[str, Any]], finding: str
) -> None:
    done = project.perdure("verify", rewrite(project, **change(last_line(project))), "--tsa-cert", roots)
    assert done.code == 1
    assert finding in done.out, done


def change_byte(text: str) -> str:
    """Change the last byte: it belongs to the authority's signature."""
    data = b64decode(text)
    return b64encode(data[:-1] + bytes([data[-1] ^ 1])).decode()


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ((500, b"away"), "no time stamp by the authority of --timestamp: Server error '500"),
        ((200, b"hello"), "the time-stamping authority does not answer with a time stamp"),
        ((200, b"x" * 300_000), "the time stamp is larger than 262,144 bytes"),
    ],
    ids=["an error", "something else", "too much"],
)
def test_without_a_time_stamp_nothing_is_written(project: Project, answer: tuple[int, bytes], reason: str) -> None:
    sign = ("trace", "r1", "--export", "no.record", "--sign", "record.key")
    with serving(lambda _: answer) as url:
        assert reason in project.perdure(*sign, "--timestamp", url).error()
    assert not (project.folder / "no.record").exists()


def test_a_stamp_of_another_request_is_rejected(project: Project, authority: Path) -> None:
    stored = stamp(authority, (authority / "query").read_bytes())
    sign = ("trace", "r1", "--export", "no.record", "--sign", "record.key")
    with serving(lambda _: stored) as url:
        assert "with the time stamp of something else" in project.perdure(*sign, "--timestamp", url).error()


def test_wrong_options_are_one_line(project: Project) -> None:
    assert "--timestamp requires --sign" in project.perdure("trace", "r1", "--timestamp", "http://x").error(2)
    wrong = project.perdure("verify", "r1.record", "--tsa-cert", "record.pub")
    assert wrong.error() == "perdure: --tsa-cert has no certificate in PEM\n"


def test_a_missing_package_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(timestamp, "import_module", fail)
    with pytest.raises(ReportedError, match=r"pip install 'perdure\[timestamp\]'"):
        timestamp.load_library()
