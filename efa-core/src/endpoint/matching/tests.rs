//! Matching compared with plain lists.

use proptest::prelude::*;

use super::*;
use crate::endpoint::ids::Id;

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
        let mut matcher = Matcher::new(Mixer::new(7));
        let mut model = Model::default();
        let mut keys = std::collections::HashMap::new();
        for (number, step) in steps.into_iter().enumerate() {
            let number = number as u32;
            match step {
                Step::Message { source, tag } => {
                    let source = PeerId::new(source, 0);
                    let found = matcher.match_receive(source, tag);
                    let found = found.map(|found| found.receive);
                    prop_assert_eq!(found, model.message(source, tag, number));
                    if found.is_none() {
                        matcher.add_unexpected(source, tag, number);
                    }
                }
                Step::Receive { source, tag } => {
                    let id = ReceiveId::new(number, 0);
                    let source = source.map_or(SourceFilter::Any, |source| {
                        SourceFilter::Peer(PeerId::new(source, 0))
                    });
                    let filter = Filter { source, tag };
                    let found = matcher
                        .find_unexpected(&filter)
                        .map(|key| matcher.remove_unexpected(key).2);
                    prop_assert_eq!(found, model.receive(id, filter));
                    if found.is_none() {
                        keys.insert(number, matcher.post(id, filter, false));
                    }
                }
                Step::Cancel { position } => {
                    if !model.posted.is_empty() {
                        let position = position % model.posted.len();
                        let (id, _) = model.posted.remove(position);
                        prop_assert_eq!(
                            matcher.remove_receive(keys[&(id.index() as u32)]),
                            id
                        );
                    }
                }
            }
            prop_assert_eq!(matcher.posted_len(), model.posted.len());
        }
        for source in 0..3 {
            let source = PeerId::new(source, 0);
            let left: Vec<u32> = matcher
                .unexpected_from(source)
                .into_iter()
                .map(|key| *matcher.unexpected_mut(key).2)
                .collect();
            let expected: Vec<u32> = model
                .unexpected
                .iter()
                .filter(|(from, ..)| *from == source)
                .map(|(.., number)| *number)
                .collect();
            prop_assert_eq!(left, expected);
            let posted: Vec<ReceiveId> = matcher
                .posted_for(source)
                .into_iter()
                .map(|key| matcher.posted[key.0 as usize].receive)
                .collect();
            let expected: Vec<ReceiveId> = model
                .posted
                .iter()
                .filter(|(_, filter)| filter.source == SourceFilter::Peer(source))
                .map(|(id, _)| *id)
                .collect();
            prop_assert_eq!(posted, expected);
        }
        let first = model.posted.first().map(|(id, _)| *id);
        prop_assert_eq!(matcher.find_posted(|_| true), first);
    }
}
