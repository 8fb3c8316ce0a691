//! Queue pairs for datagrams.

use super::*;

/// The bytes of the header before an arrived datagram.
const HEADER: usize = 40;

#[test]
fn datagrams_arrive_scattered_behind_their_header() {
    with_device(|device| {
        let config = DomainConfig { packet_buffers: 4 };
        let queue_pair = QueuePairConfig {
            qkey: Some(Qkey(0)),
            ..CONFIG
        };
        let mut domain = device.open_domain(&config).unwrap();
        let queues = [(); 2].map(|()| domain.create_completion_queue(16).unwrap());
        let [mut from, mut to] = queues.map(|queue| {
            let pair = domain.create_datagram_queue_pair(queue, &queue_pair);
            pair.unwrap()
        });
        let memory = domain.allocate(100).unwrap();
        let region = domain.register(memory, Access::LOCAL_WRITE).unwrap();
        let piece = |offset: usize, length| {
            let slice = UserSlice::new(memory.address + offset as u64, length);
            (slice, region.local_key)
        };
        let pieces = [piece(0, HEADER + 3), piece(60, 40)];
        to.post_scattered_recv(&mut domain, &pieces, 5).unwrap();
        let many = [piece(0, 8); 5];
        let refused = to.post_scattered_recv(&mut domain, &many, 6);
        assert!(
            matches!(refused, Err(NicError::Invalid { .. })),
            "{refused:?}"
        );

        let ahn = domain.create_address_handle(to.address().gid).unwrap();
        let buffer = domain.acquire_buffer().unwrap();
        domain.buffer_mut(buffer)[..8].copy_from_slice(b"datagram");
        let request = SendRequest {
            immediate: Some(9),
            ..packet(Destination::new(ahn, to.address()), buffer, 8, 7)
        };
        from.post_send(&mut domain, &request, Doorbell::Ring)
            .unwrap();
        let sent = one_completion(&mut domain, queues[0]);
        assert_eq!((sent.context, sent.status), (7, Status::Ok));
        let received = one_completion(&mut domain, queues[1]);
        assert_eq!((received.context, received.status), (5, Status::Ok));
        let source = Source {
            ahn: Some(ahn),
            qpn: from.address().qpn,
            gid: None,
        };
        let kind = CompletionKind::RecvUser {
            length: HEADER + 8,
            source,
            immediate: Some(9),
        };
        assert_eq!(received.kind, kind);
        let bytes = domain.read(memory).unwrap();
        assert_eq!(
            (&bytes[HEADER..HEADER + 3], &bytes[60..65]),
            (&b"dat"[..], &b"agram"[..])
        );

        // Other calls require SRD queue pairs.
        let access = RdmaRequest {
            destination: Destination::new(ahn, to.address()),
            local: memory,
            local_key: LocalKey(0),
            remote_address: 0,
            remote_key: efa_core::nic::RemoteKey(0),
            immediate: None,
            context: 0,
        };
        let read = from.post_read(&mut domain, &access, Doorbell::Ring);
        assert_eq!(read, Err(NicError::Unsupported("RDMA read")));
        let write = from.post_write(&mut domain, &access, Doorbell::Ring);
        assert_eq!(write, Err(NicError::Unsupported("RDMA write")));
        from.close(&mut domain);
        to.close(&mut domain);
    });
}
