# Everything is set up by the first target that needs it: Python 3.11 or later, pip, git and make are enough.

PYTHON ?= python3
BIN := .venv/bin
MINUTES ?= 5
PLAYS ?= 300

# Without bytecode, each process of the tests compiles all test files again, which takes six seconds.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-all kills builds foreign release-check check reference histories bench chaos crossing fuzz dist
.PHONY: licences links locks clean

demo: .venv/ready  ## the worked example, from goal to artifact
	@$(BIN)/perdure demo

# Three processes on two cores: most of a test's time is waiting. Each process has a Temporal server of its own. Where
# much is broken, waiting for each failure takes hours, so the 25th is the last.
SUITE := $(BIN)/python -m pytest -n 3 --dist worksteal --maxfail 25

test: .venv/ready check  ## lint, types, and all tests that take no processes of their own
	@$(SUITE) -m "not slow"

test-all: test  ## the slow tests, too: whole processes, docs, browsers, fuzzing, one scenario of kills
	@$(SUITE) -m "slow and not kills and not builds and not foreign" --ignore tests/crossing
	@$(BIN)/python -m pytest tests/crossing  # one project, whose runs all of its tests read

kills: .venv/ready  ## SIGKILL of workers, servers and clients: the faults of `make chaos` in small, and more
	@$(SUITE) -m kills

builds: .venv/ready  ## fresh clones, wheels and installations, in odd paths too, and what a deployment needs
	@$(SUITE) -m builds

foreign: .venv/ready  ## programs of others: MCP servers from npm, the AI SDK, AG-UI, tsc, the temporal command, its Web UI, node, openssl
	@for each in tests/a2a tests/ag_ui tests/mcp tests/page tests/web_ui examples/web-chat; do \
		npm ci --prefix $$each --ignore-scripts --no-audit --no-fund >/dev/null 2>&1 || \
		echo "npm installs nothing here: the tests of what is in $$each are skipped"; done
	@$(SUITE) -m foreign

release-check: test-all kills builds foreign fuzz crossing chaos  ## everything there is; an hour of it is `make chaos`

check: .venv/ready  ## lint, types, import directions, words
	@$(BIN)/ruff check -q .
	@$(BIN)/ruff format -q --check .
	@$(BIN)/mypy .
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/python -m tests.words *.md docs workflows activities perdure *.py

reference: .venv/ready  ## writes docs/reference and the tables of docs/reference/configuration.md, from the code
	@$(BIN)/python -m tests.reference

histories: .venv/ready  ## records this version's histories, which every later version replays
	@$(BIN)/python -m tests.replay.record

bench: .venv/ready  ## how far from the floor: AgentRun beside a hand-written workflow; PEERS=1 for other frameworks, too
	@$(BIN)/python -m bench $(if $(PEERS),--peers)

chaos: .venv/ready  ## every fault at full size, under an hour; SCENARIOS="R1 R5" for some, MINUTES=30 for a longer soak
	@$(BIN)/python -m tests.chaos --minutes $(MINUTES) $(or $(SCENARIOS),--report docs/reliability.md)

crossing: .venv/ready  ## each pair of options, ways and doors in some run, at most 15 minutes; ROWS=10 for a sample
	@$(BIN)/python -m tests.crossing.pairs $(if $(ROWS),--rows $(ROWS))

fuzz: .venv/ready  ## random runs, on the real server and over the decisions alone; PLAYS=1000 for more
	@PERDURE_PLAYS=$(PLAYS) $(BIN)/python -m pytest -q tests/decisions/test_loop_machine.py tests/workflows/test_loop_agreement.py

dist: .venv/ready  ## the wheel, the source distribution and the bill of materials, the same bytes anywhere
	@$(BIN)/python -m tests.release.build

licences: .venv/ready  ## writes docs/licences.md, from what the image's lock file pins
	@$(BIN)/python -m tests.release.licences

# `UV` is of any environment. Pins stay unless they must change; add UPGRADE=--upgrade to take the latest.
UV ?= uv
LOCK := $(UV) pip compile pyproject.toml --quiet --python-version 3.11 --generate-hashes --no-header --extra all --extra keys
locks:  ## writes the lock files, after a change of dependencies
	@$(LOCK) $(UPGRADE) --group dev -o requirements.lock
	@$(LOCK) -c requirements.lock --group build --extra object-store --extra openai --extra telemetry \
		-o requirements.runtime.lock

links:  # an archive of the sources has none
	@for each in activities workflows; do \
		[ -L perdure/$$each ] || { rm -f perdure/$$each; ln -s ../$$each perdure/$$each; }; done

clean:  ## removes the environment; the runs in .perdure stay
	rm -rf .venv

# The virtual environment, exactly as the lock file has it.
.venv/ready: requirements.lock pyproject.toml | links
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "perdure needs Python 3.11 or later; name one with: make PYTHON=python3.12 demo" >&2; exit 1; }
	@echo "setting up .venv (once, about a minute) ..."
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@
