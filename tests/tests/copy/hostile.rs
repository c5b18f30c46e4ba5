//! Bytes of a stranger and a client that lies.

use super::*;

#[test]
fn garbage_on_the_control_port_is_refused() {
    let copy = Copy::new("garbage", 68);
    let bytes = copy.file(100_000);
    let server = Running::start(&mut copy.server(&[]));
    let address = format!("{}:{}", loopback(copy.n, 1), copy.port());
    for n in 0..20u64 {
        let mut liar = until(
            60,
            || format!("{address} is not listened at"),
            || {
                std::thread::sleep(Duration::from_millis(1));
                std::net::TcpStream::connect(&address).ok()
            },
        );
        use std::io::Write;
        let _ = liar.write_all(&pattern(n, (n * 97) as usize));
    }
    let client = run(&mut copy.client(&[]), 60);
    assert!(client.ok(), "{client}");
    assert!(fs::read(copy.to.join("data")).expect("the copy") == bytes);
    server.interrupt();
    server.finish(LIMIT);
}

#[test]
fn a_client_that_lies_is_refused_and_changes_nothing() {
    let copy = Copy::new("liar", 77);
    let root = gdrcore_tests::source::root();
    let (build, examples) = (root.join("build/lib"), root.join("c-examples"));
    let text = |p: PathBuf| p.display().to_string();
    let mut flags =
        vec![format!("-I{}", text(examples)), format!("-I{}", text(root.join("include")))];
    for object in [
        "common/say",
        "common/sleep",
        "common/conn",
        "common/dev",
        "common/mem",
        "common/crc32c",
        "rdma_copy/ring",
    ] {
        flags.push(text(root.join(format!("build/obj/{object}.o"))));
    }
    flags.extend([
        format!("-L{}", text(build.clone())),
        format!("-Wl,-rpath,{}", text(build)),
        "-lgdrcore".into(),
    ]);
    let flags: Vec<&str> = flags.iter().map(String::as_str).chain(["-lpthread", "-lm"]).collect();
    let liar = compile("cc", "copy_liar", &copy._dir, &flags);
    let bytes = copy.file(3);
    fs::write(copy.to.join("there"), b"abc").expect("a file");
    symlink("there", copy.to.join("link")).expect("a link");
    let before = copy.to.join("there").metadata().expect("it").modified().expect("a time");
    let server = Running::start(&mut copy.server(&[]));
    for (lie, said) in [
        ("hole-too-long", "protocol"),
        ("hole-without-size", "protocol"),
        ("end-too-early", "protocol"),
        ("end-with-another-size", "protocol"),
        ("wrong-checksum", "damaged on the way"),
        ("resume-unasked", "protocol"),
        ("resume-beyond-the-end", "protocol"),
        ("keep-unasked", "protocol"),
        ("keep-what-is-not-there", "changed it meanwhile"),
        ("keep-outside", "path refused"),
        ("keep-a-link", "changed it meanwhile"),
        ("offer-outside", "path refused"),
        ("offer-without-path", "protocol"),
        ("offer-unasked", "protocol"),
        ("drop-nothing", "protocol"),
        ("done-with-other-counts", "counts are wrong"),
        ("done-cut", "counts are wrong"),
        ("unknown-option", "options"),
        ("stop-at-once", "says 21"),
    ] {
        let mut client = Command::new(&liar);
        let done = run(client.args([&copy.port(), &copy.device(3), &loopback(copy.n, 1), lie]), 60);
        assert!(done.output.contains(said), "{lie}: no '{said}' in {}", done.output);
        assert_eq!(copy.arrived(), [copy.to.join("there")], "{lie}");
    }
    assert_eq!(fs::read(copy.to.join("there")).expect("it"), b"abc");
    assert_eq!(copy.to.join("there").metadata().expect("it").modified().expect("a time"), before);
    let honest = run(&mut copy.client(&[]), 60);
    assert!(honest.ok() && fs::read(copy.to.join("data")).expect("the copy") == bytes, "{honest}");
    server.interrupt();
    server.finish(LIMIT);
}
