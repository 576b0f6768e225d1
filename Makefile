# `make demo` and `make test` do all their set-up; see README.md.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# `worksteal` leaves the tests of a module to one worker, so that what they share is made only once.
# pytest's logging would give a handler to each of the hundred loggers of torch and transformers,
# three times per test; a warning that is logged is shown with the standard error.
PYTEST := $(BIN)/python -m pytest -n auto --dist worksteal -p no:logging
STAMP  := $(VENV)/.installed
.DEFAULT_GOAL := help
# Tests start many interpreters: without compiled files each of them compiles all modules again.
export PYTHONDONTWRITEBYTECODE :=

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

setup: $(STAMP)  ## create .venv and install hardsight with its development tools

demo: $(STAMP)  ## train, score and report on embedded data; writes demo/
	$(BIN)/hardsight demo

test: $(STAMP) browser  ## run the test suite
	OMP_NUM_THREADS=1 $(PYTEST)

test-long: $(STAMP)  ## run the long tests: experiments, two nodes of Ray, runs killed at random
	OMP_NUM_THREADS=1 $(PYTEST) -q -m 'long and not slow'

# The suite runs the first 100 random cases; the others would make it a sixth longer.
test-fuzz: $(STAMP)  ## run the random cases 100 to 2,000 of the command line
	HARDSIGHT_FUZZ_FIRST=100 HARDSIGHT_FUZZ_CASES=1900 OMP_NUM_THREADS=1 $(PYTEST) -q tests/fuzz/test_fuzz.py

test-notebooks: $(STAMP)  ## run the notebooks of examples/, each in a kernel of its own
	OMP_NUM_THREADS=1 $(PYTEST) -q -m notebooks tests/examples/test_notebooks.py

# What another processor, another number of threads and other seeds may change.
NUMERIC := tests/contracts tests/evaluate tests/heads tests/kernels tests/losses tests/models \
	tests/run/test_evaluate.py tests/scores tests/selftrain tests/stats tests/test_geometry.py
TRAINING := tests/cli tests/experiments tests/losses tests/models tests/run tests/tracking

test-portable: $(STAMP)  ## run the numerical tests with older instructions and two threads
	ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 \
	OPENBLAS_CORETYPE=Haswell OMP_NUM_THREADS=2 \
	$(PYTEST) -q -k 'not compile' $(NUMERIC)

test-seeds: $(STAMP)  ## run the tests that train with five other seeds; an hour
	for seed in 1 2 3 4 5; do \
	    HARDSIGHT_TEST_SEED=$$seed OMP_NUM_THREADS=1 $(PYTEST) -q \
	        -m 'not slow and not gpu and not notebooks' $(TRAINING) \
	    || exit 1; \
	done

test-oldest:  ## run the suite with the oldest versions allowed, in .venv-oldest
	PYTHON=$(PYTHON) .ci/test-versions oldest

test-newest:  ## run the suite with the newest versions there are, in .venv-newest
	PYTHON=$(PYTHON) .ci/test-versions newest

test-wheel:  ## build the wheel and run the demo from it, with core dependencies alone
	PYTHON=$(PYTHON) .ci/test-wheel

lint: $(STAMP)  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(STAMP)  ## build the documentation into site/
	$(BIN)/mkdocs build --strict --quiet

notebooks: $(STAMP)  ## run the notebooks of examples/ again and store what they show
	$(BIN)/python docs/_build_tools/notebooks.py

check: lint docs test test-long test-notebooks test-fuzz test-portable  ## what CI checks

bench: $(STAMP)  ## run the CPU benchmarks and print their tables
	$(BIN)/python -m benchmarks

browser:  ## install Chromium for the browser tests where it is missing
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null || sh .ci/install-chromium

.PHONY: help setup demo test test-long test-notebooks test-fuzz test-portable test-seeds test-oldest test-newest test-wheel lint docs notebooks check bench browser
