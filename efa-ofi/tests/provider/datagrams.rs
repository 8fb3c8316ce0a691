//! Datagram endpoints (`FI_EP_DGRAM`) through the C interface.

use std::ffi::{CStr, c_int, c_void};
use std::ptr::{null, null_mut};

use efa_testing::pattern;

use crate::common::c::*;
use crate::common::{
    AGAIN, EINVAL, Libfabric, Options, Pair, STOCK, Side, bind, close, control, message, piece,
    with_pair, with_provider, with_provider_in, with_provider_under, with_side,
};

const NO_DATA: c_int = -libc::ENODATA;
const REFUSED: isize = -(libc::ENOSYS as isize);

/// Bytes before each message.
const PREFIX: usize = 40;

const DATAGRAMS: Options = Options {
    endpoint_type: FI_EP_DGRAM,
    caps: FI_MSG | FI_SOURCE,
    mode: FI_MSG_PREFIX,
    msg_order: 0,
    ..Options::USUAL
};

fn context(number: usize) -> *mut c_void {
    std::ptr::without_provenance_mut(number)
}

/// A buffer with a message after a prefix of other bytes.
fn with_prefix(message: &[u8]) -> Vec<u8> {
    [&[0xee; PREFIX], message].concat()
}

fn segment(bytes: &mut [u8]) -> iovec {
    piece(bytes.as_mut_ptr(), bytes.len())
}

/// Posts a receive into a buffer.
fn receive(side: &Side, buffer: &mut [u8], descriptor: *mut c_void, number: usize) -> isize {
    let (to, length) = (buffer.as_mut_ptr().cast(), buffer.len());
    let endpoint = side.endpoint;
    call!(endpoint => msg.recv(to, length, descriptor, FI_ADDR_UNSPEC, context(number)))
}

fn send(pair: &Pair, buffer: &[u8], number: usize) -> isize {
    let (from, length) = (buffer.as_ptr().cast(), buffer.len());
    let (endpoint, to) = (pair.left.endpoint, pair.to_right);
    call!(endpoint => msg.send(from, length, null_mut(), to, context(number)))
}

#[test]
fn each_call_sends_and_receives_every_byte() {
    with_pair(&DATAGRAMS, |pair| {
        // SAFETY: the info is the side's, with all attributes.
        let (longest, segments) = unsafe {
            let info = &*pair.left.info;
            ((*info.ep_attr).max_msg_size, (*info.rx_attr).iov_limit)
        };
        assert!(longest > 4096 && segments >= 2, "{longest} {segments}");
        let (endpoint, to, no) = (pair.left.endpoint, pair.to_right, null_mut());
        for length in [0, 1, 32, 33, 1000, longest] {
            for way in 0..7 {
                let expected = pattern(length, length as u8);
                let mut sent = with_prefix(&expected);
                let (from, total) = (sent.as_ptr().cast(), sent.len());
                let mut got = vec![0xdd; PREFIX + longest + 1];
                // Registered by the application, or for the operation.
                let region = (way % 2 == 0).then(|| pair.right.register(&mut got));
                // SAFETY: the registration is open.
                let key = region.map_or(no, |region| unsafe { (*region).mem_desc });
                let (head, tail) = got.split_at_mut(PREFIX + length / 2);
                let scattered = [segment(head), segment(tail)];
                let keys = &mut [key, key];
                let (list, keys) = (scattered.as_ptr(), keys.as_mut_ptr());
                let posted = match way {
                    0 | 1 => receive(&pair.right, &mut got, key, 7),
                    2 | 3 => {
                        let receiver = pair.right.endpoint;
                        call!(receiver => msg.recvv(list, keys, 2, 0, context(7)))
                    }
                    _ => {
                        let message = fi_msg {
                            msg_iov: list,
                            desc: keys,
                            iov_count: 2,
                            context: context(7),
                            ..fi_msg::default()
                        };
                        let receiver = pair.right.endpoint;
                        call!(receiver => msg.recvmsg(&message, FI_COMPLETION))
                    }
                };
                assert_eq!(posted, 0, "{length} bytes, call {way}");
                let (head, tail) = sent.split_at_mut(PREFIX + length / 3);
                let gathered = [segment(head), segment(tail)];
                let message = fi_msg {
                    msg_iov: gathered.as_ptr(),
                    iov_count: 2,
                    addr: to,
                    context: context(9),
                    data: 0x8000_0001,
                    ..fi_msg::default()
                };
                let started = match way {
                    0 => call!(endpoint => msg.send(from, total, no, to, context(9))),
                    1 => {
                        call!(endpoint => msg.sendv(gathered.as_ptr(), null_mut(), 2, to, context(9)))
                    }
                    2 => call!(endpoint => msg.sendmsg(&message, FI_INJECT)),
                    3 => call!(endpoint => msg.sendmsg(&message, FI_REMOTE_CQ_DATA)),
                    4 => {
                        call!(endpoint => msg.senddata(from, total, no, 0x8000_0001, to, context(9)))
                    }
                    5 => call!(endpoint => msg.inject(from, total, to)),
                    _ => call!(endpoint => msg.injectdata(from, total, 0x8000_0001, to)),
                };
                // The buffer is free when the call returns.
                sent.fill(0);
                assert_eq!(started, 0, "{length} bytes, call {way}");
                let (entry, source) = pair.right_completion();
                let has_data = [3, 4, 6].contains(&way);
                let data = [0, FI_REMOTE_CQ_DATA][usize::from(has_data)];
                let found = (entry.op_context, entry.flags, entry.len, source);
                let right = (context(7), FI_MSG | FI_RECV | data, total, pair.to_left);
                assert_eq!(found, right, "{length} bytes, call {way}");
                assert_eq!(entry.data, [0, 0x8000_0001][usize::from(has_data)]);
                assert!(got[PREFIX..total] == expected, "{length} bytes, call {way}");
                assert!(got[total..].iter().all(|byte| *byte == 0xdd));
                if way < 5 {
                    let (entry, _) = pair.left_completion();
                    let found = (entry.op_context, entry.flags, entry.len);
                    assert_eq!(found, (context(9), FI_MSG | FI_SEND, total));
                }
                region
                    .into_iter()
                    .for_each(|region| assert_eq!(close(region), 0));
            }
        }
        assert_eq!(
            pair.left.read().err(),
            Some(AGAIN),
            "injected ones are not reported"
        );
    });
}

/// Hints, and the parts of them that tests change.
struct Hints<'a> {
    info: &'a mut fi_info,
    ep: &'a mut fi_ep_attr,
    tx: &'a mut fi_tx_attr,
    domain: &'a mut fi_domain_attr,
}

type Change = fn(&mut Hints<'_>);

/// The offer for the datagram hints after `change`.
fn offered(
    libfabric: &Libfabric,
    change: impl FnOnce(&mut Hints<'_>),
) -> Result<*mut fi_info, c_int> {
    libfabric.info(|info| {
        // SAFETY: hints have all attributes, each for itself.
        let (ep, tx, domain) = unsafe {
            (
                &mut *info.ep_attr,
                &mut *info.tx_attr,
                &mut *info.domain_attr,
            )
        };
        info.mode = FI_MSG_PREFIX;
        ep.type_ = FI_EP_DGRAM;
        change(&mut Hints {
            info,
            ep,
            tx,
            domain,
        });
    })
}

#[test]
fn the_info_says_what_stock_says() {
    with_provider_in(&[STOCK], |libfabric| {
        let of = |provider: &CStr| {
            let info = offered(libfabric, |hints| {
                // SAFETY: hints have all attributes, and a name that `free` ends.
                unsafe {
                    let name = &mut (*hints.info.fabric_attr).prov_name;
                    libc::free(name.cast());
                    *name = libc::strdup(provider.as_ptr());
                }
            });
            let info = info.expect("there are datagrams");
            // SAFETY: an info has all attributes and the domain's name, until it is freed.
            unsafe {
                let (ep, domain) = (*(*info).ep_attr, &*(*info).domain_attr);
                let name = CStr::from_ptr(domain.name).to_owned();
                let found = (
                    name,
                    (
                        (*info).caps,
                        (*info).mode,
                        (*(*info).tx_attr).mode,
                        (*(*info).rx_attr).mode,
                    ),
                    (
                        ep.type_,
                        ep.protocol,
                        ep.protocol_version,
                        ep.msg_prefix_size,
                    ),
                    (ep.max_msg_size, ep.mem_tag_format, domain.mr_mode),
                    ((*(*info).tx_attr).msg_order, (*(*info).rx_attr).iov_limit),
                );
                assert!((*info).next.is_null());
                (libfabric.freeinfo)(info);
                found
            }
        };
        assert_eq!(of(c"efa_rs"), of(c"efa"));
    });
}

#[test]
fn hints_for_more_than_packets_find_nothing() {
    with_provider(|libfabric| {
        let refused: [(&str, Change); 9] = [
            ("no prefix", |hints| hints.info.mode = 0),
            ("tags", |hints| hints.info.caps = FI_TAGGED),
            ("RMA", |hints| hints.info.caps = FI_MSG | FI_RMA),
            ("atomics", |hints| hints.info.caps = FI_ATOMIC),
            ("collectives", |hints| hints.info.caps = FI_COLLECTIVE),
            ("multi-receive", |hints| {
                hints.info.caps = FI_MSG | FI_MULTI_RECV
            }),
            ("order", |hints| hints.tx.msg_order = FI_ORDER_SAS),
            ("delivery", |hints| hints.tx.op_flags = FI_DELIVERY_COMPLETE),
            ("length", |hints| hints.ep.max_msg_size = 1 << 16),
        ];
        for (what, change) in refused {
            assert_eq!(offered(libfabric, change).err(), Some(NO_DATA), "{what}");
        }
        let side = Side::open(libfabric, &DATAGRAMS);
        // An open domain has endpoints of its type.
        for (kind, is_there) in [(FI_EP_DGRAM, true), (FI_EP_RDM, false)] {
            let info = offered(libfabric, |hints| {
                hints.ep.type_ = kind;
                hints.domain.domain = side.domain;
            });
            assert_eq!(info.is_ok(), is_there, "{kind}");
            // SAFETY: an info that was given, or null.
            info.into_iter()
                .for_each(|info| unsafe { (libfabric.freeinfo)(info) });
        }
        // SAFETY: an info has all attributes, and is the test's own.
        unsafe { (*(*side.info).ep_attr).type_ = FI_EP_RDM };
        let mut other = null_mut();
        let status = call!(side.domain => ops.endpoint(side.info, &mut other, null_mut()));
        assert_eq!((status, other), (-libc::EINVAL, null_mut()));
        side.close(libfabric);
    });
}

#[test]
fn hints_without_a_type_get_both() {
    with_provider(|libfabric| {
        let types = |mode| {
            let info = libfabric.info(|hints| {
                hints.mode = mode;
                // SAFETY: hints have all attributes.
                unsafe { (*hints.ep_attr).type_ = FI_EP_UNSPEC };
            });
            let first = info.expect("there is a device");
            let mut types = Vec::new();
            // SAFETY: infos have all attributes; the list is freed at its end.
            unsafe {
                let mut next = first;
                while let Some(info) = next.as_ref() {
                    types.push((*info.ep_attr).type_);
                    next = info.next;
                }
                (libfabric.freeinfo)(first);
            }
            types
        };
        // No layer of libfabric makes a third one of them, which would come first.
        assert_eq!(types(FI_MSG_PREFIX), [FI_EP_RDM, FI_EP_DGRAM]);
        assert_eq!(types(0), [FI_EP_RDM]);
    });
}

#[test]
fn calls_without_datagrams_are_refused() {
    with_side(&DATAGRAMS, |side| {
        let (endpoint, no) = (side.endpoint, null_mut());
        let mut buffer = vec![0; PREFIX + 8];
        let bad_state = -(FI_EOPBADSTATE as isize);
        assert_eq!(receive(side, &mut buffer, no, 1), bad_state);
        let counter = side.counter(FI_WAIT_NONE);
        assert_eq!(bind(endpoint, counter, FI_SEND), -libc::ENOSYS);
        assert_eq!(close(counter), 0);
        side.enable();
        let to = side.insert(&side.name());
        let (bytes, length) = (buffer.as_mut_ptr().cast(), buffer.len());
        for status in [
            call!(endpoint => tagged.send(bytes, length, no, to, 1, no)),
            call!(endpoint => tagged.recv(bytes, length, no, to, 1, 0, no)),
            call!(endpoint => rma.read(bytes, length, no, to, 0, 0, no)),
            call!(endpoint => rma.write(bytes, length, no, to, 0, 0, no)),
            call!(endpoint => atomic.write(bytes, 1, no, to, 0, 0, FI_UINT8, FI_SUM, no)),
            call!(endpoint => collective.barrier(to, no)),
            side.cancel(no),
        ] {
            assert_eq!(status, REFUSED);
        }
        assert_eq!(
            side.set_option(FI_OPT_MIN_MULTI_RECV, 64),
            -libc::ENOPROTOOPT
        );
        let mut flags = FI_TRANSMIT;
        assert_eq!(control(endpoint, FI_GETOPSFLAG, &mut flags), 0);

        let short = PREFIX - 1;
        assert_eq!(
            call!(endpoint => msg.send(bytes, short, no, to, no)),
            EINVAL
        );
        assert_eq!(
            call!(endpoint => msg.recv(bytes, short, no, to, no)),
            EINVAL
        );
        assert_eq!(
            call!(endpoint => msg.sendv(null(), null_mut(), 0, to, no)),
            EINVAL
        );
        let long = vec![0_u8; PREFIX + (1 << 16)];
        assert_eq!(
            call!(endpoint => msg.send(long.as_ptr().cast(), long.len(), no, to, no)),
            EINVAL
        );
        assert_eq!(
            call!(endpoint => msg.send(bytes, length, no, to + 1, no)),
            EINVAL
        );
        assert_eq!(
            call!(endpoint => msg.senddata(bytes, length, no, 1 << 32, to, no)),
            EINVAL
        );
        let list = [segment(&mut buffer)];
        let message = message(&list[0], to);
        let bad_flags = -(FI_EBADFLAGS as isize);
        for flags in [FI_DELIVERY_COMPLETE, FI_FENCE, 1 << 62] {
            assert_eq!(
                call!(endpoint => msg.sendmsg(&message, flags)),
                bad_flags,
                "{flags:#x}"
            );
        }
        for flags in [FI_MULTI_RECV, FI_PEEK, 1 << 62] {
            assert_eq!(
                call!(endpoint => msg.recvmsg(&message, flags)),
                bad_flags,
                "{flags:#x}"
            );
        }
        // Posted receives end with the endpoint.
        assert_eq!(receive(side, &mut buffer, no, 1), 0);
    });
}

#[test]
fn a_datagram_without_room_fails_its_receive() {
    with_pair(&DATAGRAMS, |pair| {
        let mut short = vec![0xdd; PREFIX + 7];
        assert_eq!(receive(&pair.right, &mut short, null_mut(), 3), 0);
        assert_eq!(send(pair, &with_prefix(&pattern(8, 8)), 1), 0);
        let failed = pair.right_failure();
        let found = (failed.op_context, failed.flags, failed.err);
        assert_eq!(found, (context(3), FI_MSG | FI_RECV, libc::EMSGSIZE));
        // The sender gets no error, and the next one arrives.
        let (entry, _) = pair.left_completion();
        assert_eq!(entry.op_context, context(1));
        assert_eq!(receive(&pair.right, &mut short, null_mut(), 4), 0);
        assert_eq!(send(pair, &with_prefix(&pattern(7, 7)), 2), 0);
        assert_eq!(pair.right_completion().0.op_context, context(4));
        assert_eq!(short[PREFIX..], pattern(7, 7));
    });
}

#[test]
fn a_full_queue_pushes_back() {
    with_pair(&DATAGRAMS, |pair| {
        // SAFETY: the info is the side's, with all attributes.
        let size = unsafe { (*(*pair.right.info).rx_attr).size };
        let mut buffer = vec![0; PREFIX + 8];
        for number in 0..size {
            assert_eq!(receive(&pair.right, &mut buffer, null_mut(), number), 0);
        }
        assert_eq!(receive(&pair.right, &mut buffer, null_mut(), 0), AGAIN);
        assert_eq!(send(pair, &with_prefix(&pattern(8, 8)), 1), 0);
        assert_eq!(pair.right_completion().0.op_context, context(0));
        assert_eq!(receive(&pair.right, &mut buffer, null_mut(), 0), 0);
    });
}

#[test]
fn a_datagram_is_lost_as_a_whole() {
    const COUNT: usize = 200;
    let lossy = ["env", "EFA_EMU_NETWORK=seed=3,loss=0.4"];
    let name = "datagrams::a_datagram_is_lost_as_a_whole";
    with_provider_under(
        &lossy,
        name,
        |_| (),
        |libfabric| {
            let pair = Pair::open(libfabric, &DATAGRAMS);
            let mut buffers: Vec<Vec<u8>> = (0..COUNT).map(|_| vec![0; PREFIX + COUNT]).collect();
            for (number, buffer) in buffers.iter_mut().enumerate() {
                assert_eq!(receive(&pair.right, buffer, null_mut(), number), 0);
            }
            for length in 0..COUNT {
                pair.start(|| send(&pair, &with_prefix(&pattern(length, length as u8)), length));
                // Each send succeeds, whether or not its datagram arrives.
                assert_eq!(pair.left_completion().0.op_context, context(length));
            }
            let mut arrived = Vec::new();
            // A queue that is empty once is not the end: datagrams may be under way.
            while let Some((entry, _)) = match arrived.len() < COUNT / 3 {
                true => Some(pair.right_completion()),
                false => pair.right.read().ok(),
            } {
                let length = entry.len - PREFIX;
                let buffer = &buffers[entry.op_context.addr()];
                assert!(
                    buffer[PREFIX..entry.len] == pattern(length, length as u8),
                    "{length}"
                );
                arrived.push(length);
            }
            assert!(
                (COUNT / 3..COUNT * 4 / 5).contains(&arrived.len()),
                "{}",
                arrived.len()
            );
            arrived.dedup();
            assert!(arrived.is_sorted(), "none comes twice: {arrived:?}");
            pair.close(libfabric);
        },
    );
}

#[test]
fn a_datagram_wakes_a_sleeper() {
    let sleeping = DATAGRAMS.with(|options| options.wait_obj = FI_WAIT_FD);
    with_pair(&sleeping, |pair| {
        let mut buffer = vec![0; PREFIX + 8];
        assert_eq!(receive(&pair.right, &mut buffer, null_mut(), 5), 0);
        let queue = pair.right.queue;
        let mut waited = fi_cq_tagged_entry::default();
        let nothing = call!(queue => ops.sread((&raw mut waited).cast(), 1, null(), 1));
        assert_eq!(nothing, AGAIN);
        assert_eq!(send(pair, &with_prefix(&pattern(8, 8)), 1), 0);
        let one = call!(queue => ops.sread((&raw mut waited).cast(), 1, null(), -1));
        assert_eq!((one, waited.op_context), (1, context(5)));
    });
}
