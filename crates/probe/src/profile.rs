//! Named selections of functions. A profile is the rows of [`kpat_model::functions`] that are of its layers and detail, and globs over
//! function names (and `module:NAME`); what of it exists and can be probed on a kernel is found out by [`crate::choose`].

mod selection;

pub use kpat_model::functions::{Detail, LAYERS, glob, layer};
pub use selection::{
    ALL, APPLICATIONS, LEAVES, NAMES, PROGRAMS, Selection, UnknownProfile, WIFI, WORK, has_packets,
};

/// Is this the module's name? The kernel writes `_` where its file has `-`.
pub fn is_module(name: &str, module: &str) -> bool {
    name == module || name.replace('-', "_") == module
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_that_follow_packets() {
        assert!(["path", "app,tcp", "driver:e1000e", ""].iter().all(|p| has_packets(p)));
        assert!(["app", "profile", "wifi,programs"].iter().all(|p| !has_packets(p)));
    }

    #[test]
    fn selections() {
        let s = |p: &str| Selection { profile: p.into(), detail: Detail::Full, ..Default::default() };
        let wanted = |name: &str| Detail::ALL.map(|detail| Selection { detail, ..s("path") }.wants(name, ""));
        assert_eq!(wanted("ip_rcv"), [true, true, true]);
        assert_eq!(wanted("ip_forward"), [false, true, true]);
        assert_eq!(wanted("ip_route_input_noref"), [false, false, true]);
        assert_eq!(wanted("ip_make_skb"), [false, false, false]);
        assert!(!s("socket").wants("ip_rcv", ""));
        let driver = Selection { detail: Detail::Steps, ..s("driver:e1000e") };
        assert!(driver.wants("e1000_clean_rx_irq", "e1000e"));
        let mut cut = s("path");
        cut.remove.push("ip_*".into());
        cut.add.push("foo".into());
        assert!(!cut.wants("ip_rcv", "") && cut.wants("foo", ""));
        assert!(
            s("paht").check().is_err() && s("driver:").check().is_err() && s("driver:e100").check().is_ok()
        );
    }
}
