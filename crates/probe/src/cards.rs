//! Cards that stamp what they receive: which do, and what their clocks show beside the boot clock.
//!
//! A card is queried, not configured: the program that needs its stamps (ptp4l, an application) has turned them on before recording begins. Knows nothing
//! of packets; relating a stamp to the boot clock is analysis.

use crate::sys;
use kpat_model::meta::{ClockAnchor, Device};
use kpat_model::{BootNs, CardReading};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

pub(crate) const SIOCETHTOOL: libc::c_ulong = 0x8946;
const SIOCGHWTSTAMP: libc::c_ulong = 0x89b1;
const ETHTOOL_GET_TS_INFO: u32 = 0x41;
const HWTSTAMP_FILTER_NONE: i32 = 0;
/// `_IOWR('=', 9, struct ptp_sys_offset_extended)`.
const PTP_SYS_OFFSET_EXTENDED: libc::c_ulong = 0xc4c0_3d09;
const MOST_SAMPLES: usize = 25;
/// Readings of which the tightest counts.
const SAMPLES: u32 = 5;
/// Between two readings of a clock. What a clock does between them is not seen: a servo adjusts it some times a second.
const EVERY: Duration = Duration::from_millis(500);

/// An ioctl on a device by its name, in the namespace of the socket. `data`: what the kernel reads and writes.
///
/// *Errors*: of the kernel; `InvalidInput` for a name that no device can have.
pub(crate) fn ask_device(
    socket: BorrowedFd<'_>,
    request: libc::c_ulong,
    device: &str,
    data: &mut [u32],
) -> io::Result<()> {
    // SAFETY: ifreq is plain data, for which zeros are a value.
    let mut ifreq: libc::ifreq = unsafe { std::mem::zeroed() };
    if device.len() >= ifreq.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in ifreq.ifr_name.iter_mut().zip(device.bytes()) {
        *to = from as libc::c_char;
    }
    ifreq.ifr_ifru.ifru_data = data.as_mut_ptr().cast();
    // SAFETY: the callers give as many words as the structure of their request has, and they outlive the call.
    let r = unsafe { libc::ioctl(socket.as_raw_fd(), request as _, &mut ifreq) };
    if r == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Number of the clock of a card that stamps some of what it receives, now.
pub(crate) fn stamping_clock(socket: BorrowedFd<'_>, device: &str) -> Option<u32> {
    let mut config = [0u32; 3]; // struct hwtstamp_config: flags, tx_type, rx_filter
    ask_device(socket, SIOCGHWTSTAMP, device, &mut config).ok()?;
    if config[2] as i32 == HWTSTAMP_FILTER_NONE {
        return None;
    }
    let mut info = [0u32; 11]; // struct ethtool_ts_info: cmd, so_timestamping, phc_index ...
    info[0] = ETHTOOL_GET_TS_INFO;
    ask_device(socket, SIOCETHTOOL, device, &mut info).ok()?;
    u32::try_from(info[2] as i32).ok()
}

/// The clock of a card that stamps, open.
struct Clock {
    netns: u32,
    ifindex: u32,
    text: String,
    file: File,
    /// The driver can say between which two moments the clock was read.
    extended: bool,
}

/// The clocks of all cards that stamp.
#[derive(Default)]
pub(crate) struct Clocks {
    clocks: Vec<Clock>,
    read: Option<Instant>,
}

impl Clocks {
    /// Opens the clocks of these devices. `hindered` is called for each that cannot be read: its stamps will be in the log, without a meaning.
    pub fn open(devices: &[Device], hindered: &mut dyn FnMut(String)) -> Clocks {
        let mut clocks = Vec::new();
        for d in devices {
            let Some(number) = d.phc else { continue };
            let path = format!("/dev/ptp{number}");
            match File::open(&path) {
                Ok(file) => {
                    let text = format!("{path} of {}", d.name);
                    clocks.push(Clock { netns: d.netns, ifindex: d.ifindex, text, file, extended: true });
                }
                Err(e) => hindered(format!(
                    "{} stamps what it receives, but its clock cannot be read, so the stamps have no time here: {path}: {e}",
                    d.name
                )),
            }
        }
        Clocks { clocks, read: None }
    }

    /// Reads them all, if it is time to or `anyway`.
    pub fn read(&mut self, anyway: bool, give: &mut dyn FnMut(&CardReading)) {
        if self.clocks.is_empty() || (!anyway && self.read.is_some_and(|at| at.elapsed() < EVERY)) {
            return;
        }
        self.read = Some(Instant::now());
        for clock in &mut self.clocks {
            if let Some(r) = clock.read() {
                give(&CardReading {
                    at: r.at,
                    netns: clock.netns,
                    ifindex: clock.ifindex,
                    card_ns: r.card_ns,
                    bound_ns: r.bound_ns.clamp(0, i64::from(u32::MAX)) as u32,
                    clock: clock.text.clone(),
                });
            }
        }
    }
}

/// What a clock showed at a moment, and how far that moment may be off.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Reading {
    at: BootNs,
    card_ns: i64,
    bound_ns: i64,
}

/// `struct ptp_clock_time`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct PtpTime {
    sec: i64,
    nsec: u32,
    reserved: u32,
}

impl PtpTime {
    fn ns(self) -> i64 {
        self.sec.saturating_mul(1_000_000_000).saturating_add(i64::from(self.nsec))
    }
}

/// `struct ptp_sys_offset_extended`; without a clock named (word 1 is 0) the system's times are CLOCK_REALTIME.
#[repr(C)]
struct Extended {
    samples: u32,
    rest: [u32; 3],
    times: [[PtpTime; 3]; MOST_SAMPLES],
}

impl Clock {
    /// The tightest of a few readings.
    fn read(&mut self) -> Option<Reading> {
        if self.extended {
            match self.read_extended() {
                Ok(found) => return found,
                Err(_) => self.extended = false,
            }
        }
        (0..SAMPLES).filter_map(|_| self.read_between()).min_by_key(|r| r.bound_ns)
    }

    /// The driver reads the wall clock right around the one access that latches its own.
    ///
    /// *Errors*: this driver or kernel cannot.
    fn read_extended(&self) -> io::Result<Option<Reading>> {
        let mut x =
            Extended { samples: SAMPLES, rest: [0; 3], times: [[PtpTime::default(); 3]; MOST_SAMPLES] };
        let before = sys::clock_anchor();
        // SAFETY: the request names a structure of this size, which is ours and outlives the call.
        let r = unsafe { libc::ioctl(self.file.as_raw_fd(), PTP_SYS_OFFSET_EXTENDED as _, &raw mut x) };
        if r != 0 {
            return Err(io::Error::last_os_error());
        }
        let after = sys::clock_anchor();
        let times = x.times[..SAMPLES as usize].iter().map(|t| t.map(PtpTime::ns));
        Ok(by_wall_clock(times, &before, &after))
    }

    /// Any clock: between two looks at the boot clock.
    fn read_between(&self) -> Option<Reading> {
        const CLOCKFD: i32 = 3;
        let id = (!self.file.as_raw_fd() << 3) | CLOCKFD;
        let before = sys::boot_now().0;
        let card = sys::clock_now(id)?;
        let after = sys::boot_now().0;
        let half = (after - before) / 2;
        Some(Reading { at: BootNs(before + half), card_ns: card, bound_ns: half + 1 })
    }
}

/// Of readings (wall clock before, card, wall clock after) the tightest, by the boot clock. `None` where the wall clock was set meanwhile.
fn by_wall_clock(
    times: impl Iterator<Item = [i64; 3]>,
    before: &ClockAnchor,
    after: &ClockAnchor,
) -> Option<Reading> {
    let ahead = |a: &ClockAnchor| a.wall.0 - a.boot.0;
    let uncertain = before.uncertainty_ns + after.uncertainty_ns;
    if (ahead(before) - ahead(after)).abs() > uncertain {
        return None;
    }
    let [from, card_ns, to] = times.filter(|t| t[0] <= t[2]).min_by_key(|t| t[2] - t[0])?;
    let half = (to - from) / 2;
    let anchor = if before.uncertainty_ns <= after.uncertainty_ns { before } else { after };
    let at = BootNs(from + half - ahead(anchor));
    Some(Reading { at, card_ns, bound_ns: half + 1 + anchor.uncertainty_ns })
}

#[cfg(test)]
mod tests {
    use super::*;
    use kpat_model::WallNs;

    fn anchor(boot: i64, wall: i64, uncertainty_ns: i64) -> ClockAnchor {
        ClockAnchor { boot: BootNs(boot), wall: WallNs(wall), uncertainty_ns }
    }

    #[test]
    fn the_tightest_reading_counts_with_the_wall_clocks_own_uncertainty() {
        let times = [[1_000_500, 77, 1_000_900], [1_001_000, 78, 1_001_100]];
        let (a, b) = (anchor(100, 1_000_100, 30), anchor(2_000, 1_002_005, 40));
        let found = by_wall_clock(times.into_iter(), &a, &b).unwrap();
        assert_eq!(found, Reading { at: BootNs(1_050), card_ns: 78, bound_ns: 81 });
        let set = anchor(2_000, 1_002_100, 40);
        assert_eq!(by_wall_clock(times.into_iter(), &a, &set), None, "the wall clock was set meanwhile");
        assert_eq!(by_wall_clock([[9, 1, 8]].into_iter(), &a, &b), None);
    }

    #[test]
    fn the_layout_is_the_kernels() {
        assert_eq!(size_of::<Extended>(), (PTP_SYS_OFFSET_EXTENDED as usize >> 16) & 0x3fff);
        assert_eq!(size_of::<PtpTime>(), 16);
    }

    #[test]
    fn a_virtual_device_does_not_stamp() {
        use std::os::fd::AsFd;
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        assert_eq!(stamping_clock(socket.as_fd(), "lo"), None);
        assert_eq!(stamping_clock(socket.as_fd(), "a-name-that-is-too-long"), None);
    }
}
