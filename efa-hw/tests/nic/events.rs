//! The `tracing` events of devices, queue pairs and failed requests.

use super::*;
use efa_hw::DeviceName;
use efa_testing::events::Events;

#[test]
fn devices_queue_pairs_and_errors_are_shown() {
    with_device(|device| {
        let mut qpns = Vec::new();
        let events = Events::of(|| {
            let name = DeviceName::Named(device.name().to_owned());
            let device = HwDevice::open(&name).expect("it is open already");
            let (mut a, mut b) = (open(&device), open(&device));
            qpns.extend([a.address().qpn, b.address().qpn]);
            b.create_address_handle(a.address().gid).unwrap();
            let to = destination(&mut a, &b);
            send(&mut a, to, b"no receive posted", None, 1);
            let completion = wait(&mut [&mut a, &mut b], 1)[0];
            expect_sent(&completion, 1, Status::RemoteRnr);
            let nowhere = efa_core::address::Gid([0; 16]);
            a.create_address_handle(nowhere).unwrap_err();
        });
        let gid = format!("gid={}", device.gid());
        let name = format!("device=\"{}\"", device.name());
        events.once(&["INFO", "device opened", &name, &gid]);
        let [sender, receiver] = [qpns[0], qpns[1]].map(|qpn| format!(" qpn={qpn} "));
        for qpn in [&sender, &receiver] {
            events.once(&["INFO", "queue pair ready to send", &gid, qpn, "service=Srd"]);
            let destroyed = format!("queue pair destroyed{}", qpn.trim_end());
            let lines = events.with(&["DEBUG"]);
            assert!(
                lines.iter().any(|line| line.ends_with(&destroyed)),
                "{lines:?}"
            );
        }
        events.once(&[
            "DEBUG",
            "completion with an error",
            &sender,
            "operation=\"send\" status=RemoteRnr vendor_status=10",
        ]);
        events.once(&["DEBUG", "request refused call=\"ibv_create_ah\" errno=22"]);
    });
}
