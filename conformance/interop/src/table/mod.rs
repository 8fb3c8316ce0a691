//! Cells as data: the files in `conformance/interop/cells`, one for each group.
//!
//! A cell is a list of programs: host, command line, environment, expected exit and expected output
//! ([`format`]). `docs/interop.md` describes the keys.

mod exchange;
mod expand;
mod format;
mod run;

use std::time::Duration;

use crate::harness::{Cell, CellsError};

pub(crate) use expand::{Variables, fill};

/// The cells of a group, from the text of its file.
pub(crate) fn cells(group: &'static str, text: &str) -> Result<Vec<Cell>, CellsError> {
    let specs = expand::cells(&format!("cells/{group}.toml"), text)?;
    let cells = specs.into_iter().map(|spec| {
        let (name, limit) = (spec.name.clone(), Duration::from_secs(spec.limit));
        let emulated = spec.emulated.clone();
        let cell = Cell::new(group, name, limit, move |bench| spec.run(bench));
        match emulated {
            Some(reason) => cell.emulated_only(reason),
            None => cell,
        }
    });
    Ok(cells.collect())
}

#[cfg(test)]
mod tests {
    use super::expand::cells;
    use super::format::Figure;

    const FILES: [(&str, &str); 2] = [
        ("libfabric", include_str!("../../cells/libfabric.toml")),
        ("perftest", include_str!("../../cells/perftest.toml")),
    ];

    const CELL: &str = r#"
[list]
releases = [{ release = "1.11" }, { release = "1.17" }]

[[cell]]
name = "{release} {what}"
limit = 5
each = ["releases", [{ what = "x" }, { what = "y" }]]

[[cell.program]]
host = "a"
run = "prog {what} {port}"
"#;

    #[test]
    fn each_makes_a_cell_of_every_combination() {
        let specs = cells("x.toml", CELL).unwrap();
        let names: Vec<&str> = specs.iter().map(|spec| spec.name.as_str()).collect();
        assert_eq!(names, ["1.11 x", "1.11 y", "1.17 x", "1.17 y"]);
        assert_eq!(specs[3].program[0].run, "prog y {port}");
    }

    #[test]
    fn errors_name_file_line_and_key() {
        let misspelt = CELL.replace("run =", "runs =");
        let error = cells("x.toml", &misspelt).unwrap_err().to_string();
        assert!(
            error.starts_with("x.toml: TOML parse error at line 12"),
            "{error}"
        );
        assert!(error.contains("unknown field `runs`"), "{error}");
        let expression = format!("{CELL}figures = [{{ find = '(', show = \"\" }}]");
        let error = cells("x.toml", &expression).unwrap_err().to_string();
        assert!(error.contains("unclosed group"), "{error}");
        let unknown = CELL.replace("{what} {port}", "{what} {prot}");
        let error = cells("x.toml", &unknown).unwrap_err().to_string();
        assert_eq!(error, "x.toml: cell `1.11 x`: unknown name `{prot}`");
        let unlisted = CELL.replace(r#"["releases","#, r#"["release","#);
        let error = cells("x.toml", &unlisted).unwrap_err().to_string();
        assert_eq!(error.trim(), "x.toml: unknown list `release`");
    }

    /// Real output of the programs.
    #[test]
    fn figures_are_those_of_the_last_line() {
        let latency = "\
---------------------------------------------------------------------------------------
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]
 2       1000          0.28           108.39       0.32              0.44
---------------------------------------------------------------------------------------
";
        let bandwidth = "\
 #bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]
 2          1000             0.50                0.40                  0.2
 4096       1000             435.33             249.01 \t\t 0.063748
---------------------------------------------------------------------------------------
";
        let pingpong = "\
bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec
64      10      =10      1.2k        0.00s     12.31       5.20       0.19
1m      10      =10      20m         0.38s     54.75   19150.00       0.00
";
        let expected = [
            (
                "perftest",
                latency,
                "2 bytes, 1000 times: typically 0.32 us",
            ),
            (
                "perftest",
                bandwidth,
                "4096 bytes, 1000 times: 249.01 MiB/s, 0.063748 million/s",
            ),
            ("libfabric", pingpong, "2 sizes up to 1m checked"),
        ];
        for (group, printed, shown) in expected {
            let (_, text) = FILES.iter().find(|(name, _)| *name == group).unwrap();
            let specs = cells(group, text).unwrap();
            let programs = specs.iter().flat_map(|spec| &spec.program);
            let figures: Vec<&Figure> = programs.flat_map(|program| &program.figures).collect();
            let mut found = figures.iter().filter_map(|figure| figure.of(printed).ok());
            assert!(found.any(|found| found.shown == shown), "{group}: {shown}");
            let of_a_header = printed.lines().take(2).collect::<String>();
            assert!(
                figures
                    .iter()
                    .all(|figure| figure.of(&of_a_header).is_err())
            );
        }
    }
}
