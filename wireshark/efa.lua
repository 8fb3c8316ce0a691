-- Wireshark dissector for the EFA RDM protocol v4 and for the emulated wire that carries it.
--
-- Two protocols: `efa`, the transport header of the emulated network (docs/wire-format.md), and
-- `efa_rdm`, the packets of the RDM protocol. Runs on Lua 5.2 (Wireshark 3.4 to 4.2) and Lua 5.4
-- (Wireshark 4.4). Install it with `make wireshark-install`, or load it once with
-- `tshark -X lua_script:wireshark/efa.lua`; docs/wireshark.md tells what to do with it.
--
-- In this order: tables of the protocol, fields, rules, reading packets, showing packets, the two
-- dissectors.

set_plugin_info({
    version = "0.1.0",
    author = "The efa-emu authors",
    description = "EFA RDM protocol v4 over the emulated EFA wire",
})

-- >>> generated from efa_core::wire and efa_emu::frame, do not edit
local UDP_PORT = 61344
local HEADER_LENGTH = 32
local RDMA_HEADER_LENGTH = 56
local OPCODES = {
    [1] = "SEND",
    [2] = "RDMA_READ_REQUEST",
    [3] = "RDMA_READ_RESPONSE",
    [4] = "RDMA_WRITE",
    [5] = "RESPONSE",
    [6] = "DATAGRAM",
}
local STATUSES = {
    [0] = "OK",
    [1] = "FLUSHED",
    [2] = "LOCAL_QP_INTERNAL_ERROR",
    [3] = "LOCAL_UNSUPPORTED_OP",
    [4] = "LOCAL_INVALID_AH",
    [5] = "LOCAL_INVALID_LKEY",
    [6] = "LOCAL_BAD_LENGTH",
    [7] = "REMOTE_BAD_ADDRESS",
    [8] = "REMOTE_ABORT",
    [9] = "REMOTE_BAD_DEST_QPN",
    [10] = "REMOTE_RNR",
    [11] = "REMOTE_BAD_LENGTH",
    [12] = "REMOTE_BAD_STATUS",
    [13] = "LOCAL_UNRESPONSIVE_REMOTE",
    [14] = "REMOTE_UNKNOWN_PEER",
    [15] = "LOCAL_UNREACHABLE_REMOTE",
    [18] = "REMOTE_FEATURE_MISMATCH",
}
local STATUS_MEANINGS = {
    [0] = "success",
    [1] = "flushed when the queue pair was destroyed or failed",
    [2] = "internal error of the local queue pair",
    [3] = "operation not supported by the local device",
    [4] = "the address handle is not valid",
    [5] = "the local key is not valid for this memory",
    [6] = "the local length is not valid",
    [7] = "the peer refused the remote key, address or access",
    [8] = "the peer aborted the operation",
    [9] = "the peer has no such queue pair, or another Q-key",
    [10] = "the peer had no receive posted",
    [11] = "the peer's receive is too short",
    [12] = "the peer answered with an unknown status",
    [13] = "the peer does not respond",
    [14] = "the peer has no address handle for us",
    [15] = "the peer cannot be reached",
    [18] = "the peer's device lacks the feature",
}
local DATATYPES = {
    [0] = "INT8",
    [1] = "UINT8",
    [2] = "INT16",
    [3] = "UINT16",
    [4] = "INT32",
    [5] = "UINT32",
    [6] = "INT64",
    [7] = "UINT64",
    [8] = "FLOAT",
    [9] = "DOUBLE",
    [10] = "FLOAT_COMPLEX",
    [11] = "DOUBLE_COMPLEX",
    [12] = "LONG_DOUBLE",
    [13] = "LONG_DOUBLE_COMPLEX",
    [14] = "INT128",
    [15] = "UINT128",
    [16] = "FLOAT16",
    [17] = "BFLOAT16",
    [18] = "FLOAT8_E4M3",
    [19] = "FLOAT8_E5M2",
}
local ATOMIC_OPS = {
    [0] = "MIN",
    [1] = "MAX",
    [2] = "SUM",
    [3] = "PROD",
    [4] = "LOR",
    [5] = "LAND",
    [6] = "BOR",
    [7] = "BAND",
    [8] = "LXOR",
    [9] = "BXOR",
    [10] = "ATOMIC_READ",
    [11] = "ATOMIC_WRITE",
    [12] = "CSWAP",
    [13] = "CSWAP_NE",
    [14] = "CSWAP_LE",
    [15] = "CSWAP_LT",
    [16] = "CSWAP_GE",
    [17] = "CSWAP_GT",
    [18] = "MSWAP",
    [19] = "DIFF",
}
local TYPES = {
    [1] = "RTS",
    [2] = "CONNACK",
    [3] = "CTS",
    [4] = "CTSDATA",
    [5] = "READRSP",
    [6] = "RMA_CONTEXT",
    [7] = "EOR",
    [8] = "ATOMRSP",
    [9] = "HANDSHAKE",
    [10] = "RECEIPT",
    [11] = "READ_NACK",
    [12] = "PEER_ERROR",
    [64] = "EAGER_MSGRTM",
    [65] = "EAGER_TAGRTM",
    [66] = "MEDIUM_MSGRTM",
    [67] = "MEDIUM_TAGRTM",
    [68] = "LONGCTS_MSGRTM",
    [69] = "LONGCTS_TAGRTM",
    [70] = "EAGER_RTW",
    [71] = "LONGCTS_RTW",
    [72] = "SHORT_RTR",
    [73] = "LONGCTS_RTR",
    [74] = "WRITE_RTA",
    [75] = "FETCH_RTA",
    [76] = "COMPARE_RTA",
    [128] = "LONGREAD_MSGRTM",
    [129] = "LONGREAD_TAGRTM",
    [130] = "LONGREAD_RTW",
    [131] = "READ_RTR",
    [133] = "DC_EAGER_MSGRTM",
    [134] = "DC_EAGER_TAGRTM",
    [135] = "DC_MEDIUM_MSGRTM",
    [136] = "DC_MEDIUM_TAGRTM",
    [137] = "DC_LONGCTS_MSGRTM",
    [138] = "DC_LONGCTS_TAGRTM",
    [139] = "DC_EAGER_RTW",
    [140] = "DC_LONGCTS_RTW",
    [141] = "DC_WRITE_RTA",
    [142] = "RUNTCTS_MSGRTM",
    [143] = "RUNTCTS_TAGRTM",
    [144] = "RUNTCTS_RTW",
    [145] = "RUNTREAD_MSGRTM",
    [146] = "RUNTREAD_TAGRTM",
    [147] = "RUNTREAD_RTW",
}
local REQ_FLAGS = {
    [0] = "raw_addr_hdr",
    [1] = "cq_data_hdr",
    [2] = "msg",
    [3] = "tagged",
    [4] = "rma",
    [5] = "atomic",
    [13] = "read_nack",
    [15] = "connid_hdr",
}
local CTS_FLAGS = {
    [7] = "emulated_read",
    [15] = "connid_hdr",
}
local HANDSHAKE_FLAGS = {
    [0] = "host_id_hdr",
    [1] = "device_version_hdr",
    [2] = "user_recv_qp_hdr",
    [3] = "hmem_p2p_hdr",
    [15] = "connid_hdr",
}
local UNIVERSAL_FLAGS = {
    [15] = "connid_hdr",
}
local FEATURES = {
    [0] = "rdma_read",
    [1] = "delivery_complete",
    [2] = "constant_header_length",
    [3] = "connid_header",
    [4] = "runting_read",
    [5] = "rdma_write",
    [6] = "read_nack",
    [7] = "user_recv_qp",
    [8] = "unsolicited_write_recv",
    [9] = "peer_error",
}
-- {name, kind of ProtoField, base and value strings, description}
local FIELDS = {
    { "atomic_datatype", "uint32", "enum fi_datatype of libfabric (spec section 3.3, table 3.13)", base.DEC, DATATYPES },
    { "atomic_op", "uint32", "enum fi_op of libfabric (spec section 3.3, table 3.13)", base.DEC, ATOMIC_OPS },
    { "connid", "uint32", "connection id of the sender (spec section 3.2, table 3.6)", base.HEX },
    { "connid.padding", "bytes", "without meaning; senders may leave anything in it (spec section 2.1, table 2.2)" },
    { "cq_data", "uint64", "data for the completion at the target (spec section 3.1)", base.HEX },
    { "credit_request", "uint32", "data packets that the sender would like to send (spec section 3.2, table 3.5)", base.DEC },
    { "data", "bytes", "application data (spec section 3.1)" },
    { "device_version", "uint32", "PCI part id of the sender's device (spec section 2.1, table 2.2)", base.HEX },
    { "device_version.reserved", "bytes", "without meaning; senders may leave anything in it (spec section 2.1, table 2.2)" },
    { "extra_info", "uint64", "extra features and requests, 64 in each word (spec section 2.1, table 2.2)", base.HEX },
    { "flags", "uint16", "optional parts of the packet and what it is used for (spec section 1.3, table 1.3)", base.HEX },
    { "hmem_p2p.p2p_supported", "uint8", "whether the sender's device reaches its accelerators' memory (not in the spec, stock libfabric since 2.6.0 (development branch))", base.DEC },
    { "hmem_p2p.reserved", "bytes", "without meaning; senders may leave anything in it (not in the spec, stock libfabric since 2.6.0 (development branch))" },
    { "host_id", "uint64", "identifies the sender's host (spec section 2.1, table 2.2)", base.HEX },
    { "msg_id", "uint32", "message, 0 for a write or an atomic (spec section 4.2)", base.DEC },
    { "msg_length", "uint64", "length of the whole message (seg_length in the table, but stock sends the total) (spec section 3.2, table 3.4)", base.DEC },
    { "nextra_p3", "uint32", "number of extra_info words plus 3 (spec section 2.1, table 2.2)", base.DEC },
    { "op_id", "uint32", "what is abandoned (not in the spec, stock libfabric since 2.6.0 (development branch))", base.DEC },
    { "padding", "bytes", "without meaning; senders may leave anything in it (spec section 3.2, table 3.6)" },
    { "prov_errno", "uint32", "why: a provider error number (not in the spec, stock libfabric since 2.6.0 (development branch))", base.DEC },
    { "raw_addr.connid", "uint32", "connection id of the sender, which is its Q-key (spec section 1.4, table 1.5)", base.HEX },
    { "raw_addr.gid", "ipv6", "GID of the sender's device (spec section 1.4, table 1.5)" },
    { "raw_addr.pad", "bytes", "without meaning; senders may leave anything in it (spec section 1.4, table 1.5)" },
    { "raw_addr.qpn", "uint16", "queue pair number of the sender (spec section 1.4, table 1.5)", base.DEC },
    { "raw_addr.reserved", "bytes", "without meaning; senders may leave anything in it (spec section 1.4, table 1.5)" },
    { "raw_addr.size", "uint32", "bytes of the address that follow: 32, or 36 from stock libfabric since 1.13.0 (spec section 3.1, table 3.2)", base.DEC },
    { "raw_addr.surplus", "bytes", "what the size has beyond the 32 bytes of the address; not interpreted (spec section 3.1, table 3.2)" },
    { "read_iov.addr", "uint64", "virtual address at the sender (spec section 4.1)", base.HEX },
    { "read_iov.key", "uint64", "remote key of the sender's memory (spec section 4.1)", base.HEX },
    { "read_iov.len", "uint64", "length in bytes (spec section 4.1)", base.DEC },
    { "read_iov_count", "uint32", "number of read_iov entries, at most 4 (spec section 4.1, table 4.1)", base.DEC },
    { "recv_id", "uint32", "operation of the data's receiver, for CTSDATA (spec section 3.2, table 3.6)", base.DEC },
    { "recv_length", "uint64", "bytes that the receiver is ready to receive (spec section 3.2, table 3.6)", base.DEC },
    { "ref_kind", "uint32", "what op_id is: 0 operation, 1 message id, 2 message id to be skipped (not in the spec, stock libfabric since 2.6.0 (development branch))", base.DEC },
    { "reserved", "bytes", "without meaning; senders may leave anything in it (spec section 3.3, table 3.15)" },
    { "rma_iov.addr", "uint64", "virtual address at the target (spec section 3.3)", base.HEX },
    { "rma_iov.key", "uint64", "remote key of the target's memory (spec section 3.3)", base.HEX },
    { "rma_iov.len", "uint64", "length in bytes (spec section 3.3)", base.DEC },
    { "rma_iov_count", "uint32", "number of rma_iov entries, at most 4 (spec section 3.3, table 3.8)", base.DEC },
    { "runt_length", "uint64", "bytes that are sent in packets of this type, in all of them together (not in the spec, stock libfabric since 1.16.0)", base.DEC },
    { "seg_length", "uint64", "length of the data in this packet (spec section 3.2, table 3.7)", base.DEC },
    { "seg_offset", "uint64", "where the data belongs, from the start of the message (spec section 3.2, table 3.7)", base.DEC },
    { "send_id", "uint32", "operation of the data's sender, from its request (spec section 3.2, table 3.6)", base.DEC },
    { "tag", "uint64", "tag (spec section 3.2, table 3.3)", base.HEX },
    { "trailing", "bytes", "bytes behind the end of the packet's format (spec section 1.3)" },
    { "type", "uint8", "packet type id (spec section 1.3, table 1.3)", base.DEC, TYPES },
    { "user_recv_qp.qkey", "uint32", "its Q-key (not in the spec, stock libfabric since 1.22.0)", base.HEX },
    { "user_recv_qp.qpn", "uint32", "number of the queue pair for headerless messages (not in the spec, stock libfabric since 1.22.0)", base.DEC },
    { "version", "uint8", "protocol version, always 4 (spec section 1.3, table 1.3)", base.DEC },
}
-- {name, bytes, when/unless = bit of the flags, counts = array}
local SECTIONS = {
    {
        { "type", 1 },
        { "version", 1 },
        { "flags", 2 },
    },
    {
        { "trailing", "rest" },
    },
    {
        { "connid", 4, when = 15 },
        { "padding", 4, unless = 15 },
        { "send_id", 4 },
        { "recv_id", 4 },
        { "recv_length", 8 },
    },
    {
        { "recv_id", 4 },
        { "seg_length", 8 },
        { "seg_offset", 8 },
        { "connid", 4, when = 15 },
        { "padding", 4, when = 15 },
    },
    {
        { "data", "rest" },
    },
    {
        { "connid", 4, when = 15 },
        { "padding", 4, unless = 15 },
        { "recv_id", 4 },
        { "send_id", 4 },
        { "seg_length", 8 },
    },
    {
        { "send_id", 4 },
        { "recv_id", 4 },
        { "connid", 4, when = 15 },
        { "padding", 4, unless = 15, if_room = true },
    },
    {
        { "connid", 4, when = 15 },
        { "padding", 4, unless = 15 },
        { "reserved", 4 },
        { "recv_id", 4 },
        { "seg_length", 8 },
    },
    {
        { "nextra_p3", 4, counts = "extra_info" },
    },
    {
        array = "extra_info",
        { "extra_info", 8 },
    },
    {
        { "connid", 4, when = 15 },
        { "connid.padding", 4, when = 15 },
        { "host_id", 8, when = 0 },
        { "device_version", 4, when = 1 },
        { "device_version.reserved", 4, when = 1 },
        { "user_recv_qp.qpn", 4, when = 2 },
        { "user_recv_qp.qkey", 4, when = 2 },
        { "hmem_p2p.p2p_supported", 1, when = 3 },
        { "hmem_p2p.reserved", 7, when = 3 },
    },
    {
        { "send_id", 4 },
        { "msg_id", 4 },
        { "connid", 4, when = 15 },
        { "padding", 4, unless = 15 },
    },
    {
        { "send_id", 4 },
        { "recv_id", 4 },
        { "connid", 4, when = 15 },
        { "padding", 4, unless = 15 },
    },
    {
        { "op_id", 4 },
        { "ref_kind", 4 },
        { "prov_errno", 4 },
        { "connid", 4, when = 15 },
        { "padding", 4, unless = 15 },
    },
    {
        { "msg_id", 4 },
    },
    {
        { "raw_addr.size", 4, when = 0 },
        { "raw_addr.gid", 16, when = 0 },
        { "raw_addr.qpn", 2, when = 0 },
        { "raw_addr.pad", 2, when = 0 },
        { "raw_addr.connid", 4, when = 0 },
        { "raw_addr.reserved", 8, when = 0 },
        { "raw_addr.surplus", "surplus", when = 0 },
        { "cq_data", 8, when = 1 },
        { "connid", 4, when = 15 },
    },
    {
        { "tag", 8 },
    },
    {
        { "msg_id", 4 },
    },
    {
        { "msg_length", 8 },
        { "seg_offset", 8 },
    },
    {
        { "tag", 8 },
    },
    {
        { "msg_id", 4 },
        { "msg_length", 8 },
        { "send_id", 4 },
        { "credit_request", 4 },
    },
    {
        { "tag", 8 },
    },
    {
        { "rma_iov_count", 4, counts = "rma_iov" },
    },
    {
        array = "rma_iov",
        { "rma_iov.addr", 8 },
        { "rma_iov.len", 8 },
        { "rma_iov.key", 8 },
    },
    {
        { "rma_iov_count", 4, counts = "rma_iov" },
        { "msg_length", 8 },
        { "send_id", 4 },
        { "credit_request", 4 },
    },
    {
        { "rma_iov_count", 4, counts = "rma_iov" },
        { "msg_length", 8 },
        { "recv_id", 4 },
        { "recv_length", 4 },
    },
    {
        { "rma_iov_count", 4, counts = "rma_iov" },
        { "msg_length", 8 },
        { "recv_id", 4 },
        { "recv_length", 4 },
    },
    {
        { "msg_id", 4 },
        { "rma_iov_count", 4, counts = "rma_iov" },
        { "atomic_datatype", 4 },
        { "atomic_op", 4 },
    },
    {
        { "padding", 4 },
    },
    {
        { "msg_id", 4 },
        { "rma_iov_count", 4, counts = "rma_iov" },
        { "atomic_datatype", 4 },
        { "atomic_op", 4 },
    },
    {
        { "recv_id", 4 },
    },
    {
        { "msg_id", 4 },
        { "msg_length", 8 },
        { "send_id", 4 },
        { "read_iov_count", 4, counts = "read_iov" },
    },
    {
        array = "read_iov",
        { "read_iov.addr", 8 },
        { "read_iov.len", 8 },
        { "read_iov.key", 8 },
    },
    {
        { "tag", 8 },
    },
    {
        { "rma_iov_count", 4, counts = "rma_iov" },
        { "msg_length", 8 },
        { "send_id", 4 },
        { "read_iov_count", 4, counts = "read_iov" },
    },
    {
        { "send_id", 4 },
        { "padding", 4 },
    },
    {
        { "msg_id", 4 },
        { "rma_iov_count", 4, counts = "rma_iov" },
        { "atomic_datatype", 4 },
        { "atomic_op", 4 },
    },
    {
        { "send_id", 4 },
    },
    {
        { "msg_id", 4 },
        { "msg_length", 8 },
        { "send_id", 4 },
        { "credit_request", 4 },
        { "seg_offset", 8 },
        { "runt_length", 8 },
    },
    {
        { "tag", 8 },
    },
    {
        { "rma_iov_count", 4, counts = "rma_iov" },
        { "msg_length", 8 },
        { "send_id", 4 },
        { "credit_request", 4 },
        { "seg_offset", 8 },
        { "runt_length", 8 },
    },
    {
        { "msg_id", 4 },
        { "msg_length", 8 },
        { "send_id", 4 },
        { "read_iov_count", 4, counts = "read_iov" },
        { "seg_offset", 8 },
        { "runt_length", 8 },
    },
    {
        { "tag", 8 },
    },
    {
        { "rma_iov_count", 4, counts = "rma_iov" },
        { "msg_length", 8 },
        { "send_id", 4 },
        { "read_iov_count", 4, counts = "read_iov" },
        { "seg_offset", 8 },
        { "runt_length", 8 },
    },
}
local PACKETS = {
    [1] = { name = "RTS", family = "retired", 1, 2 },
    [2] = { name = "CONNACK", family = "retired", 1, 2 },
    [3] = { name = "CTS", family = "control", 1, 3, 2 },
    [4] = { name = "CTSDATA", family = "control", 1, 4, 5 },
    [5] = { name = "READRSP", family = "control", 1, 6, 5 },
    [6] = { name = "RMA_CONTEXT", family = "local", 1, 2 },
    [7] = { name = "EOR", family = "control", 1, 7, 2 },
    [8] = { name = "ATOMRSP", family = "control", 1, 8, 5 },
    [9] = { name = "HANDSHAKE", family = "control", 1, 9, 10, 11, 2 },
    [10] = { name = "RECEIPT", family = "control", 1, 12, 2 },
    [11] = { name = "READ_NACK", family = "control", 1, 13, 2 },
    [12] = { name = "PEER_ERROR", family = "control", 1, 14, 2 },
    [64] = { name = "EAGER_MSGRTM", family = "rtm", 1, 15, 16, 5 },
    [65] = { name = "EAGER_TAGRTM", family = "rtm", tagged = true, 1, 15, 17, 16, 5 },
    [66] = { name = "MEDIUM_MSGRTM", family = "rtm", 1, 18, 19, 16, 5 },
    [67] = { name = "MEDIUM_TAGRTM", family = "rtm", tagged = true, 1, 18, 19, 20, 16, 5 },
    [68] = { name = "LONGCTS_MSGRTM", family = "rtm", 1, 21, 16, 5 },
    [69] = { name = "LONGCTS_TAGRTM", family = "rtm", tagged = true, 1, 21, 22, 16, 5 },
    [70] = { name = "EAGER_RTW", family = "rtw", 1, 23, 24, 16, 5 },
    [71] = { name = "LONGCTS_RTW", family = "rtw", 1, 25, 24, 16, 5 },
    [72] = { name = "SHORT_RTR", family = "rtr", 1, 26, 24, 16, 2 },
    [73] = { name = "LONGCTS_RTR", family = "rtr", 1, 27, 24, 16, 2 },
    [74] = { name = "WRITE_RTA", family = "rta", 1, 28, 29, 24, 16, 5 },
    [75] = { name = "FETCH_RTA", family = "rta", 1, 30, 31, 24, 16, 5 },
    [76] = { name = "COMPARE_RTA", family = "rta", 1, 30, 31, 24, 16, 5 },
    [128] = { name = "LONGREAD_MSGRTM", family = "rtm", 1, 32, 16, 33, 2 },
    [129] = { name = "LONGREAD_TAGRTM", family = "rtm", tagged = true, 1, 32, 34, 16, 33, 2 },
    [130] = { name = "LONGREAD_RTW", family = "rtw", 1, 35, 24, 16, 33, 2 },
    [131] = { name = "READ_RTR", family = "rtr", 1, 16, 2 },
    [133] = { name = "DC_EAGER_MSGRTM", family = "rtm", dc = true, 1, 15, 36, 16, 5 },
    [134] = { name = "DC_EAGER_TAGRTM", family = "rtm", tagged = true, dc = true, 1, 15, 36, 17, 16, 5 },
    [135] = { name = "DC_MEDIUM_MSGRTM", family = "rtm", dc = true, 1, 18, 36, 19, 16, 5 },
    [136] = { name = "DC_MEDIUM_TAGRTM", family = "rtm", tagged = true, dc = true, 1, 18, 36, 19, 20, 16, 5 },
    [137] = { name = "DC_LONGCTS_MSGRTM", family = "rtm", dc = true, 1, 21, 16, 5 },
    [138] = { name = "DC_LONGCTS_TAGRTM", family = "rtm", tagged = true, dc = true, 1, 21, 22, 16, 5 },
    [139] = { name = "DC_EAGER_RTW", family = "rtw", dc = true, 1, 23, 36, 24, 16, 5 },
    [140] = { name = "DC_LONGCTS_RTW", family = "rtw", dc = true, 1, 25, 24, 16, 5 },
    [141] = { name = "DC_WRITE_RTA", family = "rta", dc = true, 1, 37, 38, 24, 16, 5 },
    [142] = { name = "RUNTCTS_MSGRTM", family = "rtm", 1, 39, 16, 5 },
    [143] = { name = "RUNTCTS_TAGRTM", family = "rtm", tagged = true, 1, 39, 40, 16, 5 },
    [144] = { name = "RUNTCTS_RTW", family = "rtw", 1, 41, 24, 16, 5 },
    [145] = { name = "RUNTREAD_MSGRTM", family = "rtm", 1, 42, 16, 33, 5 },
    [146] = { name = "RUNTREAD_TAGRTM", family = "rtm", tagged = true, 1, 42, 43, 16, 33, 5 },
    [147] = { name = "RUNTREAD_RTW", family = "rtw", 1, 44, 24, 16, 33, 5 },
}
-- <<< generated

local efa = Proto("efa", "EFA Emulated Transport")
local efa_rdm = Proto("efa_rdm", "EFA RDM Protocol v4")

local format = string.format
local floor = math.floor

-- ------------------------------------------------------------------------------------------------
-- Fields
-- ------------------------------------------------------------------------------------------------

local EFA = {} -- fields of the transport header by name
local F = {} -- fields of the RDM packet by name

local function efa_field(kind, name, label, ...)
    EFA[name] = ProtoField[kind]("efa." .. name, label, ...)
end

local function rdm_field(kind, name, label, ...)
    F[name] = ProtoField[kind]("efa_rdm." .. name, label, ...)
end

efa_field("string", "magic", "Magic")
efa_field("uint8", "version", "Version")
efa_field("uint8", "opcode", "Opcode", base.DEC, OPCODES)
efa_field("uint16", "flags", "Flags", base.HEX)
efa_field("bool", "flags.immediate", "Immediate present", 16, nil, 0x1)
efa_field("bool", "flags.retransmission", "Retransmission or retry", 16, nil, 0x2)
efa_field("bool", "flags.not_captured", "Payload left out of the capture", 16, nil, 0x4)
efa_field("uint16", "header_length", "Header length")
efa_field("uint16", "source_qpn", "Source QPN")
efa_field("uint16", "destination_qpn", "Destination QPN")
efa_field("uint16", "qpn", "QPN")
efa_field("uint32", "qkey", "Q-key", base.HEX)
efa_field("uint32", "sequence", "Sequence number")
efa_field("uint32", "immediate", "Immediate", base.HEX)
efa_field("uint8", "status", "Status", base.DEC, STATUSES)
efa_field("uint16", "path", "Path")
efa_field("uint32", "payload_length", "Payload length")
efa_field("uint64", "rdma.remote_address", "Remote address", base.HEX)
efa_field("uint32", "rdma.remote_key", "Remote key", base.HEX)
efa_field("uint32", "rdma.total_length", "Total length")
efa_field("uint32", "rdma.offset", "Offset")
efa_field("bytes", "unknown", "Header bytes of a later version")
efa_field("bytes", "data", "Data")
efa_field("string", "source", "Source endpoint")
efa_field("string", "destination", "Destination endpoint")
efa_field("string", "endpoint", "Endpoint")

local LABELS = {
    ["raw_addr.connid"] = "Connection id (Q-key)", ["connid"] = "Connection id",
    ["device_version"] = "Device version (PCI part id)",
    ["extra_info"] = "Extra features and requests", ["nextra_p3"] = "Capability words + 3",
}
local WORDS = {
    addr = "address", cq = "CQ", gid = "GID", hdr = "header", hmem = "accelerator memory",
    info = "information", msg = "message", op = "operation", p2p = "peer-to-peer",
    prov = "provider", qkey = "Q-key", qp = "QP", qpn = "QPN", rdma = "RDMA", recv = "receive",
    rma = "RMA", seg = "segment",
}

local function label_of(name)
    local words = name:match("[^.]*$"):gsub("_", " "):gsub("%w+", WORDS)
    return LABELS[name] or (words:gsub("^%l", string.upper))
end

for _, field in ipairs(FIELDS) do
    local name, kind, description = field[1], field[2], field[3]
    if kind == "bytes" then
        rdm_field(kind, name, label_of(name), base.NONE, description)
    elseif kind == "ipv6" then
        rdm_field(kind, name, label_of(name), description)
    else
        rdm_field(kind, name, label_of(name), field[4], field[5], 0, description)
    end
end

-- The optional parts of a packet and the entries of its arrays are subtrees.
local GROUPS = {
    raw_addr = "Raw address header", user_recv_qp = "User receive QP",
    hmem_p2p = "Accelerator peer-to-peer",
    rma_iov = "RMA iov", read_iov = "Read iov",
}
for name, label in pairs(GROUPS) do
    rdm_field("none", name, label)
end

local FLAG_NAMES = {
    req = REQ_FLAGS, cts = CTS_FLAGS, handshake = HANDSHAKE_FLAGS, universal = UNIVERSAL_FLAGS,
}
for _, names in pairs(FLAG_NAMES) do
    for bit, name in pairs(names) do
        if not F["flags." .. name] then
            rdm_field("bool", "flags." .. name, label_of(name), 16, nil, 2 ^ bit)
        end
    end
end
rdm_field("uint16", "flags.unknown", "Unknown flags", base.HEX)
for bit, name in pairs(FEATURES) do
    rdm_field("bool", "extra_info." .. name, label_of(name), 64, nil, 2 ^ bit)
end
rdm_field("uint32", "data_length", "Data length")
rdm_field("bool", "malformed", "Malformed")

local function values(fields)
    local list = {}
    for _, field in pairs(fields) do
        list[#list + 1] = field
    end
    return list
end
efa.fields = values(EFA)
efa_rdm.fields = values(F)

-- ------------------------------------------------------------------------------------------------
-- Rules: what is wrong with a packet, or worth a look
-- ------------------------------------------------------------------------------------------------

local RULES = {} -- by id: the protocol and the expert info

local function rule(proto, id, group, severity, summary)
    local name = proto == efa and "efa" or "efa_rdm"
    RULES[id] = ProtoExpert.new(name .. ".rule." .. id, summary, group, severity)
end

local MALFORMED, PROTOCOL = expert.group.MALFORMED, expert.group.PROTOCOL
local ERROR, WARN, NOTE = expert.severity.ERROR, expert.severity.WARN, expert.severity.NOTE

rule(efa, "transport_malformed", MALFORMED, ERROR, "The transport header is malformed")
rule(efa, "device_error", PROTOCOL, WARN, "The device reports an error")
rule(efa, "receiver_not_ready", PROTOCOL, NOTE, "The receiver had no buffer")
rule(efa_rdm, "truncated", MALFORMED, ERROR, "The packet ends inside its header")
rule(efa_rdm, "unknown_type", MALFORMED, ERROR, "The packet type is not assigned")
rule(efa_rdm, "retired_type", PROTOCOL, ERROR, "The packet type must not be on the wire")
rule(efa_rdm, "wrong_version", PROTOCOL, ERROR, "The protocol version is not 4")
rule(efa_rdm, "too_many_entries", MALFORMED, ERROR, "An array is longer than receivers can take")
rule(efa_rdm, "short_raw_address", MALFORMED, ERROR, "The raw address header is too short")
rule(efa_rdm, "bad_nextra", MALFORMED, ERROR, "nextra_p3 is less than 3")
rule(efa_rdm, "length_mismatch", MALFORMED, ERROR, "A stated length is not the true one")
rule(efa_rdm, "unknown_flags", PROTOCOL, NOTE, "Flags that the protocol does not define")
rule(efa_rdm, "missing_type_flags", PROTOCOL, WARN, "Flags that every packet of the type has")
rule(efa_rdm, "two_identities", PROTOCOL, NOTE, "Both raw address and connid header")
rule(efa_rdm, "trailing_bytes", PROTOCOL, NOTE, "Bytes behind the end of the packet's format")

local function experts_of(prefix)
    local list = {}
    for id, rule_expert in pairs(RULES) do
        local is_transport = id == "transport_malformed" or id == "device_error"
            or id == "receiver_not_ready"
        if is_transport == (prefix == "efa") then
            list[#list + 1] = rule_expert
        end
    end
    return list
end
efa.experts = experts_of("efa")
efa_rdm.experts = experts_of("efa_rdm")

-- ------------------------------------------------------------------------------------------------
-- Reading packets
-- ------------------------------------------------------------------------------------------------

-- Stock receivers have room for four iovs; the codec bounds the capability words.
local MOST_ENTRIES = { rma_iov = 4, read_iov = 4, extra_info = 0xFFFF }
local RAW_ADDRESS_LENGTH = 32
local PROTOCOL_VERSION = 4
-- How much of a packet is copied into a Lua string at once: more than any header that stock sends.
local HEADER_WINDOW = 512

-- Arithmetic, because Lua 5.2 and 5.4 have no bit operators in common.
local function has_bit(value, bit)
    return floor(value / 2 ^ bit) % 2 == 1
end

local FLAG_NAMES_OF = {
    rtm = REQ_FLAGS, rtw = REQ_FLAGS, rtr = REQ_FLAGS, rta = REQ_FLAGS,
    control = UNIVERSAL_FLAGS, retired = UNIVERSAL_FLAGS, ["local"] = UNIVERSAL_FLAGS,
}
-- Flags that stock libfabric sets on every packet of the family; 1.11.0 relies on them.
local TYPE_FLAGS = { rtm = { 2 }, rta = { 5 } }
local TAGGED_FLAG = 3

for code, packet in pairs(PACKETS) do
    packet.code = code
    packet.is_req = FLAG_NAMES_OF[packet.family] == REQ_FLAGS
    packet.flag_names = FLAG_NAMES_OF[packet.family]
    packet.type_flags = { table.unpack(TYPE_FLAGS[packet.family] or {}) }
    if packet.tagged then
        packet.type_flags[#packet.type_flags + 1] = TAGGED_FLAG
    end
end
PACKETS[3].flag_names = CTS_FLAGS
PACKETS[9].flag_names = HANDSHAKE_FLAGS

-- What a packet of one type with one set of flags consists of. Fields are tables
-- {name, width, group = subtree, counts = array}; an array is a table of fields with `array` set.
--   steps    all of it, in the order of the packet
--   prefix   how many of the steps have the same place in every such packet
--   format   how Struct.unpack reads those, `size` how long they are
--   names    their names
local plans, plan_count = {}, 0
local MOST_PLANS = 4096

local function field_is_present(field, flags)
    if field.when then
        return has_bit(flags, field.when)
    end
    return not field.unless or not has_bit(flags, field.unless)
end

local STRUCT_CODES = { [1] = "B", [2] = "I2", [4] = "I4", [8] = "I8" }

local function group_of(name)
    local group = name:match("^([^.]*)%.")
    return GROUPS[group] and group or nil
end

local function new_plan(packet, flags)
    local plan = { packet = packet, steps = {}, prefix = 0, size = 0, names = {}, offsets = {} }
    local fixed, codes = true, { "<" }
    for _, index in ipairs(packet) do
        local section = SECTIONS[index]
        if section.array then
            plan.steps[#plan.steps + 1] = section
            fixed = false
        else
            for _, field in ipairs(section) do
                if field_is_present(field, flags) then
                    field.group = group_of(field[1])
                    plan.steps[#plan.steps + 1] = field
                    local width = field[2]
                    fixed = fixed and type(width) == "number" and not field.if_room
                    if fixed then
                        plan.prefix = #plan.steps
                        codes[#codes + 1] = STRUCT_CODES[width] or ("c" .. width)
                        plan.names[plan.prefix] = field[1]
                        plan.offsets[field[1]] = plan.size
                        plan.size = plan.size + width
                    end
                end
            end
        end
    end
    plan.format = table.concat(codes)
    plan.unknown_flags = 0
    for bit = 0, 15 do
        if has_bit(flags, bit) and not packet.flag_names[bit] then
            plan.unknown_flags = plan.unknown_flags + 2 ^ bit
        end
    end
    return plan
end

local function plan_of(packet, flags)
    local key = packet.code * 65536 + flags
    local plan = plans[key]
    if not plan then
        if plan_count == MOST_PLANS then
            plans, plan_count = {}, 0
        end
        plan = new_plan(packet, flags)
        plans[key] = plan
        plan_count = plan_count + 1
    end
    return plan
end

-- A packet that has been read: `p[name]` is a field's value if it is a number (64-bit values lose
-- precision beyond 2^53, so they are for arithmetic and not for showing), `p.issues` what is wrong.
local function issue(p, id, text)
    p.issues = p.issues or {}
    p.issues[#p.issues + 1] = { RULES[id], text }
end

local function number_at(p, offset, width)
    if offset + width <= #p.raw then
        return (Struct.unpack("<" .. STRUCT_CODES[width], p.raw, offset + 1))
    end
    local range = p.tvb(offset, width)
    if width == 8 then
        return range:le_uint64():tonumber()
    end
    return range:le_uint()
end

local function is_truncated(p, name, offset, width)
    if offset + width <= p.length then
        return false
    end
    issue(p, "truncated", format("%s: field %s at byte %d needs %.0f bytes, but the packet ends after %d",
        p.name, name, offset, width, p.length - offset))
    return true
end

-- Calls `add(field, offset, width, index)` for each field, in the order of the packet.
-- Returns the offset behind the last one.
local function walk(p, plan, add)
    local steps, offset, first = plan.steps, 0, 1
    local counts = {}
    if p.length >= plan.size and plan.size <= #p.raw then
        local values_read = { Struct.unpack(plan.format, p.raw) }
        local names = plan.names
        for i = 1, plan.prefix do
            p[names[i]] = values_read[i]
        end
        if add then
            for i = 1, plan.prefix do
                local field = steps[i]
                add(field, offset, field[2])
                offset = offset + field[2]
            end
        end
        for i = 1, plan.prefix do
            local counted = steps[i].counts
            if counted then
                counts[counted] = values_read[i]
            end
        end
        offset, first = plan.size, plan.prefix + 1
    end
    for i = first, #steps do
        local step = steps[i]
        if step.array then
            local count = counts[step.array] or 0
            if step.array == "extra_info" then
                if count < 3 then
                    issue(p, "bad_nextra", format("nextra_p3 is %.0f: the number of words plus 3", count))
                    p.malformed = true
                end
                count = math.max(count - 3, 0)
            end
            if count > MOST_ENTRIES[step.array] then
                issue(p, "too_many_entries", format("%.0f entries of %s, but at most %d are allowed",
                    count, step.array, MOST_ENTRIES[step.array]))
                p.malformed = true
            end
            p[step.array] = {}
            for index = 0, count - 1 do
                local entry = {}
                for _, field in ipairs(step) do
                    if is_truncated(p, format("%s[%d]", step.array, index), offset, field[2]) then
                        return offset
                    end
                    entry[field[1]] = number_at(p, offset, field[2])
                    if add then
                        add(field, offset, field[2], index)
                    end
                    offset = offset + field[2]
                end
                if index < 64 then
                    p[step.array][index + 1] = entry
                end
            end
        else
            local name, width = step[1], step[2]
            local present = true
            if width == "surplus" then
                width = math.max((p["raw_addr.size"] or 0) - RAW_ADDRESS_LENGTH, 0)
                present = width > 0
            elseif width == "rest" then
                width = p.length - offset
                present = width > 0
            elseif step.if_room then
                present = p.length - offset >= width
            end
            if present then
                if is_truncated(p, name, offset, width) then
                    return offset
                end
                if STRUCT_CODES[width] and step[2] == width then
                    local value = number_at(p, offset, width)
                    p[name] = value
                    if step.counts then
                        counts[step.counts] = value
                    end
                end
                if step[2] == "rest" then
                    p[name .. "_offset"], p[name .. "_length"] = offset, width
                end
                if add then
                    add(step, offset, width)
                end
                offset = offset + width
            end
        end
    end
    return offset
end

local function iov_total(iovs, name)
    local total = 0
    for _, entry in ipairs(iovs or {}) do
        total = total + entry[name .. ".len"]
    end
    return total
end

-- What can be judged from the packet alone.
local function check(p, plan)
    local packet, flags = plan.packet, p.flags
    if plan.unknown_flags > 0 then
        issue(p, "unknown_flags", format("flags 0x%04x are not defined for %s", plan.unknown_flags, p.name))
    end
    for _, bit in ipairs(packet.type_flags) do
        if not has_bit(flags, bit) then
            issue(p, "missing_type_flags", format("every %s has the flag %s, and libfabric 1.11.0 relies on it",
                p.name, REQ_FLAGS[bit]))
        end
    end
    if packet.is_req and has_bit(flags, 0) and has_bit(flags, 15) then
        issue(p, "two_identities", "stock libfabric sends either the raw address or the connid, never both")
    end
    local size = p["raw_addr.size"]
    if size and size < RAW_ADDRESS_LENGTH then
        issue(p, "short_raw_address", format("raw address of %.0f bytes, but it has at least %d",
            size, RAW_ADDRESS_LENGTH))
        p.malformed = true
    end
    if p.trailing_length then
        issue(p, "trailing_bytes", format("%d bytes behind the end of %s", p.trailing_length, p.name))
    end
    p.data_length = p.data_length or 0
    if not p.cut and p.seg_length and p.seg_length ~= p.data_length then
        issue(p, "length_mismatch", format("seg_length is %.0f, but %d bytes of data follow",
            p.seg_length, p.data_length))
        p.malformed = true
    end
    if not p.cut and (p.code == 70 or p.code == 139) then
        local total = iov_total(p.rma_iov, "rma_iov")
        if total ~= p.data_length then
            issue(p, "length_mismatch", format("the RMA iovs are %.0f bytes long, but %d bytes of data follow",
                total, p.data_length))
        end
    end
end

-- Reads an RDM packet. With `add`, its fields are shown as they are read.
local function read_packet(tvb, make_add)
    local length = tvb:len()
    local p = { tvb = tvb, length = length, cut = tvb:reported_len() > length }
    p.raw = tvb:raw(0, math.min(length, HEADER_WINDOW))
    p.code = length > 0 and p.raw:byte(1) or nil
    local packet = PACKETS[p.code]
    if not packet then
        p.name = p.code and format("type %d", p.code) or "empty packet"
        issue(p, p.code and "unknown_type" or "truncated",
            p.code and format("packet type %d is not assigned", p.code) or "the packet is empty")
        p.malformed = true
        return p
    end
    p.name, p.packet = packet.name, packet
    local flags = length >= 4 and p.raw:byte(3) + 256 * p.raw:byte(4) or 0
    p.flags = flags
    local plan = plan_of(packet, flags)
    p.plan = plan
    walk(p, plan, make_add and make_add(p))
    p.flags = flags
    if p.version and p.version ~= PROTOCOL_VERSION then
        issue(p, "wrong_version", format("version %d, but only %d is known", p.version, PROTOCOL_VERSION))
        p.malformed = true
    end
    if packet.family == "retired" or packet.family == "local" then
        issue(p, "retired_type", p.name .. " must not be on the wire")
        p.malformed = true
    end
    if p.issues and p.issues[#p.issues][1] == RULES.truncated then
        p.malformed = true
    end
    check(p, plan)
    return p
end

-- ------------------------------------------------------------------------------------------------
-- Showing packets
-- ------------------------------------------------------------------------------------------------

local function hex64(tvb, offset)
    return "0x" .. tvb(offset, 8):le_uint64():tohex():gsub("^0+(%x)", "%1")
end

local INFO_FIELDS = {
    { "msg_id", "msg_id" }, { "send_id", "send_id" }, { "recv_id", "recv_id" },
    { "seg_offset", "offset" }, { "runt_length", "runt" }, { "recv_length", "window" },
    { "rma_iov_count", "rma_iov" }, { "read_iov_count", "read_iov" },
}

-- The line in the packet list: the type, what identifies the operation, and its length.
local function summary(p)
    if not p.packet then
        return p.name
    end
    local parts = { p.name }
    for _, field in ipairs(INFO_FIELDS) do
        local value = p[field[1]]
        if value then
            parts[#parts + 1] = format("%s=%.0f", field[2], value)
        end
        if field[1] == "msg_id" and p.tag then
            parts[#parts + 1] = "tag=" .. hex64(p.tvb, p.plan.offsets.tag)
        end
    end
    if p.atomic_op then
        parts[#parts + 1] = format("%s %s", ATOMIC_OPS[p.atomic_op] or p.atomic_op,
            DATATYPES[p.atomic_datatype] or p.atomic_datatype or "?")
    end
    if p.code == 9 and p.extra_info and p.extra_info[1] then
        parts[#parts + 1] = format("features=0x%x", p.extra_info[1].extra_info)
    end
    if p.device_version then
        parts[#parts + 1] = format("device=0x%x", p.device_version)
    end
    if p.msg_length then
        parts[#parts + 1] = format("len=%.0f", p.msg_length)
    end
    local of_segment = p.msg_length or p.packet.family == "control"
    if p.data_length and p.data_length > 0 or not p.msg_length and p.packet.family == "rtm" then
        parts[#parts + 1] = format(of_segment and "data=%d" or "len=%d", p.data_length or 0)
    end
    if p.malformed then
        parts[#parts + 1] = "[malformed]"
    end
    return table.concat(parts, " ")
end

local function add_flag_bits(item, range, names, unknown)
    for bit = 15, 0, -1 do
        if names[bit] then
            item:add_le(F["flags." .. names[bit]], range)
        end
    end
    if unknown > 0 then
        item:add(F["flags.unknown"], range, unknown):set_generated()
    end
end

local function add_feature_bits(item, range)
    for bit = 0, 63 do
        if FEATURES[bit] then
            item:add_le(F["extra_info." .. FEATURES[bit]], range)
        end
    end
end

local KINDS = {}
for _, field in ipairs(FIELDS) do
    KINDS[field[1]] = field[2]
end

-- The function that `walk` calls to put the fields of a packet into the tree.
local function tree_adder(p, tvb, tree)
    local group, group_index, group_item, group_start
    return function(field, offset, width, index)
        local name, parent = field[1], tree
        local wanted = group_of(name)
        if wanted then
            if group ~= wanted or group_index ~= index then
                group, group_index, group_start = wanted, index, offset
                group_item = tree:add(F[wanted], tvb(offset, width))
                if index then
                    group_item:append_text(format(" %d", index))
                end
            end
            group_item:set_len(offset + width - group_start)
            parent = group_item
        end
        local range, kind = tvb(offset, width), KINDS[name]
        if kind == "bytes" or kind == "ipv6" then
            parent:add(F[name], range)
            return
        end
        local item = parent:add_le(F[name], range)
        if name == "flags" then
            add_flag_bits(item, range, p.packet.flag_names, p.plan.unknown_flags)
        elseif name == "extra_info" and index == 0 then
            add_feature_bits(item, range)
        end
    end
end

-- ------------------------------------------------------------------------------------------------
-- The dissectors
-- ------------------------------------------------------------------------------------------------

local OPCODE = {}
for code, name in pairs(OPCODES) do
    OPCODE[name] = code
end
local HAS_RDMA = {
    [OPCODE.RDMA_READ_REQUEST] = true, [OPCODE.RDMA_READ_RESPONSE] = true,
    [OPCODE.RDMA_WRITE] = true,
}
local STATUS_OK, STATUS_RNR = 0, 10

local function show_issues(item, issues)
    for _, found in ipairs(issues or {}) do
        item:add_proto_expert_info(found[1], found[2])
    end
end

-- Nobody looks at the tree of most packets when a capture is loaded, and building it is most of
-- the work.
local rdm_handle, efa_handle -- set below, when the dissectors exist
local function is_tree_wanted(tree, handle)
    return tree.visible or tree:referenced(handle)
end

function efa_rdm.dissector(tvb, pinfo, tree)
    local length = tvb:len()
    local item = tree:add(efa_rdm, tvb())
    local wanted = is_tree_wanted(tree, rdm_handle)
    local p = read_packet(tvb, wanted and function(p) return tree_adder(p, tvb, item) end)
    local text = summary(p)
    if wanted then
        item:set_text("EFA RDM Protocol v4, " .. text)
        item:add(F.data_length, p.data_length or 0):set_generated()
        if p.malformed then
            item:add(F.malformed, true):set_generated()
        end
    end
    show_issues(item, p.issues)
    pinfo.cols.protocol:set("EFA RDM")
    pinfo.cols.info:set(text)
    return length
end

-- Reads a transport header; nil and the reason if the bytes are none.
local function read_header(tvb)
    local length = tvb:len()
    if length < HEADER_LENGTH then
        return nil, format("%d bytes, but the transport header has at least %d", length, HEADER_LENGTH)
    end
    local h = {}
    local raw = tvb:raw(0, math.min(length, RDMA_HEADER_LENGTH))
    local m1, m2
    m1, m2, h.version, h.opcode, h.flags, h.header_length, h.source_qpn, h.destination_qpn, h.qkey,
        h.sequence, h.immediate, h.status, h.reserved, h.path, h.payload_length =
        Struct.unpack("<BBBBI2I2I2I2I4I4I4BBI2I4", raw)
    if m1 ~= 0x45 or m2 ~= 0x46 then
        return nil, format("magic is %02x %02x, not 45 46", m1, m2)
    end
    if h.version ~= 1 then
        return nil, format("version %d, but only 1 is known", h.version)
    end
    if not OPCODES[h.opcode] then
        return nil, format("opcode %d is not assigned", h.opcode)
    end
    local needed = HAS_RDMA[h.opcode] and RDMA_HEADER_LENGTH or HEADER_LENGTH
    if h.header_length < needed then
        return nil, format("header length %d, but %s needs %d", h.header_length, OPCODES[h.opcode], needed)
    end
    if h.header_length > length then
        return nil, format("header length %d, but there are %d bytes", h.header_length, length)
    end
    h.has_immediate, h.retransmission, h.not_captured =
        has_bit(h.flags, 0), has_bit(h.flags, 1), has_bit(h.flags, 2)
    if HAS_RDMA[h.opcode] then
        h.remote_key, h.total_length, h.offset = Struct.unpack("<I4I4I4", raw, 41)
    end
    h.data_length = tvb:reported_len() - h.header_length
    local announced = h.not_captured and 0 or h.payload_length
    if announced ~= h.data_length then
        h.issues = { { RULES.transport_malformed, format(
            "payload length is %.0f, but the frame has %d bytes of data", announced, h.data_length) } }
    end
    return h
end

local function header_summary(h)
    local parts = { OPCODES[h.opcode] }
    if h.opcode == OPCODE.RESPONSE then
        parts[2] = STATUSES[h.status] or format("status %d", h.status)
    elseif HAS_RDMA[h.opcode] then
        parts[2] = format("key=0x%x offset=%.0f len=%.0f of %.0f", h.remote_key, h.offset,
            h.payload_length, h.total_length)
    else
        parts[2] = format("len=%.0f", h.payload_length)
    end
    if h.has_immediate then
        parts[#parts + 1] = format("imm=0x%x", h.immediate)
    end
    return table.concat(parts, " ")
end

local function show_header(tvb, tree, h)
    tree:add(EFA["magic"], tvb(0, 2))
    tree:add(EFA["version"], tvb(2, 1))
    tree:add(EFA["opcode"], tvb(3, 1))
    local flags = tree:add_le(EFA["flags"], tvb(4, 2))
    flags:add_le(EFA["flags.immediate"], tvb(4, 2))
    flags:add_le(EFA["flags.retransmission"], tvb(4, 2))
    flags:add_le(EFA["flags.not_captured"], tvb(4, 2))
    tree:add_le(EFA["header_length"], tvb(6, 2))
    tree:add_le(EFA["source_qpn"], tvb(8, 2))
    tree:add_le(EFA["destination_qpn"], tvb(10, 2))
    tree:add_le(EFA["qpn"], tvb(8, 2)):set_hidden()
    tree:add_le(EFA["qpn"], tvb(10, 2)):set_hidden()
    tree:add_le(EFA["qkey"], tvb(12, 4))
    tree:add_le(EFA["sequence"], tvb(16, 4))
    if h.has_immediate then
        tree:add_le(EFA["immediate"], tvb(20, 4))
    end
    if h.opcode == OPCODE.RESPONSE then
        local item = tree:add(EFA["status"], tvb(24, 1))
        if STATUS_MEANINGS[h.status] then
            item:append_text(": " .. STATUS_MEANINGS[h.status])
        end
    end
    tree:add_le(EFA["path"], tvb(26, 2))
    tree:add_le(EFA["payload_length"], tvb(28, 4))
    local shown = HEADER_LENGTH
    if HAS_RDMA[h.opcode] then
        tree:add_le(EFA["rdma.remote_address"], tvb(32, 8))
        tree:add_le(EFA["rdma.remote_key"], tvb(40, 4))
        tree:add_le(EFA["rdma.total_length"], tvb(44, 4))
        tree:add_le(EFA["rdma.offset"], tvb(48, 4))
        shown = RDMA_HEADER_LENGTH
    end
    if h.header_length > shown then
        tree:add(EFA["unknown"], tvb(shown, h.header_length - shown))
    end
end

local function show_endpoints(tree, pinfo, h)
    local source = format("[%s]:%d", tostring(pinfo.src), h.source_qpn)
    local destination = format("[%s]:%d", tostring(pinfo.dst), h.destination_qpn)
    tree:add(EFA["source"], source):set_generated()
    tree:add(EFA["destination"], destination):set_generated()
    local either = tree:add(EFA["endpoint"], source)
    either:set_generated()
    either:set_hidden()
    either = tree:add(EFA["endpoint"], destination)
    either:set_generated()
    either:set_hidden()
end

function efa.dissector(tvb, pinfo, tree)
    local length = tvb:len()
    local h, reason = read_header(tvb)
    pinfo.cols.protocol:set("EFA")
    if not h then
        local item = tree:add(efa, tvb())
        show_issues(item, { { RULES.transport_malformed, reason } })
        pinfo.cols.info:set("[malformed] " .. reason)
        return length
    end
    local item = tree:add(efa, tvb(0, h.header_length))
    local text = header_summary(h)
    if is_tree_wanted(tree, efa_handle) then
        item:set_text("EFA Emulated Transport v1, " .. text)
        show_header(tvb, item, h)
        show_endpoints(item, pinfo, h)
    end
    if h.opcode == OPCODE.RESPONSE and h.status ~= STATUS_OK then
        local id = h.status == STATUS_RNR and "receiver_not_ready" or "device_error"
        h.issues = h.issues or {}
        h.issues[#h.issues + 1] = { RULES[id], STATUS_MEANINGS[h.status]
            or format("completion status %d", h.status) }
    end
    show_issues(item, h.issues)
    pinfo.cols.info:set(text)
    if length > h.header_length then
        local data = tvb(h.header_length)
        if h.opcode == OPCODE.SEND then
            rdm_handle:call(data:tvb(), pinfo, tree)
        else
            item:add(EFA["data"], data)
        end
    elseif h.opcode == OPCODE.SEND then
        pinfo.cols.info:set(text .. (h.not_captured and " (payload not captured)" or ""))
    end
    if h.retransmission then
        pinfo.cols.info:prepend("[retry] ")
    end
    return length
end

efa_handle = Dissector.get("efa")
rdm_handle = Dissector.get("efa_rdm")

local udp_ports = DissectorTable.get("udp.port")
udp_ports:add(UDP_PORT, efa)
udp_ports:add_for_decode_as(efa)
udp_ports:add_for_decode_as(efa_rdm)

-- Takes a UDP datagram of any port for ours only if everything in its header fits together.
efa:register_heuristic("udp", function(tvb, pinfo, tree)
    local h = read_header(tvb)
    if not h or h.issues or h.reserved ~= 0 or h.flags >= 8 then
        return false
    end
    local shortest = HAS_RDMA[h.opcode] and RDMA_HEADER_LENGTH or HEADER_LENGTH
    if h.header_length ~= shortest or (h.opcode ~= OPCODE.RESPONSE and h.status ~= 0) then
        return false
    end
    efa.dissector(tvb, pinfo, tree)
    return true
end)
