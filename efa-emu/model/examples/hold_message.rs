//! A test of one event: the first of two messages arrives after the second. Every run is the same.

use efa_core::endpoint::{
    Endpoint, EndpointConfig, Instant, OperationFlags, RecvArgs, SendArgs, SourceFilter,
};
use efa_core::nic::UserSlice;
use efa_sim::{Fabric, FabricConfig, HostConfig, NicConfig, SimNic};

/// Runs network and endpoints until nothing more happens.
fn settle(fabric: &Fabric, endpoints: &mut [Endpoint<SimNic>; 2]) {
    loop {
        for endpoint in endpoints.iter_mut() {
            while endpoint.progress(Instant(fabric.now())) > 0 {}
        }
        if fabric.step().is_none() {
            return;
        }
    }
}

/// The received message, and a digest of all network events.
fn run(seed: u64) -> Result<(Vec<u8>, u64), Box<dyn std::error::Error>> {
    let fabric = Fabric::new(FabricConfig::seeded(seed));
    let alice = fabric.add_host(HostConfig::default());
    let bob = fabric.add_host(HostConfig::default());
    let open = |nic: SimNic| Endpoint::new(nic, EndpointConfig::default());
    let mut endpoints = [
        open(alice.open_nic(NicConfig::default())?)?,
        open(bob.open_nic(NicConfig::default())?)?,
    ];
    let late =
        fabric.install(r#"when = { packet = "EAGER_MSGRTM", msg-id = 0 }, then = "hold""#.parse()?);

    let buffer = bob.allocate(2)?;
    let peer = endpoints[0].insert_address(endpoints[1].address())?;
    for (index, letter) in [b"a", b"b"].into_iter().enumerate() {
        let place = UserSlice::new(buffer.address + index as u64, 1);
        endpoints[1].recv(RecvArgs::new(
            SourceFilter::Any,
            &[place.into()],
            index as u64,
        ))?;
        endpoints[0].send(SendArgs {
            flags: OperationFlags::empty(),
            ..SendArgs::new(peer, &[alice.allocate_from(letter)?.into()], 0)
        })?;
    }
    settle(&fabric, &mut endpoints);
    assert_eq!(fabric.held(late), 1);
    assert!(endpoints[1].poll_completion().is_none(), "b waits for a");

    fabric.release(late, 1);
    settle(&fabric, &mut endpoints);
    for context in [0, 1] {
        let completion = endpoints[1].poll_completion().expect("a message has come");
        assert_eq!(completion?.context, context);
    }
    let digest = fabric.log().digest();
    Ok((bob.read(buffer)?, digest))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let first = run(7)?;
    assert_eq!(first.0, b"ab");
    assert_eq!(run(7)?, first);
    Ok(())
}
