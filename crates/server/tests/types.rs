//! `ui/src/api/types*.ts` say what the service answers. `UPDATE_TYPES=1` writes them anew.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::path::Path;

#[test]
fn the_page_has_the_types_of_the_service() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ui/src/api");
    for (name, want) in kpat_server::answers::files() {
        let path = folder.join(name);
        if std::env::var_os("UPDATE_TYPES").is_some() {
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(&path, &want).unwrap();
        }
        let have = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(have == want, "{} is not as generated; UPDATE_TYPES=1 writes it", path.display());
    }
}
