# Project commands. Run `make setup` once, then `make demo`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CORE := $(VENV)/.core
LLM := $(VENV)/.llm
ALL := $(VENV)/.ready

.PHONY: equivalents setup demo text-demo attacks-credit attacks-debate attacks-text results results-help results-imitated results-variants results-text results-channel results-credit results-debate results-self-proving results-sum-check results-unbalanced results-zero-knowledge search-channel search-credit search-help search-protocols search-self-proving test test-slow test-exhaustive test-ray check docs format bench up down constraints clean help

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

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
	$(INSTALL) '.[llm]'
	@touch $@ $(CORE)

$(ALL): pyproject.toml constraints.txt
	$(INSTALL) '.[test,dev,llm,finetune,clients,hub,suites,rl,ray,cluster,sweeps,s3,auth,postgres,mirrors,pools,telemetry,peers,docs]'
	@touch $@ $(CORE) $(LLM)

# Keep tests of a file in one worker, so that module fixtures are created once.
SIDE_BY_SIDE := -n 2 --dist loadfile

FACTORS := {actor: 0.3, critic: 0.3},{actor: 1, critic: 1},{actor: 3, critic: 3}
protocol_pairs = $(foreach name,$(1),--pair "$(name) vs main" --pair "$(name)_attacked vs $(name)")
rate_pairs = $(foreach arm,$(3),$(foreach rate,$(1),\
	--pair "$(arm) · lr=$(rate) vs $(arm) · lr=$(2)"))
factor_pairs = $(foreach arm,$(1),$(foreach factor,0.3 3,\
	--pair "$(arm) · actor=$(factor) · critic=$(factor) vs $(arm) · actor=1 · critic=1"))

STUDY := graph_isomorphism_protocols
PROTOCOLS := adp nip debate merlin_arthur mnip
search-protocols: $(CORE)  ## choose learning rates of results on the validation split (45 minutes)
	$(BIN)/ratchet sweep experiments/$(STUDY).yaml --name $(STUDY)_search --parallel 2 \
		seed=0..3 "agents._default.agent_lr_factor=$(FACTORS)" validation.replaces_test=true \
		$(PROTOCOLS:%="~arms.%_attacked")
	$(BIN)/ratchet compare $(STUDY)_search --by-arm $(call factor_pairs,main $(PROTOCOLS)) \
		--update-page docs/results/searches/$(STUDY).md --title "Search: protocols on graph isomorphism"

results: $(CORE)  ## run or resume the study of protocols; write docs/results (an hour)
	$(BIN)/ratchet sweep experiments/$(STUDY).yaml --name $(STUDY) --parallel 2 seed=400..407
	$(BIN)/ratchet compare $(STUDY) --by-arm $(call protocol_pairs,$(PROTOCOLS)) \
		--metric test/test_mean_episode_length --metric test/test_best_response.accuracy \
		--metric test/test_any_messages.accuracy --update-page docs/results/$(STUDY).md \
		--reference "accept if alike, exact=0.650" --title "Protocols on graph isomorphism"

HELP_STUDY := graph_isomorphism_help
search-help: $(CORE)  ## choose learning rates of results-help on the validation split (half an hour)
	$(BIN)/ratchet sweep experiments/$(HELP_STUDY).yaml --name $(HELP_STUDY)_search --parallel 2 \
		seed=0..1 "agents._default.agent_lr_factor=$(FACTORS)" validation.replaces_test=true
	$(BIN)/ratchet compare $(HELP_STUDY)_search --by-arm \
		$(call factor_pairs,main honest hand_made random alone alone_scratch) \
		--update-page docs/results/searches/$(HELP_STUDY).md --title "Search: provers that help"

results-help: $(CORE)  ## study of learned provers and a weak verifier: eight seeds of each arm (an hour)
	$(BIN)/ratchet sweep experiments/$(HELP_STUDY).yaml --name $(HELP_STUDY) --parallel 2 seed=200..207
	$(BIN)/ratchet compare $(HELP_STUDY) --by-arm --baseline main --baseline alone \
		--update-page docs/results/$(HELP_STUDY).md \
		--metric test/test_best_response.accuracy --metric test/test_any_messages.accuracy \
		--reference "accept if alike, exact=0.650" --reference "random question, exact=0.928" \
		--title "Provers that help, on graph isomorphism"

results-unbalanced: $(CORE)  ## after results-help: main and alone on pairs whose sizes reveal labels (a quarter of an hour)
	$(BIN)/ratchet sweep experiments/$(HELP_STUDY).yaml --name $(HELP_STUDY)_unbalanced --parallel 2 \
		seed=200..207 graph_isomorphism.balanced=false preregistered=null \
		'~arms.honest' '~arms.hand_made' '~arms.random' '~arms.alone_scratch'
	$(BIN)/ratchet compare $(HELP_STUDY)_unbalanced --by-arm --baseline main \
		--update-page docs/results/exploratory/$(HELP_STUDY).md --title "Pairs that are not balanced"

IMITATED := {name: verifier, num_iterations: 15, partners: {prover: hand_made}}, \
	{name: both, num_iterations: 80, learners: [verifier], changes: {rl.lr: 0.0001}}
results-imitated: $(CORE)  ## after results-help: a prover that only imitates (a quarter of an hour)
	$(BIN)/ratchet sweep experiments/$(HELP_STUDY).yaml --name $(HELP_STUDY)_imitated --parallel 2 \
		seed=200..207 preregistered=null '~arms.honest' '~arms.hand_made' '~arms.random' '~arms.alone' \
		'~arms.alone_scratch' "arms.imitated.phases=[$(IMITATED)]"
	$(BIN)/ratchet compare $(HELP_STUDY)_imitated --by-arm --baseline main \
		--metric test/test_best_response.accuracy --metric test/test_any_messages.accuracy \
		--update-page docs/results/exploratory/$(HELP_STUDY)_imitated.md \
		--title "A prover that only imitates"

VARIANTS := graph_isomorphism_help_variants
results-variants: $(CORE)  ## ablation of results-help: five seeds of each variant (two hours)
	$(BIN)/ratchet sweep experiments/$(VARIANTS).yaml --name $(VARIANTS) --parallel 2 seed=200..204
	$(BIN)/ratchet compare $(VARIANTS) --by-arm --baseline main --update-page docs/results/$(VARIANTS).md \
		--metric test/test_best_response.accuracy --metric test/test_any_messages.accuracy \
		--reference "accept if alike, exact=0.650" --reference "random question, exact=0.928" \
		--title "What provers need to help"

ZERO_KNOWLEDGE_STUDY := zero_knowledge
results-zero-knowledge: $(CORE)  ## study of simulators' likeness: eight seeds of seven arms (ten minutes)
	$(BIN)/ratchet sweep experiments/$(ZERO_KNOWLEDGE_STUDY).yaml --name $(ZERO_KNOWLEDGE_STUDY) \
		--parallel 2 seed=100..107
	$(BIN)/ratchet compare $(ZERO_KNOWLEDGE_STUDY) --by-arm \
		--update-page docs/results/$(ZERO_KNOWLEDGE_STUDY).md \
		--metric test/test_simulator.mean_episode_reward --metric test/test_best_response.accuracy \
		--metric test/test_any_messages.accuracy \
		--reference "known alone=0.6" --reference "known=0.9" --title "Zero knowledge and likeness"

TEXT_STUDY := text_protocols
results-text: $(LLM)  ## the study of protocols with chat models: no key, no network (an hour)
	$(BIN)/ratchet sweep experiments/$(TEXT_STUDY).yaml --name $(TEXT_STUDY) --parallel 2 seed=100..107
	$(BIN)/ratchet compare $(TEXT_STUDY) --by-arm $(call protocol_pairs,$(PROTOCOLS)) \
		--update-page docs/results/$(TEXT_STUDY).md \
		--metric test/test_always_failed_proportion --metric test/test_mean_episode_length \
		--curve log_stats/accuracy --x-axis iterations --title "Protocols on programs"

attacks-text: $(LLM)  ## after results-text: new provers against its verifiers (half an hour)
	$(BIN)/ratchet exploit $(TEXT_STUDY) $(addprefix --arm ,$(PROTOCOLS)) --seeds 0 --parallel 2 \
		--json > docs/results/attacks/$(TEXT_STUDY).json

CHANNEL_STUDY := binary_erasure_channel_proof
search-channel: $(CORE)  ## choose the learning rate of results-channel on the validation split (five minutes)
	$(BIN)/ratchet sweep experiments/$(CHANNEL_STUDY).yaml --name binary_erasure_channel_search \
		--parallel 2 seed=0..3 rl.lr=0.001,0.003,0.01,0.03 validation.replaces_test=true
	$(BIN)/ratchet compare binary_erasure_channel_search --by-arm --baseline "main · lr=0.003" \
		--update-page docs/results/searches/$(CHANNEL_STUDY).md \
		--title "Search: the game with a known answer"

results-channel: $(CORE)  ## comparison with the analytic solution, and attacks: twenty seeds (six minutes)
	$(BIN)/ratchet sweep experiments/$(CHANNEL_STUDY).yaml --name $(CHANNEL_STUDY) --parallel 2 \
		seed=100..119
	$(BIN)/ratchet compare $(CHANNEL_STUDY) --by-arm --baseline main \
		--update-page docs/results/$(CHANNEL_STUDY).md \
		--metric test/test_any_messages.accuracy --metric test/test_best_response.accuracy \
		--metric test/test_prover.mean_episode_reward \
		--reference "known=0.900" --reference "known alone=0.600" \
		--title "The game with a known answer"

PROVING_STUDY := self_proving_gcd
PROVING_PAIRS := --pair "feedback vs main" --pair "annotated vs main" \
	--pair "annotated_feedback vs annotated" --pair "few vs annotated" --pair "shifted vs few"
search-self-proving: $(CORE)  ## choose learning rates of results-self-proving on validation pairs (half an hour)
	$(BIN)/ratchet sweep experiments/$(PROVING_STUDY).yaml --name $(PROVING_STUDY)_search --parallel 2 \
		seed=0..3 agents._default.warm_up.lr=0.001,0.003,0.01 validation.replaces_test=true \
		arms.feedback.rl.num_iterations=0 arms.annotated_feedback.rl.num_iterations=0
	$(BIN)/ratchet compare $(PROVING_STUDY)_search --by-arm $(call rate_pairs,0.001 0.01,0.003,\
		main annotated few shifted) --allow-data-mismatch \
		--update-page docs/results/searches/$(PROVING_STUDY).md \
		--title "Search: learning rate of transcripts"
	$(BIN)/ratchet sweep experiments/$(PROVING_STUDY).yaml --name $(PROVING_STUDY)_search_feedback \
		--parallel 2 seed=0..3 language.optimizer.lr=0.0001,0.0004,0.0016 validation.replaces_test=true
	$(BIN)/ratchet compare $(PROVING_STUDY)_search_feedback --by-arm \
		$(call rate_pairs,0.0001 0.0016,0.0004,feedback annotated_feedback) --allow-data-mismatch \
		--update-page docs/results/searches/$(PROVING_STUDY)_feedback.md \
		--title "Search: learning rate of feedback"

results-self-proving: $(CORE)  ## models that prove their divisors: eight seeds (25 minutes)
	$(BIN)/ratchet sweep experiments/$(PROVING_STUDY).yaml --name $(PROVING_STUDY) --parallel 2 \
		seed=200..207
	$(BIN)/ratchet compare $(PROVING_STUDY) --by-arm $(PROVING_PAIRS) \
		--update-page docs/results/$(PROVING_STUDY).md --metric test/test_correct \
		--title "A model that proves its divisors"

SUM_STUDY := self_proving_sum_check
results-sum-check: $(CORE)  ## models that prove sums in an interactive proof: eight seeds (half an hour)
	$(BIN)/ratchet sweep experiments/$(SUM_STUDY).yaml --name $(SUM_STUDY) --parallel 2 seed=200..207
	$(BIN)/ratchet compare $(SUM_STUDY) --by-arm --pair "annotated vs main" --pair "few vs annotated" \
		--update-page docs/results/$(SUM_STUDY).md --metric test/test_correct \
		--title "A model that proves sums interactively"

CREDIT_STUDY := code_validation_credit
search-credit: $(LLM)  ## choose learning rates of results-credit on validation programs (half an hour)
	$(BIN)/ratchet sweep experiments/$(CREDIT_STUDY).yaml --name $(CREDIT_STUDY)_search --parallel 2 \
		seed=0..3 pure_text_grpo.lr=0.0003,0.001,0.003 validation.size=0.1724 \
		validation.replaces_test=true
	$(BIN)/ratchet compare $(CREDIT_STUDY)_search --by-arm \
		$(call rate_pairs,0.0003 0.003,0.001,main verifier both) --allow-data-mismatch \
		--update-page docs/results/searches/$(CREDIT_STUDY).md \
		--title "Search: replayed credit on programs"

results-credit: $(LLM)  ## replayed credit compared with group baselines: eight seeds of each arm (half an hour)
	$(BIN)/ratchet sweep experiments/$(CREDIT_STUDY).yaml --name $(CREDIT_STUDY) --parallel 2 \
		seed=100..107
	$(BIN)/ratchet compare $(CREDIT_STUDY) --by-arm --baseline main \
		--curve log_stats/accuracy --x-axis sampled_tokens --threshold 0.8 --threshold 0.9 \
		--update-page docs/results/$(CREDIT_STUDY).md --title "Replayed credit on programs"

attacks-credit: $(LLM)  ## after results-credit: new provers against its verifiers (a quarter of an hour)
	$(BIN)/ratchet exploit $(CREDIT_STUDY) --arm main --arm verifier --arm both --seeds 0 --parallel 2 \
		--json > docs/results/attacks/$(CREDIT_STUDY).json

DEBATE_STUDY := debaters
DEBATES := main open_consultancy debate open_debate proposer_critic
DEBATE_PAIRS := $(foreach debate,$(DEBATES),$(foreach arm,$(debate) $(debate)_ei $(debate)_dpo,\
	--pair "$(arm) vs $(debate)_untrained" \
	--pair "$(arm)_judge_learns vs $(debate)_judge_learns_untrained"))
results-debate: $(LLM)  ## debaters and consultants before a weak judge: eight seeds of 40 arms (an hour and forty minutes)
	$(BIN)/ratchet sweep experiments/$(DEBATE_STUDY).yaml --name $(DEBATE_STUDY) --parallel 2 \
		seed=100..107
	$(BIN)/ratchet compare $(DEBATE_STUDY) --by-arm $(DEBATE_PAIRS) \
		--update-page docs/results/$(DEBATE_STUDY).md \
		--metric test/test_verification --metric test/test_trust --metric test/test_true_arguments \
		--title "Debaters before a weak judge"

ATTACKED_DEBATES := main debate proposer_critic
attacks-debate: $(LLM)  ## after results-debate: new debaters against judges that learned (a quarter of an hour)
	$(BIN)/ratchet exploit $(DEBATE_STUDY) $(ATTACKED_DEBATES:%=--arm %_ei_judge_learns) --seeds 0 \
		--parallel 2 --json > docs/results/attacks/$(DEBATE_STUDY).json

test: setup  ## run the default tests (under five minutes on two cores)
	$(BIN)/python -m pytest $(SIDE_BY_SIDE)

test-slow: setup  ## run slow tests: real servers, kills, deployments, browsers, wheels
	$(BIN)/python -m pytest -m "slow and not exhaustive" $(SIDE_BY_SIDE) \
		--no-loadscope-reorder --durations=60

test-exhaustive: setup  ## run exhaustive tests: a fault at every request, learning over seeds, published studies
	$(BIN)/python -m pytest -m exhaustive $(SIDE_BY_SIDE) --durations=0

test-ray: setup  ## run tests of collectors on a local Ray cluster
	$(BIN)/python -m pytest -m ray

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

bench: setup  ## run the benchmarks (bootstrap.py requires rliable: run it separately)
	@for file in $(filter-out %_players.py benchmarks/bootstrap.py,$(wildcard benchmarks/*.py)); do \
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
