# The one command surface; CI calls the same targets.
.DEFAULT_GOAL := help
SHELL := bash

# The database of advisories: the one beside the checkout where there is one, else a copy of the public one.
ADVISORIES ?= $(or $(wildcard ../shared/advisory-db),target/advisory-db)

.PHONY: help
help: ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

# Every target builds the whole workspace: with fewer packages, their dependencies have fewer features, and all is built once more.
# Programs for tests are built with the dependencies of tests (--examples asks for them), because `cargo nextest` and `cargo clippy` have
# built all with their features.
PROGRAMS_FOR_TESTS = cargo build --workspace --bins --examples

.PHONY: build
build: ## Build kas, agentk, loadtest and bench, optimized, into target/release
	cargo build --release --workspace --bins

.PHONY: image
image: ## Write OCI archives of kas and agentk with their lists of components into target/images, without a daemon (Debian)
	@command -v cargo-auditable >/dev/null || cargo install cargo-auditable --locked --debug
	deploy/image

.PHONY: deb
deb: build ## Write Debian packages of kas and agentk into target/deb (Debian, with dpkg-dev)
	deploy/deb

ZIGBUILD = target/zig/bin/cargo-zigbuild

.PHONY: static
static: ## Write archives of kas and agentk without shared libraries for x86-64 and arm64 into target/static (python3, binutils)
	@command -v cargo-auditable >/dev/null || cargo install cargo-auditable --locked --debug
	@[ -x $(ZIGBUILD) ] || { python3 -m venv target/zig && \
	  target/zig/bin/python -m pip install --quiet --disable-pip-version-check cargo-zigbuild==0.24.1 ziglang==0.17.1; }
	deploy/static

# With LINT_WHILE_BUILDING the build lints and documents what it compiles, with the flags of `cargo clippy -- -D warnings`.
ifdef LINT_WHILE_BUILDING
export RUSTC_WORKSPACE_WRAPPER := $(CURDIR)/.ci/rustc
export CLIPPY_ARGS := -D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__
endif

# Where cargo build writes the programs.
PROGRAMS = $(or $(CARGO_TARGET_DIR),target)/debug

.PHONY: demo
demo: ## Start everything, send a first request, print what to try next; Ctrl-C stops it
	cargo build --workspace --bins
	$(PROGRAMS)/loadtest demo $(DEMO_FLAGS)

.PHONY: smoke
smoke: ## The same without waiting: checks the answers and exits with the result
	$(PROGRAMS_FOR_TESTS)
	$(PROGRAMS)/loadtest demo --smoke $(DEMO_FLAGS)

.PHONY: smoke-bare
smoke-bare: ## make smoke in a clone in a new Debian root with the programs of the README alone; needs root and debootstrap, about 15 minutes
	./.ci/bare

# A command that starts a cluster and runs its arguments with KUBECONFIG, as .ci/with-cluster does. Without one, KUBECONFIG names the cluster.
WITH_CLUSTER ?=
# The flag `n` of a dry run, which runs lines with $(MAKE) all the same.
DRY_RUN = $(findstring n,$(firstword -$(MAKEFLAGS)))

.PHONY: test
# The tests write down what they skip.
test: export SKIPPED_FILE := $(CURDIR)/target/skipped
test: tools lint doc unit web smoke ## Formatting, lints, docs, unit, scenario and end-to-end tests; .ci/run adds charts, compose and acceptance
	$(MAKE) smoke DEMO_FLAGS=--simulate
	$(if $(DRY_RUN),,$(WITH_CLUSTER)) $(MAKE) e2e e2e-gitlab matrix web-e2e
	@./.ci/skipped

.PHONY: tools
tools: ## Install what the tests need, where that is possible
	./.ci/install-tools

.PHONY: lint
lint: ## Formatting and lints
	cargo fmt --all --check
ifndef LINT_WHILE_BUILDING
	cargo clippy --workspace --all-targets -- -D warnings
	cargo clippy --workspace --bins -- -D warnings # what is shipped has fewer features
endif

.PHONY: doc
doc: export RUSTDOCFLAGS = -D warnings
doc: ## The documentation builds without warnings, private items included
ifndef LINT_WHILE_BUILDING
	cargo doc --workspace --lib --bins --no-deps --document-private-items --quiet
endif

.PHONY: compile
compile: lint doc ## Lints, documentation, and everything that the tests run, without a test
	cargo build --workspace --all-targets

.PHONY: unit
unit: ## Unit and scenario tests: no network beyond loopback, nothing to install
	cargo nextest run --workspace --test-threads 8 -E 'not binary(e2e) and not binary(matrix)'

.PHONY: e2e
e2e: ## Real kubectl, Kubernetes (KUBECONFIG) and Prometheus; what is missing is skipped by name
	$(PROGRAMS_FOR_TESTS)
	cargo nextest run --workspace --test e2e --test-threads 4 --success-output immediate

.PHONY: matrix
matrix: ## Pairs of callers, agents, transports, replicas, names, requests, sizes and events (KUBECONFIG); CASES selects by a part of the name
	$(PROGRAMS_FOR_TESTS)
	cargo test --workspace --test matrix -- --test-threads 4 $(CASES)

# Paths with %2F, which differential_http_reading has, do not fit into GitLab's protocol. Writes and updates are in the matrix, with the agentk
# in Go.
GITLAB_PROTOCOL = test(/^(upgrades|websocket|cancellation|impersonation|streams|terminals|changes|reading|lifecycle)::/) | \
  test(/^differential::differential_(reading|streams)/) | test(/^fleet::killed/) | test(/^fleet_shutdown::/)

.PHONY: e2e-gitlab
e2e-gitlab: ## The same with kas and agentk that speak GitLab's protocol: what it can carry
	$(PROGRAMS_FOR_TESTS)
	E2E_PROTOCOL=gitlab cargo nextest run --workspace --test e2e --test-threads 4 -E '$(GITLAB_PROTOCOL)'

# The tests that depend on the API server: how it reads patches and dry runs, what it refuses, and its audit events. Everything else of GitOps and
# the graph is the same with each version. Custom resources end a kube-apiserver 1.20 that was built with a current Go: its library for
# JSON reads memory that is not there.
DIFFERENTIAL = test(/^differential::differential_/) | test(/^(admission|audit)::/) | \
  test(/^graph::deployment_is_shown/) | test(/^managed_environments::job_finds/) | \
  test(/^gitops::(commits_become|object_with_an_immutable|objects_of_other|diff::diff_equals|tasks::cluster_wide)/)

# Where the tests write what differs.
REPORTS = $(or $(CARGO_TARGET_DIR),target)/differential

.PHONY: differential
differential: ## Hundreds of kubectl, helm and curl commands with and without the tunnel, GitOps, the graph, audit events, managed resources; prints what differs
	$(PROGRAMS_FOR_TESTS)
	rm -rf $(REPORTS)
	cargo nextest run --workspace --test e2e --test-threads 4 -E '$(DIFFERENTIAL)'; code=$$?; \
	  cat $(REPORTS)/report.md; exit $$code

# The Python of the tests of client libraries has the YAML library where the system's does not.
PYTHON = $(if $(wildcard target/clients/bin/python),target/clients/bin/python)
CHART_TEST = $(PYTHON) deploy/charts/test

.PHONY: site
site: ## Write docs/ as a site with search into target/site, whose links lead somewhere (mdbook)
	docs/site

.PHONY: charts
charts: ## Charts, alerts, systemd units and the compose file; with KUBECONFIG, its API server reads what is rendered
	$(PROGRAMS_FOR_TESTS)
	$(CHART_TEST)

.PHONY: charts-server
charts-server: ## The part of make charts that needs KUBECONFIG: its API server reads what the charts render
	$(CHART_TEST) --only-server

HELM ?= $(or $(shell command -v helm),target/clients/bin/helm)

.PHONY: charts-package
charts-package: ## Write archives of both charts into target/charts; HELM_KEY, and HELM_KEYRING for its file, add signed provenance
	$(HELM) package deploy/charts/kas deploy/charts/agentk --destination target/charts \
	  $(if $(HELM_KEY),--sign --key '$(HELM_KEY)') $(if $(HELM_KEYRING),--keyring '$(HELM_KEYRING)')

.PHONY: charts-update
charts-update: ## Write what helm renders into deploy/charts/*/ci/rendered and deploy/kubernetes
	$(PROGRAMS_FOR_TESTS)
	$(CHART_TEST) --update

.PHONY: alerts
alerts: ## Rules and dashboards with a real Prometheus, KUBECONFIG and seven faults, each of which fires its alert; 3 minutes
	$(PROGRAMS_FOR_TESTS)
	$(PYTHON) deploy/charts/test-alerts

# Where kas and agentk are; target/release after make build.
ACCEPTANCE_PROGRAMS ?= target/debug

.PHONY: acceptance
acceptance: ## Install, upgrade, rotate and remove both charts under load in KUBECONFIG's cluster, whose node is this machine
	$(if $(filter target/debug,$(ACCEPTANCE_PROGRAMS)),$(PROGRAMS_FOR_TESTS))
	deploy/image --programs $(ACCEPTANCE_PROGRAMS) --output target/acceptance --tag acceptance
	deploy/charts/acceptance/run --images target/acceptance --tag acceptance

.PHONY: upgrade-test
upgrade-test: ## Follow docs/upgrade.md under load from the last release, or OLDER, in both orders and back; as make acceptance, about 8 minutes
	$(if $(filter target/debug,$(ACCEPTANCE_PROGRAMS)),$(PROGRAMS_FOR_TESTS))
	deploy/charts/acceptance/upgrade --programs $(ACCEPTANCE_PROGRAMS) $(if $(OLDER),--older $(OLDER))

.PHONY: compose
compose: ## Start deploy/compose.yaml with podman and KUBECONFIG, by the commands of docs/install.md; less than a minute
	$(PROGRAMS_FOR_TESTS)
	deploy/compose/test

.PHONY: skew
skew: ## Versions OLDER and NEWER (the last two tags) work together: builds both in target/skew, runs the reading group both ways
	./.ci/skew $(OLDER) $(NEWER)

.PHONY: web
web: ## Lints and tests of the sources of the page, and features/web/page/dist is what they make (needs Node.js 20.19)
	features/web/page/test sources

.PHONY: web-e2e
web-e2e: ## The page in Chromium with KUBECONFIG's cluster; screenshots in target/web
	$(PROGRAMS_FOR_TESTS)
	features/web/page/test browser

.PHONY: web-measure
web-measure: ## How long a reader of the page waits, and the memory of 200 tabs, with limits; KUBECONFIG's cluster, quiet machine
	$(PROGRAMS_FOR_TESTS)
	features/web/page/test measure

E2E_LARGE_MIB ?= 1024

.PHONY: e2e-large
e2e-large: export E2E_LARGE_MIB := $(E2E_LARGE_MIB)
e2e-large: ## Streams of E2E_LARGE_MIB (1024) each way, with the memory that they take; make e2e sends 64
	$(PROGRAMS_FOR_TESTS)
	cargo nextest run --workspace --test e2e --profile large --no-capture -E 'test(/^large::/)'

.PHONY: bench
bench: ## What the tunnel costs beside direct requests, nginx and rathole; report in target/bench (needs nginx; more with redis-server, strace)
	cargo build --release --workspace --bins
	target/release/bench $(BENCH_FLAGS)

.PHONY: bench-quick
bench-quick: ## A few cases of it in less than two minutes, with a build that takes a third of the time
	cargo build --profile bench-quick --workspace --bins
	target/bench-quick/bench --quick $(BENCH_FLAGS)

.PHONY: instructions
instructions: ## Instructions of one request in kas and in agentk, which no busy machine changes (needs valgrind, nginx)
	cargo build --release --workspace --bins
	target/release/bench --instructions $(BENCH_FLAGS)

# Of builds that are not optimized, which is what CI has: growth shows there, too.
.PHONY: instructions-limit
instructions-limit: ## A request takes no more instructions than instructions.json says (needs valgrind, nginx, redis-server)
	cargo build --workspace --bins
	target/debug/bench --instructions --against instructions.json --directory target/instructions

.PHONY: instructions-record
instructions-record: ## Write down what it takes now: commit instructions.json with the reason
	cargo build --workspace --bins
	target/debug/bench --instructions --directory target/instructions
	cp target/instructions/instructions.json instructions.json

FUZZ_SECONDS ?= 60
FUZZ_TARGETS ?= $(basename $(notdir $(wildcard fuzz/fuzz_targets/*.rs)))

.PHONY: fuzz
fuzz: export RUSTC_BOOTSTRAP = 1
fuzz: ## Fuzz each of FUZZ_TARGETS for FUZZ_SECONDS; what is found is in fuzz/artifacts
	@command -v cargo-fuzz >/dev/null || cargo install cargo-fuzz --locked
	cd fuzz && cargo fuzz build
	@cd fuzz && failed= && for target in $(FUZZ_TARGETS); do \
		mkdir -p target/corpus/$$target; \
		cargo fuzz run $$target target/corpus/$$target corpus/$$target -- -dict=words.dict -timeout=30 \
			-rss_limit_mb=2048 -malloc_limit_mb=512 -max_total_time=$(FUZZ_SECONDS) -print_final_stats=1 \
			</dev/null || failed="$$failed $$target"; \
	done; [ -z "$$failed" ] || { echo "found something:$$failed" >&2; exit 1; }

.PHONY: audit
audit: ## No open advisory of RustSec against the lock files
	$(PROGRAMS_FOR_TESTS)
	[ -d $(ADVISORIES) ] || git clone --quiet --depth 1 https://github.com/rustsec/advisory-db $(ADVISORIES)
	$(PROGRAMS)/examples/advisories $(ADVISORIES)

.PHONY: deny
deny: ## cargo-deny with deny.toml; make unit has a test of its licences, bans and sources
	@command -v cargo-deny >/dev/null || { echo "cargo-deny is missing: cargo install cargo-deny --locked" >&2; exit 1; }
	cargo deny check bans licenses sources

.PHONY: man
man: ## Write man pages to target/man and shell completion to target/completion
	cargo build --workspace --bins
	mkdir -p target/man target/completion
	$(PROGRAMS)/kas man --directory target/man
	for program in agentk loadtest; do $(PROGRAMS)/$$program man > target/man/$$program.1 || exit; done
	for shell in bash elvish fish zsh; do \
	  for program in kas agentk loadtest; do \
	    $(PROGRAMS)/$$program completion $$shell > target/completion/$$program.$$shell || exit; \
	  done; \
	done

.PHONY: clean
clean: ## Remove what was built
	cargo clean
