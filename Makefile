# Each target works on a fresh Debian 12 with a Rust toolchain: it installs what it misses first.
CARGO ?= cargo
PREFIX ?= /usr/local
REPORTS := target/conformance
# What the main job needs, and nothing else. Not optimised: that takes longer than the corpus gains by it.
SUITE := -p efa-emu -p efa-emu-verbs -p efa-emu-efadv -p efa-conformance
# Three for each processor, since many tests wait for the programs that they start.
TEST_THREADS := $(shell expr $$(nproc) \* 3)

.PHONY: conformance test nightly quick everything lint sim coverage fuzz verify bench interop arm64 setup build release
.PHONY: deny advisories minimum-rust
.PHONY: wireshark-install wireshark-test wireshark-bench losses
.PHONY: dist dist-test dist-arm64 install
.DEFAULT_GOAL := conformance

## conformance: replay the trace corpus on both backends
conformance:
	@scripts/setup suite
	$(CARGO) build $(SUITE)
	@mkdir -p $(REPORTS)
	target/debug/efa-emu run -- target/debug/efa-conformance run --backend all \
		--jobs 4 --junit $(REPORTS)/junit.xml
	target/debug/efa-emu run --profile tm -- target/debug/efa-conformance run --backend all traces/tag-matching \
		--junit $(REPORTS)/tag-matching.xml

# One pass of the compiler builds and lints: clippy's driver is the compiler with more lints. A pass of clippy beside the
# build would check all crates a second time.
LINTED := RUSTC_WORKSPACE_WRAPPER=clippy-driver CLIPPY_ARGS=-Dwarnings__CLIPPY_HACKERY__

# The models of the lock-free algorithms. Other flags build everything again, so in a directory of their own.
LOOM := RUSTFLAGS='--cfg loom' CARGO_TARGET_DIR=target/loom

## test: formatting, lints, and all tests but the long ones
test: setup
	$(CARGO) fmt --all --check
	$(LINTED) $(CARGO) build --workspace --lib --bins --examples --tests
	@$(LOOM) $(LINTED) scripts/watched models - $(CARGO) test -p efa-lock-free --lib --quiet
	@$(LINTED) scripts/watched 'examples in documentation' - $(CARGO) test --workspace --doc --quiet
	@$(LINTED) scripts/tests --workspace --test-threads $(TEST_THREADS)

## nightly: the long tests (.config/nextest.toml), the corpus in more networks, and 10,000 random programs
nightly: build sim
	@scripts/tests --workspace --ignore-default-filter --filterset 'not default()' --test-threads $(TEST_THREADS)
	@EFA_SEEDS=5 scripts/tests --workspace --filterset 'test(/^corpus::the_engine_/)' --test-threads $(TEST_THREADS)

## quick: while editing: units, the engine, the device model, the simulator, and the corpus in it
quick:
	@scripts/setup suite
	$(CARGO) build $(SUITE)
	@scripts/tests --workspace --test-threads $(TEST_THREADS) \
		--filterset 'kind(lib) | package(efa-core) | package(efa-wire) | package(efa-device-model) | package(efa-sim)'
	@target/debug/efa-conformance run --backend emu --jobs 4

## sim: 10,000 random programs on the simulator against what libfabric promises, 10,000 against MPI's rules of tags
sim:
	@scripts/setup suite
	EFA_SEEDS=10000 scripts/watched sim - $(CARGO) test --profile sim -p efa-promises
	EFA_SEEDS=10000 scripts/watched tags - $(CARGO) test --profile sim -p efa-device-model --test connected offload

## everything: all that the project can show, in parts, with one report; what passed at this commit is not run again
everything:
	@scripts/everything

## coverage: whether the tests that docs/protocol-coverage.md names fail on an engine with its faults; some minutes
coverage: setup
	scripts/watched coverage - $(CARGO) test -p efa-core --test coverage_proof

## fuzz: all fuzz targets, FUZZ_SECONDS each (fuzz/README.md)
fuzz: setup
	@scripts/fuzz

## verify: the models of what works without locks, at length, and whether they notice weakened orderings
verify:
	@scripts/setup suite
	@scripts/watched verify - scripts/verify

## lint: formatting, clippy and rustdoc, each without warnings
lint: setup
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	$(CARGO) clippy -p efa-core --test coverage_proof -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps

## deny: licences and sources of all crates (deny.toml)
deny:
	@$(CARGO) deny --version >/dev/null 2>&1 || $(CARGO) install cargo-deny --locked
	$(CARGO) deny check bans licenses sources
	@scripts/dist licences >/dev/null

## advisories: what is known against any of the crates; fetches the list of it
advisories:
	@$(CARGO) deny --version >/dev/null 2>&1 || $(CARGO) install cargo-deny --locked
	$(CARGO) deny check advisories

## minimum-rust: all code with the oldest Rust that Cargo.toml permits, which rustup fetches if it is not installed
MINIMUM_RUST = $(shell sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml).0
minimum-rust: setup
	rustup toolchain list | grep -q '^$(MINIMUM_RUST)' || rustup toolchain install $(MINIMUM_RUST) --profile minimal
	$(CARGO) +$(MINIMUM_RUST) check --workspace --all-targets --locked

## bench: what README.md and docs/performance.md claim at their tops, each figure beside a peer of the same run
bench:
	@scripts/setup suite programs tracers
	@scripts/bench

## interop: one line for each program that must work on emulated devices (docs/interop.md); SHARD=3/12 for a part;
## what passed at this commit is not run again, unless RESUME is empty
RESUME ?= yes
# One more than processors, since a third of the time is waiting.
INTEROP_JOBS := $(shell expr $$(nproc) + 1)
interop: release
	@scripts/setup programs slurm
	@mkdir -p $(REPORTS)
	target/release/efa-conformance interop --jobs $(INTEROP_JOBS) --junit $(REPORTS)/interop.xml $(if $(SHARD),--shard $(SHARD)) \
		$(if $(RESUME),--resume --table $(REPORTS)/interop.md)

## arm64: builds the device for arm64 and runs its tests under emulation (docs/arm64.md)
arm64: setup
	@scripts/arm64 test

## wireshark-install: the dissector, its profile and live interfaces, for the current user
wireshark-install: release
	@scripts/setup wireshark
	@target/release/efa-emu wireshark install

## wireshark-test: the dissector on 100,000 mutated frames, and beside the checker on 1000 captures
wireshark-test:
	@scripts/setup suite wireshark
	EFA_MUTATIONS=100000 scripts/watched dissector - $(CARGO) test -p efa-wireshark dissector
	EFA_MUTATIONS=100000 scripts/watched rules - $(CARGO) test -p efa-check --test check wireshark_rules

## losses: `check` finds no error in any capture of the corpus that has lost something, in 10,000 ways each
losses: setup
	EFA_LOSSES=10000 scripts/watched losses - $(CARGO) test --profile sim -p efa-check --test check losses

## wireshark-bench: the dissector beside Wireshark's own
wireshark-bench: setup
	@wireshark/bench

## dist: a tarball, a Debian package and a Python wheel, in target/dist (docs/install.md)
dist: setup
	@scripts/dist

## dist-test: installs the packages in fresh Debian 11, 12 and 13, and uses them there; needs root
dist-test:
	@scripts/watched dist-test - scripts/dist-test

## dist-arm64: the packages for arm64, used in an emulated arm64 Debian 12 (docs/arm64.md)
dist-arm64: setup
	@scripts/arm64 dist
	@scripts/watched dist-arm64 - scripts/arm64 dist-test

## install: the same files below PREFIX
install: setup
	@PREFIX=$(PREFIX) scripts/dist install

setup:
	@scripts/setup

# All that tests start, and the tests, at once: alone, each would build anew what the other needs with more features.
build: setup
	$(CARGO) build --workspace --lib --bins --examples --tests

release:
	@scripts/setup suite workspace
	$(CARGO) build --workspace --release
