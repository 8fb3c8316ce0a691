//! Matching compared with plain lists.

use proptest::prelude::*;

use super::*;
use crate::endpoint::base::hash::SeededHasher;
use crate::endpoint::base::ids::{Id, ReceiveId};

/// The matching rules as plain lists.
#[derive(Default)]
struct Model {
    posted: Vec<(ReceiveId, Filter)>,
    unexpected: Vec<(PeerId, u64, u32)>,
}

impl Model {
    fn message(&mut self, source: PeerId, tag: u64, number: u32) -> Option<ReceiveId> {
        match self
            .posted
            .iter()
            .position(|(_, filter)| filter.accepts(source, tag))
        {
            Some(position) => Some(self.posted.remove(position).0),
            None => {
                self.unexpected.push((source, tag, number));
                None
            }
        }
    }

    fn receive(&mut self, id: ReceiveId, filter: Filter) -> Option<u32> {
        match self
            .unexpected
            .iter()
            .position(|(source, tag, _)| filter.accepts(*source, *tag))
        {
            Some(position) => Some(self.unexpected.remove(position).2),
            None => {
                self.posted.push((id, filter));
                None
            }
        }
    }
}

/// The posted receives that are queued.
#[derive(Default)]
struct Store(Vec<(ReceiveId, PostedEntry)>);

impl Receives for Store {
    fn entry(&self, slot: u32) -> &PostedEntry {
        &self.0[slot as usize].1
    }

    fn entry_mut(&mut self, slot: u32) -> &mut PostedEntry {
        &mut self.0[slot as usize].1
    }
}

#[derive(Clone, Debug)]
enum Step {
    Message { source: u32, tag: u64 },
    Receive { source: Option<u32>, tag: TagFilter },
    Cancel { position: usize },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let source = 0..3_u32;
    let tag = 0..8_u64;
    let ignore = prop_oneof![3 => Just(0), 1 => Just(7), 1 => Just(u64::MAX), 2 => 0..8_u64];
    let step = prop_oneof![
        4 => (source.clone(), tag.clone())
            .prop_map(|(source, tag)| Step::Message { source, tag }),
        4 => (proptest::option::of(source), tag, ignore).prop_map(|(source, tag, ignore)| {
            Step::Receive { source, tag: TagFilter { tag, ignore } }
        }),
        1 => any::<usize>().prop_map(|position| Step::Cancel { position }),
    ];
    proptest::collection::vec(step, 0..200)
}

proptest! {
    #[test]
    fn behaves_as_plain_lists_do(steps in steps()) {
        let mut receives = ReceiveQueues::new(SeededHasher::new(7));
        let mut messages = MessageQueues::new(SeededHasher::new(7));
        let mut model = Model::default();
        let mut store = Store::default();
        for (number, step) in steps.into_iter().enumerate() {
            let number = number as u32;
            match step {
                Step::Message { source, tag } => {
                    let source = PeerId::new(source, 0);
                    let found = receives.take_oldest(&mut store, source, tag);
                    let found = found.map(|found| store.0[found.slot as usize].0);
                    prop_assert_eq!(found, model.message(source, tag, number));
                    if found.is_none() {
                        messages.push(source, tag, number);
                    }
                }
                Step::Receive { source, tag } => {
                    let slot = store.0.len() as u32;
                    let id = ReceiveId::new(slot, number % 7);
                    let source = source.map_or(SourceFilter::Any, |source| {
                        SourceFilter::Peer(PeerId::new(source, 0))
                    });
                    let filter = Filter { source, tag };
                    let found = messages
                        .find(&filter)
                        .map(|key| messages.remove(key).2);
                    prop_assert_eq!(found, model.receive(id, filter));
                    if found.is_none() {
                        let entry = receives.new_entry(&filter, false);
                        store.0.push((id, entry));
                        receives.post(&mut store, slot, entry);
                    }
                }
                Step::Cancel { position } => {
                    if !model.posted.is_empty() {
                        let position = position % model.posted.len();
                        let (id, _) = model.posted.remove(position);
                        receives.remove(&mut store, id.slot());
                    }
                }
            }
            prop_assert_eq!(receives.len(), model.posted.len());
        }
        for source in 0..3 {
            let source = PeerId::new(source, 0);
            let left: Vec<u32> = messages
                .of_source(source)
                .into_iter()
                .map(|key| *messages.get_mut(key).2)
                .collect();
            let expected: Vec<u32> = model
                .unexpected
                .iter()
                .filter(|(from, ..)| *from == source)
                .map(|(.., number)| *number)
                .collect();
            prop_assert_eq!(left, expected);
        }
        while let Some((_, filter)) = model.posted.first() {
            let source = match filter.source {
                SourceFilter::Any => PeerId::new(9, 0),
                SourceFilter::Peer(source) => source,
            };
            let tag = filter.tag.tag;
            let found = receives.take_oldest(&mut store, source, tag);
            let found = found.map(|found| store.0[found.slot as usize].0);
            prop_assert_eq!(found, model.message(source, tag, 0));
        }
        prop_assert_eq!(receives.len(), 0);
    }
}
