# Each target works on a fresh Debian 12 with a Rust toolchain: it installs what it misses first.
CARGO ?= cargo
REPORTS := target/conformance

.PHONY: conformance test lint bench interop setup build release
.DEFAULT_GOAL := conformance

## conformance: replay the trace corpus on both backends
conformance: release
	@mkdir -p $(REPORTS)
	target/release/efa-emu run -- target/release/efa-conformance run traces --backend all \
		--junit $(REPORTS)/junit.xml

## test: formatting, lints, documentation and all tests
test: lint build
	$(CARGO) test --workspace --doc --quiet
	$(CARGO) nextest run --workspace

lint: setup
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --quiet -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --quiet

## bench: micro benchmarks, then stock programs over the device beside other providers
bench: release
	$(CARGO) bench --workspace --quiet

## interop: our protocol engine against stock libfabric
interop: release
	target/release/efa-conformance interop

setup:
	@scripts/setup

build: setup
	$(CARGO) build --workspace --quiet

release: setup
	$(CARGO) build --workspace --release --quiet
