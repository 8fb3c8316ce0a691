//! Two endpoints in one thread and in virtual time: one sends, the other receives.

use efa_core::endpoint::{Endpoint, EndpointConfig, Instant, RecvArgs, SendArgs, SourceFilter};
use efa_sim::{Fabric, FabricConfig, HostConfig, NicConfig};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let fabric = Fabric::new(FabricConfig::default());
    let alice = fabric.add_host(HostConfig::default());
    let bob = fabric.add_host(HostConfig::default());
    let open = |nic| Endpoint::new(nic, EndpointConfig::default());
    let mut sender = open(alice.open_nic(NicConfig::default())?)?;
    let mut receiver = open(bob.open_nic(NicConfig::default())?)?;
    let buffer = bob.allocate(5)?;
    receiver.recv(RecvArgs::new(SourceFilter::Any, &[buffer.into()], 1))?;
    let peer = sender.insert_address(receiver.address())?;
    sender.send(SendArgs::new(
        peer,
        &[alice.allocate_from(b"hello")?.into()],
        2,
    ))?;

    while receiver.poll_completion().transpose()?.is_none() {
        fabric.step();
        sender.progress(Instant(fabric.now()));
        receiver.progress(Instant(fabric.now()));
    }
    assert_eq!(bob.read(buffer)?, b"hello");
    Ok(())
}
