"""Models of several providers, as a person meets them: by `perdure.toml`, at the terminal, in `doctor`."""

import json

from perdure.testkit.model_server import ScriptedModel, fails, says
from tests.e2e.projects import MakeProject

KEY = "canary-0815-of-spare"
TOML = """
[model]
default = ["claude-x", "spare:llama3:8b"]

[model.providers.spare]
base_url = "{url}"
api_key_env = "OF_SPARE"
"""


def test_a_fallback_answers_and_the_person_sees_it(make_project: MakeProject) -> None:
    with ScriptedModel([fails(529, message="Overloaded")]) as first, ScriptedModel([says("It is done.")]) as spare:
        project = make_project()
        project.write("perdure.toml", TOML.format(url=spare.base_url))
        there = {"ANTHROPIC_BASE_URL": first.base_url, "OF_SPARE": KEY}
        done = project.perdure("run", "--id", "spared", "do it", **there)
        shown = project.perdure("show", "spared", "--json", **there)
    assert done.code == 0, done.err
    assert "↪ in place of claude-x: the provider failed (529): Overloaded" in done.out
    assert "spare:llama3:8b" in done.out
    assert json.loads(shown.out)["model"] == "spare:llama3:8b"
    assert [body["model"] for body in spare.requests] == ["llama3:8b"]
    assert KEY not in done.out + done.err + shown.out


def test_doctor_says_who_answers_and_what_is_missing(make_project: MakeProject) -> None:
    project = make_project()
    project.write("perdure.toml", TOML.format(url="http://127.0.0.1:9"))
    there = {"ANTHROPIC_API_KEY": "sk-canary-1"}
    well = project.perdure("doctor", OF_SPARE=KEY, **there)
    assert (
        "claude-x at Anthropic, with a key, else spare:llama3:8b at http://127.0.0.1:9, with a key (not called)"
        in " ".join(well.out.split())
    )
    ill = project.perdure("doctor", **there)
    assert "model.providers.spare: api_key_env names OF_SPARE, and that is not set" in " ".join(ill.out.split())
    run = project.perdure("run", "do it", **there)
    assert (run.code, run.err.strip()) == (
        1,
        "perdure: model.providers.spare: api_key_env names OF_SPARE, and that is not set",
    )
