//! Devices and network namespaces by the addresses that a packet has of them. They live long, so they are read when they are first seen and
//! again after a while; what is not one of them (TCP and UDP use `skb->dev` for other things) has no plausible namespace.

use kpat_guest::{Guest, Memory, Symbols};
use kpat_model::meta::Device;
use std::collections::HashMap;
use std::fmt::Write;
use std::time::{Duration, Instant};

/// How long what was read holds.
const FRESH: Duration = Duration::from_secs(1);
/// Addresses that are remembered.
const MOST: usize = 4096;
/// The smallest number of a network namespace, as for the kernel side (bpf/include/kernel.h).
const FIRST_NAMESPACE: u32 = 0xefff_fff9;

/// Where a packet is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Where {
    pub ifindex: u32,
    pub netns: u32,
    pub link_type: u16,
}

/// Where members are.
struct Shape {
    ifindex: u64,
    kind: u64,
    net: u64,
    name: u64,
    mtu: u64,
    address: u64,
    address_len: u64,
    inum: u64,
}

pub struct World {
    shape: Shape,
    known: HashMap<u64, (Instant, Option<Where>)>,
    spaces: HashMap<u64, (Instant, u32)>,
    /// By namespace and number.
    devices: HashMap<(u32, u32), Device>,
    fresh: Vec<Device>,
}

impl World {
    pub fn new(symbols: &Symbols) -> kpat_guest::Result<World> {
        let at = |name: &str| symbols.offset(&format!("net_device.{name}"));
        let shape = Shape {
            ifindex: at("ifindex")?,
            kind: at("type")?,
            net: at("nd_net.net")?,
            name: at("name")?,
            mtu: at("mtu")?,
            address: at("dev_addr")?,
            address_len: at("addr_len")?,
            inum: symbols.offset("net.ns.inum")?,
        };
        Ok(World {
            shape,
            known: HashMap::new(),
            spaces: HashMap::new(),
            devices: HashMap::new(),
            fresh: Vec::new(),
        })
    }

    /// Device and namespace of a packet: by its device or, where it has none, by its socket's namespace.
    pub fn locate(&mut self, guest: &Guest, dev: u64, sk_net: u64) -> Where {
        self.device(guest, dev)
            .unwrap_or_else(|| Where { netns: self.space(guest, sk_net), ..Where::default() })
    }

    /// `None`: no device is there.
    pub fn device(&mut self, guest: &Guest, dev: u64) -> Option<Where> {
        if !is_kernel(dev) {
            return None;
        }
        if let Some((when, place)) = self.known.get(&dev)
            && when.elapsed() < FRESH
        {
            return *place;
        }
        let place = self.read(guest.memory(), dev);
        if self.known.len() >= MOST {
            self.known.clear();
        }
        self.known.insert(dev, (Instant::now(), place));
        place
    }

    fn read(&mut self, memory: &Memory, dev: u64) -> Option<Where> {
        let s = &self.shape;
        let word = |offset: u64| memory.u32_at(dev.wrapping_add(offset)).ok();
        let pointer = |offset: u64| memory.u64_at(dev.wrapping_add(offset)).ok();
        let netns = namespace(memory, s.inum, pointer(s.net)?)?;
        let ifindex = word(s.ifindex).filter(|i| (1..1 << 24).contains(i))?;
        let link_type = word(s.kind)? as u16;
        let name = memory.string_at(dev.wrapping_add(s.name), 16).ok()?;
        let mut bytes = [0; 6];
        let six = word(s.address_len)? as u8 == 6;
        let mac = match pointer(s.address).filter(|_| six).map(|at| memory.read(at, &mut bytes)) {
            Some(Ok(())) => bytes.iter().enumerate().fold(String::new(), |mut t, (n, b)| {
                let _ = write!(t, "{}{b:02x}", if n == 0 { "" } else { ":" });
                t
            }),
            _ => String::new(),
        };
        let device = Device {
            netns,
            ifindex,
            name: String::from_utf8_lossy(&name).into_owned(),
            link_type,
            mac,
            mtu: word(s.mtu)?,
            ..Device::default()
        };
        if self.devices.len() < MOST && self.devices.get(&(netns, ifindex)) != Some(&device) {
            self.devices.insert((netns, ifindex), device.clone());
            self.fresh.push(device);
        }
        Some(Where { ifindex, netns, link_type })
    }

    fn space(&mut self, guest: &Guest, net: u64) -> u32 {
        if let Some((when, number)) = self.spaces.get(&net)
            && when.elapsed() < FRESH
        {
            return *number;
        }
        let number = namespace(guest.memory(), self.shape.inum, net).unwrap_or(0);
        if self.spaces.len() >= MOST {
            self.spaces.clear();
        }
        self.spaces.insert(net, (Instant::now(), number));
        number
    }

    /// Those that came since the last call.
    pub fn take_fresh(&mut self) -> Vec<Device> {
        std::mem::take(&mut self.fresh)
    }
}

fn namespace(memory: &Memory, inum: u64, net: u64) -> Option<u32> {
    let number = is_kernel(net).then(|| memory.u32_at(net.wrapping_add(inum)).ok())??;
    (number >= FIRST_NAMESPACE).then_some(number)
}

/// In the upper half.
pub fn is_kernel(address: u64) -> bool {
    address >> 63 == 1
}
