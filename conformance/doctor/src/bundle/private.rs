//! Private texts, and their replacements.

use std::net::IpAddr;

use serde_json::Value;

/// Shorter names would be found inside other words: they are replaced only if they are a complete
/// place.
const SHORTEST: usize = 3;

/// Private texts, and their replacements in a bundle.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PrivateTexts {
    /// Replaced where they are complete words, the longest first.
    names: Vec<(String, String)>,
    /// Replaced everywhere.
    anywhere: Vec<(String, &'static str)>,
    hosts: usize,
}

impl PrivateTexts {
    /// The path of the home directory, which becomes `~`.
    pub fn home(&mut self, path: &str) {
        if path.len() >= SHORTEST {
            self.anywhere.push((path.to_owned(), "~"));
        }
    }

    /// A word that becomes `HIDDEN`.
    pub fn word(&mut self, word: &str) {
        if !word.is_empty() {
            self.anywhere.push((word.to_owned(), "HIDDEN"));
            self.anywhere
                .sort_by_key(|(word, _)| std::cmp::Reverse(word.len()));
        }
    }

    /// A host in the form of a remote shell or a capture: `USER@HOST%DEVICE`, `HOST:1`. It becomes
    /// `HOST1`, the next one `HOST2`; its names with and without the domain are the same host. The
    /// user becomes `USER`.
    pub fn host(&mut self, place: &str) {
        let place = place.split('%').next().unwrap_or_default();
        let (user, host) = match place.split_once('@') {
            Some((user, host)) => (Some(user), host),
            None => (None, place),
        };
        let is_address = host.parse::<IpAddr>().is_ok();
        let host = match host.rsplit_once(':') {
            Some((name, index)) if !is_address && index.parse::<u32>().is_ok() => name,
            _ => host,
        };
        let label = match is_address {
            true => host,
            false => host.split('.').next().unwrap_or_default(),
        };
        let known = |private: &PrivateTexts, name: &str| {
            let mut names = private.names.iter();
            let found = names.find(|(known, _)| known == name);
            found.map(|(_, stands)| stands.clone())
        };
        let stands = known(self, label).or_else(|| known(self, host));
        let stands = stands.unwrap_or_else(|| {
            self.hosts += 1;
            format!("HOST{}", self.hosts)
        });
        for (name, stands) in [
            (host, stands.as_str()),
            (label, &stands),
            (user.unwrap_or_default(), "USER"),
        ] {
            if !name.is_empty() && known(self, name).is_none() {
                self.names.push((name.to_owned(), stands.to_owned()));
            }
        }
        self.names
            .sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
    }

    /// The text with private parts replaced.
    pub fn hide(&self, text: &str) -> String {
        let anywhere = self.anywhere.iter();
        let text = anywhere.fold(text.to_owned(), |text, (name, stands)| {
            text.replace(name, stands)
        });
        let mut hidden = String::with_capacity(text.len());
        let mut rest = text.as_str();
        let is_part = |letter: Option<char>| letter.is_some_and(char::is_alphanumeric);
        while let Some(letter) = rest.chars().next() {
            let begins = !is_part(hidden.chars().next_back());
            let found = self.names.iter().find(|(name, _)| {
                let is_long = name.len() >= SHORTEST || hidden.is_empty() && is_place(rest, name);
                begins
                    && is_long
                    && rest.starts_with(name.as_str())
                    && !is_part(rest[name.len()..].chars().next())
            });
            match found {
                Some((name, stands)) => {
                    hidden.push_str(stands);
                    rest = &rest[name.len()..];
                }
                None => {
                    hidden.push(letter);
                    rest = &rest[letter.len_utf8()..];
                }
            }
        }
        hidden
    }

    /// The value as text, with private parts of all its strings replaced. Names of members do not
    /// change.
    pub fn hide_in_json(&self, mut value: Value) -> String {
        self.hide_in(&mut value);
        format!("{value:#}\n")
    }

    fn hide_in(&self, value: &mut Value) {
        match value {
            Value::String(text) => *text = self.hide(text),
            Value::Array(values) => values.iter_mut().for_each(|value| self.hide_in(value)),
            Value::Object(members) => members.values_mut().for_each(|value| self.hide_in(value)),
            _ => {}
        }
    }
}

/// Returns whether the text is this host, perhaps with a device or its number.
fn is_place(text: &str, host: &str) -> bool {
    let rest = text.strip_prefix(host);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['%', ':']))
}

/// The last part of a path.
pub(super) fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn private(hosts: &[&str]) -> PrivateTexts {
        let mut private = PrivateTexts::default();
        hosts.iter().for_each(|host| private.host(host));
        private
    }

    #[test]
    fn hosts_have_numbers_however_they_are_named() {
        let private = private(&[
            "node1",
            "ec2-user@node2.example.com%rdmap0s6",
            "node1.example.com",
            "node2:1",
            "fd00::7",
            "n3",
        ]);
        for (text, hidden) in [
            ("node1", "HOST1"),
            ("node2.example.com: lost", "HOST2: lost"),
            ("node2:1 (node1.example.com)", "HOST2:1 (HOST1)"),
            ("ec2-user@node2%rdmap0s6", "USER@HOST2%rdmap0s6"),
            ("from fd00::7 to node1.", "from HOST3 to HOST1."),
            // A different name, and a name that is too short to be searched for in a text.
            ("node17 xnode1 then3 n3", "node17 xnode1 then3 n3"),
            ("n3%efa_1", "HOST4%efa_1"),
            ("n3", "HOST4"),
        ] {
            assert_eq!(private.hide(text), hidden);
        }
    }

    #[test]
    fn words_and_homes_are_hidden_everywhere() {
        let mut private = private(&["alpha"]);
        private.home("/home/somebody");
        private.word("secret");
        private.word("topsecret");
        let text = "/home/somebody/x.topsecret.secrets alpha";
        assert_eq!(private.hide(text), "~/x.HIDDEN.HIDDENs HOST1");
    }

    #[test]
    fn names_of_members_stay() {
        let private = private(&["cases"]);
        let value = serde_json::json!({ "cases": ["on cases", 1] });
        let hidden: Value = serde_json::from_str(&private.hide_in_json(value)).unwrap();
        assert_eq!(hidden, serde_json::json!({ "cases": ["on HOST1", 1] }));
    }
}
