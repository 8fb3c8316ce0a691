//! Collective operations through the C interface, among several domains of a process. Their results
//! are in `guide::processes`.

use std::ffi::{c_int, c_void};
use std::ptr::{null, null_mut};

use crate::common::c::*;
use crate::common::{
    AGAIN, EINVAL, Libfabric, Options, Side, bind, close, with_provider, with_side,
};
use efa_testing::patience::Wait;

/// One member of a group.
struct Member {
    side: Side,
    events: *mut fid_eq,
    set: *mut fid_av_set,
    group: *mut fid_mc,
    addresses: Vec<fi_addr_t>,
}

/// Context of joins, which is not followed.
const JOINED: *mut c_void = std::ptr::without_provenance_mut(48);

fn with_collectives() -> Options {
    Options::USUAL.with(|options| options.caps = Options::USUAL.caps | FI_COLLECTIVE)
}

impl Member {
    fn open(libfabric: &Libfabric) -> Member {
        let side = Side::open(libfabric, &with_collectives());
        let events = side.event_queue(FI_WAIT_NONE);
        assert_eq!(bind(side.endpoint, events, 0), 0);
        side.enable();
        Member {
            side,
            events,
            set: null_mut(),
            group: null_mut(),
            addresses: Vec::new(),
        }
    }

    /// A set of all members, whose addresses it knows.
    fn open_set(&mut self) {
        let mut attributes = fi_av_set_attr {
            start_addr: FI_ADDR_UNSPEC,
            end_addr: FI_ADDR_UNSPEC,
            flags: FI_UNIVERSE,
            ..fi_av_set_attr::default()
        };
        let vector = self.side.vector;
        let set = &mut self.set;
        let status = call!(vector => ops.av_set(&mut attributes, set, null_mut()));
        assert_eq!(status, 0);
    }

    fn join(&mut self) -> c_int {
        let set = self.set;
        let mut name = 0;
        assert_eq!(call!(set => ops.addr(&mut name)), 0);
        let address = fi_collective_addr {
            set: self.set,
            coll_addr: name,
        };
        let address = (&raw const address).cast();
        let (endpoint, group) = (self.side.endpoint, &mut self.group);
        call!(endpoint => cm.join(address, FI_COLLECTIVE, group, JOINED))
    }

    /// Whether it has joined.
    fn has_joined(&self) -> bool {
        let (mut event, mut entry) = (0, fi_eq_entry::default());
        let into = (&raw mut entry).cast();
        let size = size_of::<fi_eq_entry>();
        let events = self.events;
        let read = call!(events => ops.read(&mut event, into, size, 0));
        if read == AGAIN {
            return false;
        }
        assert_eq!((read, event), (size as isize, FI_JOIN_COMPLETE));
        assert_eq!((entry.fid, entry.context), (self.group.cast(), JOINED));
        true
    }

    /// The address of the group.
    fn name(&self) -> fi_addr_t {
        // SAFETY: it is open.
        unsafe { (*self.group).fi_addr }
    }

    fn close(self, libfabric: &Libfabric) {
        assert_eq!((close(self.group), close(self.set)), (0, 0));
        assert_eq!((close(self.side.endpoint), close(self.events)), (0, 0));
        self.side.close_rest(libfabric);
    }
}

/// Makes progress on all members until `done` is true for all.
fn until(members: &[Member], what: &str, mut done: impl FnMut(usize) -> bool) {
    let wait = Wait::start();
    let mut left: Vec<usize> = (0..members.len()).collect();
    while !left.is_empty() {
        for member in members {
            // Reading no entries makes progress and takes nothing.
            let queue = member.side.queue;
            call!(queue => ops.read(null_mut(), 0));
        }
        left.retain(|number| !done(*number));
        wait.check(|| format!("{what}: {left:?} are left"));
    }
}

/// Members that know each other and have sets of all.
fn members(libfabric: &Libfabric, count: usize) -> Vec<Member> {
    let mut members: Vec<Member> = (0..count).map(|_| Member::open(libfabric)).collect();
    let names: Vec<[u8; 32]> = members.iter().map(|member| member.side.name()).collect();
    for member in &mut members {
        member.addresses = names.iter().map(|name| member.side.insert(name)).collect();
        member.open_set();
    }
    members
}

/// Members of a group.
fn joined(libfabric: &Libfabric, count: usize) -> Vec<Member> {
    let mut members = members(libfabric, count);
    for member in &mut members {
        assert_eq!(member.join(), 0);
    }
    until(&members, "joined", |number| members[number].has_joined());
    members
}

/// Starts an operation with all members, and waits until all have completed it.
fn carry_out(members: &[Member], mut start: impl FnMut(usize, *mut c_void) -> isize) {
    for number in 0..members.len() {
        assert_eq!(
            start(number, std::ptr::without_provenance_mut(number + 1)),
            0
        );
    }
    until(members, "completed", |number| {
        match members[number].side.read() {
            Ok((entry, _)) => {
                assert_eq!(entry.op_context.addr(), number + 1);
                assert_eq!(entry.flags, FI_COLLECTIVE);
                true
            }
            Err(error) => {
                assert_eq!(error, AGAIN, "{:?}", members[number].side.read_error());
                false
            }
        }
    });
}

#[test]
fn messages_with_any_tag_are_the_applications() {
    with_provider(|libfabric| {
        let members = joined(libfabric, 2);
        let [left, right] = &members[..] else {
            panic!("two members");
        };
        // SAFETY: the info is valid.
        let format = unsafe { (*(*left.side.info).ep_attr).mem_tag_format };
        assert_eq!(format, u64::MAX >> 1);
        let (mut buffer, no) = ([0_u8; 8], null_mut());
        let into = buffer.as_mut_ptr().cast();
        let mine: *mut c_void = std::ptr::without_provenance_mut(usize::MAX);
        let (endpoint, any) = (right.side.endpoint, u64::MAX);
        let post = call!(endpoint => tagged.recv(into, 8, no, FI_ADDR_UNSPEC, 0, any, mine));
        assert_eq!(post, 0);
        carry_out(&members, |number, context| {
            let endpoint = members[number].side.endpoint;
            call!(endpoint => collective.barrier(members[number].name(), context))
        });
        assert_eq!(
            right.side.read().err(),
            Some(AGAIN),
            "nothing for the application"
        );
        // The highest bit is not the application's.
        let to = left.addresses[1];
        let from = b"12345678".as_ptr().cast();
        let endpoint = left.side.endpoint;
        let high = 1 << 63;
        assert_eq!(
            call!(endpoint => tagged.send(from, 8, no, to, high, no)),
            EINVAL
        );
        let posted = call!(endpoint => tagged.recv(into, 8, no, to, high, 0, no));
        assert_eq!(posted, EINVAL);
        assert_eq!(call!(endpoint => tagged.inject(from, 8, to, 9)), 0);
        until(&members[1..], "the message", |_| match right.side.read() {
            Ok((entry, _)) => {
                assert_eq!((entry.tag, entry.op_context), (9, mine));
                true
            }
            Err(error) => {
                assert_eq!(error, AGAIN);
                false
            }
        });
        for member in members {
            member.close(libfabric);
        }
    });
}

#[test]
fn groups_begin_when_all_have_joined() {
    with_provider(|libfabric| {
        let mut members = members(libfabric, 3);
        for member in &mut members[..2] {
            assert_eq!(member.join(), 0);
        }
        for _ in 0..1000 {
            for member in &members {
                let queue = member.side.queue;
                call!(queue => ops.read(null_mut(), 0));
            }
            assert!(!members[0].has_joined() && !members[1].has_joined());
        }
        let early = {
            let (endpoint, group) = (members[0].side.endpoint, members[0].name());
            call!(endpoint => collective.barrier(group, null_mut()))
        };
        assert_eq!(early, -(FI_EOPBADSTATE as isize));
        assert_eq!(members[2].join(), 0);
        until(&members, "joined", |number| members[number].has_joined());
        // No member leaves a barrier before the last one enters it.
        let enter = |number: usize| {
            let (endpoint, group) = (members[number].side.endpoint, members[number].name());
            assert_eq!(call!(endpoint => collective.barrier(group, JOINED)), 0);
        };
        enter(0);
        enter(1);
        for _ in 0..1000 {
            for member in &members {
                assert_eq!(member.side.read().err(), Some(AGAIN));
            }
        }
        enter(2);
        until(&members, "left", |number| {
            members[number].side.read().is_ok()
        });
        for member in members {
            member.close(libfabric);
        }
    });
}

#[test]
fn an_unjoined_group_can_be_closed() {
    with_provider(|libfabric| {
        let mut members = members(libfabric, 2);
        assert_eq!(members[0].join(), 0);
        let endpoint = members[0].side.endpoint;
        assert_eq!(close(endpoint), -libc::EBUSY, "the group uses it");
        // Its message to the other may be under way still.
        let group = members[0].group;
        until(&members[..1], "closed", |_| match close(group) {
            0 => true,
            error => {
                assert_eq!(error, -libc::EBUSY);
                false
            }
        });
        let mut entry = fi_eq_err_entry::default();
        let events = members[0].events;
        let size = size_of::<fi_eq_err_entry>() as isize;
        assert_eq!(call!(events => ops.readerr(&mut entry, 0)), size);
        assert_eq!((entry.err, entry.context), (libc::ECANCELED, JOINED));
        for member in members {
            let Member {
                side, events, set, ..
            } = member;
            assert_eq!((close(set), close(side.endpoint), close(events)), (0, 0, 0));
            side.close_rest(libfabric);
        }
    });
}

#[test]
fn sets_are_as_they_were_changed() {
    with_side(&with_collectives(), |side| {
        side.enable();
        let own = side.name();
        let names = (0..6_u8).map(|number| {
            let mut name = own;
            // Other numbers of connections.
            name[20] ^= number;
            name
        });
        let addresses: Vec<fi_addr_t> = names.map(|name| side.insert(&name)).collect();
        assert!(addresses.iter().copied().eq(0..6));
        let open = |start_addr, end_addr, stride, flags| {
            let mut attributes = fi_av_set_attr {
                start_addr,
                end_addr,
                stride,
                flags,
                ..fi_av_set_attr::default()
            };
            let mut set = null_mut();
            let status = call!(side.vector => ops.av_set(&mut attributes, &mut set, null_mut()));
            (status, set)
        };
        let no = FI_ADDR_UNSPEC;
        let (_, all) = open(no, no, 0, FI_UNIVERSE);
        let (_, even) = open(0, 5, 2, 0);
        let (_, last) = open(4, 5, 1, 0);
        let (_, none) = open(no, no, 0, 0);
        assert_eq!(open(5, 4, 1, 0), (-libc::EINVAL, null_mut()));
        assert_eq!(open(no, no, 0, 1 << 50), (-libc::EINVAL, null_mut()));
        // A set contains the members that can be removed from it.
        let has = |set: *mut fid_av_set| -> Vec<fi_addr_t> {
            let found = |address: &fi_addr_t| {
                let removed = call!(set => ops.remove(*address)) == 0;
                if removed {
                    assert_eq!(call!(set => ops.insert(*address)), 0);
                }
                removed
            };
            addresses.iter().copied().filter(found).collect()
        };
        assert_eq!(
            (has(all), has(even)),
            (vec![0, 1, 2, 3, 4, 5], vec![0, 2, 4])
        );
        assert_eq!((has(last), has(none)), (vec![4, 5], vec![]));
        assert_eq!(call!(even => ops.set_union(last)), 0);
        assert_eq!(has(even), [0, 2, 4, 5]);
        assert_eq!(call!(even => ops.intersect(last)), 0);
        assert_eq!(has(even), [4, 5]);
        assert_eq!(call!(all => ops.diff(even)), 0);
        assert_eq!(has(all), [0, 1, 2, 3]);
        assert_eq!(call!(all => ops.insert(6)), -libc::EINVAL, "nobody");
        assert_eq!(call!(all => ops.set_union(null())), -libc::EINVAL);
        assert_eq!(close(side.vector), -libc::EBUSY);
        for set in [all, even, last, none] {
            assert_eq!(close(set), 0);
        }
    });
}

#[test]
fn collectives_refuse_what_makes_no_sense() {
    with_provider(|libfabric| {
        let members = joined(libfabric, 1);
        let member = &members[0];
        let (endpoint, group) = (member.side.endpoint, member.name());
        let (mut data, no) = ([1.5_f32], null_mut());
        let (from, root) = (data.as_mut_ptr().cast::<c_void>(), member.addresses[0]);
        let unsupported = -(libc::EOPNOTSUPP as isize);
        let reduce = |group, buffer, kind, operation, flags| {
            call!(endpoint => collective.allreduce(
                buffer, 1, no, from, no, group, kind, operation, flags, no))
        };
        let cases = [
            (reduce(0, from, FI_FLOAT, FI_SUM, 0), EINVAL),
            (reduce(root, from, FI_FLOAT, FI_SUM, 0), EINVAL),
            (reduce(group, no, FI_FLOAT, FI_SUM, 0), EINVAL),
            (reduce(group, from, FI_FLOAT, FI_BOR, 0), unsupported),
            (reduce(group, from, FI_FLOAT, FI_CSWAP, 0), unsupported),
            (reduce(group, from, FI_FLOAT, 99, 0), unsupported),
            (reduce(group, from, 99, FI_SUM, 0), unsupported),
            (
                reduce(group, from, FI_FLOAT, FI_SUM, 1 << 50),
                -(FI_EBADFLAGS as isize),
            ),
            (reduce(group, from, FI_FLOAT, FI_SUM, 0), 0),
            (
                call!(endpoint => collective.broadcast(from, 1, no, group, 7, FI_FLOAT, 0, no)),
                EINVAL,
            ),
        ];
        for (index, (found, expected)) in cases.into_iter().enumerate() {
            assert_eq!(found, expected, "case {index}");
        }
        until(&members, "completed", |_| member.side.read().is_ok());
        assert_eq!(data, [1.5]);
        // Queries agree with calls.
        let query = |collective, op, datatype| {
            let mut attributes = fi_collective_attr {
                op,
                datatype,
                ..fi_collective_attr::default()
            };
            let domain = member.side.domain;
            let status = call!(domain => ops.query_collective(collective, &mut attributes, 0));
            (status, attributes.datatype_attr.size)
        };
        assert_eq!(query(FI_BARRIER, FI_NOOP, FI_VOID), (0, 0));
        assert_eq!(query(FI_ALLREDUCE, FI_SUM, FI_DOUBLE), (0, 8));
        assert_eq!(query(FI_ALLGATHER, FI_NOOP, FI_UINT16), (0, 2));
        let refused = (-libc::EOPNOTSUPP, 0);
        assert_eq!(query(FI_ALLREDUCE, FI_BOR, FI_DOUBLE), refused);
        assert_eq!(query(FI_BROADCAST, FI_NOOP, FI_VOID), refused);
        assert_eq!(query(99, FI_NOOP, FI_UINT8), refused);
        for member in members {
            member.close(libfabric);
        }
        // Without the capability, or without events.
        let side = Side::open(libfabric, &Options::USUAL);
        side.enable();
        side.insert(&side.name());
        let mut plain = Member {
            side,
            events: null_mut(),
            set: null_mut(),
            group: null_mut(),
            addresses: Vec::new(),
        };
        plain.open_set();
        assert_eq!(plain.join(), -libc::EOPNOTSUPP);
        assert_eq!(close(plain.set), 0);
        plain.side.close(libfabric);
    });
}
