//! The colours of pictures, each by a name, for light and for dark pages. Pictures name a class or a variable and no colour.

use kpat_query::app::Held;
use kpat_query::phases::Phase;

/// Colours and text of every picture.
pub const BASE: &str = "
svg.kpat { --ink: #1b1f24; --faint: #59636e; --page: #ffffff; --line: #d1d9e0; font: 13px system-ui, sans-serif; background: var(--page); }
svg.kpat text { fill: var(--ink); }
svg.kpat .faint { fill: var(--faint); }
svg.kpat .head { font-size: 16px; font-weight: 600; }
@media (prefers-color-scheme: dark) {
  svg.kpat { --ink: #e6edf3; --faint: #9198a1; --page: #0d1117; --line: #3d444d; }
}
";

/// Of flame graphs.
pub const FLAME: &str = "
svg.kpat { --f-user: #e8b04a; --f-kernel: #d9705f; --f-served: #5f9cee; --f-other: #a3acba; }
svg.kpat rect.f { stroke: var(--page); stroke-width: .5; }
svg.kpat rect.user { fill: var(--f-user); } svg.kpat rect.kernel { fill: var(--f-kernel); } svg.kpat rect.served { fill: var(--f-served); }
svg.kpat rect.other { fill: var(--f-other); }
svg.kpat text.f { fill: #111111; font-size: 11px; pointer-events: none; }
";

/// Of phases. Layers have the colours of the page of `kpat view` (ui/src/app/app.css).
pub const PHASES: &str = "
svg.kpat { --l-driver: #7c8798; --l-link: #3b7dd8; --l-network: #1c9a76; --l-transport: #8a5bd6; --l-socket: #d08a1d; --l-other: #a3acba; }
svg.kpat .phase, svg.kpat .in { font-weight: 600; }
svg.kpat text.in { fill: #111111; }
svg.kpat text.in.l-transport { fill: #ffffff; }
svg.kpat .track { fill: var(--line); opacity: .45; }
svg.kpat rect.p { stroke: var(--page); stroke-width: 1; }
svg.kpat rect.l-driver { fill: var(--l-driver); } svg.kpat rect.l-link { fill: var(--l-link); } svg.kpat rect.l-network { fill: var(--l-network); }
svg.kpat rect.l-transport { fill: var(--l-transport); } svg.kpat rect.l-socket { fill: var(--l-socket); } svg.kpat rect.l-other { fill: var(--l-other); }
svg.kpat rect.wait { fill: url(#wait); }
svg.kpat rect.study { fill: var(--faint); }
svg.kpat .edge { fill: none; stroke: var(--line); }
@media (prefers-color-scheme: dark) {
  svg.kpat { --l-driver: #8d99ac; --l-link: #5f9cee; --l-network: #3fbd94; --l-transport: #ab86ec; --l-socket: #e0a545; --l-other: #66728a; }
  svg.kpat text.in.l-transport { fill: #111111; }
  svg.kpat text.in.l-other { fill: #ffffff; }
}
";

/// Of a picture over time.
pub const APP: &str = "
svg.app { font-size: 11px; --written: #c07a10; --read: #a844b5; --sent: #168a66; --received: #3b6fd0; --again: #c2560a; --a: #2f56d3; --b: #12807a; --c: #c2560a; --d: #a844b5; --e: #7050cc; --k: #5b7f2b; --n: #8a6a1f; --bad: #c62834; --idle: #b4bdca; }
svg.app .title { font-weight: 600; }
svg.app .grid, svg.app .base { stroke: var(--line); }
svg.app .curve { fill: none; stroke-width: 1.4; }
svg.app .dashed { stroke-dasharray: 5 3; }
svg.app .band { stroke: none; fill-opacity: .35; }
svg.app .range { fill-opacity: .75; }
svg.app .area { stroke: none; fill-opacity: .22; }
@media (prefers-color-scheme: dark) {
  svg.app { --written: #e0a545; --read: #cf7bdb; --sent: #3fbd94; --received: #6d97f0; --again: #ee8a3c; --a: #86a5ff; --b: #35b8a8; --c: #ee8a3c; --d: #cf7bdb; --e: #a48cf0; --k: #9cc25a; --n: #d6b35c; --bad: #f0616a; --idle: #48536a; }
}
";

/// Of handovers.
pub const HANDOVER: &str = "
svg.kpat { --h-decision: #8a94a3; --h-search: #d98a1f; --h-join: #3b7dd8; --h-keys: #8a5bd6; --h-network: #1c9a76; --h-unknown: #c2c9d2; --h-gap: #c62834; }
svg.kpat .phase { font-weight: 600; }
svg.kpat text.small { font-size: 11px; }
svg.kpat .grid, svg.kpat .base { stroke: var(--line); }
svg.kpat .moment { stroke: var(--ink); stroke-dasharray: 3 3; opacity: .55; }
svg.kpat rect.h-decision { fill: var(--h-decision); } svg.kpat rect.h-search { fill: var(--h-search); } svg.kpat rect.h-join { fill: var(--h-join); }
svg.kpat rect.h-keys { fill: var(--h-keys); } svg.kpat rect.h-network { fill: var(--h-network); } svg.kpat rect.h-unknown { fill: var(--h-unknown); }
svg.kpat rect.h-gap { fill: var(--h-gap); } svg.kpat rect.h-mark { fill: var(--ink); opacity: .8; }
@media (prefers-color-scheme: dark) {
  svg.kpat { --h-decision: #9aa6b8; --h-search: #e0a545; --h-join: #5f9cee; --h-keys: #ab86ec; --h-network: #3fbd94; --h-unknown: #4a5463; --h-gap: #f0616a; }
}
";

/// Of the tables beside handovers.
pub const HANDOVER_PAGE: &str = "
body { max-width: 72rem; }
td { vertical-align: top; }
.dot { display: inline-block; width: .7em; height: .7em; border-radius: 2px; }
.h-decision { background: #8a94a3; } .h-search { background: #d98a1f; } .h-join { background: #3b7dd8; } .h-keys { background: #8a5bd6; }
.h-network { background: #1c9a76; } .h-unknown { background: #c2c9d2; }
.n, th { white-space: nowrap; }
";

/// Of the tables beside such pictures.
pub const APP_PAGE: &str = "
h2 { font-size: 1.05rem; margin: 2rem 0 .3rem; }
p { margin: .3rem 0; }
td.sizes svg { display: block; }
.sizes rect { fill: #7d92bd; }
.bar { display: flex; height: 12px; max-width: 40rem; --a: #4a6fe0; --b: #189a90; --c: #d9762b; --e: #7d5fd3; --k: #6f8f33; --n: #9c7a2a; --d: #b453c1; --written: #c8861e; --read: #8e4a9c; --again: #a34a12; --idle: #9aa5b5; --sent: #168a66; }
.wide { overflow-x: auto; }
body { max-width: 68rem; }
a { color: inherit; }
th a { text-decoration-color: #8888; }
.n { white-space: nowrap; }
";

/// Waits are hatched: the ground, with its opacity, and the lines.
pub const WAIT: (&str, &str, &str) = ("#d9b44a", ".25", "#b58900");

/// A phase has the colour of the layer that works in it, as in the page; waits are hatched.
pub fn class_of(phase: Phase) -> &'static str {
    match phase {
        Phase::DmaRx | Phase::DmaTx => "l-driver",
        Phase::LinkRx | Phase::LinkTx | Phase::AboveLink => "l-link",
        Phase::NetworkRx | Phase::NetworkTx => "l-network",
        Phase::TransportRx | Phase::TransportTx => "l-transport",
        Phase::SocketRx | Phase::SocketTx | Phase::CopyToUser => "l-socket",
        phase if phase.is_wait() => "wait",
        _ => "l-other",
    }
}

pub fn class_of_layer(layer: &str) -> &'static str {
    match layer {
        "driver" => "l-driver",
        "link" => "l-link",
        "network" => "l-network",
        "transport" => "l-transport",
        "socket" => "l-socket",
        _ => "l-other",
    }
}

/// The variable of what held TCP back.
pub fn color(held: Held) -> &'static str {
    match held {
        Held::Application => "idle",
        Held::Handshake => "sent",
        Held::CongestionWindow => "a",
        Held::ReceiveWindow => "d",
        Held::Reader => "read",
        Held::Retransmission => "again",
        Held::SendBuffer => "written",
        Held::Cork => "k",
        Held::Nagle => "n",
        Held::Pacing => "e",
        Held::Device => "b",
        Held::PacingOrDevice => "c",
    }
}
