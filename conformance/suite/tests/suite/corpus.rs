//! The corpus: its scenarios and its traces.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use efa_capture::frame::OUTER_LEN;
use efa_check::capture::Capture;
use efa_check::check;
use efa_core::rules::Severity;
use efa_play::scenario::{Scenario, Software};
use efa_play::trace::Trace;
use efa_replay::replay::codec;
use efa_replay::replay::emu::Emu;
use efa_replay::synthetic;
use efa_suite::{Options, Outcome};
use efa_testing::workspace;

/// The traces recorded from stock software.
fn recordings() -> Vec<PathBuf> {
    let mut all = traces();
    all.retain(|path| {
        path.extension()
            .is_some_and(|extension| extension == "pcapng")
    });
    all
}

/// Recordings, and scenarios whose packets are written by hand.
fn traces() -> Vec<PathBuf> {
    efa_suite::find_traces(&[workspace::traces()], None).unwrap()
}

/// The scenarios of the recordings.
fn scenarios() -> Vec<PathBuf> {
    efa_suite::find_scenarios(
        &[workspace::traces(), workspace::traces().join("releases")],
        None,
    )
    .unwrap()
}

fn load(path: &Path) -> Trace {
    synthetic::load(path).unwrap_or_else(|error| panic!("{error}"))
}

/// With the number of random networks in `EFA_SEEDS`, or one.
fn in_networks() -> Options {
    let wanted = std::env::var("EFA_SEEDS").ok();
    Options {
        seeds: wanted.map_or(1, |wanted| wanted.parse().expect("EFA_SEEDS is a number")),
        ..Options::default()
    }
}

/// Calls `each` with each of `items`, on all processors. Panics if a call does.
fn in_parallel<T: Sync>(items: &[T], each: impl Fn(&T) + Sync) {
    let next = AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
                    each(item);
                }
            });
        }
    });
}

#[test]
fn traces_and_scenarios_pair_up() {
    let names = |files: Vec<PathBuf>| -> Vec<String> {
        files.iter().map(|path| efa_suite::name_of(path)).collect()
    };
    assert_eq!(names(recordings()), names(scenarios()));
    for path in recordings() {
        let trace = load(&path);
        // The corpus is recorded from stock software.
        for endpoint in &trace.scenario.endpoints {
            assert_eq!(endpoint.software, Software::Libfabric, "{trace}");
        }
        assert_eq!(trace.capture.damage, Vec::<String>::new(), "{trace}");
        assert!(!trace.scenario.description.is_empty() && !trace.scenario.spec.is_empty());
    }
}

/// The page about the corpus is the output of `efa-conformance list --matrix`, and gives a reason
/// for everything that no trace covers.
#[test]
fn the_page_lists_the_coverage_of_the_corpus() {
    let traces: Vec<Trace> = traces().iter().map(|path| load(path)).collect();
    let (page, unexplained) = efa_suite::matrix::render(&traces);
    assert_eq!(unexplained, Vec::<String>::new());
    let path = workspace::traces().join("README.md");
    let written = std::fs::read_to_string(path).unwrap();
    assert!(
        written.trim_end() == page.trim_end(),
        "traces/README.md is old: efa-conformance list traces --matrix > traces/README.md"
    );
}

#[test]
fn traces_break_no_rule_and_round_trip() {
    for path in traces() {
        let trace = load(&path);
        let checked = check::check(&trace.capture);
        // A release may not know a rule of a later one (docs/deviations.md): a warning.
        let broken = checked.worse_than(Severity::Warning);
        let broken: Vec<&str> = broken.map(|finding| finding.rule.id).collect();
        // Only traces that are written by hand break rules, and only those that they name.
        assert_eq!(broken, trace.scenario.breaks, "{trace}");
        let (packets, problems) = codec::check(&trace);
        assert_eq!(problems, Vec::<String>::new(), "{trace}");
        assert_eq!(packets as u64, checked.packets, "{trace}");
    }
}

/// Replays the traces with the engine in each role.
fn replay_with_the_engine(traces: &[PathBuf]) {
    assert!(!traces.is_empty());
    in_parallel(traces, |path| {
        let trace = load(path);
        for case in efa_suite::run_engine(&trace, &mut Emu::orderly(), &in_networks()).unwrap() {
            let passed = matches!(case.outcome, Outcome::Passed { .. });
            let excused = matches!(case.outcome, Outcome::NotUnderTest { .. });
            // The engine has no mode in which it receives messages without a header.
            let endpoint = trace.scenario.endpoint(&case.role).unwrap();
            let is_receiver = trace.scenario.endpoints[endpoint].max_message.is_some();
            let lacks = matches!(&case.outcome, Outcome::Unsupported { .. } if is_receiver);
            assert!(passed || excused || lacks, "{case}");
        }
    });
}

/// Traces between two releases, and all others.
fn traces_by_release() -> (Vec<PathBuf>, Vec<PathBuf>) {
    let releases = workspace::traces().join("releases");
    traces()
        .into_iter()
        .partition(|it| it.starts_with(&releases))
}

#[test]
fn the_engine_takes_the_place_of_stock_libfabric() {
    replay_with_the_engine(&traces_by_release().1);
}

#[test]
fn the_engine_takes_the_place_of_each_release() {
    replay_with_the_engine(&traces_by_release().0);
}

/// The engine plays every scenario with itself, and its capture can be replayed in every role and
/// in random networks.
#[test]
fn the_engine_plays_every_scenario_with_itself() {
    let mut themes = std::collections::BTreeSet::new();
    let mut of_themes = Vec::new();
    for path in scenarios() {
        let scenario = Scenario::load(&path).unwrap_or_else(|error| panic!("{error}"));
        // For the engine, a theme is the same in all releases.
        let theme = scenario.name.split("-1.").next().unwrap_or_default();
        let theme = theme.split("-2.").next().unwrap_or_default().to_owned();
        if themes.insert(theme) {
            of_themes.push(scenario);
        }
    }
    in_parallel(&of_themes, |scenario| {
        let trace = crate::rehearsal::rehearse(scenario);
        let cases = efa_suite::run_engine(&trace, &mut Emu::orderly(), &in_networks()).unwrap();
        for case in cases {
            let passed = matches!(case.outcome, Outcome::Passed { .. });
            let excused = matches!(case.outcome, Outcome::NotUnderTest { .. });
            assert!(passed || excused, "{case}");
        }
    });
}

/// The capture as if it had been recorded with this snap length.
fn cut(capture: &Capture, snaplen: usize) -> Capture {
    let mut capture = capture.clone();
    for frame in &mut capture.frames {
        let headers = OUTER_LEN + frame.header.header_len();
        let kept = snaplen.saturating_sub(headers).min(frame.payload.len());
        frame.cut_off = frame.payload.len() - kept;
        frame.payload[kept..].fill(0);
    }
    capture
}

/// A capture with a snap length gives no finding that the complete one does not have. With 256
/// bytes every packet is judged; with fewer, some have incomplete headers.
#[test]
fn a_snap_length_breaks_no_rule() {
    let mut torn = 0;
    for path in recordings() {
        let whole = load(&path).capture;
        let of_whole = check::check(&whole);
        let found: HashSet<_> = of_whole
            .findings
            .iter()
            .map(|finding| (finding.rule.id, finding.packet))
            .collect();
        for snaplen in [128, 150, 256] {
            let of_cut = check::check(&cut(&whole, snaplen));
            for finding in of_cut.findings {
                let known = found.contains(&(finding.rule.id, finding.packet));
                assert!(known, "{}, {snaplen} bytes: {finding}", path.display());
            }
            if snaplen == 256 {
                assert_eq!(of_cut.packets, of_whole.packets, "{}", path.display());
            } else {
                torn += of_whole.packets - of_cut.packets;
            }
        }
    }
    assert!(torn > 100, "only {torn} packets have half a header");
}

#[test]
fn a_scenario_stands_for_its_recording() {
    let of = |path: PathBuf| efa_suite::find_cases(&[path], None);
    let named = |name: &str| workspace::traces().join(name);
    for (scenario, trace) in [
        ("eager-tagged.toml", "eager-tagged.pcapng"),
        ("eager-tagged.pcapng", "eager-tagged.pcapng"),
        ("written/read-iov-2.toml", "written/read-iov-2.toml"),
    ] {
        assert_eq!(of(named(scenario)).unwrap(), [named(trace)]);
    }
    let directory = tempfile::tempdir().unwrap();
    let alone = directory.path().join("eager-tagged.toml");
    std::fs::copy(named("eager-tagged.toml"), &alone).unwrap();
    let error = of(alone).unwrap_err().to_string();
    assert!(error.contains("no capture "), "{error}");
    assert!(error.contains("`efa-conformance record "), "{error}");
    // Loading it reports what is wrong.
    let broken = directory.path().join("broken.toml");
    std::fs::write(&broken, "endpoint = 3").unwrap();
    assert_eq!(of(broken.clone()).unwrap(), [broken]);
}
