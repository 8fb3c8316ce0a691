//! Comparison of the fields in a command's JSON output with `docs/json.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use serde_json::Value;

use crate::workspace;

/// A field in the page.
struct DocumentedField {
    types: Vec<String>,
    is_optional: bool,
    /// Whether it was printed.
    seen: bool,
}

/// Checks the output of a command, one or several values, against the section of the page with this
/// heading: each field must be documented with its type, and each documented field must have been
/// printed, except for those in `unseen`, which must be optional.
///
/// # Panics
/// If the output does not match the page.
#[track_caller]
pub fn assert_documented(command: &str, printed: &[Value], unseen: &[&str]) {
    let page = fs::read_to_string(workspace::root().join("docs/json.md")).expect("the page");
    let mut documented = fields_of_section(&page, command);
    assert!(
        !documented.is_empty(),
        "docs/json.md has no fields of {command}"
    );
    let mut wrong = BTreeSet::new();
    for value in printed {
        visit(value, "", &mut |path, value| {
            let Some(field) = find(&mut documented, path) else {
                wrong.insert(format!("{path} is printed and not documented"));
                return;
            };
            field.seen = true;
            let is = type_of(value);
            if !field
                .types
                .iter()
                .any(|known| known == is || known == "any")
            {
                wrong.insert(format!(
                    "{path} is {is}, documented as {}",
                    field.types.join(" or ")
                ));
            }
        });
    }
    for (path, field) in &documented {
        let is_known_unseen = field.is_optional && unseen.contains(&&path[..]);
        if field.seen == is_known_unseen {
            let what = if field.seen {
                "printed after all"
            } else {
                "not printed"
            };
            wrong.insert(format!("{path} is documented and {what}"));
        }
    }
    assert!(wrong.is_empty(), "{command}: {wrong:#?}");
}

/// The rows of the table below a heading: path and type.
fn fields_of_section(page: &str, command: &str) -> BTreeMap<String, DocumentedField> {
    let heading = format!("## `{command} --json`");
    let section = page
        .lines()
        .skip_while(|line| *line != heading)
        .skip(1)
        .take_while(|line| !line.starts_with("## "));
    section
        .filter_map(|line| {
            let mut cells = line.split('|').map(str::trim).skip(1);
            let path = cells.next()?.strip_prefix('`')?.strip_suffix('`')?;
            let types = cells.next()?;
            let always = types.strip_suffix(", optional");
            let of_type = always.unwrap_or(types).split(" or ").map(str::to_owned);
            let documented = DocumentedField {
                types: of_type.collect(),
                is_optional: always.is_some(),
                seen: false,
            };
            Some((path.to_owned(), documented))
        })
        .collect()
}

/// The documented field for a path, under its own name or with `*` as the last part.
fn find<'a>(
    documented: &'a mut BTreeMap<String, DocumentedField>,
    path: &str,
) -> Option<&'a mut DocumentedField> {
    if documented.contains_key(path) {
        return documented.get_mut(path);
    }
    // Names may contain dots.
    documented
        .iter_mut()
        .find(|(known, _)| {
            known
                .strip_suffix('*')
                .is_some_and(|start| path.starts_with(start))
        })
        .map(|(_, field)| field)
}

/// Calls `field` for each value that is neither an object nor a list, with its path.
fn visit(value: &Value, path: &str, field: &mut impl FnMut(&str, &Value)) {
    match value {
        Value::Object(object) => {
            for (name, value) in object {
                let dot = if path.is_empty() { "" } else { "." };
                visit(value, &format!("{path}{dot}{name}"), field);
            }
        }
        Value::Array(list) => {
            for value in list {
                visit(value, &format!("{path}[]"), field);
            }
        }
        value => field(path, value),
    }
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "text",
        Value::Array(_) => "list",
        Value::Object(_) => "object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "## `a --json`\n\n| field | type | meaning |\n|---|---|---|\n\
                        | `[].x` | number | |\n| `[].y.*` | text or null, optional | |\n## `b --json`\n| `z` | text | |\n";

    #[test]
    fn tables_are_read() {
        let fields = fields_of_section(PAGE, "a");
        let paths: Vec<_> = fields.keys().collect();
        assert_eq!(paths, ["[].x", "[].y.*"]);
        assert_eq!(fields["[].y.*"].types, ["text", "null"]);
    }

    #[test]
    fn paths_are_found_under_their_name_or_any() {
        let mut fields = fields_of_section(PAGE, "a");
        let mut found = |path| find(&mut fields, path).is_some();
        assert!(found("[].x") && found("[].y.name") && found("[].y.name.of[2]"));
        assert!(!found("[].z") && !found("x"));
        let mut seen = Vec::new();
        let value = serde_json::json!([{"x": 1, "y": {"n": null, "l": ["t"]}}]);
        visit(&value, "", &mut |path, value| {
            seen.push((path.to_owned(), type_of(value)))
        });
        let expected = [("[].x", "number"), ("[].y.l[]", "text"), ("[].y.n", "null")];
        let mut seen: Vec<_> = seen.iter().map(|(path, is)| (&path[..], *is)).collect();
        seen.sort_unstable();
        assert_eq!(seen, expected);
    }
}
