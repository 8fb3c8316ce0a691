//! Recording: endpoints play a scenario on emulated hosts, and their captures become a trace.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use efa_check::merge::{Annotation, MergeError, merge};

use crate::libfabric::{Library, Provider, Version};
use crate::player::{Host, Launcher, Player, Program};
use crate::process_runner::{ProcessRunner, RunError, Transcript};
use crate::scenario::{EndpointSpec, Scenario, ScenarioError, Software, file_of_faults};
use crate::trace::{END_OF_STEPS, region_comment};

/// The reason why nothing was recorded.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The scenario cannot be read, or contradicts itself.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// The scenario was not played to its end.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The captures of the endpoints cannot be merged.
    #[error(transparent)]
    Merge(#[from] MergeError),
    /// The scenario was played to its end, but not as it says.
    #[error(
        "{} went otherwise than it says; what was captured is in {}:\n  {}",
        scenario.display(),
        capture.display(),
        problems.join("\n  ")
    )]
    Different {
        /// The file of the scenario.
        scenario: PathBuf,
        /// The capture, which is not a trace.
        capture: PathBuf,
        /// The differences, one per line.
        problems: Vec<String>,
    },
    /// What the machine or the installation lacks.
    #[error("{0}")]
    Environment(String),
}

impl RecordError {
    /// Returns whether the environment or the input is at fault, not the software.
    pub fn is_environment(&self) -> bool {
        match self {
            RecordError::Run(error) => error.is_environment(),
            RecordError::Different { .. } => false,
            RecordError::Scenario(_) | RecordError::Merge(_) | RecordError::Environment(_) => true,
        }
    }
}

/// The libfabric of stock endpoints.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stock {
    /// The library: a path, or a name for the dynamic linker.
    pub library: PathBuf,
    /// The provider of that library to use.
    pub provider: Provider,
    /// A program that starts its first argument with the libraries of another release.
    pub runner: Option<PathBuf>,
    /// Other libraries, with their runners, for endpoints that need these releases.
    pub releases: BTreeMap<Version, (PathBuf, Option<PathBuf>)>,
}

impl Stock {
    /// The library and the runner for an endpoint.
    fn of(&self, endpoint: &EndpointSpec) -> (PathBuf, Option<PathBuf>) {
        let release = endpoint
            .version
            .and_then(|version| self.releases.get(&version));
        release
            .cloned()
            .unwrap_or_else(|| (self.library.clone(), self.runner.clone()))
    }
}

impl Default for Stock {
    fn default() -> Self {
        Stock {
            library: Library::DEFAULT.into(),
            provider: Provider::efa(),
            runner: None,
            releases: BTreeMap::new(),
        }
    }
}

/// Plays a scenario, each endpoint on a separate emulated host. Each host writes its capture to the
/// directory `captures`, if given. The scenario's faults, or those in the file `faults` instead,
/// apply as long as the first endpoint's host runs.
pub fn run(
    scenario: &Scenario,
    launcher: &Launcher,
    stock: &Stock,
    captures: Option<&Path>,
    faults: Option<&Path>,
) -> Result<(Transcript, Vec<PathBuf>), RunError> {
    let mut players = Vec::new();
    let mut files = Vec::new();
    let directory = match scenario.faults.is_empty() {
        true => None,
        false => Some(ScratchDirectory::new().map_err(RunError::Faults)?),
    };
    let own = directory
        .as_ref()
        .map(|directory| directory.0.join("faults.toml"));
    if let Some(file) = &own {
        std::fs::write(file, file_of_faults(&scenario.faults)).map_err(RunError::Faults)?;
    }
    let faults = faults.or(own.as_deref());
    for (at, endpoint) in scenario.endpoints.iter().enumerate() {
        let faults = faults.filter(|_| at == 0);
        let capture = captures.map(|directory| directory.join(format!("{}.pcapng", endpoint.name)));
        files.extend(capture.clone());
        let (library, runner) = stock.of(endpoint);
        let program = match endpoint.software {
            Software::Core => Program::Core,
            Software::Libfabric => Program::Libfabric {
                library,
                provider: stock.provider.clone(),
            },
            Software::Script => {
                let endpoint = endpoint.name.clone();
                return Err(RunError::Scripted { endpoint });
            }
        };
        players.push(Player::launch(
            launcher,
            &program,
            &Host {
                name: endpoint.name.clone(),
                profile: endpoint.profile.clone(),
                capture,
                environment: endpoint.environment.clone(),
                runner: match endpoint.software {
                    Software::Libfabric => runner,
                    Software::Core | Software::Script => None,
                },
                options: faults.map_or(Vec::new(), |file| {
                    vec!["--faults".into(), file.display().to_string()]
                }),
                ..Host::default()
            },
        )?);
    }
    let runner = ProcessRunner::new(scenario, players, stock.library.clone());
    Ok((runner.run().whole()?, files))
}

/// A recorded trace.
#[derive(Debug)]
pub struct Recording {
    /// How many frames the capture has.
    pub frames: usize,
    /// The release of each endpoint's software.
    pub versions: Vec<String>,
}

/// Records the scenario at `path` to `output`.
pub fn record(
    path: &Path,
    output: &Path,
    launcher: &Launcher,
    stock: &Stock,
) -> Result<Recording, RecordError> {
    let scenario = Scenario::load(path)?;
    let directory = ScratchDirectory::new().map_err(|error| {
        RecordError::Environment(format!("cannot make a temporary directory: {error}"))
    })?;
    let (transcript, captures) = run(&scenario, launcher, stock, Some(&directory.0), None)?;
    let steps = transcript.marks.iter().map(|mark| Annotation {
        time: mark.time,
        text: match scenario.steps.get(mark.step) {
            Some(step) => step.describe(mark.step, &scenario),
            None => END_OF_STEPS.into(),
        },
    });
    let regions = transcript.regions.iter().map(|region| Annotation {
        time: region.time,
        text: region_comment(&region.id, region.remote),
    });
    let annotations: Vec<Annotation> = steps.chain(regions).collect();
    let mut comments = vec![format!("{}: {}", scenario.name, scenario.description)];
    for (endpoint, version) in scenario.endpoints.iter().zip(&transcript.versions) {
        comments.push(format!("endpoint {}: {version}", endpoint.name));
    }
    if !transcript.problems.is_empty() {
        let capture = output.with_extension("failed.pcapng");
        merge(&captures, &comments, &annotations, &capture)?;
        return Err(RecordError::Different {
            scenario: path.to_owned(),
            capture,
            problems: transcript.problems,
        });
    }
    let frames = merge(&captures, &comments, &annotations, output)?;
    if frames == 0 {
        return Err(RecordError::Environment(format!(
            "{}: nothing was captured; does this efa-emu write captures (--pcap)?",
            output.display()
        )));
    }
    Ok(Recording {
        frames,
        versions: transcript.versions,
    })
}

/// A directory that is removed on drop.
pub struct ScratchDirectory(pub PathBuf);

impl ScratchDirectory {
    /// Makes one among the temporary files.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn new() -> std::io::Result<Self> {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("efa-conformance-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path)?;
        Ok(ScratchDirectory(path))
    }
}

impl Drop for ScratchDirectory {
    fn drop(&mut self) {
        // Files left in the temporary directory do no harm.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
