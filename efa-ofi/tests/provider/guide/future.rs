//! Flags that no release has, in every call that takes some; and sizes, numbers and versions of
//! other releases.

use std::collections::BTreeSet;
use std::path::Path;

use super::{TestFabric, compile, printed, releases};

/// The directory of the headers for compiling `future.c`.
const HEADERS: &str = "/usr/include/rdma";

/// Calls with flags that are libfabric's own, or of objects that this provider does not have.
const OTHERS: [&str; 6] = [
    "fi_export_fid",
    "fi_import",
    "fi_import_fid",
    "fi_import_log",
    "fi_pep_bind",
    "fi_scalable_ep_bind",
];

const BAD_FLAGS: i32 = -260;
const NOT_THERE: i32 = -libc::ENOSYS;
const INVALID: i32 = -libc::EINVAL;
const UNSUPPORTED: i32 = -libc::EOPNOTSUPP;
const NO_DATA: i32 = -libc::ENODATA;
const NOTHING: i32 = -libc::EAGAIN;

/// The expected results of the calls, by version.
const EXPECTED: [(i32, &[&str]); 8] = [
    (
        BAD_FLAGS,
        &[
            "fi_recvmsg",
            "fi_sendmsg",
            "fi_trecvmsg",
            "fi_tsendmsg",
            "fi_readmsg",
            "fi_writemsg",
            "fi_atomicmsg",
            "fi_fetch_atomicmsg",
            "fi_compare_atomicmsg",
            "fi_mr_reg",
            "fi_mr_regv",
            "fi_mr_regattr",
            "fi_join_collective",
            "fi_barrier2",
            "fi_broadcast",
            "fi_alltoall",
            "fi_allreduce",
            "fi_allgather",
            "fi_reduce_scatter",
            "fi_reduce",
            "fi_scatter",
            "fi_gather",
        ],
    ),
    (
        INVALID,
        &[
            "fi_av_insert",
            "fi_av_insertsvc",
            "fi_av_remove",
            "fi_av_bind",
            "fi_domain_bind",
            "fi_av_open of type 99",
            "fi_eq_write",
            "fi_eq_read",
            "fi_eq_sread",
            "fi_poll_add",
            "fi_poll_del",
            "fi_cq_open of condition 99",
            "fi_cq_open with flags",
            "fi_cntr_open with flags",
            "fi_wait_open with flags",
            "fi_poll_open with flags",
            "fi_eq_open with flags",
            "fi_open_ops",
            "fi_query_atomic",
            "fi_domain2",
            "fi_endpoint2",
            "fi_ep_bind",
            "fi_setopt of a byte",
            "fi_query_collective",
        ],
    ),
    (
        NOT_THERE,
        &[
            "fi_mr_regattr of interface 99",
            "fi_mr_bind",
            "fi_mr_refresh",
            "fi_mr_raw_attr",
            "fi_mr_map_raw",
            "fi_av_insertsym",
            "fi_av_open with flags",
            "fi_cq_open of format 99",
            "fi_cq_open of wait object 99",
            "fi_cntr_open of events 99",
            "fi_wait_open of wait object 99",
            "fi_alias",
            "fi_ep_alias",
            "fi_set_ops",
            "fi_shutdown",
            "fi_control of command 9999",
            "fi_getinfo of a later version",
            "fi_join",
        ],
    ),
    (
        UNSUPPORTED,
        &[
            "fi_atomicmsg of datatype 99",
            "fi_atomicmsg of operation 99",
            "fi_query_atomic of datatype 99",
            "fi_query_collective of operation 99",
        ],
    ),
    (
        NO_DATA,
        &[
            "fi_getinfo of a capability",
            "fi_getinfo of flags",
            "fi_getinfo of threading 99",
        ],
    ),
    (
        -libc::ENOPROTOOPT,
        &["fi_getopt of option 9999", "fi_setopt of option 9999"],
    ),
    // There is no failure to read, whatever the flags are: they change nothing.
    (NOTHING, &["fi_eq_readerr", "fi_cq_readerr"]),
    // `FI_ETOOSMALL`.
    (-257, &["fi_eq_read of a byte"]),
];

/// The functions of libfabric's headers that take flags.
fn functions_with_flags() -> BTreeSet<String> {
    let headers = Path::new(HEADERS).read_dir().expect("the headers");
    let texts = headers.map(|header| {
        let path = header.expect("an entry").path();
        std::fs::read_to_string(&path).unwrap_or_default()
    });
    let mut found = BTreeSet::new();
    for text in texts {
        // The body of each function begins a line, after the function's name and arguments.
        for definition in text
            .split("\n{")
            .filter_map(|part| part.rsplit_once("static inline"))
        {
            let words: Vec<&str> = definition.1.split_whitespace().collect();
            let line = words.join(" ");
            let Some((name, arguments)) =
                line.split_once(" fi_").and_then(|of| of.1.split_once('('))
            else {
                continue;
            };
            if arguments.ends_with(')') && arguments.contains("uint64_t flags") {
                found.insert(format!("fi_{name}"));
            }
        }
    }
    found
}

#[test]
fn calls_refuse_features_of_other_releases() {
    let directory = tempfile::tempdir().expect("a directory");
    let fabric = TestFabric::new();
    let program = compile("future", directory.path());
    let found = printed(&fabric, &program, &releases()[0], "efa_rs");
    let found: BTreeSet<(&str, i32)> = found
        .lines()
        .filter_map(|line| line.rsplit_once('|'))
        .map(|(call, status)| (call, status.parse().expect("a number")))
        .collect();
    let expected = EXPECTED.iter();
    let expected: BTreeSet<(&str, i32)> = expected
        .flat_map(|(status, calls)| calls.iter().map(move |call| (*call, *status)))
        .collect();
    let differences: Vec<_> = found.symmetric_difference(&expected).collect();
    assert!(differences.is_empty(), "{differences:?}");
    let tried: BTreeSet<&str> = found.iter().map(|(call, _)| *call).chain(OTHERS).collect();
    let functions = functions_with_flags();
    assert!(functions.len() > 50, "{functions:?}");
    let missing: Vec<_> = functions
        .iter()
        .filter(|name| !tried.contains(name.as_str()))
        .collect();
    assert!(missing.is_empty(), "not tried: {missing:?}");
}
