//! A ladder as a drawing.

use std::fmt::Write as _;

use super::escape::escape;
use crate::json::FindingReport;
use crate::ladder::{Ladder, Message, Nature, Rung};

/// Width of one side, in pixels.
const SIDE: usize = 560;
/// Room for the packet's number, left of the first lifeline.
const GUTTER: usize = 60;
/// Between the last lifeline and the edge.
const MARGIN: usize = 30;
/// Height of a rung, and of the names above the first.
const HEIGHT: usize = 26;
/// Height of the note below a marked rung.
const NOTE: usize = 16;
/// Longer texts are cut; the title of the rung has the whole text.
const LONGEST: usize = 68;
/// In a run of this many equal rungs, those in the middle are only counted.
const ALIKE: usize = 6;

/// The arrowhead, for all drawings of a page.
pub(super) const ARROWHEAD: &str = "<svg width=\"0\" height=\"0\" style=\"position:absolute\" \
aria-hidden=\"true\"><defs><marker id=\"h\" viewBox=\"0 0 8 8\" refX=\"8\" refY=\"4\" \
markerWidth=\"7\" markerHeight=\"7\" orient=\"auto\"><path d=\"M0 0L8 4L0 8z\" fill=\"context-stroke\"/>\
</marker></defs></svg>";

/// A line of the drawing.
enum Row<'l> {
    /// A rung, with a note if it is marked.
    Rung(&'l Rung, Option<String>),
    /// The number of further rungs that equal the one above.
    More(usize),
}

/// The note of findings about a rung: the statements of the protocol that do not hold. A message
/// without a number stands for no recorded packet, so it is a surplus one.
fn mark(rung: &Rung, findings: &[FindingReport]) -> Option<String> {
    let number = |side: &Option<Message>| side.as_ref().and_then(|side| side.number);
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
                // What was expected and what came is behind the names.
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
            .is_some_and(|actual| actual.number.is_none() && actual.nature == Nature::Packet);
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

fn kind(side: &Option<Message>) -> Option<&str> {
    side.as_ref().map(|message| message.kind.as_str())
}

fn alike(a: &Rung, b: &Rung) -> bool {
    (a.from, a.to) == (b.from, b.to)
        && kind(&a.expected) == kind(&b.expected)
        && kind(&a.actual) == kind(&b.actual)
}

/// The rows of a ladder. A long run of equal unmarked rungs is shortened to the first, the last,
/// and the number of the others.
fn rows<'l>(ladder: &'l Ladder, findings: &[FindingReport]) -> Vec<Row<'l>> {
    let is_marked = |rung: &Rung| mark(rung, findings).is_some();
    let same = |a: &Rung, b: &Rung| alike(a, b) && !is_marked(a) && !is_marked(b);
    let mut rows = Vec::new();
    for run in ladder.rungs.chunk_by(same) {
        match run {
            [first, middle @ .., last] if run.len() >= ALIKE => {
                rows.push(Row::Rung(first, None));
                rows.push(Row::More(middle.len()));
                rows.push(Row::Rung(last, None));
            }
            _ => rows.extend(run.iter().map(|rung| Row::Rung(rung, mark(rung, findings)))),
        }
    }
    rows
}

/// The positions of the lifelines of one side.
struct Lane {
    left: usize,
    count: usize,
}

impl Lane {
    fn lifeline(&self, endpoint: usize) -> usize {
        let room = SIDE - GUTTER - MARGIN;
        self.left + GUTTER + room * endpoint / (self.count - 1).max(1)
    }

    fn middle(&self) -> usize {
        usize::midpoint(self.lifeline(0), self.lifeline(self.count - 1))
    }

    fn head(&self, heading: &str, names: &[String], bottom: usize, svg: &mut String) {
        let middle = self.middle();
        // Writing to a String cannot fail.
        let _ = write!(
            svg,
            "<text class=\"w\" x=\"{middle}\" y=\"14\">{heading}</text>"
        );
        for (endpoint, name) in names.iter().enumerate() {
            let x = self.lifeline(endpoint);
            let _ = write!(
                svg,
                "<text x=\"{x}\" y=\"28\">{}</text><path class=\"l\" d=\"M{x} 33V{bottom}\"/>",
                escape(name)
            );
        }
    }

    fn message(&self, rung: &Rung, message: Option<&Message>, y: usize, svg: &mut String) {
        let Some(message) = message else {
            return;
        };
        let (from, to) = (self.lifeline(rung.from), self.lifeline(rung.to));
        let class = match message.nature {
            Nature::Refusal => "r",
            Nature::Packet | Nature::Request => "a",
        };
        let whole = match message.detail.as_str() {
            "" => message.kind.clone(),
            detail => format!("{} {detail}", message.kind),
        };
        let text = cut(&whole);
        if let Some(number) = message.number {
            let x = self.left;
            let _ = write!(svg, "<text class=\"n\" x=\"{x}\" y=\"{y}\">{number}</text>");
        }
        let _ = write!(
            svg,
            "<path class=\"{class}\" d=\"M{from} {y}H{to}\"/><text x=\"{}\" y=\"{}\">{}</text>",
            self.middle(),
            y - 5,
            escape(&text)
        );
        if text != whole {
            let _ = write!(svg, "<title>{}</title>", escape(&whole));
        }
    }
}

/// The drawing; empty for an empty ladder. If the actual messages are the recorded ones, only one
/// side is drawn.
pub(super) fn draw(ladder: &Ladder, findings: &[FindingReport]) -> String {
    if ladder.rungs.is_empty() || ladder.endpoints.is_empty() {
        return String::new();
    }
    let same = |rung: &Rung| match (&rung.expected, &rung.actual) {
        (Some(expected), Some(actual)) => {
            (&expected.kind, &expected.detail) == (&actual.kind, &actual.detail)
        }
        _ => false,
    };
    let once = findings.is_empty() && ladder.rungs.iter().all(same);
    let rows = rows(ladder, findings);
    let height = |row: &Row<'_>| match row {
        Row::Rung(_, Some(_)) => HEIGHT + NOTE,
        _ => HEIGHT,
    };
    let bottom = 33 + rows.iter().map(height).sum::<usize>() + 12;
    let width = if once { SIDE } else { 2 * SIDE };
    let mut svg = format!(
        "<svg width=\"{width}\" height=\"{bottom}\" viewBox=\"0 0 {width} {bottom}\" role=\"img\" \
         aria-label=\"ladder diagram\">"
    );
    let lane = |left| Lane {
        left,
        count: ladder.endpoints.len(),
    };
    let (expected, actual) = (lane(0), lane(SIDE));
    if once {
        expected.head("as recorded", &ladder.endpoints, bottom, &mut svg);
    } else {
        expected.head("recorded", &ladder.endpoints, bottom, &mut svg);
        actual.head("in this run", &ladder.endpoints, bottom, &mut svg);
    }
    let mut top = 33;
    for row in &rows {
        let y = top + HEIGHT;
        // Writing to a String cannot fail.
        let _ = match row {
            Row::Rung(rung, note) => {
                if let Some(note) = note {
                    let _ = write!(
                        svg,
                        "<rect class=\"m\" x=\"0\" y=\"{}\" width=\"{width}\" height=\"{}\"/>\
                         <text class=\"s\" x=\"{}\" y=\"{}\">{}</text>",
                        top + 7,
                        height(row),
                        if once {
                            expected.middle()
                        } else {
                            actual.middle()
                        },
                        y + 15,
                        escape(&cut(note))
                    );
                }
                svg.push_str("<g>");
                expected.message(rung, rung.expected.as_ref(), y, &mut svg);
                if !once {
                    actual.message(rung, rung.actual.as_ref(), y, &mut svg);
                }
                write!(svg, "</g>")
            }
            Row::More(count) => write!(
                svg,
                "<text class=\"e\" x=\"{}\" y=\"{}\">{count} more like these</text>",
                expected.middle(),
                y - 5
            ),
        };
        top += height(row);
    }
    svg.push_str("</svg>");
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: &str, number: Option<u64>) -> Message {
        Message {
            kind: kind.into(),
            detail: "<b>".into(),
            number,
            nature: Nature::Packet,
        }
    }

    fn rung(expected: Option<Message>, actual: Option<Message>) -> Rung {
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
            drawn.contains("&lt;b&gt;") && !drawn.contains("<b>"),
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
}
