"""What is known of the Claude models, what a call costs, and how a project's settings come before what is known."""

from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import httpx
import pytest
from anthropic.types import Model

from perdure.activities.project import Project
from perdure.activities.providers.prices import (
    CHEAP_MODEL,
    CLAUDE_MODELS,
    CLAUDE_PRICES,
    DEFAULT_WINDOW,
    Price,
    call_cost,
    claude_summary_model,
    claude_window,
)
from perdure.contracts.run.turn import Usage
from perdure.process.project import build_project
from perdure.settings import ProjectError, load_settings

MILLION = 1_000_000
HAIKU = CLAUDE_PRICES["claude-haiku-5-5"]


def project(folder: Path, toml: str = "", model: str = "claude-sonnet-5-5") -> Project:
    (folder / "perdure.toml").write_text(toml, encoding="utf-8")
    settings = load_settings({"ANTHROPIC_API_KEY": "k", "PERDURE_MODEL": model}, folder)
    return build_project(settings, SimpleNamespace(spec=httpx.AsyncClient))  # type: ignore[arg-type]


def test_every_claude_model_that_the_client_names_is_known_but_a_preview() -> None:
    named = set(get_args(get_args(Model)[0]))
    assert named - set(CLAUDE_MODELS) == {"claude-mythos-preview"}


@pytest.mark.parametrize("name", CLAUDE_PRICES)
def test_what_is_read_from_the_cache_is_cheaper_than_what_is_not_and_what_is_written_costs_a_quarter_more(
    name: str,
) -> None:
    for price in filter(None, (CLAUDE_PRICES[name], CLAUDE_PRICES[name].long)):
        assert price.cache_read < price.input < price.output
        assert price.cache_write == pytest.approx(1.25 * price.input)


@pytest.mark.parametrize("name", CLAUDE_MODELS)
def test_a_model_of_a_date_is_the_same_as_its_alias(name: str) -> None:
    alias, _, date = name.rpartition("-")
    if len(date) == 8:
        assert CLAUDE_MODELS[name] == CLAUDE_MODELS[alias]


@pytest.mark.parametrize(
    ("usage", "usd"),
    [
        (Usage(), 0),
        (Usage(input=MILLION), 2),
        (Usage(output=MILLION), 10),
        (Usage(cache_read=MILLION), 0.1),
        (Usage(cache_write=MILLION), 2.5),
        (Usage(cache_write=MILLION, cache_write_1h=MILLION), 4),
        (Usage(cache_write=MILLION, cache_write_1h=400_000), 3.1),
        (Usage(input=1000, output=200, cache_read=50_000, cache_write=3000), 0.0165),
    ],
)
def test_a_call_costs_each_of_its_tokens_by_its_kind(usage: Usage, usd: float) -> None:
    assert call_cost(usage, CLAUDE_PRICES["claude-sonnet-5-5"]) == pytest.approx(usd)


def test_a_call_of_a_model_without_a_price_has_an_unknown_cost() -> None:
    assert call_cost(Usage(input=1), CLAUDE_PRICES.get("somebody-else-1")) is None


@pytest.mark.parametrize(
    ("usage", "usd"),
    [
        (Usage(input=100_000, output=1000), 0.0105),
        (Usage(input=100_001, output=1000), 0.0525005),
        (Usage(cache_read=90_000, cache_write=10_000), 0.00215),
        (Usage(input=1, cache_read=90_000, cache_write=10_000), 0.0107505),
    ],
)
def test_a_long_prompt_is_dearer_with_all_of_its_call_and_the_cache_counts_as_prompt(usage: Usage, usd: float) -> None:
    assert call_cost(usage, HAIKU) == pytest.approx(usd)


def test_a_long_answer_makes_no_long_prompt() -> None:
    assert call_cost(Usage(input=1000, output=128_000), HAIKU) == pytest.approx(0.0641)


def test_the_window_is_the_users_else_the_models_else_the_smallest(tmp_path: Path) -> None:
    plain = project(tmp_path)
    assert plain.window is None
    assert [plain.window_of(name) for name in ("claude-sonnet-5-5", "claude-haiku-4-5", "somebody-else-1")] == [
        1_000_000,
        200_000,
        DEFAULT_WINDOW,
    ]
    assert project(tmp_path, "[model]\nwindow = 32_000\n").window_of("claude-sonnet-5-5") == 32_000
    assert claude_window("claude-fable-5-2") == 1_000_000


def test_summaries_are_written_by_whom_the_user_names_else_by_a_haiku_else_by_the_runs_own_model(
    tmp_path: Path,
) -> None:
    plain = project(tmp_path)
    assert plain.summary_model is None
    assert plain.summary_model_of("claude-opus-5-5") == CHEAP_MODEL
    assert plain.summary_model_of("somebody-else-1") == "somebody-else-1"
    assert project(tmp_path, '[model]\nsummary = "small"\n').summary_model_of("claude-opus-5-5") == "small"
    assert claude_summary_model("rehearsal") == "rehearsal"


def test_the_cheap_model_is_the_cheapest_of_the_table() -> None:
    assert min(CLAUDE_PRICES, key=lambda name: CLAUDE_PRICES[name].input) == CHEAP_MODEL


def test_prices_of_the_project_come_before_those_of_the_table_and_beside_them(tmp_path: Path) -> None:
    its = project(tmp_path, "[prices.mine]\ninput = 1\noutput = 2\n[prices.claude-haiku-5-5]\ninput = 3\noutput = 4\n")
    assert its.price_of("mine") == Price(input=1, output=2, cache_read=0, cache_write=0)
    assert its.price_of("claude-haiku-5-5") == Price(input=3, output=4, cache_read=0, cache_write=0)
    assert its.price_of("claude-sonnet-5-5") == CLAUDE_PRICES["claude-sonnet-5-5"]


@pytest.mark.parametrize(("line", "usd"), [("", 1.6), ("cache_write_1h = 5", 5), ("cache_write_1h = 0", 0)])
def test_a_project_sets_the_price_of_a_write_for_an_hour_or_it_follows_from_the_other(
    tmp_path: Path, line: str, usd: float
) -> None:
    its = project(tmp_path, f"[prices.mine]\ninput = 1\noutput = 2\ncache_write = 1\n{line}\n")
    written = Usage(cache_write=MILLION, cache_write_1h=MILLION)
    assert call_cost(written, its.price_of("mine")) == pytest.approx(usd)


@pytest.mark.parametrize("line", ["window = 999", 'window = "1M"', 'summary = ""'])
def test_a_window_or_a_name_that_cannot_be_is_refused_with_its_line(tmp_path: Path, line: str) -> None:
    with pytest.raises(ProjectError, match="line 2"):
        project(tmp_path, f"[model]\n{line}\n")
