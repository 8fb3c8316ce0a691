//! `efa-emu profiles`.

use std::process::ExitCode;

use clap::Args;
use efa_device_model::profile::Profile;
use serde_json::{Value, json};

use efa_commands::Failure;

#[derive(Args)]
pub(super) struct ProfilesArguments {
    /// Show only this profile: a name, or the path of a profile's file.
    name: Option<String>,
    /// As JSON; see docs/json.md.
    #[arg(long)]
    json: bool,
}

impl ProfilesArguments {
    pub(super) fn execute(self) -> Result<ExitCode, Failure> {
        let profiles = match &self.name {
            Some(name) => vec![Profile::named(name)?],
            None => Profile::built_in().cloned().collect(),
        };
        crate::output::print(&match self.json {
            true => format!("{:#}\n", as_json(&profiles)),
            false => table(&profiles),
        });
        Ok(ExitCode::SUCCESS)
    }
}

/// The profiles, then a row for each attribute: its value in each profile, and its source.
fn table(profiles: &[Profile]) -> String {
    let mut output = String::new();
    for profile in profiles {
        let default = match profile.name == Profile::DEFAULT {
            true => " (default)",
            false => "",
        };
        output += &format!("{}{default}: {}\n", profile.name, profile.description);
    }
    output.push('\n');

    let header = ["attribute"].into_iter().map(String::from);
    let names = profiles.iter().map(|profile| profile.name.to_owned());
    let mut rows: Vec<Vec<String>> = vec![header.chain(names).chain(["source".into()]).collect()];
    let columns: Vec<_> = profiles.iter().map(Profile::attributes).collect();
    for (at, attribute) in columns[0].iter().enumerate() {
        let values = columns.iter().map(|column| column[at].value.clone());
        let mut row = vec![attribute.name.to_owned()];
        row.extend(values);
        row.push(attribute.source.to_owned());
        rows.push(row);
    }
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<_> = (0..rows[0].len())
        .map(|at| width(at).unwrap_or(0))
        .collect();
    for row in &rows {
        let cells = row.iter().zip(&widths);
        let line: Vec<_> = cells
            .map(|(cell, width)| format!("{cell:width$}"))
            .collect();
        output += line.join("  ").trim_end();
        output.push('\n');
    }
    output
}

/// An object for each profile; docs/json.md describes it.
fn as_json(profiles: &[Profile]) -> Value {
    profiles
        .iter()
        .map(|profile| {
            let attributes = profile.attributes().into_iter().map(|attribute| {
                json!({
                    "name": attribute.name,
                    "value": attribute.value,
                    "source": attribute.source,
                })
            });
            json!({
                "name": profile.name,
                "description": profile.description,
                "is_default": profile.name == Profile::DEFAULT,
                "attributes": attributes.collect::<Vec<_>>(),
            })
        })
        .collect()
}
