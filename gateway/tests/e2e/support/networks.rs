//! Network namespaces that simulate separate machines, connected by one bridge.

use std::{array, fs::File, os::fd::AsFd as _, process::Command, thread};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use testing::skip::{installed, skipped};

use super::run;

/// Network namespaces. Dropping this deletes them.
pub(crate) struct NetworkNamespaces<const COUNT: usize> {
    /// The names of the namespaces.
    pub(crate) names: [String; COUNT],
    switch: String,
}

impl<const COUNT: usize> NetworkNamespaces<COUNT> {
    /// Creates the namespaces, or skips the test without the permission to do so.
    pub(crate) fn or_skip() -> Option<Self> {
        if !installed("ip") {
            skipped("there is no ip: .ci/install-tools installs iproute2");
            return None;
        }
        let number = rand::random::<u32>();
        let switch = format!("e2e-{number:08x}");
        let created = run(Command::new("ip").args(["netns", "add", &switch]), b"");
        if !created.status.success() {
            skipped(&format!(
                "no network namespace can be created: {}",
                String::from_utf8_lossy(&created.stderr).trim()
            ));
            return None;
        }
        let names = array::from_fn(|place| format!("e2e-{number:08x}-{place}"));
        let networks = Self { names, switch };
        ip(&["-n", &networks.switch, "link", "add", "switch", "type", "bridge"]);
        ip(&["-n", &networks.switch, "link", "set", "switch", "up"]);
        for (place, name) in networks.names.iter().enumerate() {
            let port = format!("port{place}");
            ip(&["netns", "add", name]);
            ip(&["-n", name, "link", "set", "lo", "up"]);
            ip(&[
                "-n",
                name,
                "link",
                "add",
                "eth0",
                "type",
                "veth",
                "peer",
                "name",
                &port,
                "netns",
                &networks.switch,
            ]);
            ip(&["-n", &networks.switch, "link", "set", &port, "master", "switch", "up"]);
            ip(&["-n", name, "address", "add", &format!("{}/24", namespace_address(place)), "dev", "eth0"]);
            ip(&["-n", name, "link", "set", "eth0", "up"]);
        }
        Some(networks)
    }

    /// Drops all packets from one namespace to another. Packets in the opposite direction still arrive.
    pub(crate) fn drop_packets(&self, from: usize, to: usize) {
        ip(&["-n", &self.names[from], "route", "add", "blackhole", &namespace_address(to)]);
    }

    /// Ends the loss of packets from one namespace to another.
    pub(crate) fn restore_packets(&self, from: usize, to: usize) {
        ip(&["-n", &self.names[from], "route", "del", "blackhole", &namespace_address(to)]);
    }
}

/// Returns the IP address of the namespace `place`.
pub(crate) fn namespace_address(place: usize) -> String {
    format!("10.0.0.{}", place + 1)
}

/// Runs a closure in a network namespace, or in that of the machine without one. Its sockets stay there.
pub(crate) fn run_in_network<T: Send>(name: Option<&str>, closure: impl FnOnce() -> T + Send) -> T {
    let Some(name) = name else { return closure() };
    // A namespace is a property of the thread.
    let in_namespace = || {
        let namespace = File::open(format!("/var/run/netns/{name}")).unwrap();
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
        closure()
    };
    thread::scope(|scope| scope.spawn(in_namespace).join().unwrap())
}

fn ip(arguments: &[&str]) {
    let output = run(Command::new("ip").args(arguments), b"");
    assert!(output.status.success(), "ip {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

impl<const COUNT: usize> Drop for NetworkNamespaces<COUNT> {
    fn drop(&mut self) {
        for name in self.names.iter().chain([&self.switch]) {
            run(Command::new("ip").args(["netns", "del", name]), b"");
        }
    }
}
