//! Messages that the receiver reads by RDMA: how much of the next one may travel ahead of its read.

/// The messages to one peer that it is reading.
#[derive(Default)]
pub(crate) struct ReadBased {
    messages: u32,
    /// Their bytes in packets.
    runts: u64,
}

impl ReadBased {
    /// Notes a message with this many bytes in packets; the peer reads the rest by RDMA.
    pub(crate) fn begin(&mut self, runt: u64) {
        self.messages += 1;
        self.runts += runt;
    }

    /// Records that the peer has stopped reading a message of [`ReadBased::begin`].
    pub(crate) fn end(&mut self, runt: u64) {
        self.messages -= 1;
        self.runts -= runt;
    }

    /// Bytes that may travel ahead of the read of another message: `runt_size`, or 0 while a
    /// message is being read.
    pub(crate) fn runt_budget(&self, runt_size: u64) -> u64 {
        match self.messages {
            0 => runt_size.saturating_sub(self.runts),
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_message_at_a_time_has_a_runt() {
        let mut read_based = ReadBased::default();
        assert_eq!(read_based.runt_budget(100), 100);
        read_based.begin(60);
        assert_eq!(read_based.runt_budget(100), 0);
        read_based.end(60);
        assert_eq!(read_based.runt_budget(100), 100);
    }
}
