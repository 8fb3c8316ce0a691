//! The link state of the device's port.

use std::fmt;
use std::str::FromStr;

/// The link state of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PortLink {
    /// Whether the link is down.
    pub is_down: bool,
    /// The link's speed.
    pub speed: LinkSpeed,
}

/// A link speed: lanes, and the rate of each. These are all that the kernel driver reports
/// (amzn-drivers `efa` 3.1.0, `efa_link_gbps_to_speed_and_width`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinkSpeed {
    /// Total of all lanes in Gbit/s.
    pub gbps: u16,
    /// The number of lanes.
    pub lanes: u8,
    /// The name of a lane's rate; empty for the slowest.
    pub rate: &'static str,
    /// `ibv_port_attr.active_speed`: the code of a lane's rate.
    pub rate_code: u8,
}

impl LinkSpeed {
    /// All speeds, from the slowest to the fastest.
    pub const ALL: [LinkSpeed; 9] = [
        LinkSpeed::of(25, 1, "EDR", 32),
        LinkSpeed::of(30, 12, "", 1),
        LinkSpeed::of(40, 4, "FDR10", 8),
        LinkSpeed::of(50, 1, "HDR", 64),
        LinkSpeed::of(60, 12, "DDR", 2),
        LinkSpeed::of(100, 4, "EDR", 32),
        LinkSpeed::of(120, 12, "FDR10", 8),
        LinkSpeed::of(200, 4, "HDR", 64),
        LinkSpeed::of(400, 8, "HDR", 64),
    ];

    const fn of(gbps: u16, lanes: u8, rate: &'static str, rate_code: u8) -> LinkSpeed {
        LinkSpeed {
            gbps,
            lanes,
            rate,
            rate_code,
        }
    }

    /// The speed with this many Gbit/s.
    pub fn of_gbps(gbps: u32) -> Option<LinkSpeed> {
        Self::ALL
            .into_iter()
            .find(|speed| u32::from(speed.gbps) == gbps)
    }

    /// `ibv_port_attr.active_width`: the code of the number of lanes.
    pub const fn width_code(self) -> u8 {
        match self.lanes {
            1 => 1,
            4 => 2,
            8 => 4,
            _ => 8,
        }
    }
}

impl Default for LinkSpeed {
    /// The driver's default if the device reports no speed: 100 Gbit/s.
    fn default() -> Self {
        LinkSpeed::of(100, 4, "EDR", 32)
    }
}

/// A speed that does not exist.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0} is not a link speed in Gbit/s: use one of 25, 30, 40, 50, 60, 100, 120, 200 and 400")]
pub struct NoSuchSpeed(pub String);

impl FromStr for LinkSpeed {
    type Err = NoSuchSpeed;

    /// Parses Gbit/s.
    fn from_str(text: &str) -> Result<Self, NoSuchSpeed> {
        let gbps = text.parse().ok().and_then(LinkSpeed::of_gbps);
        gbps.ok_or_else(|| NoSuchSpeed(text.to_owned()))
    }
}

impl fmt::Display for LinkSpeed {
    /// The format of the kernel's sysfs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LinkSpeed {
            gbps, lanes, rate, ..
        } = self;
        match rate.is_empty() {
            true => write!(f, "{gbps} Gb/sec ({lanes}X)"),
            false => write!(f, "{gbps} Gb/sec ({lanes}X {rate})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_are_lanes_times_rates() {
        for speed in LinkSpeed::ALL {
            // Mbit/s of a lane, by the code of its rate (`enum ib_port_speed` of the kernel).
            let lane = match speed.rate_code {
                1 => 2_500,
                2 => 5_000,
                8 => 10_000,
                32 => 25_000,
                64 => 50_000,
                other => panic!("rate {other}"),
            };
            let expected = u32::from(speed.gbps) * 1000;
            assert_eq!(u32::from(speed.lanes) * lane, expected, "{speed}");
            assert_eq!(speed.gbps.to_string().parse(), Ok(speed));
        }
        let widths = LinkSpeed::ALL.map(LinkSpeed::width_code);
        assert_eq!(widths, [1, 8, 2, 1, 8, 2, 8, 2, 4]);
        assert_eq!(LinkSpeed::of_gbps(100), Some(LinkSpeed::default()));
        assert_eq!(LinkSpeed::default().to_string(), "100 Gb/sec (4X EDR)");
        assert_eq!(LinkSpeed::ALL[1].to_string(), "30 Gb/sec (12X)");
    }

    #[test]
    fn unknown_speeds_are_refused_listing_the_known() {
        let error = "300".parse::<LinkSpeed>().unwrap_err().to_string();
        for speed in LinkSpeed::ALL {
            assert!(error.contains(&speed.gbps.to_string()), "{error}");
        }
        assert_eq!(LinkSpeed::of_gbps(65_536 + 25), None);
    }
}
