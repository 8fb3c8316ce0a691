//! The steps of a plan.

use efa_device_model::fault::{Action, Fault};

use super::{Item, MAX_RECEIVES, WORD, World};
use crate::model::{Message, OneSidedKind, RequestState, pattern};
use crate::plan::{SendMode, Step};

impl World {
    pub(super) fn step(&mut self, step: &Step) -> Result<(), String> {
        match *step {
            Step::Send {
                from,
                to,
                length,
                tag,
                with_data,
                mode,
                buffer,
            } => {
                let (from, to) = (self.current[from], self.current[to]);
                let number = self.messages.len();
                let address = self.allocate(from, length);
                self.fill(from, address, &pattern(number, length));
                // Messages without room for their number, or whose location is not reported when
                // they are truncated, are identified by their data.
                let with_data =
                    with_data || length < 8 || tag.is_none() || !self.all_have_read_nack;
                let with_data = with_data || self.aborts;
                self.messages.push(Message {
                    from,
                    to,
                    length,
                    tag,
                    data: with_data.then_some(number as u64),
                    mode,
                    address,
                    buffer,
                    state: RequestState::Waiting,
                    taken: None,
                    lost: false,
                    aborted: false,
                });
                self.programs[from].outbox.push_back(Item::Message(number));
                self.push(from)?;
            }
            Step::Receive {
                at,
                from,
                tag,
                capacity,
                buffer,
            } => {
                let at = self.current[at];
                let from = from.map(|from| self.current[from]);
                self.receive(at, from, tag, capacity, buffer)?;
            }
            Step::MultiReceive {
                at,
                capacity,
                min_free,
            } => {
                let at = self.current[at];
                if self.programs[at].user.is_some() {
                    self.receive_without_header(at)?;
                } else if self.programs[at].open_receives < MAX_RECEIVES {
                    self.multi_receive(at, capacity, min_free)?;
                }
            }
            Step::Write {
                from,
                to,
                length,
                with_data,
                mode,
                buffer,
            } => self.one_sided(
                (from, to),
                length,
                OneSidedKind::Write,
                mode,
                with_data,
                buffer,
            )?,
            Step::Read {
                from,
                to,
                length,
                buffer,
            } => {
                let kind = OneSidedKind::Read;
                self.one_sided((from, to), length, kind, SendMode::Plain, false, buffer)?;
            }
            Step::Add {
                from,
                to,
                fetch,
                mode,
            } => {
                let (kind, mode) = match fetch {
                    true => (OneSidedKind::FetchAdd, SendMode::Plain),
                    false => (OneSidedKind::Add, mode),
                };
                self.one_sided((from, to), 8, kind, mode, false, WORD)?;
            }
            Step::Claim { from, to } => {
                let kind = OneSidedKind::Claim;
                self.one_sided((from, to), 8, kind, SendMode::Plain, false, WORD)?;
            }
            Step::Combine {
                from,
                to,
                combine,
                mode,
                buffer,
            } => {
                let (kind, length) = (OneSidedKind::Combine(combine), combine.length());
                self.one_sided((from, to), length, kind, mode, false, buffer)?;
            }
            Step::Cancel { at, choice } => {
                let at = self.current[at];
                let open: Vec<usize> = self.open_receives(at).collect();
                if let Some(number) = open.get(choice % open.len().max(1)) {
                    self.cancel(*number, false)?;
                }
            }
            Step::Reserve { at, tagged, keep } => {
                let at = self.current[at];
                if self.programs[at].open_receives < MAX_RECEIVES {
                    self.reserve(at, tagged, keep)?;
                }
            }
            Step::Fault(ref fault) => {
                let id = self.fabric.install(Fault::clone(fault));
                if fault.then == Action::Repeat {
                    self.repetitions.push(id);
                }
            }
            Step::Die { at } => {
                let program = self.current[at];
                // Its queue pair is destroyed without notice to its peers.
                self.programs[program].endpoint = None;
                self.programs[program].user = None;
                self.programs[program].outbox.clear();
                let settings = self.programs[program].settings.clone();
                self.current[at] = self.start(at, settings)?;
            }
            Step::Forget { at, peer } => {
                let (at, peer) = (self.current[at], self.current[peer]);
                self.parted.insert((at, peer));
                self.forget(at, peer)?;
            }
            Step::Withdraw { at } => self.withdraw(self.current[at])?,
            Step::Run { events } => {
                for _ in 0..events {
                    if !self.advance()? {
                        break;
                    }
                }
            }
        }
        Ok(())
    }
}
