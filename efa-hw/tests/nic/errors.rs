//! Errors of work requests: the verb, the device's code and its meaning.

use super::*;

#[test]
fn errors_have_verb_and_device_code() {
    with_device(|device| {
        let (mut a, mut b) = (open(&device), open(&device));
        b.create_address_handle(a.address().gid).unwrap();
        let to = destination(&mut a, &b);
        let qpn = a.address().qpn;
        let one = |a: &mut HwNic, expected: (&str, Status, u32)| {
            let errors = a.take_errors();
            let found: Vec<_> = errors
                .iter()
                .map(|error| (error.verb, error.status().unwrap(), error.vendor_status))
                .collect();
            assert_eq!(found, [expected]);
            assert_eq!(errors[0].queue_pair, qpn);
            assert_eq!(errors[0].meaning(), expected.1.describe());
            assert!(a.take_errors().is_empty(), "they are taken once");
        };
        send(&mut a, to, b"no receive posted", None, 1);
        let completion = wait(&mut [&mut a, &mut b], 1)[0];
        expect_sent(&completion, 1, Status::RemoteRnr);
        one(&mut a, ("send", Status::RemoteRnr, 10));
        let nobody = Destination {
            qkey: Qkey(to.qkey.0 ^ 1),
            ..to
        };
        send(&mut a, nobody, b"x", None, 1);
        let completion = wait(&mut [&mut a, &mut b], 1)[0];
        expect_sent(&completion, 1, Status::RemoteBadDestQpn);
        one(&mut a, ("send", Status::RemoteBadDestQpn, 9));

        let caps = device.attributes().caps;
        if !caps.contains(DeviceCaps::RDMA_READ | DeviceCaps::RDMA_WRITE) {
            efa_testing::skip(format_args!(
                "{} lacks RDMA read and write ({caps:?})",
                device.name()
            ));
            return;
        }
        let local = a.allocate(64).unwrap();
        let region = a.register(local, Access::LOCAL_WRITE).unwrap();
        let rdma = RdmaRequest {
            destination: to,
            local,
            local_key: region.local_key,
            remote_address: local.address,
            remote_key: efa_core::nic::RemoteKey(0x00AB_CDEF),
            immediate: None,
            context: 2,
        };
        a.post_read(&rdma, Doorbell::Ring).unwrap();
        assert_eq!(
            wait(&mut [&mut a, &mut b], 1)[0].kind,
            CompletionKind::RdmaRead
        );
        one(&mut a, ("RDMA read", Status::RemoteBadAddress, 7));
        a.post_write(&rdma, Doorbell::Ring).unwrap();
        assert_eq!(
            wait(&mut [&mut a, &mut b], 1)[0].kind,
            CompletionKind::RdmaWrite
        );
        one(&mut a, ("RDMA write", Status::RemoteBadAddress, 7));
        // The errors are not read, so only the newest ones are kept.
        for context in 0..80 {
            a.post_write(&RdmaRequest { context, ..rdma }, Doorbell::Ring)
                .unwrap();
            wait(&mut [&mut a, &mut b], 1);
        }
        a.post_read(&rdma, Doorbell::Ring).unwrap();
        wait(&mut [&mut a, &mut b], 1);
        let kept: Vec<_> = a.take_errors().iter().map(|error| error.verb).collect();
        assert_eq!((kept.len(), kept[63]), (64, "RDMA read"));
    });
}
