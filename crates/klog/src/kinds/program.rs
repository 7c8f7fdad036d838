//! A hit of a place in a program.

use super::{InColumns, at, cut, narrow, task_key, text};
use crate::columns::Row;
use kpat_model::{Context, FuncId, ProgramRecord, Record, Stage};

impl InColumns for ProgramRecord {
    const PLACE: usize = 26;

    fn row(&self) -> Row<'_> {
        let [v0, v1, v2, v3] = self.values;
        Row::new(
            [
                self.at.0 as u64,
                task_key(self.pid, Context::Task),
                self.func.0.into(),
                self.stage as u64,
                self.faults.into(),
                v0,
                v1,
                v2,
                v3,
            ],
            [cut(&self.text)],
        )
    }
}

pub(super) fn program(row: &Row<'_>) -> Option<Record> {
    let [_, task, func, stage, faults, v0, v1, v2, v3, ..] = row.numbers;
    Some(Record::Program(Box::new(ProgramRecord {
        at: at(row),
        pid: narrow(task >> 3)?,
        func: FuncId(narrow(func)?),
        stage: Stage::from_u8(narrow(stage)?)?,
        faults: narrow(faults)?,
        values: [v0, v1, v2, v3],
        text: text(row.bytes[0]),
    })))
}
