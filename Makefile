# Topogate. `make demo` shows it, `make test` proves it; both set up everything they need.
#
# Needs Python 3.11+, make and git. Go 1.26+ builds the local control plane; where it is missing, it comes from PyPI.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Cluster tests wait more than they compute: two workers more than there are cores keep these busy. They come first, in
# the order of their files: a long one that began last would leave the other workers without work.
TEST_WORKERS ?= $(shell $(PYTHON) -c 'import os; print(min(8, (os.cpu_count() or 1) + 2))')
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Images of containers often set it. Tests start hundreds of processes: each would compile all our modules again.
unexport PYTHONDONTWRITEBYTECODE

VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
# make image TAG=registry.example.com/topogate:0.2.0 ENGINE=podman
TAG ?= topogate:$(VERSION)
BASE ?=
# make push-chart CHARTS=oci://registry.example.com/charts
CHARTS ?=
ENGINE ?=

.PHONY: help demo dev test unit quick lint format types bench generate lock page wheel image sbom chart push-chart docs clean

help:
	@echo "make demo      a local control plane, Topogate installed, real Jobs placed"
	@echo "make test      all tests, on a real control plane"
	@echo "make unit      the tests that need no control plane"
	@echo "make dev       all that a developer needs on this machine, the control plane included"
	@echo "make quick     lint, types and the unit tests that a change can break, in about two minutes"
	@echo "make lint      format, lint, types, import contracts, generated files"
	@echo "make bench     placement, ungating, webhook and whole path, as ratios"
	@echo "make generate  the CRDs from their models, the chart from the manifests, the messages of the kubelet's APIs"
	@echo "make page      the page of topogate web, from its TypeScript (needs npm)"
	@echo "make wheel     the wheel and the source archive of the Python package"
	@echo "make image     the image, upon the base in image/base.txt (or BASE=...@sha256:...), and its bill of materials"
	@echo "make chart     the Helm chart as a package; make push-chart CHARTS=oci://... pushes it"
	@echo "make docs      the documentation as a site, its links checked"
	@echo "make sbom      what is in the image of Topogate's own, as CycloneDX"
	@echo "make clean     what was built in this folder (the control plane's cache stays)"

# What the command needs, and what installs it. A stamp is newer than what it was made from, so that a changed lock file
# installs again.
$(VENV)/.command: requirements.lock requirements-build.lock pyproject.toml
	@echo "Setting up the Python environment in $(VENV) (half a minute the first time)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Topogate needs Python 3.11 or newer; set PYTHON=")'
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --require-hashes --no-deps -r requirements-build.lock
	@$(BIN)/pip install --quiet --require-hashes --no-deps -r requirements.lock
	@$(BIN)/pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

# What tests, lint and the generators need besides.
$(VENV)/.ready: $(VENV)/.command requirements-dev.lock
	@echo "Adding what tests and lint need (half a minute the first time)"
	@$(BIN)/pip install --quiet --require-hashes -r requirements-dev.lock
	@touch $@

demo: $(VENV)/.command
	@$(BIN)/topogate demo

test: $(VENV)/.ready
	@$(BIN)/python -m localcluster --tools
	@$(BIN)/pytest -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder tests

dev: $(VENV)/.ready
	@$(BIN)/python -m localcluster --tools
	@echo "make quick checks a change, make test everything; docs/develop.md is the guide"

quick: $(VENV)/.ready
	@cd tests && PYTHONPATH=. $(CURDIR)/$(BIN)/python -m support.quick

unit: $(VENV)/.ready
	@$(BIN)/pytest -n auto --dist loadfile tests/unit

lint: $(VENV)/.ready
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --verbose | tail -n 12
	@$(BIN)/python -m crds.generate --check
	@$(BIN)/python -m manifests.generate --check

format: $(VENV)/.ready
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: $(VENV)/.ready
	@$(BIN)/python -m localcluster
	@$(BIN)/python -m benchmarks

generate: $(VENV)/.ready
	@$(BIN)/python -m crds.generate
	@$(BIN)/python -m manifests.generate
	@$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. agent/podresources/api.proto localcluster/real/cri.proto localcluster/real/device_plugin.proto

# Names and hashes only: the lock files work with any package index.
lock: $(VENV)/.ready
	@$(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate pyproject.toml -o requirements.lock
	@$(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate pyproject.toml --group dev -c requirements.lock -o requirements-dev.lock
	@$(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate --group build -c requirements-dev.lock -o requirements-build.lock
	@$(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate --group docs -o requirements-docs.lock

# In an environment of its own: nothing else needs what it takes.
$(VENV)-docs/.ready: requirements-docs.lock
	@$(PYTHON) -m venv $(VENV)-docs
	@$(VENV)-docs/bin/pip install --quiet --require-hashes -r requirements-docs.lock
	@touch $@

docs: $(VENV)-docs/.ready
	@$(VENV)-docs/bin/mkdocs build --strict --quiet
	@echo "dist/docs/index.html"

wheel: $(VENV)/.ready
	@$(BIN)/python -m hatchling build --directory dist

HELM = "$$($(BIN)/python -m localcluster helm | awk '{print $$2}')"

chart: $(VENV)/.ready
	@mkdir -p dist
	@$(HELM) package manifests/helm/topogate --destination dist

push-chart: chart
	@$(HELM) push dist/topogate-$(VERSION).tgz "$(CHARTS)"

image: sbom
	@$(BIN)/python -m image.build --tag "$(TAG)" --base "$(BASE)" --engine "$(ENGINE)"

sbom: $(VENV)/.ready
	@$(BIN)/python -m image.sbom dist/topogate-$(VERSION).cdx.json

clean:
	rm -rf $(VENV) $(VENV)-docs build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache benchmarks/results *.egg-info

page: web/page/node_modules
	@cd web/page && npm run --silent types && npm run --silent build

web/page/node_modules: web/page/package-lock.json
	@cd web/page && npm ci --silent
	@touch $@
