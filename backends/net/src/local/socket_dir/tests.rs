use super::super::{Holder, Lock};
use super::*;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::PathBuf;

/// A directory like /dev/shm, empty.
struct Base(PathBuf);

impl Base {
    fn new(name: &str) -> Base {
        let path = std::env::temp_dir().join(format!("gdrcore-dir-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o1777)).unwrap();
        Base(path)
    }

    fn open(&self) -> Fd {
        open_dir(libc::AT_FDCWD, &self.c_path()).unwrap()
    }

    fn c_path(&self) -> std::ffi::CString {
        std::ffi::CString::new(self.0.to_str().unwrap()).unwrap()
    }

    fn make(&self, name: &str, mode: u32) {
        std::fs::DirBuilder::new().mode(mode).create(self.0.join(name)).unwrap();
    }

    fn name(&self, n: usize) -> String {
        String::from_utf8(own_directory(&self.open(), n).unwrap().as_bytes().to_vec()).unwrap()
    }
}

impl Drop for Base {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn the_directory_is_made_once_and_is_this_users_alone() {
    let base = Base::new("once");
    let usual = format!("gdrcore-{}", own_uid());
    assert_eq!(base.name(0), usual);
    let meta = std::fs::metadata(base.0.join(&usual)).unwrap();
    assert_eq!((meta.mode() & 0o7777, meta.uid()), (0o700, own_uid()));
    assert_eq!((base.name(0), base.name(5)), (usual.clone(), usual));
}

#[test]
fn another_users_directory_of_the_usual_name_is_not_used() {
    let base = Base::new("strange");
    let usual = format!("gdrcore-{}", own_uid());
    let [first, second, third] = [1, 2, 3].map(|k| format!("{usual}.{k}"));
    // A directory that others may enter is refused like another user's, and so are a file and a
    // link of that name.
    base.make(&usual, 0o755);
    std::fs::write(base.0.join(&first), "").unwrap();
    base.make("elsewhere", 0o700);
    std::os::unix::fs::symlink("elsewhere", base.0.join(&second)).unwrap();
    assert_eq!(base.name(0), third);
    assert_eq!((base.name(0), base.name(1)), (third.clone(), third.clone()), "it is found again");
    // Another user's directory goes, and a process makes an earlier one meanwhile: every process
    // takes the earlier one, and can look at the other.
    std::fs::remove_file(base.0.join(&first)).unwrap();
    assert_eq!(base.name(0), third, "what is there is used");
    base.make(&first, 0o700);
    assert_eq!((base.name(0), base.name(1), base.name(2)), (first.clone(), third, first));
}

/// Any user may fill the place of the directories. A user who has taken all names keeps this user
/// out of that place alone.
#[test]
fn directories_are_looked_up_and_not_searched_for() {
    let base = Base::new("names");
    // The place may be entered and written, but its names may not be read.
    std::fs::set_permissions(&base.0, PermissionsExt::from_mode(0o1733)).unwrap();
    let usual = format!("gdrcore-{}", own_uid());
    base.make("gdrcore-!", 0o700);
    assert_eq!(base.name(0), usual, "a name that is none of this user's");
    std::fs::remove_dir(base.0.join(&usual)).unwrap();
    for name in names() {
        base.make(std::str::from_utf8(name.as_bytes()).unwrap(), 0o755);
    }
    assert_eq!(own_directory(&base.open(), 0).unwrap_err(), Error::Access);
    assert_eq!(names().count(), NAMES);
}

#[test]
fn the_last_place_is_the_users_own() {
    let path = place(BASES[2]).unwrap();
    assert_eq!(path.as_bytes(), format!("/run/user/{}", own_uid()).as_bytes());
    assert_eq!(place(BASES[0]).unwrap().as_c_str(), BASES[0]);
    // The longest path of all has room.
    let longest = "/run/user/4294967295/gdrcore-4294967295.31/ffffffffffffffff";
    assert!(longest.len() <= SOCKET_DIR_MAX && "gdrcore-4294967295.31".len() < NAME_MAX);
}

#[test]
fn a_directory_that_a_sweep_removes_at_once_is_made_again() {
    let base = Base::new("sweep");
    let dir = SocketDir::below(&base.c_path(), 0, 1).unwrap();
    let at = crate::addr::Endpoint::v4([192, 0, 2, 1], 4791);
    let path = std::path::Path::new(std::str::from_utf8(dir.path()).unwrap());
    // A link to nothing: mkdir finds that the name exists, and a use of the directory finds that it
    // does not, as with a directory that is swept in between.
    std::fs::remove_dir(path).unwrap();
    std::os::unix::fs::symlink("nowhere", path).unwrap();
    let taken = Lock::take(&dir, &at, Holder::Block(7));
    assert_eq!(taken.err(), Some(Error::AddressInUse), "after all its tries");
    std::fs::remove_file(path).unwrap();
    assert!(Lock::take(&dir, &at, Holder::Block(7)).is_ok());
}

#[test]
fn a_base_where_all_may_rename_is_refused() {
    let base = Base::new("open");
    std::fs::set_permissions(&base.0, PermissionsExt::from_mode(0o777)).unwrap();
    assert_eq!(SocketDir::below(&base.c_path(), 0, 1).unwrap_err(), Error::Access);
    let missing = std::ffi::CString::new("/nonexistent").unwrap();
    assert!(SocketDir::below(&missing, 0, 1).is_err());
}

#[test]
fn a_network_namespace_has_its_own() {
    let here = SocketDir::open().unwrap();
    assert_eq!(SocketDir::open().unwrap(), here);
    let there = std::thread::spawn(|| {
        // SAFETY: takes no pointers; changes this thread only, which ends.
        (unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0).then(|| SocketDir::open().unwrap())
    });
    match there.join().unwrap() {
        Some(there) => assert_ne!(here, there),
        None => gdrcore_testkit::skip::skipped(format_args!("no network namespaces here")),
    }
}

#[test]
fn many_entries_are_all_seen() {
    let base = Base::new("many");
    for i in 0..700 {
        std::fs::write(base.0.join(format!("a-rather-long-name-of-a-file-{i}")), "").unwrap();
    }
    let mut n = 0;
    entries(base.open().raw(), |_| n += 1);
    assert_eq!(n, 700);
}
