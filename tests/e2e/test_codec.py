"""Encryption as a person turns it on: by one variable, for workers and commands alike."""

from base64 import b64encode

from tests.e2e.projects import MakeProject, Served

K1, K2 = (f"k{n}:{b64encode(bytes([n]) * 32).decode()}" for n in (1, 2))
GO = ("run", "look around", "--detach")


def test_workers_and_commands_agree_about_encryption_or_are_refused(served: Served) -> None:
    it, there = served.project, {"TEMPORAL_ADDRESS": served.address, "PERDURE_TASK_QUEUE": "sealed"}
    with it.worker(PERDURE_CODEC_KEYS=K1, **there):
        assert it.perdure("list", PERDURE_CODEC_KEYS=K1, **there).code == 0
        refused = [
            it.perdure(*GO, **there),
            it.perdure("answer", "r1", "yes", **there),
            it.perdure(*GO, PERDURE_CODEC_KEYS=K2, **there),
            it.perdure(*GO, PERDURE_CODEC_KEYS=f"{K2},{K1}", **there),
        ]
        with it.running(script="worker.py", **there) as other:
            refused.append(other.wait())
        healthy = it.perdure("doctor", PERDURE_CODEC_KEYS=f"{K1},{K2}", **there)
    words = (
        "encrypted with key k1: set",
        "encrypted with key k1: set",
        "has k2: add k1",
        "hold k1 and cannot read key k2",
    )
    for done, said in zip(refused, (*words, "encrypted with key k1: set"), strict=True):
        assert (done.code, done.err.count("\n")) == (1, 1), done
        assert said in done.err
    assert "encrypted with key k1; k2 can be read too" in healthy.out


def test_a_command_that_encrypts_is_refused_where_workers_do_not(worked: Served) -> None:
    it, there = worked.project, {"TEMPORAL_ADDRESS": worked.address}
    done = it.perdure(*GO, PERDURE_CODEC_KEYS=K1, **there)
    assert (done.code, done.err.count("\n")) == (1, 1)
    assert "have no codec: set PERDURE_CODEC_KEYS for them first" in done.err
    assert it.perdure(*GO, **there).code == 0


def test_an_embedded_server_keeps_the_seal_too(make_project: MakeProject, critique: str) -> None:
    it = make_project()
    done = it.perdure("run", critique, "--json", PERDURE_CODEC_KEYS=K1)
    assert done.code == 0, done
    refused = it.perdure("list")
    assert (refused.code, refused.err.count("\n")) == (1, 1)
    assert "encrypted with key k1" in refused.err
    assert (
        it.perdure(
            "show",
            "--json",
            *it.perdure("list", "--json", PERDURE_CODEC_KEYS=K1).out.split('"')[3:4],
            PERDURE_CODEC_KEYS=K1,
        ).code
        == 0
    )
    assert critique.encode() not in (it.home / "temporal.db").read_bytes()


def test_bad_keys_are_refused_in_one_line(make_project: MakeProject) -> None:
    done = make_project().perdure("list", PERDURE_CODEC_KEYS="k1:tooshort")
    assert (done.code, done.err) == (
        1,
        "perdure: PERDURE_CODEC_KEYS: key k1 has 6 bytes, not 32 (openssl rand -base64 32)\n",
    )
