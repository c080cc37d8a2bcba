# Firn: `make run` shows the main job on real input, `make test` proves it. Both set up what they need, and are quick the
# second time: the environment is rebuilt only when pyproject.toml or constraints.txt change.

SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

# The Kafka command-line tools and client that some tests drive; FIRN_KAFKA_LIBS may point at a copy made elsewhere.
KAFKA_LIBS := $(CURDIR)/.cache/kafka/libs
export FIRN_KAFKA_LIBS ?= $(KAFKA_LIBS)

# Workers of the default suite. Its tests wait for half of their time, for processes, clients and disks: twice as many workers as cores.
WORKERS ?= 4

# Python keeps its bytecode, wherever the environment forbids it: each of the hundreds of processes that tests start would else compile
# Firn again, and each of their workers all tests.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help run spark-demo test test-ci test-slow test-new lint bench bench-quick soak soak-short clean system-packages quickstart-packages kafka-libs spark-connector s3-servers axe package wheelhouse install-size image rehearse infra-check alerts-check kubernetes-check hashes sbom audit hooks docs

help: ## Show this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## /  make \1|/' | column -t -s '|'

$(VENV)/bin/python:
	@echo "==> creating $(VENV)"
	@$(PYTHON) -c 'import sys; sys.exit("Firn needs Python 3.11 or newer; say make PYTHON=python3.12 …" if sys.version_info < (3, 11) else 0)'
	@tools/ensure-venv.sh "$(PYTHON)" "$(VENV)"

hooks:
	@tools/install-hooks.sh

$(VENV)/.run: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "==> installing Firn and its demo into $(VENV)"
	@$(PIP) install --constraint constraints.txt --editable '.[console,demo,registry]'
	@touch $@

$(VENV)/.test: pyproject.toml constraints.txt | $(VENV)/bin/python hooks
	@echo "==> installing Firn with everything that its tests and linters need into $(VENV)"
	@$(PIP) install --constraint constraints.txt --editable '.[console,demo,docs,redis,registry,spark,test,lint]'
	@touch $@ $(VENV)/.run

run: $(VENV)/.run ## Produce, tier, drop local, replay: the main job on 336,776 real records
	@$(BIN)/firn demo

$(VENV)/.spark: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "==> installing Firn with Spark into $(VENV)"
	@$(PIP) install --constraint constraints.txt --editable '.[console,demo,registry,spark,bench]'
	@touch $@

spark-demo: $(VENV)/.spark ## Produce, tier, stop the broker, then ask the bucket with Spark: three answers and a plot
	@tools/system-packages.sh java:default-jdk-headless
	@$(BIN)/python -m pyspark_firn.tour spark-demo

system-packages: ## Install what some tests want: redis-server, kcat, curl, strace, a JDK, Maven
	@tools/system-packages.sh redis-server:redis-server kcat:kcat curl:curl strace:strace java:default-jdk-headless mvn:maven

quickstart-packages: $(VENV)/.run ## Install what the quick start wants: the environment, kcat and curl
	@tools/system-packages.sh kcat:kcat curl:curl

kafka-libs: system-packages
	@tools/kafka-libs.sh "$(FIRN_KAFKA_LIBS)"

s3-servers: ## Build s3s-fs and MinIO for measurements of a replay from S3 (needs cargo, go, and some minutes)
	@tools/s3-servers.sh "$(CURDIR)/.cache/s3-servers"

test: $(VENV)/.test system-packages kafka-libs ## The default suite (a few minutes)
	@$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m 'not slow and not ci' $(ARGS)

test-ci: $(VENV)/.test system-packages kafka-libs ## The tests of the same kinds that take seconds each (about twenty minutes)
	@$(BIN)/python -m pytest -n 2 --dist worksteal -m 'ci and not slow' $(ARGS)

axe: ## Fetch axe-core, by which `make test-ci` checks the pages of the console for accessibility (needs npm)
	@mkdir -p .cache/axe && cd .cache/axe && npm pack --silent axe-core@4.14.1 >/dev/null && tar -xzf axe-core-4.14.1.tgz package/axe.min.js package/LICENSE

spark-connector: kafka-libs
	@$(BIN)/python -c 'from loadtests.spark_read import fetch_connector; fetch_connector()' || \
		echo "==> could not bring Spark's Kafka connector: the comparison with Spark's Kafka source will say that it is skipped"

test-slow: $(VENV)/.test system-packages kafka-libs spark-connector ## The long ones: kill loops, thousands of simulation seeds, fuzzing
	@$(BIN)/python -m pytest -n 2 --dist worksteal -m slow $(ARGS)

test-new: $(VENV)/.test ## The property tests and state machines of the default suite with new examples (SEED=… draws the same again)
	@$(BIN)/python -m pytest -n 2 --dist worksteal -m 'hypothesis and not slow' --hypothesis-profile=new \
		--hypothesis-seed=$(or $(SEED),$(shell od -An -N4 -tu4 /dev/urandom | tr -d ' ')) $(ARGS)

infra-check: $(VENV)/.test ## Hold infra/terraform against Terraform, the AWS provider's schema, tflint, checkov and the program (needs terraform and go)
	@$(BIN)/python -m tools.infra $(ARGS)

alerts-check: $(VENV)/.test ## Hold the alerting rules of infra/monitoring and their tests against Prometheus' promtool (needs go, which builds it)
	@$(BIN)/python -m tools.infra alerts

kubernetes-check: $(VENV)/.test ## Hold the chart of infra/kubernetes against Helm, Kubernetes' schemas and a broker (needs go)
	@$(BIN)/python -m tools.kubernetes
	@$(BIN)/python -m pytest tests/infra/kubernetes $(ARGS)

lint: $(VENV)/.test ## ruff, mypy --strict, import layers, hadolint
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/hadolint Dockerfile

$(VENV)/.docs: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "==> installing Firn and the generator of its documentation into $(VENV)"
	@$(PIP) install --constraint constraints.txt --editable '.[console,docs,registry]'
	@touch $@

docs: $(VENV)/.docs ## Build the documentation as a site into build/docs/site, and check its links
	@$(BIN)/python -m tools.docs_site $(ARGS)

$(VENV)/.bench: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "==> installing Firn with its laboratory into $(VENV)"
	@$(PIP) install --constraint constraints.txt --editable '.[bench,spark]'
	@touch $@

bench: $(VENV)/.bench kafka-libs ## Measure against Apache Kafka and bare limits; writes loadtests/RESULTS.md (80 minutes; ARGS=--plan shows them)
	@$(BIN)/python -m loadtests $(ARGS)

bench-quick: $(VENV)/.bench kafka-libs ## Two thirds of its groups, small, in about 3 minutes: that they work, not how fast
	@$(BIN)/python -m loadtests --quick $(ARGS)

soak: $(VENV)/.bench ## Every kind of client at once, with faults, 10 minutes; every record accounted for (ARGS="--minutes 60")
	@$(BIN)/python -m loadtests.soak $(ARGS)

soak-short: $(VENV)/.bench ## The same in two minutes: each fault at least once
	@$(BIN)/python -m loadtests.soak --minutes 1.2 $(ARGS)

$(VENV)/.package: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "==> installing what builds packages into $(VENV)"
	@$(PIP) install --constraint constraints.txt build hatchling packaging
	@touch $@

package: $(VENV)/.package ## Build the wheel and the sdist into dist/
	@$(BIN)/python -m build --no-isolation --outdir dist .

wheelhouse: $(VENV)/.package ## Pack all that a broker needs, for machines without an index, into dist/ (ARCH=aarch64, ARGS=--uncommitted)
	@$(BIN)/python tools/wheelhouse.py --arch $(or $(ARCH),$(shell uname -m)) $(ARGS)

# In an environment of its own: what it needs is not Firn's.
SUPPLY := $(VENV)-supply
$(SUPPLY)/.done: constraints.txt | $(VENV)/bin/python
	@echo "==> installing what writes bills of materials and asks for advisories into $(SUPPLY)"
	@tools/ensure-venv.sh "$(PYTHON)" "$(SUPPLY)"
	@$(SUPPLY)/bin/python -m pip --disable-pip-version-check --quiet install --constraint constraints.txt cyclonedx-bom pip-audit
	@touch $@

hashes: $(VENV)/.package ## Write hashes.txt anew, after a change of constraints.txt: the files that a wheelhouse may hold
	@$(BIN)/python tools/hashes.py

sbom: wheelhouse $(SUPPLY)/.done ## Write the bill of materials of the wheelhouse (CycloneDX), into dist/
	@$(SUPPLY)/bin/python tools/sbom.py "$$(ls -t dist/firn-wheelhouse-*-$(or $(ARCH),$(shell uname -m)).tar.gz | head -1)"

audit: wheelhouse $(SUPPLY)/.done ## Ask for known weaknesses of what a broker installs; says "not audited" where advisories cannot be had
	@tar --extract --to-stdout --file "$$(ls -t dist/firn-wheelhouse-*-$(or $(ARCH),$(shell uname -m)).tar.gz | head -1)" requirements.txt \
		| grep -v '^firn-broker' >dist/audited.txt
	@$(SUPPLY)/bin/python tools/audit.py dist/audited.txt

install-size: $(VENV)/.package ## Install the least that a broker needs elsewhere, and say how much it is (ARGS="--extra spark")
	@$(BIN)/python tools/install_size.py $(ARGS)

rehearse: $(VENV)/.test $(VENV)/.package ## Boot machines for real, with stand-ins for AWS: first boot, loss, drain, spot, upgrade (root; ARGS="--only lost,spot")
	@tools/system-packages.sh debootstrap:debootstrap systemd-nspawn:systemd-container ip:iproute2
	@$(BIN)/python -m infra.rehearsal $(ARGS)

image: wheelhouse ## Build the image of a broker with buildah (BASE=… names another base, OCI=FOLDER writes an OCI layout too)
	@tools/system-packages.sh buildah:buildah
	@tools/image.sh

clean: ## Remove the environment, caches and demo data
	rm -rf $(VENV) $(SUPPLY) .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache firn-demo spark-demo dist *.egg-info
