# cudnn_backend_py: every target makes its own environment.
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
# A test that does not end fails, and the others go on.
HANGS := -o faulthandler_exit_on_timeout=true
# Two processes of tests have a core each: NumPy's products are not to take all of them for themselves.
export OPENBLAS_NUM_THREADS := 1
# The cuDNN versions below, and no other that this machine's user has.
export CUDNN_BACKEND_CACHE := $(CURDIR)/$(ENV)/cudnn

.PHONY: help demo test check test-pure test-library test-browser docs test-site test-gpu torture bench attention-table regen regen-check clean

help: ## Show this help
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 18

demo .demo/ready: CUDNN_BACKEND_CACHE := $(CURDIR)/.demo/cudnn
demo: .demo/ready ## Read why the forum thread's graph is refused on an L40S (no GPU needed)
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

test: check test-pure test-library test-browser ## Lint, types, and every test that needs no GPU

check: $(ENV)/ready ## Lint, format, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The targets without ## are parts of those with it, or for those who change this package: CONTRIBUTING.md.
test-pure: $(ENV)/ready # Tests that load no library
	$(BIN)/python -m pytest -q -n 2 $(HANGS) tests/pure

test-library: $(ENV)/ready # Tests on the real cuDNN, without a GPU
	CUDNN_BACKEND_REQUIRE=library $(BIN)/python -m pytest -q -n 2 $(HANGS) tests/library

test-browser: $(ENV)/ready # The report in a real browser
	$(CHROMIUM)
	CUDNN_BACKEND_REQUIRE=browser $(BIN)/python -m pytest -q $(HANGS) tests/browser

docs: $(ENV)/docs ## Build the site, strictly, into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	$(BIN)/python -m tools.website.links site

$(ENV)/docs: $(ENV)/ready pyproject.toml
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --group docs
	touch $@

test-site: docs # The built site in a real browser, and its search with answers of the real cuDNN
	$(CHROMIUM)
	CUDNN_BACKEND_REQUIRE=site $(BIN)/python -m pytest -q $(HANGS) tests/site

test-gpu: ## Tests on a GPU, with a record under logs/ (uses the current environment)
	$(PYTHON) -m cudnn_backend_py record logs

torture: $(ENV)/ready ## Attack the package for MINUTES=10 from SEED=0; AREAS="judge files" for some
	$(BIN)/python -m tests.torture $(AREAS) --minutes $(MINUTES) --seed $(SEED)

bench: $(ENV)/ready ## Import time, cost of a verdict and of a thousand, to logs/
	$(BIN)/python -m benchmarks verdict-cost --output logs/verdict-cost.json
	$(BIN)/python -m benchmarks matrix --output logs/matrix.json

attention-table: $(ENV)/ready # Ask TABLED and the newest cuDNN about every option of attention; rewrite the page
	for version in $(TABLED); do \
	$(BIN)/cudnn-backend attention-table --cudnn $$version --output $(TABLES)-$$version.json || exit 1; done
	$(BIN)/cudnn-backend attention-table --output $(TABLES)-$(NEWEST).json
	$(MAKE) regen

regen: $(ENV)/ready ## Rewrite every generated file and page
	$(BIN)/python -m tools.codegen
	$(BIN)/python -m tools.regen

regen-check: $(ENV)/ready # Say whether generated files are stale
	$(BIN)/python -m tools.codegen --check
	$(BIN)/python -m pytest -q tests/pure/tools/test_regen.py

clean: ## Remove both environments
	rm -rf $(ENV) .demo build site *.egg-info
