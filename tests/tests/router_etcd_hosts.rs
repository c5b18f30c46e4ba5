//! Three hosts that know each other by etcd, each with a router, an adapter and a member of the
//! cluster: perftest between two containers without a network runs on whatever fails.

use gdrcore_tests::etcd::{adapter_on, Cluster};
use gdrcore_tests::feed::{status, wait_for};
use gdrcore_tests::lab::Lab;
use gdrcore_tests::router::{contained, number, Router};
use gdrcore_tests::tools::{installed, Running};
use gdrcore_tests::{or_skip, patience, rdmacm};

/// The hosts and their tenants.
const HOSTS: [(usize, &str); 3] = [(0, "192.0.2.1"), (1, "192.0.2.2"), (2, "192.0.2.3")];
const TENANTS: [&str; 3] = ["blue", "red", "gold"];
/// What joins them; the containers of blue and red.
const SWITCH: usize = 3;
const CONTAINERS: [usize; 2] = [4, 5];
/// Packets from red to blue that show that data flows.
const FLOWS: u64 = 2000;

struct World {
    adapters: Vec<Running>,
    routers: Vec<Router>,
    cluster: Cluster,
    lab: Lab,
}

fn policy(host: usize) -> String {
    let ((_, address), tenant) = (HOSTS[host], TENANTS[host]);
    format!(
        "[host]\nid = \"h{host}\"\naddress = \"{address}\"\nmap = \"feed\"\nfeed = \"DIR/feed\"\n\
         [host.tenant.{tenant}]\nvip = \"10.99.0.{}\"\nblocks = [100, 100]\n\
         [tenant.{tenant}]\nlisten = \"DIR/t/{tenant}/tenant.gdrc\"\n",
        host + 1
    )
}

impl World {
    /// The error names what this machine lacks.
    fn new() -> Result<World, String> {
        let lab = Lab::new(6)?;
        lab.admin(SWITCH, &["link", "add", "br0", "type", "bridge"])?;
        lab.admin(SWITCH, &["link", "set", "br0", "up"])?;
        for (host, address) in HOSTS {
            let port = format!("p{host}");
            lab.link((SWITCH, &port, &[]), (host, "w0", &[&format!("{address}/24")]))?;
            lab.admin(SWITCH, &["link", "set", &port, "master", "br0"])?;
        }
        let cluster = Cluster::start_on(&lab, "etcd-hosts", &HOSTS);
        let cluster = cluster.ok_or("etcd or etcdctl is not installed")?;
        let routers: Vec<_> =
            (0..3).map(|host| Router::start_on(&lab, host, &policy(host), &[])).collect();
        let mut world = World { adapters: Vec::new(), routers, cluster, lab };
        world.adapters = (0..3).map(|host| world.adapter(host)).collect();
        world.routers.iter().for_each(|router| wait_for(router, "tenants", "2"));
        Ok(world)
    }

    fn adapter(&self, host: usize) -> Running {
        adapter_on(&self.lab, host, &self.cluster, &self.routers[host])
    }

    /// A program of librdmacm in the container of blue or red; an error: it is not installed.
    fn start(&self, tenant: usize, words: &str) -> Result<Running, String> {
        let mut words = words.split_whitespace();
        let program = installed(words.next().expect("a tool"))?;
        let socket = self.routers[tenant].socket(&format!("t/{}/tenant.gdrc", TENANTS[tenant]));
        let mut c = contained(&self.lab, CONTAINERS[tenant], &rdmacm::launcher(), Some(&socket));
        Ok(Running::start(c.arg(program).args(words)))
    }

    /// Packets that have come to blue's host.
    fn arrived(&self) -> u64 {
        let said = self.routers[0].ask("status").output;
        let (_, wire) = said.split_once("\"wire\":").expect("a wire");
        number(wire, "rx_packets").expect("a counter")
    }

    /// Data flows on.
    fn flows(&self, after: &str) {
        let before = self.arrived();
        let what = format!("no data after: {after}");
        patience::wait_for(60, &what, || self.arrived() > before + FLOWS);
    }
}

#[test]
fn known_routes_go_on_whatever_becomes_of_the_store() {
    let mut w = or_skip!(World::new());
    let stream = "ib_send_bw -R -F -D 2 --run_infinitely";
    let mut server = or_skip!(w.start(0, stream));
    patience::wait_for(60, "the server does not listen", || {
        w.routers[0].sessions().iter().any(|s| s.contains("\"listens\":1")) || !server.still_runs()
    });
    let mut client = w.start(1, &format!("{stream} 10.99.0.1")).expect("it is installed");
    w.flows("its start");

    let leader = w.cluster.leader();
    w.cluster.kill(leader);
    w.flows("the leader is killed");
    w.cluster.start_member(leader);
    w.cluster.wait();

    for (host, _) in HOSTS {
        w.cluster.signal(host, libc::SIGSTOP);
        w.flows("a member has stopped");
        w.cluster.signal(host, libc::SIGCONT);
    }

    // The third host is cut off, for longer than its lease lasts.
    w.lab.admin(2, &["link", "set", "w0", "down"]).expect("a link");
    wait_for(&w.routers[0], "stale", "1");
    w.flows("another host is cut off");
    wait_for(&w.routers[2], "default", "false");
    assert_eq!(status(&w.routers[2], "tenants"), "2", "it knows whom it knew");
    w.lab.admin(2, &["link", "set", "w0", "up"]).expect("a link");
    wait_for(&w.routers[0], "stale", "0");
    wait_for(&w.routers[2], "default", "true");

    w.cluster.compact();
    w.flows("a compaction");

    for adapter in &mut w.adapters {
        adapter.kill();
    }
    w.flows("the adapters are killed");
    w.adapters = (0..3).map(|host| w.adapter(host)).collect();
    for router in &w.routers {
        wait_for(router, "default", "true");
        wait_for(router, "stale", "0");
    }

    for (host, _) in HOSTS {
        w.cluster.kill(host);
    }
    wait_for(&w.routers[0], "default", "false");
    w.flows("all members are killed");
    for (host, _) in HOSTS {
        w.cluster.start_member(host);
    }
    for router in &w.routers {
        wait_for(router, "default", "true");
    }
    w.flows("all are back");
    assert!(client.still_runs() && server.still_runs(), "{}\n{}", server.output(), client.output());
    let said = client.output();
    assert!(!said.contains("error") && !said.contains("Failed"), "{said}");
}
