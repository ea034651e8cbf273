# make demo     a fresh machine's first command: builds everything and runs real kernels
# make test     everything that needs no GPU
# make lint     formats, lints and types
# make fuzz     random kernels with fresh seeds, on all cores: make fuzz MINUTES=10
# make mutants  changes the compiler for the worse in some sixty ways, and says which of them the tests find
# make canary   whether JAX's newest release is as smalt reads it
# make gpu-test what needs one; with no build tools: make gpu-test SMALT_LIBRARY=/path/to/libsmalt.so PYTHON=python-with-jax-and-pytest
# make build    the library, optimised, into the Python package
# make wheel    both as a wheel, into dist/
# Needs Rust, Python >= 3.11, a C++17 compiler. BUILD.md has the details.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LIBRARY := jax_plugin/smalt/libsmalt.so
CUDA := $(shell command -v nvidia-smi >/dev/null 2>&1 && echo 1)
JAX := $(if $(CUDA),jax[cuda13],jax)
export SMALT_XLA_FFI_INCLUDE_DIR ?= $(shell $(PYTHON) scripts/xla_headers.py)

.PHONY: demo test gpu-test build wheel venv lint fuzz mutants canary clean FORCE

demo: build
	$(BIN)/python -m examples.demo

build: venv $(LIBRARY)

venv:
	scripts/venv.sh $(VENV) $(PYTHON) -c constraints/jax.txt "$(JAX)" numpy absl-py flatbuffers pytest mypy
	@echo "$(CURDIR)/jax_plugin" > "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/smalt.pth"

$(LIBRARY): FORCE
	cargo build --profile dist --lib
	@cmp -s $${CARGO_TARGET_DIR:-target}/dist/libsmalt.so $@ || cp $${CARGO_TARGET_DIR:-target}/dist/libsmalt.so $@

wheel:
	$(PYTHON) -m pip wheel --no-deps --wheel-dir dist .

# .ci/run without lints, and on one Python.
test:
	PYTHON="$(PYTHON)" .ci/run --tests

gpu-test: $(if $(SMALT_LIBRARY),,build)
	XLA_PYTHON_CLIENT_PREALLOCATE=false $(if $(SMALT_LIBRARY),SMALT_LIBRARY=$(abspath $(SMALT_LIBRARY)) $(PYTHON),$(BIN)/python) -m pytest -q tests/gpu

lint: venv
	cargo fmt --check
	cargo clippy --all-targets --features test-handlers -- -D warnings
	$(BIN)/python -m mypy

MINUTES ?= 10
fuzz: build
	$(BIN)/python -m tests.fuzz --minutes $(MINUTES)

mutants: build
	$(BIN)/python -m tests.mutants

canary: build
	$(BIN)/python -m tests.canary

clean:
	rm -rf target build dist .venv .venv-* $(LIBRARY)

FORCE:
