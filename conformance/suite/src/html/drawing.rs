//! Draws a ladder.

use askama::Template;

use crate::json::FindingReport;
use crate::ladder::{Ladder, LadderMessage, MessageKind, Rung};

/// Width of one side, in pixels.
const SIDE: usize = 560;
/// The space for the packet's number, left of the first lifeline.
const GUTTER: usize = 60;
/// The space between the last lifeline and the edge.
const MARGIN: usize = 30;
/// Height of a rung, and of the names above the first.
const HEIGHT: usize = 26;
/// Height of the note below a marked rung.
const NOTE: usize = 16;
/// The top of the first rung, below the names.
const TOP: usize = 33;
/// Longer texts are truncated; the title of the rung contains the complete text.
const LONGEST: usize = 68;
/// In a run of this many equal rungs, those in the middle are only counted.
const ALIKE: usize = 6;
/// The prefix of statements about the application's view.
const APPLICATION: &str = "ofi/";

/// The recorded messages and the actual ones.
#[derive(Template)]
#[template(path = "ladder.svg", escape = "html", whitespace = "minimize")]
pub(super) struct Drawing<'l> {
    width: usize,
    bottom: usize,
    lanes: Vec<Lane<'l>>,
    rows: Vec<Row>,
}

/// One side.
struct Lane<'l> {
    heading: &'static str,
    names: &'l [String],
    left: usize,
}

/// A line of the drawing.
#[derive(Default)]
struct Row {
    top: usize,
    height: usize,
    arrows: Vec<Arrow>,
    /// The mark on it, and the number of its note.
    note: Option<(usize, String)>,
    /// The number of further rungs that equal the one above, and the position of its text.
    more: Option<(usize, usize)>,
}

struct Arrow {
    class: &'static str,
    from: usize,
    to: usize,
    middle: usize,
    text: String,
    /// The complete text, if it was cut.
    title: Option<String>,
    number: Option<u64>,
    left: usize,
}

impl Row {
    fn y(&self) -> usize {
        self.top + HEIGHT
    }
}

/// The note for findings about a rung: the protocol statements that do not hold. A message without
/// a number belongs to no recorded packet, so it is a surplus one.
fn mark(rung: &Rung, findings: &[FindingReport]) -> Option<String> {
    let number = |side: &Option<LadderMessage>| side.as_ref().and_then(|side| side.number);
    let numbers = [number(&rung.expected), number(&rung.actual)];
    let about =
        |finding: &&FindingReport| finding.packet.is_some() && numbers.contains(&finding.packet);
    let mut notes: Vec<String> = findings
        .iter()
        .filter(about)
        .map(|finding| {
            let statement = finding.statement.as_deref().unwrap_or_default();
            match finding.field.as_str() {
                "" => statement.to_owned(),
                // The expected and actual values follow the names.
                field => match finding.text.split_once("): ") {
                    Some((_, values)) => format!("{statement} {field}: {values}"),
                    None => format!("{statement} {field}"),
                },
            }
        })
        .collect();
    notes.dedup();
    let surplus = rung.expected.is_none()
        && rung
            .actual
            .as_ref()
            .is_some_and(|actual| actual.number.is_none() && actual.nature == MessageKind::Packet);
    if notes.is_empty() && surplus && !findings.is_empty() {
        notes.push("not in the recording".into());
    }
    (!notes.is_empty()).then(|| notes.join(", "))
}

/// The beginning of a text that is too long for the drawing.
fn cut(text: &str) -> String {
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

fn kind(side: &Option<LadderMessage>) -> Option<&str> {
    side.as_ref().map(|message| message.kind.as_str())
}

fn alike(a: &Rung, b: &Rung) -> bool {
    (a.from, a.to) == (b.from, b.to)
        && kind(&a.expected) == kind(&b.expected)
        && kind(&a.actual) == kind(&b.actual)
}

impl Lane<'_> {
    fn lifeline(&self, endpoint: &usize) -> usize {
        let room = SIDE - GUTTER - MARGIN;
        self.left + GUTTER + room * endpoint / (self.names.len() - 1).max(1)
    }

    fn middle(&self) -> usize {
        usize::midpoint(self.lifeline(&0), self.lifeline(&(self.names.len() - 1)))
    }

    fn arrow(&self, rung: &Rung, message: Option<&LadderMessage>) -> Option<Arrow> {
        let message = message?;
        let whole = match message.detail.as_str() {
            "" => message.kind.clone(),
            detail => format!("{} {detail}", message.kind),
        };
        let text = cut(&whole);
        Some(Arrow {
            class: match message.nature {
                MessageKind::Refusal => "r",
                MessageKind::Packet | MessageKind::Request => "a",
            },
            from: self.lifeline(&rung.from),
            to: self.lifeline(&rung.to),
            middle: self.middle(),
            title: (text != whole).then_some(whole),
            text,
            number: message.number,
            left: self.left,
        })
    }
}

impl<'l> Drawing<'l> {
    /// `None` for an empty ladder. If the actual messages are the recorded ones, only one side is
    /// drawn. Messages that only the application of endpoint `role` saw are in the last rung.
    pub(super) fn of(ladder: &'l Ladder, findings: &[FindingReport], role: &str) -> Option<Self> {
        let names = &ladder.endpoints[..];
        if ladder.rungs.is_empty() || names.is_empty() {
            return None;
        }
        let same = |rung: &Rung| match (&rung.expected, &rung.actual) {
            (Some(expected), Some(actual)) => {
                (&expected.kind, &expected.detail) == (&actual.kind, &actual.detail)
            }
            _ => false,
        };
        let once = findings.is_empty() && ladder.rungs.iter().all(same);
        let lane = |heading, left| Lane {
            heading,
            names,
            left,
        };
        let lanes = match once {
            true => vec![lane("as recorded", 0)],
            false => vec![lane("recorded", 0), lane("in this run", SIDE)],
        };
        let mut drawing = Drawing {
            width: SIDE * lanes.len(),
            bottom: TOP,
            lanes,
            rows: Vec::new(),
        };
        let is_marked = |rung: &Rung| mark(rung, findings).is_some();
        let same = |a: &Rung, b: &Rung| alike(a, b) && !is_marked(a) && !is_marked(b);
        // A long run of equal unmarked rungs is shortened to the first, the last, and the number of
        // the omitted ones.
        for run in ladder.rungs.chunk_by(same) {
            match run {
                [first, middle @ .., last] if run.len() >= ALIKE => {
                    drawing.rung(first, None);
                    let more = Some((drawing.lanes[0].middle(), middle.len()));
                    drawing.add(Row {
                        more,
                        ..Row::default()
                    });
                    drawing.rung(last, None);
                }
                _ => run
                    .iter()
                    .for_each(|rung| drawing.rung(rung, mark(rung, findings))),
            }
        }
        let own = names.iter().position(|name| name == role).unwrap_or(0);
        for finding in findings {
            // An endpoint that ended too early, or could not start, breaks no statement.
            let statement = finding.statement.as_deref().unwrap_or(APPLICATION);
            let is_of_packet = finding.packet.is_some() || !finding.packet_type.is_empty();
            if statement.starts_with(APPLICATION) && !is_of_packet && finding.severity != "note" {
                let first = finding.text.lines().next().unwrap_or_default();
                drawing.seen(own, first);
            }
        }
        drawing.bottom += 12;
        Some(drawing)
    }

    fn add(&mut self, mut row: Row) {
        row.top = self.bottom;
        row.height = HEIGHT + row.note.as_ref().map_or(0, |_| NOTE);
        self.bottom += row.height;
        self.rows.push(row);
    }

    fn rung(&mut self, rung: &Rung, note: Option<String>) {
        let sides = [&rung.expected, &rung.actual];
        let lanes = self.lanes.iter().zip(sides);
        let arrows = lanes.filter_map(|(lane, message)| lane.arrow(rung, message.as_ref()));
        let row = Row {
            arrows: arrows.collect(),
            note: note.map(|note| (self.noted(), cut(&note))),
            ..Row::default()
        };
        self.add(row);
    }

    /// The middle of the side for the actual run.
    fn noted(&self) -> usize {
        self.lanes.last().map_or(0, Lane::middle)
    }

    /// The application's view at an endpoint.
    fn seen(&mut self, endpoint: usize, text: &str) {
        let at = self.lanes.last().map_or(0, |lane| lane.lifeline(&endpoint));
        let shown = cut(text);
        let cross = Arrow {
            class: "a",
            from: at,
            to: at,
            middle: at,
            title: (shown != text).then(|| text.to_owned()),
            text: "✗".into(),
            number: None,
            left: 0,
        };
        let row = Row {
            arrows: vec![cross],
            note: Some((self.noted(), shown)),
            ..Row::default()
        };
        self.add(row);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw(ladder: &Ladder, findings: &[FindingReport]) -> String {
        Drawing::of(ladder, findings, "b").unwrap().to_string()
    }

    fn message(kind: &str, number: Option<u64>) -> LadderMessage {
        LadderMessage {
            kind: kind.into(),
            detail: "<b>".into(),
            number,
            nature: MessageKind::Packet,
        }
    }

    fn rung(expected: Option<LadderMessage>, actual: Option<LadderMessage>) -> Rung {
        Rung {
            from: 0,
            to: 1,
            expected,
            actual,
        }
    }

    fn ladder(rungs: Vec<Rung>) -> Ladder {
        Ladder {
            endpoints: vec!["a".into(), "b".into()],
            rungs,
        }
    }

    fn finding(packet: u64) -> FindingReport {
        FindingReport {
            severity: "error".into(),
            statement: Some("v4/3.2".into()),
            packet: Some(packet),
            packet_type: "EOR".into(),
            field: "recv_id".into(),
            text: "packet 4 (EOR), field `recv_id` (v4/3.2): expected 5, actual 6".into(),
        }
    }

    #[test]
    fn matching_packets_are_drawn_once_and_texts_escaped() {
        let same = rung(Some(message("CTS", Some(3))), Some(message("CTS", Some(3))));
        let drawn = draw(&ladder(vec![same]), &[]);
        assert_eq!(drawn.matches("CTS").count(), 1, "{drawn}");
        assert!(drawn.contains("as recorded"), "{drawn}");
        assert!(
            drawn.contains("&#60;b&#62;") && !drawn.contains("<b>"),
            "{drawn}"
        );
    }

    #[test]
    fn failing_and_surplus_packets_are_marked() {
        let rungs = vec![
            rung(Some(message("CTS", Some(3))), Some(message("CTS", Some(3)))),
            rung(Some(message("EOR", Some(4))), None),
            rung(None, Some(message("RECEIPT", None))),
        ];
        let drawn = draw(&ladder(rungs), &[finding(4)]);
        assert_eq!(drawn.matches("class=\"m\"").count(), 2, "{drawn}");
        let note = "v4/3.2 recv_id: expected 5, actual 6";
        assert!(drawn.contains(note), "{drawn}");
    }

    #[test]
    fn long_runs_are_shortened_except_marked_rows() {
        let data = |number| {
            rung(
                Some(message("CTSDATA", Some(number))),
                Some(message("CTSDATA", Some(number))),
            )
        };
        let drawn = draw(&ladder((0..100).map(data).collect()), &[finding(50)]);
        assert!(drawn.contains("48 more like these"), "{drawn}");
        assert!(drawn.contains("47 more like these"), "{drawn}");
        assert!(drawn.contains(">50<"), "{drawn}");
    }

    #[test]
    fn application_findings_are_the_last_rung() {
        let outcome = FindingReport {
            statement: Some("ofi/outcome".into()),
            packet: None,
            packet_type: String::new(),
            text: "polling failed: it crashed\n  with a report".into(),
            ..finding(4)
        };
        // A program that crashes before it has an endpoint breaks no statement.
        let crash = FindingReport {
            statement: None,
            ..outcome.clone()
        };
        for finding in [outcome, crash] {
            let same = rung(Some(message("CTS", Some(3))), Some(message("CTS", Some(3))));
            let drawn = draw(&ladder(vec![same]), &[finding]);
            let (_, last) = drawn.rsplit_once("<rect").unwrap();
            assert!(last.contains("✗"), "{drawn}");
            assert!(last.contains(">polling failed: it crashed<"), "{drawn}");
        }
    }
}
