//! A program that uses the package `efa-emu` as well as the preloaded library: one process has two
//! copies of the same code.

use efa_device_model::fault::Fault;
use efa_shm::Fabric;
use efa_testing::workspace::efa_emu;

use crate::on_emulated_host;
use efa_testing::verbs::*;

#[test]
fn of_the_library_leave_the_device_alive() {
    on_emulated_host("efa2", || {
        let endpoint = Endpoint::new();
        let _pair = endpoint.srd(endpoint.cq(16), 0);
        let name = std::env::var("EFA_EMU_FABRIC").expect("set by `efa-emu run`");
        let own = std::process::id().to_string();
        let devices = || {
            let output = efa_emu(&["ps", "--fabric", &name]).output().unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            let lines = text.lines().map(|line| line.split_whitespace());
            lines
                .map(|words| words.skip(1).take(2).collect::<Vec<_>>() == [own.as_str(), "open"])
                .filter(|is_own| *is_own)
                .count()
        };
        assert_eq!(devices(), 1);
        let fabric = Fabric::open(&name).unwrap();
        let fault: Fault = r#"label = "x", when = { packet = "CTS" }, then = "hold""#
            .parse()
            .unwrap();
        fabric.arm(&fault).unwrap();
        assert_eq!(devices(), 1, "after a fault was armed");
        fabric.disarm(|_| true).unwrap();
        // The queue pair numbers of the two copies differ.
        let other = endpoint.srd(endpoint.cq(16), 0);
        assert_eq!(ibv_destroy_qp(other), 0);
        assert_eq!(devices(), 1);
    });
}
