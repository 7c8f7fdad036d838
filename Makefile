# Everything there is to do, from a bare machine on. `make help` lists it.
# On Debian 12 or newer, as root, with rustup's cargo: `make demo` and `make test` set up what they need by themselves.

.DELETE_ON_ERROR:
.DEFAULT_GOAL := build
.PHONY: help ui build demo test lint lab bench reproducible install clean setup-build setup-test
MAKEFLAGS += --no-print-directory

export PATH := $(PATH):$(HOME)/.cargo/bin
export CARGO_TERM_COLOR ?= auto
PREFIX ?= /usr/local
TARGET := $(or $(CARGO_TARGET_DIR),target)
KPAT := $(TARGET)/release/kpat
export KPAT := $(abspath $(KPAT))

help: ## this list
	@echo "make TARGET; without a target: build"
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  %-12s %s\n", $$1, $$2}' Makefile
	@echo "PREFIX=$(PREFIX) is where install puts things; DESTDIR is put before it."

ui: setup-build ## the page of kpat view, ui/dist
	@scripts/ui

build: ui ## compiler and headers if they are missing, then target/release/kpat
	@scripts/quiet "building kpat" cargo build --release --locked

demo: ## real packets through a router: recorded, captured, joined, looked up
	@scripts/ready demo
	@scripts/demo

test: ## lint, all tests, house checks, lab; ends with "N passed, N failed"
	@scripts/ready test || { echo "0 passed, 1 failed"; exit 1; }
	@scripts/test

lint: setup-test ## rustfmt and clippy, nothing may be left
	@scripts/test format clippy

lab: setup-test ## Debian's kernels 6.1, 6.12 and 7.2 for QEMU, then every scenario and test on each
	@scripts/test ui build kernels lab-full

bench: setup-test ## overhead against peers; results in bench/runs
	@[ -x bench/run ] || { echo "make bench: bench/run is not here; this checkout has no benchmarks" >&2; exit 1; }
	@scripts/ui
	@scripts/quiet "building kpat" cargo build --release --locked
	@bench/run

reproducible: build ## the program once more in another folder: the same to the byte?
	@scripts/reproducible

install: build ## binary, manual pages and completions below PREFIX
	@install -d "$(DESTDIR)$(PREFIX)/bin" "$(DESTDIR)$(PREFIX)/share/man/man1" \
		"$(DESTDIR)$(PREFIX)/share/bash-completion/completions" \
		"$(DESTDIR)$(PREFIX)/share/zsh/site-functions" "$(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d" "$(DESTDIR)$(PREFIX)/share/doc/kpat"
	@scripts/stripped "$(KPAT)" "$(DESTDIR)$(PREFIX)/bin/kpat"
	@"$(KPAT)" -q man --all "$(DESTDIR)$(PREFIX)/share/man/man1"
	@"$(KPAT)" completion bash > "$(DESTDIR)$(PREFIX)/share/bash-completion/completions/kpat"
	@"$(KPAT)" completion zsh > "$(DESTDIR)$(PREFIX)/share/zsh/site-functions/_kpat"
	@"$(KPAT)" completion fish > "$(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/kpat.fish"
	@install -m 644 COPYING LICENSES/GPL-3.0-or-later.txt "$(DESTDIR)$(PREFIX)/share/doc/kpat/"
	@scripts/notices > "$(DESTDIR)$(PREFIX)/share/doc/kpat/NOTICES"
	@echo "installed below $(DESTDIR)$(PREFIX): bin/kpat, manual pages, completions, licences"

clean: ## what was built and what the demo made; fetched kernels stay (.lab)
	@rm -rf "$(TARGET)" demo-out ui/dist ui/.tests ui/node_modules
	@echo "removed $(TARGET), demo-out and the page; the kernels of the lab stay in .lab"

setup-build:
	@scripts/setup build

setup-test:
	@scripts/setup test
