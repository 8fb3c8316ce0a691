//! A cell's scenario, as TOML text.

use std::fmt::Write as _;

use super::Initiator;
use super::release::{Fetched, Release};
use super::subprotocol::{Operations, Subprotocol};

/// The name of the engine's endpoint and host.
pub(super) const ENGINE: &str = "engine";
/// The name of the stock endpoint and its host.
pub(super) const STOCK: &str = "stock";

/// Writes the scenario.
pub(super) fn write(
    release: &Release,
    fetched: &Fetched,
    subprotocol: &Subprotocol,
    initiator: Initiator,
) -> String {
    let (first, second) = match initiator {
        Initiator::Engine => (ENGINE, STOCK),
        Initiator::Stock => (STOCK, ENGINE),
    };
    let Subprotocol { name, profile, .. } = *subprotocol;
    let what = format!("{name}: {first} to {second}, libfabric {}", release.name);
    let mut script = Script::new(&what, first, second);
    let capabilities = match subprotocol.operations {
        Operations::Messages { .. } => r#"["msg", "tagged", "source"]"#,
        Operations::Write { .. } | Operations::Read { .. } => r#"["msg", "rma", "source"]"#,
        Operations::Atomic(_) => r#"["msg", "rma", "atomic", "source"]"#,
    };
    let unsolicited = subprotocol.engine_unsolicited(release);
    let mut settings = vec![unsolicited_write_recv(unsolicited)];
    settings.extend(subprotocol.settings);
    script.engine(ENGINE, profile, capabilities, &settings);
    let stock = (release, fetched);
    let environment = subprotocol.environment;
    let register = match subprotocol.register_local {
        true => REGISTERED,
        false => "",
    };
    script.stock(STOCK, stock, profile, capabilities, environment, register);
    script.greet();
    match subprotocol.operations {
        Operations::Messages {
            length,
            delivery_complete,
        } => script.messages(length, delivery_complete),
        Operations::Write {
            length,
            delivery_complete,
            data,
        } => script.write(length, delivery_complete, data),
        Operations::Read { length } => script.read(length),
        Operations::Atomic(call) => script.atomic(call),
    }
    script.finish()
}

/// The key of endpoints whose application registers its memory.
pub(super) const REGISTERED: &str = "register_local = true";

/// The setting of the engine's device as a key of the scenario.
pub(super) fn unsolicited_write_recv(on: bool) -> &'static str {
    if on {
        "unsolicited_write_recv = true"
    } else {
        "unsolicited_write_recv = false"
    }
}

/// A scenario under construction: `first` starts operations with `second`.
pub(super) struct Script {
    text: String,
    first: &'static str,
    second: &'static str,
}

impl Script {
    pub(super) fn new(description: &str, first: &'static str, second: &'static str) -> Self {
        Script {
            text: format!("description = {description:?}\nspec = []\n"),
            first,
            second,
        }
    }

    /// The scenario.
    pub(super) fn finish(self) -> String {
        self.text
    }

    fn line(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }

    /// The engine's endpoint.
    pub(super) fn engine(
        &mut self,
        name: &str,
        profile: &str,
        capabilities: &str,
        settings: &[&str],
    ) {
        let settings = settings.join(", ");
        self.line(&format!(
            r#"
[[endpoint]]
name = "{name}"
software = "core"
profile = "{profile}"
capabilities = {capabilities}
settings = {{ {settings} }}"#
        ));
    }

    /// A stock endpoint. `more` are further keys.
    pub(super) fn stock(
        &mut self,
        name: &str,
        (release, fetched): (&Release, &Fetched),
        profile: &str,
        capabilities: &str,
        variables: &[(&str, &str)],
        more: &str,
    ) {
        let mut environment =
            String::from(r#"FI_PROVIDER = "efa", FI_EFA_ENABLE_SHM_TRANSFER = "0""#);
        // Writing to a string cannot fail.
        for (variable, value) in variables {
            let _ = write!(environment, r#", {variable} = "{value}""#);
        }
        if let Some(providers) = &fetched.providers {
            let _ = write!(
                environment,
                ", FI_PROVIDER_PATH = {:?}",
                providers.display().to_string()
            );
        }
        let version = release.version;
        self.line(&format!(
            r#"
[[endpoint]]
name = "{name}"
software = "libfabric"
version = "{version}"
profile = "{profile}"
capabilities = {capabilities}
environment = {{ {environment} }}
{more}"#
        ));
    }

    /// A step; `keys` without `do` and `at`.
    pub(super) fn step(&mut self, at: &str, kind: &str, keys: &str) {
        self.line(&format!(
            "\n[[step]]\ndo = \"{kind}\"\nat = \"{at}\"\n{keys}"
        ));
    }

    pub(super) fn wait(&mut self, operations: &str) {
        self.line(&format!("\n[[step]]\ndo = \"wait\"\nfor = [{operations}]"));
    }

    pub(super) fn settle(&mut self) {
        self.line("\n[[step]]\ndo = \"settle\"");
    }

    /// A short message, after which both sides have each other's HANDSHAKE.
    fn greet(&mut self) {
        let (first, second) = (self.first, self.second);
        self.step(
            second,
            "recv",
            "id = \"hello-arrives\"\nlength = 8\nexpect = { message = \"hello\" }",
        );
        self.step(
            first,
            "send",
            &format!("id = \"hello\"\nto = \"{second}\"\nlength = 8"),
        );
        self.wait(r#""hello", "hello-arrives""#);
        self.settle();
    }

    fn messages(&mut self, length: usize, delivery_complete: bool) {
        let (first, second) = (self.first, self.second);
        let suffix = if delivery_complete { "-dc" } else { "" };
        for (number, (tagged, expected)) in
            [(false, true), (true, true), (false, false), (true, false)]
                .into_iter()
                .enumerate()
        {
            let (t, tag) = if tagged {
                ("t", format!("\ntag = {}", 77 + number))
            } else {
                ("", String::new())
            };
            let id = format!("message-{number}");
            let receive = format!(
                "id = \"{id}-arrives\"\nlength = {length}{tag}\nexpect = {{ message = \"{id}\" }}"
            );
            if expected {
                self.step(second, &format!("{t}recv"), &receive);
            }
            self.step(
                first,
                &format!("{t}send{suffix}"),
                &format!("id = \"{id}\"\nto = \"{second}\"\nlength = {length}{tag}"),
            );
            if !expected {
                self.settle();
                self.step(second, &format!("{t}recv"), &receive);
            }
            self.wait(&format!(r#""{id}", "{id}-arrives""#));
        }
        self.settle();
    }

    pub(super) fn target(&mut self, length: usize) {
        self.step(
            self.second,
            "register",
            &format!(
                "id = \"target\"\nlength = {length}\nseed = 1000\naccess = [\"remote-read\", \
                 \"remote-write\"]"
            ),
        );
    }

    fn found(&mut self, message: &str, offset: usize) {
        self.step(
            self.second,
            "check",
            &format!("region = \"target\"\noffset = {offset}\nmessage = \"{message}\""),
        );
    }

    pub(super) fn write(&mut self, length: usize, delivery_complete: bool, data: bool) {
        let (first, second) = (self.first, self.second);
        let kind = if delivery_complete {
            "write-dc"
        } else {
            "write"
        };
        let data = if data { "\ndata = 0x12345678" } else { "" };
        self.target(2 * length);
        for (id, offset) in [("lower", 0), ("upper", length)] {
            self.step(
                first,
                kind,
                &format!(
                    "id = \"{id}\"\nto = \"{second}\"\nregion = \"target\"\noffset = \
                     {offset}\nlength = {length}{data}"
                ),
            );
            self.wait(&format!(r#""{id}""#));
        }
        // Gives the responder progress, so that its completions come.
        self.settle();
        self.found("lower", 0);
        self.found("upper", length);
    }

    fn read(&mut self, length: usize) {
        let (first, second) = (self.first, self.second);
        self.target(length);
        for id in ["once", "again"] {
            self.step(
                first,
                "read",
                &format!(
                    "id = \"{id}\"\nfrom = \"{second}\"\nregion = \"target\"\nlength = \
                     {length}\nexpect = {{ message = \"target\" }}"
                ),
            );
            self.wait(&format!(r#""{id}""#));
        }
        self.settle();
    }

    /// Atomics whose results are whole messages: both the written and the earlier elements.
    fn atomic(&mut self, call: &str) {
        const LENGTH: usize = 256;
        let (first, second) = (self.first, self.second);
        self.target(LENGTH);
        let how = match call {
            "compare-atomic" => "comparand = 1000",
            _ => "op = \"write\"",
        };
        let expect = match call {
            "fetch-atomic" | "compare-atomic" => "\nexpect = { message = \"target\" }",
            _ => "",
        };
        self.step(
            first,
            call,
            &format!(
                "id = \"new\"\nto = \"{second}\"\nregion = \"target\"\nlength = \
                 {LENGTH}\n{how}{expect}"
            ),
        );
        self.wait(r#""new""#);
        self.settle();
        self.found("new", 0);
    }
}
