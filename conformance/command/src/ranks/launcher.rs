//! Which process of a parallel job this is, as its launcher says in the environment.

use std::fmt;

use clap::ValueEnum;

/// What starts the processes of a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Launcher {
    /// `mpirun` or `mpiexec` of Open MPI, MPICH or Intel MPI.
    Mpirun,
    /// Slurm's `srun`.
    Srun,
}

/// As `--under` takes it.
impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Launcher::Mpirun => "mpirun",
            Launcher::Srun => "srun",
        })
    }
}

/// A process of a job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Rank {
    pub(super) number: u32,
    /// How many there are.
    pub(super) count: u32,
    pub(super) launcher: Launcher,
    /// A name that no other job of the launcher has at the same time, if it tells one.
    pub(super) job: Option<String>,
}

/// Variables of a launcher.
struct Variables {
    launcher: Launcher,
    number: &'static str,
    count: &'static str,
    job: &'static [&'static str],
}

/// The innermost launcher comes first: `mpirun` in a job of Slurm starts its daemons by `srun`, and ranks inherit
/// their variables. Scripts of `sbatch` have `SLURM_PROCID`, but are no step with tasks.
const KNOWN: [Variables; 3] = [
    Variables {
        launcher: Launcher::Mpirun,
        number: "OMPI_COMM_WORLD_RANK",
        count: "OMPI_COMM_WORLD_SIZE",
        job: &["PMIX_NAMESPACE"],
    },
    Variables {
        launcher: Launcher::Mpirun,
        number: "PMI_RANK",
        count: "PMI_SIZE",
        job: &[],
    },
    Variables {
        launcher: Launcher::Srun,
        number: "SLURM_PROCID",
        count: "SLURM_STEP_NUM_TASKS",
        job: &["SLURM_JOB_ID", "SLURM_STEP_ID"],
    },
];

impl Rank {
    /// Finds this process in what `variable` says, if it is that of the launcher `under`.
    pub(super) fn find(
        under: Option<Launcher>,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, String> {
        let known = || {
            KNOWN
                .iter()
                .filter(|known| under.is_none_or(|under| known.launcher == under))
        };
        let is_set = |known: &&Variables| {
            variable(known.number).is_some() && variable(known.count).is_some()
        };
        let Some(found) = known().find(is_set) else {
            let names: Vec<String> = known()
                .map(|known| format!("{} with {}", known.number, known.count))
                .collect();
            return Err(format!(
                "no launcher has started this process: the environment lacks {}; start it as `mpirun -n 2 --map-by \
                 node efa-conformance run ...` or `srun -N 2 efa-conformance run ...`, or name hosts with --hosts",
                names.join(", and ")
            ));
        };
        let read = |name: &str| {
            let text = variable(name).unwrap_or_default();
            let number = text.parse::<u32>();
            number.map_err(|_| format!("{name}={text} is no number; which launcher has set it?"))
        };
        let (number, count) = (read(found.number)?, read(found.count)?);
        if number >= count {
            return Err(format!(
                "{}={number} is not below {}={count}; name the launcher with --under",
                found.number, found.count
            ));
        }
        if count < 2 {
            return Err(format!(
                "{} has started one process only ({}={count}): start one on each of two hosts, or more; if another \
                 launcher has started more, name it with --under",
                found.launcher, found.count
            ));
        }
        let job: Option<Vec<String>> = found.job.iter().map(|name| variable(name)).collect();
        Ok(Rank {
            number,
            count,
            launcher: found.launcher,
            job: job
                .filter(|words| !words.is_empty())
                .map(|words| words.join("-")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(under: Option<Launcher>, variables: &[(&str, &str)]) -> Result<Rank, String> {
        Rank::find(under, |wanted| {
            let found = variables.iter().find(|(name, _)| *name == wanted);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    fn rank(number: u32, count: u32, launcher: Launcher, job: Option<&str>) -> Rank {
        let job = job.map(str::to_owned);
        Rank {
            number,
            count,
            launcher,
            job,
        }
    }

    const OPEN_MPI: [(&str, &str); 3] = [
        ("OMPI_COMM_WORLD_RANK", "1"),
        ("OMPI_COMM_WORLD_SIZE", "4"),
        ("PMIX_NAMESPACE", "77"),
    ];
    const SLURM: [(&str, &str); 4] = [
        ("SLURM_PROCID", "0"),
        ("SLURM_STEP_NUM_TASKS", "2"),
        ("SLURM_JOB_ID", "5"),
        ("SLURM_STEP_ID", "3"),
    ];

    #[test]
    fn each_launcher_is_known_by_its_variables() {
        use Launcher::{Mpirun, Srun};
        assert_eq!(
            find(None, &OPEN_MPI).unwrap(),
            rank(1, 4, Mpirun, Some("77"))
        );
        assert_eq!(find(None, &SLURM).unwrap(), rank(0, 2, Srun, Some("5-3")));
        let hydra = [("PMI_RANK", "2"), ("PMI_SIZE", "3")];
        assert_eq!(find(None, &hydra).unwrap(), rank(2, 3, Mpirun, None));
    }

    #[test]
    fn mpirun_is_the_inner_one_unless_srun_is_named() {
        let both = [&SLURM[..], &OPEN_MPI].concat();
        assert_eq!(find(None, &both).unwrap().number, 1);
        assert_eq!(find(Some(Launcher::Mpirun), &both).unwrap().number, 1);
        assert_eq!(find(Some(Launcher::Srun), &both).unwrap().count, 2);
    }

    #[test]
    fn what_is_missing_is_named() {
        let problem = find(None, &[]).unwrap_err();
        for name in [
            "OMPI_COMM_WORLD_RANK",
            "PMI_SIZE",
            "SLURM_STEP_NUM_TASKS",
            "--hosts",
        ] {
            assert!(problem.contains(name), "{problem}");
        }
        let problem = find(Some(Launcher::Srun), &OPEN_MPI).unwrap_err();
        assert!(
            problem.contains("SLURM_PROCID") && !problem.contains("OMPI"),
            "{problem}"
        );
        // A script of sbatch.
        let batch = [
            ("SLURM_PROCID", "0"),
            ("SLURM_NTASKS", "4"),
            ("SLURM_JOB_ID", "5"),
        ];
        assert!(find(None, &batch).is_err());
        for (number, count, part) in [
            ("0", "1", "one process only"),
            ("4", "4", "not below"),
            ("-1", "4", "no number"),
        ] {
            let problem = find(None, &[("PMI_RANK", number), ("PMI_SIZE", count)]).unwrap_err();
            assert!(problem.contains(part), "{problem}");
        }
    }
}
