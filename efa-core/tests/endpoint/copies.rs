//! Bytes copied by each protocol: none where the device can gather or place the data itself.

use efa_core::endpoint::*;
use efa_core::nic::{Access, UserSlice};
use efa_core::wire::{ExtraFeatures, LongctsRtm, LongreadRtm, RmaIov, RmaIovs, SendId};

use crate::script::{MODERN, Script, announced, config, peer_memory, traits_with};
use efa_testing::nic::MEMORY;

/// Whole memory, registered or not, at a peer that has these features.
fn script(registered: bool) -> (Script, PeerId, IoVec) {
    let wide = traits_with(|traits| traits.mtu = 4096);
    let (mut script, peer) = announced(
        config(),
        wide,
        MODERN | ExtraFeatures::RDMA_READ | ExtraFeatures::RDMA_WRITE,
    );
    let memory = UserSlice::new(MEMORY, 1 << 19);
    let region = registered.then(|| script.dut.register(memory, Access::all()).unwrap());
    (script, peer, IoVec { memory, region })
}

fn part(whole: IoVec, length: usize) -> [IoVec; 1] {
    [IoVec {
        memory: UserSlice {
            length,
            ..whole.memory
        },
        ..whole
    }]
}

fn send(script: &mut Script, peer: PeerId, data: &[IoVec]) {
    script.dut.send(SendArgs::new(peer, data, 1)).unwrap();
    script.progress();
}

/// The bytes copied in total, and by one protocol.
fn copied(script: &Script, protocol: Protocol) -> (u64, u64, CopiedBytes) {
    let all = Protocol::ALL.map(|protocol| script.dut.statistics().copied(protocol));
    let sent = all.iter().map(|copied| copied.sent).sum();
    let received = all.iter().map(|copied| copied.received).sum();
    (sent, received, script.dut.statistics().copied(protocol))
}

#[test]
fn registered_memory_is_gathered_other_copied_once() {
    for registered in [false, true] {
        let copies = |length: u64| if registered { 0 } else { length };
        let (mut script, peer, memory) = script(registered);
        send(&mut script, peer, &part(memory, 3000));
        let (sent, _, eager) = copied(&script, Protocol::Eager);
        assert_eq!((sent, eager.sent), (copies(3000), copies(3000)));
        script.sent();

        let (mut script, peer, memory) = self::script(registered);
        send(&mut script, peer, &part(memory, 9000));
        let send_id = script.expect_header::<LongctsRtm>().send_id;
        let sent = copied(&script, Protocol::LongCts).0;
        script.grant(send_id, 1, 9000 - 4068);
        assert_eq!(sent, copies(4068));
        let (sent, _, long) = copied(&script, Protocol::LongCts);
        // The last piece is short, and cheaper to copy than to gather.
        let expected = if registered { 868 } else { 9000 };
        assert_eq!((sent, long.sent), (expected, expected));
    }
}

/// The device may gather memory at any later time, so injected data must be copied.
#[test]
fn injected_memory_is_the_applications_again_at_once() {
    let (mut script, peer, memory) = script(true);
    let (data, flags) = (part(memory, 3000), OperationFlags::INJECT);
    let remote = [peer_memory(0x1000, 3000, 5)];
    for is_write in [false, true] {
        script.network.fill(0, MEMORY, &[1; 3000]);
        let started = match is_write {
            false => script.dut.send(SendArgs {
                flags,
                ..SendArgs::new(peer, &data, 1)
            }),
            true => script.dut.write(WriteArgs {
                peer,
                data: &data,
                remote: &remote,
                cq_data: None,
                flags,
                context: 1,
            }),
        };
        started.unwrap();
        script.network.fill(0, MEMORY, &[2; 3000]);
        let sent = script.sent();
        assert!(sent.ends_with(&[1; 3000]), "write {is_write}: {sent:?}");
    }
}

#[test]
fn data_moved_by_rdma_is_not_copied() {
    let (mut script, peer, memory) = script(true);
    script
        .dut
        .recv(RecvArgs::new(SourceFilter::Any, &part(memory, 100_000), 2))
        .unwrap();
    let source = [RmaIov::new(0x9000, 100_000, 3)];
    let message = LongreadRtm {
        msg_length: 100_000,
        send_id: SendId(4),
        read_iov: RmaIovs::new(&source).unwrap(),
        options: script.raw_address(),
        ..LongreadRtm::default()
    };
    script.send(&message, &[]);
    let remote = [peer_memory(0x1000, 100_000, 5)];
    script
        .dut
        .write(WriteArgs {
            peer,
            data: &part(memory, 100_000),
            remote: &remote,
            cq_data: None,
            flags: OperationFlags::COMPLETION,
            context: 3,
        })
        .unwrap();
    send(&mut script, peer, &part(memory, 100_000));
    for _ in 0..10 {
        while script.network.flights() > 0 {
            script.network.swallow(0);
        }
        script.progress();
    }
    let mut contexts = [script.completion().context, script.completion().context];
    contexts.sort_unstable();
    assert_eq!(contexts, [2, 3]);
    for protocol in Protocol::ALL {
        let (.., copied) = copied(&script, protocol);
        assert_eq!(copied, CopiedBytes::default(), "{protocol:?}");
    }
}

#[test]
fn received_packets_are_copied_once() {
    let (mut script, _, memory) = script(true);
    script
        .dut
        .recv(RecvArgs::new(SourceFilter::Any, &part(memory, 50), 2))
        .unwrap();
    let message = script.eager(0);
    script.send(&message, &[7; 80]);
    // Bytes beyond the buffer are not copied.
    assert_eq!(script.error().length, 50);
    let (sent, received, eager) = copied(&script, Protocol::Eager);
    assert_eq!((sent, received, eager.received), (0, 50, 50));
}
