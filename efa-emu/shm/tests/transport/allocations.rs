//! A message between two opened devices allocates nothing in the steady state: counted.

use efa_device_model::provider::{SendData, WcOpcode};
use efa_testing::engine::{Client, config};
use efa_testing::heap;

#[test]
fn a_message_allocates_nothing() {
    const LENGTH: usize = 64;
    let root = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut alpha = Client::open(root.path(), &config("alpha"));
    let mut beta = Client::open(root.path(), &config("beta"));
    let source = alpha.register(vec![1; LENGTH]);
    let room = beta.register(vec![0; LENGTH]);
    let to = alpha.connect(beta.address());
    beta.connect(alpha.address());
    let mut exchange = |messages: u64| {
        for number in 0..messages {
            beta.post_recv(number, room.buffer(0, LENGTH));
            let data = [source.buffer(0, LENGTH)];
            assert!(alpha.post_send(number, to, SendData::Buffers(&data)));
            let received = loop {
                if let Some(completion) = beta.poll() {
                    break completion;
                }
            };
            assert_eq!((received.code(), received.opcode()), (0, WcOpcode::Recv));
            alpha.wait_ok();
        }
    };
    exchange(100);
    assert_eq!(heap::allocations_of(|| exchange(5_000)), 0);
}
