//! Pairs of programs that find each other over TCP: perftest, rdma-core's examples, our own.

use std::path::PathBuf;

use super::{Finished, Host, Unmet};

/// Runs `program` as a server with `-p PORT`, then as its client with `-p PORT ADDRESS`. Both must
/// succeed; a failure of the client tells what became of the server, which is often its cause.
pub(crate) fn converse<'a>(
    server: &Host<'a>,
    client: &Host<'a>,
    program: &[&str],
) -> Result<[Finished; 2], Unmet> {
    let port = server.free_port()?;
    let (text, address) = (port.to_string(), server.address()?);
    let mut words = program.to_vec();
    words.extend(["-p", &text]);
    let listener = server.serve(&words, port)?;
    words.push(&address);
    match client.run(&words) {
        Ok(client) => Ok([listener.success()?, client]),
        Err(Unmet::Failed(text)) => Err(Unmet::Failed(format!("{text}\n{}", listener.account()))),
        Err(other) => Err(other),
    }
}

/// The path of an installed program. If it is not installed, the cell is skipped.
pub(crate) fn installed(program: &str, package: &str) -> Result<PathBuf, Unmet> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .map(|directory| directory.join(program))
        .find(|path| path.is_file())
        .ok_or_else(|| {
            Unmet::Skipped(format!(
                "{program} is not installed (Debian package {package})"
            ))
        })
}
