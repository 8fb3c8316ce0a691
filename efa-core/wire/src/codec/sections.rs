//! Makes the tables from the declarations. All of this runs at compile time.

use super::base::BASE;
use super::declare::{FieldCondition, Line, PADDING, Shape};
use super::iov::{EXTRA_INFO, READ_IOV, RMA_IOV};
use crate::descriptor::{Array, FieldDescriptor, FieldKind, Presence, Section, Width};

impl Line {
    /// The field, and the padding that belongs to it.
    pub(crate) const fn describe(&self, shape: &Shape) -> [FieldDescriptor; 2] {
        use Presence::{Always, IfFlag, IfFlagElseNext, IfType, UnlessFlag, UnlessFlagIfRoom};
        let (width, kind) = match *shape {
            Shape::Word(width, kind) => match self.kind {
                Some(kind) => (width, kind),
                None => (width, kind),
            },
            Shape::Count => (size_of::<u32>(), FieldKind::Count(self.array())),
            Shape::Entries | Shape::Sections(_) => (0, FieldKind::Padding),
        };
        let (presence, pad_presence, (pad_name, pad_width)) = match self.when {
            FieldCondition::Always => (Always, Always, self.pad),
            FieldCondition::Type(traits) => (IfType(traits), IfType(traits), self.pad),
            FieldCondition::Flag(flag) => (IfFlag(flag), IfFlag(flag), self.pad),
            FieldCondition::FlagOrPadding(flag) => {
                (IfFlagElseNext(flag), UnlessFlag(flag), ("padding", width))
            }
            FieldCondition::FlagOrRoom(flag) => (
                IfFlagElseNext(flag),
                UnlessFlagIfRoom(flag),
                ("padding", width),
            ),
        };
        [
            FieldDescriptor {
                name: self.name,
                width: Width::Fixed(width),
                presence,
                kind,
                source: self.source,
                description: self.meaning,
            },
            FieldDescriptor {
                name: pad_name,
                width: Width::Fixed(pad_width),
                presence: pad_presence,
                kind: FieldKind::Padding,
                source: self.source,
                description: PADDING,
            },
        ]
    }

    /// The line's sections; `described` is the section that [`Line::describe`] returned.
    pub(crate) const fn sections(
        &self,
        shape: &Shape,
        described: &'static [&'static Section],
    ) -> &'static [&'static Section] {
        match shape {
            Shape::Word(..) | Shape::Count => described,
            Shape::Sections(sections) => sections,
            Shape::Entries => match self.array() {
                Array::RmaIov => &[&RMA_IOV],
                Array::ReadIov => &[&READ_IOV],
                Array::ExtraInfo => &[&EXTRA_INFO],
            },
        }
    }
}

/// A section of the first field, or of both if the second has any bytes.
pub(crate) const fn section_of(described: &'static [FieldDescriptor; 2]) -> Section {
    let fields = match described[1].width {
        Width::Fixed(0) => described.split_at(1).0,
        _ => described,
    };
    let array = None;
    Section { array, fields }
}

pub(crate) const fn count(lists: &[&[&Section]]) -> usize {
    let (mut count, mut list) = (0, 0);
    while list < lists.len() {
        count += lists[list].len();
        list += 1;
    }
    count
}

/// All sections of `lists`; `COUNT` is their [`count`].
pub(crate) const fn concat<const COUNT: usize>(
    lists: &[&[&'static Section]],
) -> [&'static Section; COUNT] {
    let mut all = [&BASE; COUNT];
    let (mut list, mut at) = (0, 0);
    while list < lists.len() {
        let mut index = 0;
        while index < lists[list].len() {
            all[at] = lists[list][index];
            at += 1;
            index += 1;
        }
        list += 1;
    }
    all
}
