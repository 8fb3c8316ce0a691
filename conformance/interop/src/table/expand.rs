//! Expansion of a file into its cells: the variables of `each`, and other `{NAME}`s.

use crate::harness::CellsError;
use std::collections::BTreeMap;

use serde::de::Error as _;
use toml::{Table, Value};

use super::format::{File, List, Spec};

/// The names in texts of cells besides the variables of `each`: values that are known when the cell
/// runs, and the words of [`super::format::Figure`].
const NAMES: [&str; 19] = [
    "address", "count", "data", "device", "dir", "distinct", "emulator", "fabric", "library",
    "mpicc", "mpiexec", "part", "path", "port", "python", "root", "runner", "suite", "sum",
];

/// Values by name.
pub(crate) type Variables = BTreeMap<String, String>;

/// Lists of variables by name.
type Lists = BTreeMap<String, Vec<Variables>>;

/// The cells of a file, which is called `name` in errors.
pub(super) fn cells(name: &str, text: &str) -> Result<Vec<Spec>, CellsError> {
    let at = |source| CellsError::Toml {
        file: name.to_owned(),
        source,
    };
    // Parsed first, because its errors have line and column.
    let _: File = toml::from_str(text).map_err(at)?;
    let file: Table = toml::from_str(text).map_err(at)?;
    let families = file.get("cell").and_then(Value::as_array);
    let lists = file.get("list").cloned();
    let lists: Lists = lists
        .map_or(Ok(Lists::new()), Value::try_into)
        .map_err(at)?;
    let mut cells = Vec::new();
    for family in families.into_iter().flatten() {
        for mut cell in combinations(family, &lists).map_err(at)? {
            if let Some(Value::Array(programs)) = cell.get_mut("program") {
                let all = programs.iter().map(|program| combinations(program, &lists));
                *programs = all.collect::<Result<Vec<_>, _>>().map_err(at)?.concat();
            }
            let cell: Spec = cell.try_into().map_err(at)?;
            let checked = cell.check();
            checked.map_err(|source| CellsError::Cell {
                file: name.to_owned(),
                cell: cell.name.clone(),
                source: Box::new(source),
            })?;
            cells.push(cell);
        }
    }
    Ok(cells)
}

/// A table for each combination of a row of each list of its `each`; the last list varies first.
fn combinations(table: &Value, lists: &Lists) -> Result<Vec<Value>, toml::de::Error> {
    let mut table = table.clone();
    let each = table.as_table_mut().and_then(|table| table.remove("each"));
    let each: Vec<List> = each.map_or(Ok(Vec::new()), Value::try_into)?;
    let mut combinations = vec![Variables::new()];
    for list in &each {
        let unknown = |name| toml::de::Error::custom(format!("unknown list `{name}`"));
        let list = match list {
            List::Rows(rows) => rows,
            List::Named(name) => lists.get(name).ok_or_else(|| unknown(name))?,
        };
        let extended = combinations.iter().flat_map(|combination| {
            let rows = list.iter().cloned();
            rows.map(|row| combination.clone().into_iter().chain(row).collect())
        });
        combinations = extended.collect();
    }
    let filled = combinations.iter().map(|variables| {
        let mut table = table.clone();
        fill_all(&mut table, variables);
        table
    });
    Ok(filled.collect())
}

/// Replaces variables in all texts of a value.
fn fill_all(value: &mut Value, variables: &Variables) {
    match value {
        Value::String(text) => *text = fill(text, variables),
        Value::Array(values) => {
            let values = values.iter_mut();
            values.for_each(|value| fill_all(value, variables));
        }
        Value::Table(table) => {
            let values = table.iter_mut();
            values.for_each(|(_, value)| fill_all(value, variables));
        }
        Value::Integer(_) | Value::Float(_) | Value::Boolean(_) | Value::Datetime(_) => {}
    }
}

/// An unknown name in braces.
pub(super) fn unknown_name(text: &str) -> Option<&str> {
    let names = text.split('{').skip(1);
    let mut names = names
        .filter_map(|rest| rest.split_once('}'))
        .map(|(name, _)| name);
    names.find(|name| {
        let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase());
        is_name && !NAMES.contains(name)
    })
}

/// Replaces all `{NAME}`s by their values. Names without a value remain, and values are not
/// expanded again.
pub(crate) fn fill(text: &str, variables: &Variables) -> String {
    let mut filled = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('{') {
        filled.push_str(before);
        let named = after
            .split_once('}')
            .and_then(|(name, after)| Some((variables.get(name)?, after)));
        match named {
            Some((value, after)) => {
                filled.push_str(value);
                rest = after;
            }
            None => {
                filled.push('{');
                rest = after;
            }
        }
    }
    filled + rest
}
