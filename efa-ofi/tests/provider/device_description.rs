//! The description of the device in an info, through the C interface.

use std::ffi::CStr;

use crate::common::c::*;
use crate::common::with_provider;

/// The name and the number of the device, and the largest packet.
fn of(info: *const fi_info) -> (String, String, usize) {
    // SAFETY: an info of this provider describes its device, with these texts.
    unsafe {
        let nic = &*(*info).nic;
        assert_eq!(nic.fid.fclass, FI_CLASS_NIC as usize);
        let text = |text| CStr::from_ptr(text).to_str().expect("ASCII").to_owned();
        let device = &*nic.device_attr;
        assert_eq!(text(device.vendor_id), "0x1d0f");
        assert_eq!((*nic.link_attr).state, FI_LINK_UP);
        (
            text(device.name),
            text(device.device_id),
            (*nic.link_attr).mtu,
        )
    }
}

#[test]
fn copies_of_an_info_describe_the_device_too() {
    with_provider(|libfabric| {
        let info = libfabric.info(|_| {}).expect("there is a device");
        let described = of(info);
        assert!(described.0.starts_with("rdmap"), "{described:?}");
        assert!(described.1.starts_with("0xefa"), "{described:?}");
        assert!(described.2 > 8000, "{described:?}");
        // SAFETY: the info is valid, and each list is freed once.
        let copy = unsafe { (libfabric.dupinfo)(info) };
        // SAFETY: likewise.
        unsafe {
            assert_ne!((*copy).nic, (*info).nic);
            (libfabric.freeinfo)(info);
        }
        assert_eq!(of(copy), described);
        // SAFETY: likewise.
        unsafe { (libfabric.freeinfo)(copy) };
    });
}

#[test]
fn the_description_in_words_has_an_end() {
    with_provider(|libfabric| {
        let info = libfabric.info(|_| {}).expect("there is a device");
        // SAFETY: the info is valid; each buffer has the length that the call gets, and contains a
        // text.
        unsafe {
            let fid = &raw const (*(*info).nic).fid;
            let tostr = (*(*fid).ops).tostr.expect("the tables are complete");
            let mut whole = [0_u8; 1024];
            whole[..2].copy_from_slice(b"> ");
            assert_eq!(tostr(fid, whole.as_mut_ptr().cast(), whole.len()), 0);
            let whole = CStr::from_bytes_until_nul(&whole)
                .expect("an end")
                .to_str()
                .unwrap();
            assert!(
                whole.starts_with("> ") && whole.contains("driver: efa"),
                "{whole}"
            );
            for room in [1, 2, 10, 100] {
                let mut part = [0xff_u8; 128];
                part[0] = 0;
                assert_eq!(tostr(fid, part.as_mut_ptr().cast(), room), 0);
                let text = CStr::from_bytes_until_nul(&part)
                    .expect("an end")
                    .to_bytes();
                assert_eq!(text, &whole.as_bytes()[2..][..room - 1]);
                assert!(part[room..].iter().all(|byte| *byte == 0xff));
            }
            (libfabric.freeinfo)(info);
        }
    });
}
