//! What is recorded of programs: places in them, by the table of programs.

use super::{Decision, Error, Fixed, Tracepoint};
use crate::btf::Btf;
use crate::kernel::Symbols;
use crate::mechanism::{self, Mechanism};
use crate::object::{self, Build, Side};
use crate::reasons::drop_reasons;
use crate::{profile, programs};
use kpat_model::programs::Row;

/// The program for many places of a file by one link.
pub const MANY: &str = "program_hit_multi";
/// The program for places in programs that brings in what is not in memory, and the one for kernels that do not let it.
pub const SLEEPS: &str = "program_hit_sleeps";
pub const DOES_NOT_SLEEP: &str = "program_hit";

/// Decides for a recording of what programs say. `rows`: kpat's own, `wanted`: those of the user.
pub fn decide_programs(
    rows: &[Row],
    wanted: &[Row],
) -> Result<(Decision, Vec<Tracepoint>, Vec<&'static programs::Hook>), Error> {
    if let Some(why) = mechanism::refusal() {
        return Err(Error::Refused(why));
    }
    let build = Build { direct: false, traced_context: false };
    let mut found = programs::find(wanted);
    let unmet = std::mem::take(&mut found.left_out);
    found.add(rows);
    found.left_out.splice(0..0, unmet.iter().cloned());
    if found.hooks.is_empty() {
        let hint = found.left_out.first().map_or(String::new(), |(name, why)| format!(" ({name}: {why})"));
        return Err(Error::NothingToProbe { profile: profile::PROGRAMS.into(), hint });
    }
    let raw = object::tracepoint_programs(build, Side::Programs).into_iter();
    let raw =
        raw.map(|(program, name)| Tracepoint { program, name, fixed: Fixed::Raw, func: None, switch: None });
    let hooks = found.hooks.iter().map(|h| Tracepoint {
        program: MANY.into(),
        name: h.function.name.clone(),
        fixed: Fixed::User(h),
        func: Some(h.function.id),
        switch: Some(h.switch()),
    });
    let decision = Decision {
        detail: None,
        mechanism: Mechanism::Tracepoint,
        build,
        build_passed_over: Vec::new(),
        build_warning: None,
        unmet,
        passed_over: Vec::new(),
        functions: Vec::new(),
        often: Vec::new(),
        logged: Vec::new(),
        left_out: found.left_out,
        drop_reasons: Btf::running().map(|b| drop_reasons(&b)).unwrap_or_default(),
        point_constants: Vec::new(),
        symbols: Symbols::running(),
    };
    Ok((decision, raw.chain(hooks).collect(), found.hooks))
}
