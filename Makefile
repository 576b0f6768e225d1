# `make demo` and `make test` do all their set-up; see README.md.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
.DEFAULT_GOAL := help

help:  ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

setup: $(STAMP)  ## create .venv and install hardsight with its development tools

demo: $(STAMP)  ## train, score and report on embedded data; writes demo/
	$(BIN)/hardsight demo

test: $(STAMP) browser  ## run the test suite
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto

lint: $(STAMP)  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(STAMP)  ## build the documentation into site/
	$(BIN)/mkdocs build --strict --quiet

check: lint docs test  ## every check there is

bench: $(STAMP)  ## run the CPU benchmarks and print their tables
	$(BIN)/python -m benchmarks

browser:  ## install Chromium for the browser tests where it is missing
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null || sh .ci/install-chromium

.PHONY: help setup demo test lint docs check bench browser
