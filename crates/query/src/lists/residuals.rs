//! How far each matched frame lies from its packet in the kernel, thinned evenly: what a clock's bound rests on.

use crate::error::Result;
use crate::store::Store;
use kpat_store::tables::AssociationRow;

/// Of one capture, by time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Residuals {
    pub capture_id: i32,
    /// When the kernel had it, frame time less that, and side.
    pub points: Vec<(i64, i64, i32)>,
    /// Without thinning.
    pub all: u64,
}

impl Store {
    /// At most `most` of each capture.
    pub fn residuals(&self, most: usize) -> Result<Vec<Residuals>> {
        let table = self.table::<AssociationRow>()?;
        let mut out: Vec<Residuals> = Vec::new();
        for group in 0..table.groups() {
            let column = |name| table.ints(group, name);
            let (capture, kernel) = (column("capture_id")?, column("kernel_ns")?);
            let (residual, side) = (column("residual_ns")?, column("side")?);
            for i in 0..capture.len() {
                let id = capture[i] as i32;
                let at = out.iter().position(|r| r.capture_id == id).unwrap_or_else(|| {
                    out.push(Residuals { capture_id: id, ..Residuals::default() });
                    out.len() - 1
                });
                out[at].points.push((kernel[i], residual[i], side[i] as i32));
            }
        }
        for r in &mut out {
            r.all = r.points.len() as u64;
            r.points.sort_unstable();
            let step = r.points.len().div_ceil(most.max(1)).max(1);
            let mut i = 0;
            r.points.retain(|_| {
                i += 1;
                (i - 1) % step == 0
            });
        }
        out.sort_by_key(|r| r.capture_id);
        Ok(out)
    }
}
