//! Device statistics, under the names of the real device's `hw_counters`.

macro_rules! counters {
    ($(#[$about:meta])* $type:ident $($(#[$doc:meta])* $name:ident,)*) => {
        $(#[$about])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct $type {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl $type {
            /// The names of the counters.
            pub const NAMES: &[&str] = &[$(stringify!($name)),*];

            /// The number of counters.
            pub const COUNT: usize = Self::NAMES.len();

            /// The values, in the order of [`Self::NAMES`].
            pub fn values(&self) -> [u64; Self::COUNT] {
                [$(self.$name),*]
            }

            /// Every counter with its `hw_counters` name.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                Self::NAMES.iter().copied().zip(self.values())
            }

            /// The counters from their values, in the order of [`Self::NAMES`].
            fn from_values(values: [u64; Self::COUNT]) -> Self {
                let [$($name),*] = values;
                $type { $($name),* }
            }
        }
    };
}

/// All statistics of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Statistics {
    /// Commands to the device.
    pub commands: CommandCounters,
    /// Activity of its port.
    pub port: Counters,
    /// Causes of slow programs and lost completions. The real device has no such counters.
    pub diagnostics: DiagnosticCounters,
}

impl Statistics {
    /// The number of counters.
    pub const COUNT: usize = CommandCounters::COUNT + Counters::COUNT + DiagnosticCounters::COUNT;

    /// The values of all counters, always in the same order.
    pub fn values(&self) -> [u64; Self::COUNT] {
        let mut values = [0; Self::COUNT];
        let (commands, rest) = values.split_at_mut(CommandCounters::COUNT);
        let (port, diagnostics) = rest.split_at_mut(Counters::COUNT);
        commands.copy_from_slice(&self.commands.values());
        port.copy_from_slice(&self.port.values());
        diagnostics.copy_from_slice(&self.diagnostics.values());
        values
    }

    /// The statistics with these values, in the order of [`Statistics::values`].
    pub fn from_values(values: &[u64; Self::COUNT]) -> Statistics {
        let (commands, rest) = values.split_at(CommandCounters::COUNT);
        let (port, diagnostics) = rest.split_at(Counters::COUNT);
        Statistics {
            commands: CommandCounters::from_values(commands.try_into().expect("split there")),
            port: Counters::from_values(port.try_into().expect("split there")),
            diagnostics: DiagnosticCounters::from_values(
                diagnostics.try_into().expect("what is left"),
            ),
        }
    }
}

counters! {
    /// The commands that the device received: verbs that create, modify or destroy an object.
    /// Queries are not counted.
    CommandCounters

    /// Commands given to the device.
    submitted_cmds,
    /// Commands that it executed or refused.
    completed_cmds,
    /// Commands that it refused.
    cmds_err,
    /// Commands without a completion. Never happens here.
    no_completion_cmds,
    /// Keep-alive events from the device to its driver. The emulated device sends none.
    keep_alive_rcvd,
    /// Protection domains refused.
    alloc_pd_err,
    /// Queue pairs refused.
    create_qp_err,
    /// Completion queues refused.
    create_cq_err,
    /// Registrations refused.
    reg_mr_err,
    /// Contexts refused.
    alloc_ucontext_err,
    /// Address handles refused.
    create_ah_err,
    /// Failed mappings of rings and registers. Never happens here.
    mmap_err,
}

/// A command, as far as refusals have separate counters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command {
    /// Allocate a protection domain.
    AllocPd,
    /// Create a queue pair.
    CreateQp,
    /// Create a completion queue.
    CreateCq,
    /// Register memory.
    RegisterMemory,
    /// Create an address handle.
    CreateAh,
    /// Any other command.
    Other,
}

impl CommandCounters {
    /// Counts a command and its result.
    pub(crate) fn count(&mut self, command: Command, refused: bool) {
        self.submitted_cmds += 1;
        self.completed_cmds += 1;
        if !refused {
            return;
        }
        self.cmds_err += 1;
        match command {
            Command::AllocPd => self.alloc_pd_err += 1,
            Command::CreateQp => self.create_qp_err += 1,
            Command::CreateCq => self.create_cq_err += 1,
            Command::RegisterMemory => self.reg_mr_err += 1,
            Command::CreateAh => self.create_ah_err += 1,
            Command::Other => {}
        }
    }
}

counters! {
    /// Activity of the device's port. Bytes are payload bytes.
    Counters

    /// Bytes handed to the link for sends and writes.
    tx_bytes,
    /// Requests handed to the link.
    tx_pkts,
    /// Bytes that arrived by sends and writes.
    rx_bytes,
    /// Requests that arrived and were accepted.
    rx_pkts,
    /// Requests that arrived and were refused or dropped. Each retry counts.
    rx_drops,
    /// Bytes of successful sends.
    send_bytes,
    /// Successful sends.
    send_wrs,
    /// Bytes of messages received.
    recv_bytes,
    /// Messages received.
    recv_wrs,
    /// Successful RDMA reads.
    rdma_read_wrs,
    /// Bytes of successful RDMA reads.
    rdma_read_bytes,
    /// Failed RDMA reads.
    rdma_read_wr_err,
    /// Bytes read from this host by peers.
    rdma_read_resp_bytes,
    /// Successful RDMA writes.
    rdma_write_wrs,
    /// Bytes of successful RDMA writes.
    rdma_write_bytes,
    /// Failed RDMA writes.
    rdma_write_wr_err,
    /// Bytes written to this host by peers.
    rdma_write_recv_bytes,
    /// Bytes sent again because the receiver was not ready.
    retrans_bytes,
    /// Requests sent again because the receiver was not ready.
    retrans_pkts,
    /// Requests given up because the receiver remained not ready.
    retrans_timeout_events,
    /// Peers that stopped answering.
    unresponsive_remote_events,
    /// Peers that never answered.
    impaired_remote_conn_events,
}

counters! {
    /// Causes of slow programs and lost completions.
    DiagnosticCounters

    /// Completions that were lost because their queue was full.
    cq_overruns,
    /// Requests of peers that were refused because no receive was posted.
    rnr_refusals,
    /// Requests that had to wait because the queue to their destination was full.
    full_queues,
}
