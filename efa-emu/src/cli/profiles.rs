//! `efa-emu profiles`.

use std::process::ExitCode;

use clap::Args;
use efa_emu::profile::Profile;

use super::Failure;

#[derive(Args)]
pub(super) struct ProfilesArguments {
    /// Show only this profile.
    name: Option<String>,
}

impl ProfilesArguments {
    pub(super) fn execute(self) -> Result<ExitCode, Failure> {
        let profiles = match &self.name {
            Some(name) => std::slice::from_ref(by_name(name)?),
            None => Profile::all(),
        };
        let mut output = String::new();
        for profile in profiles {
            table(&mut output, profile);
        }
        super::print(&output);
        Ok(ExitCode::SUCCESS)
    }
}

/// The profile of this name, or an error that lists the names.
pub(super) fn by_name(name: &str) -> Result<&'static Profile, Failure> {
    Profile::by_name(name).ok_or_else(|| {
        let names: Vec<_> = Profile::all().iter().map(|profile| profile.name).collect();
        Failure(format!(
            "there is no profile {name:?}: use {}",
            names.join(", ")
        ))
    })
}

fn table(output: &mut String, profile: &Profile) {
    let default = if profile.name == Profile::DEFAULT {
        " (default)"
    } else {
        ""
    };
    *output += &format!("{}{default}: {}\n", profile.name, profile.description);
    let attributes = profile.attributes();
    let width = |text: &dyn Fn(&efa_emu::profile::Attribute) -> usize| {
        attributes.iter().map(text).max().unwrap_or(0)
    };
    let names = width(&|attribute| attribute.name.len());
    let values = width(&|attribute| attribute.value.len());
    for attribute in &attributes {
        *output += &format!(
            "  {:names$}  {:values$}  {}\n",
            attribute.name, attribute.value, attribute.source
        );
    }
    output.push('\n');
}
