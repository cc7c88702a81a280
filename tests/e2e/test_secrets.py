"""What a person sees and pastes elsewhere: error lines and a worker's log."""

from tests.e2e.projects import MakeProject

CANARY = "sk-canary-0123456789"


def test_error_lines_show_no_secret(make_project: MakeProject) -> None:
    done = make_project().perdure("run", "x", "-c", CANARY, THEIR_API_KEY=CANARY)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "'[redacted THEIR_API_KEY]'" in done.err


def test_a_worker_that_cannot_start_shows_no_secret(make_project: MakeProject) -> None:
    it = make_project()
    it.write("perdure.toml", f'[tools.t]\nkind = "python"\ntarget = "{CANARY}"\n')
    with it.running(script="worker.py", THEIR_API_KEY=CANARY, TEMPORAL_ADDRESS="127.0.0.1:1") as worker:
        done = worker.wait()
    assert done.code == 1
    assert CANARY not in done.out + done.err
