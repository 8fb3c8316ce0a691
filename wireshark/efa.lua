-- Wireshark dissector for the EFA RDM protocol v4 and for the emulated wire that carries it.
--
-- Three protocols: `efa`, the transport header of the emulated network (docs/wire-format.md),
-- `efa_rdm`, the packets of the RDM protocol, and `efa_tm`, tag matching over RoCE v2. Runs on Lua
-- 5.2 (Wireshark 3.4 to 4.2) and Lua 5.4 (Wireshark 4.4). Install it with `efa-emu wireshark
-- install`, or load it once with `tshark -X lua_script:wireshark/efa.lua`; docs/wireshark.md
-- describes its use.
--
-- In this order: tables of the protocol, fields, rules, reading packets, following transfers,
-- showing packets, the two dissectors, tag matching, statistics.

local _, loaded_already = pcall(Dissector.get, "efa") -- an error, or nil, if there is none
if type(loaded_already) == "userdata" then
    error("the EFA dissector is loaded already: leave out -X lua_script, or remove the installed efa.lua "
        .. "(tshark -G folders names the directory of personal Lua plugins)", 0)
end

set_plugin_info({
    version = "0.1.0",
    author = "The efa-emu authors",
    description = "EFA RDM protocol v4 over the emulated EFA wire",
})

-- >>> generated from efa_core::wire and efa_capture::frame, do not edit
local PROTOCOL_VERSION = 4
local RAW_ADDRESS_LENGTH = 32
-- The excess of a count over the number of entries, and the most entries that are accepted.
local ARRAYS = {
    rma_iov = { bias = 0, most = 4 },
    read_iov = { bias = 0, most = 4 },
    extra_info = { bias = 3, most = 65535 },
}
local UDP_PORT = 61344
local MAGIC = "EF"
local HEADER_VERSION = 1
local FIRST_TAPPED = 2147483648
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
local HAS_RDMA = { [2] = true, [3] = true, [4] = true }
local IS_ANSWER = { [3] = true, [5] = true }
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
-- {bit, name, description}
local HEADER_FLAGS = {
    { 0, "immediate", "the immediate field is meaningful. An RDMA write carries it in its last frame" },
    { 1, "retransmission", "sent again: after a loss, or after the receiver was not ready" },
    { 2, "not_captured", "the data was left out of the capture; nothing follows the header" },
}
-- {name, kind of ProtoField, description, base and value strings; at = offset, bytes;
-- flag = bit that it needs, opcode = the only one that it is for, hidden = without meaning}
local HEADER_FIELDS = {
    { "magic", "string", "the bytes `45 46`, \"EF\"", at = 0, bytes = 2 },
    { "version", "uint8", "version of the format, 1", base.DEC, at = 2, bytes = 1 },
    { "opcode", "uint8", "what the frame is", base.DEC, OPCODES, at = 3, bytes = 1 },
    { "flags", "uint16", "the flags below", base.HEX, at = 4, bytes = 2 },
    { "header_length", "uint16", "bytes of the header: 32, or 56 with the RDMA extension", base.DEC, at = 6, bytes = 2 },
    { "source_qpn", "uint16", "queue pair of the sender of this frame", base.DEC, at = 8, bytes = 2 },
    { "destination_qpn", "uint16", "queue pair of the receiver of this frame", base.DEC, at = 10, bytes = 2 },
    { "qkey", "uint32", "Q-key of the request; answers repeat it", base.HEX, at = 12, bytes = 4 },
    { "sequence", "uint32", "counts the requests of the initiating queue pair from 0, wraps; answers and retries repeat it. In what a tap saw arrive, a number of its own, from 0x80000000 on: a receiver's device does not tell the sender's", base.DEC, at = 16, bytes = 4 },
    { "immediate", "uint32", "data for the receiver's completion", base.HEX, at = 20, bytes = 4, flag = 0 },
    { "status", "uint8", "the EFA completion status of the request", base.DEC, STATUSES, at = 24, bytes = 1, opcode = 5 },
    { "reserved", "uint8", "0", base.DEC, at = 25, bytes = 1, hidden = true },
    { "path", "uint16", "number of the path through the network", base.DEC, at = 26, bytes = 2 },
    { "payload_length", "uint32", "bytes of data of this frame, whether or not they were captured", base.DEC, at = 28, bytes = 4 },
}
local RDMA_FIELDS = {
    { "rdma.remote_address", "uint64", "first byte of the responder's memory, for the whole operation", base.HEX, at = 32, bytes = 8 },
    { "rdma.remote_key", "uint32", "key of that memory", base.HEX, at = 40, bytes = 4 },
    { "rdma.total_length", "uint32", "bytes of the whole operation", base.DEC, at = 44, bytes = 4 },
    { "rdma.offset", "uint32", "where in the operation this frame's data begins", base.DEC, at = 48, bytes = 4 },
    { "rdma.reserved", "uint32", "0", base.DEC, at = 52, bytes = 4, hidden = true },
}
local function unpack_header(h, raw)
    h.magic, h.version, h.opcode, h.flags, h.header_length, h.source_qpn, h.destination_qpn, h.qkey, h.sequence, h.immediate, h.status, h.reserved, h.path, h.payload_length =
        Struct.unpack("<c2BBI2I2I2I2I4I4I4BBI2I4", raw, 1)
end
local function unpack_rdma_header(h, raw)
    h.rdma_remote_address, h.rdma_remote_key, h.rdma_total_length, h.rdma_offset, h.rdma_reserved =
        Struct.unpack("<I8I4I4I4I4", raw, 33)
end
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
local OPE_TYPES = {
    [1] = "TXE",
    [2] = "RXE",
}
local NO_OPERATION = 2147483647
local PROVIDER_ERRORS = {
    [0] = "NONE",
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
    [4097] = "DEPRECATED_PACKET_TYPE",
    [4098] = "INVALID_PACKET_TYPE",
    [4099] = "UNKNOWN_PACKET_TYPE",
    [4100] = "PACKET_POST",
    [4101] = "PACKET_SEND",
    [4102] = "MESSAGE_PROCESSING",
    [4103] = "TAGGED_PROCESSING",
    [4104] = "PACKET_ALREADY_PROCESSED",
    [4105] = "OUT_OF_MEMORY",
    [4106] = "DEREGISTRATION",
    [4107] = "RECEIVE_COPY",
    [4108] = "RECEIVE_POOL_EXHAUSTED",
    [4109] = "SEND_POOL_EXHAUSTED",
    [4110] = "ADDRESS_INSERTION",
    [4111] = "RMA_ADDRESS",
    [4112] = "RECEIVE_POST",
    [4113] = "HANDSHAKE",
    [4115] = "REQUEST_SIZE_MISMATCH",
    [4117] = "RDMA_READ_POST",
    [4118] = "INVALID_DATATYPE",
    [4124] = "ESTABLISHED_UNRESPONSIVE",
    [4125] = "HEADER_AT_ZERO_COPY_RECEIVER",
    [4126] = "UNESTABLISHED_UNRESPONSIVE",
    [4127] = "PEER_ABORTED",
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
    { "atomic_datatype", "uint32", "enum fi_datatype of libfabric (spec section 3.3, table 3.13, 3.14)", base.DEC, DATATYPES },
    { "atomic_op", "uint32", "enum fi_op of libfabric (spec section 3.3, table 3.13, 3.14)", base.DEC, ATOMIC_OPS },
    { "connid", "uint32", "connection id of the sender (spec section 3.2, table 3.6)", base.HEX },
    { "connid.padding", "bytes", "without meaning; senders may leave anything in it (spec section 2.1, table 2.2)" },
    { "cq_data", "uint64", "data for the completion at the target (spec section 3.1)", base.HEX },
    { "credit_request", "uint32", "data packets that the sender would like to send (spec section 3.2, table 3.5)", base.DEC },
    { "data", "bytes", "application data (spec section 3.1)" },
    { "device_version", "uint32", "PCI part id of the sender's device (spec section 2.1, table 2.2)", base.HEX },
    { "device_version.reserved", "bytes", "without meaning; senders may leave anything in it (spec section 2.1, table 2.2)" },
    { "emitter_ope_type", "uint32", "side of the message that sends this packet: 1 sends the data, 2 receives it (not in the spec, stock libfabric since 2.7.0)", base.DEC, OPE_TYPES },
    { "extra_info", "uint64", "extra features and requests, 64 in each word (spec section 2.1, table 2.2)", base.HEX },
    { "flags", "uint16", "optional parts of the packet and what it is used for (spec section 1.3, table 1.3)", base.HEX },
    { "hmem_p2p.p2p_supported", "uint8", "1 if the sender's device reaches its accelerators' memory (not in the spec, stock libfabric since 2.7.0)", base.DEC },
    { "hmem_p2p.reserved", "bytes", "without meaning; senders may leave anything in it (not in the spec, stock libfabric since 2.7.0)" },
    { "host_id", "uint64", "identifies the sender's host (spec section 2.1, table 2.2)", base.HEX },
    { "msg_id", "uint32", "message, 0 for a write or an atomic (spec section 4.2)", base.DEC },
    { "msg_length", "uint64", "length of the whole message (seg_length in the table, but stock sends the total) (spec section 3.2, table 3.4)", base.DEC },
    { "nextra_p3", "uint32", "number of extra_info words plus 3 (spec section 2.1, table 2.2)", base.DEC },
    { "op_id", "uint32", "operation of the message at the receiver of this packet; 0x7fffffff if not known (not in the spec, stock libfabric since 2.7.0)", base.DEC },
    { "op_id_valid", "uint32", "whether op_id is known (in no release, development states of stock libfabric of August 2026)", base.DEC },
    { "padding", "bytes", "without meaning; senders may leave anything in it (spec section 3.2, table 3.6)" },
    { "prov_errno", "uint32", "why: a device status, or from 4096 on a number of libfabric's own (not in the spec, stock libfabric since 2.7.0)", base.DEC, PROVIDER_ERRORS },
    { "raw_addr.connid", "uint32", "connection id of the sender, which is its Q-key (spec section 1.4, table 1.5)", base.HEX },
    { "raw_addr.gid", "ipv6", "GID of the sender's device (spec section 1.4, table 1.5)" },
    { "raw_addr.pad", "bytes", "without meaning; senders may leave anything in it (spec section 1.4, table 1.5)" },
    { "raw_addr.qpn", "uint16", "queue pair number of the sender (spec section 1.4, table 1.5)", base.DEC },
    { "raw_addr.reserved", "bytes", "without meaning; senders may leave anything in it (spec section 1.4, table 1.5)" },
    { "raw_addr.size", "uint32", "bytes of the address that follow: 32, or 36 from stock libfabric since 1.13.0 (spec section 3.1, table 3.2)", base.DEC },
    { "raw_addr.surplus", "bytes", "what the size has beyond the 32 bytes of the address; not interpreted (spec section 3.1, table 3.2)" },
    { "read_iov.addr", "uint64", "virtual address in the memory of the owner (spec section 4.1)", base.HEX },
    { "read_iov.key", "uint64", "the owner's remote key (spec section 4.1)", base.HEX },
    { "read_iov.len", "uint64", "length in bytes (spec section 4.1)", base.DEC },
    { "read_iov_count", "uint32", "number of read_iov entries, at most 4 (spec section 4.1, table 4.1)", base.DEC },
    { "recv_id", "uint32", "operation of the data's receiver, for CTSDATA (spec section 3.2, table 3.6)", base.DEC },
    { "recv_length", "uint64", "bytes that the receiver is ready to receive (spec section 3.2, table 3.6)", base.DEC },
    { "ref_kind", "uint32", "what op_id is: 0 an operation of the receiver, 1 a message, 2 a message that never comes (in no release, development states of stock libfabric of July and August 2026)", base.DEC },
    { "reserved", "bytes", "without meaning; senders may leave anything in it (spec section 3.3, table 3.15)" },
    { "rma_iov.addr", "uint64", "virtual address in the memory of the owner (spec section 3.3)", base.HEX },
    { "rma_iov.key", "uint64", "the owner's remote key (spec section 3.3)", base.HEX },
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
    { { "type", 1 }, { "version", 1 }, { "flags", 2 } },
    { { "trailing", "rest" } },
    { { "connid", 4, when = 15 }, { "padding", 4, unless = 15 } },
    { { "send_id", 4 } },
    { { "recv_id", 4 } },
    { { "recv_length", 8 } },
    { { "seg_length", 8 } },
    { { "seg_offset", 8 } },
    { { "connid", 4, when = 15 }, { "padding", 4, when = 15 } },
    { { "data", "rest" } },
    { { "connid", 4, when = 15 }, { "padding", 4, unless = 15, if_room = true } },
    { { "reserved", 4 } },
    { { "nextra_p3", 4, counts = "extra_info" } },
    { array = "extra_info", { "extra_info", 8 } },
    { { "connid", 4, when = 15 }, { "connid.padding", 4, when = 15 } },
    { { "host_id", 8, when = 0 } },
    { { "device_version", 4, when = 1 }, { "device_version.reserved", 4, when = 1 } },
    { { "user_recv_qp.qpn", 4, when = 2 } },
    { { "user_recv_qp.qkey", 4, when = 2 } },
    { { "hmem_p2p.p2p_supported", 1, when = 3 }, { "hmem_p2p.reserved", 7, when = 3 } },
    { { "msg_id", 4 } },
    { { "op_id", 4 } },
    { { "emitter_ope_type", 4 } },
    { { "prov_errno", 4 } },
    { { "ref_kind", 4 } },
    { { "op_id_valid", 4 } },
    { { "raw_addr.size", 4, when = 0 } },
    { { "raw_addr.gid", 16, when = 0 }, { "raw_addr.qpn", 2, when = 0 }, { "raw_addr.pad", 2, when = 0 }, { "raw_addr.connid", 4, when = 0 }, { "raw_addr.reserved", 8, when = 0 } },
    { { "raw_addr.surplus", "surplus", when = 0 } },
    { { "cq_data", 8, when = 1 } },
    { { "connid", 4, when = 15 } },
    { { "tag", 8 } },
    { { "msg_length", 8 } },
    { { "credit_request", 4 } },
    { { "rma_iov_count", 4, counts = "rma_iov" } },
    { array = "rma_iov", { "rma_iov.addr", 8 }, { "rma_iov.len", 8 }, { "rma_iov.key", 8 } },
    { { "recv_length", 4 } },
    { { "atomic_datatype", 4 } },
    { { "atomic_op", 4 } },
    { { "padding", 4 } },
    { { "read_iov_count", 4, counts = "read_iov" } },
    { array = "read_iov", { "read_iov.addr", 8 }, { "read_iov.len", 8 }, { "read_iov.key", 8 } },
    { { "send_id", 4 }, { "padding", 4 } },
    { { "runt_length", 8 } },
}
-- {flag_names: of its flags; length: of all packets; forms: that no release sends, by length; is_req, tagged, dc (delivery complete); segment: several make up one
-- message; read: the receiver reads by RDMA; windowed: the rest goes in windows that CTS grants;
-- message: the fields with its numbers; formless: must not be on the wire; unsent: no release sends or receives it; starts: what a request
-- begins; implies, excludes = bits of the flags that all and none have; needs = bits of the features of which the
-- receiver must have announced one; numbers of the sections}
local PACKETS = {
    [1] = { name = "RTS", family = "retired", flag_names = UNIVERSAL_FLAGS, formless = true, excludes = { 2, 3, 4, 5, 13 }, 1, 2 },
    [2] = { name = "CONNACK", family = "retired", flag_names = UNIVERSAL_FLAGS, formless = true, excludes = { 2, 3, 4, 5, 13 }, 1, 2 },
    [3] = { name = "CTS", family = "control", flag_names = CTS_FLAGS, 1, 3, 4, 5, 6, 2 },
    [4] = { name = "CTSDATA", family = "control", flag_names = UNIVERSAL_FLAGS, 1, 5, 7, 8, 9, 10 },
    [5] = { name = "READRSP", family = "control", flag_names = UNIVERSAL_FLAGS, 1, 3, 5, 4, 7, 10 },
    [6] = { name = "RMA_CONTEXT", family = "local", flag_names = UNIVERSAL_FLAGS, formless = true, excludes = { 2, 3, 4, 5, 13 }, 1, 2 },
    [7] = { name = "EOR", family = "control", flag_names = UNIVERSAL_FLAGS, 1, 4, 5, 11, 2 },
    [8] = { name = "ATOMRSP", family = "control", flag_names = UNIVERSAL_FLAGS, 1, 3, 12, 5, 7, 10 },
    [9] = { name = "HANDSHAKE", family = "control", flag_names = HANDSHAKE_FLAGS, 1, 13, 14, 15, 16, 17, 18, 19, 20, 2 },
    [10] = { name = "RECEIPT", family = "control", flag_names = UNIVERSAL_FLAGS, 1, 4, 21, 3, 2 },
    [11] = { name = "READ_NACK", family = "control", flag_names = UNIVERSAL_FLAGS, needs = { 6 }, 1, 4, 5, 3, 2 },
    [12] = { name = "PEER_ERROR", family = "control", flag_names = UNIVERSAL_FLAGS, length = 24, forms = { [20] = { 1, 22, 25, 24, 3, 2 }, [28] = { 1, 21, 22, 26, 23, 24, 3, 2 } }, needs = { 9 }, 1, 21, 22, 23, 24, 3, 2 },
    [64] = { name = "EAGER_MSGRTM", family = "rtm", flag_names = REQ_FLAGS, is_req = true, message = { length = "data_length", in_requests = "data_length" }, starts = "Eager message", implies = { 2 }, excludes = { 3, 4, 5, 13 }, 1, 21, 27, 28, 29, 30, 31, 10 },
    [65] = { name = "EAGER_TAGRTM", family = "rtm", flag_names = REQ_FLAGS, is_req = true, tagged = true, message = { length = "data_length", in_requests = "data_length" }, starts = "Eager message", implies = { 2, 3 }, excludes = { 4, 5, 13 }, 1, 21, 32, 27, 28, 29, 30, 31, 10 },
    [66] = { name = "MEDIUM_MSGRTM", family = "rtm", flag_names = REQ_FLAGS, is_req = true, segment = true, message = { length = "msg_length", offset = "seg_offset", in_requests = "msg_length" }, starts = "Medium message", implies = { 2 }, excludes = { 3, 4, 5, 13 }, 1, 21, 33, 8, 27, 28, 29, 30, 31, 10 },
    [67] = { name = "MEDIUM_TAGRTM", family = "rtm", flag_names = REQ_FLAGS, is_req = true, tagged = true, segment = true, message = { length = "msg_length", offset = "seg_offset", in_requests = "msg_length" }, starts = "Medium message", implies = { 2, 3 }, excludes = { 4, 5, 13 }, 1, 21, 33, 8, 32, 27, 28, 29, 30, 31, 10 },
    [68] = { name = "LONGCTS_MSGRTM", family = "rtm", flag_names = REQ_FLAGS, is_req = true, windowed = true, message = { length = "msg_length", in_requests = "data_length" }, starts = "Long-CTS message", implies = { 2 }, excludes = { 3, 4, 5 }, 1, 21, 33, 4, 34, 27, 28, 29, 30, 31, 10 },
    [69] = { name = "LONGCTS_TAGRTM", family = "rtm", flag_names = REQ_FLAGS, is_req = true, tagged = true, windowed = true, message = { length = "msg_length", in_requests = "data_length" }, starts = "Long-CTS message", implies = { 2, 3 }, excludes = { 4, 5 }, 1, 21, 33, 4, 34, 32, 27, 28, 29, 30, 31, 10 },
    [70] = { name = "EAGER_RTW", family = "rtw", flag_names = REQ_FLAGS, is_req = true, message = { length = "data_length", in_requests = "data_length" }, starts = "Emulated eager write", excludes = { 2, 3, 5, 13 }, 1, 35, 36, 27, 28, 29, 30, 31, 10 },
    [71] = { name = "LONGCTS_RTW", family = "rtw", flag_names = REQ_FLAGS, is_req = true, windowed = true, message = { length = "msg_length", in_requests = "data_length" }, starts = "Emulated long-CTS write", excludes = { 2, 3, 5, 13 }, 1, 35, 33, 4, 34, 36, 27, 28, 29, 30, 31, 10 },
    [72] = { name = "SHORT_RTR", family = "rtr", flag_names = REQ_FLAGS, is_req = true, starts = "Emulated short read", excludes = { 2, 3, 5, 13 }, 1, 35, 33, 5, 37, 36, 27, 28, 29, 30, 31, 2 },
    [73] = { name = "LONGCTS_RTR", family = "rtr", flag_names = REQ_FLAGS, is_req = true, starts = "Emulated long-CTS read", excludes = { 2, 3, 5, 13 }, 1, 35, 33, 5, 37, 36, 27, 28, 29, 30, 31, 2 },
    [74] = { name = "WRITE_RTA", family = "rta", flag_names = REQ_FLAGS, is_req = true, starts = "Emulated atomic", implies = { 5 }, excludes = { 2, 3, 4, 13 }, 1, 21, 35, 38, 39, 40, 36, 27, 28, 29, 30, 31, 10 },
    [75] = { name = "FETCH_RTA", family = "rta", flag_names = REQ_FLAGS, is_req = true, starts = "Emulated fetch atomic", implies = { 5 }, excludes = { 2, 3, 4, 13 }, 1, 21, 35, 38, 39, 5, 36, 27, 28, 29, 30, 31, 10 },
    [76] = { name = "COMPARE_RTA", family = "rta", flag_names = REQ_FLAGS, is_req = true, starts = "Emulated compare atomic", implies = { 5 }, excludes = { 2, 3, 4, 13 }, 1, 21, 35, 38, 39, 5, 36, 27, 28, 29, 30, 31, 10 },
    [128] = { name = "LONGREAD_MSGRTM", family = "rtm", flag_names = REQ_FLAGS, is_req = true, read = true, message = { length = "msg_length" }, starts = "Long READ message", implies = { 2 }, excludes = { 3, 4, 5, 13 }, needs = { 0 }, 1, 21, 33, 4, 41, 27, 28, 29, 30, 31, 42, 2 },
    [129] = { name = "LONGREAD_TAGRTM", family = "rtm", flag_names = REQ_FLAGS, is_req = true, tagged = true, read = true, message = { length = "msg_length" }, starts = "Long READ message", implies = { 2, 3 }, excludes = { 4, 5, 13 }, needs = { 0 }, 1, 21, 33, 4, 41, 32, 27, 28, 29, 30, 31, 42, 2 },
    [130] = { name = "LONGREAD_RTW", family = "rtw", flag_names = REQ_FLAGS, is_req = true, read = true, message = { length = "msg_length" }, starts = "Emulated long-read write", excludes = { 2, 3, 5, 13 }, needs = { 0 }, 1, 35, 33, 4, 41, 36, 27, 28, 29, 30, 31, 42, 2 },
    [131] = { name = "READ_RTR", family = "rtr", flag_names = REQ_FLAGS, is_req = true, unsent = true, excludes = { 2, 3, 5, 13 }, 1, 27, 28, 29, 30, 31, 2 },
    [133] = { name = "DC_EAGER_MSGRTM", family = "rtm", flag_names = REQ_FLAGS, is_req = true, dc = true, message = { length = "data_length", in_requests = "data_length" }, starts = "DC Eager message", implies = { 2 }, excludes = { 3, 4, 5, 13 }, needs = { 1 }, 1, 21, 43, 27, 28, 29, 30, 31, 10 },
    [134] = { name = "DC_EAGER_TAGRTM", family = "rtm", flag_names = REQ_FLAGS, is_req = true, tagged = true, dc = true, message = { length = "data_length", in_requests = "data_length" }, starts = "DC Eager message", implies = { 2, 3 }, excludes = { 4, 5, 13 }, needs = { 1 }, 1, 21, 43, 32, 27, 28, 29, 30, 31, 10 },
    [135] = { name = "DC_MEDIUM_MSGRTM", family = "rtm", flag_names = REQ_FLAGS, is_req = true, dc = true, segment = true, message = { length = "msg_length", offset = "seg_offset", in_requests = "msg_length" }, starts = "DC Medium message", implies = { 2 }, excludes = { 3, 4, 5, 13 }, needs = { 1 }, 1, 21, 43, 33, 8, 27, 28, 29, 30, 31, 10 },
    [136] = { name = "DC_MEDIUM_TAGRTM", family = "rtm", flag_names = REQ_FLAGS, is_req = true, tagged = true, dc = true, segment = true, message = { length = "msg_length", offset = "seg_offset", in_requests = "msg_length" }, starts = "DC Medium message", implies = { 2, 3 }, excludes = { 4, 5, 13 }, needs = { 1 }, 1, 21, 43, 33, 8, 32, 27, 28, 29, 30, 31, 10 },
    [137] = { name = "DC_LONGCTS_MSGRTM", family = "rtm", flag_names = REQ_FLAGS, is_req = true, dc = true, windowed = true, message = { length = "msg_length", in_requests = "data_length" }, starts = "DC Long-CTS message", implies = { 2 }, excludes = { 3, 4, 5 }, needs = { 1 }, 1, 21, 33, 4, 34, 27, 28, 29, 30, 31, 10 },
    [138] = { name = "DC_LONGCTS_TAGRTM", family = "rtm", flag_names = REQ_FLAGS, is_req = true, tagged = true, dc = true, windowed = true, message = { length = "msg_length", in_requests = "data_length" }, starts = "DC Long-CTS message", implies = { 2, 3 }, excludes = { 4, 5 }, needs = { 1 }, 1, 21, 33, 4, 34, 32, 27, 28, 29, 30, 31, 10 },
    [139] = { name = "DC_EAGER_RTW", family = "rtw", flag_names = REQ_FLAGS, is_req = true, dc = true, message = { length = "data_length", in_requests = "data_length" }, starts = "Emulated DC eager write", excludes = { 2, 3, 5, 13 }, needs = { 1 }, 1, 35, 43, 36, 27, 28, 29, 30, 31, 10 },
    [140] = { name = "DC_LONGCTS_RTW", family = "rtw", flag_names = REQ_FLAGS, is_req = true, dc = true, windowed = true, message = { length = "msg_length", in_requests = "data_length" }, starts = "Emulated DC long-CTS write", excludes = { 2, 3, 5, 13 }, needs = { 1 }, 1, 35, 33, 4, 34, 36, 27, 28, 29, 30, 31, 10 },
    [141] = { name = "DC_WRITE_RTA", family = "rta", flag_names = REQ_FLAGS, is_req = true, dc = true, starts = "Emulated DC atomic", implies = { 5 }, excludes = { 2, 3, 4, 13 }, needs = { 1 }, 1, 21, 35, 38, 39, 4, 36, 27, 28, 29, 30, 31, 10 },
    [142] = { name = "RUNTCTS_MSGRTM", family = "rtm", flag_names = REQ_FLAGS, is_req = true, unsent = true, starts = "Runting CTS message", implies = { 2 }, excludes = { 3, 4, 5, 13 }, 1, 21, 33, 4, 34, 8, 44, 27, 28, 29, 30, 31, 10 },
    [143] = { name = "RUNTCTS_TAGRTM", family = "rtm", flag_names = REQ_FLAGS, is_req = true, tagged = true, unsent = true, starts = "Runting CTS message", implies = { 2, 3 }, excludes = { 4, 5, 13 }, 1, 21, 33, 4, 34, 8, 44, 32, 27, 28, 29, 30, 31, 10 },
    [144] = { name = "RUNTCTS_RTW", family = "rtw", flag_names = REQ_FLAGS, is_req = true, unsent = true, starts = "Runting CTS write", excludes = { 2, 3, 5, 13 }, 1, 35, 33, 4, 34, 8, 44, 36, 27, 28, 29, 30, 31, 10 },
    [145] = { name = "RUNTREAD_MSGRTM", family = "rtm", flag_names = REQ_FLAGS, is_req = true, segment = true, read = true, message = { length = "msg_length", offset = "seg_offset", in_requests = "runt_length" }, starts = "Runting read message", implies = { 2 }, excludes = { 3, 4, 5, 13 }, needs = { 0, 4 }, 1, 21, 33, 4, 41, 8, 44, 27, 28, 29, 30, 31, 42, 10 },
    [146] = { name = "RUNTREAD_TAGRTM", family = "rtm", flag_names = REQ_FLAGS, is_req = true, tagged = true, segment = true, read = true, message = { length = "msg_length", offset = "seg_offset", in_requests = "runt_length" }, starts = "Runting read message", implies = { 2, 3 }, excludes = { 4, 5, 13 }, needs = { 0, 4 }, 1, 21, 33, 4, 41, 8, 44, 32, 27, 28, 29, 30, 31, 42, 10 },
    [147] = { name = "RUNTREAD_RTW", family = "rtw", flag_names = REQ_FLAGS, is_req = true, unsent = true, starts = "Runting read write", excludes = { 2, 3, 5, 13 }, 1, 35, 33, 4, 41, 8, 44, 36, 27, 28, 29, 30, 31, 42, 10 },
}
-- RC_OPCODES: {name, bytes of the headers; reth, aeth: where these are; begins, ends: a
-- message; whole: it is one; response; ends_read: the last data of a read}. MESSAGE_HEADERS: their
-- bytes, by the operation of those that have headers. BTH and so on: {name, kind of ProtoField,
-- description, base; at = offset, bytes}
local TAG_MATCHING = {
    ROCE_PORT = 4791,
    SEQUENCE_BITS = 24,
    SHORTEST_MTU = 256,
    READ_REQUEST = 12,
    ACKNOWLEDGE = 17,
    NOT_READY = 32,
    ACCESS_REFUSED = 98,
    PADDING_MASK = 3,
    PADDING_SHIFT = 4,
    BTH_LENGTH = 12,
    TMH_LENGTH = 16,
    RC_OPCODES = {
        [0] = { "SEND_FIRST", 12, begins = true },
        [1] = { "SEND_MIDDLE", 12 },
        [2] = { "SEND_LAST", 12, ends = true },
        [3] = { "SEND_LAST_IMMEDIATE", 16, ends = true },
        [4] = { "SEND_ONLY", 12, begins = true, ends = true, whole = true },
        [5] = { "SEND_ONLY_IMMEDIATE", 16, begins = true, ends = true, whole = true },
        [6] = { "WRITE_FIRST", 28, reth = 12 },
        [7] = { "WRITE_MIDDLE", 12 },
        [8] = { "WRITE_LAST", 12, ends = true },
        [9] = { "WRITE_LAST_IMMEDIATE", 16, ends = true },
        [10] = { "WRITE_ONLY", 28, reth = 12, ends = true },
        [11] = { "WRITE_ONLY_IMMEDIATE", 32, reth = 12, ends = true },
        [12] = { "READ_REQUEST", 28, reth = 12, ends = true },
        [13] = { "READ_RESPONSE_FIRST", 16, aeth = 12, response = true },
        [14] = { "READ_RESPONSE_MIDDLE", 12, response = true },
        [15] = { "READ_RESPONSE_LAST", 16, aeth = 12, response = true, ends_read = true },
        [16] = { "READ_RESPONSE_ONLY", 16, aeth = 12, response = true, ends_read = true },
        [17] = { "ACKNOWLEDGE", 16, aeth = 12, response = true },
        [18] = { "ATOMIC_ACKNOWLEDGE", 24, aeth = 12, response = true },
        [19] = { "COMPARE_SWAP", 40, ends = true },
        [20] = { "FETCH_ADD", 40, ends = true },
    },
    OPERATIONS = {
        [0] = "NO_TAG",
        [1] = "RENDEZVOUS",
        [2] = "FINISH",
        [3] = "EAGER",
    },
    MESSAGE_HEADERS = {
        [1] = 32,
        [2] = 32,
        [3] = 16,
    },
    BTH = {
        { "bth.opcode", "uint8", "what the packet is", base.DEC, at = 0, bytes = 1 },
        { "bth.flags", "uint8", "solicited 7, migrated 6, bytes of padding 5:4, version 3:0", base.HEX, at = 1, bytes = 1 },
        { "bth.partition", "uint16", "the partition", base.HEX, at = 2, bytes = 2 },
        { "bth.destination", "uint32", "the receiver's queue pair, in the lower 24 bits", base.DEC, at = 4, bytes = 4 },
        { "bth.sequence", "uint32", "an acknowledgement is wanted 31, number of the packet 23:0", base.HEX, at = 8, bytes = 4 },
    },
    RETH = {
        { "reth.address", "uint64", "first byte of the responder's memory", base.HEX, at = 0, bytes = 8 },
        { "reth.key", "uint32", "key of that memory", base.HEX, at = 8, bytes = 4 },
        { "reth.length", "uint32", "bytes of the whole operation", base.DEC, at = 12, bytes = 4 },
    },
    AETH = {
        { "aeth.syndrome", "uint8", "how it went", base.HEX, at = 0, bytes = 1 },
        { "aeth.messages", "uint24", "messages that the responder has completed", base.DEC, at = 1, bytes = 3 },
    },
    TMH = {
        { "tmh.operation", "uint8", "0 no tag, 1 request of a rendezvous, 2 its end, 3 eager", base.DEC, at = 0, bytes = 1 },
        { "tmh.reserved", "uint24", "0", base.HEX, at = 1, bytes = 3 },
        { "tmh.data", "uint32", "the program's own", base.HEX, at = 4, bytes = 4 },
        { "tmh.tag", "uint64", "the tag", base.HEX, at = 8, bytes = 8 },
    },
    RVH = {
        { "rvh.address", "uint64", "first byte of the message in the sender's memory", base.HEX, at = 0, bytes = 8 },
        { "rvh.key", "uint32", "key of that memory", base.HEX, at = 8, bytes = 4 },
        { "rvh.length", "uint32", "bytes of the message", base.DEC, at = 12, bytes = 4 },
    },
}
-- <<< generated

local efa = Proto("efa", "EFA Emulated Transport")
local efa_rdm = Proto("efa_rdm", "EFA RDM Protocol v4")

efa.prefs.reassemble = Pref.bool("Reassemble messages", true,
    "Show a message that came in several packets as one piece of data, at its last packet")
efa.prefs.longest_message = Pref.uint("Longest message to reassemble, in bytes", 1048576,
    "Longer messages are followed, but their data is not kept")

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

local LABELS = {
    ["raw_addr.connid"] = "Connection id (Q-key)", ["connid"] = "Connection id",
    ["device_version"] = "Device version (PCI part id)",
    ["sequence"] = "Sequence number",
    ["extra_info"] = "Extra features and requests", ["nextra_p3"] = "Capability words + 3",
}
local WORDS = {
    addr = "address", connid = "connection id", cq = "CQ", gid = "GID", hdr = "header", hmem = "accelerator memory",
    info = "information", msg = "message", op = "operation", p2p = "peer-to-peer",
    prov = "provider", qkey = "Q-key", qp = "QP", qpn = "QPN", rdma = "RDMA", recv = "receive",
    rma = "RMA", seg = "segment",
}

local function label_of(name)
    local words = name:match("[^.]*$"):gsub("_", " "):gsub("%w+", WORDS)
    return LABELS[name] or (words:gsub("^%l", string.upper))
end

for _, fields in ipairs({ HEADER_FIELDS, RDMA_FIELDS }) do
    for _, field in ipairs(fields) do
        local name, kind, description = field[1], field[2], field[3]
        if kind == "string" then
            efa_field(kind, name, label_of(name))
        elseif not field.hidden then
            efa_field(kind, name, label_of(name), field[4], field[5], 0, description)
        end
    end
end
local HEADER_FLAG = {} -- bits by name
for _, flag in ipairs(HEADER_FLAGS) do
    local bit, name, description = table.unpack(flag)
    HEADER_FLAG[name] = bit
    efa_field("bool", "flags." .. name, label_of(name), 16, nil, 2 ^ bit, description)
end
efa_field("uint16", "qpn", "QPN")
efa_field("bytes", "unknown", "Header bytes of a later version")
efa_field("bytes", "data", "Data")
efa_field("string", "source", "Source endpoint")
efa_field("string", "destination", "Destination endpoint")
efa_field("string", "endpoint", "Endpoint")
efa_field("uint32", "conversation", "Conversation")
efa_field("framenum", "request_in", "Request in", base.NONE, frametype.REQUEST)
efa_field("framenum", "response_in", "Answer in", base.NONE, frametype.RESPONSE)
efa_field("framenum", "retry_of", "Earlier attempt in", base.NONE, frametype.RETRANS_PREV)
efa_field("relative_time", "response_time", "Time since request")

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

for _, names in ipairs({ REQ_FLAGS, CTS_FLAGS, HANDSHAKE_FLAGS, UNIVERSAL_FLAGS }) do
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
rdm_field("uint64", "extra_info.unknown", "Unknown features", base.HEX)
rdm_field("uint32", "data_length", "Data length")
rdm_field("bool", "malformed", "Malformed")
rdm_field("string", "sender_version", "Sender")

-- The transfer of a packet. A transfer is one run of a subprotocol: a message, a write, a read, an
-- atomic operation, a handshake; with all its packets and RDMA operations.
rdm_field("uint32", "transfer", "Transfer")
rdm_field("string", "transfer.operation", "Operation")
rdm_field("string", "transfer.subprotocol", "Subprotocol")
rdm_field("uint64", "transfer.length", "Length")
rdm_field("uint64", "transfer.order", "Place in the order of messages")
rdm_field("framenum", "transfer.first_in", "First frame")
rdm_field("framenum", "transfer.previous_in", "Previous frame")
rdm_field("framenum", "transfer.next_in", "Next frame")
rdm_field("framenum", "transfer.last_in", "Last frame")
rdm_field("framenum", "transfer.request_in", "Request in", base.NONE, frametype.REQUEST)
rdm_field("framenum", "transfer.response_in", "Response in", base.NONE, frametype.RESPONSE)
rdm_field("framenum", "transfer.granted_in", "Granted in", base.NONE, frametype.REQUEST)
rdm_field("framenum", "transfer.data_in", "First data of the window in", base.NONE, frametype.RESPONSE)
rdm_field("framenum", "transfer.acknowledged_in", "Acknowledged in", base.NONE, frametype.ACK)
rdm_field("framenum", "transfer.delivered_in", "In order since frame")
rdm_field("relative_time", "transfer.response_time", "Time since request")
rdm_field("relative_time", "transfer.duration", "Duration")
rdm_field("uint32", "transfer.retries", "Retries")
rdm_field("bytes", "transfer.data", "Reassembled data")

-- The features that the two ends had announced when the packet was sent.
rdm_field("none", "negotiated", "Negotiated")
for end_, label in pairs({ sender = "Sender", receiver = "Receiver" }) do
    local prefix = "negotiated." .. end_
    rdm_field("framenum", prefix .. "_handshake_in", label .. "'s handshake in")
    rdm_field("string", prefix .. "_version", label .. "'s version")
    rdm_field("string", prefix .. "_features", label .. "'s features")
    rdm_field("uint32", prefix .. "_device", label .. "'s device (PCI part id)", base.HEX)
end
rdm_field("string", "negotiated.features", "Features of both ends")

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
-- Rules: errors in packets, and notes
-- ------------------------------------------------------------------------------------------------

local MALFORMED, PROTOCOL, SEQUENCE =
    expert.group.MALFORMED, expert.group.PROTOCOL, expert.group.SEQUENCE
local ERROR, WARN, NOTE = expert.severity.ERROR, expert.severity.WARN, expert.severity.NOTE

-- The evidence that proves a breach, if not the packet alone.
local HISTORY, SENDER, BEGINNING = 1, 2, 3

-- docs/rules.md explains them. This table is generated from efa_core::rules; its test says how.
-- generated: rules begin
local TRANSPORT_RULES = {
    { "transport-form", MALFORMED, ERROR, "The transport header is malformed" },
    { "device-error", PROTOCOL, WARN, "The device reports an error" },
    { "receiver-not-ready", PROTOCOL, NOTE, "The receiver had no buffer" },
    { "retransmission", SEQUENCE, NOTE, "Not the first attempt" },
}
local PACKET_RULES = {
    { "packet-form", MALFORMED, ERROR, "The packet is malformed" },
    { "iov-length", MALFORMED, ERROR, "The lengths of the iovs are not that of the data" },
    { "req-flags", PROTOCOL, ERROR, "Its flags do not fit the packet type" },
    { "unknown-flags", PROTOCOL, NOTE, "Flags or features that the protocol does not define" },
    { "trailing-bytes", PROTOCOL, NOTE, "Bytes behind the end of the packet's format" },
    { "raw-address-true", PROTOCOL, ERROR, "The raw address is not the sender's" },
    { "raw-address-first", PROTOCOL, ERROR, "No raw address before the handshake", SENDER },
    { "one-identity", PROTOCOL, NOTE, "Both raw address and connid header" },
    { "connid-true", PROTOCOL, ERROR, "The connection id is of another endpoint", HISTORY },
    { "connid-fresh", PROTOCOL, ERROR, "A new endpoint has the connection id of the one before it", HISTORY },
    { "late-packet", SEQUENCE, NOTE, "From an endpoint that is gone", HISTORY },
    { "qkey-true", PROTOCOL, ERROR, "The Q-key is not the receiver's", HISTORY },
    { "qpn-reused", SEQUENCE, NOTE, "Another endpoint has taken over the queue pair number" },
    { "handshake-once", SEQUENCE, ERROR, "A second handshake", HISTORY },
    { "device-version", PROTOCOL, WARN, "Handshake without device version", HISTORY },
    { "feature-announced", PROTOCOL, ERROR, "A feature is used that the peer has not announced", HISTORY },
    { "feature-early", SEQUENCE, NOTE, "A feature is used before the peer's handshake", SENDER },
    { "msg-id-once", SEQUENCE, ERROR, "The message id was used before", HISTORY },
    { "msg-id-ahead", SEQUENCE, NOTE, "Earlier messages are missing so far" },
    { "msg-id-window", SEQUENCE, WARN, "Too far ahead of the messages that are missing", HISTORY },
    { "segment-bounds", PROTOCOL, ERROR, "The data lies outside of the message", HISTORY },
    { "segment-overlap", SEQUENCE, ERROR, "This part of the message was sent before", HISTORY },
    { "segment-agreement", SEQUENCE, ERROR, "Not the message that it began as", HISTORY },
    { "answer-names-request", SEQUENCE, ERROR, "The id names no operation of the peer", BEGINNING },
    { "ctsdata-names-cts", SEQUENCE, ERROR, "The data is for no operation of the peer", BEGINNING },
    { "cts-positive", PROTOCOL, ERROR, "A window of no bytes" },
    { "cts-window", SEQUENCE, ERROR, "More data than was granted", HISTORY },
    { "cts-read-flag", PROTOCOL, ERROR, "The flag for windows of emulated reads does not fit the operation", HISTORY },
    { "one-answer", SEQUENCE, ERROR, "The operation was acknowledged before", HISTORY },
    { "read-refused", PROTOCOL, NOTE, "The receiver cannot read by RDMA" },
    { "peer-error", PROTOCOL, WARN, "The peer has given up its half of a message" },
    { "peer-error-message", SEQUENCE, WARN, "Not about a message", BEGINNING },
}
local TAG_RULES = {
    { "tag-header-whole", MALFORMED, WARN, "The message ends in its headers", HISTORY },
    { "tag-operation", PROTOCOL, WARN, "No operation of tag matching", HISTORY },
    { "rendezvous-memory", PROTOCOL, ERROR, "The memory of a rendezvous cannot be read", HISTORY },
    { "rendezvous-read-range", SEQUENCE, ERROR, "More was read than the rendezvous has", BEGINNING },
    { "rendezvous-part-read", SEQUENCE, NOTE, "Finished after a part was read", HISTORY },
    { "rendezvous-read-late", SEQUENCE, NOTE, "Read after the rendezvous was finished", HISTORY },
    { "rendezvous-fin-early", SEQUENCE, ERROR, "Finished before the data was read", BEGINNING },
    { "rendezvous-fin-names-request", SEQUENCE, ERROR, "Not the end of an open rendezvous", BEGINNING },
}
-- generated: rules end

local RULES = {}
local EVIDENCE_OF = {} -- the evidence that a breach of a rule needs, by id
local function declare_rules(proto, prefix, rules)
    local experts = {}
    for index, rule in ipairs(rules) do
        local id, group, severity, summary, evidence = table.unpack(rule)
        experts[index] = ProtoExpert.new(prefix .. ".rule." .. id, summary, group, severity)
        RULES[id], EVIDENCE_OF[id] = experts[index], evidence
    end
    proto.experts = experts
end
declare_rules(efa, "efa", TRANSPORT_RULES)
declare_rules(efa_rdm, "efa_rdm", PACKET_RULES)

-- ------------------------------------------------------------------------------------------------
-- Reading packets
-- ------------------------------------------------------------------------------------------------

-- The bytes of a packet that are copied to a Lua string at once: more than any header of stock.
local HEADER_WINDOW = 512

-- The codes or bits of a table by their names. An unknown name is an error.
local function by_name(names)
    local codes = {}
    for code, name in pairs(names) do
        codes[name] = code
    end
    return setmetatable(codes, { __index = function(_, name) error("no " .. name .. " is declared", 2) end })
end
local TYPE, OPCODE, STATUS = by_name(TYPES), by_name(OPCODES), by_name(STATUSES)
local REQ_FLAG, FEATURE, OPE_TYPE = by_name(REQ_FLAGS), by_name(FEATURES), by_name(OPE_TYPES)
local CTS_FLAG = by_name(CTS_FLAGS)
local IS_TSHARK = not gui_enabled()

-- Arithmetic, because Lua 5.2 and 5.4 have no bit operators in common.
local function has_bit(value, bit)
    return floor(value / 2 ^ bit) % 2 == 1
end

for code, packet in pairs(PACKETS) do
    packet.code = code
    packet.key = code
    -- Each form has its own fields, and all other properties of the type.
    for length, form in pairs(packet.forms or {}) do
        setmetatable(form, { __index = function(_, name)
            return type(name) == "string" and packet[name] or nil
        end })
        form.key = code + 256 * length
    end
end

-- The plan of packets of one type with one set of flags. Fields are tables
-- {name, width, group = subtree, counts = array}; an array is a table of fields with `array` set.
--   steps    all fields, in the order of the packet
--   prefix   the number of steps that have the same offset in every such packet
--   format   the format of those for Struct.unpack, `size` their length
--   names    their names; wide: the 64-bit ones; counting: those that count an array
--   issues   errors in the flags
--   info     the fields for the packet list
local plans, plan_count = {}, 0
local MOST_PLANS = 4096

local function field_is_present(field, flags)
    if field.when then
        return has_bit(flags, field.when)
    end
    return not field.unless or not has_bit(flags, field.unless)
end

local STRUCT_CODES = { [1] = "B", [2] = "I2", [4] = "I4", [8] = "I8" }

-- The fields in the packet list, in this order: {field, label}.
local INFO_FIELDS = {
    { "msg_id", "msg_id" }, { "tag", "tag" }, { "send_id", "send_id" }, { "recv_id", "recv_id" },
    { "op_id", "op_id" }, { "seg_offset", "offset" }, { "runt_length", "runt" }, { "recv_length", "window" },
    { "rma_iov_count", "rma_iov" }, { "read_iov_count", "read_iov" },
}

local function check_flags(plan, flags)
    local packet, issues = plan.packet, {}
    local unknown = 0
    for bit = 0, 15 do
        if has_bit(flags, bit) and not packet.flag_names[bit] then
            unknown = unknown + 2 ^ bit
        end
    end
    plan.unknown_flags = unknown
    if unknown > 0 then
        issues[#issues + 1] = { RULES["unknown-flags"],
            format("flags 0x%04x are not defined for %s", unknown, packet.name) }
    end
    for _, bit in ipairs(packet.implies or {}) do
        if not has_bit(flags, bit) then
            issues[#issues + 1] = { RULES["req-flags"],
                format("every %s has the flag %s, and libfabric 1.11.0 relies on it",
                    packet.name, REQ_FLAGS[bit]) }
        end
    end
    for _, bit in ipairs(packet.excludes or {}) do
        if has_bit(flags, bit) then
            issues[#issues + 1] = { RULES["req-flags"],
                format("no %s has the flag %s", packet.name, REQ_FLAGS[bit]) }
        end
    end
    if packet.is_req and has_bit(flags, REQ_FLAG.raw_addr_hdr) and has_bit(flags, REQ_FLAG.connid_hdr) then
        issues[#issues + 1] = { RULES["one-identity"],
            "stock libfabric sends either the raw address or the connid, never both" }
    end
    plan.issues = issues[1] and issues
end

local function new_plan(packet, flags)
    local plan = {
        packet = packet, steps = {}, prefix = 0, size = 0, names = {}, offsets = {}, wide = {},
        counting = {}, info = {},
    }
    local fixed, codes, known = true, { "<" }, {}
    for _, index in ipairs(packet) do
        local section = SECTIONS[index]
        if section.array then
            plan.steps[#plan.steps + 1] = section
            fixed = false
        else
            for _, field in ipairs(section) do
                if field_is_present(field, flags) then
                    plan.steps[#plan.steps + 1] = field
                    known[field[1]] = true
                    local width = field[2]
                    fixed = fixed and type(width) == "number" and not field.if_room
                    if fixed then
                        plan.prefix = #plan.steps
                        codes[#codes + 1] = STRUCT_CODES[width] or ("c" .. width)
                        plan.names[plan.prefix] = field[1]
                        plan.offsets[field[1]] = plan.size
                        plan.size = plan.size + width
                        if width == 8 then
                            plan.wide[#plan.wide + 1] = field[1]
                        end
                        if field.counts then
                            plan.counting[#plan.counting + 1] = field
                        end
                    end
                end
            end
        end
    end
    plan.format = table.concat(codes)
    for _, field in ipairs(INFO_FIELDS) do
        if known[field[1]] then
            plan.info[#plan.info + 1] = field
        end
    end
    check_flags(plan, flags)
    return plan
end

local function plan_of(packet, flags)
    local key = packet.key * 65536 + flags
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

-- A packet that has been read: `p[name]` is the value of a numeric field (64-bit values lose
-- precision beyond 2^53, so they are for arithmetic, not for display), `p.issues` the errors.
local function issue(p, id, text)
    p.issues = p.issues or {}
    p.issues[#p.issues + 1] = { RULES[id], text }
end

-- With 64-bit integers in Lua, large unsigned ones may be negative.
local function unsigned(value)
    return value < 0 and value + 2 ^ 64 or value
end

local function number_at(p, offset, width)
    if offset + width <= #p.raw then
        return unsigned((Struct.unpack("<" .. STRUCT_CODES[width], p.raw, offset + 1)))
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
    if p.cut then
        p.truncated = true
        return true
    end
    p.truncated, p.malformed = true, true
    issue(p, "packet-form", format("%s: field %s at byte %d needs %.0f bytes, but the packet ends after %d",
        p.name, name, offset, width, p.length - offset))
    return true
end

-- Calls `add(field, offset, width, index)` for each field, in the order of the packet. Returns the
-- offset after the last field.
local function walk(p, plan, add)
    local steps, offset, first = plan.steps, 0, 1
    local counts = {}
    if p.length >= plan.size and plan.size <= #p.raw then
        local names, values_read = plan.names, { Struct.unpack(plan.format, p.raw) }
        for i = 1, plan.prefix do
            p[names[i]] = values_read[i]
        end
        p.gid_offset, p.connid_offset = plan.offsets["raw_addr.gid"], plan.offsets["connid"]
        for _, name in ipairs(plan.wide) do
            p[name] = unsigned(p[name])
        end
        for _, field in ipairs(plan.counting) do
            counts[field.counts] = p[field[1]]
        end
        if add then
            for i = 1, plan.prefix do
                local field = steps[i]
                add(field, offset, field[2])
                offset = offset + field[2]
            end
        end
        offset, first = plan.size, plan.prefix + 1
    end
    for i = first, #steps do
        local step = steps[i]
        if step.array then
            local count, array = counts[step.array] or 0, ARRAYS[step.array]
            if count < array.bias then
                issue(p, "packet-form", format("nextra_p3 is %.0f: the number of words plus %d", count, array.bias))
                p.malformed = true
            end
            count = math.max(count - array.bias, 0)
            if count > array.most then
                issue(p, "packet-form", format("%.0f entries of %s, but at most %d are allowed",
                    count, step.array, array.most))
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
                if p.reported > offset then
                    p[name .. "_offset"], p[name .. "_length"] = offset, p.reported - offset
                end
                width = p.length - offset
                present = width > 0
            elseif step.if_room then
                present = p.reported - offset >= width
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
                if name == "raw_addr.gid" then
                    p.gid_offset = offset
                elseif name == "connid" then
                    p.connid_offset = offset
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

-- Checks that need only the packet itself.
local function check(p, plan)
    local size = p["raw_addr.size"]
    if size and size < RAW_ADDRESS_LENGTH then
        issue(p, "packet-form", format("raw address of %.0f bytes, but it has at least %d",
            size, RAW_ADDRESS_LENGTH))
        p.malformed = true
    end
    if p.trailing_length and not p.malformed then
        issue(p, "trailing-bytes", format("%d bytes behind the end of %s", p.trailing_length, p.name))
    end
    if p.seg_length and p.seg_length ~= p.data_length then
        issue(p, "packet-form", format("seg_length is %.0f, but %d bytes of data follow",
            p.seg_length, p.data_length))
        p.malformed = true
    end
    if p.malformed then
        return
    end
    for _, found in ipairs(plan.issues or {}) do
        p.issues = p.issues or {}
        p.issues[#p.issues + 1] = found
    end
    local expected = p.msg_length
    if not expected then
        -- The data of a comparing atomic are two operands.
        expected = p.code == TYPE.COMPARE_RTA and floor(p.data_length / 2) or p.data_length
    end
    for _, name in ipairs({ "rma_iov", "read_iov" }) do
        local total = p[name] and iov_total(p[name], name)
        if total and expected and total ~= expected then
            issue(p, "iov-length", format("the entries of %s are %.0f bytes long, the data has %.0f",
                name, total, expected))
        end
    end
end

local function hex64(tvb, offset)
    return "0x" .. tvb(offset, 8):le_uint64():tohex():gsub("^0+(%x)", "%1")
end

-- The undefined features in word `index` of a HANDSHAKE, nil if there are none.
local function unknown_features(tvb, offset, index)
    local halves = { tvb(offset, 4):le_uint(), tvb(offset + 4, 4):le_uint() }
    for bit in pairs(index == 0 and FEATURES or {}) do
        local half = bit < 32 and 1 or 2
        if has_bit(halves[half], bit % 32) then
            halves[half] = halves[half] - 2 ^ (bit % 32)
        end
    end
    if halves[1] + halves[2] > 0 then
        return UInt64(halves[1], halves[2])
    end
end

-- Reads an RDM packet of `reported` bytes. The capture may have truncated it; bytes that it lacks
-- were not omitted by the sender. With `make_add`, its fields are shown as they are read.
local function read_packet(tvb, reported, make_add)
    local length = tvb:len()
    local p = { tvb = tvb, length = length, reported = reported, cut = reported > length, data_length = 0 }
    p.raw = tvb:raw(0, math.min(length, HEADER_WINDOW))
    p.code = length > 0 and p.raw:byte(1) or nil
    local packet = PACKETS[p.code]
    if not packet then
        p.name = p.code and format("type %d", p.code) or "empty packet"
        issue(p, "packet-form", p.code and format("packet type %d is not assigned", p.code)
            or "the packet is empty")
        p.malformed = true
        return p
    end
    packet = packet.forms and packet.forms[reported] or packet
    p.name, p.packet = packet.name, packet
    local flags = length >= 4 and p.raw:byte(3) + 256 * p.raw:byte(4) or 0
    p.flags = flags
    local plan = plan_of(packet, flags)
    p.plan = plan
    walk(p, plan, make_add and make_add(p))
    p.flags = flags
    if p.version and p.version ~= PROTOCOL_VERSION then
        issue(p, "packet-form", format("version %d, but only %d is known", p.version, PROTOCOL_VERSION))
        p.malformed = true
    end
    if packet.formless then
        issue(p, "packet-form", p.name .. " must not be on the wire")
        p.malformed = true
    end
    if packet.unsent then
        issue(p, "packet-form", p.name .. ": no release of libfabric sends or receives it")
        p.malformed = true
    end
    if packet.length and packet.length ~= reported and not p.truncated then
        issue(p, "packet-form", format("%s: %d bytes, but packets of the type have %d",
            p.name, reported, packet.length))
        p.malformed = true
    end
    if p.code == TYPE.HANDSHAKE then
        -- Half of the word: a Lua number does not hold 64 bits.
        p.features = p.extra_info and p.extra_info[1] and number_at(p, plan.size, 4) or 0
    end
    if not p.truncated then
        check(p, plan)
    end
    if p.code == TYPE.HANDSHAKE and not p.truncated and not p.malformed then
        for index in ipairs(p.extra_info) do
            local unknown = unknown_features(tvb, plan.size + 8 * (index - 1), index - 1)
            if unknown then
                issue(p, "unknown-flags", format("features 0x%s of word %d are not defined",
                    unknown:tohex(), index - 1))
            end
        end
    end
    return p
end

-- ------------------------------------------------------------------------------------------------
-- Following transfers
-- ------------------------------------------------------------------------------------------------
--
-- Done once, frame by frame, when a capture is loaded. The state is kept per view and pair of
-- endpoints; a view is the conversation as one end sees it. A capture with both ends contains each
-- frame twice, as sent and as received. The two views are followed separately, because their orders
-- differ.

local OPERATIONS = { rtm = "message", rtw = "write", rtr = "read", rta = "atomic" }
-- Features by which the oldest possible release of a handshake's sender is shown, newest first.
local VERSION_OF_FEATURE = {
    { FEATURE.peer_error, "2.7 or later" }, { FEATURE.unsolicited_write_recv, "2.1 or later" },
    { FEATURE.user_recv_qp, "1.22 or later" }, { FEATURE.read_nack, "1.20 or later" },
    { FEATURE.rdma_write, "1.18 or later" }, { FEATURE.runting_read, "1.16 or later" },
    { FEATURE.connid_header, "1.14 or later" }, { FEATURE.delivery_complete, "1.12 or later" },
}
local MSG_IDS = 2 ^ 32
-- Receivers of libfabric 1.17 and older abort at a message so far ahead.
local REORDER_WINDOW = 16384
-- The bytes that are kept for reassembly, of all messages together.
local MOST_KEPT_BYTES = 128 * 1024 * 1024

local P2P_RECEIVED, P2P_SENT = 1, 0

local state

local function reset_state()
    state = {
        views = {}, -- views[local endpoint][remote endpoint] = conversation
        -- Endpoints whose first request is in the capture where it was sent, by whether the capture
        -- has directions.
        first_sent = { [true] = {}, [false] = {} },
        first_seen = { [true] = {}, [false] = {} }, -- the same, wherever it was seen
        first_packets = {}, -- of queue pairs, by where they were seen and endpoint
        latest = {}, -- by view and endpoint, its latest request and the request's run of numbers
        all_arrivals = {}, -- queue pairs whose first arrival a tap saw
        ways = {}, -- ways[sender][receiver]: the frames that both ends have captured
        request_numbers = { [true] = {}, [false] = {} }, -- of endpoints, where they are sent
        missing = { [true] = {}, [false] = {} }, -- the number of requests that each host lacks
        following = nil, -- the packet that is being followed
        undirected = {}, -- conversations of captures without directions
        pairs = {}, pair_count = 0, -- numbers of conversations, in any view
        endpoints = {}, -- names by GID and QPN
        conversations = {},
        transfers = {},
        transfer_of = {}, -- by frame, like all the following
        issues_of = {}, request_of = {}, response_of = {}, response_time_of = {}, retry_of = {},
        transfer_response_time_of = {}, negotiated_of = {},
        granted_of = {}, data_of = {}, -- CTS and CTSDATA
        without_header = {}, -- frames to a queue pair for headerless messages
        speech_of = {}, -- the sends that decide whether a packet is of the RDM protocol
        user_recv_qps = {}, -- those queue pairs
        counts = {}, -- by type: packets and bytes
        kept_bytes = 0,
    }
end
reset_state()

local function note(frame, id, text)
    local context = state.following
    -- A first request that comes later may be that of the queue pair's next owner.
    if EVIDENCE_OF[id] == SENDER
        and not state.first_seen[context.has_direction][context.me.endpoint] then
        return
    end
    local issues = state.issues_of[frame]
    if not issues then
        issues = {}
        state.issues_of[frame] = issues
    end
    issues[#issues + 1] = { RULES[id], text, EVIDENCE_OF[id], context }
end

-- Frames that one end's host has captured and the other's has not. Without all of an end's frames
-- its history is unknown.
local Sightings = {}

-- The number of frames from one sender to one receiver that are kept; more are never in flight.
Sightings.MOST = 4096

function Sightings.way(from, to)
    local ways = state.ways[from]
    if not ways then
        ways = {}
        state.ways[from] = ways
    end
    local way = ways[to]
    if not way then
        way = {
            -- By Q-key, which differs between lives of the queue pairs, and then by number,
            -- repetition and opcode: the frame, negative if it is the receiver's, 0 if both are in
            -- the capture.
            seen = {},
            -- Frames whose counterpart was missing at first: tables of `seen` and keys in them.
            sent = { first = 1, last = 0 }, arrived = { first = 1, last = 0 },
        }
        ways[to] = way
    end
    return way
end

-- The earliest frame of a list whose counterpart is still missing.
function Sightings.oldest(list)
    while list.first <= list.last do
        local seen, key = list[list.first][1], list[list.first][2]
        local frame = seen[key]
        if frame and frame ~= 0 then
            return math.abs(frame)
        end
        list[list.first], list.first = nil, list.first + 1
    end
end

-- Takes a frame. Only the last packet of RDMA data matters to the rules.
function Sightings.see(context, h, source, destination)
    local name = OPCODES[h.opcode]
    if not context.has_direction or source == destination or name == "RDMA_WRITE" or name == "DATAGRAM"
        or name == "RDMA_READ_RESPONSE" and h.rdma_offset + h.payload_length < h.rdma_total_length then
        return
    end
    local way = Sightings.way(source, destination)
    if h.sequence >= FIRST_TAPPED then
        way.is_tapped = true -- its sender's frame is unknown
        return
    end
    local seen = way.seen[h.qkey]
    if not seen then
        seen = {}
        way.seen[h.qkey] = seen
    end
    local key = h.sequence * 16 + (h.retransmission and 8 or 0) + h.opcode
    local frame = context.is_own and context.frame or -context.frame
    local known = seen[key]
    if known then
        if known * frame < 0 then
            way.has_both, way.is_backward = true, way.is_backward or known < 0
            seen[key] = 0
        end
        return
    end
    local list = context.is_own and way.sent or way.arrived
    if list.is_lost then
        return
    end
    seen[key], seen[key - 16 * Sightings.MOST] = frame, nil
    list.last = list.last + 1
    list[list.last] = { seen, key }
    local oldest = Sightings.oldest(list)
    if list.last - list.first >= Sightings.MOST then
        list.is_lost, list.lost = true, oldest
    end
end

-- Whether some frames of a conversation have directions and others do not: then neither the views
-- of the ends nor the view without directions are complete.
function Sightings.is_mixed(c)
    local near, far = c.near.endpoint, c.far.endpoint
    local function has(root, from, to)
        return root[from] and root[from][to]
    end
    return (has(state.undirected, near, far) or has(state.undirected, far, near))
        and (has(state.views, near, far) or has(state.views, far, near))
end

-- Whether an end lacks frames that the other end's host has captured. Frames that may still be in
-- flight after the end's last frame are not missing.
function Sightings.lacks(c)
    local near, far = c.near.endpoint, c.far.endpoint
    if near == far then
        return false
    end
    local to, from = Sightings.way(near, far), Sightings.way(far, near)
    if to.is_tapped or from.is_tapped then
        return false
    end
    local has_one_clock = to.has_both and from.has_both and not (to.is_backward or from.is_backward)
    local function is_missing(list)
        local frame = list.lost or Sightings.oldest(list)
        return frame and (frame < c.last_frame or not has_one_clock)
    end
    return is_missing(from.sent) or is_missing(to.arrived)
end

-- Requests that the capture lacks: a queue pair counts those to all receivers, from 0. If some were
-- captured where they were sent and not those between, the capture has lost frames.
local RequestNumbers = {}

-- The number of missing requests of a queue pair from which on none of them can be late.
RequestNumbers.MOST = 4096

-- Takes a frame of a host's endpoint. Arrivals prove nothing: the endpoint sends to others, too.
function RequestNumbers.take(context, h, host, source, destination, tvb)
    local sequence = h.sequence
    if IS_ANSWER[h.opcode] or OPCODES[h.opcode] == "DATAGRAM" or not context.is_own
        or sequence >= FIRST_TAPPED then
        return
    end
    local of_all, missing = state.request_numbers[context.has_direction], state.missing[context.has_direction]
    local numbers = of_all[source]
    if sequence == 0 and not h.retransmission then
        local data = tvb:len() > h.header_length and tvb(h.header_length):raw() or ""
        local first = format("%s %d ", destination, h.qkey) .. data
        -- Another request with this number begins the next queue pair. An equal one is a copy.
        if not numbers or numbers.first ~= first then
            numbers = { start = 0, next = 0, missing = {}, count = 0, first = first }
        end
    end
    numbers = numbers or { start = sequence, next = sequence, missing = {}, count = 0 }
    of_all[source] = numbers
    local first, last = numbers.next, sequence - 1
    if sequence < numbers.start then
        first, last = sequence + 1, numbers.start - 1
    elseif sequence < numbers.next then
        if numbers.missing[sequence] then
            numbers.missing[sequence], numbers.count = nil, numbers.count - 1
            missing[host] = missing[host] - 1
        end
        return
    end
    local gap = last - first + 1
    if numbers.count + gap > RequestNumbers.MOST then
        missing[host] = math.huge
    elseif gap > 0 then
        for number = first, last do
            numbers.missing[number] = true
        end
        numbers.count, missing[host] = numbers.count + gap, (missing[host] or 0) + gap
    end
    numbers.start = math.min(numbers.start, sequence)
    numbers.next = math.max(numbers.next, sequence + 1)
end

-- Whether a host's capture lacks requests or, without directions, the capture lacks any.
function RequestNumbers.are_missing(context)
    if context.has_direction then
        return (state.missing[true][context.near_host] or 0) > 0
    end
    for _, count in pairs(state.missing[false]) do
        if count > 0 then
            return true
        end
    end
    return false
end

-- Whether the capture has, so far, the evidence against the sender of a packet: frames of both
-- ends, all frames that the other host has captured of them, and first requests.
local function is_proven(evidence, context)
    if not evidence or not context then
        return true
    end
    local c, first_seen = context.conversation, state.first_seen[context.has_direction]
    local near, far = c.near, c.far
    if c.is_torn or near ~= far and (near.packets == 0 or far.packets == 0) or Sightings.is_mixed(c) then
        return false
    end
    if context.has_direction and Sightings.lacks(c) or RequestNumbers.are_missing(context) then
        return false
    end
    local has_arrivals = context.has_direction and state.all_arrivals[near.endpoint]
    local has_beginning = first_seen[near.endpoint] and (first_seen[far.endpoint] or has_arrivals)
    -- The captures of two hosts, possibly with two clocks, may begin at different times.
    local has_order = has_beginning and c.from_start and not c.has_stray_answer
    local has_copies = near.has_copies or far.has_copies
    -- A tool may have removed all copies. If the first ones were the second, requests are late.
    if not context.has_direction and (has_copies or near.has_late or far.has_late) then
        -- If an end's packets were captured at one host only, they are in the order of its clock.
        local is_one_sided = near.latest_request and far.latest_request and near.has_copies ~= far.has_copies
        if is_one_sided or not has_order then
            return false
        end
    end
    return evidence ~= BEGINNING or has_beginning
end

-- One end of a conversation, with the state of all numbers that it assigned.
local function new_side(endpoint)
    return {
        endpoint = endpoint,
        packets = 0, bytes = 0, -- its frames, and the bytes in them
        send_ops = {}, recv_ops = {}, -- transfers by send_id and recv_id
        -- Atomics by recv_id: libfabric 1.11 numbers them separately from operations that receive
        -- data.
        fetch_ops = {},
        messages = {}, -- transfers by msg_id
        ahead = {}, -- messages that came before their turn, by msg_id
        epoch = 0, -- the number of times that msg_id wrapped
        long_reads = {}, -- transfers whose memory the peer is going to read
        former_connids = {},
        -- by sequence number; the last is the offset of an RDMA read's data in its transfer
        requests = {}, request_times = {}, rdma = {}, rdma_base = {},
        identities = {}, -- of frames without a direction, by sequence number
        contents = {}, -- packets without an answer so far, by sequence number
        senders = {}, -- connection ids in packets without an answer so far, by sequence number
        numbered = {}, -- msg_ids of packets without an answer so far, by sequence number
        refused_packets = {}, -- frames and senders of refused packets, by their contents
        troubled = { first = 1, last = 0 }, -- the contents of those without a number, in their order
        lost_messages = {}, -- msg_ids of messages that a device failed to send
    }
end

-- "[GID]:QPN", the name of an endpoint.
local function endpoint_of(address, qpn)
    local gid = tostring(address)
    local of_gid = state.endpoints[gid]
    if not of_gid then
        of_gid = {}
        state.endpoints[gid] = of_gid
    end
    local endpoint = of_gid[qpn]
    if not endpoint then
        endpoint = format("[%s]:%d", gid, qpn)
        of_gid[qpn] = endpoint
    end
    return endpoint
end

local function pair_number(source, destination)
    local first, second = source, destination
    if second < first then
        first, second = second, first
    end
    local key = first .. " " .. second
    local number = state.pairs[key]
    if not number then
        number = state.pair_count
        state.pairs[key], state.pair_count = number, number + 1
    end
    return number
end

-- The sends between two endpoints during the lifetime of their queue pairs. The numbers of readable
-- packets and of unreadable sends decide whether they speak the RDM protocol. The next owners of
-- the queue pairs may speak another one.
local function new_speech(follows_rdm)
    return { valid = 0, invalid = 0, follows_rdm = follows_rdm }
end

local function is_of_rdm(speech)
    local weight = speech.follows_rdm and 1 or 8
    return speech.is_rdm or speech.valid > 0 and speech.valid >= weight * speech.invalid
end

-- The conversation in the view of the end that recorded the frame, and its sides: the sender and
-- the receiver of the frame.
local function conversation_of(direction, source, destination)
    local root, near, far = state.views, source, destination
    if direction == P2P_RECEIVED then
        near, far = destination, source
    elseif direction ~= P2P_SENT then
        root = state.undirected
        if far < near then
            near, far = far, near
        end
    end
    local peers = root[near]
    if not peers then
        peers = {}
        root[near] = peers
    end
    local conversation = peers[far]
    if not conversation then
        conversation = {
            number = pair_number(near, far), near = new_side(near), transfers = 0,
            speech = new_speech(),
        }
        conversation.far = far == near and conversation.near or new_side(far)
        peers[far] = conversation
        state.conversations[#state.conversations + 1] = conversation
    end
    if conversation.near.endpoint == source then
        return conversation, conversation.near, conversation.far
    end
    return conversation, conversation.far, conversation.near
end

local function new_transfer(c, operation, subprotocol, initiator, length, now)
    local target = initiator == c.near and c.far or c.near
    local transfer = {
        id = #state.transfers, operation = operation, subprotocol = subprotocol,
        initiator = initiator.endpoint, target = target.endpoint, view = c.near.endpoint,
        length = length, frames = {}, started = now, bytes = 0, retries = 0,
    }
    state.transfers[#state.transfers + 1] = transfer
    c.transfers = c.transfers + 1
    return transfer
end

local function join(transfer, frame, now)
    transfer.frames[#transfer.frames + 1] = frame
    transfer.last_time = now
    state.transfer_of[frame] = transfer
end

local function finish(transfer, frame, now)
    if not transfer.done then
        transfer.done, transfer.done_time = frame, now
    end
end

-- Records that the packet answers the request that began the transfer.
local function respond(transfer, frame, now)
    if not transfer.response then
        transfer.response, transfer.response_time = frame, now - transfer.started
    end
    state.transfer_response_time_of[frame] = now - transfer.started
end

-- Keeps the `length` bytes at `from`, which have the given offset in the transfer's data.
local function keep(transfer, offset, tvb, from, length)
    if not efa.prefs.reassemble or not transfer.length
        or transfer.length > efa.prefs.longest_message or offset + length > transfer.length
        or state.kept_bytes + length > MOST_KEPT_BYTES then
        return
    end
    state.kept_bytes = state.kept_bytes + length
    transfer.pieces = transfer.pieces or {}
    -- Not through a TvbRange, whose raw() ignores the start of the range in Wireshark 3.4.
    transfer.pieces[#transfer.pieces + 1] = { offset, tvb:raw(from, length) }
end

-- The whole data of a transfer, nil if a part is missing.
local function reassemble(transfer)
    if not transfer.pieces or #transfer.pieces < 2 then
        return nil
    end
    table.sort(transfer.pieces, function(a, b) return a[1] < b[1] end)
    local data, offset = {}, 0
    for i, piece in ipairs(transfer.pieces) do
        if piece[1] ~= offset then
            return nil
        end
        data[i] = piece[2]
        offset = offset + #piece[2]
    end
    return offset == transfer.length and table.concat(data) or nil
end

-- Adds bytes `first` to `last` (exclusive) to ordered runs of bytes that do not touch. False if
-- some of them are in the runs already.
local function add_run(runs, first, last)
    local low, high = 1, #runs + 1 -- the runs before `low` end before `first`
    while low < high do
        local middle = floor((low + high) / 2)
        if runs[middle].last < first then
            low = middle + 1
        else
            high = middle
        end
    end
    local run, following = runs[low], runs[low + 1]
    if run and run.last == first then
        if following and following.first < last then
            return false
        end
        run.last = last
        if following and following.first == last then
            run.last = following.last
            table.remove(runs, low + 1)
        end
    elseif run and run.first < last then
        return false
    elseif run and run.first == last then
        run.first = first
    else
        table.insert(runs, low, { first = first, last = last })
    end
    return true
end

-- Adds data of the transfer at `offset`, from packet `p`. `room` is the number of the transfer's
-- bytes in such packets. False if the data cannot be counted.
local function add_segment(transfer, p, offset, frame, room)
    local length = p.data_length
    room = room or transfer.length
    local whole = p.msg_length or transfer.length
    if room and (offset + length > room or room > whole) then
        note(frame, "segment-bounds", format("bytes %.0f to %.0f of %.0f, in a message of %.0f",
            offset, offset + length, room, whole))
        return false
    end
    if length == 0 then
        return true
    end
    if length == transfer.length and not transfer.runs then
        transfer.runs, transfer.bytes = { { first = 0, last = length } }, length
        return true
    end
    transfer.runs = transfer.runs or {}
    if not add_run(transfer.runs, offset, offset + length) then
        note(frame, "segment-overlap", format("some of the bytes %.0f to %.0f were sent before",
            offset, offset + length))
        return false
    end
    transfer.bytes = transfer.bytes + length
    if p.data_offset and not p.cut then
        keep(transfer, offset, p.tvb, p.data_offset, length)
    end
    return true
end

-- Messages and atomic operations are numbered; receivers handle them in that order.
local function put_in_order(me, transfer, p, frame, from_start)
    local id = p.msg_id
    if me.messages[id] and me.lost_messages[id] then
        -- The first message never arrived, and the peer still waits for this id.
        me.lost_messages[id] = nil
        transfer.order, me.messages[id] = me.messages[id].order, transfer
        return
    end
    if me.messages[id] then
        note(frame, "msg-id-once", format("message %.0f was in frame %d", id, me.messages[id].frames[1]))
        return
    end
    if not me.expected then
        me.expected = from_start and id < REORDER_WINDOW and 0 or id
    end
    local distance = (id - me.expected) % MSG_IDS
    if distance >= MSG_IDS / 2 then
        -- From before the capture's beginning, as far as that is known.
        transfer.order, me.messages[id] = me.epoch * MSG_IDS + id, transfer
        return
    end
    local wraps = me.expected + distance >= MSG_IDS and 1 or 0
    transfer.order = (me.epoch + wraps) * MSG_IDS + id
    me.messages[id] = transfer
    if distance > 0 then
        me.ahead[id] = transfer
        note(frame, "msg-id-ahead", format("%.0f earlier messages are missing, %.0f is next",
            distance, me.expected))
        if distance >= REORDER_WINDOW then
            note(frame, "msg-id-window", format("%.0f messages ahead, a receiver keeps %d",
                distance, REORDER_WINDOW))
        end
        return
    end
    local next_transfer = transfer
    while next_transfer do
        next_transfer.delivered = frame
        me.ahead[me.expected] = nil
        me.expected = me.expected + 1
        if me.expected == MSG_IDS then
            me.expected, me.epoch = 0, me.epoch + 1
        end
        next_transfer = me.ahead[me.expected]
    end
end

-- The endpoints of a conversation.
local Identity = {}

-- Both ends start their numbers again, because at least one of the endpoints is new.
function Identity.begin_anew(c, me, you)
    local fresh, peer = new_side(me.endpoint), new_side(you.endpoint)
    fresh.former_connids, peer.former_connids = me.former_connids, you.former_connids
    fresh.run, peer.run = me.run, you.run
    -- The sequence numbers of the two devices continue.
    for _, name in ipairs({ "packets", "bytes", "identities", "requests", "request_times", "rdma",
        "rdma_base", "contents", "senders", "numbered", "refused_packets", "troubled", "latest_request",
        "has_late", "has_copies", "generation" }) do
        fresh[name], peer[name] = me[name], you[name]
    end
    if me == you then
        peer = fresh
    end
    c.speech = new_speech(is_of_rdm(c.speech))
    if c.near == me then
        c.near, c.far = fresh, peer
    else
        c.near, c.far = peer, fresh
    end
    return fresh, peer
end

-- Whether no packet can have been sent before: the first request of a queue pair, message 0 to a
-- peer that does not know the sender yet, or a request for a handshake.
function Identity.begins_conversation(p, context)
    if not p.packet.is_req or not has_bit(p.flags, REQ_FLAG.raw_addr_hdr) then
        return false
    end
    return context.sequence == 0 and not context.retransmission or p.msg_id == 0
        or p.packet.family == "rtw" and p.rma_iov_count == 0
end

-- An endpoint's connection id as it states it or, before it does, as its peer states it.
function Identity.known(side)
    return side.connid or side.addressed
end

-- Takes the connection id that a frame stated, or was sent to.
function Identity.confirm(side, connid, frame)
    if connid and connid == Identity.known(side) then
        if side.confirmed ~= connid then
            side.confirmed, side.known_from = connid, frame
        end
        side.known_until = frame
    end
end

-- Whether a connection id belongs to a new endpoint.
function Identity.is_another(side, connid)
    local known = Identity.known(side)
    return known and known ~= connid and not side.former_connids[connid]
end

-- Starts again if a packet without a raw address is not between the known endpoints. If its number
-- proves that it is, its id is wrong. The capture may lack frames in between.
function Identity.end_after_break(c, me, you, p, context)
    local before = me.run
    me.run = context.run or before
    -- As long as its numbers go on, the queue pair has not been replaced.
    context.is_same = context.has_direction and context.is_own and context.run and context.run == me.named_run
    -- After packets of another protocol only the Q-key is known.
    local is_foreign = c.speech.invalid > 0 and not is_of_rdm(c.speech)
    local named = p["raw_addr.connid"] or p.connid
    if is_foreign and (named and Identity.is_another(me, named) or Identity.is_another(you, context.qkey)) then
        me, you = Identity.begin_anew(c, me, you)
        c.from_start = Identity.begins_conversation(p, context)
        return me, you
    end
    if p["raw_addr.connid"] then
        return me, you
    end
    local told, known = p.connid, Identity.known(me)
    local is_to_another = Identity.is_another(you, context.qkey)
    local is_other = told and Identity.is_another(me, told)
    if not is_to_another and not is_other then
        return me, you
    end
    -- The numbers of arriving packets have gaps, so they prove less.
    local is_next = context.has_direction and context.is_own
    -- If its id became known after the last packet with the peer's old one, both are new.
    local is_known = told and told == known and me.known_from and you.known_until
        and me.known_from <= you.known_until
    -- The first packet that arrives with another connection id than the one that the near end sent
    -- to is from a later endpoint, unless the capture is complete from the beginning.
    local is_first = not before and not is_next and (c.from_start or not is_other)
    local follows = not context.run or before == context.run or is_first
    if follows and (is_next or not is_to_another or is_known) then
        return me, you
    end
    note(context.frame, "qpn-reused", "the endpoints are others, and frames between are missing")
    me, you = Identity.begin_anew(c, me, you)
    c.from_start = false
    return me, you
end

-- The endpoint of a raw address.
function Identity.endpoint_named(p)
    return format("[%s]:%d", tostring(p.tvb(p.gid_offset, 16):ipv6()), p["raw_addr.qpn"])
end

-- Whether the queue pair has begun anew since the endpoint's last packet, with the same connection id:
-- its peer cannot know, and goes on with the numbers of the earlier endpoint.
function Identity.keeps_connid(me, p, context, named)
    local key = tostring(context.is_own) .. me.endpoint
    local first = state.first_packets[key]
    if context.sequence == 0 then
        local content = p.tvb:raw()
        if not first then
            first = { content = content, connid = named, generation = 0 }
            state.first_packets[key] = first
        elseif first.content ~= content then
            first.is_kept = named and named == first.connid
            first.content, first.connid, first.generation = content, named, first.generation + 1
        end
    end
    if not first or first.generation <= (me.generation or 0) then
        return false
    end
    me.generation = first.generation
    return first.is_kept and named == me.connid
end

-- Returns the ends of the conversation, and whether the packet is late: from or to an endpoint that
-- no longer exists.
function Identity.check(c, me, you, p, context)
    local frame = context.frame
    local raw = p["raw_addr.connid"]
    local named = raw or p.connid
    if Identity.keeps_connid(me, p, context, named) then
        note(frame, "connid-fresh", format("the queue pair begins anew, with connection id 0x%08x as before",
            named))
        local peer = you.connid
        me, you = Identity.begin_anew(c, me, you)
        you.connid = peer
        me.connid, c.from_start = named, false
    end
    if p["raw_addr.qpn"] then
        local named = Identity.endpoint_named(p)
        if named ~= me.endpoint then
            note(frame, "raw-address-true", format("%s names itself %s", me.endpoint, named))
        end
    end
    if raw and Identity.is_another(me, raw) and not context.is_same then
        note(frame, "qpn-reused", format("connection id 0x%08x instead of 0x%08x", raw, Identity.known(me)))
        local peer_connid = you.connid
        if me.connid then
            me.former_connids[me.connid] = true
        end
        me, you = Identity.begin_anew(c, me, you)
        me.connid = raw
        if me ~= you and peer_connid == context.qkey then
            you.connid = peer_connid
        end
        c.from_start = Identity.begins_conversation(p, context)
    elseif raw and me ~= you and Identity.is_another(you, context.qkey) then
        -- The sender states another connection id of the receiver than before: the receiver is new,
        -- or the sender is wrong.
        local connid = me.connid
        me, you = Identity.begin_anew(c, me, you)
        me.connid, c.from_start = connid, false
    end
    for _, connid in ipairs({ raw or p.connid, raw and p.connid }) do
        if me.former_connids[connid] then
            note(frame, "late-packet", format("connection id 0x%08x of an earlier endpoint", connid))
            return me, you, true
        end
        me.connid = me.connid or connid
        if connid == me.connid then
            me.named_run = context.run or me.named_run
        else
            note(frame, "connid-true", format("connection id 0x%08x, the endpoint's is 0x%08x", connid,
                me.connid))
        end
    end
    if you.connid and context.qkey ~= you.connid then
        if you.former_connids[context.qkey] then
            note(frame, "late-packet", format("Q-key 0x%08x of an earlier endpoint", context.qkey))
            return me, you, true
        end
        note(frame, "qkey-true", format("Q-key 0x%08x, but the receiver's is 0x%08x", context.qkey,
            you.connid))
    end
    you.addressed = context.qkey
    Identity.confirm(me, named, frame)
    Identity.confirm(you, context.qkey, frame)
    return me, you, false
end

-- Takes a packet that could be one of the protocol, and may prove that it is.
function Identity.hear(c, me, p, frame)
    local speech = c.speech
    speech.valid = speech.valid + 1
    speech.is_rdm = speech.is_rdm or p.code == TYPE.HANDSHAKE
        or p["raw_addr.qpn"] and Identity.endpoint_named(p) == me.endpoint
    if not speech.is_rdm then
        state.speech_of[frame] = speech
    end
end

-- Takes an unreadable send. The current owners of the queue pairs may speak another protocol.
function Identity.take_malformed(c, me, you, context)
    local is_first = context.sequence == 0 and not context.retransmission
    local is_restart = context.is_own and is_first and me.has_packets
    local is_to_unknown = c.speech.is_rdm and not Identity.known(you)
    if is_restart or is_to_unknown or Identity.is_another(you, context.qkey) then
        me, you = Identity.begin_anew(c, me, you)
        c.from_start, c.is_later = nil, true
    end
    you.addressed = you.addressed or context.qkey
    c.speech.invalid = c.speech.invalid + 1
    state.speech_of[context.frame] = c.speech
end

local function has_any_bit(value, bits)
    for _, bit in ipairs(bits) do
        if has_bit(value, bit) then
            return true
        end
    end
    return false
end

local function check_features(c, me, you, p, frame)
    local needed = p.packet and p.packet.needs
    -- An endpoint knows its own features.
    if not needed or p.code == TYPE.PEER_ERROR and me.endpoint == you.endpoint then
        return
    end
    local name = FEATURES[needed[1]]
    if you.handshake then
        if not has_any_bit(you.features, needed) then
            note(frame, "feature-announced", format("%s needs %s, which the peer's handshake in frame %d lacks",
                p.name, name, you.handshake))
        end
    elseif c.from_start then
        note(frame, "feature-early", format("%s needs %s, and the peer has not announced anything yet",
            p.name, name))
    end
end

local function sender_version(p)
    local features = p.features or 0
    for _, entry in ipairs(VERSION_OF_FEATURE) do
        if has_bit(features, entry[1]) then
            return "as libfabric " .. entry[2]
        end
    end
    return "as libfabric 1.10 or later"
end

local FOLLOW = {} -- by packet type: the function that begins or continues a transfer

-- A block of its own: Lua permits 200 local variables at a time.
do
    local function never_granted(c, p, name, id, frame)
        if c.from_start then
            local rule = p.code == TYPE.CTSDATA and "ctsdata-names-cts" or "answer-names-request"
            note(frame, rule, format("%s %.0f names no operation of the receiver", name, id))
        end
    end

    -- The length of a message or write, the offset of the packet's data, and the message's bytes in
    -- requests.
    local function message_of(p)
        local names = p.packet.message
        return p[names.length], p[names.offset] or 0, p[names.in_requests] or 0
    end

    -- `in_requests`: bytes that need no CTS.
    local function begin(c, me, p, frame, now, length, in_requests)
        local operation = p.packet.tagged and "tagged message" or OPERATIONS[p.packet.family]
        local transfer = new_transfer(c, operation, p.packet.starts or p.name, me, length, now)
        transfer.kind = p.packet.family
        join(transfer, frame, now)
        if p.send_id then
            me.send_ops[p.send_id] = transfer
        end
        if p.recv_id then
            local ops = p.packet.family == "rta" and me.fetch_ops or me.recv_ops
            ops[p.recv_id] = transfer
            transfer.awaits_answer = true
        end
        transfer.dc = p.packet.dc
        if p.packet.read then
            transfer.iovs = p.read_iov
            table.insert(me.long_reads, transfer)
        end
        transfer.in_requests = in_requests
        -- Later also the bytes that each CTS grants.
        transfer.granted = math.min(in_requests, length)
        if p.packet.windowed and p.data_length > length then
            note(frame, "segment-bounds", format("%d bytes, in a message of %.0f", p.data_length, length))
            transfer.bytes, transfer.runs = length, { { first = 0, last = length } }
        end
        return transfer
    end

    -- The values that all segments of a message must share.
    local function shape_of(p, length, in_requests)
        local tag = p.plan.offsets.tag
        return format("%s of %.0f bytes, %.0f of them in packets, send_id %.0f, tag %s", p.name, length,
            in_requests, p.send_id or 0, tag and hex64(p.tvb, tag) or "none")
    end

    local function finish_if_whole(transfer, p, frame, now)
        if transfer.bytes >= transfer.in_requests then
            transfer.shape = nil -- a packet of the same number is another message
            if transfer.bytes >= transfer.length and not transfer.dc
                and (p.packet.segment or not p.packet.read) then
                finish(transfer, frame, now)
            end
        end
    end

    -- Whether a packet begins another message than the known one with its msg_id: the device failed
    -- to send a packet of the known one, and none has arrived.
    local function is_given_up(me, known, p, shape)
        local first = p.seg_offset
        local last = first + p.data_length
        local repeats = shape ~= known.shape
        for _, run in ipairs(known.runs or {}) do
            repeats = repeats or first < last and run.first < last and first < run.last
        end
        return repeats and me.lost_messages[p.msg_id]
    end

    local function follow_message(c, me, you, p, frame, now)
        local known = me.messages[p.msg_id]
        local answers_nack = p.packet.windowed and has_bit(p.flags, REQ_FLAG.read_nack)
        if known and answers_nack then
            known.subprotocol = known.subprotocol .. ", continued as long-CTS"
            known.dc = known.dc or p.packet.dc
            me.send_ops[p.send_id] = known
            join(known, frame, now)
            return
        end
        local length, offset, in_requests = message_of(p)
        local shape = p.packet.segment and shape_of(p, length, in_requests)
        if known and known.shape and shape and not is_given_up(me, known, p, shape) then
            if shape ~= known.shape then
                note(frame, "segment-agreement", format("%s; it began as %s", shape, known.shape))
            end
            join(known, frame, now)
            add_segment(known, p, offset, frame, in_requests)
            finish_if_whole(known, p, frame, now)
            return
        end
        local transfer = begin(c, me, p, frame, now, length, in_requests)
        if not answers_nack then
            put_in_order(me, transfer, p, frame, c.from_start)
        end
        if p.packet.segment and me.messages[p.msg_id] == transfer then
            transfer.shape = shape
        end
        if not transfer.runs then
            add_segment(transfer, p, offset, frame, in_requests)
        end
        finish_if_whole(transfer, p, frame, now)
    end

    local function follow_write(c, me, you, p, frame, now)
        local length, offset, in_requests = message_of(p)
        local transfer = begin(c, me, p, frame, now, length, in_requests)
        if p.code == TYPE.EAGER_RTW and p.rma_iov_count == 0 then
            transfer.operation, transfer.subprotocol = "handshake", "Request for a handshake"
        end
        if not transfer.runs then
            add_segment(transfer, p, offset, frame, in_requests)
        end
        finish_if_whole(transfer, p, frame, now)
    end

    -- This frame permits bytes from `first` on to be sent. Windows come in the order of the bytes.
    local function open_window(transfer, first, frame)
        transfer.windows = transfer.windows or {}
        transfer.windows[#transfer.windows + 1] = { first = first, frame = frame }
    end

    -- Links data at `offset` with the frame that granted it.
    local function use_window(transfer, offset, frame)
        local windows = transfer.windows or {}
        local low, high = 0, #windows -- the last one that begins before the data
        while low < high do
            local middle = math.ceil((low + high) / 2)
            if windows[middle].first <= offset then
                low = middle
            else
                high = middle - 1
            end
        end
        if low > 0 then
            local granted = windows[low].frame
            state.granted_of[frame] = granted
            state.data_of[granted] = state.data_of[granted] or frame
        end
    end

    local function follow_read(c, me, you, p, frame, now)
        local transfer = begin(c, me, p, frame, now, p.msg_length, p.recv_length)
        open_window(transfer, 0, frame)
        if p.code == TYPE.LONGCTS_RTR and p.recv_length == 0 then
            note(frame, "cts-positive", "the responder cannot go on with that")
        end
    end

    local function follow_atomic(c, me, you, p, frame, now)
        local transfer = begin(c, me, p, frame, now, iov_total(p.rma_iov, "rma_iov"), p.data_length)
        put_in_order(me, transfer, p, frame, c.from_start)
        if not transfer.awaits_answer and not transfer.dc then
            finish(transfer, frame, now)
        end
    end

    for code, packet in pairs(PACKETS) do
        FOLLOW[code] = ({
            rtm = follow_message, rtw = follow_write, rtr = follow_read, rta = follow_atomic,
        })[packet.family]
    end

    -- CTS: the owner of send_id may send recv_length bytes with recv_id.
    FOLLOW[TYPE.CTS] = function(c, me, you, p, frame, now)
        if p.recv_length == 0 then
            note(frame, "cts-positive", "the sender cannot go on with that")
        end
        local transfer = you.send_ops[p.send_id]
        if not transfer or transfer.done then
            return never_granted(c, p, "send_id", p.send_id, frame)
        end
        join(transfer, frame, now)
        respond(transfer, frame, now)
        local says_read, is_read = has_bit(p.flags, CTS_FLAG.emulated_read), transfer.kind == "rtr"
        if says_read ~= is_read then
            note(frame, "cts-read-flag", format("it %s the flag 0x80, and the window is for %s emulated read",
                says_read and "has" or "lacks", is_read and "an" or "no"))
        end
        open_window(transfer, transfer.granted, frame)
        transfer.granted = transfer.granted + p.recv_length
        if transfer.length and transfer.granted > transfer.length then
            note(frame, "cts-window", format("%.0f bytes are granted, but the message has %.0f",
                transfer.granted, transfer.length))
        end
        if transfer.recv_id and transfer.recv_id ~= p.recv_id then
            never_granted(c, p, "recv_id", p.recv_id, frame)
        end
        transfer.recv_id = p.recv_id
        me.recv_ops[p.recv_id] = transfer
    end

    local function stream(transfer, p, offset, frame, now)
        add_segment(transfer, p, offset, frame)
        use_window(transfer, offset, frame)
        if transfer.bytes > transfer.granted then
            note(frame, "cts-window", format("%.0f bytes were sent, but only %.0f granted",
                transfer.bytes, transfer.granted))
        end
        if transfer.length and transfer.bytes >= transfer.length and not transfer.dc
            and not transfer.awaits_answer then
            finish(transfer, frame, now)
        end
    end

    -- CTSDATA
    FOLLOW[TYPE.CTSDATA] = function(c, me, you, p, frame, now)
        local transfer = you.recv_ops[p.recv_id]
        if not transfer then
            return never_granted(c, p, "recv_id", p.recv_id, frame)
        end
        join(transfer, frame, now)
        stream(transfer, p, p.seg_offset, frame, now)
    end

    -- The request that a READRSP or ATOMRSP answers.
    local function answered_request(c, ops, p, frame, now)
        local transfer = ops[p.recv_id]
        if not transfer or not transfer.awaits_answer then
            return never_granted(c, p, "recv_id", p.recv_id, frame)
        end
        transfer.awaits_answer = nil
        join(transfer, frame, now)
        respond(transfer, frame, now)
        return transfer
    end

    -- READRSP
    FOLLOW[TYPE.READRSP] = function(c, me, you, p, frame, now)
        local transfer = answered_request(c, you.recv_ops, p, frame, now)
        if transfer then
            me.send_ops[p.send_id] = transfer
            transfer.recv_id = p.recv_id
            stream(transfer, p, 0, frame, now)
        end
    end

    -- ATOMRSP
    FOLLOW[TYPE.ATOMRSP] = function(c, me, you, p, frame, now)
        local transfer = answered_request(c, you.fetch_ops, p, frame, now)
        if transfer then
            finish(transfer, frame, now)
        end
    end

    -- EOR acknowledges a read by the peer, RECEIPT acknowledges delivery.
    local function follow_acknowledgement(is_due)
        return function(c, me, you, p, frame, now)
            local transfer = you.send_ops[p.send_id]
            if not transfer or not is_due(transfer) then
                return never_granted(c, p, "send_id", p.send_id, frame)
            end
            join(transfer, frame, now)
            respond(transfer, frame, now)
            if transfer.acknowledged then
                note(frame, "one-answer", format("acknowledged in frame %d already", transfer.acknowledged))
            end
            transfer.acknowledged = frame
            finish(transfer, frame, now)
        end
    end
    FOLLOW[TYPE.EOR] = follow_acknowledgement(function(transfer) return transfer.iovs end)
    FOLLOW[TYPE.RECEIPT] = follow_acknowledgement(function(transfer) return transfer.dc end)

    -- HANDSHAKE
    FOLLOW[TYPE.HANDSHAKE] = function(c, me, you, p, frame, now)
        if me.handshake then
            note(frame, "handshake-once", format("the first was in frame %d", me.handshake))
        else
            me.handshake = frame
            me.features, me.version, me.device_version = p.features, sender_version(p), p.device_version
        end
        me.announced = {
            frame = me.handshake, version = me.version, features = me.features,
            device = me.device_version,
        }
        -- Shared by all packets until the next handshake.
        me.negotiated = { sender = me.announced, receiver = you.announced }
        you.negotiated = { sender = you.announced, receiver = me.announced }
        if you.handshake and you.features and has_bit(you.features, FEATURE.read_nack) and not p.device_version then
            note(frame, "device-version",
                "receivers of libfabric 1.20 and later read the field without looking whether it is there")
        end
        if p["user_recv_qp.qpn"] then
            local gid = me.endpoint:match("^%[.*%]")
            state.user_recv_qps[format("%s:%d", gid, p["user_recv_qp.qpn"])] = true
        end
        local transfer = c.handshake
        if not transfer or #transfer.frames >= 2 then
            transfer = new_transfer(c, "handshake", "Handshake", me, nil, now)
            c.handshake = transfer
        else
            respond(transfer, frame, now)
            finish(transfer, frame, now)
        end
        join(transfer, frame, now)
    end

    -- READ_NACK
    FOLLOW[TYPE.READ_NACK] = function(c, me, you, p, frame, now)
        local transfer = you.send_ops[p.send_id]
        note(frame, "read-refused", "the sender has to send the data in packets instead")
        if not transfer then
            return never_granted(c, p, "send_id", p.send_id, frame)
        end
        join(transfer, frame, now)
        respond(transfer, frame, now)
    end

    -- PEER_ERROR
    FOLLOW[TYPE.PEER_ERROR] = function(c, me, you, p, frame, now)
        note(frame, "peer-error", format("provider error %.0f", p.prov_errno))
        if not OPE_TYPES[p.emitter_ope_type] then
            return c.from_start and note(frame, "peer-error-message",
                format("emitter_ope_type %.0f names no side of a message", p.emitter_ope_type))
        end
        -- The message decides, not op_id, which may be reused.
        local is_source = p.emitter_ope_type == OPE_TYPE.TXE
        local source = is_source and me or you
        local transfer = source.messages[p.msg_id]
        if transfer then
            source.lost_messages[p.msg_id] = nil
            join(transfer, frame, now)
            return finish(transfer, frame, now)
        end
        local named = p.op_id ~= NO_OPERATION and (is_source and you.recv_ops or you.send_ops)[p.op_id]
        if named and named.kind ~= "rtm" and c.from_start then
            note(frame, "peer-error-message", format("op_id %.0f names the operation of frame %d", p.op_id,
                named.frames[1]))
        end
    end
end

local function count(name, bytes)
    local entry = state.counts[name]
    if not entry then
        entry = { packets = 0, bytes = 0 }
        state.counts[name] = entry
    end
    entry.packets = entry.packets + 1
    entry.bytes = entry.bytes + bytes
end

-- When the device gives up, libfabric sends a refused packet again, as a new request.
local MOST_IN_FLIGHT = 4096
local Refused = { RAW_ADDR_SIZE_WIDTH = 4, CONNID_WIDTH = 4 }

-- The whole packet except the headers that identify its sender, which may change when it is sent
-- again.
function Refused.content_of(p)
    local bytes, flags = p.tvb:raw(0, p.length), p.flags
    local cuts = {}
    if p.gid_offset then
        local first = p.gid_offset - Refused.RAW_ADDR_SIZE_WIDTH
        cuts[#cuts + 1] = { first, p.gid_offset + p["raw_addr.size"] }
    end
    if p.connid_offset then
        cuts[#cuts + 1] = { p.connid_offset, p.connid_offset + Refused.CONNID_WIDTH }
    end
    for _, bit in ipairs(p.packet.is_req and { REQ_FLAG.connid_hdr, REQ_FLAG.raw_addr_hdr }
        or { REQ_FLAG.connid_hdr }) do
        if has_bit(flags, bit) then
            flags = flags - 2 ^ bit
        end
    end
    table.sort(cuts, function(a, b) return a[1] > b[1] end)
    for _, cut in ipairs(cuts) do
        bytes = bytes:sub(1, cut[1]) .. bytes:sub(cut[2] + 1)
    end
    return format("%02x:%04x:", p.code, flags) .. bytes:sub(5)
end

-- The number of packets without a number that are kept after a refusal or a repetition.
Refused.MOST_TROUBLED = 1024

-- Remembers a packet that did not arrive at the first attempt. A message or atomic is forgotten
-- when it is sent again; an equal packet of another operation may follow at any time.
function Refused.remember(me, content, packet, is_numbered)
    if not is_numbered and not me.refused_packets[content] then
        local order = me.troubled
        order.last = order.last + 1
        order[order.last] = content
        if order.last - order.first >= Refused.MOST_TROUBLED then
            me.refused_packets[order[order.first]] = nil
            order[order.first], order.first = nil, order.first + 1
        end
    end
    me.refused_packets[content] = packet
end

-- Whether the conversation waits for a packet without a number, so that an equal earlier one had no
-- effect.
Refused.MISSES = {}
do
    local MISSES = Refused.MISSES
    local function acknowledgement(me, you, p)
        local transfer = you.send_ops[p.send_id]
        return transfer and not transfer.acknowledged
    end
    local function answer(of)
        return function(me, you, p)
            local transfer = of(you)[p.recv_id]
            return transfer and transfer.awaits_answer
        end
    end
    MISSES[TYPE.EOR], MISSES[TYPE.RECEIPT] = acknowledgement, acknowledgement
    MISSES[TYPE.READRSP] = answer(function(side) return side.recv_ops end)
    MISSES[TYPE.ATOMRSP] = answer(function(side) return side.fetch_ops end)
    MISSES[TYPE.HANDSHAKE] = function(me) return not me.handshake end
    MISSES[TYPE.READ_NACK] = function(me, you, p)
        local transfer = you.send_ops[p.send_id]
        return transfer and not transfer.response
    end
    MISSES[TYPE.CTS] = function(me, you, p)
        local transfer = you.send_ops[p.send_id]
        return transfer and not transfer.done and transfer.bytes >= transfer.granted
            and transfer.granted < (transfer.length or 0)
    end
    MISSES[TYPE.CTSDATA] = function(me, you, p)
        local transfer = you.recv_ops[p.recv_id]
        if not transfer then
            return false
        end
        for _, run in ipairs(transfer.runs or {}) do
            if p.seg_offset < run.last and run.first < p.seg_offset + p.data_length then
                return false
            end
        end
        return true
    end
end
-- Writes and reads have ids, which are reused after an operation is complete.
function Refused.MISSES.request(me, you, p)
    local transfer = p.recv_id and me.recv_ops[p.recv_id] or p.send_id and me.send_ops[p.send_id]
    return not transfer or transfer.done
end

function Refused.find(context, me, you, p)
    local sequence = context.sequence
    local content = format("%08x:", context.qkey) .. Refused.content_of(p)
    local connid = p["raw_addr.connid"] or p.connid
    local number = p.packet.is_req and p.msg_id or nil
    me.contents[sequence], me.contents[sequence - MOST_IN_FLIGHT] = content, nil
    me.senders[sequence], me.senders[sequence - MOST_IN_FLIGHT] = connid, nil
    me.numbered[sequence], me.numbered[sequence - MOST_IN_FLIGHT] = number, nil
    local refused = me.refused_packets[content]
    if context.retransmission and (context.retry_of or not refused) then
        -- A request that the device repeats may be refused again, if the capture lacks a frame.
        if not number or not refused then
            local packet = { request = context.retry_of or context.frame, connid = connid }
            Refused.remember(me, content, packet, false)
        end
        return
    end
    local is_due = refused and refused.is_due
    if refused then
        refused.is_due = false
    end
    -- An equal packet of another endpoint is another packet.
    if not refused or connid and refused.connid and connid ~= refused.connid then
        return
    end
    if number then
        me.refused_packets[content] = nil
    else
        -- If it is not known whether the packet is missed, it is sent again once for each refusal.
        local misses = Refused.MISSES[p.code] or (p.recv_id or p.send_id) and Refused.MISSES.request
        local is_missed = not is_due
        if misses then
            is_missed = misses(me, you, p)
        end
        if is_missed then
            return
        end
    end
    context.retry_of = refused.request
    state.retry_of[context.frame] = context.retry_of
end

-- The device of `me` has received an answer to the request with this sequence number.
function Refused.end_packet(me, sequence, status, request)
    local content, id, connid = me.contents[sequence], me.numbered[sequence], me.senders[sequence]
    local message = id and me.messages[id]
    me.contents[sequence], me.numbered[sequence], me.senders[sequence] = nil, nil, nil
    if status == 0 then
        if content then
            me.refused_packets[content] = nil
        end
        if message then
            me.lost_messages[id], message.has_arrived = nil, true
        end
    elseif content and status ~= STATUS.LOCAL_UNRESPONSIVE_REMOTE then -- it may have arrived without an answer
        Refused.remember(me, content, { request = request, connid = connid, is_due = true }, id)
        if message and status ~= STATUS.REMOTE_RNR then
            me.lost_messages[id] = not message.has_arrived
        end
    end
end

-- The capture truncated the header of a packet of `me`: the operations that it began or ended are
-- unknown.
local function miss(c, me)
    c.is_torn, c.from_start, me.expected = true, false, nil
end

local function follow_packet(context, p)
    local c, me, you = context.conversation, context.me, context.you
    local frame, now = context.frame, context.now
    if context.is_sighting then
        state.speech_of[frame] = p.malformed and c.speech or nil
        return
    end
    count(p.name, p.reported)
    if p.malformed then
        return Identity.take_malformed(c, me, you, context)
    end
    if p.truncated then
        Identity.hear(c, me, p, frame)
        return miss(c, me)
    end
    if c.from_start == nil then
        -- A packet without an address that arrives first may be a late one, for a predecessor. An
        -- endpoint that begins with an answer has received packets that are not in the capture.
        local is_from_start = state.first_sent[context.has_direction][c.near.endpoint]
            and not c.is_later and p.packet.is_req and (context.is_own or has_bit(p.flags, REQ_FLAG.raw_addr_hdr))
        c.from_start = is_from_start or Identity.begins_conversation(p, context)
    end
    me, you = Identity.end_after_break(c, me, you, p, context)
    Refused.find(context, me, you, p)
    if context.retry_of then
        local transfer = state.transfer_of[context.retry_of]
        if transfer then
            transfer.retries = transfer.retries + 1
            join(transfer, frame, now)
        end
        return Identity.hear(c, me, p, frame)
    end
    local is_late
    me, you, is_late = Identity.check(c, me, you, p, context)
    Identity.hear(c, me, p, frame)
    if is_late then
        return
    end
    me.has_packets = true
    check_features(c, me, you, p, frame)
    if p.packet.is_req and c.from_start and not you.handshake
        and not has_bit(p.flags, REQ_FLAG.raw_addr_hdr) then
        note(frame, "raw-address-first",
            "the peer has sent no handshake yet, so it may not know who sends this")
    end
    local follow = FOLLOW[p.code]
    if follow then
        follow(c, me, you, p, frame, now)
    end
    state.negotiated_of[frame] = me.negotiated
end

-- The long-read transfer whose memory an RDMA read of the peer accesses, and the offset in its
-- message.
local function long_read_of(owner, h)
    local long_reads = owner.long_reads
    for i = #long_reads, math.max(1, #long_reads - 255), -1 do
        local transfer = long_reads[i]
        if transfer.done then
            table.remove(long_reads, i)
        else
            local before = 0
            for _, iov in ipairs(transfer.iovs or {}) do
                local first, length = iov["read_iov.addr"], iov["read_iov.len"]
                if iov["read_iov.key"] % 2 ^ 32 == h.rdma_remote_key and h.rdma_remote_address >= first
                    and h.rdma_remote_address + h.rdma_total_length <= first + length then
                    return transfer, before + h.rdma_remote_address - first
                end
                before = before + length
            end
        end
    end
end

-- The run of consecutive request numbers that this request belongs to, for a queue pair in the view
-- of one end.
local NEAR_NUMBERS = 64
local function run_of(context, me, sequence)
    local is_next = context.has_direction and context.is_own
    local key = format("%s%s%s", context.has_direction, context.is_own, me.endpoint)
    local latest = state.latest[key]
    if not latest then
        latest = { sequence = sequence - 1, run = 0 }
        state.latest[key] = latest
    end
    local distance = (sequence - latest.sequence) % 2 ^ 32
    local follows = distance == 1
    if not is_next then
        follows = (distance + NEAR_NUMBERS) % 2 ^ 32 <= 2 * NEAR_NUMBERS
    end
    latest.sequence, latest.run = sequence, latest.run + (follows and 0 or 1)
    return latest.run
end

-- Links the frames of one request by its sequence number, and finds transfers of RDMA.
local function follow_frame(context, h, tvb)
    local c, me, you = context.conversation, context.me, context.you
    local frame, now, sequence = context.frame, context.now, h.sequence
    local name = OPCODES[h.opcode]
    count(name, h.data_length)
    me.packets, me.bytes = me.packets + 1, me.bytes + h.data_length
    state.negotiated_of[frame] = me.negotiated
    if IS_ANSWER[h.opcode] then
        local request = you.requests[sequence]
        if request then
            state.request_of[frame] = request
            state.response_time_of[frame] = now - you.request_times[sequence]
            if not state.response_of[request] then
                state.response_of[request] = frame
            end
        end
        if name == "RESPONSE" then
            c.has_stray_answer = c.has_stray_answer or not request
            Refused.end_packet(you, sequence, h.status, request)
        end
        local transfer = you.rdma[sequence]
        if not transfer and request then
            transfer = state.transfer_of[request]
        end
        if transfer then
            join(transfer, frame, now)
            if name == "RDMA_READ_RESPONSE" then
                transfer.bytes = transfer.bytes + h.payload_length
                if transfer.kind == "rdma" then
                    respond(transfer, frame, now)
                end
                if h.data_length > 0 and tvb:len() == tvb:reported_len() then
                    keep(transfer, you.rdma_base[sequence] + h.rdma_offset, tvb, h.header_length,
                        h.data_length)
                end
                if transfer.kind == "rdma" and transfer.bytes >= transfer.length then
                    finish(transfer, frame, now)
                end
            end
        end
        return
    end
    me.latest_request = me.latest_request or sequence
    if not h.retransmission then
        -- The number 0 begins the next queue pair.
        me.has_late = me.has_late or sequence > 0 and sequence < me.latest_request
        me.latest_request = sequence
    end
    local earlier = me.requests[sequence]
    local continues = name == "RDMA_WRITE" and h.rdma_offset > 0
    if not context.has_direction and not continues then
        -- Without directions, two equal frames are one frame, seen at both ends.
        local data = h.header_length < tvb:len() and tvb:raw(h.header_length) or ""
        local identity = format("%d:%x:%s:%s:%s:", h.opcode, h.qkey, h.rdma_remote_address, h.rdma_remote_key,
            h.rdma_total_length) .. data
        if earlier and not h.retransmission and me.identities[sequence] == identity then
            context.is_sighting, me.has_copies = true, true
            state.without_header[frame] = state.without_header[earlier]
            return
        end
        me.identities[sequence - MOST_IN_FLIGHT] = nil
        if not earlier or not h.retransmission then
            me.identities[sequence] = identity
        end
    end
    if earlier and not continues and h.retransmission then
        -- The first of them: its program may have sent it again before.
        earlier = state.retry_of[earlier] or earlier
        state.retry_of[frame] = earlier
        context.retry_of = earlier
    elseif not continues then
        me.requests[sequence], me.request_times[sequence] = frame, now
        me.rdma[sequence] = nil
        context.run = run_of(context, me, sequence)
    end
    if h.retransmission then
        note(frame, "retransmission", earlier and earlier ~= frame
            and format("first sent in frame %d", earlier) or "the first attempt is not in the capture")
    end
    if name == "RDMA_READ_REQUEST" or name == "RDMA_WRITE" then
        local transfer, base = me.rdma[sequence], 0
        if not transfer and name == "RDMA_READ_REQUEST" then
            transfer, base = long_read_of(you, h)
            me.rdma_base[sequence] = base or 0
        end
        if not transfer then
            local operation = name == "RDMA_WRITE" and "write" or "read"
            transfer = new_transfer(c, operation, "Direct " .. operation, me, h.rdma_total_length, now)
            transfer.kind = "rdma"
        end
        me.rdma[sequence] = transfer
        join(transfer, frame, now)
        if name == "RDMA_WRITE" and not context.retry_of then
            transfer.bytes = transfer.bytes + h.payload_length
            if transfer.bytes >= transfer.length then
                finish(transfer, frame, now)
            end
            if h.data_length > 0 and tvb:len() == tvb:reported_len() then
                keep(transfer, h.rdma_offset, tvb, h.header_length, h.data_length)
            end
        end
    elseif name == "SEND" and state.user_recv_qps[you.endpoint] then
        state.without_header[frame] = true
        local transfer = new_transfer(c, "message", "Message without header", me, h.payload_length,
            now)
        join(transfer, frame, now)
        finish(transfer, frame, now)
    end
end

-- ------------------------------------------------------------------------------------------------
-- Showing packets
-- ------------------------------------------------------------------------------------------------

-- The line in the packet list: the type, the identification of the operation, and its length.
local function summary(p)
    if not p.packet then
        return p.name
    end
    local parts = { p.name }
    for _, field in ipairs(p.plan.info) do
        local name, label = field[1], field[2]
        local value = p[name]
        if name == "tag" and value then
            parts[#parts + 1] = "tag=" .. hex64(p.tvb, p.plan.offsets.tag)
        elseif value then
            parts[#parts + 1] = format("%s=%.0f", label, value)
        end
    end
    if p.atomic_op then
        parts[#parts + 1] = format("%s %s", ATOMIC_OPS[p.atomic_op] or p.atomic_op,
            DATATYPES[p.atomic_datatype] or p.atomic_datatype or "?")
    end
    if p.code == TYPE.HANDSHAKE and p.extra_info and p.extra_info[1] then
        parts[#parts + 1] = "features=" .. hex64(p.tvb, p.plan.size)
    end
    if p.device_version then
        parts[#parts + 1] = format("device=0x%x", p.device_version)
    end
    if p.msg_length then
        parts[#parts + 1] = format("len=%.0f", p.msg_length)
    end
    local of_segment = p.msg_length or p.packet.family == "control"
    if p.data_length > 0 or not p.msg_length and p.packet.family == "rtm" then
        parts[#parts + 1] = format(of_segment and "data=%d" or "len=%d", p.data_length)
    end
    if p.malformed then
        parts[#parts + 1] = "[malformed]"
    end
    return table.concat(parts, " ")
end

-- Most packets are never shown, and building the tree is most of the work. While a packet is not on
-- the screen, only the fields are added that a filter, a column or a tap requests.
local is_visible
-- The method of all trees. A lookup costs as much as a call.
local is_referenced
-- While tshark reads a capture for the first time, it requests the same fields of all frames: its
-- answer for a field, or for a list of fields, is valid for the next frame too.
local is_first_reading
local answers = {}
local function is_wanted(tree, field)
    if is_visible or not is_first_reading then
        return is_visible or is_referenced(tree, field)
    end
    local answer = answers[field]
    if answer == nil then
        answer = is_referenced(tree, field)
        answers[field] = answer
    end
    return answer
end

-- The entries {field, ...} of a list that may be requested.
local function wanted_entries(tree, entries)
    if is_visible or not is_first_reading then
        return entries
    end
    local wanted = answers[entries]
    if not wanted then
        wanted = {}
        for _, entry in ipairs(entries) do
            wanted[#wanted + 1] = is_referenced(tree, entry[1]) and entry or nil
        end
        answers[entries] = wanted
    end
    return wanted
end

function efa.init()
    reset_state()
    answers = {}
end

local function add_generated(tree, field, value)
    if value ~= nil and is_wanted(tree, field) then
        tree:add(field, value):set_generated()
    end
end

local function add_bits(tree, fields, range)
    for _, field in ipairs(fields) do
        if is_wanted(tree, field) then
            tree:add_le(field, range)
        end
    end
end

-- The fields of the flags of each type of packet, and of the features, highest bit first.
local function bit_fields(names, prefix)
    local fields = {}
    for bit = 63, 0, -1 do
        if names[bit] then
            fields[#fields + 1] = F[prefix .. names[bit]]
        end
    end
    return fields
end
for _, packet in pairs(PACKETS) do
    packet.flag_fields = bit_fields(packet.flag_names, "flags.")
end
local FEATURE_FIELDS = bit_fields(FEATURES, "extra_info.")

local KINDS, GROUP_OF = {}, {}
local PACKET_FIELDS = {} -- the fields that `tree_adder` may add
for name, field in pairs(F) do
    if GROUPS[name] or name:match("^flags%.") or name:match("^extra_info%.") then
        PACKET_FIELDS[#PACKET_FIELDS + 1] = { field }
    end
end
for _, field in ipairs(FIELDS) do
    PACKET_FIELDS[#PACKET_FIELDS + 1] = { F[field[1]] }
    KINDS[field[1]] = field[2]
    local group = field[1]:match("^([^.]*)%.")
    GROUP_OF[field[1]] = GROUPS[group] and group
end

-- The function that `walk` calls to add the fields of a packet to the tree.
local function tree_adder(p, tvb, tree)
    local group, group_index, group_item, group_start
    return function(field, offset, width, index)
        local name, parent = field[1], tree
        local wanted = GROUP_OF[name]
        if wanted and is_wanted(tree, F[wanted]) then
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
        local proto_field, kind = F[name], KINDS[name]
        local item = parent
        if is_wanted(tree, proto_field) then
            if kind == "bytes" or kind == "ipv6" then
                parent:add(proto_field, tvb(offset, width))
                return
            end
            item = parent:add_le(proto_field, tvb(offset, width))
        end
        if name == "flags" then
            add_bits(item, p.packet.flag_fields, tvb(offset, width))
            if p.plan.unknown_flags > 0 then
                add_generated(item, F["flags.unknown"], p.plan.unknown_flags)
            end
        elseif name == "extra_info" then
            if index == 0 then
                add_bits(item, FEATURE_FIELDS, tvb(offset, width))
            end
            if is_wanted(tree, F["extra_info.unknown"]) then
                add_generated(item, F["extra_info.unknown"], unknown_features(tvb, offset, index))
            end
        end
    end
end

-- ------------------------------------------------------------------------------------------------
-- The dissectors
-- ------------------------------------------------------------------------------------------------


local function show_issues(item, issues)
    if issues then
        for _, found in ipairs(issues) do
            if is_proven(found[3], found[4]) then
                item:add_proto_expert_info(found[1], found[2])
            end
        end
    end
end

local function nstime(seconds)
    local whole = floor(seconds)
    return NSTime.new(whole, floor((seconds - whole) * 1e9 + 0.5))
end

-- The frames of the transfer before and after this one.
local function neighbours(frames, frame)
    local low, high = 1, #frames
    while low < high do
        local middle = floor((low + high) / 2)
        if frames[middle] < frame then
            low = middle + 1
        else
            high = middle
        end
    end
    return frames[low - 1], frames[low + 1]
end

local function uint64(number)
    return UInt64(number % 2 ^ 32, floor(number / 2 ^ 32) % 2 ^ 32)
end

local function itself(value)
    return value
end

-- The fields of a frame's transfer: {field, function (transfer, frame, first, last) that returns
-- the value, function that converts it for display}. Cheap tests come first: whether there is a
-- value, then whether the field is requested, then the conversion.
local TRANSFER_FIELDS = {
    { "operation", function(transfer) return transfer.operation end },
    { "subprotocol", function(transfer) return transfer.subprotocol end },
    { "length", function(transfer) return transfer.length end, uint64 },
    { "order", function(transfer) return transfer.order end, uint64 },
    { "first_in", function(_, frame, first) return frame ~= first and first or nil end },
    { "previous_in", function(_, frame, first) return frame ~= first and frame or nil end,
        function(frame, transfer) return (neighbours(transfer.frames, frame)) end },
    { "next_in", function(_, frame, _, last) return frame ~= last and frame or nil end,
        function(frame, transfer)
            local _, following = neighbours(transfer.frames, frame)
            return following
        end },
    { "last_in", function(_, frame, _, last) return frame ~= last and last or nil end },
    { "request_in", function(_, frame, first)
        return state.transfer_response_time_of[frame] and first
    end },
    { "response_time", function(_, frame) return state.transfer_response_time_of[frame] end, nstime },
    { "response_in", function(transfer, frame, first)
        return frame == first and transfer.response or nil
    end },
    { "granted_in", function(_, frame) return state.granted_of[frame] end },
    { "data_in", function(_, frame) return state.data_of[frame] end },
    { "acknowledged_in", function(transfer, frame, first)
        return frame == first and transfer.acknowledged or nil
    end },
    { "delivered_in", function(transfer, frame)
        return transfer.delivered ~= frame and transfer.delivered or nil
    end },
    { "duration", function(transfer, frame, _, last)
        return frame == last and transfer.last_time - transfer.started or nil
    end, nstime },
    { "retries", function(transfer) return transfer.retries > 0 and transfer.retries or nil end },
}
for _, entry in ipairs(TRANSFER_FIELDS) do
    entry[1], entry[3] = F["transfer." .. entry[1]], entry[3] or itself
end

local function show_transfer(tree, frame)
    local transfer = state.transfer_of[frame]
    if not transfer then
        return
    end
    local item = tree
    if is_wanted(tree, F["transfer"]) then
        item = tree:add(F["transfer"], transfer.id)
        item:set_generated()
        item:append_text(": " .. transfer.subprotocol)
    end
    local first, last = transfer.frames[1], transfer.frames[#transfer.frames]
    for _, entry in ipairs(wanted_entries(tree, TRANSFER_FIELDS)) do
        local value = entry[2](transfer, frame, first, last)
        if value and is_wanted(tree, entry[1]) then
            item:add(entry[1], entry[3](value, transfer)):set_generated()
        end
    end
    if transfer.done == frame and is_wanted(tree, F["transfer.data"]) then
        local data = reassemble(transfer)
        if data then
            local tvb = ByteArray.new(data, true):tvb("Reassembled data")
            tree:add(F["transfer.data"], tvb()):set_generated()
        end
    end
end

-- The names of the features that are set in all of these words.
local function feature_names(words)
    local names = {}
    for bit = 0, 63 do
        local is_set = FEATURES[bit] ~= nil
        for _, word in ipairs(words) do
            is_set = is_set and has_bit(word, bit)
        end
        if is_set then
            names[#names + 1] = FEATURES[bit]
        end
    end
    return names[1] and table.concat(names, ", ") or "none"
end

local ANNOUNCED_FIELDS = {
    { "handshake_in", function(announced) return announced.frame end },
    { "version", function(announced) return announced.version end },
    { "features", function(announced) return feature_names({ announced.features }) end },
    { "device", function(announced) return announced.device end },
}

local NEGOTIATED_FIELDS = {}
for name, field in pairs(F) do
    if name:match("^negotiated") then
        NEGOTIATED_FIELDS[#NEGOTIATED_FIELDS + 1] = { field }
    end
end

local function show_negotiated(tree, frame)
    local negotiated = state.negotiated_of[frame]
    if not negotiated or not wanted_entries(tree, NEGOTIATED_FIELDS)[1] then
        return
    end
    local item = tree
    if is_wanted(tree, F["negotiated"]) then
        item = tree:add(F["negotiated"])
        item:set_generated()
    end
    for _, end_ in ipairs({ "sender", "receiver" }) do
        local announced = negotiated[end_]
        for _, entry in ipairs(ANNOUNCED_FIELDS) do
            local field = F["negotiated." .. end_ .. "_" .. entry[1]]
            if announced and is_wanted(tree, field) then
                add_generated(item, field, entry[2](announced))
            end
        end
    end
    local field, sender, receiver = F["negotiated.features"], negotiated.sender, negotiated.receiver
    if sender and receiver and is_wanted(tree, field) then
        local names = feature_names({ sender.features, receiver.features })
        item:add(field, names):set_generated()
        if is_visible then
            item:append_text(": " .. names)
        end
    end
end

local function show_frame_links(tree, frame)
    add_generated(tree, EFA["retry_of"], state.retry_of[frame])
    add_generated(tree, EFA["request_in"], state.request_of[frame])
    add_generated(tree, EFA["response_in"], state.response_of[frame])
    local response_time = state.response_time_of[frame]
    add_generated(tree, EFA["response_time"], response_time and nstime(response_time))
end

local rdm_handle, efa_handle -- set below, when the dissectors exist

-- Whether any field of the tree is requested.
local function is_tree_wanted(tree, handle, pinfo)
    is_visible, is_referenced = tree.visible, is_referenced or tree.referenced
    is_first_reading = IS_TSHARK and not pinfo.visited
    return is_visible or is_referenced(tree, handle)
end

-- The transport header of the packet after it, while that packet is dissected.
local current

-- Wireshark's text for a truncated packet.
local CUT_OFF = " [Packet size limited during capture]"

function efa_rdm.dissector(tvb, pinfo, tree)
    local length, context = tvb:len(), current
    current = nil
    local item = tree:add(efa_rdm, tvb())
    local wanted = is_tree_wanted(tree, rdm_handle, pinfo)
    local p = read_packet(tvb, context and context.reported or tvb:reported_len(),
        wanted and wanted_entries(tree, PACKET_FIELDS)[1]
            and function(p) return tree_adder(p, tvb, item) end)
    if context and context.conversation then
        follow_packet(context, p)
    end
    local text = summary(p)
    if wanted then
        if is_visible then
            item:set_text("EFA RDM Protocol v4, " .. text)
        end
        add_generated(item, F.data_length, p.data_length or 0)
        if p.malformed then
            add_generated(item, F.malformed, true)
        end
        if p.code == TYPE.HANDSHAKE and not p.malformed then
            add_generated(item, F.sender_version, sender_version(p))
        end
        show_negotiated(item, pinfo.number)
        show_transfer(item, pinfo.number)
    end
    -- A conversation with few readable packets may be of another protocol.
    local speech = state.speech_of[pinfo.number]
    if not speech or is_of_rdm(speech) then
        show_issues(item, p.issues)
        if context then
            show_issues(item, state.issues_of[pinfo.number])
        end
    end
    pinfo.cols.protocol:set("EFA RDM")
    pinfo.cols.info:set(text)
    if p.truncated and p.cut then
        item:append_text(CUT_OFF)
        pinfo.cols.info:append(CUT_OFF)
    end
    return length
end

-- Reads a transport header. Returns nil and the reason if the bytes are none, nil alone if the
-- capture has too few of them, and a third result if they belong to another protocol.
local function read_header(tvb)
    local length, reported = tvb:len(), tvb:reported_len()
    if reported < HEADER_LENGTH then
        if tvb:raw(0, math.min(length, #MAGIC)) ~= MAGIC:sub(1, length) then
            return nil, nil, true
        end
        return nil, format("%d bytes, but the transport header has at least %d", reported, HEADER_LENGTH)
    end
    if length < HEADER_LENGTH then
        return nil
    end
    local h = {}
    local raw = tvb:raw(0, math.min(length, RDMA_HEADER_LENGTH))
    unpack_header(h, raw)
    if h.magic ~= MAGIC then
        return nil, nil, true
    end
    if h.version ~= HEADER_VERSION then
        return nil, format("version %d, but only %d is known", h.version, HEADER_VERSION)
    end
    if not OPCODES[h.opcode] then
        return nil, format("opcode %d is not assigned", h.opcode)
    end
    local needed = HAS_RDMA[h.opcode] and RDMA_HEADER_LENGTH or HEADER_LENGTH
    if h.header_length < needed then
        return nil, format("header length %d, but %s needs %d", h.header_length, OPCODES[h.opcode], needed)
    end
    if h.header_length > reported then
        return nil, format("header length %d, but there are %d bytes", h.header_length, reported)
    end
    if h.header_length > length then
        return nil
    end
    if h.flags ~= 0 then
        h.has_immediate = has_bit(h.flags, HEADER_FLAG.immediate)
        h.retransmission = has_bit(h.flags, HEADER_FLAG.retransmission)
        h.not_captured = has_bit(h.flags, HEADER_FLAG.not_captured)
    end
    if HAS_RDMA[h.opcode] then
        unpack_rdma_header(h, raw)
        h.rdma_remote_address = unsigned(h.rdma_remote_address)
    end
    h.data_length = reported - h.header_length
    local announced = h.not_captured and 0 or h.payload_length
    if announced ~= h.data_length then
        h.issues = { { RULES["transport-form"], format(
            "payload length is %.0f, but the frame has %d bytes of data", announced, h.data_length) } }
    end
    return h
end

local function header_summary(h)
    local parts = { OPCODES[h.opcode] }
    if h.opcode == OPCODE.RESPONSE then
        parts[2] = STATUSES[h.status] or format("status %d", h.status)
    elseif HAS_RDMA[h.opcode] then
        parts[2] = format("key=0x%x offset=%.0f len=%.0f of %.0f", h.rdma_remote_key, h.rdma_offset,
            h.payload_length, h.rdma_total_length)
    else
        parts[2] = format("len=%.0f", h.payload_length)
    end
    if h.has_immediate then
        parts[#parts + 1] = format("imm=0x%x", h.immediate)
    end
    return table.concat(parts, " ")
end

local FLAG_FIELDS = {}
for i, flag in ipairs(HEADER_FLAGS) do
    FLAG_FIELDS[i] = EFA["flags." .. flag[2]]
end

local function add_header_fields(tvb, tree, fields, h)
    for _, entry in ipairs(fields) do
        local name, field = entry[1], EFA[entry[1]]
        local is_there = not entry.hidden and (not entry.flag or has_bit(h.flags, entry.flag))
            and (not entry.opcode or h.opcode == entry.opcode)
        local item = tree
        if is_there and is_wanted(tree, field) then
            item = tree:add_le(field, tvb(entry.at, entry.bytes))
            if name == "status" and STATUS_MEANINGS[h.status] then
                item:append_text(": " .. STATUS_MEANINGS[h.status])
            end
        end
        if name == "flags" then
            add_bits(item, FLAG_FIELDS, tvb(entry.at, entry.bytes))
        end
    end
end

local function show_header(tvb, tree, h)
    add_header_fields(tvb, tree, HEADER_FIELDS, h)
    if is_wanted(tree, EFA["qpn"]) then
        for _, entry in ipairs(HEADER_FIELDS) do
            if entry[1]:find("_qpn$") then
                tree:add_le(EFA["qpn"], tvb(entry.at, entry.bytes)):set_hidden()
            end
        end
    end
    local shown = HEADER_LENGTH
    if HAS_RDMA[h.opcode] then
        add_header_fields(tvb, tree, RDMA_FIELDS, h)
        shown = RDMA_HEADER_LENGTH
    end
    if h.header_length > shown then
        tree:add(EFA["unknown"], tvb(shown, h.header_length - shown))
    end
end

local function add_hidden(tree, field, value)
    if is_wanted(tree, field) then
        local item = tree:add(field, value)
        item:set_generated()
        item:set_hidden()
    end
end

local function show_endpoints(tree, source, destination)
    add_generated(tree, EFA["source"], source)
    add_generated(tree, EFA["destination"], destination)
    add_hidden(tree, EFA["endpoint"], source)
    add_hidden(tree, EFA["endpoint"], destination)
    add_generated(tree, EFA["conversation"], pair_number(source, destination))
end

function efa.dissector(tvb, pinfo, tree)
    local length = tvb:len()
    local h, reason, is_foreign = read_header(tvb)
    if is_foreign then
        -- Clients of other protocols may send from this port.
        return 0
    end
    if not h then
        pinfo.cols.protocol:set("EFA")
        local item = tree:add(efa, tvb())
        if reason then
            show_issues(item, { { RULES["transport-form"], reason } })
            pinfo.cols.info:set("[malformed] " .. reason)
        else
            item:append_text(CUT_OFF)
            pinfo.cols.info:set("transport header" .. CUT_OFF)
        end
        return length
    end
    local frame = pinfo.number
    local source = endpoint_of(pinfo.src, h.source_qpn)
    local destination = endpoint_of(pinfo.dst, h.destination_qpn)
    local context = {
        frame = frame, now = pinfo.rel_ts, qkey = h.qkey, sequence = h.sequence,
        reported = h.data_length,
    }
    if not pinfo.visited then
        local direction = pinfo.p2p_dir
        context.conversation, context.me, context.you =
            conversation_of(direction, source, destination)
        context.is_own, context.retransmission = direction ~= P2P_RECEIVED, h.retransmission
        context.has_direction = direction == P2P_RECEIVED or direction == P2P_SENT
        if h.sequence == 0 and not h.retransmission and not IS_ANSWER[h.opcode] then
            state.first_seen[context.has_direction][source] = true
            if context.is_own then
                state.first_sent[context.has_direction][source] = true
            end
        elseif h.sequence == FIRST_TAPPED and not context.is_own then
            state.all_arrivals[destination] = true
        end
        context.conversation.last_frame = frame
        context.near_host = tostring(context.is_own and pinfo.src or pinfo.dst)
        RequestNumbers.take(context, h, context.near_host, source, destination, tvb)
        Sightings.see(context, h, source, destination)
        state.following = context
        follow_frame(context, h, tvb)
    end

    local item = tree:add(efa, tvb(0, h.header_length))
    local is_packet = h.opcode == OPCODE.SEND and not state.without_header[frame]
    local has_data = length > h.header_length
    local is_cut_off = is_packet and h.data_length > 0 and not has_data
    if is_cut_off and context.conversation then
        miss(context.conversation, context.me)
    end
    if is_tree_wanted(tree, efa_handle, pinfo) then
        if is_visible then
            item:set_text("EFA Emulated Transport v1, " .. header_summary(h))
        end
        show_header(tvb, item, h)
        show_endpoints(item, source, destination)
        show_frame_links(item, frame)
        if has_data and not is_packet and is_wanted(item, EFA["data"]) then
            item:add(EFA["data"], tvb(h.header_length))
        end
        if not (has_data and is_packet) then
            show_negotiated(item, frame)
            show_transfer(item, frame)
        end
    end
    if h.opcode == OPCODE.RESPONSE and h.status ~= STATUS.OK then
        local id = h.status == STATUS.REMOTE_RNR and "receiver-not-ready" or "device-error"
        h.issues = h.issues or {}
        h.issues[#h.issues + 1] = { RULES[id], STATUS_MEANINGS[h.status]
            or format("completion status %d", h.status) }
    end
    show_issues(item, h.issues)
    if has_data and is_packet then
        current = context
        rdm_handle:call(tvb(h.header_length):tvb(), pinfo, tree)
    else
        show_issues(item, state.issues_of[frame])
        pinfo.cols.protocol:set("EFA")
        local text = header_summary(h)
        if state.without_header[frame] then
            text = "message without header, " .. text
        elseif h.not_captured then
            text = text .. " (data not captured)"
        elseif is_cut_off then
            text = text .. CUT_OFF
        end
        pinfo.cols.info:set(text)
    end
    if h.retransmission or state.retry_of[frame] then
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

-- Accepts a UDP datagram of any port only if its whole header is consistent.
efa:register_heuristic("udp", function(tvb, pinfo, tree)
    local h = read_header(tvb)
    if not h or h.issues or h.reserved ~= 0 or h.flags >= 2 ^ #HEADER_FLAGS then
        return false
    end
    local shortest = HAS_RDMA[h.opcode] and RDMA_HEADER_LENGTH or HEADER_LENGTH
    if h.header_length ~= shortest or (h.opcode ~= OPCODE.RESPONSE and h.status ~= 0) then
        return false
    end
    efa.dissector(tvb, pinfo, tree)
    return true
end)

-- ------------------------------------------------------------------------------------------------
-- Hardware tag matching: the messages of reliable connections (RoCE v2). The fields follow those of
-- Wireshark's own dissector, which is called first. The packets do not say that messages have tags:
-- that is known once the peer reads the memory of a rendezvous request, or sends the request back
-- as FINISH. `efa_check::rendezvous` is the same in Rust; tests compare the two.
-- ------------------------------------------------------------------------------------------------

-- A function of its own, because Lua has at most 200 local variables in one.
local function tag_matching()

local ROCE_PORT, BTH_LENGTH, RC_OPCODES = TAG_MATCHING.ROCE_PORT, TAG_MATCHING.BTH_LENGTH, TAG_MATCHING.RC_OPCODES
local SEQUENCE_BITS, SHORTEST_MTU = TAG_MATCHING.SEQUENCE_BITS, TAG_MATCHING.SHORTEST_MTU
local READ_REQUEST, ACKNOWLEDGE = TAG_MATCHING.READ_REQUEST, TAG_MATCHING.ACKNOWLEDGE
local NOT_READY, ACCESS_REFUSED = TAG_MATCHING.NOT_READY, TAG_MATCHING.ACCESS_REFUSED
local PADDING_MASK, PADDING_SHIFT = TAG_MATCHING.PADDING_MASK, TAG_MATCHING.PADDING_SHIFT
local TMH_LENGTH, MESSAGE_HEADERS = TAG_MATCHING.TMH_LENGTH, TAG_MATCHING.MESSAGE_HEADERS
local TMH, RVH, OPERATIONS = TAG_MATCHING.TMH, TAG_MATCHING.RVH, TAG_MATCHING.OPERATIONS

local efa_tm = Proto("efa_tm", "Hardware Tag Matching")
declare_rules(efa_tm, "efa_tm", TAG_RULES)

local TM = {}
for _, fields in ipairs({ TMH, RVH }) do
    for _, field in ipairs(fields) do
        local name, kind, description, base_of = table.unpack(field)
        local names = name == "tmh.operation" and OPERATIONS or nil
        TM[name] = ProtoField[kind]("efa_tm." .. name, label_of(name), base_of, names, 0, description)
    end
end
TM.rendezvous = ProtoField.uint32("efa_tm.rendezvous", "Rendezvous")
TM.request_in = ProtoField.framenum("efa_tm.request_in", "Request of the rendezvous in", base.NONE, frametype.REQUEST)
TM.read_in = ProtoField.framenum("efa_tm.read_in", "Read in", base.NONE, frametype.REQUEST)
TM.answer_in = ProtoField.framenum("efa_tm.answer_in", "Last data in", base.NONE, frametype.RESPONSE)
TM.finish_in = ProtoField.framenum("efa_tm.finish_in", "Finished in", base.NONE, frametype.ACK)
efa_tm.fields = values(TM)

local by_operation = by_name(OPERATIONS)
local RENDEZVOUS = by_operation.RENDEZVOUS
-- Packet numbers further away belong to another life of the queue pair.
local FAR = 2 ^ 15
local MOST_ENDS, MOST_REQUESTS, MOST_READS, LONGEST_READ = 64, 1024, 1024, 2 ^ 22

local tagged -- the state of the capture
local function reset()
    tagged = {
        views = {},
        reads = {}, first_read = 1, -- reads of any memory
        captured = {}, -- hosts whose own sends are in the capture
        rendezvous = 0, -- their number
        steps = {}, -- by frame: its rendezvous and its role in it
        connections = {}, -- by the first frame of a message
        issues = {}, -- by frame
    }
end
reset()
efa_tm.init = reset

local function distance(from, to)
    local ahead = (to - from) % 2 ^ SEQUENCE_BITS
    return ahead < 2 ^ (SEQUENCE_BITS - 1) and ahead or ahead - 2 ^ SEQUENCE_BITS
end

-- ---- The packets of one direction, by their numbers ----

local function new_stream(first)
    return { first = first, missing = {}, missing_count = 0, ends = {} }
end

local function is_whole(stream)
    return not stream.is_torn and stream.missing_count == 0
end

local function place(stream, psn)
    local ahead, beyond = distance(stream.next_low, psn), distance(stream.next_high, psn)
    if ahead < -FAR or beyond > FAR then
        return "restart"
    end
    if ahead >= 0 then
        for number = 0, beyond - 1 do
            stream.missing[(stream.next_high + number) % 2 ^ SEQUENCE_BITS] = true
            stream.missing_count = stream.missing_count + 1
        end
        if stream.missing_count > FAR then
            stream.missing, stream.missing_count, stream.is_torn = {}, 0, true
        end
        return "new"
    end
    if stream.missing[psn] then
        stream.missing[psn], stream.missing_count = nil, stream.missing_count - 1
        return "new"
    end
    -- Any number of packets before the first one may be missing.
    stream.is_torn = stream.is_torn or distance(stream.first, psn) < 0
    return "again"
end

-- Takes a packet that uses at most `most` numbers.
local function take(connection, psn, most, ends_message)
    local arrival = connection.stream and place(connection.stream, psn) or "restart"
    if arrival == "restart" then
        connection.stream = new_stream(psn)
    end
    local stream = connection.stream
    if not stream.next_low or distance(stream.next_low, psn) >= 0 then
        stream.next_low, stream.next_high = psn + 1, psn + most
    end
    if arrival ~= "again" and ends_message and #stream.ends < MOST_ENDS then
        stream.ends[#stream.ends + 1] = psn
    end
    return arrival
end

-- Whether the capture has the connection's first packet: the responder has counted as many
-- messages.
local function has_begun(stream, acknowledged)
    if not stream or not acknowledged or #stream.ends == MOST_ENDS then
        return false
    end
    local since, count = distance(stream.first, acknowledged.psn), 0
    for _, at in ipairs(stream.ends) do
        count = count + (distance(acknowledged.psn, at) <= 0 and 1 or 0)
    end
    return since >= 0 and since < FAR and count == acknowledged.messages
end

local function acknowledge(connection, psn, messages)
    local known = connection.acknowledged
    if known and math.abs(distance(known.last, psn)) <= FAR then
        known.last = psn
    else
        connection.acknowledged = { psn = psn, messages = messages, last = psn }
    end
end

-- ---- Reading packets ----

local FIELD_OF = {} -- by name
for _, fields in ipairs({ TAG_MATCHING.BTH, TAG_MATCHING.RETH, TAG_MATCHING.AETH, TMH, RVH }) do
    for _, field in ipairs(fields) do
        FIELD_OF[field[1]] = field
    end
end

-- A field of a header that begins at `head`.
local function number_of(raw, head, name)
    local field = FIELD_OF[name]
    return (Struct.unpack(">I" .. field.bytes, raw, head + field.at + 1))
end

-- The upper and the lower half of a field of 64 bits, which a number in Lua does not hold.
local function halves_of(raw, head, name)
    local high, low = Struct.unpack(">I4I4", raw, head + FIELD_OF[name].at + 1)
    return high, low
end

-- The headers of a packet. If they cannot be read: nil, and whether they are truncated.
local function read_transport(tvb)
    local reported = tvb:reported_len() - 4 -- without the CRC
    local there = math.min(tvb:len(), reported)
    local raw = tvb:raw(0, math.min(math.max(there, 0), 128))
    local opcode = raw:byte(1)
    local known = opcode and RC_OPCODES[opcode]
    local head = known and known[2] or BTH_LENGTH
    if there < head then
        return nil, there < reported
    end
    if not known then
        return nil, false
    end
    local padding = floor(number_of(raw, 0, "bth.flags") / 2 ^ PADDING_SHIFT) % (PADDING_MASK + 1)
    local payload = reported - head - padding
    if payload < 0 then
        return nil, there < reported
    end
    local t = {
        opcode = opcode, known = known, raw = raw, head = head,
        qpn = number_of(raw, 0, "bth.destination") % 2 ^ SEQUENCE_BITS,
        psn = number_of(raw, 0, "bth.sequence") % 2 ^ SEQUENCE_BITS,
        payload = payload, there = math.min(there - head, payload),
    }
    if known.aeth then
        t.syndrome = number_of(raw, known.aeth, "aeth.syndrome")
        t.messages = number_of(raw, known.aeth, "aeth.messages")
    end
    if known.reth and opcode == READ_REQUEST then
        t.read = {
            key = number_of(raw, known.reth, "reth.key"),
            length = number_of(raw, known.reth, "reth.length"),
        }
        t.read.high, t.read.low = halves_of(raw, known.reth, "reth.address")
    end
    return t
end

-- A message with a tag: {operation, kind = short, unknown, other, or rendezvous and finish with
-- their headers}. `kind` is nil if the message is truncated.
local function read_message(t)
    local raw, at = t.raw, t.head
    local operation = t.there > 0 and raw:byte(at + 1) or nil
    if not operation then
        return { kind = t.payload == 0 and "other" or nil }
    end
    local needs = MESSAGE_HEADERS[operation] or 1
    if t.there < math.min(needs, t.payload) then
        return { operation = operation }
    end
    local m = { operation = operation, kind = "other", needs = needs }
    if t.known.whole and t.payload < needs then
        m.kind = "short"
    elseif not OPERATIONS[operation] then
        m.kind = "unknown"
    elseif MESSAGE_HEADERS[operation] and t.there >= needs and number_of(raw, at, "tmh.reserved") == 0 then
        m.has_header = true
        if needs > TMH_LENGTH then
            local rvh = at + TMH_LENGTH
            m.kind = operation == RENDEZVOUS and "rendezvous" or "finish"
            m.tag, m.rvh = raw:sub(at + FIELD_OF["tmh.data"].at + 1, rvh), raw:sub(rvh + 1, at + needs)
            m.high, m.low = halves_of(raw, rvh, "rvh.address")
            m.key, m.length = number_of(raw, rvh, "rvh.key"), number_of(raw, rvh, "rvh.length")
        end
    end
    return m
end

-- ---- Following rendezvous ----

-- The offset of an address in the memory of a request. Doubles have 53 bits, so the difference is
-- computed first.
local function offset_in(request, read)
    return (read.high - request.high) * 2 ^ 32 + (read.low - request.low)
end

-- The number of the request's bytes that are read, and whether other bytes are read, too.
local function part_of(request, read)
    local first = offset_in(request, read)
    local last = first + read.length
    local shared = math.min(last, request.length) - math.max(first, 0)
    return math.max(shared, 0), first < 0 or last > request.length
end

local function bytes_read(request)
    local sum, beyond = 0, nil
    for _, read in ipairs(request.reads) do
        local bytes, is_beyond = part_of(request, read)
        if is_beyond then
            beyond = beyond or read
        else
            sum = sum + bytes
        end
    end
    return sum, beyond
end

local function packets_of(length)
    return math.max(1, math.min(math.ceil(length / SHORTEST_MTU), LONGEST_READ))
end

local function add_issue(seen, id, text)
    local issues = tagged.issues[seen.frame] or {}
    tagged.issues[seen.frame] = issues
    issues[#issues + 1] = { id = id, text = text, is_arrival = seen.is_arrival, source = seen.source }
end

local function connection_of(view, way)
    local connection = view.connections[way]
    if not connection then
        connection = { suspected = {}, unread = {} }
        view.connections[way] = connection
    end
    return connection
end

local function exchange_of(view, asker, reader)
    local ends = asker .. " " .. reader
    local exchange = view.exchanges[ends]
    if not exchange then
        exchange = { requests = {} }
        view.exchanges[ends] = exchange
    end
    return exchange
end

local function is_proven(p, asking_way)
    local asking, reading = p.view.connections[asking_way], p.view.connections[p.way]
    return not p.view.cut[p.ends] and not p.view.cut[p.back] and asking and reading and asking.stream
        and reading.stream and is_whole(asking.stream) and is_whole(reading.stream)
        and has_begun(asking.stream, reading.acknowledged)
end

local function mark_tagged(p, way)
    connection_of(p.view, way).is_tagged = true
end

local function follow_answer(p, t)
    local connection = connection_of(p.view, p.way)
    local is_acknowledge = t.opcode == ACKNOWLEDGE
    if is_acknowledge and t.syndrome < NOT_READY then
        acknowledge(connection, t.psn, t.messages)
        local unread = connection.unread
        connection.unread = {}
        for _, entry in ipairs(unread) do
            local reading = p.view.connections[entry.way]
            if reading and is_whole(reading.stream) and has_begun(reading.stream, connection.acknowledged) then
                add_issue(entry.seen, entry.id, entry.text)
            end
        end
        return
    end
    local is_refused = is_acknowledge and t.syndrome == ACCESS_REFUSED
    if is_acknowledge and not is_refused then
        return
    end
    local requests = exchange_of(p.view, p.source, p.destination).requests
    for i = #requests, 1, -1 do
        local request = requests[i]
        for j = #request.reads, 1, -1 do
            local read = request.reads[j]
            local ahead = distance(read.psn, t.psn)
            if ahead >= 0 and ahead < read.packets then
                tagged.steps[p.frame] = { kind = "answer", request = request, read = read }
                local _, is_beyond = part_of(request, read)
                local was_answered = read.answer
                if not read.answer and (t.known.ends_read or is_refused) then
                    read.answer = p.frame
                end
                if was_answered or is_beyond then
                    return
                end
                if is_refused and not request.finish then
                    add_issue(p, "rendezvous-memory",
                        format("the read of frame %d is refused, and frame %d has asked for it", read.frame,
                            request.frame))
                elseif t.known.ends_read and request.finish and request.finish.is_proven then
                    add_issue(request.finish.seen, "rendezvous-fin-early",
                        format("the data that frame %d reads has come in frame %d", read.frame, p.frame))
                end
                return
            end
        end
    end
end

-- A repeated packet has the meaning of the first one.
local function follow_again(p, t)
    for _, request in ipairs(exchange_of(p.view, p.source, p.destination).requests) do
        if request.way == p.way and request.psn == t.psn then
            tagged.steps[p.frame] = { kind = "request", request = request }
            return
        end
    end
    local requests = exchange_of(p.view, p.destination, p.source).requests
    for i = #requests, 1, -1 do
        local request, finish = requests[i], requests[i].finish
        if finish and finish.way == p.way and finish.psn == t.psn then
            tagged.steps[p.frame] = { kind = "finish", request = request }
            return
        end
        for _, read in ipairs(request.reads) do
            if read.way == p.way and read.psn == t.psn then
                tagged.steps[p.frame] = { kind = "read", request = request, read = read }
                return
            end
        end
    end
    -- Another life of the queue pair may have begun with the same number.
    if t.known.begins and read_message(t).rvh then
        connection_of(p.view, p.way).stream.is_torn = true
    end
end

local function follow_read(p, t)
    local read = t.read
    read.frame, read.way, read.psn, read.packets = p.frame, p.way, t.psn, packets_of(read.length)
    tagged.reads[#tagged.reads + 1] = read
    if #tagged.reads - tagged.first_read >= MOST_READS then
        tagged.reads[tagged.first_read] = nil
        tagged.first_read = tagged.first_read + 1
    end
    -- The first open one that was not read, else the last one.
    local unread, open, last
    for _, request in ipairs(exchange_of(p.view, p.destination, p.source).requests) do
        if request.key == read.key and part_of(request, read) > 0 then
            last = request
            if not request.finish then
                open = request
                if not unread and bytes_read(request) < request.length then
                    unread = request
                end
            end
        end
    end
    local request = unread or open or last
    if not request then
        return
    end
    tagged.steps[p.frame] = { kind = "read", request = request, read = read }
    connection_of(p.view, p.way).last_read = read
    local _, is_beyond = part_of(request, read)
    if not request.finish then
        if #request.reads < MOST_READS then
            request.reads[#request.reads + 1] = read
        end
    elseif not is_beyond then
        add_issue(p, "rendezvous-read-late", format("frame %d has ended the rendezvous", request.finish.seen.frame))
    end
    if not is_beyond then
        mark_tagged(p, request.way)
    end
end

-- The rule that the end of a rendezvous breaks, and the text.
local function wrong_end(request)
    local bytes, beyond = bytes_read(request)
    local asks = format("frame %d asks for %.0f bytes", request.frame, request.length)
    if bytes >= request.length or #request.reads >= MOST_READS then
        return nil
    elseif beyond then
        return "rendezvous-read-range", format("%s, frame %d reads %.0f of other places", asks, beyond.frame,
            beyond.length)
    elseif bytes > 0 then
        return "rendezvous-part-read", format("%s, of which %.0f were read", asks, bytes)
    end
    -- It may have been read by another device.
    local reads, first = tagged.reads, tagged.first_read
    for i = first, #reads do
        if reads[i].frame > request.frame and part_of(request, reads[i]) > 0 then
            return nil
        end
    end
    if #reads - first + 1 >= MOST_READS and reads[first].frame > request.frame then
        return nil
    end
    return "rendezvous-fin-early", asks .. ", none of which was read"
end

local function follow_end(p, t, request)
    mark_tagged(p, request.way)
    local proven = is_proven(p, request.way)
    request.finish = { seen = p, way = p.way, psn = t.psn, is_proven = proven }
    tagged.steps[p.frame] = { kind = "finish", request = request }
    local id, text = wrong_end(request)
    if not id or not proven then
        return
    end
    local asking, reading = connection_of(p.view, request.way), connection_of(p.view, p.way)
    if reading.since < request.frame or has_begun(reading.stream, asking.acknowledged) then
        add_issue(p, id, text)
    else
        asking.unread[#asking.unread + 1] = { seen = p, id = id, text = text, way = p.way }
    end
end

-- A FINISH that matches no open request.
local function follow_stray_end(p, t, m, exchange)
    local ended, open, answered
    for _, request in ipairs(exchange.requests) do
        local finish = request.finish
        if finish and request.tag == m.tag and request.rvh == m.rvh then
            ended = request
        elseif not finish and request.rvh:sub(1, 12) == m.rvh:sub(1, 12) then
            open = request
        end
        if finish and finish.way == p.way then
            answered = request
        end
    end
    local request, text = ended or open or answered, "no frame has asked for it"
    if not request then
        return
    elseif ended then
        text = format("frame %d has ended the rendezvous of frame %d", ended.finish.seen.frame, ended.frame)
    elseif open then
        text = format("it is not a copy of the request, frame %d", open.frame)
    end
    if exchange.has_forgotten or not is_proven(p, request.way) then
        return
    end
    -- One mistake breaks one rule.
    request.finish = request.finish or { seen = p, way = p.way, psn = t.psn }
    local suspected = connection_of(p.view, request.way).suspected
    suspected[#suspected + 1] = { seen = p, id = "rendezvous-fin-names-request", text = text }
end

local function follow_message(p, t)
    local m, connection = read_message(t), connection_of(p.view, p.way)
    if not m.kind then
        connection.stream.is_torn = true
    elseif m.kind == "rendezvous" then
        local exchange = exchange_of(p.view, p.source, p.destination)
        if #exchange.requests == MOST_REQUESTS then
            local oldest = table.remove(exchange.requests, 1)
            exchange.has_forgotten = exchange.has_forgotten or not oldest.finish
        end
        m.number, tagged.rendezvous = tagged.rendezvous, tagged.rendezvous + 1
        m.frame, m.way, m.psn, m.reads = p.frame, p.way, t.psn, {}
        exchange.requests[#exchange.requests + 1] = m
        tagged.steps[p.frame] = { kind = "request", request = m }
    elseif m.kind == "finish" then
        local exchange = exchange_of(p.view, p.destination, p.source)
        for _, request in ipairs(exchange.requests) do
            if not request.finish and request.tag == m.tag and request.rvh == m.rvh then
                return follow_end(p, t, request)
            end
        end
        follow_stray_end(p, t, m, exchange)
    elseif connection.is_tagged and m.kind == "short" then
        add_issue(p, "tag-header-whole", format("operation %d with %d of %d bytes", m.operation, t.payload, m.needs))
    elseif connection.is_tagged and m.kind == "unknown" then
        add_issue(p, "tag-operation", format("operation %d", m.operation))
    end
end

local function follow_request(p, t)
    local connection = connection_of(p.view, p.way)
    local most = t.read and packets_of(t.read.length) or 1
    local arrival = take(connection, t.psn, most, t.known.ends)
    if arrival == "again" then
        return follow_again(p, t)
    end
    local suspected = connection.suspected
    connection.suspected = {}
    if arrival == "restart" then
        connection.is_tagged, connection.since = false, p.frame
        local exchange, left = exchange_of(p.view, p.source, p.destination), {}
        for _, request in ipairs(exchange.requests) do
            left[#left + 1] = request.way ~= p.way and request or nil
        end
        exchange.requests = left
    elseif is_whole(connection.stream) then
        for _, entry in ipairs(suspected) do
            add_issue(entry.seen, entry.id, entry.text)
        end
    end
    -- The data of the previous read ends before this request.
    local before = connection.last_read
    connection.last_read = nil
    local between = before and distance(before.psn, t.psn) or 0
    if between > 0 then
        before.packets = math.min(before.packets, between)
    end
    if t.read then
        follow_read(p, t)
    elseif t.known.begins then
        tagged.connections[p.frame] = connection
        follow_message(p, t)
    end
end

local function follow(tvb, pinfo)
    local source, destination = tostring(pinfo.src), tostring(pinfo.dst)
    local is_arrival = pinfo.p2p_dir == P2P_RECEIVED
    if pinfo.p2p_dir == P2P_SENT then
        tagged.captured[source] = true
    end
    local near = is_arrival and destination or pinfo.p2p_dir == P2P_SENT and source or ""
    local is_copy = is_arrival and source == destination
    if is_copy then
        near = near .. " again"
    end
    local view = tagged.views[near]
    if not view then
        view = { connections = {}, exchanges = {}, cut = {} }
        tagged.views[near] = view
    end
    local ends = source .. " " .. destination
    local t, is_cut = read_transport(tvb)
    if not t then
        view.cut[ends] = view.cut[ends] or is_cut
        return
    end
    local p = {
        frame = pinfo.number, source = source, destination = destination, view = view, ends = ends,
        back = destination .. " " .. source, way = format("%s %.0f", ends, t.qpn), is_arrival = is_arrival,
    }
    if t.known.response then
        follow_answer(p, t)
    else
        follow_request(p, t)
    end
end

-- ---- Showing packets ----

local function add_headers(tvb, tree, fields, at)
    for _, field in ipairs(fields) do
        tree:add(TM[field[1]], tvb(at + field.at, field.bytes))
    end
end

local function show_step(tree, step)
    local request, read, finish = step.request, step.read, step.request.finish
    local function link(name, frame)
        if frame then
            tree:add(TM[name], frame):set_generated()
        end
    end
    link("rendezvous", request.number)
    if step.kind ~= "request" then
        link("request_in", request.frame)
    end
    if step.kind == "answer" then
        link("read_in", read.frame)
    elseif step.kind == "read" then
        link("answer_in", read.answer)
    else
        for _, of_request in ipairs(request.reads) do
            link("read_in", of_request.frame)
        end
    end
    if step.kind ~= "finish" then
        link("finish_in", finish and finish.seen.frame)
    end
end

local connected -- Wireshark's own dissector

function efa_tm.dissector(tvb, pinfo, tree)
    -- Wireshark reports a truncated or short packet by an error in Lua.
    local is_read, consumed = pcall(connected.call, connected, tvb, pinfo, tree)
    if not is_read then
        consumed = tvb:len()
        pinfo.cols.info:append(consumed < tvb:reported_len() and CUT_OFF or " [Malformed Packet]")
    end
    local frame = pinfo.number
    if not pinfo.visited then
        follow(tvb, pinfo)
    end
    local t = read_transport(tvb)
    local m = t and t.known.begins and read_message(t) or {}
    local step, issues = tagged.steps[frame], tagged.issues[frame]
    if not m.has_header and not step and not issues then
        return consumed
    end
    local item = m.has_header and tree:add(efa_tm, tvb(t.head, m.needs)) or tree:add(efa_tm)
    if m.has_header then
        local name = OPERATIONS[m.operation]
        local at = t.head + FIELD_OF["tmh.tag"].at
        local tag = "0x" .. tvb(at, 8):uint64():tohex():gsub("^0+(%x)", "%1")
        item:append_text(format(", %s tag=%s", name, tag))
        local connection, request = tagged.connections[frame], step and step.request
        local is_tagged = connection and connection.is_tagged or request and (request.finish or request.reads[1])
        if not is_tagged then
            item:append_text(" (if messages of this connection have tags)")
        end
        add_headers(tvb, item, TMH, t.head)
        if m.rvh then
            add_headers(tvb, item, RVH, t.head + TMH_LENGTH)
        end
        pinfo.cols.info:append(format(" %s tag=%s", name, tag))
    end
    if step then
        show_step(item, step)
    end
    for _, issue in ipairs(issues or {}) do
        -- It is judged where it was sent, if the capture has that host.
        if not issue.is_arrival or not tagged.captured[issue.source] then
            item:add_proto_expert_info(RULES[issue.id], issue.text)
        end
    end
    return consumed
end

connected = udp_ports:get_dissector(ROCE_PORT)
if connected then
    udp_ports:add(ROCE_PORT, efa_tm)
end

end
tag_matching()

-- ------------------------------------------------------------------------------------------------
-- Statistics: windows in Wireshark's menu Tools > EFA, or at the end of `tshark -q` if the
-- environment variable EFA_STATISTICS names them.
-- ------------------------------------------------------------------------------------------------

-- Rows of cells as text; columns of numbers are right-aligned.
local function table_text(rows)
    local widths, lines = {}, {}
    for _, row in ipairs(rows) do
        for i, cell in ipairs(row) do
            widths[i] = math.max(widths[i] or 0, #tostring(cell))
        end
    end
    for _, row in ipairs(rows) do
        local cells = {}
        for i, cell in ipairs(row) do
            local is_number = tostring(cell):match("^[%d.]+%%?$") or row == rows[1]
                and rows[2] and tostring(rows[2][i]):match("^[%d.]+%%?$")
            cells[i] = format("%" .. (is_number and "" or "-") .. widths[i] .. "s", tostring(cell))
        end
        lines[#lines + 1] = (table.concat(cells, "  "):gsub("%s+$", ""))
    end
    return table.concat(lines, "\n") .. "\n"
end

local STATISTICS = {}
local STATISTICS_NAMES = { "packets", "transfers", "order", "endpoints", "conversations" }

local function sorted_by_bytes(counts)
    local names = {}
    for name in pairs(counts) do
        names[#names + 1] = name
    end
    table.sort(names, function(a, b)
        local left, right = counts[a].bytes, counts[b].bytes
        return left > right or left == right and a < b
    end)
    return names
end

-- A tree: below SEND are the types of the RDM packets in it.
function STATISTICS.packets()
    local is_opcode, frames, packets = {}, {}, {}
    for _, name in pairs(OPCODES) do
        is_opcode[name] = true
    end
    local total = { packets = 0, bytes = 0 }
    for name, entry in pairs(state.counts) do
        if is_opcode[name] then
            frames[name] = entry
            total.packets, total.bytes = total.packets + entry.packets, total.bytes + entry.bytes
        else
            packets[name] = entry
        end
    end
    local function percent(part, whole)
        return format("%.1f%%", whole > 0 and 100 * part / whole or 0)
    end
    local rows = { { "frames", "count", "share", "bytes", "share", "mean" } }
    local function add_row(indent, name, entry)
        rows[#rows + 1] = { indent .. name, format("%d", entry.packets),
            percent(entry.packets, total.packets), format("%.0f", entry.bytes),
            percent(entry.bytes, total.bytes),
            format("%.0f", entry.bytes / math.max(entry.packets, 1)) }
    end
    add_row("", "all", total)
    for _, name in ipairs(sorted_by_bytes(frames)) do
        add_row("  ", name, frames[name])
        if name == "SEND" then
            for _, packet in ipairs(sorted_by_bytes(packets)) do
                add_row("    ", packet, packets[packet])
            end
        end
    end
    return "Frames by opcode, and the RDM packets in the SENDs by type; bytes without transport "
        .. "header\n\n" .. table_text(rows)
end

function STATISTICS.transfers()
    local rows = { { "transfer", "operation", "subprotocol", "from", "to", "bytes", "frames", "first",
        "last", "us", "response us", "retries", "state" } }
    for _, transfer in ipairs(state.transfers) do
        local frames = transfer.frames
        rows[#rows + 1] = {
            format("%d", transfer.id), transfer.operation, transfer.subprotocol,
            transfer.initiator, transfer.target,
            transfer.length and format("%.0f", transfer.length) or "-", format("%d", #frames),
            format("%d", frames[1] or 0), format("%d", frames[#frames] or 0),
            format("%.3f", ((transfer.last_time or transfer.started) - transfer.started) * 1e6),
            transfer.response_time and format("%.3f", transfer.response_time * 1e6) or "-",
            format("%d", transfer.retries), transfer.done and "done" or "open",
        }
    end
    return "Messages, reads, writes and atomic operations\n\n" .. table_text(rows)
end

local function side_text(side)
    local text = side.version or "no handshake"
    if side.device_version then
        text = format("%s, device 0x%x", text, side.device_version)
    end
    if next(side.ahead) then
        text = format("%s, message %.0f is missing", text, side.expected)
    end
    return text
end

-- The messages and atomic operations from one endpoint to another, in the order of their numbers,
-- not of their arrival.
function STATISTICS.order()
    local numbered = {}
    for _, transfer in ipairs(state.transfers) do
        if transfer.order then
            numbered[#numbered + 1] = transfer
        end
    end
    table.sort(numbered, function(a, b)
        for _, key in ipairs({ "view", "initiator", "target", "order" }) do
            if a[key] ~= b[key] then
                return a[key] < b[key]
            end
        end
        return a.id < b.id
    end)
    local rows = { { "seen by", "from", "to", "message", "first frame", "in order since frame",
        "bytes", "subprotocol" } }
    for _, transfer in ipairs(numbered) do
        rows[#rows + 1] = { transfer.view, transfer.initiator, transfer.target,
            format("%.0f", transfer.order), format("%d", transfer.frames[1]),
            transfer.delivered and format("%d", transfer.delivered) or "never",
            format("%.0f", transfer.length), transfer.subprotocol }
    end
    return "Messages and atomic operations in the order in which receivers handle them\n\n"
        .. table_text(rows)
end

-- Each endpoint in the view of its own host; if that host was not captured, in the view of its
-- peers.
function STATISTICS.endpoints()
    local own, foreign, names = {}, {}, {}
    for _, c in ipairs(state.conversations) do
        for views, sides in pairs({ [own] = { c.near, c.far }, [foreign] = { c.far, c.near } }) do
            local side, peer = sides[1], sides[2]
            local sum = views[side.endpoint]
            if not sum then
                sum = { sent = 0, sent_bytes = 0, received = 0, received_bytes = 0, peers = 0 }
                views[side.endpoint] = sum
            end
            sum.sent, sum.sent_bytes = sum.sent + side.packets, sum.sent_bytes + side.bytes
            sum.received, sum.received_bytes = sum.received + peer.packets, sum.received_bytes + peer.bytes
            sum.peers = sum.peers + 1
            sum.version, sum.device = sum.version or side.version, sum.device or side.device_version
            names[side.endpoint] = true
        end
    end
    local sorted = {}
    for name in pairs(names) do
        sorted[#sorted + 1] = name
    end
    table.sort(sorted)
    local rows = { { "endpoint", "peers", "frames sent", "bytes", "frames received", "bytes",
        "version", "device" } }
    for _, name in ipairs(sorted) do
        local sum = own[name] or foreign[name]
        rows[#rows + 1] = { name, format("%d", sum.peers), format("%d", sum.sent),
            format("%.0f", sum.sent_bytes), format("%d", sum.received),
            format("%.0f", sum.received_bytes), sum.version or "no handshake",
            sum.device and format("0x%x", sum.device) or "-" }
    end
    return "Endpoints by GID and QPN\n\n" .. table_text(rows)
end

function STATISTICS.conversations()
    local rows = { { "conversation", "endpoint", "says", "peer", "says", "frames ->", "bytes ->",
        "frames <-", "bytes <-", "transfers" } }
    for _, c in ipairs(state.conversations) do
        local near, far = c.near, c.far
        rows[#rows + 1] = { format("%d", c.number), near.endpoint, side_text(near), far.endpoint,
            side_text(far), format("%d", near.packets), format("%.0f", near.bytes),
            format("%d", far.packets), format("%.0f", far.bytes), format("%d", c.transfers) }
    end
    return "Conversations by GID and QPN, as each end that was captured saw them\n\n"
        .. table_text(rows)
end

if gui_enabled() then
    for _, name in ipairs(STATISTICS_NAMES) do
        register_menu("EFA/" .. name:gsub("^%l", string.upper), function()
            local window = TextWindow.new("EFA " .. name)
            window:set(STATISTICS[name]())
            window:add_button("Refresh", function() window:set(STATISTICS[name]()) end)
        end, MENU_TOOLS_UNSORTED)
    end
end

local wanted_statistics = os.getenv("EFA_STATISTICS")
if wanted_statistics and not gui_enabled() then
    local listener = Listener.new("frame")
    function listener.draw()
        for name in wanted_statistics:gmatch("%w+") do
            print(STATISTICS[name] and STATISTICS[name]()
                or format("EFA_STATISTICS: no statistics %s; there are %s", name,
                    table.concat(STATISTICS_NAMES, ", ")))
        end
    end
end
