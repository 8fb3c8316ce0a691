//! Names of enumeration values, and conversions between enumerated and plain rates.

use core::ffi::{CStr, c_char, c_int};

/// The name at `value`, or "unknown".
fn name(names: &[&'static CStr], value: c_int) -> *const c_char {
    usize::try_from(value)
        .ok()
        .and_then(|index| names.get(index))
        .unwrap_or(&c"unknown")
        .as_ptr()
}

/// Returns the name of a node type (`ibv_node_type`), a static C string; "unknown" for other
/// values.
pub(crate) extern "C" fn ibv_node_type_str(node_type: c_int) -> *const c_char {
    const NAMES: [&CStr; 8] = [
        c"unknown",
        c"InfiniBand channel adapter",
        c"InfiniBand switch",
        c"InfiniBand router",
        c"iWARP NIC",
        c"usNIC",
        c"usNIC UDP",
        c"unspecified",
    ];
    name(&NAMES, node_type)
}

/// Returns the name of an operation of a send queue (`ibv_wr_opcode`), as [`ibv_node_type_str`].
pub(crate) extern "C" fn ibv_wr_opcode_str(opcode: c_int) -> *const c_char {
    const NAMES: [&CStr; 16] = [
        c"rdma-write",
        c"rdma-write-with-imm",
        c"send",
        c"send-with-imm",
        c"rdma-read",
        c"atomic-cmp-and-swp",
        c"atomic-fetch-and-add",
        c"local-inv",
        c"bind-mw",
        c"send-with-inv",
        c"tso",
        c"driver1",
        c"unknown",
        c"unknown",
        c"flush",
        c"atomic-write",
    ];
    name(&NAMES, opcode)
}

/// Returns the name of a port state (`ibv_port_state`), as [`ibv_node_type_str`].
pub(crate) extern "C" fn ibv_port_state_str(state: c_int) -> *const c_char {
    const NAMES: [&CStr; 6] = [
        c"no change",
        c"down",
        c"init",
        c"armed",
        c"active",
        c"active defer",
    ];
    name(&NAMES, state)
}

/// Returns the name of an asynchronous event (`ibv_event_type`), as [`ibv_node_type_str`].
pub(crate) extern "C" fn ibv_event_type_str(event: c_int) -> *const c_char {
    const NAMES: [&CStr; 21] = [
        c"completion queue error",
        c"queue pair failed",
        c"invalid request on a queue pair",
        c"access violation on a queue pair",
        c"communication established",
        c"send queue drained",
        c"path migrated",
        c"path migration failed",
        c"device failed",
        c"port active",
        c"port error",
        c"LID changed",
        c"P_Key changed",
        c"subnet manager changed",
        c"shared receive queue error",
        c"shared receive queue limit reached",
        c"last work request of a queue pair reached",
        c"client has to register again",
        c"GID changed",
        c"work queue failed",
        c"link speed changed",
    ];
    name(&NAMES, event)
}

/// Returns the name of a completion status (`ibv_wc_status`), as [`ibv_node_type_str`].
pub(crate) extern "C" fn ibv_wc_status_str(status: c_int) -> *const c_char {
    const NAMES: [&CStr; 24] = [
        c"success",
        c"local length error",
        c"local queue pair operation error",
        c"local end-to-end context operation error",
        c"local protection error",
        c"work request flushed",
        c"memory window bind error",
        c"bad response",
        c"local access error",
        c"remote invalid request",
        c"remote access error",
        c"remote operation error",
        c"transport retries exceeded",
        c"receiver not ready, retries exceeded",
        c"local RDD violation",
        c"remote invalid read request",
        c"remote aborted",
        c"invalid end-to-end context number",
        c"invalid end-to-end context state",
        c"fatal error",
        c"response timeout",
        c"general error",
        c"tag matching error",
        c"tag matching rendezvous incomplete",
    ];
    name(&NAMES, status)
}

/// The values of `enum ibv_rate`, their multiple of 2.5 Gbit/s if they are one, and their Mbit/s.
const RATES: [(c_int, Option<c_int>, c_int); 23] = [
    (2, Some(1), 2_500),
    (5, Some(2), 5_000),
    (3, Some(4), 10_000),
    (6, Some(8), 20_000),
    (4, Some(12), 30_000),
    (7, Some(16), 40_000),
    (8, Some(24), 60_000),
    (9, Some(32), 80_000),
    (10, Some(48), 120_000),
    (11, None, 14_062),
    (12, None, 56_250),
    (13, None, 112_500),
    (14, None, 168_750),
    (15, None, 25_781),
    (16, None, 103_125),
    (17, None, 206_250),
    (18, None, 309_375),
    (19, None, 28_125),
    (20, None, 53_125),
    (21, None, 425_000),
    (22, None, 637_500),
    (23, None, 850_000),
    (24, None, 1_275_000),
];

/// `IBV_RATE_MAX`: no limit.
const RATE_MAX: c_int = 0;

fn rate(
    matches: impl Fn(&(c_int, Option<c_int>, c_int)) -> bool,
) -> Option<(c_int, Option<c_int>, c_int)> {
    RATES.into_iter().find(matches)
}

/// Returns the multiple of 2.5 Gbit/s for a rate (`ibv_rate`), -1 for a rate that is not a
/// multiple.
pub(crate) extern "C" fn ibv_rate_to_mult(value: c_int) -> c_int {
    rate(|(code, ..)| *code == value)
        .and_then(|(_, multiple, _)| multiple)
        .unwrap_or(-1)
}

/// Returns the rate for this multiple of 2.5 Gbit/s, `IBV_RATE_MAX` if there is none.
pub(crate) extern "C" fn mult_to_ibv_rate(multiple: c_int) -> c_int {
    rate(|(_, known, _)| *known == Some(multiple)).map_or(RATE_MAX, |(code, ..)| code)
}

/// Returns a rate (`ibv_rate`) in Mbit/s, -1 if it is unknown.
pub(crate) extern "C" fn ibv_rate_to_mbps(value: c_int) -> c_int {
    rate(|(code, ..)| *code == value).map_or(-1, |(_, _, mbps)| mbps)
}

/// Returns the rate of this many Mbit/s, `IBV_RATE_MAX` if there is none.
pub(crate) extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> c_int {
    rate(|(_, _, known)| *known == mbps).map_or(RATE_MAX, |(code, ..)| code)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(pointer: *const c_char) -> &'static str {
        // SAFETY: all names are C string literals.
        unsafe { CStr::from_ptr(pointer) }.to_str().unwrap()
    }

    #[test]
    fn values_beyond_the_enumerations_have_names() {
        assert_eq!(text(ibv_node_type_str(7)), "unspecified");
        assert_eq!(text(ibv_node_type_str(-1)), "unknown");
        assert_eq!(text(ibv_port_state_str(4)), "active");
        assert_eq!(text(ibv_wc_status_str(0)), "success");
        assert_eq!(text(ibv_wc_status_str(24)), "unknown");
        assert_eq!(text(ibv_event_type_str(i32::MAX)), "unknown");
    }

    #[test]
    fn rates_convert_both_ways() {
        for (code, multiple, mbps) in RATES {
            assert_eq!(mbps_to_ibv_rate(ibv_rate_to_mbps(code)), code);
            assert_eq!(ibv_rate_to_mbps(code), mbps);
            if let Some(multiple) = multiple {
                assert_eq!(mult_to_ibv_rate(multiple), code);
            }
        }
        assert_eq!(ibv_rate_to_mult(11), -1);
        assert_eq!(mult_to_ibv_rate(3), RATE_MAX);
    }
}
