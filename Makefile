# Everything a newcomer needs: `make serve` and `make test`. Each sets up what it needs first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=

.PHONY: serve test test-slow check check-lock check-lean bench lock clean setup setup-dev venv

serve: setup
	@$(BIN)/tokenline serve $(ARGS)

test: check
	$(BIN)/python -m pytest -n auto --maxprocesses 2 --dist worksteal -m "not slow" $(ARGS)

test-slow: setup-dev
	$(BIN)/python -m pytest --hypothesis-profile random $(ARGS)

check: setup-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports

# The lock as the package index can give it, and the default install at work: both need the network, so CI runs them.
check-lock: venv
	$(BIN)/python scripts/check_lock.py

check-lean:
	$(PYTHON) scripts/check_lean.py

bench: setup-dev
	$(BIN)/python -m bench.peers $(ARGS)
	$(BIN)/python -m bench.serving

# What python3 there is, what it needs and how far .venv is: set_up.py says and mends it, in no time when all is done.
SET_UP = @command -v $(PYTHON) >/dev/null || { echo "tokenline: no $(PYTHON) here; install Python 3.11 or newer" >&2; exit 2; }; \
	$(PYTHON) scripts/set_up.py

setup:
	$(SET_UP) runtime $(VENV)

setup-dev:
	$(SET_UP) dev $(VENV)

venv:
	$(SET_UP) venv $(VENV)

lock: venv
	$(BIN)/python scripts/lock.py

clean:
	rm -rf $(VENV) build *.egg-info src/*.egg-info .pytest_cache .ruff_cache .hypothesis
