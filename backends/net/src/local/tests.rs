use super::*;
use crate::clock::wall_ns;
use gdrcore_core::config::QPN_UNIT;
use gdrcore_core::error::Error;
use gdrcore_core::receipt::Receipts;
use gdrcore_core::wire::Psn;
use gdrcore_testkit::descriptors::keep;
use gdrcore_testkit::place::loopback;

fn at(n: u8) -> Endpoint {
    Endpoint::v4(loopback(3, n), 4791)
}

fn text(name: &SocketPath) -> String {
    name.path().to_str().unwrap().into()
}

#[test]
fn names_differ_by_address_and_holder() {
    let socket_dir = SocketDir::open().unwrap();
    let below = |name: SocketPath| {
        let text = text(&name);
        text.strip_prefix(&format!("{socket_dir:?}/"))
            .unwrap_or_else(|| panic!("{text}"))
            .to_string()
    };
    let v4 = Endpoint::v4([192, 0, 2, 1], 4791);
    assert_eq!(
        below(SocketPath::new(&socket_dir, &v4, Holder::Address, Role::Links)),
        "192.0.2.1-4791/any/door"
    );
    assert_eq!(
        below(SocketPath::new(&socket_dir, &v4, Holder::Block(7), Role::Messages)),
        "192.0.2.1-4791/7/mail"
    );
    let mut ip = [0; 16];
    (ip[0], ip[1], ip[15]) = (0xfe, 0x80, 1);
    let v6 = Endpoint::new(ip, 3, 1);
    assert_eq!(
        below(SocketPath::new(&socket_dir, &v6, Holder::Service(0x106, 9), Role::Messages)),
        "fe800000000000000000000000000001%3-1/c262-9/mail"
    );
    // The longest of all fits.
    let most = Endpoint { ip: [0xfe; 16], scope_id: u32::MAX, port: u16::MAX };
    assert!(text(&SocketPath::new(
        &socket_dir,
        &most,
        Holder::Service(u16::MAX, u16::MAX),
        Role::Messages
    ))
    .ends_with("/c65535-65535/mail"));
}

#[test]
fn a_holder_is_one_process_and_its_names_go_with_it() {
    let _kept = keep();
    let (socket_dir, at) = (SocketDir::open().unwrap(), at(1));
    let first = Lock::take(&socket_dir, &at, Holder::Block(1)).unwrap();
    assert_eq!(Lock::take(&socket_dir, &at, Holder::Block(1)).unwrap_err(), Error::AddressInUse);
    let other = Lock::take(&socket_dir, &at, Holder::Block(2)).unwrap();
    let socket = first.bind(Role::Messages, libc::SOCK_DGRAM).unwrap();
    let path = text(&first.name(Role::Messages));
    assert!(std::path::Path::new(&path).exists() && first.is_there());
    drop((first, socket));
    assert!(!std::path::Path::new(&path).exists());
    drop(other);
    assert!(
        !std::path::Path::new(&path).parent().unwrap().parent().unwrap().exists(),
        "nothing of the address is left"
    );
    Lock::take(&socket_dir, &at, Holder::Block(1)).unwrap();
}

/// As after a kill: the lock is free, the files stay.
fn kill(lock: Lock) {
    lock.abandon();
    std::mem::forget(lock);
}

#[test]
fn files_of_a_dead_process_do_not_hinder_others() {
    let _kept = keep();
    let (socket_dir, at) = (SocketDir::open().unwrap(), at(2));
    let lock = Lock::take(&socket_dir, &at, Holder::Block(1)).unwrap();
    let mail = lock.bind(Role::Messages, libc::SOCK_DGRAM).unwrap();
    let name = lock.name(Role::Messages);
    kill(lock);
    drop(mail);
    assert!(std::path::Path::new(&text(&name)).exists());
    assert_eq!(connect(&name).unwrap_err(), Error::NoDevice);
    // The next holder removes the files, and so does any process that opens a device; files of
    // living processes stay.
    let alive = Lock::take(&socket_dir, &at, Holder::Block(2)).unwrap();
    sweep(&socket_dir, wall_ns());
    assert!(!std::path::Path::new(&text(&name)).parent().unwrap().exists() && alive.is_there());
    let again = Lock::take(&socket_dir, &at, Holder::Block(1)).unwrap();
    again.bind(Role::Messages, libc::SOCK_DGRAM).unwrap();
    again.listen(Role::Liveness).unwrap();
}

#[test]
fn receipts_of_a_killed_owner_are_read_for_a_minute() {
    /// A QPN of block 1.
    const QPN: u32 = QPN_UNIT + 17;
    let _kept = keep();
    let (socket_dir, at) = (SocketDir::open().unwrap(), at(5));
    let ended = || receipts_of(&socket_dir, &at, 1, false);
    let own = |receipts: &Receipts| receipts.find(QPN).map(Psn::get);
    // Sweeps this address alone: other processes' receipts stay.
    let sweep_at = |s: u64| {
        let place = socket_dir.c_path(&[Part::of_address(&at).bytes()]).unwrap();
        let address = open_dir(libc::AT_FDCWD, place.as_c_str()).unwrap();
        sweep::sweep_address(address.raw(), wall_ns() + s * 1_000_000_000, &mut 1000);
    };
    let lock = Lock::take(&socket_dir, &at, Holder::Block(1)).unwrap();
    let path = text(&lock.name(Role::Messages)).replace("mail", "acks");
    let file = ReceiptFile::create(&lock).unwrap();
    assert_eq!(file.receipts().leave(QPN, Psn::new(5)), 0);
    assert!(ended().is_none(), "a living owner sends its ACKs");
    assert_eq!(receipts_of(&socket_dir, &at, 1, true).and_then(|left| own(&left)), Some(5));
    kill(lock);
    // Others open devices meanwhile: the first sweep sees that the owner is gone.
    for s in [0, 0, 50] {
        assert_eq!(ended().and_then(|left| own(&left)), Some(5));
        sweep_at(s);
    }
    sweep_at(61);
    assert!(ended().is_none() && !std::path::Path::new(&path).exists());
    // The block's next owner begins without receipts, and takes the file away at its end.
    drop(file);
    let lock = Lock::take(&socket_dir, &at, Holder::Block(1)).unwrap();
    let file = ReceiptFile::create(&lock).unwrap();
    let _ = file.receipts().leave(QPN, Psn::new(6));
    kill(lock);
    let lock = Lock::take(&socket_dir, &at, Holder::Block(1)).unwrap();
    assert_eq!(own(ReceiptFile::create(&lock).unwrap().receipts()), None);
    drop(lock);
    assert!(!std::path::Path::new(&path).parent().unwrap().exists());
    // A file that is too short is none.
    let lock = Lock::take(&socket_dir, &at, Holder::Block(1)).unwrap();
    std::fs::write(&path, [0; 100]).unwrap();
    kill(lock);
    assert!(ended().is_none());
    sweep_at(0);
    sweep_at(61);
}

#[test]
fn a_name_is_bound_while_its_socket_lives() {
    let _kept = keep();
    let (socket_dir, at) = (SocketDir::open().unwrap(), at(4));
    for (holder, role) in [(Holder::Address, Role::Links), (Holder::Block(1), Role::Messages)] {
        let lock = Lock::take(&socket_dir, &at, holder).unwrap();
        let name = lock.name(role);
        assert!(!is_bound(&name));
        let socket = match role {
            Role::Links => lock.listen(role),
            _ => lock.bind(role, libc::SOCK_DGRAM),
        };
        assert!(is_bound(&name));
        let other = Lock::take(&socket_dir, &at, holder);
        assert_eq!(other.err(), Some(Error::AddressInUse), "{role:?}");
        drop(socket);
        assert!(!is_bound(&name));
    }
}

/// The directory keeps other users away. In addition, a process that connects checks the user of
/// the listener.
#[test]
fn a_connection_to_another_users_process_is_refused() {
    if own_uid() != 0 {
        gdrcore_testkit::skip!("only root can listen as another user");
    }
    let _kept = keep();
    let lock = Lock::take(&SocketDir::open().unwrap(), &at(5), Holder::Block(1)).unwrap();
    let name = lock.name(Role::Links);
    let socket = lock.bind(Role::Links, libc::SOCK_SEQPACKET).unwrap();
    // The kernel notes the listener's user. The system calls change the ids of one thread.
    let listen_as = |uid: u32| {
        std::thread::scope(|s| {
            s.spawn(|| {
                // SAFETY: no pointers.
                unsafe {
                    libc::syscall(libc::SYS_setresuid, -1, uid, -1) == 0
                        && libc::listen(socket.raw(), 8) == 0
                }
            })
            .join()
            .unwrap()
        })
    };
    if !listen_as(12_345) {
        gdrcore_testkit::skip!("this user namespace has no other user");
    }
    assert_eq!(connect(&name).err(), Some(Error::Access));
    assert!(listen_as(0));
    assert!(connect(&name).is_ok());
}

#[test]
fn a_removed_directory_is_noticed() {
    let _kept = keep();
    let (socket_dir, at) = (SocketDir::open().unwrap(), at(3));
    let lock = Lock::take(&socket_dir, &at, Holder::Block(1)).unwrap();
    let _door = lock.listen(Role::Links).unwrap();
    let path = text(&lock.name(Role::Links));
    std::fs::remove_dir_all(std::path::Path::new(&path).parent().unwrap().parent().unwrap())
        .unwrap();
    assert!(!lock.is_there());
    let again = Lock::take(&socket_dir, &at, Holder::Block(1)).unwrap();
    assert!(again.is_there());
    drop(lock);
    assert!(again.is_there(), "the old lock removed only its own names");
}

#[test]
fn only_a_map_of_all_uids_tells_the_overflow_uid_apart() {
    assert!(maps_all_uids(b"         0          0 4294967295\n"));
    for map in [
        &b""[..],
        b"0 0 65536\n",
        b"0 1000 1\n",
        b"0 0 4294967295\n1 1 1\n",
        b"0 100000 4294967295\n",
    ] {
        assert!(!maps_all_uids(map), "{}", String::from_utf8_lossy(map));
    }
    assert!(has_unique_uid(), "the tests run as a user with a number");
}
