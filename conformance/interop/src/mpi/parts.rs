//! The parts of the C program, and their output.

/// The parts of the C program.
pub(crate) const PARTS: [&str; 4] = ["p2p", WILDCARDS, "collectives", "rma"];

pub(super) const WILDCARDS: &str = "wildcards";

/// The number in `NAME: NUMBER checks on ...`.
pub(crate) fn checks_of(printed: &str, part: &str) -> Option<u64> {
    printed
        .lines()
        .find_map(|line| line.strip_prefix(part)?.strip_prefix(": "))?
        .split_whitespace()
        .next()?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_counts_are_read_from_their_part() {
        let printed = "[warning]\nrma: 2252 checks on 2 ranks in 0.1 s\n";
        assert_eq!(checks_of(printed, "rma"), Some(2252));
        assert_eq!(checks_of(printed, "p2p"), None);
        assert_eq!(checks_of("p2p: none checks", "p2p"), None);
    }
}
