//! Explanations of findings: the packets, the requirement, and the packets of a correct sender.

use std::fmt;

use super::report::Finding;

impl Finding {
    /// The frames of the finding: its own, and those in its text.
    pub fn frames(&self) -> Vec<u64> {
        let mut frames = vec![self.packet];
        let mut words = self.text.split(' ').peekable();
        while let Some(word) = words.next() {
            let number = words.peek().and_then(|next| {
                let digits = next.trim_end_matches(|c: char| !c.is_ascii_digit());
                digits.parse().ok()
            });
            if let ("packet", Some(number)) = (word.trim_start_matches('('), number) {
                frames.push(number);
            }
        }
        frames.sort_unstable();
        frames.dedup();
        frames
    }

    /// The finding explained, in at most ten lines.
    pub fn explanation(&self) -> Explanation<'_> {
        Explanation(self)
    }
}

/// Displays a finding with its explanation, see [`Finding::explanation`].
#[derive(Clone, Copy, Debug)]
pub struct Explanation<'f>(&'f Finding);

impl fmt::Display for Explanation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Explanation(finding) = self;
        let rule = finding.rule;
        writeln!(
            f,
            "{}: packet {} ({}): {}",
            finding.severity, finding.packet, finding.kind, rule.breach
        )?;
        writeln!(f, "  seen       {}", finding.text)?;
        writeln!(f, "  rule       {}: {}", rule.id, rule.meaning)?;
        writeln!(f, "  statement  {} ({})", rule.statement, rule.source)?;
        if finding.severity < rule.severity {
            writeln!(
                f,
                "  proof      the capture does not prove it, so it is no {}",
                rule.severity
            )?;
        }
        writeln!(f, "  right      {}", rule.right)?;
        let frames = finding.frames();
        let frames: Vec<_> = frames.iter().map(u64::to_string).collect();
        write!(f, "  look at    frame.number in {{{}}}", frames.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use efa_wire::rules::{RULES, Rule, Severity};

    use super::*;

    fn finding(rule: &'static Rule, text: &str) -> Finding {
        Finding {
            rule,
            severity: Severity::Note,
            packet: 9,
            kind: "CTS".into(),
            interface: 0,
            text: text.into(),
        }
    }

    #[test]
    fn every_rule_is_explained_in_ten_lines() {
        for rule in RULES.iter().filter(|rule| rule.is_checked()) {
            let explanation = finding(rule, "text").explanation().to_string();
            assert!(explanation.lines().count() <= 10, "{explanation}");
        }
    }

    #[test]
    fn explanations_name_the_frames_of_the_text() {
        let frames = |text| finding(&RULES[0], text).frames();
        assert_eq!(frames("of packet 8, in packet 12."), [8, 9, 12]);
        assert_eq!(frames("none of its memory was read (packet 7)"), [7, 9]);
        assert_eq!(frames("packet lost 3, a packet"), [9]);
    }
}
