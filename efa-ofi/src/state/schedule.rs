//! Collective operations as messages between two members at a time: the sends, receives and
//! computations of each member, in order. This module is independent of devices and memory.
//!
//! Barriers are dissemination barriers, broadcasts and reductions use binomial trees, and the other
//! operations send each slice directly to its receiver. A reduction to all is a reduction to the
//! first member, which then broadcasts the result. So all members get the same result, also with
//! floating-point numbers.

/// A collective operation (`enum fi_collective_op`), with the number of the member that is its
/// root.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Collective {
    Barrier,
    Broadcast(usize),
    Alltoall,
    Allreduce,
    Allgather,
    ReduceScatter,
    Reduce(usize),
    Scatter(usize),
    Gather(usize),
}

/// The memory of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Area {
    /// The application's operand, into which broadcasts write.
    Buffer,
    /// The application's result.
    Result,
    /// Memory of the operation itself.
    Scratch,
}

/// Some bytes of an area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    pub(crate) area: Area,
    pub(crate) offset: usize,
    pub(crate) length: usize,
}

/// One step of a member. Members are named by their number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    Send {
        to: usize,
        piece: Piece,
    },
    Receive {
        from: usize,
        piece: Piece,
    },
    /// All that was sent and received before has ended.
    Wait,
    /// Combines the elements of two pieces; the result replaces the first.
    Combine {
        into: Piece,
        with: Piece,
    },
    Copy {
        from: Piece,
        to: Piece,
    },
}

/// The steps of a member.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Schedule {
    pub(crate) steps: Vec<Step>,
    /// The bytes of [`Area::Scratch`].
    pub(crate) scratch: usize,
    /// The number of the member.
    pub(crate) rank: usize,
    ranks: usize,
}

impl Schedule {
    /// The steps of member `rank` of `ranks`. `length` is the operand's in bytes, or that of one
    /// member's slice where it is distributed or collected.
    pub(crate) fn new(
        collective: Collective,
        rank: usize,
        ranks: usize,
        length: usize,
    ) -> Schedule {
        let mut schedule = Schedule {
            steps: Vec::new(),
            scratch: 0,
            rank,
            ranks,
        };
        let whole = |area| Piece {
            area,
            offset: 0,
            length,
        };
        match collective {
            Collective::Barrier => schedule.barrier(),
            Collective::Broadcast(root) => schedule.broadcast(root, whole(Area::Buffer)),
            Collective::Reduce(root) => {
                let sum = schedule.reduce(root, length);
                if rank == root {
                    schedule.copy(sum, whole(Area::Result));
                }
            }
            Collective::Allreduce => {
                let sum = schedule.reduce(0, length);
                schedule.broadcast(0, sum);
                schedule.copy(sum, whole(Area::Result));
            }
            Collective::ReduceScatter => {
                let sum = schedule.reduce(0, length * ranks);
                schedule.scatter(0, sum.area, length);
            }
            Collective::Scatter(root) => schedule.scatter(root, Area::Buffer, length),
            Collective::Gather(root) => schedule.gather(root, length),
            Collective::Allgather => schedule.exchange(length, |_| 0),
            Collective::Alltoall => schedule.exchange(length, |to| to * length),
        }
        schedule
    }

    fn barrier(&mut self) {
        let nothing = Piece {
            area: Area::Scratch,
            offset: 0,
            length: 0,
        };
        let mut distance = 1;
        while distance < self.ranks {
            self.steps.extend([
                Step::Send {
                    to: (self.rank + distance) % self.ranks,
                    piece: nothing,
                },
                Step::Receive {
                    from: (self.rank + self.ranks - distance) % self.ranks,
                    piece: nothing,
                },
                Step::Wait,
            ]);
            distance *= 2;
        }
    }

    /// The members in a tree: this member's place below the root, and the member at each place.
    fn tree(&self, root: usize) -> (usize, impl Fn(usize) -> usize + use<>) {
        let ranks = self.ranks;
        let place = (self.rank + ranks - root) % ranks;
        (place, move |place| (place + root) % ranks)
    }

    fn broadcast(&mut self, root: usize, piece: Piece) {
        let (place, member) = self.tree(root);
        let mut bit = 1;
        while bit < self.ranks && place & bit == 0 {
            bit *= 2;
        }
        if place != 0 {
            let from = member(place - bit);
            self.steps
                .extend([Step::Receive { from, piece }, Step::Wait]);
        }
        while bit > 1 {
            bit /= 2;
            if place + bit < self.ranks {
                let to = member(place + bit);
                self.steps.push(Step::Send { to, piece });
            }
        }
        self.steps.push(Step::Wait);
    }

    /// Combines the operands of all; the result is at the root, in the piece that is returned.
    fn reduce(&mut self, root: usize, length: usize) -> Piece {
        let scratch = |offset| Piece {
            area: Area::Scratch,
            offset,
            length,
        };
        let (sum, other) = (scratch(0), scratch(length));
        self.scratch = 2 * length;
        self.copy(
            Piece {
                area: Area::Buffer,
                ..sum
            },
            sum,
        );
        let (place, member) = self.tree(root);
        let mut bit = 1;
        while bit < self.ranks {
            if place & bit != 0 {
                let to = member(place - bit);
                self.steps
                    .extend([Step::Send { to, piece: sum }, Step::Wait]);
                break;
            }
            if place + bit < self.ranks {
                let from = member(place + bit);
                self.steps.extend([
                    Step::Receive { from, piece: other },
                    Step::Wait,
                    Step::Combine {
                        into: sum,
                        with: other,
                    },
                ]);
            }
            bit *= 2;
        }
        sum
    }

    /// Sends each member its slice of `area` at the root.
    fn scatter(&mut self, root: usize, area: Area, length: usize) {
        let slice = |rank| Piece {
            area,
            offset: rank * length,
            length,
        };
        let result = Piece {
            area: Area::Result,
            offset: 0,
            length,
        };
        if self.rank == root {
            let others = (0..self.ranks).filter(|to| *to != root);
            let sends = others.map(|to| Step::Send {
                to,
                piece: slice(to),
            });
            self.steps.extend(sends);
            self.copy(slice(root), result);
        } else {
            self.steps.push(Step::Receive {
                from: root,
                piece: result,
            });
        }
        self.steps.push(Step::Wait);
    }

    fn gather(&mut self, root: usize, length: usize) {
        let own = Piece {
            area: Area::Buffer,
            offset: 0,
            length,
        };
        let slice = |rank| Piece {
            area: Area::Result,
            offset: rank * length,
            length,
        };
        if self.rank == root {
            let others = (0..self.ranks).filter(|from| *from != root);
            let receives = others.map(|from| Step::Receive {
                from,
                piece: slice(from),
            });
            self.steps.extend(receives);
            self.copy(own, slice(root));
        } else {
            self.steps.push(Step::Send {
                to: root,
                piece: own,
            });
        }
        self.steps.push(Step::Wait);
    }

    /// Sends every member the slice of the operand that begins at `offset`, and collects theirs.
    /// Each member starts with a different peer.
    fn exchange(&mut self, length: usize, offset: impl Fn(usize) -> usize) {
        let slice = |area, offset| Piece {
            area,
            offset,
            length,
        };
        for distance in 1..self.ranks {
            let to = (self.rank + distance) % self.ranks;
            let from = (self.rank + self.ranks - distance) % self.ranks;
            self.steps.extend([
                Step::Receive {
                    from,
                    piece: slice(Area::Result, from * length),
                },
                Step::Send {
                    to,
                    piece: slice(Area::Buffer, offset(to)),
                },
            ]);
        }
        let (own, place) = (offset(self.rank), self.rank * length);
        self.copy(slice(Area::Buffer, own), slice(Area::Result, place));
        self.steps.push(Step::Wait);
    }

    fn copy(&mut self, from: Piece, to: Piece) {
        self.steps.push(Step::Copy { from, to });
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, VecDeque};

    use super::*;

    /// A member that carries out its steps; elements are bytes, which are added.
    struct Member {
        steps: VecDeque<Step>,
        areas: HashMap<&'static str, Vec<u8>>,
        awaited: Vec<(usize, Piece)>,
    }

    fn name(area: Area) -> &'static str {
        match area {
            Area::Buffer => "buffer",
            Area::Result => "result",
            Area::Scratch => "scratch",
        }
    }

    impl Member {
        fn bytes(&mut self, piece: Piece) -> &mut [u8] {
            let area = self.areas.get_mut(name(piece.area)).expect("an area");
            &mut area[piece.offset..piece.offset + piece.length]
        }
    }

    /// Carries out an operation with all members, in turns, until all of them are finished.
    fn carry_out(collective: Collective, ranks: usize, length: usize) -> Vec<Vec<u8>> {
        let mut members: Vec<Member> = (0..ranks)
            .map(|rank| {
                let schedule = Schedule::new(collective, rank, ranks, length);
                let operand = (0..length * ranks).map(|at| (10 * rank + at) as u8);
                Member {
                    steps: schedule.steps.into(),
                    areas: HashMap::from([
                        ("buffer", operand.collect()),
                        ("result", vec![0xee; length * ranks]),
                        ("scratch", vec![0; schedule.scratch]),
                    ]),
                    awaited: Vec::new(),
                }
            })
            .collect();
        let mut sent: HashMap<(usize, usize), VecDeque<Vec<u8>>> = HashMap::new();
        loop {
            let mut moved = false;
            for (rank, member) in members.iter_mut().enumerate() {
                let awaited = std::mem::take(&mut member.awaited);
                for (from, piece) in awaited {
                    match sent.entry((from, rank)).or_default().pop_front() {
                        Some(data) => member.bytes(piece).copy_from_slice(&data),
                        None => member.awaited.push((from, piece)),
                    }
                }
                while let Some(step) = member.steps.front().copied() {
                    match step {
                        Step::Wait if !member.awaited.is_empty() => break,
                        Step::Wait => {}
                        Step::Send { to, piece } => {
                            assert_ne!(to, rank);
                            let data = member.bytes(piece).to_vec();
                            sent.entry((rank, to)).or_default().push_back(data);
                        }
                        Step::Receive { from, piece } => member.awaited.push((from, piece)),
                        Step::Combine { into, with } => {
                            let with = member.bytes(with).to_vec();
                            let into = member.bytes(into).iter_mut();
                            into.zip(with).for_each(|(a, b)| *a = a.wrapping_add(b));
                        }
                        Step::Copy { from, to } => {
                            let from = member.bytes(from).to_vec();
                            member.bytes(to).copy_from_slice(&from);
                        }
                    }
                    member.steps.pop_front();
                    moved = true;
                }
            }
            if !moved {
                break;
            }
        }
        assert!(sent.values().all(VecDeque::is_empty), "all was received");
        let ended = |member: &Member| member.steps.is_empty() && member.awaited.is_empty();
        assert!(members.iter().all(ended), "{collective:?} of {ranks} ends");
        let result = match collective {
            Collective::Broadcast(_) => "buffer",
            _ => "result",
        };
        members
            .into_iter()
            .map(|mut member| member.areas.remove(result).expect("an area"))
            .collect()
    }

    /// The operand of a member, as above.
    fn operand(rank: usize, at: usize) -> u8 {
        (10 * rank + at) as u8
    }

    fn sum(ranks: usize, at: usize) -> u8 {
        (0..ranks).fold(0, |sum, rank| sum.wrapping_add(operand(rank, at)))
    }

    #[test]
    fn every_member_gets_the_defined_result() {
        const LENGTH: usize = 3;
        for ranks in 1..=9 {
            let all = |collective, expected: &dyn Fn(usize) -> Vec<u8>| {
                for (rank, result) in carry_out(collective, ranks, LENGTH).iter().enumerate() {
                    let expected = expected(rank);
                    assert_eq!(
                        result[..expected.len()],
                        expected,
                        "{collective:?}, member {rank} of {ranks}"
                    );
                }
            };
            let slice = |of: &dyn Fn(usize) -> u8, from: usize| -> Vec<u8> {
                (from..from + LENGTH).map(of).collect()
            };
            let everywhere = 0..LENGTH * ranks;
            all(Collective::Barrier, &|_| Vec::new());
            all(Collective::Allreduce, &|_| slice(&|at| sum(ranks, at), 0));
            all(Collective::ReduceScatter, &|rank| {
                slice(&|at| sum(ranks, at), rank * LENGTH)
            });
            all(Collective::Allgather, &|_| {
                let of = |at: usize| operand(at / LENGTH, at % LENGTH);
                everywhere.clone().map(of).collect()
            });
            all(Collective::Alltoall, &|rank| {
                let of = |at: usize| operand(at / LENGTH, rank * LENGTH + at % LENGTH);
                everywhere.clone().map(of).collect()
            });
            for root in 0..ranks {
                let at_root = |rank: usize, result: Vec<u8>| match rank == root {
                    true => result,
                    false => Vec::new(),
                };
                all(Collective::Broadcast(root), &|_| {
                    slice(&|at| operand(root, at), 0)
                });
                all(Collective::Reduce(root), &|rank| {
                    at_root(rank, slice(&|at| sum(ranks, at), 0))
                });
                all(Collective::Scatter(root), &|rank| {
                    slice(&|at| operand(root, at), rank * LENGTH)
                });
                all(Collective::Gather(root), &|rank| {
                    let of = |at: usize| operand(at / LENGTH, at % LENGTH);
                    at_root(rank, everywhere.clone().map(of).collect())
                });
            }
        }
    }

    #[test]
    fn no_member_leaves_a_barrier_early() {
        for ranks in 1..=17_usize {
            // The members whose arrival has been signalled to each member, directly or through
            // others.
            let rounds = ranks.next_power_of_two().trailing_zeros() as usize;
            let schedule = Schedule::new(Collective::Barrier, 0, ranks, 0);
            let waits = schedule.steps.iter().filter(|step| **step == Step::Wait);
            assert_eq!(waits.count(), rounds);
            let mut heard: Vec<Vec<bool>> = (0..ranks)
                .map(|rank| (0..ranks).map(|other| other == rank).collect())
                .collect();
            for round in 0..rounds {
                let before = heard.clone();
                for (rank, heard) in heard.iter_mut().enumerate() {
                    let steps = Schedule::new(Collective::Barrier, rank, ranks, 0).steps;
                    let Step::Receive { from, .. } = steps[3 * round + 1] else {
                        panic!("{steps:?}");
                    };
                    let others = heard.iter_mut().zip(&before[from]);
                    others.for_each(|(heard, other)| *heard |= other);
                }
            }
            assert!(heard.concat().iter().all(|heard| *heard), "{ranks} members");
        }
    }
}
