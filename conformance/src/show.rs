//! Every field of every packet of a capture, as text.

use std::io::{self, Write};

use efa_core::wire::Packet;
use efa_core::wire::fields::fields_of;
use efa_emu::capture::Direction;
use efa_emu::frame::Kind;

use crate::trace::{Capture, CapturedPacket};

/// Writes a capture as text.
pub fn show(capture: &Capture, output: &mut impl Write) -> io::Result<()> {
    let start = capture.frames.first().map(|frame| frame.time);
    for frame in &capture.frames {
        let since = frame.time.saturating_sub(start.unwrap_or_default());
        show_frame(capture, frame, since.as_nanos(), output)?;
    }
    for damage in &capture.damage {
        writeln!(output, "damaged: {damage}")?;
    }
    Ok(())
}

fn show_frame(
    capture: &Capture,
    frame: &CapturedPacket,
    nanoseconds: u128,
    output: &mut impl Write,
) -> io::Result<()> {
    let header = &frame.header;
    for comment in &frame.comments {
        writeln!(output, "# {comment}")?;
    }
    let direction = match frame.direction {
        Some(Direction::Outbound) => "sends",
        Some(Direction::Inbound) => "receives",
        None => "sees",
    };
    writeln!(
        output,
        "packet {} at {}.{:03} us: {} {direction} {}",
        frame.number,
        nanoseconds / 1000,
        nanoseconds % 1000,
        capture.interfaces[frame.interface],
        frame.kind()
    )?;
    let retry = if header.retransmission { ", again" } else { "" };
    writeln!(
        output,
        "    [{}]:{} -> [{}]:{} Q-key {:#x}, {} number {}{retry}, path {}, {} bytes",
        frame.source,
        header.source_qpn,
        frame.destination,
        header.destination_qpn,
        header.qkey.0,
        header.kind.opcode(),
        header.sequence,
        header.path,
        header.payload_length,
    )?;
    if let Some(immediate) = header.immediate {
        writeln!(output, "    immediate = {immediate:#x}")?;
    }
    if let Some(rdma) = header.kind.rdma() {
        writeln!(
            output,
            "    address = {:#x}, key = {:#x}, bytes {} to {} of {}",
            rdma.remote.address,
            rdma.remote.key,
            rdma.offset,
            u64::from(rdma.offset) + u64::from(header.payload_length),
            rdma.total_length
        )?;
    }
    if let Kind::Response(status) = header.kind {
        writeln!(
            output,
            "    status = {} ({})",
            status.code(),
            status.describe()
        )?;
    }
    let Some(packet) = frame.rdm() else {
        return Ok(());
    };
    let Some(mut fields) = fields_of(packet) else {
        let bytes: Vec<String> = packet.iter().take(16).map(|b| format!("{b:02x}")).collect();
        return writeln!(output, "    {} bytes: {}", packet.len(), bytes.join(" "));
    };
    for field in fields.by_ref() {
        writeln!(output, "    {field}")?;
    }
    if let Some(missing) = fields.missing() {
        writeln!(
            output,
            "    {} is cut off: {} bytes are needed at offset {}, {} are there",
            missing.descriptor.name, missing.needed, missing.offset, missing.available
        )?;
    }
    if let Err(error) = Packet::parse(packet) {
        writeln!(output, "    not valid: {error}")?;
    }
    Ok(())
}
