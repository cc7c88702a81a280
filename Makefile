# Everything is set up by the first target that needs it: Python 3.11 or later, pip, git and make are enough.

PYTHON ?= python3
BIN := .venv/bin
MINUTES ?= 5

.PHONY: demo test check histories bench chaos clean

demo: .venv/ready  ## the worked example, from goal to artifact
	@$(BIN)/python examples/critique/demo.py

test: .venv/ready check  ## every check and test
	@$(BIN)/python -m pytest

check: .venv/ready  ## lint, types, import directions
	@$(BIN)/ruff check -q .
	@$(BIN)/ruff format -q --check .
	@$(BIN)/mypy .
	@$(BIN)/lint-imports --no-logo

histories: .venv/ready  ## records this version's histories, which every later version replays
	@$(BIN)/python -m tests.replay.record

bench: .venv/ready  ## how far from the floor: AgentRun beside a hand-written workflow
	@$(BIN)/python -m bench

chaos: .venv/ready  ## every fault at full size, about half an hour; SCENARIOS="R1 R5" for some, MINUTES=30 for a longer soak
	@$(BIN)/python -m tests.chaos --minutes $(MINUTES) $(SCENARIOS)

clean:  ## removes the environment; the runs in .perdure stay
	rm -rf .venv

# The virtual environment, exactly as the lock file has it.
.venv/ready: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "perdure needs Python 3.11 or later; name one with: make PYTHON=python3.12 demo" >&2; exit 1; }
	@echo "setting up .venv (once, about a minute) ..."
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@
