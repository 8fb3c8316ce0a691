//! A dissected frame.

use std::collections::BTreeMap;

use serde_json::Value;

/// The output of `tshark` for one frame: the values of each field, in the order of the frame.
#[derive(Debug)]
pub struct DissectedFrame {
    fields: BTreeMap<String, Vec<String>>,
}

impl DissectedFrame {
    pub(crate) fn new(layers: &Value) -> DissectedFrame {
        let mut shown = DissectedFrame {
            fields: BTreeMap::new(),
        };
        shown.collect("", layers);
        shown
    }

    fn collect(&mut self, name: &str, value: &Value) {
        match value {
            Value::Object(members) => {
                for (name, value) in members {
                    self.collect(name, value);
                }
            }
            Value::Array(values) => {
                for value in values {
                    self.collect(name, value);
                }
            }
            // `--no-duplicate-keys` adds this to the one word of an array that has a subtree.
            Value::String(text) if text.is_empty() && name.ends_with("_tree") => {}
            Value::String(text) => {
                self.fields
                    .entry(name.to_owned())
                    .or_default()
                    .push(text.clone());
            }
            other => panic!("{name}: unexpected {other}"),
        }
    }

    /// The fields whose name begins with `prefix`.
    pub fn fields(&self, prefix: &str) -> impl Iterator<Item = (String, &Vec<String>)> {
        let of_prefix = self
            .fields
            .iter()
            .filter(move |(name, _)| name.starts_with(prefix));
        of_prefix.map(|(name, values)| (name.clone(), values))
    }

    /// The rules that the frame breaks.
    pub fn broken_rules(&self) -> impl Iterator<Item = String> {
        let of_rules = ["efa.rule.", "efa_rdm.rule."].into_iter();
        of_rules.flat_map(|prefix| {
            let fields = self.fields(prefix);
            fields.map(|(name, _)| name[prefix.len()..].to_owned())
        })
    }

    /// Whether the frame has the field.
    pub fn has(&self, name: &str) -> bool {
        self.fields.contains_key(name)
    }

    /// The value of a field that occurs once in the frame.
    pub fn one(&self, name: &str) -> &str {
        match self.fields.get(name).map(Vec::as_slice) {
            Some([value]) => value,
            other => panic!("{name}: {other:?}"),
        }
    }
}
