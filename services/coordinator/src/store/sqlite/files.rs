//! The files of a store: created with mode 0600, since they hold messages, webhook credentials
//! and the secret that signs tokens. Existing files keep their mode.

use std::{
    fs::{DirBuilder, File, OpenOptions, TryLockError},
    io,
    path::Path,
};

use super::OpenError;

/// Makes the directory and the database if they are missing. SQLite gives the files that it makes
/// beside a database the rights of the database.
pub(super) fn make(path: &Path) -> Result<(), OpenError> {
    if let Some(parent) = path.parent().filter(|p| !p.as_os_str().is_empty()) {
        directory(parent).map_err(|source| OpenError::File { path: parent.to_owned(), source })?;
    }
    open(path).map(drop).map_err(|source| OpenError::File { path: path.to_owned(), source })
}

/// Keeps a second coordinator out for as long as the file is held.
pub(super) fn lock(path: &Path) -> Result<File, OpenError> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".lock");
    let failed = |source| OpenError::File { path: path.to_owned(), source };
    let file = open(Path::new(&beside)).map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(OpenError::InUse { path: path.to_owned() }),
        Err(TryLockError::Error(source)) => Err(failed(source)),
    }
}

fn directory(path: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.recursive(true).create(path)
}

fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.create(true).truncate(false).write(true).open(path)
}

#[cfg(all(test, unix))]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::super::Sqlite;

    #[test]
    fn store_files_have_mode_0600_and_existing_ones_keep_theirs() {
        let dir = tempfile::tempdir().unwrap();
        let there = dir.path().join("there");
        fs::create_dir(&there).unwrap();
        fs::set_permissions(&there, fs::Permissions::from_mode(0o755)).unwrap();
        let rights =
            |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let ours = there.join("ours").join("below");
        let store = Sqlite::open(&ours.join("t.db")).unwrap();
        assert_eq!(rights(&there), 0o755);
        assert_eq!((rights(&there.join("ours")), rights(&ours)), (0o700, 0o700));
        let mut names: Vec<_> = fs::read_dir(&ours)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .map(|path| (path.file_name().unwrap().to_string_lossy().into_owned(), rights(&path)))
            .collect();
        names.sort();
        let wanted = ["t.db", "t.db-shm", "t.db-wal", "t.db.lock"];
        assert_eq!(names, wanted.map(|name| (name.to_owned(), 0o600)));
        drop(store);

        let shared = there.join("shared.db");
        drop(Sqlite::open(&shared).unwrap());
        fs::set_permissions(&shared, fs::Permissions::from_mode(0o640)).unwrap();
        let _again = Sqlite::open(&shared).unwrap();
        assert_eq!(rights(&shared), 0o640);
    }
}
