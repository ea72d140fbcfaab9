# SPDX-License-Identifier: Apache-2.0
# The front door. Meson does the building (meson.build); the scripts in tools/ do the rest.
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
SHELL := /bin/sh

# Debian's own interpreter: the packages that tools/deps installs belong to it, not to another that comes first in PATH.
PYTHON ?= /usr/bin/python3
BUILD  ?= build
JOBS   ?= $(shell nproc 2>/dev/null || echo 2)
PREFIX ?= /usr/local
# make fuzz: seconds for each target, and which (all of them, if empty).
SECONDS ?= 60
TARGET  ?=
# make bench: arguments of bench/run.
ARGS ?= read

.PHONY: help deps build demo check check-all check-rdma check-extra bench fuzz fmt lint install uninstall wheel clean

help: ## this list
	@echo "Leat feeds training jobs: samples from disks, through a memory pool, into registered batch views."
	@echo
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' Makefile | awk -F'|' '{printf "  make %-11s %s\n", $$1, $$2}'
	@echo
	@echo "Missing Debian packages are installed when you are root; otherwise the line to run is printed."
	@echo "Variables: JOBS=$(JOBS) BUILD=$(BUILD) PREFIX=$(PREFIX) DESTDIR= SECONDS=$(SECONDS) TARGET= ARGS="

deps: ## install what building and testing need (tools/deps has the list)
	@tools/deps build test

build: ## compile everything into build/
	@tools/deps build
	@[ -f $(BUILD)/build.ninja ] || meson setup $(BUILD) >/dev/null || { cat $(BUILD)/meson-logs/meson-log.txt; exit 1; }
	@ninja -C $(BUILD) -j $(JOBS)

demo: ## real digits and pictures: load, measure, train, be killed and resume; under 10 minutes on a bare machine
	@tools/deps build demo
	@[ -f $(BUILD)/build.ninja ] || meson setup $(BUILD) >/dev/null || { cat $(BUILD)/meson-logs/meson-log.txt; exit 1; }
	@echo "building Leat"
	@out=$$(ninja -C $(BUILD) -j $(JOBS) --quiet 2>&1) || { echo "$$out"; exit 1; }
	@BUILD=$(BUILD) examples/demo/run

check: ## what every change must pass: unit, ASan+UBSan, TSan, fuzz corpus, layers, headers, pytest
	@tools/deps build test
	@$(PYTHON) tools/check --build $(BUILD) --jobs $(JOBS)

check-all: ## check, and what takes longer: fuzzing, slow tests, suites of other projects, RDMA, lint
	@tools/deps build test fuzz lint s3
	@tools/deps rdma || true
	@tools/deps browser || true
	@$(PYTHON) tools/check --build $(BUILD) --jobs $(JOBS) --all

check-rdma: ## RDMA on real verbs, emulated in a guest under QEMU; skipped where that cannot run
	@tools/deps build test
	@tools/deps rdma || true
	@$(PYTHON) tools/check --build $(BUILD) --jobs $(JOBS) --only rdma

check-extra: # what check-all has beyond check
	@tools/deps build test fuzz lint s3
	@tools/deps rdma || true
	@$(PYTHON) tools/check --build $(BUILD) --jobs $(JOBS) --extra

bench: ## measure, beside the limits of this machine (ARGS="read --json")
	@tools/deps build bench
	@$(MAKE) build
	@bench/run $(ARGS)

fuzz: ## fuzz the parsers with clang (SECONDS=60 each, TARGET=name for one)
	@tools/deps build fuzz
	@$(PYTHON) tools/check --build $(BUILD) --jobs $(JOBS) --only fuzz --seconds $(SECONDS) $(if $(TARGET),--target $(TARGET))

fmt: ## format the C sources with the pinned clang-format
	@tools/deps lint
	@tools/lint --fix

lint: ## check the format, compile the Python, shellcheck the scripts
	@tools/deps lint
	@tools/lint

# Debian's Python looks below /usr/local where meson does not install by itself.
PYTHON_DIR = $(shell $(PYTHON) -c "import site; print(next((d for d in site.getsitepackages() if d.startswith('$(PREFIX)/lib')), ''))")

install: ## install under PREFIX (DESTDIR is honoured)
	@tools/deps build
	@dir="$(PYTHON_DIR)"; options="--prefix=$(PREFIX) $${dir:+-Dpython.platlibdir=$$dir -Dpython.purelibdir=$$dir}"; \
	if [ -f build-release/build.ninja ]; then meson configure build-release $$options; \
	else meson setup build-release --buildtype=release $$options -Dtests=false -Dbench=false >/dev/null; fi
	@ninja -C build-release -j $(JOBS)
	@meson install -C build-release --no-rebuild $(if $(DESTDIR),--destdir $(abspath $(DESTDIR)))
	@[ -n "$(DESTDIR)" ] || [ "$$(id -u)" != 0 ] || ldconfig

uninstall: ## remove what the last `make install` has installed; leatd.conf stays
	@[ -f build-release/meson-logs/install-log.txt ] || { echo "this tree has installed nothing" >&2; exit 1; }
	@sed -n 's,^\(/.*/leat\(/_[a-z]*\)*\)/__init__.py$$,\1/__pycache__,p' build-release/meson-logs/install-log.txt | xargs -r rm -rf
	@ninja -C build-release uninstall | sed -n '/^Deleted: [0-9]/p;/^Failed: [0-9]/p'
	@[ "$$(id -u)" != 0 ] || ldconfig

wheel: ## a wheel in dist/ with the libraries that Leat uses inside, and their licences
	@tools/deps build wheel
	@tools/wheel

clean: ## remove what was built
	@rm -rf build build-asan build-tsan build-fuzz build-release build-wheel
