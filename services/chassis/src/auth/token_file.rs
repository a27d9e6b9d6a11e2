//! The file with the mesh's token, for processes of one user on one machine: generated once, mode
//! 0600, and found by every local member of the mesh. A file that other users could have read or
//! written is refused.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    process,
};

use crate::auth::secret::Secret;

/// The data directory when none is named, below the working directory.
pub const DATA: &str = ".faultline";
/// The file in a data directory.
pub const FILE: &str = "mesh.token";
/// Longer files hold something else.
const BYTES_MAX: u64 = 4096;

/// The reason for which a token file is not used. No text contains the token.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot read the token file '{path}'")]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("cannot write the token file '{path}'")]
    Unwritable { path: PathBuf, source: io::Error },
    #[error(
        "the token file '{path}' has mode {mode:04o}, so other users may know the token: delete \
         the file and let the coordinator generate another, or run `chmod 600 {path}` if nobody \
         else could read it"
    )]
    Exposed { path: PathBuf, mode: u32 },
    #[error(
        "the token file '{path}' belongs to user {owner}, and this process runs as user {us}: name \
         another directory with --data, or another file with `token_file` in [mesh]"
    )]
    Foreign { path: PathBuf, owner: u32, us: u32 },
    #[error(
        "the token file '{path}' must hold one token on one line, of visible ASCII characters \
         without spaces: `openssl rand -hex 32` makes one"
    )]
    NotAToken { path: PathBuf },
    #[error(
        "the token file '{path}' does not exist: write a token to it with `(umask 077; openssl \
         rand -hex 32 > {path})`, or leave `token_file` out of [mesh]"
    )]
    Missing { path: PathBuf },
}

/// The token file of a data directory; `None`: of the default one.
pub fn in_data(data: Option<&Path>) -> PathBuf {
    data.unwrap_or(Path::new(DATA)).join(FILE)
}

/// The token in a file, or `None` if there is no such file.
pub fn read(path: &Path) -> Result<Option<Secret>, Error> {
    let unreadable = |source| Error::Unreadable { path: path.to_owned(), source };
    match fs::metadata(path) {
        // Checked before it is opened: opening a named pipe would block.
        Ok(found) if !found.is_file() => return Err(Error::NotAToken { path: path.to_owned() }),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unreadable(error)),
    }
    let file = File::open(path).map_err(unreadable)?;
    // Of the open file, so that it cannot be exchanged between the check and the read.
    let found = file.metadata().map_err(unreadable)?;
    let owner = found.uid();
    let us = rustix::process::geteuid().as_raw();
    if owner != us {
        return Err(Error::Foreign { path: path.to_owned(), owner, us });
    }
    if found.mode() & 0o077 != 0 {
        return Err(Error::Exposed { path: path.to_owned(), mode: found.mode() & 0o7777 });
    }
    let mut text = String::new();
    let not_a_token = || Error::NotAToken { path: path.to_owned() };
    file.take(BYTES_MAX).read_to_string(&mut text).map_err(|error| match error.kind() {
        io::ErrorKind::InvalidData => not_a_token(),
        _ => unreadable(error),
    })?;
    Secret::new(text.trim_end_matches(['\r', '\n'])).map(Some).map_err(|_| not_a_token())
}

/// The token in a file, which is generated if it does not exist. Of several processes that start at
/// the same time the first to link its file wins, and the others read that one.
pub fn read_or_generate(path: &Path) -> Result<Secret, Error> {
    if let Some(token) = read(path)? {
        return Ok(token);
    }
    let unwritable = |source| Error::Unwritable { path: path.to_owned(), source };
    generate(path).map_err(unwritable)?;
    read(path)?.ok_or_else(|| unwritable(io::ErrorKind::NotFound.into()))
}

fn generate(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    if let Some(parent) = parent {
        DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
    }
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{}.{:016x}", process::id(), rand::random::<u64>()));
    let beside = PathBuf::from(beside);
    let linked = write_new(&beside).and_then(|()| link(&beside, path));
    let _ = fs::remove_file(&beside);
    linked
}

fn write_new(path: &Path) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(format!("{}\n", Secret::random().reveal()).as_bytes())?;
    file.sync_all()
}

/// Gives a finished file its name, unless another process was first. File systems without hard
/// links get a rename, where the last of several processes wins.
fn link(from: &Path, to: &Path) -> io::Result<()> {
    match fs::hard_link(from, to) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(_) => fs::rename(from, to),
    }
}

#[cfg(test)]
mod tests {
    use std::{fs::Permissions, os::unix::fs::PermissionsExt};

    use super::*;

    fn allow(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn generated_token_is_private_and_reused_at_the_next_start() {
        let dir = tempfile::tempdir().unwrap();
        let path = in_data(Some(&dir.path().join("a/b")));
        assert!(read(&path).unwrap().is_none());
        let first = read_or_generate(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(path.parent().unwrap()).unwrap().mode() & 0o777, 0o700);
        assert_eq!(read_or_generate(&path).unwrap(), first);
        assert_eq!(read(&path).unwrap().unwrap(), first);
        let files = fs::read_dir(path.parent().unwrap()).unwrap().count();
        assert_eq!(files, 1, "nothing is left beside it");
    }

    #[test]
    fn processes_that_start_at_once_agree_on_one_token() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        let tokens: Vec<_> = std::thread::scope(|scope| {
            let starts: Vec<_> =
                (0..8).map(|_| scope.spawn(|| read_or_generate(&path).unwrap())).collect();
            starts.into_iter().map(|start| start.join().unwrap()).collect()
        });
        assert!(tokens.iter().all(|token| *token == tokens[0]));
    }

    #[test]
    fn file_that_other_users_may_read_or_write_is_refused_with_the_remedy() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        read_or_generate(&path).unwrap();
        for mode in [0o640, 0o604, 0o620, 0o602, 0o660, 0o644] {
            allow(&path, mode);
            let refused = read(&path).unwrap_err().to_string();
            assert!(refused.contains(&format!("mode {mode:04o}")), "{refused}");
            assert!(refused.contains("chmod 600"), "{refused}");
            assert!(read_or_generate(&path).is_err(), "{mode:o}");
        }
        allow(&path, 0o400);
        assert!(read(&path).unwrap().is_some());
    }

    #[test]
    fn file_without_exactly_one_token_is_refused_without_being_quoted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        for text in ["", "two words\n", "two\nlines\n", "sch\u{fc}ssel"] {
            fs::write(&path, text).unwrap();
            allow(&path, 0o600);
            let refused = read(&path).unwrap_err();
            assert!(matches!(refused, Error::NotAToken { .. }), "{refused}");
        }
        assert!(matches!(read(dir.path()), Err(Error::NotAToken { .. })), "a directory");
        fs::write(&path, "hunter2\r\n").unwrap();
        assert_eq!(read(&path).unwrap().unwrap().reveal(), "hunter2");
    }
}
