# Targets of cudnn_backend_py. Each creates the Python environment that it needs.
PYTHON ?= python3
ENV := .venv
BIN := $(ENV)/bin
CUDNN := 9.19.0
NEWEST := 9.28.0
SOURCES := cudnn_backend_py/native/driver_stub.c cudnn_backend_py/native/fast_call.c cudnn_backend_py/native/callbacks.c
OLDER := 9.14.0 9.24.0 $(CUDNN)
TABLED := 9.14.0 $(CUDNN)
TABLES := tests/library/diagnose/data/attention-support
CHROMIUM = @command -v chromium >/dev/null || command -v chromium-browser >/dev/null || \
	command -v google-chrome >/dev/null || { echo "installing chromium"; apt-get update -qq && \
	DEBIAN_FRONTEND=noninteractive apt-get install -qq chromium >/dev/null; }
MINUTES := 10
SEED := 0
AREAS :=
# A test that hangs is reported as failed, and the other tests continue.
HANGS := -o faulthandler_exit_on_timeout=true
# Tests run in two processes on machines with two cores: matrix products of NumPy use one thread in each.
export OPENBLAS_NUM_THREADS := 1
# Use the cuDNN versions that this file installs, not others that the user has installed.
export CUDNN_BACKEND_CACHE := $(CURDIR)/$(ENV)/cudnn

.PHONY: help demo test check test-pure test-library test-browser docs test-site test-gpu torture bench attention-table regen regen-check clean

help: ## Show this help
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 18

demo .demo/ready: CUDNN_BACKEND_CACHE := $(CURDIR)/.demo/cudnn
demo: .demo/ready ## Explain why cuDNN refuses a graph from a forum thread on an L40S (no GPU needed)
	@.demo/bin/cudnn-backend explain examples/forum_two_matmul.py --cudnn $(CUDNN) --target l40s; \
	code=$$?; test $$code -eq 1 || { echo "expected exit code 1 (not supported), got $$code"; exit 1; }

.demo/ready: pyproject.toml setup.py $(SOURCES)
	$(PYTHON) -m venv .demo
	.demo/bin/python -m pip install --quiet -e .
	.demo/bin/cudnn-backend cudnn install $(CUDNN)
	touch $@

$(ENV)/ready: Makefile pyproject.toml setup.py $(SOURCES)
	$(PYTHON) -m venv $(ENV)
	$(BIN)/python -m pip install --quiet -e '.[cu12,dev]' 'nvidia-cudnn-cu12==$(NEWEST).42'
	for version in $(OLDER); do $(BIN)/cudnn-backend cudnn install --quiet $$version || exit 1; done
	touch $@

test: check test-pure test-library test-browser ## Check lint and types, and run all tests that need no GPU

check: $(ENV)/ready ## Check lint, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Targets without ## are parts of those with it, or for developers of this package: see CONTRIBUTING.md.
test-pure: $(ENV)/ready # Tests that load no library
	$(BIN)/python -m pytest -q -n 2 $(HANGS) tests/pure

test-library: $(ENV)/ready # Tests with the real cuDNN, without a GPU
	CUDNN_BACKEND_REQUIRE=library $(BIN)/python -m pytest -q -n 3 $(HANGS) tests/library

test-browser: $(ENV)/ready # Tests of HTML reports in a real browser
	$(CHROMIUM)
	CUDNN_BACKEND_REQUIRE=browser $(BIN)/python -m pytest -q $(HANGS) tests/browser

docs: $(ENV)/docs ## Build the documentation site into site/; warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	$(BIN)/python -m tools.website.links site

$(ENV)/docs: $(ENV)/ready pyproject.toml
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --group docs
	touch $@

test-site: docs # Tests of the built site in a real browser, and of its search for reasons of the real cuDNN
	$(CHROMIUM)
	CUDNN_BACKEND_REQUIRE=site $(BIN)/python -m pytest -q $(HANGS) tests/site

test-gpu: ## Run the GPU tests in the current environment, and write a record to logs/
	$(PYTHON) -m cudnn_backend_py record logs

torture: $(ENV)/ready ## Run random torture tests for MINUTES=10 from SEED=0; AREAS="judge files" selects areas
	$(BIN)/python -m tests.torture $(AREAS) --minutes $(MINUTES) --seed $(SEED)

bench: $(ENV)/ready ## Measure the time of an import, of a verdict and of a support matrix; write to logs/
	$(BIN)/python -m benchmarks verdict-cost --output logs/verdict-cost.json
	$(BIN)/python -m benchmarks matrix --output logs/matrix.json

attention-table: $(ENV)/ready # Judge every attention option with the TABLED and the newest cuDNN; rewrite the page
	for version in $(TABLED); do \
	$(BIN)/cudnn-backend attention-table --cudnn $$version --format json --output $(TABLES)-$$version.json || exit 1; done
	$(BIN)/cudnn-backend attention-table --format json --output $(TABLES)-$(NEWEST).json
	$(MAKE) regen

regen: $(ENV)/ready ## Rewrite every generated file and page
	$(BIN)/python -m tools.codegen
	$(BIN)/python -m tools.regen

regen-check: $(ENV)/ready # Fail if a generated file is out of date
	$(BIN)/python -m tools.codegen --check
	$(BIN)/python -m pytest -q tests/pure/tools/test_regen.py

clean: ## Remove both environments
	rm -rf $(ENV) .demo build site *.egg-info
