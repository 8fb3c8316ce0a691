//! Two endpoints in one thread and in virtual time: one sends, the other receives.

use efa_core::endpoint::{
    Endpoint, EndpointConfig, Instant, OperationFlags, RecvArgs, SendArgs, SourceFilter,
};
use efa_emu::sim::{Fabric, FabricConfig, HostConfig, NicConfig};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let fabric = Fabric::new(FabricConfig::default());
    let alice = fabric.add_host(HostConfig::default());
    let bob = fabric.add_host(HostConfig::default());
    let config = EndpointConfig::default();
    let mut sender = Endpoint::new(alice.open_nic(NicConfig::default())?, config.clone())?;
    let mut receiver = Endpoint::new(bob.open_nic(NicConfig::default())?, config)?;

    let buffer = bob.allocate(5)?;
    receiver.recv(RecvArgs {
        source: SourceFilter::Any,
        buffer: &[buffer.into()],
        tag: None,
        flags: OperationFlags::COMPLETION,
        context: 1,
    })?;
    let peer = sender.insert_address(receiver.address())?;
    sender.send(SendArgs {
        peer,
        data: &[alice.allocate_from(b"hello")?.into()],
        tag: None,
        cq_data: None,
        flags: OperationFlags::COMPLETION,
        context: 2,
    })?;

    let received = loop {
        sender.progress(Instant(fabric.now()));
        receiver.progress(Instant(fabric.now()));
        if let Some(completion) = receiver.poll_completion() {
            break completion?;
        }
        fabric.step();
    };
    assert_eq!((received.context, received.length), (1, 5));
    assert_eq!(bob.read(buffer)?, b"hello");
    println!("received after {:?}", fabric.now());
    Ok(())
}
