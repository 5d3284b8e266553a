# Every target sets up what it needs in .venv. `make` alone lists them.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.ready

# What Python and pytest made of a file is kept for the next time: to read all tests anew takes a minute.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help demo test test-cluster lint format faults interop mutants bench docs wheel clean

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(STAMP): pyproject.toml constraints.txt tools/requirements.py
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt $$($(PYTHON) tools/requirements.py)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $(STAMP)

demo: $(STAMP) ## what it does, in a minute; at a terminal the agents stay up afterwards
	$(BIN)/interlingua demo

# Most tests wait for something: four processes keep two cores busy.
test: $(STAMP) ## the test suite
	$(BIN)/python -m pytest -q -n 4 --dist worksteal

# Every test that asks for a store gets one on a PostgreSQL that is started for this; those that make a file of their
# own, because they are about files, keep it.
test-cluster: $(STAMP) ## the test suite with PostgreSQL under it, and tests of whole clusters
	INTERLINGUA_TEST_STORE=postgresql:// $(BIN)/python -m pytest -q -n 2 --dist worksteal
	$(BIN)/python -m pytest -q -m cluster --timeout 300

lint: $(STAMP) ## format, lint, types, layers, generated docs
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/conformance.py --check
	$(BIN)/python tools/diagram.py --check
	$(BIN)/python tools/parity.py --check
	$(BIN)/python tools/reference.py --check
	$(BIN)/python tools/sync_client.py --check
	$(BIN)/python tools/house.py --check

format: $(STAMP) ## put the code in shape
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

faults: $(STAMP) ## long fault runs: a thousand kills, hosts whose cables are cut, servers broken on purpose
	$(BIN)/python -m pytest -q -m faults --timeout 3600
	$(BIN)/python -m pytest -q -n 2 --hypothesis-profile full $$(grep -rlE '^from (hypothesis|tests\.kit\.examples)' tests --include='test_*.py')

interop: $(STAMP) ## real third-party peers; needs Node.js; INTERLINGUA_INTEROP_AGENTS=1 adds real coding agents
	$(BIN)/python -m pytest -q tests/interop -m interop --timeout 1200

mutants: $(STAMP) ## break the code on purpose: every breakage must turn a test red
	$(BIN)/python tools/mutants.py

bench: $(STAMP) ## ours beside the ceiling
	$(BIN)/python -m bench

docs: $(STAMP) ## write the generated pages again
	$(BIN)/python tools/conformance.py
	$(BIN)/python tools/diagram.py
	$(BIN)/python tools/parity.py
	$(BIN)/python tools/reference.py
	$(BIN)/python tools/sync_client.py

wheel: $(STAMP) ## build the wheel, install it alone, and run it
	rm -rf dist
	$(BIN)/python -m build --wheel --no-isolation --outdir dist .
	$(PYTHON) tools/try_wheel.py dist

clean: ## start over
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
