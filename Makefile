# Two commands: `make demo` and `make test`. Both need only Python 3.11 or later.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test check format torture clean
.DEFAULT_GOAL := demo

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if v >= (3, 11) else "rnnewton needs Python 3.11 or later; this is %d.%d. Give another one: make PYTHON=python3.12" % v)'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch .venv/installed

demo: .venv/installed
	$(BIN)/python -m rnnewton demo

check: .venv/installed
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/basedpyright
	$(BIN)/lint-imports

test: check
	$(BIN)/pytest

format: .venv/installed
	$(BIN)/ruff format src tests benchmarks
	$(BIN)/ruff check --fix src tests benchmarks

torture: .venv/installed
	$(BIN)/python tests/torture.py

clean:
	rm -rf .venv build
