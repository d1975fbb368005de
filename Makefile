# Needs a POSIX shell, make and Python 3.11 or newer; everything else is installed into .venv.
# With uv on the PATH the versions are those of uv.lock; `make UV= ...` uses venv and pip instead.

VENV := .venv
BIN := $(VENV)/bin
UV := $(shell command -v uv 2>/dev/null)
PYTHONS := python3 python3.14 python3.13 python3.12 python3.11 python
# Three processes keep two cores busy, as tests also wait; Spark's tests all go to one of them.
WORKERS := 3
# How long the tests of `make torture` go on that repeat with new seeds: each kind has its share. The others take half an hour more.
MINUTES := 25
# Tests start hundreds of interpreters: without this setting each would compile the package anew.
export PYTHONDONTWRITEBYTECODE =
# What `make mutants` may use of the processors, and how many of them.
CPU_MINUTES := 120
# What `make torture` counts, and the tests that count in their short form too.
TALLY := $(CURDIR)/build/tally.jsonl
COUNTED := tests/crash tests/faults tests/fuzz tests/machine tests/protocol tests/repair tests/torture tests/verify
# The other tests that try some of their cases only, but in `make torture`.
THINNED = $(filter-out $(addsuffix /%,$(COUNTED)),$(shell grep -rlE 'thinned|LONG_RUN|check_each' tests --include='test_*.py'))

# What `make test-fast` runs.
APPENDS := tests/hot $(wildcard tests/engine/test_*append*.py) tests/engine/test_lifecycle.py tests/engine/test_any_schema.py \
	tests/engine/test_topics.py tests/engine/test_point_read.py tests/crash/test_torn_appends.py

.DEFAULT_GOAL := help
.PHONY: help demo test test-all check fast test-fast lint format docs bench torture mutants terraform checkov lock clean

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' Makefile | column -t -s '|' 2>/dev/null || true

demo: $(VENV)/.demo ## the whole store in one minute, on this machine
	$(BIN)/tiered demo

test: $(VENV)/.dev ## all tests but the extended and the slow ones: four minutes
	$(BIN)/python -m pytest -m "not slow and not extended" -n $(WORKERS) --dist loadgroup

test-all: $(VENV)/.dev ## all tests but the slow ones, as CI does: ten minutes
	$(BIN)/python -m pytest -m "not slow" -n $(WORKERS) --dist loadgroup

check: lint ## lint, and the quick tests of what changed: under a minute, before each commit
	$(BIN)/python -m tests.support.changed

lint: $(VENV)/.dev ## style, format, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev ## rewrite the code in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.dev ## write the generated pages and tables anew
	$(BIN)/python docs/generate.py
	$(BIN)/python docs/deploy.py

bench: $(VENV)/.bench ## the benchmarks; with Cargo beside rivven-core too, with Maven beside Kafka
	-@$(MAKE) --no-print-directory build/accelerator/.built
	PYTHONPATH=$(CURDIR)/build/accelerator $(BIN)/python -m benchmarks --write-docs

torture: $(VENV)/.dev ## the slow tests, for about an hour; their counts go into docs/design/testing.md
	mkdir -p build && rm -f $(TALLY)
	TIERED_TEST_TALLY=$(TALLY) TIERED_TEST_PROFILE=thorough TIERED_TEST_TORTURE_MINUTES=$(MINUTES) \
		$(BIN)/python -m pytest -m slow -n $(WORKERS) --dist loadgroup --timeout 3600
	TIERED_TEST_TALLY=$(TALLY) TIERED_TEST_TORTURE_MINUTES=$(MINUTES) \
		$(BIN)/python -m pytest -m "not slow" -n $(WORKERS) --dist loadgroup --timeout 3600 $(COUNTED) $(THINNED)
	$(BIN)/python docs/tally.py $(TALLY)

mutants: $(VENV)/.mutants ## take protective steps away one by one, and see that a test notices; table in docs/design/testing.md
	$(BIN)/python -m tests.mutants --rest --survivors --cpu-minutes $(CPU_MINUTES)
	$(BIN)/python -m tests.mutants --write-docs

terraform: $(VENV)/.dev ## the module in terraform/, applied to a local server; needs the CLI and its AWS provider
	$(BIN)/python -m pytest tests/terraform/test_apply.py

checkov: .venv-checkov/.installed ## a security scan of terraform/, in an environment of its own: its dependencies are many
	.venv-checkov/bin/checkov --directory terraform --framework terraform --quiet --compact --skip-download

.venv-checkov/.installed: $(VENV)/.dev
	$(BIN)/python -m venv .venv-checkov
	$(call install,.venv-checkov) 'checkov>=3.2'
	@touch $@

fast: $(VENV)/.dev ## build and install the accelerated append; needs a C compiler
	$(call install,$(VENV)) ./accelerator
	$(BIN)/tiered --version

test-fast: build/accelerator/.built ## the tests of appends, with the accelerated append
	PYTHONPATH=$(CURDIR)/$(dir $<) $(BIN)/python -c 'from tiered.hot.accelerator import accelerator; assert accelerator'
	PYTHONPATH=$(CURDIR)/$(dir $<) $(BIN)/python -m pytest -m "not slow" -n $(WORKERS) --dist loadgroup $(APPENDS)

build/accelerator/.built: accelerator/pyproject.toml accelerator/tiered_accelerator.c $(VENV)/.dev
	rm -rf $(dir $@)
	$(call install,$(VENV)) --no-deps --target $(dir $@) ./accelerator
	@touch $@

lock: ## resolve uv.lock anew
	uv lock --upgrade

clean: ## remove what was built and installed
	rm -rf $(VENV) .venv-checkov dist build .coverage .coverage.* htmlcov .pytest_cache .mypy_cache .ruff_cache .hypothesis \
		.import_linter_cache spark-warehouse
	find tiered tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +

ifneq ($(UV),)
install = $(UV) pip install --quiet --python $(1)/bin/python
else
# Only what is imported is compiled, at its first import: of Spark and the servers that is little.
install = $(1)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile
endif

# The stamps .demo and .dev say that the extra of that name is installed as pyproject.toml has it now.
ifneq ($(UV),)
$(VENV)/.%: pyproject.toml uv.lock
	$(UV) sync --frozen --inexact --extra $*
	@touch $@
else
$(VENV)/.%: pyproject.toml $(BIN)/python
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(BIN)/python -m ensurepip
	$(call install,$(VENV)) --editable '.[$*]'
	@touch $@

$(BIN)/python:
	@for python in $(PYTHONS); do \
		if $$python -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
			echo "$$python -m venv $(VENV)" && exec $$python -m venv $(VENV); \
		fi; \
	done; \
	echo "No Python 3.11 or newer with venv was found (tried: $(PYTHONS))." >&2; \
	echo "Install one (on Debian and Ubuntu also python3-venv), or uv: https://docs.astral.sh/uv/" >&2; \
	exit 1
endif
