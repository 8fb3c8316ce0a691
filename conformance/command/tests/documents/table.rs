//! The blocks of the pages. A row begins with the beginning of the block's text, or with the heading of a
//! chapter whose blocks are all alike.

use crate::row::Row;

/// Rows of a page.
pub(crate) type Rows = &'static [(&'static str, fn() -> Row)];

/// True when `fi_pingpong` waits for its client.
const LISTENING: &str = "grep -q ':B9E8 [0-9A-F:]* 0A ' /proc/net/tcp /proc/net/tcp6";

/// The other terminal with the client of `fi_pingpong`.
const CLIENT: &str = "patiently grep -q ':B9E8 [0-9A-F:]* 0A ' /proc/net/tcp /proc/net/tcp6; \
                      efa-emu run --pcap client.pcapng -- fi_pingpong -p efa -e rdm 127.0.0.1";

/// The other terminal with stock as the client of `fi_pingpong` over the engine.
const CLIENT_OF_ENGINE: &str = "patiently grep -q ':B9E8 [0-9A-F:]* 0A ' /proc/net/tcp /proc/net/tcp6; \
                                efa-emu run -- fi_pingpong -p efa -e rdm 127.0.0.1";

/// Makes the recording of a message another one, with the same checksum: the suite then expects what no endpoint does.
const ANOTHER_TAG: &str = r"LC_ALL=C sed -i \
    's/\x37\x12\x00\x00\x00\x00\x00\x00/\x36\x12\x01\x00\x00\x00\x00\x00/g' traces/eager-tagged.pcapng";

/// `both.pcapng` and the dissector where Wireshark looks for it.
const CAPTURE_AND_DISSECTOR: &str =
    "cp traces/long-cts.pcapng both.pcapng; efa-emu wireshark install >install.log 2>&1";

/// The programs of Debian's Wireshark complain of users who may do everything, as containers' often do.
const AS_ROOT: &[&str] = &["efa-emu: note: you are root", "Running as user \"root\""];

const MAKES_TAKE_LONG: &str =
    "continuous integration runs `make test`; the others take minutes to hours";
const NEEDS_ACCOUNT: &str = "it needs an account of AWS";
const PRINTED_BY_INTEROP: &str = "`make interop` prints it, which takes hours";
const PRINTED_BY_BENCH: &str = "`make bench` prints it, with figures of one machine";

pub(crate) const PAGES: &[(&str, Rows)] = &[
    (
        "README.md",
        &[
            ("make conformance   #", || Row::made(MAKES_TAKE_LONG)),
            ("$ make conformance", || {
                Row::runs().traces(&["burst-before-handshake"])
            }),
            ("$ make test", || {
                Row::not_checked("this test is a part of it")
            }),
            ("$ cargo build --workspace --release", Row::runs),
            ("$ efa-emu run -- fi_pingpong -p efa -e rdm\n", || {
                Row::runs().beside(CLIENT)
            }),
            (
                "$ efa-emu run -- fi_pingpong -p efa -e rdm 127.0.0.1",
                || {
                    Row::runs()
                        .beside("efa-emu run -- fi_pingpong -p efa -e rdm")
                        .when("efa-emu run", LISTENING)
                },
            ),
            ("$ efa-emu run --pcap server.pcapng", || {
                Row::runs().beside(CLIENT).besides(AS_ROOT)
            }),
            ("FAIL  eager-tagged", || {
                Row::printed_by("efa-conformance run")
                    .given(ANOTHER_TAG)
                    .fails(1)
            }),
        ],
    ),
    (
        "conformance/examples/README.md",
        &[("cc -Wall", || {
            Row::done_by(
                "conformance/command/tests/command/eager_example.rs",
                "it_passes_the_cases_of_eager_messages_in_every_role",
                &[
                    "cc -Wall -Wextra -O2 -o eager conformance/examples/eager.c -libverbs -lefa",
                    "efa-emu run -- efa-conformance run --backend hw --dut exec:./eager",
                ],
            )
        })],
    ),
    (
        "docs/architecture.md",
        &[("              conformance/*", || {
            Row::not_checked("a drawing")
        })],
    ),
    (
        "docs/arm64.md",
        &[
            ("make arm64 ", || {
                Row::not_checked("it fetches a system and a compiler, and takes an hour")
            }),
            ("make dist-arm64", || {
                Row::not_checked("it fetches a system and a compiler, and builds all packages")
            }),
        ],
    ),
    (
        "docs/ci.md",
        &[
            ("name: efa-rdm", || {
                Row::read_by(
                    "conformance/command/tests/ci_recipes.rs",
                    "the_engine_is_tested",
                )
            }),
            ("variables:", || {
                Row::read_by(
                    "conformance/command/tests/ci_recipes.rs",
                    "both_systems_run_the_same_commands",
                )
            }),
        ],
    ),
    (
        "docs/cluster.md",
        &[("$ efa-emu cluster 4", || {
            Row::done_by(
                "efa-emu/verbs/tests/cluster.rs",
                "sixteen_ranks_are_on_four_hosts_without_any_option",
                &["efa-emu cluster 4 -- mpirun -n 16 ./app"],
            )
        })],
    ),
    (
        "docs/machines.md",
        &[
            ("key once, on any machine", || {
                Row::not_checked("it needs two machines, which efa-emu/bridge/tests/bridges makes")
            }),
            ("efa-emu bridge key fabric.key\n", || {
                Row::read_by(
                    "efa-emu/bridge/tests/kubernetes.rs",
                    "the_names_in_the_manifest_agree",
                )
            }),
            ("apiVersion: v1", || {
                Row::read_by(
                    "efa-emu/bridge/tests/kubernetes.rs",
                    "the_command_is_one_of_efa_emu",
                )
            }),
            ("hosts: idle hosts of another machine", || {
                Row::not_checked(PRINTED_BY_BENCH)
            }),
            ("$ efa-emu cluster 8 --machines", || {
                Row::not_checked(
                    "it needs two machines, which the group `machines` of make interop makes",
                )
            }),
        ],
    ),
    (
        "docs/conformance.md",
        &[
            ("efa-conformance run                    ", || {
                Row::runs()
                    .with("--libfabric PATH", "--libfabric libfabric.so.1")
                    .with("exec:COMMAND", "exec:'efa-conformance drive core'")
            }),
            ("PASS  long-cts", || {
                Row::printed_by(
                    "efa-conformance run traces/long-cts.pcapng traces/eager-tagged.pcapng",
                )
                .given(ANOTHER_TAG)
                .fails(1)
            }),
            ("efa-conformance run --each-event all", || {
                Row::runs().traces(&["eager-tagged"])
            }),
            ("[[deviation]]", || {
                Row::file(
                    "expected.toml",
                    "efa-conformance run --expected expected.toml",
                )
            }),
            ("efa-conformance record traces/ping-pong.toml", || {
                Row::runs()
                    .traces(&["ping-pong"])
                    .given("rm traces/ping-pong.pcapng")
            }),
            ("efa-conformance interop --group scenarios", Row::runs),
            ("efa-conformance check CAPTURE", || {
                Row::runs().with("CAPTURE", "traces/long-cts.pcapng")
            }),
            ("error: packet 42 (EOR): eor-early", || {
                Row::expected_by(
                    "conformance/check/tests/check/faults.rs",
                    "every_mistake_is_found_and_named",
                    "eor-early: none of its memory was read",
                )
            }),
        ],
    ),
    (
        "docs/driver.md",
        &[
            ("efa-emu run -- efa-conformance run --backend hw", || {
                Row::runs().given(
                    "printf '#!/bin/sh\\nexec efa-conformance drive core\\n' >my-driver; \
                     chmod +x my-driver",
                )
            }),
            ("uint64_t mix", || {
                Row::read_by(
                    "conformance/play/tests/play/driver_documented.rs",
                    "figures_are_those_of_the_code",
                )
            }),
            ("> hello", || {
                Row::read_by(
                    "conformance/play/tests/play/driver_documented.rs",
                    "the_conversation_is_understood",
                )
            }),
            ("## Commands", || {
                Row::read_by(
                    "conformance/play/tests/play/driver_documented.rs",
                    "the_tables_are_those_of_the_declaration",
                )
            }),
            ("## Answers", || {
                Row::read_by(
                    "conformance/play/tests/play/driver_documented.rs",
                    "the_tables_are_those_of_the_declaration",
                )
            }),
        ],
    ),
    (
        "docs/ec2.md",
        &[
            ("aws ec2 describe-instance-types", || {
                Row::not_checked(NEEDS_ACCOUNT)
            }),
            ("aws ec2 create-security-group", || {
                Row::not_checked(NEEDS_ACCOUNT)
            }),
            ("aws ec2 run-instances", || Row::not_checked(NEEDS_ACCOUNT)),
            ("curl -O https://efa-installer", || {
                Row::not_checked(NEEDS_ACCOUNT)
            }),
            ("efa-conformance doctor\n", || {
                Row::done_by(
                    "conformance/command/tests/command/doctor.rs",
                    "an_emulated_host_is_fit",
                    &["efa-conformance doctor"],
                )
            }),
            ("efa-conformance doctor --peer", || {
                Row::done_by(
                    "conformance/command/tests/command/doctor.rs",
                    "two_hosts_reach_each_other",
                    &["efa-conformance doctor --peer OTHER"],
                )
            }),
            ("efa-conformance survey -o", || {
                Row::done_by(
                    "conformance/command/tests/command/survey.rs",
                    "a_survey_of_each_profile_gives_that_profile",
                    &[
                        "efa-conformance survey -o measured.toml",
                        "efa-conformance survey --at a=THIS --at b=OTHER -o between.toml",
                        "efa-conformance run --at a=THIS --at b=OTHER --json core.json",
                        "efa-conformance run --at a=THIS --at b=OTHER --dut libfabric --libfabric /opt/amazon/efa/lib64/libfabric.so.1 --json stock.json",
                        "efa-conformance interop --at a=THIS --at b=OTHER --json table.json",
                    ],
                )
            }),
            ("efa-conformance run --hosts", || {
                Row::not_checked("tests of two-machines.md run it with hosts of a cluster")
            }),
            ("srun -N 4", || {
                Row::done_by(
                    "conformance/command/tests/command/ranks.rs",
                    "slurm_starts_the_suite",
                    &["srun -N 4 -n 4 efa-conformance run --pairs all --json pairs.json"],
                )
            }),
            ("efa-conformance bundle", || {
                Row::done_by(
                    "conformance/command/tests/command/bundle.rs",
                    "names_that_are_private_stay_at_home",
                    &["efa-conformance bundle -o bundle.tar.gz core.json stock.json measured.toml"],
                )
            }),
            ("aws ec2 terminate-instances", || {
                Row::not_checked(NEEDS_ACCOUNT)
            }),
        ],
    ),
    (
        "docs/emulator.md",
        &[
            ("efa-emu run -- fi_info -p efa", Row::runs),
            ("efa-emu run --pcap a.pcapng -- PROGRAM", || {
                Row::runs()
                    .with("PROGRAM", "fi_info -p efa")
                    .interrupted("efa-emu capture", "grep -q recording $SEEN")
            }),
            ("efa-emu: a.pcapng:", || {
                Row::expected_by(
                    "efa-emu/verbs/tests/capture.rs",
                    "both_hosts_of_a_dialogue_record_it",
                    "frames of 1 host, 15604 bytes, 0 dropped",
                )
            }),
        ],
    ),
    (
        "docs/faults.md",
        &[
            ("$ efa-emu run --host b", || {
                Row::runs()
                    .when("efa-emu fault add", "efa-emu ps | grep -q '^b '")
                    .when("efa-emu run --host a", LISTENING)
                    .when(
                        "efa-emu fault list",
                        "efa-emu fault list | grep -Eq '^ +5 +1 +1 '",
                    )
            }),
            ("$ efa-emu fault add 'when = { packet = \"CTSS\"", || {
                Row::runs().fails(2)
            }),
            ("# Every second RECEIPT", || {
                Row::read_by(
                    "conformance/command/tests/faults/documented.rs",
                    "examples_are_rules",
                )
            }),
        ],
    ),
    (
        "docs/interop.md",
        &[
            ("make interop         ", || {
                Row::runs()
                    .with("make interop", "make --dry-run interop >make.log")
                    .with("--group libfabric", "--group libfabric --list")
                    .with("--filter 1.17", "--filter 1.17 --list")
                    .with("--at a=node0 --at b=node1", "--list")
                    .traces(&["ping-pong"])
            }),
            ("PASS   scenarios  ping-pong", || {
                Row::printed_by("efa-conformance interop traces/ping-pong.toml")
                    .traces(&["ping-pong"])
            }),
            ("PASS   libfabric  1.17 -> 2.1", || {
                Row::not_checked(PRINTED_BY_INTEROP)
            }),
            ("PASS   libfabric  1.17 fi_cq_sread", || {
                Row::expected_by(
                    "conformance/command/tests/command/interop.rs",
                    "older_releases_cannot_sleep",
                    "fi_cq_open with a wait object: refused: Function not implemented (-38)",
                )
            }),
            ("PASS   engine     long-CTS", || {
                Row::not_checked(PRINTED_BY_INTEROP)
            }),
            ("PASS   engine     messages to zero-copy", || {
                Row::expected_by(
                    "conformance/command/tests/command/interop.rs",
                    "the_engine_and_stock_zero_copy_receivers",
                    "asks for user receive QP, 84 message without header",
                )
            }),
            ("PASS   mpi", || Row::not_checked(PRINTED_BY_INTEROP)),
            ("$ mpicc -O2 -o exercise", || {
                // Open MPI wants to be asked twice by root, who in a container is everybody.
                Row::runs()
                    .given("export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1")
            }),
            ("PASS   kill", || {
                Row::expected_by(
                    "conformance/command/tests/command/interop.rs",
                    "the_network_outlives_twenty_kills",
                    "20 kills of fi_pingpong, 10 at start, 10 with data under way; survivors:",
                )
            }),
            ("$ efa-emu run -- $(scripts/userland debian13)", || {
                Row::runs().userland("debian13")
            }),
            ("pub(super) fn cells", || {
                Row::not_checked(
                    "a part of a program, such as the cells in conformance/interop/src",
                )
            }),
        ],
    ),
    (
        "docs/ofi.md",
        &[
            ("$ efa-emu run --provider efa_rs -- fi_info", Row::runs),
            ("$ efa-emu run --provider efa_rs -- fi_pingpong", || {
                Row::runs().beside(CLIENT_OF_ENGINE)
            }),
            (
                "efa-emu run -- efa-conformance run --backend hw --dut libfabric --provider",
                || Row::runs().traces(&["eager-tagged"]),
            ),
        ],
    ),
    (
        "docs/performance.md",
        &[
            ("## A 64-byte message", || {
                Row::not_checked(PRINTED_BY_BENCH)
            }),
            ("## Bandwidth, 1 MiB", || Row::not_checked(PRINTED_BY_BENCH)),
            ("## Growth", || Row::not_checked(PRINTED_BY_BENCH)),
            ("## Memory of a provider's endpoint", || {
                Row::not_checked(
                    "takes a compiler, and memory for three endpoints of stock libfabric",
                )
            }),
            ("## Engine", || Row::not_checked(PRINTED_BY_BENCH)),
        ],
    ),
    (
        "docs/scenarios.md",
        &[
            ("description = ", || {
                Row::file(
                    "traces/mine.toml",
                    "efa-conformance record traces/mine.toml -o traces/mine.pcapng",
                )
                .given(
                    "sed -i '/^# ... as above/{s/.*/software = \"libfabric\"\\nversion = \"1.17\"/;\
                     s/$/\\ncapabilities = [\"msg\", \"tagged\", \"source\"]/}' traces/mine.toml",
                )
            }),
            (
                "efa-conformance: traces/eager-tagged.toml:26: lenght",
                || {
                    Row::printed_by("efa-conformance run traces/eager-tagged.pcapng")
                        .given("sed -i s/length/lenght/ traces/eager-tagged.toml")
                        .fails(2)
                },
            ),
            ("[[step]]\nat = \"a\"\ndo = \"send\"", || {
                Row::part_of("traces/written/read-nack-message.toml")
            }),
            ("raw_addr = ", || {
                Row::not_checked("lines for packets of different types")
            }),
            (
                "efa-conformance: traces/written/x.toml:68: credit_request",
                || {
                    Row::printed_by("efa-conformance run traces/written/x.toml")
                        .traces(&["written/read-nack-message"])
                        .given(
                            "sed '/^type = \"LONGCTS_MSGRTM\"/a credit_request = 4294967296' \
                         traces/written/read-nack-message.toml >traces/written/x.toml",
                        )
                        .fails(2)
                },
            ),
            ("[[fault]]", || {
                Row::file(
                    "fault.toml",
                    "cat fault.toml >>traces/long-cts.toml; efa-conformance run traces/long-cts.pcapng",
                )
            }),
            ("[[policy]]", || {
                Row::file(
                    "policy.toml",
                    "cat policy.toml >>traces/long-cts.toml; efa-conformance run traces/long-cts.pcapng",
                )
                // Another generation of the device has other features.
                .fails(1)
            }),
        ],
    ),
    (
        "docs/slurm.md",
        &[
            ("$ efa-emu cluster 2", || {
                Row::done_by(
                    "efa-emu/verbs/tests/cluster.rs",
                    "slurm_starts_jobs_on_the_hosts",
                    &["efa-emu cluster 2 -- scripts/slurm srun --mpi=pmix -N 2 -n 4 ./app"],
                )
            }),
            ("$ scripts/slurm --machines", || {
                Row::not_checked("`make interop` runs it, as a cell of the group machines")
            }),
        ],
    ),
    (
        "docs/tap.md",
        &[
            ("$ efa-tap run --pcap server.pcapng", || {
                Row::not_checked("it is the next block, with a device that is not emulated")
            }),
            ("$ efa-emu run -- efa-tap run", || {
                Row::runs().beside(CLIENT)
            }),
        ],
    ),
    (
        "docs/two-machines.md",
        &[
            ("$ efa-conformance run --at a=node0 --at b=node1\n", || {
                Row::done_by(
                    "conformance/command/tests/command/hosts.rs",
                    "each_endpoint_is_played_where_it_is_told",
                    &["efa-conformance run --at a=node0 --at b=node1"],
                )
            }),
            (
                "$ efa-emu cluster 2 -- efa-conformance run --at a=node0",
                Row::runs,
            ),
            ("$ efa-conformance interop --at a=node0", || {
                Row::done_by(
                    "conformance/command/tests/command/hosts.rs",
                    "stock_programs_of_the_table_run_on_two_hosts",
                    &["efa-conformance interop --at a=node0 --at b=node1"],
                )
            }),
            (
                "$ efa-emu cluster 2 -- efa-conformance interop --at",
                || {
                    Row::done_by(
                        "conformance/command/tests/command/hosts.rs",
                        "stock_programs_of_the_table_run_on_two_hosts",
                        &[
                            "efa-emu cluster 2 -- efa-conformance interop --at a=node0 --at b=node1 --rsh 'efa-emu rsh' --filter '1.17 fi_pingpong'",
                        ],
                    )
                },
            ),
            ("$ mpirun -n 4 --map-by node", || {
                Row::done_by(
                    "conformance/command/tests/command/ranks.rs",
                    "open_mpi_starts_the_suite_on_every_pair_of_hosts",
                    &[
                        "mpirun -n 4 --map-by node efa-conformance run --pairs all",
                        "srun -N 4 -n 4 efa-conformance run --pairs all",
                    ],
                )
            }),
            ("the clock of endpoint `b` compared", || {
                Row::expected_by(
                    "conformance/command/tests/command/hosts.rs",
                    "captures_of_both_hosts_are_judged_as_one_however_far_their_clocks_are_apart",
                    " s behind (within ",
                )
            }),
        ],
    ),
    (
        "docs/wire-format.md",
        &[("Ethernet | IPv6", || Row::not_checked("a drawing"))],
    ),
    (
        "docs/hardware-checklist.md",
        &[
            ("efa-conformance survey", || {
                Row::done_by(
                    "conformance/command/tests/command/survey.rs",
                    "a_survey_of_each_profile_gives_that_profile",
                    &["efa-conformance survey -o measured.toml"],
                )
            }),
            ("efa-emu run", || {
                Row::done_by(
                    "conformance/command/tests/command/survey.rs",
                    "a_survey_of_each_profile_gives_that_profile",
                    &["efa-emu run --profile measured.toml -- PROGRAM"],
                )
            }),
        ],
    ),
    (
        "docs/install.md",
        &[
            ("efa-emu run -- fi_info -p efa", Row::runs),
            ("$ efa-emu --version", || {
                Row::not_checked("scripts/dist-use looks at it where it is installed")
            }),
            ("efa-emu: /dev/shm", || {
                Row::expected_by(
                    "efa-emu/verbs/tests/run.rs",
                    "a_fabric_of_another_version_is_refused_with_the_names_of_both",
                    "use one of the two for all programs, choose another --fabric name, or",
                )
            }),
        ],
    ),
    (
        "docs/wireshark.md",
        &[
            ("$ efa-emu wireshark install", || {
                Row::runs().besides(AS_ROOT)
            }),
            ("$ efa-emu run --host alice -- fi_pingpong", || {
                Row::runs()
                    .given("efa-emu wireshark install >install.log 2>&1")
                    .when("tshark -D", "efa-emu ps | grep -q alice")
                    .beside(
                        "patiently grep -q 'Capture started' $SEEN; \
                         efa-emu run --host bob -- fi_pingpong -p efa -e rdm 127.0.0.1",
                    )
                    .interrupted("tshark -i", "grep -q EAGER_MSGRTM $SEEN")
                    .besides(AS_ROOT)
            }),
            ("$ efa-emu capture -w fabric.pcapng", || {
                Row::runs()
                    .given("efa-emu wireshark install >install.log 2>&1")
                    .beside(
                        "efa-emu run --host alice -- fi_pingpong -p efa -e rdm & \
                         patiently grep -q recording $SEEN; \
                         patiently grep -q ':B9E8 [0-9A-F:]* 0A ' /proc/net/tcp; \
                         efa-emu run --host bob -- fi_pingpong -p efa -e rdm 127.0.0.1; wait; \
                         touch traffic-is-over",
                    )
                    .when("efa-emu capture -w", "efa-emu ps | grep -q '^alice '")
                    .interrupted("efa-emu capture -w", "test -e traffic-is-over")
                    .interrupted("efa-emu capture |", "grep -q 'Capturing on' $SEEN")
                    .besides(AS_ROOT)
            }),
            ("efa-emu run --host alice --pcap", || {
                Row::runs()
                    .given("efa-emu wireshark install >install.log 2>&1")
                    .when("efa-emu run --host bob", LISTENING)
                    .when("mergecap", "! efa-emu ps | grep -q alice")
            }),
            ("EFA_STATISTICS=", || {
                Row::runs().given(CAPTURE_AND_DISSECTOR)
            }),
            ("TSHARK=", || {
                Row::done_by(
                    "wireshark/tests/wireshark/dissector.rs",
                    "other_releases_of_wireshark_show_the_same",
                    &[
                        "TSHARK=$(scripts/userland wireshark-debian11)/tshark cargo test -p efa-wireshark",
                    ],
                )
            }),
        ],
    ),
    (
        "efa-core/README.md",
        &[
            ("use efa_core::address::RawAddress", || {
                Row::not_checked("a test of the documentation, of which the page is a part")
            }),
            ("$ cargo test -p efa-core --test coverage", || {
                Row::done_by(
                    "efa-core/tests/coverage/main.rs",
                    "no_section_is_left_out",
                    &["cargo test -p efa-core --test coverage"],
                )
            }),
            ("$ EFA_SEEDS=10000 cargo test", || {
                Row::done_by(
                    "efa-emu/promises/main.rs",
                    "random_programs_get_what_libfabric_promises",
                    &[
                        "EFA_SEEDS=10000 cargo test --profile sim -p efa-promises random_programs -- --nocapture",
                    ],
                )
            }),
            ("EFA_SEED=77", || {
                Row::done_by(
                    "efa-emu/promises/main.rs",
                    "random_programs_get_what_libfabric_promises",
                    &[
                        "EFA_SEED=77 EFA_STEPS=1,5,7 cargo test -p efa-promises random_programs -- --nocapture",
                    ],
                )
            }),
            ("$ efa-conformance interop --group engine", || {
                Row::not_checked(PRINTED_BY_INTEROP)
            }),
        ],
    ),
    (
        "fuzz/README.md",
        &[("make fuzz  ", || Row::not_checked("it fuzzes for minutes"))],
    ),
];

/// A test for each page whose blocks are run, and one for the others.
macro_rules! tests {
    ($($name:ident: $page:literal,)*) => {
        $(#[test]
        fn $name() {
            crate::check($page);
        })*

        #[test]
        fn the_other_pages() {
            for (page, _) in PAGES.iter().filter(|(page, _)| ![$($page),*].contains(page)) {
                crate::check(page);
            }
        }
    };
}

tests! {
    readme: "README.md",
    conformance: "docs/conformance.md",
    driver: "docs/driver.md",
    emulator: "docs/emulator.md",
    faults: "docs/faults.md",
    interop: "docs/interop.md",
    scenarios: "docs/scenarios.md",
    tap: "docs/tap.md",
    wireshark: "docs/wireshark.md",
}
