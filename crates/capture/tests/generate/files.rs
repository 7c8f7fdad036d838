//! pcap and pcapng, in both byte orders and every resolution.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    Little,
    Big,
}

pub const ORDERS: [Order; 2] = [Order::Little, Order::Big];

impl Order {
    pub fn u16(self, v: u16) -> [u8; 2] {
        if self == Order::Little { v.to_le_bytes() } else { v.to_be_bytes() }
    }
    pub fn u32(self, v: u32) -> [u8; 4] {
        if self == Order::Little { v.to_le_bytes() } else { v.to_be_bytes() }
    }
    pub fn u64(self, v: u64) -> [u8; 8] {
        if self == Order::Little { v.to_le_bytes() } else { v.to_be_bytes() }
    }
}

pub const MICRO: u32 = 0xa1b2_c3d4;
pub const NANO: u32 = 0xa1b2_3c4d;
pub const MODIFIED: u32 = 0xa1b2_cd34;

/// A classic file; each frame is (nanoseconds, length on the wire, bytes).
pub fn pcap(order: Order, magic: u32, link_type: u32, frames: &[(u64, u32, Vec<u8>)]) -> Vec<u8> {
    let mut out = order.u32(magic).to_vec();
    out.extend([order.u16(2), order.u16(4)].concat());
    out.extend([order.u32(0), order.u32(0), order.u32(262_144), order.u32(link_type)].concat());
    for (ns, len_wire, data) in frames {
        let unit = if magic == NANO { 1 } else { 1000 };
        let fraction = (ns % 1_000_000_000 / unit) as u32;
        out.extend([order.u32((ns / 1_000_000_000) as u32), order.u32(fraction)].concat());
        out.extend([order.u32(data.len() as u32), order.u32(*len_wire)].concat());
        if magic == MODIFIED {
            out.extend([0; 8]);
        }
        out.extend(data);
    }
    out
}

/// A pcapng file in the making.
pub struct Ng {
    pub order: Order,
    pub out: Vec<u8>,
}

pub type Option_<'a> = (u16, &'a [u8]);

impl Ng {
    /// Starts with a section header.
    pub fn new(order: Order) -> Ng {
        let mut ng = Ng { order, out: Vec::new() };
        ng.section(order);
        ng
    }

    pub fn section(&mut self, order: Order) {
        self.order = order;
        let body = [&order.u32(0x1a2b_3c4d)[..], &order.u16(1), &order.u16(0), &order.u64(u64::MAX)].concat();
        self.block(0x0a0d_0d0a, &body, &[(3, b"TestOS 1"), (4, b"generate")]);
    }

    pub fn interface(&mut self, link_type: u16, snaplen: u32, options: &[Option_]) {
        let o = self.order;
        self.block(1, &[&o.u16(link_type)[..], &o.u16(0), &o.u32(snaplen)].concat(), options);
    }

    pub fn frame(&mut self, interface: u32, ts: u64, len_wire: u32, data: &[u8], options: &[Option_]) {
        let o = self.order;
        let mut body =
            [interface, (ts >> 32) as u32, ts as u32, data.len() as u32, len_wire].map(|v| o.u32(v)).concat();
        body.extend(data);
        self.block(6, &body, options);
    }

    pub fn simple(&mut self, len_wire: u32, data: &[u8]) {
        self.block(3, &[&self.order.u32(len_wire)[..], data].concat(), &[]);
    }

    /// The obsolete packet block.
    pub fn old(&mut self, interface: u16, ts: u64, len_wire: u32, data: &[u8]) {
        let o = self.order;
        let mut body = [o.u16(interface), o.u16(0)].concat();
        body.extend([(ts >> 32) as u32, ts as u32, data.len() as u32, len_wire].map(|v| o.u32(v)).concat());
        body.extend(data);
        self.block(2, &body, &[]);
    }

    pub fn statistics(&mut self, interface: u32, dropped: u64) {
        let o = self.order;
        let dropped = o.u64(dropped);
        self.block(5, &[o.u32(interface), o.u32(0), o.u32(0)].concat(), &[(5, &dropped)]);
    }

    pub fn block(&mut self, kind: u32, body: &[u8], options: &[Option_]) {
        let o = self.order;
        let mut body = body.to_vec();
        body.resize(body.len().next_multiple_of(4), 0);
        for (code, value) in options {
            body.extend([o.u16(*code), o.u16(value.len() as u16)].concat());
            body.extend(*value);
            body.resize(body.len().next_multiple_of(4), 0);
        }
        if !options.is_empty() {
            body.extend([0; 4]);
        }
        let len = o.u32(body.len() as u32 + 12);
        self.out.extend([&o.u32(kind)[..], &len, &body, &len].concat());
    }
}
