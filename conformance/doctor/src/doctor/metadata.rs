//! The instance metadata service of EC2, version 2: a token first, then requests with it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::finding::Finding;
use super::machine::Machine;

/// The service runs on the machine's own host. On other machines the wait must be short.
const PATIENCE: Duration = Duration::from_secs(2);

/// The longest accepted answer.
const LONGEST: u64 = 16 << 10;

/// The answer of the service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Metadata {
    /// The type, such as `p5.48xlarge`.
    pub(super) instance_type: String,
    /// The zone, such as `use1-az4`.
    pub(super) zone: Option<String>,
}

/// A request to the service failed.
#[derive(Debug, thiserror::Error)]
#[error("{request}: {problem}")]
pub(super) struct MetadataError {
    /// The method and the path.
    request: String,
    problem: MetadataProblem,
}

#[derive(Debug, thiserror::Error)]
enum MetadataProblem {
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The status line, if the status is not 200.
    #[error("{0}")]
    Status(String),
    #[error("an empty answer")]
    Empty,
}

/// Queries the service, if this may be an EC2 instance. The error is the reason for a missing
/// answer.
pub(super) fn ask(machine: &Machine) -> Option<Result<Metadata, MetadataError>> {
    let address = machine.metadata()?;
    if !machine.is_ec2() {
        return None;
    }
    Some(ask_at(address))
}

fn ask_at(address: SocketAddr) -> Result<Metadata, MetadataError> {
    let token = request(
        address,
        "PUT /latest/api/token",
        "X-aws-ec2-metadata-token-ttl-seconds: 60",
    )?;
    let header = format!("X-aws-ec2-metadata-token: {token}");
    let get = |path: &str| request(address, &format!("GET /latest/meta-data/{path}"), &header);
    Ok(Metadata {
        instance_type: get("instance-type")?,
        zone: get("placement/availability-zone-id").ok(),
    })
}

/// Sends one HTTP request, and returns the body of its answer.
fn request(address: SocketAddr, line: &str, header: &str) -> Result<String, MetadataError> {
    let failed = |problem| MetadataError {
        request: line.to_owned(),
        problem,
    };
    let exchange = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let request = format!(
            "{line} HTTP/1.1\r\nHost: {}\r\n{header}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
            address.ip()
        );
        stream.write_all(request.as_bytes())?;
        let mut answer = Vec::new();
        stream.take(LONGEST).read_to_end(&mut answer)?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    };
    let answer = exchange().map_err(|error| failed(error.into()))?;
    let status = answer.lines().next().unwrap_or_default();
    if status.split(' ').nth(1) != Some("200") {
        return Err(failed(MetadataProblem::Status(status.to_owned())));
    }
    let body = answer.split_once("\r\n\r\n").map(|(_, body)| body.trim());
    body.filter(|body| !body.is_empty())
        .map(str::to_owned)
        .ok_or_else(|| failed(MetadataProblem::Empty))
}

/// Reports whether the service answers, if it was queried.
pub(super) fn examine(
    metadata: Option<&Result<Metadata, MetadataError>>,
    findings: &mut Vec<Finding>,
) {
    findings.extend(metadata.map(|answer| match answer {
        Ok(Metadata {
            zone: Some(zone), ..
        }) => Finding::ok("metadata", format!("answers; availability zone {zone}")),
        Ok(_) => Finding::ok("metadata", "answers"),
        Err(problem) => Finding::note("metadata", format!("does not answer: {problem}")).remedy(
            "nothing here needs it but the name of the availability zone; in a container: aws ec2 \
             modify-instance-metadata-options --instance-id ID --http-put-response-hop-limit 2",
        ),
    }));
}
