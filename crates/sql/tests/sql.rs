//! Questions in SQL against tables whose rows are known, over several row groups.

#![allow(clippy::unwrap_used, reason = "a test")]

use kpat_sql::{Database, Error, Value};
use kpat_store::tables::CallRow;
use made::{CALLS, call, log};
use std::path::Path;

mod made;

fn ask(db: &Database, question: &str) -> Result<Vec<Vec<Value>>, Error> {
    let mut rows = Vec::new();
    db.ask::<Error>(question, &mut |_| Ok(()), &mut |row| {
        rows.push(row.to_vec());
        Ok(true)
    })?;
    Ok(rows)
}

fn one(db: &Database, question: &str) -> i64 {
    match ask(db, question).unwrap()[..] {
        [ref row] if row.len() == 1 => match row[0] {
            Value::Integer(n) => n,
            ref other => panic!("{question}: {other:?}"),
        },
        ref other => panic!("{question}: {other:?}"),
    }
}

#[test]
fn conditions_find_what_a_walk_finds() {
    let log = log("conditions");
    let db = Database::open(&log.0).unwrap();
    let count = |fits: &dyn Fn(&CallRow) -> bool| (0..CALLS).map(call).filter(|c| fits(c)).count() as i64;
    for (question, wanted) in [
        ("1", CALLS),
        ("packet_id = 5000", count(&|c| c.packet_id == Some(5000))),
        ("packet_id is null", count(&|c| c.packet_id.is_none())),
        (
            "packet_id is not null and call_id >= 262144",
            count(&|c| c.packet_id.is_some() && c.call_id >= 262_144),
        ),
        ("call_id between 131070 and 131075", 6),
        ("entry_ns > 1000 and entry_ns <= 1050", 5),
        ("entry_ns < 1000", 0),
        ("call_id in (3, 131072, 999999999, null)", 2),
        ("dur_ns = 7 and func_id = 3", count(&|c| c.dur_ns == Some(7) && c.func_id == 3)),
        // As SQLite compares numbers and text with integers.
        ("call_id < 2.5", 3),
        ("call_id = '12'", 1),
        ("call_id = null", 0),
        ("call_id > 'x'", 0),
    ] {
        assert_eq!(one(&db, &format!("select count(*) from call where {question}")), wanted, "{question}");
    }
    assert_eq!(
        one(&db, "select sum(dur_ns) from call"),
        (0..CALLS).filter_map(|i| call(i).dur_ns).sum::<i64>()
    );
    let row = ask(&db, "select call_id, dur_ns, func_id from call where call_id = 200005").unwrap();
    assert_eq!(row, [[Value::Integer(200_005), Value::Null, Value::Integer(200_005 % 7)]]);
}

#[test]
fn tables_are_joined() {
    let log = log("joins");
    let db = Database::open(&log.0).unwrap();
    let rows = ask(
        &db,
        "select name, count(*) n from call join function using (func_id) group by name order by name",
    )
    .unwrap();
    assert_eq!(rows.len(), 7);
    assert_eq!(rows[0], [Value::Text("f0".into()), Value::Integer((CALLS + 6) / 7)]);
    // The large table is looked up in the order of its key, whichever stands first.
    for question in [
        "select count(*) from call c join packet p on p.packet_id = c.packet_id where p.src_addr is not null",
        "select count(*) from packet p join call c on p.packet_id = c.packet_id where p.src_addr is not null",
    ] {
        let wanted = (0..CALLS).map(call).filter(|c| c.packet_id.is_some_and(|p| p % 2 == 0)).count() as i64;
        assert_eq!(one(&db, question), wanted, "{question}");
    }
    let rows = ask(&db, "select src_addr from packet where packet_id in (4, 5) order by packet_id").unwrap();
    assert_eq!(rows, [[Value::Text("10.0.0.4".into())], [Value::Null]]);
    let rows = ask(
        &db,
        "with recursive n(i) as (select 1 union all select i + 1 from n where i < 3) select i from n",
    )
    .unwrap();
    assert_eq!(rows.len(), 3);
}

#[test]
fn nothing_but_questions() {
    let log = log("reading");
    let db = Database::open(&log.0).unwrap();
    for statement in [
        "delete from call",
        "update packet set len_bytes = 1",
        "insert into function (func_id) values (1)",
        "create table x (a)",
        "create temp table x as select 1",
        "drop table call",
        "attach 'other.db' as other",
        "pragma journal_mode = off",
        "vacuum into 'copy.db'",
        "select load_extension('x.so')",
        "begin",
    ] {
        let e = ask(&db, statement).unwrap_err();
        assert!(matches!(e, Error::NotReading | Error::Syntax { .. }), "{statement}: {e:?}");
    }
    assert!(
        !log.0.join("copy.db").exists() && !Path::new("copy.db").exists() && !Path::new("other.db").exists()
    );
    assert!(matches!(ask(&db, "select 1; delete from call"), Err(Error::NotReading | Error::Syntax { .. })));
    assert!(matches!(ask(&db, "select * from calls"), Err(Error::NoTable { name }) if name == "calls"));
    assert!(matches!(ask(&db, "select durns from call"), Err(Error::NoColumn { name }) if name == "durns"));
    assert!(matches!(ask(&db, "selec 1"), Err(Error::Syntax { .. })));
    // A reader that has enough.
    let mut given = 0;
    db.ask::<Error>("select * from call", &mut |_| Ok(()), &mut |_| {
        given += 1;
        Ok(given < 10)
    })
    .unwrap();
    assert_eq!(given, 10);
}

#[test]
fn a_damaged_table_is_an_error_and_no_answer() {
    let log = log("damage");
    let path = log.0.join("call.parquet");
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle - 2000..middle + 2000].fill(0xa5);
    std::fs::write(&path, bytes).unwrap();
    let db = Database::open(&log.0).unwrap();
    let e =
        ask(&db, "select sum(call_id), sum(packet_id), sum(func_id), sum(entry_ns), sum(dur_ns) from call")
            .unwrap_err();
    assert!(e.to_string().contains("call.parquet"), "{e}");
}
