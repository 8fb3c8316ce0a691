//! EC2 instance types: the one of this machine, and its EFA devices.

use super::finding::Finding;
use super::machine::Machine;
use super::metadata::{Metadata, MetadataError};

/// The features of an instance type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Instance {
    /// The type, or a family including the dot after it.
    pub(super) name: &'static str,
    /// The largest number of EFA devices; `None` if only some sizes of a family have any, or if it
    /// is unknown.
    pub(super) devices: Option<u32>,
    /// The part id of the devices, if a device's attributes were published.
    pub(super) part_id: Option<u32>,
    pub(super) rdma_read: Option<bool>,
    pub(super) rdma_write: Option<bool>,
    pub(super) source: &'static str,
}

/// The list of instance types in the EC2 user guide's chapter on EFA.
const GUIDE: &str = "EC2 user guide, \"Elastic Fabric Adapter\"";
/// This page lists the generations of the Nitro system with RDMA read and write.
const NITRO_4: &str =
    "EC2 user guide: RDMA read from Nitro 4 on, RDMA write on most of these; to be confirmed";

const fn unknown(name: &'static str) -> Instance {
    Instance {
        name,
        devices: None,
        part_id: None,
        rdma_read: None,
        rdma_write: None,
        source: GUIDE,
    }
}

/// The types with known features. `docs/hardware-checklist.md` asks users for the others.
pub(super) const INSTANCES: [Instance; 14] = [
    Instance {
        devices: Some(1),
        part_id: Some(0xefa0),
        source: "a published ibv_devinfo of c5n.9xlarge: vendor_part_id 61344, hw_ver 0xEFA0",
        ..unknown("c5n.")
    },
    Instance {
        devices: Some(4),
        part_id: Some(0xefa0),
        rdma_read: Some(true),
        rdma_write: Some(false),
        source: "a published lspci (aws-ofi-nccl issue 64); RDMA write from Nitro 4 on",
        ..unknown("p4d.24xlarge")
    },
    Instance {
        devices: Some(4),
        rdma_read: Some(true),
        rdma_write: Some(false),
        source: "as p4d.24xlarge; to be confirmed",
        ..unknown("p4de.24xlarge")
    },
    Instance {
        devices: Some(32),
        rdma_read: Some(true),
        rdma_write: Some(true),
        source: NITRO_4,
        ..unknown("p5.48xlarge")
    },
    Instance {
        devices: Some(32),
        rdma_read: Some(true),
        rdma_write: Some(true),
        source: NITRO_4,
        ..unknown("p5e.48xlarge")
    },
    Instance {
        devices: Some(16),
        rdma_read: Some(true),
        rdma_write: Some(true),
        source: NITRO_4,
        ..unknown("p5en.48xlarge")
    },
    unknown("p3dn."),
    unknown("g4dn."),
    unknown("i3en."),
    unknown("inf1."),
    unknown("m5n."),
    unknown("m5dn."),
    unknown("r5n."),
    unknown("r5dn."),
];

/// Reports the type of the instance. Returns its known features.
pub(super) fn examine(
    machine: &Machine,
    metadata: Option<&Result<Metadata, MetadataError>>,
    findings: &mut Vec<Finding>,
) -> Option<&'static Instance> {
    if !machine.is_ec2() {
        let vendor = machine.text("/sys/devices/virtual/dmi/id/sys_vendor");
        let value = match vendor {
            Some(vendor) => {
                format!("not an EC2 instance: the vendor in the firmware is `{vendor}`")
            }
            None => "not an EC2 instance, as far as can be seen: there is no DMI table".to_owned(),
        };
        findings.push(Finding::note("machine", value));
        return None;
    }
    let told = metadata.and_then(|answer| Some(answer.as_ref().ok()?.instance_type.clone()));
    // Virtual machines before Nitro do not report an instance type.
    let product = machine.text("/sys/devices/virtual/dmi/id/product_name");
    let Some(name) = told.or(product.filter(|name| name.contains('.'))) else {
        let finding = Finding::note("machine", "an EC2 instance of unknown type");
        findings.push(finding.remedy("let the instance metadata service answer (IMDSv2)"));
        return None;
    };
    let known = INSTANCES.iter().find(|known| {
        name == known.name || (known.name.ends_with('.') && name.starts_with(known.name))
    });
    findings.push(match known {
        Some(known) => Finding::ok("machine", format!("{name} ({})", known.source)),
        None => Finding::note(
            "machine",
            format!("{name}: the devices of this type are not known"),
        ),
    });
    known
}
