//! Tests the wrapper of stock libfabric over a provider that needs no device.
//!
//! Needs an installed libfabric with the `tcp` provider; without it the test prints a message.

use std::path::Path;
use std::time::{Duration, Instant};

use efa_play::libfabric::{
    Address, Completion, Destination, Endpoint, Error, Library, RemoteMemory, Settings, Token,
    Version, ffi,
};
use efa_play::operation::pattern;

fn library() -> Option<Library> {
    match Library::load(Path::new(Library::DEFAULT)) {
        Ok(library) => Some(library),
        Err(error) => {
            efa_testing::skip(error);
            None
        }
    }
}

struct Pair {
    endpoints: [Endpoint; 2],
    addresses: [Address; 2],
}

/// Two endpoints of one process, each in the other's address vector.
fn pair(library: &Library) -> Option<Pair> {
    let settings = Settings {
        provider: "tcp;ofi_rxm".into(),
        api: Version::BASELINE_API,
        capabilities: ffi::FI_MSG | ffi::FI_TAGGED | ffi::FI_RMA | ffi::FI_SOURCE,
        register_local: false,
        max_message: None,
        device: None,
    };
    let open = || match Endpoint::open(library, &settings) {
        Ok(endpoint) => Some(endpoint),
        Err(error @ Error::NoEndpoint { .. }) => {
            efa_testing::skip(error);
            None
        }
        Err(error) => panic!("{error}"),
    };
    let mut endpoints = [open()?, open()?];
    let names = [endpoints[0].name().unwrap(), endpoints[1].name().unwrap()];
    let addresses = [
        endpoints[0].insert(&names[1]).unwrap(),
        endpoints[1].insert(&names[0]).unwrap(),
    ];
    Some(Pair {
        endpoints,
        addresses,
    })
}

impl Pair {
    /// Polls both sides until `count` operations with a token are complete.
    fn complete(&mut self, count: usize) -> Vec<(usize, Completion)> {
        let deadline = Instant::now() + Duration::from_secs(30);
        let mut done = Vec::new();
        while done.len() < count {
            assert!(Instant::now() < deadline, "only {done:?}");
            for (side, endpoint) in self.endpoints.iter_mut().enumerate() {
                if let Some(completion) = endpoint.poll().unwrap() {
                    done.push((side, completion));
                }
            }
        }
        done
    }

    /// Starts an operation at one side; polls as long as the library has no resources.
    fn start(&mut self, side: usize, mut call: impl FnMut(&mut Endpoint) -> Result<(), Error>) {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            match call(&mut self.endpoints[side]) {
                Ok(()) => return,
                Err(error) if error.is_try_again() && Instant::now() < deadline => {
                    for endpoint in &mut self.endpoints {
                        assert!(endpoint.poll().unwrap().is_none());
                    }
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
}

fn received(done: &[(usize, Completion)], token: u64) -> &Completion {
    let found = done.iter().find(|(_, c)| c.token == Some(Token(token)));
    &found
        .unwrap_or_else(|| panic!("{token} is not among {done:?}"))
        .1
}

#[test]
fn messages_memory_and_errors_cross_the_interface() {
    let Some(library) = library() else { return };
    assert!(library.version() >= Version::BASELINE_API);
    let Some(mut pair) = pair(&library) else {
        return;
    };
    let to = |pair: &Pair, tag, data| Destination {
        peer: pair.addresses[0],
        tag,
        data,
    };
    let message = pattern::bytes(1, 100);

    // Untagged, with completion data, received with its source.
    let destination = to(&pair, None, Some(0xCAFE));
    pair.start(1, |b| b.recv(Token(1), vec![0; 200], None));
    pair.start(0, |a| a.send(Token(2), message.clone(), destination));
    let done = pair.complete(2);
    let arrived = received(&done, 1);
    assert_eq!(arrived.result, Ok(()));
    assert_eq!((arrived.length, arrived.data), (100, Some(0xCAFE)));
    assert_eq!(arrived.buffer[..100], message[..]);
    assert_eq!(arrived.source, Some(pair.addresses[1]));
    assert_eq!(received(&done, 2).buffer, message);

    // Tagged with a mask; injected, which completes at the receiver only.
    let destination = to(&pair, Some(0x1f), None);
    pair.start(1, |b| {
        b.recv_tagged(Token(3), vec![0; 100], None, 0x10, 0xf)
    });
    pair.start(0, |a| a.inject(&message[..50], destination));
    let done = pair.complete(1);
    let arrived = received(&done, 3);
    assert_eq!((arrived.tag, arrived.length), (0x1f, 50));

    // One-sided, both ways.
    let region = pair.endpoints[1]
        .register(vec![0; 100], ffi::FI_REMOTE_READ | ffi::FI_REMOTE_WRITE)
        .unwrap();
    let (address, key) = pair.endpoints[1].region_location(region);
    let remote = RemoteMemory {
        peer: pair.addresses[0],
        address,
        key,
    };
    pair.start(0, |a| {
        a.write(Token(6), message.clone(), remote, None, false)
    });
    assert_eq!(pair.complete(1)[0].1.result, Ok(()));
    // A write may complete before its bytes have arrived.
    let deadline = Instant::now() + Duration::from_secs(30);
    while pair.endpoints[1].region_bytes(region) != message {
        assert!(Instant::now() < deadline, "the write never arrived");
        for endpoint in &mut pair.endpoints {
            assert!(endpoint.poll().unwrap().is_none());
        }
    }
    pair.start(0, |a| a.read(Token(7), vec![0; 100], remote));
    let done = pair.complete(1);
    assert_eq!(received(&done, 7).buffer, message);

    // Too long for the receive. The provider then ends the connection, so this test comes last.
    let destination = to(&pair, Some(7), None);
    pair.start(1, |b| b.recv_tagged(Token(4), vec![0; 60], None, 7, 0));
    pair.start(0, |a| a.send(Token(5), message.clone(), destination));
    let done = pair.complete(2);
    let failure = received(&done, 4).result.clone().unwrap_err();
    assert_eq!(failure.code, ffi::FI_ETRUNC as i32);

    // The endpoint is closed with an unmatched receive.
    pair.start(1, |b| b.recv(Token(8), vec![0; 8], None));
    assert_eq!(pair.endpoints[1].outstanding(), 1);
}

#[test]
fn a_missing_device_is_explained() {
    let Some(library) = library() else { return };
    let settings = Settings {
        provider: "no-such-provider".into(),
        api: Version::BASELINE_API,
        capabilities: ffi::FI_MSG,
        register_local: false,
        max_message: None,
        device: None,
    };
    let text = Endpoint::open(&library, &settings).unwrap_err().to_string();
    assert!(text.contains("efa-emu run"), "{text}");
    assert!(text.contains("FI_LOG_LEVEL"), "{text}");
}
