# The whole vocabulary: demo, test, faults, lint, type, docs, bench.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
LOCK := pyproject.toml constraints.txt

.DEFAULT_GOAL := test
.PHONY: demo test faults lint type docs bench

# One environment for everything; a stamp says what it holds, so that only a change of the lock installs again.
$(VENV)/.made:
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.demo: $(VENV)/.made $(LOCK)
	$(PIP) -e '.[demo]'
	touch $@

$(VENV)/.dev: $(VENV)/.made $(LOCK)
	$(PIP) -e '.[demo,dev,docs]'
	touch $@ $(VENV)/.demo

# Train the handwritten digits; nothing is downloaded but packages.
demo: $(VENV)/.demo
	$(BIN)/drivetrain demo digits

# Everything that has to hold before a change is merged.
test: $(VENV)/.dev
	$(MAKE) --no-print-directory lint
	$(MAKE) --no-print-directory type
	$(BIN)/python -m pytest
	$(MAKE) --no-print-directory docs

# Kill ranks and worse, many times: "N of N" for each kind. Takes long.
faults: $(VENV)/.dev
	$(BIN)/python -m tests.faults --write docs/reliability.md

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

type: $(VENV)/.dev
	$(BIN)/mypy

docs: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks
