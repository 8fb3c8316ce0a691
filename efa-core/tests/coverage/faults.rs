//! Seeded faults of the engine as changes of its source text, listed in `faults.txt`.
//!
//! A copy of the source has all of them: each place that a fault changes becomes a choice between
//! the right text and the wrong one, by a number that the process gets from its environment. So all
//! faults cost one build.

use std::collections::BTreeMap;
use std::ops::Range;

/// One change of one file.
struct Edit {
    fault: usize,
    find: String,
    instead: String,
}

/// All faults.
pub(crate) struct Faults {
    names: Vec<String>,
    /// By the path of the file below `src`.
    edits: BTreeMap<String, Vec<Edit>>,
}

impl Faults {
    /// The faults of `faults.txt`.
    pub(crate) fn read() -> Faults {
        Faults::parse(include_str!("faults.txt"))
    }

    /// Reads a list.
    pub(crate) fn parse(list: &str) -> Faults {
        let mut faults = Faults {
            names: Vec::new(),
            edits: BTreeMap::new(),
        };
        let mut file = None;
        for line in list.lines() {
            if let Some(heading) = line.strip_prefix("## ") {
                let parts = heading.split_once(' ');
                let (name, path) = parts.unwrap_or_else(|| panic!("{line}: no name and file"));
                let known = faults.names.iter().position(|other| other == name);
                let fault = known.unwrap_or_else(|| {
                    faults.names.push(name.to_owned());
                    faults.names.len() - 1
                });
                let edits = faults.edits.entry(path.to_owned()).or_default();
                edits.push(Edit {
                    fault,
                    find: String::new(),
                    instead: String::new(),
                });
                file = Some(path);
            } else if let Some((side, text)) = line.split_at_checked(1)
                && side != "#"
            {
                let edits = file.and_then(|file| faults.edits.get_mut(file));
                let edit = edits.and_then(|edits| edits.last_mut());
                let edit = edit.unwrap_or_else(|| panic!("{line}: stands before the first fault"));
                match side {
                    "-" => edit.find += &format!("{text}\n"),
                    "+" => edit.instead += &format!("{text}\n"),
                    _ => panic!("{line}: begins with none of ##, #, - and +"),
                }
            }
        }
        faults
    }

    pub(crate) fn names(&self) -> &[String] {
        &self.names
    }

    pub(crate) fn number(&self, name: &str) -> Option<usize> {
        self.names.iter().position(|other| other == name)
    }

    /// The files that have faults, by their paths below `src`.
    pub(crate) fn files(&self) -> impl Iterator<Item = &str> {
        self.edits.keys().map(String::as_str)
    }

    /// The text of a file with its faults.
    ///
    /// # Panics
    /// If the text that a fault changes is not there exactly once, or two faults change parts of
    /// each other.
    pub(crate) fn apply(&self, file: &str, source: &str) -> String {
        let Some(edits) = self.edits.get(file) else {
            return source.to_owned();
        };
        let mut places: Vec<(Range<usize>, &Edit)> = edits
            .iter()
            .map(|edit| match &places(source, &edit.find)[..] {
                [place] => (place.clone(), edit),
                found => {
                    let (name, count) = (&self.names[edit.fault], found.len());
                    panic!("{name}: {file} has {count} times\n{}", edit.find)
                }
            })
            .collect();
        places.sort_by_key(|(place, _)| (place.start, usize::MAX - place.end));
        for pair in places.windows(2) {
            let [(first, one), (second, other)] = pair else {
                continue;
            };
            let names = (&self.names[one.fault], &self.names[other.fault]);
            let is_apart = second.start >= first.end || second.end <= first.end;
            assert!(is_apart, "{names:?} change parts of each other");
        }
        render(source, 0..source.len(), &places)
    }
}

/// The text of `range` with the choices of the `places` in it.
fn render(source: &str, range: Range<usize>, places: &[(Range<usize>, &Edit)]) -> String {
    let (mut text, mut done, mut rest) = (String::new(), range.start, places);
    while let Some(((place, edit), others)) = rest.split_first() {
        let inner = others.partition_point(|(other, _)| other.start < place.end);
        let (inner, after) = others.split_at(inner);
        let right = render(source, place.clone(), inner);
        let (fault, wrong) = (edit.fault, edit.instead.trim());
        let choice = format!("if crate::seeded({fault}) {{ {wrong} }} else {{ {right} }}");
        text += &source[done..place.start];
        // Statements are not in parentheses; expressions may be part of others.
        match right.ends_with([';', '}']) {
            true => text += &choice,
            false => text += &format!("({choice})"),
        }
        (done, rest) = (place.end, after);
    }
    text + &source[done..range.end]
}

/// The ranges where a text occurs in a source, regardless of white space: all of it, or only the
/// part between `«` and `»`.
fn places(source: &str, text: &str) -> Vec<Range<usize>> {
    let dense = |text: &str| -> Vec<(usize, char)> {
        let letters = text.char_indices();
        letters
            .filter(|(_, letter)| !letter.is_whitespace())
            .collect()
    };
    let marked: Vec<char> = dense(text).into_iter().map(|(_, letter)| letter).collect();
    let start = marked.iter().position(|letter| *letter == '«').unwrap_or(0);
    let wanted: Vec<char> = marked
        .iter()
        .copied()
        .filter(|letter| !"«»".contains(*letter))
        .collect();
    let end = marked
        .iter()
        .position(|letter| *letter == '»')
        .map_or(wanted.len(), |end| end - 1);
    assert!(start < end, "a fault changes nothing");
    let is_word = |letter: Option<char>| letter.is_some_and(|c| c.is_alphanumeric() || c == '_');
    dense(source)
        .windows(wanted.len())
        .filter(|window| window.iter().map(|(_, letter)| letter).eq(&wanted))
        .map(|window| {
            let past = |(at, letter): (usize, char)| at + letter.len_utf8();
            (
                window[0].0..past(window[wanted.len() - 1]),
                window[start].0..past(window[end - 1]),
            )
        })
        .filter(|(found, _)| {
            let inside = &source[found.clone()];
            let before = source[..found.start].chars().next_back();
            let after = source[found.end..].chars().next();
            let goes_on = |before, after| is_word(before) && is_word(after);
            !goes_on(before, inside.chars().next()) && !goes_on(inside.chars().next_back(), after)
        })
        .map(|(_, changed)| changed)
        .collect()
}
