# Two commands to remember: `make up` and `make test`. The rest is what they are made of.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup up down status reset lint format test check map unit alone http slices apps machines reference-app e2e shake smoke reference soak bench bench-artifacts bench-feed bench-apps bench-machines lock bench-access bench-slurm bench-runtime bench-logins bench-schemas wheels

BIN := .venv/bin
SUITE := $(BIN)/python -m tests.suite
# `make check` looks at what changed since this commit; `make shake` runs these parts, so many times.
BASE ?= origin/main
PARTS ?=
ROUNDS ?= 1
# Addresses of the registry stay out of the lock, so that it installs from any.
COMPILE := $(BIN)/uv pip compile --quiet --system-certs --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-annotate --no-header

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## install what is missing: Debian packages, .venv
	@scripts/setup

up: setup ## start everything on this machine and show what to do next
	@$(BIN)/gpuaas-stack up

down: setup ## stop everything; machines and data are kept
	@$(BIN)/gpuaas-stack down

status: setup ## what runs
	@$(BIN)/gpuaas-stack status || true

reset: setup ## stop everything and delete all data (asks; YES=1 does not)
	@$(BIN)/gpuaas-stack reset $(if $(filter 1,$(YES)),--yes)

format: setup ## write the style that lint checks
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test: ## everything that CI runs, parts side by side; ends with a table of times and all failures
	@began=$$EPOCHREALTIME; scripts/setup; exec $(SUITE) --began "$$began"

check: setup ## what to run every few minutes: lint, unit tests, and the HTTP tests that touch what changed since BASE
	@status=0; $(SUITE) lint unit || status=1; \
		$(BIN)/python -m tests.choose --base $(BASE) --run || status=1; exit $$status

map: setup ## record which HTTP tests run which source files, for `make check`
	@$(BIN)/python -m tests.choose record

lint: setup ## style, types, import rules, no app named outside of apps/
	@$(SUITE) $@

unit: setup ## tests of each package that need no machines
	@$(SUITE) $@

alone: setup ## contract, sdk and every app, each by its wheel in an empty environment
	@$(SUITE) $@

http: setup ## the API on real PostgreSQL and OpenBao
	@$(SUITE) $@

slices: setup ## agent, sdk and stack on real machines, without a platform
	@$(SUITE) $@

apps: setup ## each app on real machines, without a platform
	@$(SUITE) $@

machines: setup ## platform and agent on real machines
	@$(SUITE) $@

reference-app: setup ## the reference app and the conformance kit on real machines
	@$(SUITE) reference

e2e: setup ## the whole chain on real machines, with the Slurm app
	@$(SUITE) $@

shake: setup ## the suite in random order with every core busy: PARTS="http unit" ROUNDS=3
	@$(SUITE) $(PARTS) --shake --rounds $(ROUNDS)

reference: setup ## write what is generated of docs/reference: routes, who may call them, commands, database schema; the skeleton of `app new`
	$(BIN)/gpuaas-platform openapi >docs/reference/openapi.json
	$(BIN)/gpuaas app schema >docs/reference/app-manifest.schema.json
	cp docs/reference/app-manifest.schema.json packages/contract/src/gpuaas_contract/
	scripts/make-skeleton
	GPUAAS_WRITE_REFERENCE=1 $(BIN)/python -m pytest \
		tests/http/test_policy.py tests/http/test_schema.py packages/cli/tests/test_reference.py

smoke: setup ## the Slurm app from deploy to decommission on real machines, with times; the readiness page
	@rm -f build/smoke.json
	status=0; $(BIN)/python -m pytest -s tests/e2e/test_smoke.py tests/e2e/test_smoke_external.py || status=$$?; \
		$(BIN)/slurm-app readiness build/smoke.json >docs/slurm/readiness.md; exit $$status

soak: setup ## the long versions of tests that are sampled in `make test`: many hours
	@status=0; GPUAAS_SOAK=1 GPUAAS_FUZZ_SECONDS=1200 \
		$(SUITE) http apps slices machines reference e2e smoke --limit 900 || status=1; \
		$(BIN)/python -m pytest -m quiet tests/machines || status=1; exit $$status

bench: setup ## the API against a bare handler that runs the same statements
	$(BIN)/python -m benchmarks

bench-feed: setup ## the change feed against bare LISTEN/NOTIFY; the start of the command line
	$(BIN)/python -m benchmarks.feed

bench-artifacts: setup ## 100 MB to a machine, against `lxc file push` and a local copy
	$(BIN)/python -m benchmarks.artifacts

bench-apps: setup ## operations from their request to a waiting controller, steps, members, large deploys
	$(BIN)/python -m benchmarks.apps

bench-machines: setup ## machines against LXD's own, claims against the bare transaction, a thousand agents
	$(BIN)/python -m benchmarks.slices
	$(BIN)/python -m benchmarks.claims
	$(BIN)/python -m benchmarks.agents

bench-access: setup ## logins against plain ssh, certificates against bare signatures
	$(BIN)/python -m benchmarks.access

bench-logins: setup ## a rightful log-in beside a flood of guesses from one address, and from fifty
	$(BIN)/python -m benchmarks.logins

bench-slurm: setup ## a Slurm cluster by the app, against a bare script and Ansible doing the same
	$(BIN)/python -m benchmarks.slurm

bench-runtime: setup ## one controller with 10,000 members, against a timer for each of them
	$(BIN)/python -m benchmarks.runtime

bench-schemas: setup ## reads while hostile manifests are published, against a quiet API
	$(BIN)/python -m benchmarks.schemas

wheels: setup ## the wheels that an app team needs, into dist/: contract, sdk, conformance, cli; the same commit gives the same files
	@scripts/build-wheels dist packages/contract packages/sdk packages/conformance packages/cli
	@cd dist && sha256sum *.whl

lock: setup ## renew requirements/*.txt from requirements/*.in
	$(COMPILE) requirements/runtime.in --output-file requirements/runtime.txt
	$(COMPILE) requirements/dev.in --output-file requirements/dev.txt
