//! `show`: the packets of a capture.

use std::io::{self, Read, Write};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use efa_capture::Reader;
use efa_capture::frame::Opcode;
use efa_check::capture::Frames;
use efa_check::show::{Filter, Form, ShowError, field_names, show};
use efa_commands::output;
use efa_core::wire::PacketType;
use efa_core::wire::infiniband::RcOpcode;
use efa_play::scenario::suggest;

use crate::captures::captures;
use crate::outcome::{Outcome, PROGRAM, complain};

#[derive(clap::Args)]
pub(crate) struct Show {
    /// The captures to show, and directories of captures; `-` reads standard input.
    #[arg(required = true, value_name = "CAPTURE")]
    captures: Vec<PathBuf>,
    /// Print a JSON object for each packet, on a line of its own.
    #[arg(long)]
    json: bool,
    /// Only packets whose type contains this, such as CTS or RDMA_READ; any of several.
    #[arg(long = "type", value_name = "TEXT", value_parser = kind, help_heading = "Which packets")]
    types: Vec<String>,
    /// Only packets that this host captured; any of several.
    #[arg(long = "host", value_name = "NAME", help_heading = "Which packets")]
    hosts: Vec<String>,
    /// Only packets with these numbers; `10-` is all from 10 on.
    #[arg(long, value_name = "N[-[M]]", value_parser = numbers, help_heading = "Which packets")]
    packets: Option<RangeInclusive<u64>>,
    /// Only packets that have this field with this value, such as msg_id=3; all of several.
    #[arg(long = "field", value_name = "FIELD=VALUE", value_parser = field, help_heading = "Which packets")]
    fields: Vec<(String, u64)>,
}

/// A part of the name of a packet type or of an operation of the transport.
fn kind(text: &str) -> Result<String, String> {
    let types = PacketType::ALL.iter().map(|it| it.name().to_owned());
    let operations = Opcode::ALL.iter().map(ToString::to_string);
    let others = [
        "message without header",
        "packet of unassigned type",
        "empty packet",
    ];
    let connected = RcOpcode::ALL
        .iter()
        .map(|opcode| format!("RC {}", opcode.name()));
    let known: Vec<String> = types
        .chain(operations)
        .chain(connected)
        .chain(others.map(String::from))
        .collect();
    let wanted = text.to_uppercase();
    if known
        .iter()
        .any(|name| name.to_uppercase().contains(&wanted))
    {
        return Ok(text.to_owned());
    }
    let remedy = suggest(&wanted, known.iter().map(String::as_str));
    Err(format!("no packet type contains `{text}`; {remedy}"))
}

fn numbers(text: &str) -> Result<RangeInclusive<u64>, String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let last = match last {
        "" => Ok(u64::MAX),
        last => last.parse(),
    };
    match (first.parse(), last) {
        (Ok(first), Ok(last)) if first <= last => Ok(first..=last),
        _ => Err("write a packet's number, or the first and the last as in 10-20".into()),
    }
}

fn field(text: &str) -> Result<(String, u64), String> {
    let Some((name, value)) = text.split_once('=') else {
        return Err("write the field's name and its value, as in msg_id=3".into());
    };
    let plain: String = match (name.find('['), name.find(']')) {
        (Some(from), Some(to)) if from < to => [&name[..from], &name[to + 1..]].concat(),
        _ => name.to_owned(),
    };
    if !field_names().any(|known| known == plain) {
        let mut known: Vec<String> = field_names().collect();
        known.sort_unstable();
        known.dedup();
        let remedy = suggest(&plain, known.iter().map(String::as_str));
        return Err(format!("no packet has a field `{plain}`; {remedy}"));
    }
    let number = match value.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => value.parse(),
    };
    match number {
        Ok(number) => Ok((name.to_owned(), number)),
        Err(_) => Err(format!("`{value}` is not a number")),
    }
}

pub(crate) fn run(arguments: &Show) -> Outcome {
    let (captures, is_one) = match captures(&arguments.captures) {
        Ok(captures) => captures,
        Err(problem) => return complain(problem, Outcome::Unfit),
    };
    let mut seen = Totals::default();
    let mut worst = Outcome::Passed;
    for path in &captures {
        let name = path.display().to_string();
        let name = (!is_one).then_some(name.as_str());
        let outcome = if path == Path::new("-") {
            let reader = Reader::new(io::stdin().lock(), "standard input");
            show_all(arguments, name, reader.map(Frames::new), &mut seen)
        } else {
            show_all(arguments, name, Frames::open(path), &mut seen)
        };
        worst = worst.and(outcome);
    }
    if seen.packets == 0 && worst == Outcome::Passed && !seen.is_closed {
        return nothing_shown(&arguments.hosts, &seen.hosts);
    }
    worst
}

/// Totals of all captures.
#[derive(Default)]
struct Totals {
    /// Packets that were shown.
    packets: u64,
    hosts: Vec<String>,
    /// Whether the reader of the output has exited.
    is_closed: bool,
}

/// Shows the packets of a capture, with its name if it is one of several.
fn show_all<R: Read, E: std::fmt::Display>(
    arguments: &Show,
    name: Option<&str>,
    frames: Result<Frames<R>, E>,
    seen: &mut Totals,
) -> Outcome {
    let mut frames = match frames {
        Ok(frames) => frames,
        Err(error) => return complain(error, Outcome::Unfit),
    };
    let filter = Filter {
        types: arguments.types.clone(),
        hosts: arguments.hosts.clone(),
        packets: arguments.packets.clone(),
        fields: arguments.fields.clone(),
    };
    let form = if arguments.json {
        Form::Json
    } else {
        Form::Text
    };
    let mut writer = io::BufWriter::new(io::stdout().lock());
    let shown = show(&mut frames, name, &filter, form, &mut writer);
    if form == Form::Json {
        // The JSON form has these lines among the packets.
        for damage in frames.damage() {
            let of = name.map_or_else(String::new, |name| format!("{name}: "));
            complain(format_args!("{of}damaged: {damage}"), Outcome::Passed);
        }
    }
    seen.hosts.append(&mut frames.interfaces());
    match shown.and_then(|shown| writer.flush().map(|()| shown).map_err(Into::into)) {
        Ok(packets) => {
            seen.packets += packets;
            Outcome::Passed
        }
        // The reader may have exited.
        Err(ShowError::Write(error)) => {
            output::fail(PROGRAM, &error);
            seen.is_closed = true;
            Outcome::Passed
        }
        Err(error) => complain(error, Outcome::Unfit),
    }
}

/// Reports why no packet is shown.
fn nothing_shown(wanted: &[String], hosts: &[String]) -> Outcome {
    if let Some(host) = wanted.iter().find(|host| !hosts.contains(host)) {
        let remedy = suggest(host, hosts.iter().map(String::as_str));
        let problem = format!("the capture has no host `{host}`; {remedy}");
        return complain(problem, Outcome::Unfit);
    }
    complain(
        "no packet is shown: there is none, or the options leave out all",
        Outcome::Passed,
    )
}
