//! The libibverbs.so.1 and libefa.so.1 ABI over the emulated EFA device.
