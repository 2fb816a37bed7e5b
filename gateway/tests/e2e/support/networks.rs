//! Machines of their own for programs: namespaces of the network, all at one switch.

use std::process::Command;

use super::{
    run,
    skip::{installed, skipped},
};

/// Three of them, gone with this.
pub(crate) struct Networks {
    /// Their names.
    pub(crate) names: [String; 3],
    switch: String,
}

impl Networks {
    /// Makes them, or says a word about the test that is left out.
    pub(crate) fn or_skip() -> Option<Self> {
        if !installed("ip") {
            skipped("there is no ip: .ci/install-tools installs iproute2");
            return None;
        }
        let number = rand::random::<u32>();
        let switch = format!("e2e-{number:08x}");
        let made = run(Command::new("ip").args(["netns", "add", &switch]), b"");
        if !made.status.success() {
            skipped(&format!(
                "no namespace of the network: {}",
                String::from_utf8_lossy(&made.stderr).trim()
            ));
            return None;
        }
        let networks = Self { names: [1, 2, 3].map(|place| format!("e2e-{number:08x}-{place}")), switch };
        ip(&["-n", &networks.switch, "link", "add", "switch", "type", "bridge"]);
        ip(&["-n", &networks.switch, "link", "set", "switch", "up"]);
        for (name, place) in networks.names.iter().zip(1..) {
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
            ip(&["-n", name, "address", "add", &format!("{}/24", address(place)), "dev", "eth0"]);
            ip(&["-n", name, "link", "set", "eth0", "up"]);
        }
        Some(networks)
    }

    /// What the first of two sends to the second is lost from now on. What the second sends arrives.
    pub(crate) fn lose(&self, from: usize, to: usize) {
        ip(&["-n", &self.names[from], "route", "add", "blackhole", &address(to + 1)]);
    }

    /// It arrives again.
    pub(crate) fn mend(&self, from: usize, to: usize) {
        ip(&["-n", &self.names[from], "route", "del", "blackhole", &address(to + 1)]);
    }
}

/// Of one of them.
pub(crate) fn address(place: usize) -> String {
    format!("10.0.0.{place}")
}

fn ip(arguments: &[&str]) {
    let output = run(Command::new("ip").args(arguments), b"");
    assert!(output.status.success(), "ip {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

impl Drop for Networks {
    fn drop(&mut self) {
        for name in self.names.iter().chain([&self.switch]) {
            run(Command::new("ip").args(["netns", "del", name]), b"");
        }
    }
}
